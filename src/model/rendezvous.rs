//! Decides which of several places a key belongs to, by rendezvous hashing: when a place is added or removed, only its
//! own share of the keys moves. Pure. The scores decide where stored data is, so they must never change.

/// Returns the indexes of the places, in the order in which `key` prefers them. The first place is the home of the key.
/// The callers use only the first place. They do not use another place while the server of the first place does not
/// answer.
pub fn order<P: AsRef<[u8]>>(places: &[P], key: &[&[u8]]) -> Vec<usize> {
    let mut scored: Vec<(u64, usize)> =
        places.iter().enumerate().map(|(i, place)| (score(place.as_ref(), key), i)).collect();
    // The greatest score comes first. If scores are equal, which almost never happens, the place that is listed first
    // wins.
    scored.sort_by_key(|(score, i)| (std::cmp::Reverse(*score), *i));
    scored.into_iter().map(|(_, i)| i).collect()
}

/// Returns the first place in the [`order`] of `count` places. The names of the places are the numbers from 0.
pub fn first_of(count: u32, key: &[&[u8]]) -> u32 {
    let by_score = |i: &u32| (score(&i.to_be_bytes(), key), std::cmp::Reverse(*i));
    (0..count).max_by_key(by_score).unwrap_or(0)
}

/// Returns a number that spreads keys evenly. The number of a key is always the same.
pub fn hash(key: &[&[u8]]) -> u64 {
    score(b"", key)
}

/// Returns the score of a place for a key: FNV-1a over all parts. A byte that cannot be in a name ends each part. After
/// that, some more steps mix the bits, so that a difference in the last bytes changes all bits of the score.
fn score(place: &[u8], key: &[&[u8]]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut eat = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    for part in std::iter::once(&place).chain(key) {
        part.iter().copied().for_each(&mut eat);
        eat(0xff);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home<'a>(nodes: &[&'a str], id: usize) -> &'a str {
        nodes[order(nodes, &[b"t", format!("job-{id}").as_bytes()])[0]]
    }

    #[test]
    fn every_place_has_its_share_and_a_new_one_takes_only_its_own() {
        let (three, four) = (["a", "b", "c"], ["a", "b", "c", "d"]);
        let mut share = std::collections::HashMap::<_, usize>::new();
        let mut moved = 0;
        for id in 0..10_000 {
            let (before, after) = (home(&three, id), home(&four, id));
            *share.entry(after).or_default() += 1;
            assert!(before == after || after == "d", "nothing moves between the old ones");
            moved += usize::from(before != after);
        }
        assert!(share.values().all(|n| (2300..2700).contains(n)), "{share:?}");
        assert_eq!(moved, share["d"]);
    }

    #[test]
    fn shards_share_evenly_whatever_the_node() {
        let mut share = [0; 4];
        for id in 0..10_000 {
            let id = format!("job-{id}");
            if home(&["a", "b"], id.len()) == "a" {
                share[first_of(4, &[b"t", id.as_bytes()]) as usize] += 1;
            }
        }
        let all: usize = share.iter().sum();
        assert!(share.iter().all(|n| n.abs_diff(all / 4) < all / 40 + 50), "{share:?}");
    }

    #[test]
    fn the_numbers_are_what_they_were() {
        // These scores decide where stored data is, so they must never change.
        assert_eq!(score(b"a", &[b"t", b"i"]), 3_961_044_531_746_085_483);
        assert_eq!(order(&["a", "b", "c"], &[b"orders", b"42"]), [1, 2, 0]);
        assert_eq!(first_of(64, &[b"orders", b"42"]), 14);
    }
}

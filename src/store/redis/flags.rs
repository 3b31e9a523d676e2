//! Statements that are sent to each node separately, for example that a topic is paused or resumed. The latest
//! statement about a name is valid. A node that did not answer gets this statement later, from a process that reads the
//! other nodes. Pure.

use std::collections::BTreeMap;

use redis::Value;

use super::answer::unexpected;
use crate::Result;

/// The flag of each name: when it was set (Unix milliseconds), and whether it is on.
pub(super) type PauseFlags = BTreeMap<String, (i64, bool)>;

/// The key under which a shard keeps the statements about paused topics.
pub(super) const PAUSES: &str = "pauses";

/// Takes over the flags from `other` that are later than the known ones. Returns whether there were such flags.
pub(super) fn merge_newer(known: &mut PauseFlags, other: &PauseFlags) -> bool {
    let mut is_news = false;
    for (name, flag) in other {
        if known.get(name).is_none_or(|k| k < flag) {
            known.insert(name.clone(), *flag);
            is_news = true;
        }
    }
    is_news
}

/// Returns the known flags that are missing or older in `other`.
pub(super) fn missing_or_older<'a>(
    known: &'a PauseFlags,
    other: &'a PauseFlags,
) -> impl Iterator<Item = (&'a str, (i64, bool))> {
    known
        .iter()
        .filter(|(name, flag)| other.get(*name).is_none_or(|h| h < flag))
        .map(|(n, f)| (n.as_str(), *f))
}

/// Reads the flags of a node. An entry that is not a flag is left out.
pub(super) fn read(hash: Value) -> Result<PauseFlags> {
    let texts: BTreeMap<String, String> =
        redis::from_redis_value(hash).map_err(|_| unexpected("an answer"))?;
    let parse = |(name, flag): (String, String)| {
        let (at, is_so) = flag.split_once(' ')?;
        Some((name, (at.parse().ok()?, is_so == "1")))
    };
    Ok(texts.into_iter().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_word_counts_wherever_it_is_heard() {
        let flags = |words: &[(&str, i64, bool)]| -> PauseFlags {
            words.iter().map(|(name, at, is)| ((*name).to_owned(), (*at, *is))).collect()
        };
        let mut known = flags(&[("a", 10, true), ("b", 10, false)]);
        let other = flags(&[("a", 9, false), ("b", 11, true), ("c", 1, true)]);
        assert_eq!(missing_or_older(&known, &other).collect::<Vec<_>>(), [("a", (10, true))]);
        assert!(merge_newer(&mut known, &other));
        assert_eq!(known, flags(&[("a", 10, true), ("b", 11, true), ("c", 1, true)]));
        assert!(!merge_newer(&mut known, &other));
        let hash = |text: &str| {
            let pairs =
                [("a", text)].map(|(k, v)| (Value::SimpleString(k.into()), Value::SimpleString(v.into())));
            read(Value::Map(pairs.to_vec())).unwrap()
        };
        assert_eq!(hash("12 1"), flags(&[("a", 12, true)]));
        assert_eq!(hash("soon"), PauseFlags::new());
    }
}

//! Words that all nodes are told, each by itself, and of which the latest counts: that a node is being drained, that a topic is
//! paused. A node that was away hears of them from those who read the others. Pure.

use std::collections::BTreeMap;

use redis::Value;

use super::answer::strange;
use crate::store::Result;

/// Of each name: when it was said, Unix milliseconds, and whether it is so.
pub(super) type Flags = BTreeMap<String, (i64, bool)>;

/// Goes by what another has heard, where that is later. Tells whether anything is.
pub(super) fn hear(known: &mut Flags, told: &Flags) -> bool {
    let mut is_news = false;
    for (name, flag) in told {
        if known.get(name).is_none_or(|k| k < flag) {
            known.insert(name.clone(), *flag);
            is_news = true;
        }
    }
    is_news
}

/// What somebody has not heard, of what is known.
pub(super) fn unheard<'a>(
    known: &'a Flags,
    heard: &'a Flags,
) -> impl Iterator<Item = (&'a str, (i64, bool))> {
    known
        .iter()
        .filter(|(name, flag)| heard.get(*name).is_none_or(|h| h < flag))
        .map(|(n, f)| (n.as_str(), *f))
}

/// The flags of a node; what is none is passed over.
pub(super) fn read(hash: Value) -> Result<Flags> {
    let texts: BTreeMap<String, String> = redis::from_redis_value(hash).map_err(|_| strange("an answer"))?;
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
        let flags = |words: &[(&str, i64, bool)]| -> Flags {
            words.iter().map(|(name, at, is)| ((*name).to_owned(), (*at, *is))).collect()
        };
        let mut known = flags(&[("a", 10, true), ("b", 10, false)]);
        let told = flags(&[("a", 9, false), ("b", 11, true), ("c", 1, true)]);
        assert_eq!(unheard(&known, &told).collect::<Vec<_>>(), [("a", (10, true))]);
        assert!(hear(&mut known, &told));
        assert_eq!(known, flags(&[("a", 10, true), ("b", 11, true), ("c", 1, true)]));
        assert!(!hear(&mut known, &told));
        let hash = |text: &str| {
            let pairs =
                [("a", text)].map(|(k, v)| (Value::SimpleString(k.into()), Value::SimpleString(v.into())));
            read(Value::Map(pairs.to_vec())).unwrap()
        };
        assert_eq!(hash("12 1"), flags(&[("a", 12, true)]));
        assert_eq!(hash("soon"), Flags::new());
    }
}

//! Which nodes are the homes of jobs: all but those that are being drained. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::flags::{self, Flags};
use crate::job::JobKey;
use crate::rendezvous;

/// How long it takes until everybody has heard that a node is being drained. All go by it from one moment on.
const NOTICE_MS: i64 = 2000;

/// The homes of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    homes: Vec<usize>,
    names: Vec<String>,
    /// The same for all who have the same homes.
    pub fingerprint: String,
}

impl Map {
    fn new(all: &[String], drained: impl Fn(&str) -> bool) -> Map {
        let left: Vec<usize> = (0..all.len()).filter(|i| !drained(&all[*i])).collect();
        // With all of them drained, none is.
        let homes = if left.is_empty() { (0..all.len()).collect() } else { left };
        let names: Vec<String> = homes.iter().map(|i| all[*i].clone()).collect();
        let mut sorted = names.clone();
        sorted.sort();
        Map { homes, names, fingerprint: sorted.join(",") }
    }

    /// The nodes in the order in which a job prefers them.
    pub(super) fn order(&self, key: &JobKey) -> impl Iterator<Item = usize> + use<'_> {
        rendezvous::order(&self.names, &parts(key)).into_iter().map(|i| self.homes[i])
    }

    /// The node where a job belongs.
    pub(super) fn home(&self, key: &JobKey) -> usize {
        // There is always one.
        self.order(key).next().unwrap_or(0)
    }

    /// Whether a node is a home.
    pub(super) fn has(&self, node: usize) -> bool {
        self.homes.contains(&node)
    }
}

/// What a job's place is found by.
pub(super) fn parts(key: &JobKey) -> [&[u8]; 2] {
    [key.topic.as_str().as_bytes(), key.id.as_str().as_bytes()]
}

/// Which nodes are homes, and what has been said of which will be.
#[derive(Debug)]
pub(super) struct Plan {
    all: Vec<String>,
    pub map: Arc<Map>,
    /// Of each node that has ever been drained, whether it is.
    flags: Flags,
    /// From when on the last word about a node counts, Unix milliseconds.
    counts_at_ms: BTreeMap<String, i64>,
    /// When a word begins to count; none: all do.
    changes_at_ms: Option<i64>,
}

impl Plan {
    /// All of these nodes are homes.
    pub(super) fn new(all: &[String]) -> Plan {
        let map = Arc::new(Map::new(all, |_| false));
        Plan {
            all: all.to_vec(),
            map,
            flags: Flags::new(),
            counts_at_ms: BTreeMap::new(),
            changes_at_ms: None,
        }
    }

    /// What was said last of a node; none: nothing ever was.
    pub(super) fn said(&self, name: &str) -> Option<Said> {
        let (at_ms, drained) = *self.flags.get(name)?;
        Some(Said { at_ms, drained, counts_at_ms: self.counts_at_ms.get(name).copied().unwrap_or(at_ms) })
    }

    /// Whether the map is another by now.
    pub(super) fn is_over(&self, now_ms: i64) -> bool {
        self.changes_at_ms.is_some_and(|at| at <= now_ms)
    }

    /// Takes note of what a node has said, and goes by what counts now. Tells whether the map is another.
    ///
    /// A word is only ever said when it changes something, and only when the one before it counts. So what holds until it counts
    /// is its opposite, also for who hears of it as the first of all that was ever said.
    pub(super) fn hear(&mut self, told: &Flags, now_ms: i64) -> bool {
        for (name, (at_ms, drained)) in told {
            let known = self.flags.get(name);
            // Two may have said the same at once: it counts from the first on. (Later, another word lay between that nobody here has heard.)
            let is_again = |(known, was): &(i64, bool)| was == drained && *at_ms <= known + NOTICE_MS;
            if known.is_none_or(|known| known.0 < *at_ms && !is_again(known)) {
                self.counts_at_ms.insert(name.clone(), at_ms + NOTICE_MS);
            }
        }
        flags::hear(&mut self.flags, told);
        for at_ms in self.counts_at_ms.values_mut() {
            // What counts does so for good, wherever clocks go; and what would take longer than it can was said by one that is far
            // ahead, which has no say in when.
            if *at_ms <= now_ms || *at_ms > now_ms + 2 * NOTICE_MS {
                *at_ms = i64::MIN;
            }
        }
        let drained = |name: &str| {
            self.said(name)
                .is_some_and(|said| if said.counts_at_ms <= now_ms { said.drained } else { !said.drained })
        };
        let map = Map::new(&self.all, drained);
        self.changes_at_ms = self.counts_at_ms.values().copied().filter(|at| *at > now_ms).min();
        let is_news = *self.map != map;
        self.map = Arc::new(map);
        is_news
    }
}

/// A word about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Said {
    /// When it was said, Unix milliseconds.
    pub at_ms: i64,
    pub drained: bool,
    /// From when on all go by it, Unix milliseconds.
    pub counts_at_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobId, TopicName};

    #[test]
    fn a_node_that_is_drained_is_nobodys_home_and_the_others_keep_theirs() {
        let names = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let all = Map::new(&names, |_| false);
        let two = Map::new(&names, |name| name == "b");
        assert_eq!((all.fingerprint.as_str(), two.fingerprint.as_str()), ("a,b,c", "a,c"));
        assert!(two.has(0) && !two.has(1) && two.has(2));
        let mut moved = 0;
        for n in 0..300 {
            let key = JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new(n.to_string()).unwrap() };
            let (before, after) = (all.home(&key), two.home(&key));
            assert!(after != 1 && (before == after || before == 1));
            moved += usize::from(before != after);
        }
        assert!((60..140).contains(&moved), "{moved}");
        assert_eq!(Map::new(&names, |_| true).fingerprint, "a,b,c", "somewhere they must be");
    }

    #[test]
    fn a_drain_counts_for_all_from_one_moment_on_and_the_latest_word_counts() {
        let names = ["a".to_owned(), "b".to_owned()];
        let mut plan = Plan::new(&names);
        let says = |at, drained| Flags::from([("b".to_owned(), (at, drained))]);
        assert!(!plan.hear(&says(1000, true), 1500) && plan.map.has(1));
        assert!(!plan.is_over(2999) && plan.is_over(3000));
        assert!(plan.hear(&Flags::new(), 3000) && !plan.map.has(1) && !plan.is_over(9000));
        assert!(!plan.hear(&says(5000, false), 5500) && !plan.map.has(1), "not yet");
        assert!(!plan.hear(&says(1000, true), 6000), "an old word");
        assert!(plan.hear(&Flags::new(), 7000) && plan.map.has(1));
        let mut late = Plan::new(&names);
        assert!(late.hear(&says(1000, true), 60_000), "who comes later goes by it at once");
    }

    #[test]
    fn before_a_word_counts_who_has_just_begun_goes_by_what_the_others_go_by() {
        let names = ["a".to_owned(), "b".to_owned()];
        let says = |at, drained| Flags::from([("b".to_owned(), (at, drained))]);
        // It was drained long ago, and is no longer from 7000 on.
        let mut new = Plan::new(&names);
        assert!(new.hear(&says(5000, false), 5100) && !new.map.has(1));
        assert_eq!(new.said("b").map(|said| said.counts_at_ms), Some(7000));
        assert!(!new.is_over(6999) && new.is_over(7000));
        assert!(new.hear(&Flags::new(), 7000) && new.map.has(1));
        assert_eq!(new.said("a"), None);
    }

    #[test]
    fn a_word_by_a_clock_that_is_far_ahead_counts_at_once_and_for_good() {
        let mut plan = Plan::new(&["a".to_owned(), "b".to_owned()]);
        let ahead = Flags::from([("b".to_owned(), (3_600_000, true))]);
        assert!(plan.hear(&ahead, 1000) && !plan.map.has(1));
        for now in [2000, 3_599_000, 3_601_000] {
            assert!(!plan.hear(&ahead, now) && !plan.map.has(1), "{now}");
        }
    }

    #[test]
    fn what_counts_does_so_when_clocks_are_put_back_and_when_it_is_said_twice() {
        let mut plan = Plan::new(&["a".to_owned(), "b".to_owned()]);
        let says = |at| Flags::from([("b".to_owned(), (at, true))]);
        assert!(!plan.hear(&says(3_600_000), 3_600_000) && plan.hear(&Flags::new(), 3_602_000));
        for now in [3_600_500, 1000] {
            assert!(!plan.hear(&says(3_600_000), now) && !plan.map.has(1), "{now}");
        }
        assert!(!plan.hear(&says(3_600_001), 3_600_001) && !plan.map.has(1));
        // It was undone meanwhile, and said anew: who has heard of the last word alone goes by what the others go by.
        assert!(plan.hear(&says(3_700_000), 3_700_000) && plan.map.has(1));
        assert!(plan.hear(&Flags::new(), 3_702_000) && !plan.map.has(1));
        let mut early = Plan::new(&["a".to_owned(), "b".to_owned()]);
        assert!(!early.hear(&says(3_600_000), 3_600_000));
        assert!(early.hear(&Flags::new(), 1000) && !early.map.has(1), "nobody waits for an hour");
    }
}

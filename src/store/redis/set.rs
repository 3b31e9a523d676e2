//! The set of nodes: which nodes are the homes of jobs. Every shard keeps the set, and every call of a fenced script
//! has the set of its caller. A shard refuses a call that has another set. docs/internals/NODES.md has the rules. Pure.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Result, StoreError};
use model::job::JobKey;
use model::rendezvous;

/// The key under which a shard keeps the set.
pub(super) const SET: &str = "set";

/// The set as a shard has it. Its text is `number tag a,b`, or `number tag a,b from a,b,c` while jobs are moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeSet {
    text: String,
    /// When the set was made, Unix milliseconds. If the number of the previous set is the same or greater, this number
    /// is the previous number plus one.
    pub number: u64,
    /// The names of the nodes that are homes of jobs.
    pub names: Vec<String>,
    /// While jobs are moved: the next set.
    pub moving: Option<MoveGoal>,
}

/// What a set becomes when the move is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MoveGoal {
    /// The number of the open set from which jobs are moved. 0: there was no open set.
    pub from: u64,
    /// The names of the nodes that will be homes.
    pub names: Vec<String>,
}

impl NodeSet {
    fn new(after: u64, names: &[String], moving: Option<MoveGoal>) -> Result<NodeSet> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let number = now.max(after + 1);
        let tag = getrandom::u64().map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
        let mut names = names.to_vec();
        names.sort();
        let goal = moving.as_ref().map(|goal| format!(" {} {}", goal.from, goal.names.join(",")));
        let text = format!("{number} {tag:016x} {}{}", names.join(","), goal.unwrap_or_default());
        Ok(NodeSet { text, number, names, moving })
    }

    /// Makes an open set with these homes. Its number is greater than `after`.
    pub(super) fn open(after: u64, names: &[String]) -> Result<NodeSet> {
        NodeSet::new(after, names, None)
    }

    /// Makes a set that moves jobs from these homes to the homes of the goal.
    pub(super) fn moving(after: u64, names: &[String], from: u64, goal: &[String]) -> Result<NodeSet> {
        let mut goal = goal.to_vec();
        goal.sort();
        NodeSet::new(after, names, Some(MoveGoal { from, names: goal }))
    }

    /// Reads the text that a shard keeps. None: the text is not a set.
    pub(super) fn parse(text: &str) -> Option<NodeSet> {
        let mut words = text.split(' ');
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let (number, _tag, names) = (words.next()?.parse().ok()?, words.next()?, list(words.next()?));
        let moving = match words.next() {
            None => None,
            Some(from) => Some(MoveGoal { from: from.parse().ok()?, names: list(words.next()?) }),
        };
        Some(NodeSet { text: text.to_owned(), number, names, moving })
    }

    /// Returns the text that a shard keeps.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the nodes that are homes. While jobs are moved, these are the nodes of the goal.
    pub(super) fn homes(&self) -> &[String] {
        self.moving.as_ref().map_or(&self.names, |goal| &goal.names)
    }

    /// Returns all nodes that the set names, each once.
    pub(super) fn all(&self) -> Vec<&str> {
        let goal = self.moving.iter().flat_map(|goal| &goal.names);
        let mut all: Vec<&str> = self.names.iter().chain(goal).map(String::as_str).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns whether a process that knows the set `known` must use this set instead. If there is only one node, no
    /// other node can have a different set. So this set is used even if its number is smaller.
    pub(super) fn is_news(&self, known: Option<&NodeSet>) -> bool {
        known.is_none_or(|known| {
            let is_alone = self.names.len() == 1 && self.all() == known.all();
            self.number > known.number || is_alone && self.text != known.text
        })
    }
}

/// Returns the parts of a key that decide the place of a job.
pub(super) fn parts(key: &JobKey) -> [&[u8]; 2] {
    [key.topic.as_str().as_bytes(), key.id.as_str().as_bytes()]
}

/// Returns which of these nodes is the home of a job.
pub(super) fn home_of(names: &[String], key: &JobKey) -> usize {
    match names.len() {
        1 => 0,
        _ => rendezvous::order(names, &parts(key)).first().copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::{JobId, TopicName};

    fn names(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn a_set_is_read_as_it_was_written() {
        let open = NodeSet::open(0, &names("b,a")).unwrap();
        assert_eq!(NodeSet::parse(open.text()), Some(open.clone()));
        assert_eq!((open.homes().join(","), open.all()), ("a,b".to_owned(), vec!["a", "b"]));
        let moving = NodeSet::moving(open.number, &open.names, open.number, &names("c,b")).unwrap();
        assert_eq!(NodeSet::parse(moving.text()), Some(moving.clone()));
        assert!(moving.number > open.number);
        assert_eq!((moving.homes().join(","), moving.all()), ("b,c".to_owned(), vec!["a", "b", "c"]));
        for bad in ["", "7", "7 x", "x y a", "7 x a 6", "7 x a y b"] {
            assert_eq!(NodeSet::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_later_set_holds_and_a_node_that_is_alone_is_believed() {
        let set = |text: &str| NodeSet::parse(text).unwrap();
        let known = set("7 x a,b");
        assert!(set("8 y a,b").is_news(Some(&known)) && set("1 y a,b").is_news(None));
        assert!(!set("7 x a,b").is_news(Some(&known)) && !set("6 y a,b").is_news(Some(&known)));
        assert!(set("1 z a").is_news(Some(&set("9 x a"))) && !set("9 x a").is_news(Some(&set("9 x a"))));
        assert!(!set("1 z a").is_news(Some(&set("9 x a,b"))));
    }

    #[test]
    fn a_job_stays_on_its_node_or_moves_to_the_added_node() {
        let (two, three) = (names("a,b"), names("a,b,c"));
        let mut moved = 0;
        for n in 0..300 {
            let key = JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new(n.to_string()).unwrap() };
            let (before, after) = (home_of(&two, &key), home_of(&three, &key));
            assert!(after == 2 || before == after);
            moved += usize::from(after == 2);
        }
        assert!((60..140).contains(&moved), "{moved}");
    }
}

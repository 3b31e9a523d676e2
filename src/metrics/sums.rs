//! What of the counts is kept for good, by day: of each topic and each node.

use std::collections::BTreeMap;

use serde::Serialize;

/// Sums over a page, a day, or all time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// Jobs that were stored, new or in the place of others.
    pub written: u64,
    /// Jobs that are done.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Jobs that were deleted.
    pub deleted: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
    /// By how much attempts began after their due time, all together, in microseconds.
    pub late_us: u64,
    /// How many attempts that is.
    pub attempts: u64,
}

impl Sums {
    /// How many numbers there are.
    pub const COUNT: usize = 7;

    /// All of them, in their order.
    pub fn numbers(&self) -> [u64; Sums::COUNT] {
        let Sums { written, delivered, failed, deleted, dead, late_us, attempts } = *self;
        [written, delivered, failed, deleted, dead, late_us, attempts]
    }

    /// Of numbers in that order.
    pub fn of(numbers: [u64; Sums::COUNT]) -> Sums {
        let [written, delivered, failed, deleted, dead, late_us, attempts] = numbers;
        Sums { written, delivered, failed, deleted, dead, late_us, attempts }
    }

    fn with(self, other: Sums, each: fn(u64, u64) -> u64) -> Sums {
        let (mine, others) = (self.numbers(), other.numbers());
        Sums::of(std::array::from_fn(|i| each(mine[i], others[i])))
    }

    /// These and those.
    pub fn plus(self, other: Sums) -> Sums {
        self.with(other, u64::wrapping_add)
    }

    /// What these have more than those. A page's numbers never fall: a reading that is older brings nothing.
    pub fn since(self, before: Sums) -> Sums {
        self.with(before, u64::saturating_sub)
    }

    /// The later reading of each.
    pub fn max(self, other: Sums) -> Sums {
        self.with(other, u64::max)
    }
}

/// What sums are of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A topic.
    Topic(String),
    /// A node of the store.
    Node(String),
}

impl Subject {
    /// A word for its kind, and its name.
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Subject::Topic(name) => ("topic", name),
            Subject::Node(name) => ("node", name),
        }
    }

    /// The other way round; none: there is no such kind.
    pub fn of(kind: &str, name: String) -> Option<Subject> {
        match kind {
            "topic" => Some(Subject::Topic(name)),
            "node" => Some(Subject::Node(name)),
            _ => None,
        }
    }
}

/// What stood in a page when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageSums {
    /// The page's own number.
    pub page: u64,
    /// Of each subject that has any.
    pub sums: Vec<(Subject, Sums)>,
}

/// The sums of a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Day {
    /// `2026-11-21`.
    pub day: String,
    /// Them.
    #[serde(flatten)]
    pub sums: Sums,
}

/// What is known of each subject: of all time, and of the days that were asked for, the earliest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics(pub BTreeMap<Subject, (Sums, Vec<Day>)>);

impl Statistics {
    /// Takes a row: of a day, or, where that is empty, of all time. Days come in their order.
    pub fn take(&mut self, subject: Subject, day: String, sums: Sums) {
        let (totals, days) = self.0.entry(subject).or_default();
        match day.is_empty() {
            true => *totals = sums,
            false => days.push(Day { day, sums }),
        }
    }
}

//! The counts that dq stores permanently, by day, for each topic and each node.

use std::collections::BTreeMap;

use serde::Serialize;

/// Sums over a page, a day, or all time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// Jobs that were stored, new or as replacements.
    pub written: u64,
    /// Jobs that are done.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Jobs that were deleted.
    pub deleted: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
    /// The lateness of all attempts together, in microseconds. The lateness of an attempt is the time from its due time
    /// to its beginning.
    pub late_us: u64,
    /// The number of attempts in the sum `late_us`.
    pub attempts: u64,
}

impl Sums {
    /// How many numbers there are.
    pub const COUNT: usize = 7;

    /// Returns all numbers, in their order.
    pub fn numbers(&self) -> [u64; Sums::COUNT] {
        let Sums { written, delivered, failed, deleted, dead, late_us, attempts } = *self;
        [written, delivered, failed, deleted, dead, late_us, attempts]
    }

    /// Makes sums from numbers in the order of [`Sums::numbers`].
    pub fn new(numbers: [u64; Sums::COUNT]) -> Sums {
        let [written, delivered, failed, deleted, dead, late_us, attempts] = numbers;
        Sums { written, delivered, failed, deleted, dead, late_us, attempts }
    }

    fn with(self, other: Sums, each: fn(u64, u64) -> u64) -> Sums {
        let (mine, others) = (self.numbers(), other.numbers());
        Sums::new(std::array::from_fn(|i| each(mine[i], others[i])))
    }

    /// Returns these sums plus the other sums.
    pub fn plus(self, other: Sums) -> Sums {
        self.with(other, u64::saturating_add)
    }

    /// Returns the differences between these sums and earlier sums. The numbers of a page never fall. So if `self` was
    /// read before `before`, all differences are 0.
    pub fn since(self, before: Sums) -> Sums {
        self.with(before, u64::saturating_sub)
    }

    /// Returns the greater value of each number. Numbers never fall, so the greater value comes from the later reading.
    pub fn max(self, other: Sums) -> Sums {
        self.with(other, u64::max)
    }
}

/// The topic or node that sums are about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetricSubject {
    /// A topic.
    Topic(String),
    /// A node of the store.
    Node(String),
}

impl MetricSubject {
    /// Returns the word for the kind of the subject, and the name of the subject.
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            MetricSubject::Topic(name) => ("topic", name),
            MetricSubject::Node(name) => ("node", name),
        }
    }

    /// Makes a subject from its name and the word for its kind. None: there is no such kind.
    pub fn new(kind: &str, name: String) -> Option<MetricSubject> {
        match kind {
            "topic" => Some(MetricSubject::Topic(name)),
            "node" => Some(MetricSubject::Node(name)),
            _ => None,
        }
    }
}

/// The sums of a page at the time when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageSums {
    /// The number of the page.
    pub page: u64,
    /// The sums of each topic and each node. If all sums of a topic or node are 0, the topic or node is left out.
    pub sums: Vec<(MetricSubject, Sums)>,
}

/// The sums of a day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DaySums {
    /// The day, such as `2026-11-21`.
    pub day: String,
    /// The sums.
    #[serde(flatten)]
    pub sums: Sums,
}

/// The sums of each subject: of all time, and of the requested days, the earliest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics(pub BTreeMap<MetricSubject, (Sums, Vec<DaySums>)>);

impl Statistics {
    /// Adds the row of a day, or the row of all time if `day` is empty. The days must be added in their order.
    pub fn take(&mut self, subject: MetricSubject, day: String, sums: Sums) {
        let (totals, days) = self.0.entry(subject).or_default();
        match day.is_empty() {
            true => *totals = sums,
            false => days.push(DaySums { day, sums }),
        }
    }
}

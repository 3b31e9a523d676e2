//! What is counted: the names of counters and histograms, where each lies in a page, and how they are told. Pure: a page is words
//! that somebody else has mapped (`counters`). A sum never falls while its page is there.

mod histogram;
mod page;
mod sums;
mod text;

use std::collections::BTreeMap;

pub use self::histogram::{ATTEMPT_BOUNDS, Histogram, LATENESS_BOUNDS, STORE_BOUNDS};
pub use self::page::{BYTES, Cells, FIXED_BYTES, Page, ROW_BYTES, VERSION, WORDS};
pub use self::sums::{Day, PageSums, Statistics, Subject, Sums};
pub use self::text::{Kind, Text};

/// The name of what is counted together: topics beyond those that a page has room for, and names that are no topic's.
pub const OTHER: &str = "(other)";

/// What became of a job that somebody wanted to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddOutcome {
    /// Stored.
    New,
    /// Stored in the place of one with its id.
    Replaced,
    /// One with its id stays (`keep`).
    Kept,
    /// One with its id stays (`reject`).
    Exists,
    /// The store did not take it.
    Failed,
    /// The store may have taken it.
    Unknown,
    /// It was refused before the store was asked.
    Refused,
}

impl AddOutcome {
    const NAMES: [&str; 7] = ["new", "replaced", "kept", "exists", "failed", "unknown", "refused"];
}

/// What became of a job that somebody wanted to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// It was there, and is gone.
    Deleted,
    /// It was not there.
    NotFound,
    /// The store did not do it, or may not have done it.
    Failed,
}

impl DeleteOutcome {
    const NAMES: [&str; 3] = ["deleted", "not_found", "failed"];
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The receiver accepted the job.
    Accepted,
    /// It did not.
    Failed,
    /// It is gone for good.
    Refused,
}

impl AttemptOutcome {
    const NAMES: [&str; 3] = ["accepted", "failed", "refused"];
}

/// Classes of HTTP statuses; the first: there was no answer.
const CODE_CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Why a job became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeathCause {
    /// Its attempts are used up by callbacks that failed, or the receiver refused it.
    Callback,
    /// Its last attempt ended with its lease: nobody settled it.
    Lease,
}

impl DeathCause {
    const NAMES: [&str; 2] = ["callback", "lease"];
}

/// Why a dead letter was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeCause {
    /// Somebody wanted it.
    Asked,
    /// It was kept for as long as its topic says.
    Retention,
}

impl PurgeCause {
    const NAMES: [&str; 2] = ["asked", "retention"];
}

/// What a store is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Adds, in batches.
    Add,
    /// A job, a listing, counts.
    Read,
    /// Deletes, in batches.
    Delete,
    /// Another due time, redrive, purge.
    Change,
    /// Due jobs to ready, in batches.
    Promote,
    /// Leases, in batches.
    Lease,
    /// Outcomes, in batches.
    Settle,
    /// Leases that ran out, or whose process is gone.
    Expire,
}

impl Operation {
    const NAMES: [&str; 8] = ["add", "read", "delete", "change", "promote", "lease", "settle", "expire"];
}

// Where a topic's numbers lie among its cells. What is new goes behind: cells that a release does not know are 0 there.
const ADDS: usize = 0;
const DELETES: usize = ADDS + AddOutcome::NAMES.len();
const ATTEMPTS: usize = DELETES + DeleteOutcome::NAMES.len();
const DELIVERED: usize = ATTEMPTS + AttemptOutcome::NAMES.len() * CODE_CLASSES.len();
const RETRIES: usize = DELIVERED + 1;
const DEAD: usize = RETRIES + 1;
const LATENESS: usize = DEAD + DeathCause::NAMES.len();
const DURATION: usize = LATENESS + Histogram::cells(&LATENESS_BOUNDS);
const LATER: usize = DURATION + Histogram::cells(&ATTEMPT_BOUNDS);
const PURGED: usize = LATER + 1;
const TOPIC_CELLS: usize = PURGED + PurgeCause::NAMES.len();

// And a node's.
const NODE_WRITTEN: usize = 0;
const NODE_DELIVERED: usize = 1;
const NODE_DELETED: usize = 2;
const NODE_ERRORS: usize = 3;
const NODE_LATENCY: usize = NODE_ERRORS + Operation::NAMES.len();
const NODE_CELLS: usize = NODE_LATENCY + Operation::NAMES.len() * Histogram::cells(&STORE_BOUNDS);

/// A topic's numbers, to be added to. Each addition is one instruction.
#[derive(Debug, Clone, Copy)]
pub struct TopicCells<'a>(pub Cells<'a>);

impl TopicCells<'_> {
    /// Jobs that somebody wanted to add.
    pub fn added(self, outcome: AddOutcome, jobs: u64) {
        self.0.add(ADDS + outcome as usize, jobs);
    }

    /// A job that somebody wanted to delete.
    pub fn deleted(self, outcome: DeleteOutcome) {
        self.0.add(DELETES + outcome as usize, 1);
    }

    /// An attempt that ended: with which status, if there was one; how late it began and how long it took, in microseconds.
    pub fn attempted(self, outcome: AttemptOutcome, status: Option<u16>, late_us: u64, took_us: u64) {
        let class = status.map_or(0, |s| usize::from(s / 100).clamp(1, CODE_CLASSES.len() - 1));
        self.0.add(ATTEMPTS + outcome as usize * CODE_CLASSES.len() + class, 1);
        Histogram::note(self.0, LATENESS, &LATENESS_BOUNDS, late_us);
        Histogram::note(self.0, DURATION, &ATTEMPT_BOUNDS, took_us);
    }

    /// An attempt whose receiver answers later; times are as in [`TopicCells::attempted`].
    pub fn answered_later(self, late_us: u64, took_us: u64) {
        self.0.add(LATER, 1);
        Histogram::note(self.0, LATENESS, &LATENESS_BOUNDS, late_us);
        Histogram::note(self.0, DURATION, &ATTEMPT_BOUNDS, took_us);
    }

    /// Dead letters that were removed.
    pub fn purged(self, cause: PurgeCause, letters: u64) {
        self.0.add(PURGED + cause as usize, letters);
    }

    /// A job that is done.
    pub fn delivered(self) {
        self.0.add(DELIVERED, 1);
    }

    /// A job that is to be tried again.
    pub fn retried(self) {
        self.0.add(RETRIES, 1);
    }

    /// A dead letter.
    pub fn died(self, cause: DeathCause) {
        self.0.add(DEAD + cause as usize, 1);
    }
}

/// A node's numbers, to be added to.
#[derive(Debug, Clone, Copy)]
pub struct NodeCells<'a>(pub Cells<'a>);

impl NodeCells<'_> {
    /// Jobs that were stored there.
    pub fn written(self, jobs: u64) {
        self.0.add(NODE_WRITTEN, jobs);
    }

    /// Jobs that were leased there and are done.
    pub fn delivered(self, jobs: u64) {
        self.0.add(NODE_DELIVERED, jobs);
    }

    /// Jobs that were deleted there.
    pub fn deleted(self, jobs: u64) {
        self.0.add(NODE_DELETED, jobs);
    }

    /// How long it took to answer, in microseconds, and whether something of it failed.
    pub fn answered(self, operation: Operation, took_us: u64, failed: bool) {
        let place = NODE_LATENCY + operation as usize * Histogram::cells(&STORE_BOUNDS);
        Histogram::note(self.0, place, &STORE_BOUNDS, took_us);
        if failed {
            self.0.add(NODE_ERRORS + operation as usize, 1);
        }
    }
}

/// What stands in a page, or in several together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    topics: BTreeMap<String, Vec<u64>>,
    nodes: BTreeMap<String, Vec<u64>>,
}

impl Totals {
    /// What stands in a page now.
    pub fn of(page: Page<'_>) -> Totals {
        Totals { topics: page.topics(), nodes: page.nodes() }
    }

    /// Puts another page's numbers to these.
    pub fn join(&mut self, other: Totals) {
        for (mine, others) in [(&mut self.topics, other.topics), (&mut self.nodes, other.nodes)] {
            for (name, cells) in others {
                let sums = mine.entry(name).or_insert_with(|| vec![0; cells.len()]);
                for (sum, cell) in sums.iter_mut().zip(cells) {
                    *sum = sum.wrapping_add(cell);
                }
            }
        }
    }

    /// What of it goes into the statistics of days.
    pub fn sums(&self) -> Vec<(Subject, Sums)> {
        let topic = |cells: &[u64]| {
            let outcome = |of: AttemptOutcome| {
                let at = ATTEMPTS + of as usize * CODE_CLASSES.len();
                cells[at..at + CODE_CLASSES.len()].iter().sum::<u64>()
            };
            let late = Histogram::of(&cells[LATENESS..], &LATENESS_BOUNDS);
            Sums {
                written: cells[ADDS + AddOutcome::New as usize] + cells[ADDS + AddOutcome::Replaced as usize],
                delivered: cells[DELIVERED],
                failed: outcome(AttemptOutcome::Failed) + outcome(AttemptOutcome::Refused),
                deleted: cells[DELETES + DeleteOutcome::Deleted as usize],
                dead: cells[DEAD..DEAD + DeathCause::NAMES.len()].iter().sum(),
                late_us: late.sum_us(),
                attempts: late.count(),
            }
        };
        let node = |cells: &[u64]| Sums {
            written: cells[NODE_WRITTEN],
            delivered: cells[NODE_DELIVERED],
            deleted: cells[NODE_DELETED],
            ..Sums::default()
        };
        let topics = self.topics.iter().map(|(name, cells)| (Subject::Topic(name.clone()), topic(cells)));
        let nodes = self.nodes.iter().map(|(name, cells)| (Subject::Node(name.clone()), node(cells)));
        topics.chain(nodes).filter(|(_, sums)| *sums != Sums::default()).collect()
    }

    /// How many attempts of all topics began how late: in each range of [`LATENESS_BOUNDS`], and beyond.
    pub fn lateness(&self) -> Vec<u64> {
        let mut sums = vec![0_u64; LATENESS_BOUNDS.len() + 1];
        for cells in self.topics.values() {
            for (sum, cell) in sums.iter_mut().zip(&cells[LATENESS..]) {
                *sum = sum.wrapping_add(*cell);
            }
        }
        sums
    }

    /// Tells all of it.
    pub fn tell(&self, text: &mut Text) {
        let topics = || self.topics.iter().map(|(name, cells)| (("topic", name.as_str()), cells.as_slice()));
        let nodes = || self.nodes.iter().map(|(name, cells)| (("node", name.as_str()), cells.as_slice()));
        let named = |text: &mut Text, of: (&str, &str), label: &str, names: &[&str], cells: &[u64]| {
            for (name, n) in names.iter().zip(cells) {
                text.sample(&[of, (label, name)], *n as f64);
            }
        };

        text.family(
            "dq_adds_total",
            Kind::Counter,
            "Jobs that clients wanted to add, by what became of them.",
        );
        topics().for_each(|(t, c)| named(text, t, "outcome", &AddOutcome::NAMES, &c[ADDS..DELETES]));
        text.family(
            "dq_deletes_total",
            Kind::Counter,
            "Jobs that clients wanted to delete, by what became of them.",
        );
        topics().for_each(|(t, c)| named(text, t, "outcome", &DeleteOutcome::NAMES, &c[DELETES..ATTEMPTS]));
        text.family(
            "dq_attempts_total",
            Kind::Counter,
            "Callbacks that ended, by how, and by the class of the HTTP status.",
        );
        for (topic, cells) in topics() {
            let outcomes = AttemptOutcome::NAMES.iter().zip(cells[ATTEMPTS..].chunks(CODE_CLASSES.len()));
            for (outcome, classes) in outcomes {
                for (class, n) in CODE_CLASSES.iter().zip(classes).filter(|(_, n)| **n > 0) {
                    text.sample(&[topic, ("outcome", outcome), ("code_class", class)], *n as f64);
                }
            }
            if cells[LATER] > 0 {
                text.sample(&[topic, ("outcome", "later"), ("code_class", "2xx")], cells[LATER] as f64);
            }
        }
        text.family("dq_deliveries_total", Kind::Counter, "Jobs that were accepted and are done.");
        topics().for_each(|(t, c)| text.sample(&[t], c[DELIVERED] as f64));
        text.family(
            "dq_retries_total",
            Kind::Counter,
            "Attempts that failed and after which the job is tried again.",
        );
        topics().for_each(|(t, c)| text.sample(&[t], c[RETRIES] as f64));
        text.family("dq_dead_letters_total", Kind::Counter, "Jobs that became dead letters, by why.");
        topics().for_each(|(t, c)| named(text, t, "cause", &DeathCause::NAMES, &c[DEAD..LATENESS]));
        text.family("dq_dead_purged_total", Kind::Counter, "Dead letters that were removed, by why.");
        topics().for_each(|(t, c)| named(text, t, "cause", &PurgeCause::NAMES, &c[PURGED..TOPIC_CELLS]));
        text.family(
            "dq_schedule_lateness_seconds",
            Kind::Histogram,
            "From the due time of an attempt to the beginning of its call.",
        );
        topics().for_each(|(t, c)| text.histogram(&[t], &Histogram::of(&c[LATENESS..], &LATENESS_BOUNDS)));
        text.family("dq_attempt_duration_seconds", Kind::Histogram, "How long callbacks took.");
        topics().for_each(|(t, c)| text.histogram(&[t], &Histogram::of(&c[DURATION..], &ATTEMPT_BOUNDS)));

        text.family(
            "dq_store_latency_seconds",
            Kind::Histogram,
            "How long a node took for a call, by what was asked; many calls are of a whole batch.",
        );
        for (node, cells) in nodes() {
            let each = cells[NODE_LATENCY..].chunks(Histogram::cells(&STORE_BOUNDS));
            for (name, cells) in Operation::NAMES.iter().zip(each) {
                text.histogram(&[node, ("operation", name)], &Histogram::of(cells, &STORE_BOUNDS));
            }
        }
        text.family("dq_store_errors_total", Kind::Counter, "Calls of which some or all failed.");
        nodes()
            .for_each(|(n, c)| named(text, n, "operation", &Operation::NAMES, &c[NODE_ERRORS..NODE_LATENCY]));
        for (name, help, at) in [
            ("dq_node_written_total", "Jobs that were stored whose home the node is.", NODE_WRITTEN),
            ("dq_node_delivered_total", "Jobs that were leased on the node and are done.", NODE_DELIVERED),
            ("dq_node_deleted_total", "Jobs that were deleted whose home the node is.", NODE_DELETED),
        ] {
            text.family(name, Kind::Counter, help);
            nodes().for_each(|(node, cells)| text.sample(&[node], cells[at] as f64));
        }
    }
}

//! What dq counts: the counters and histograms, where each one is in a page, and how they are written as text. Pure: a
//! page is a slice of words, which another crate maps into memory (`telemetry::counters`). A number never falls while
//! its page exists.

mod cells;
mod histogram;
mod labels;
mod lateness;
mod page;
mod page_1;
mod receiver;
mod sums;
mod text;

use std::collections::BTreeMap;

pub use self::cells::RowCells;
pub use self::histogram::{ATTEMPT_BOUNDS, Histogram, STORE_BOUNDS};
use self::labels::CODE_CLASSES;
pub use self::labels::{AddOutcome, AttemptOutcome, DeathCause, DeleteOutcome, PurgeCause, StoreOperation};
pub use self::lateness::{LATENESS_BOUNDS, LATENESS_RANGES, LATENESS_SHOWN, LatenessHistogram};
pub use self::page::{BYTES, BYTES_1, FIXED_BYTES, Page, ROW_BYTES, VERSION, WORDS};
pub use self::receiver::ReceiverCounts;
pub use self::sums::{DaySums, MetricSubject, PageSums, Statistics, Sums};
pub use self::text::{MetricKind, MetricsText};
use crate::topic::Failure;

/// The name under which dq counts all topics and nodes for which a page has no room. dq makes no row for a name that is
/// perhaps not a topic. If such a name has no row, it is also counted under `(other)`.
pub const OTHER: &str = "(other)";

// The positions of a topic's numbers in its cells. New numbers are added at the end. In the page of a release that does
// not know a new number, the number is 0.
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
const SPOOLED: usize = PURGED + PurgeCause::NAMES.len();
const FAILURES: usize = SPOOLED + 1;
const TOPIC_CELLS: usize = FAILURES + receiver::FAILURES;

// The positions of a node's numbers in its cells.
const NODE_WRITTEN: usize = 0;
const NODE_DELIVERED: usize = 1;
const NODE_DELETED: usize = 2;
const NODE_ERRORS: usize = 3;
const NODE_LATENCY: usize = NODE_ERRORS + StoreOperation::NAMES.len();
const NODE_CELLS: usize = NODE_LATENCY + StoreOperation::NAMES.len() * Histogram::cells(&STORE_BOUNDS);

/// Adds to the numbers of a topic. Each addition to a number is one instruction.
#[derive(Debug, Clone, Copy)]
pub struct TopicCounters<'a>(pub RowCells<'a>);

impl TopicCounters<'_> {
    /// Counts adds with this outcome.
    pub fn added(self, outcome: AddOutcome, jobs: u64) {
        self.0.add(ADDS + outcome as usize, jobs);
    }

    /// Counts a delete.
    pub fn deleted(self, outcome: DeleteOutcome) {
        self.0.add(DELETES + outcome as usize, 1);
    }

    /// Counts an attempt that ended, with its HTTP status if there was one. Also records how late the attempt began and
    /// how long it took, in microseconds.
    pub fn attempted(self, outcome: AttemptOutcome, status: Option<u16>, late_us: u64, took_us: u64) {
        let class = status.map_or(0, |s| usize::from(s / 100).clamp(1, CODE_CLASSES.len() - 1));
        self.0.add(ATTEMPTS + outcome as usize * CODE_CLASSES.len() + class, 1);
        Histogram::note(self.0, LATENESS, &LATENESS_BOUNDS, late_us);
        Histogram::note(self.0, DURATION, &ATTEMPT_BOUNDS, took_us);
    }

    /// Records how late a client reserved a job, in microseconds.
    pub fn reserved(self, late_us: u64) {
        Histogram::note(self.0, LATENESS, &LATENESS_BOUNDS, late_us);
    }

    /// Counts an attempt of a client that has reserved the job, and how long it took, in microseconds.
    /// [`TopicCounters::reserved`] counts how late the attempt began.
    pub fn reported(self, outcome: AttemptOutcome, took_us: u64) {
        self.0.add(ATTEMPTS + outcome as usize * CODE_CLASSES.len(), 1);
        Histogram::note(self.0, DURATION, &ATTEMPT_BOUNDS, took_us);
    }

    /// Counts an attempt that the receiver answers later. The times are as in [`TopicCounters::attempted`].
    pub fn answered_later(self, late_us: u64, took_us: u64) {
        self.0.add(LATER, 1);
        Histogram::note(self.0, LATENESS, &LATENESS_BOUNDS, late_us);
        Histogram::note(self.0, DURATION, &ATTEMPT_BOUNDS, took_us);
    }

    /// Counts why an attempt failed.
    pub fn failed_with(self, failure: Failure) {
        self.0.add(FAILURES + receiver::failure_place(failure), 1);
    }

    /// Counts jobs that were taken into the spool.
    pub fn spooled(self, jobs: u64) {
        self.0.add(SPOOLED, jobs);
    }

    /// Counts dead letters that were removed.
    pub fn purged(self, cause: PurgeCause, letters: u64) {
        self.0.add(PURGED + cause as usize, letters);
    }

    /// Counts a job that is done.
    pub fn delivered(self) {
        self.0.add(DELIVERED, 1);
    }

    /// Counts a job that will be tried again.
    pub fn retried(self) {
        self.0.add(RETRIES, 1);
    }

    /// Counts a job that became a dead letter.
    pub fn died(self, cause: DeathCause) {
        self.0.add(DEAD + cause as usize, 1);
    }
}

/// Adds to the numbers of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeCounters<'a>(pub RowCells<'a>);

impl NodeCounters<'_> {
    /// Counts jobs that were stored on the node.
    pub fn written(self, jobs: u64) {
        self.0.add(NODE_WRITTEN, jobs);
    }

    /// Counts jobs that were leased from the node and are done.
    pub fn delivered(self, jobs: u64) {
        self.0.add(NODE_DELIVERED, jobs);
    }

    /// Counts jobs that were deleted from the node.
    pub fn deleted(self, jobs: u64) {
        self.0.add(NODE_DELETED, jobs);
    }

    /// Records a call: how long the node took to answer, in microseconds, and whether a part of the call failed.
    pub fn answered(self, operation: StoreOperation, took_us: u64, failed: bool) {
        let place = NODE_LATENCY + operation as usize * Histogram::cells(&STORE_BOUNDS);
        Histogram::note(self.0, place, &STORE_BOUNDS, took_us);
        if failed {
            self.0.add(NODE_ERRORS + operation as usize, 1);
        }
    }
}

/// Returns how late the attempts of the topic with these cells began.
fn lateness_of(cells: &[u64]) -> LatenessHistogram {
    LatenessHistogram::from(&Histogram::new(&cells[LATENESS..], &LATENESS_BOUNDS))
}

/// Returns how many attempts ended with an outcome, with any status.
fn attempts_with(cells: &[u64], outcome: AttemptOutcome) -> u64 {
    let at = ATTEMPTS + outcome as usize * CODE_CLASSES.len();
    cells[at..at + CODE_CLASSES.len()].iter().sum()
}

/// Returns how many attempts of a topic with these cells failed.
fn failed_attempts(cells: &[u64]) -> u64 {
    attempts_with(cells, AttemptOutcome::Failed) + attempts_with(cells, AttemptOutcome::Refused)
}

/// Returns what the receiver of a topic with these cells did.
fn receiver_of(cells: &[u64]) -> ReceiverCounts {
    let outcomes = [attempts_with(cells, AttemptOutcome::Accepted), failed_attempts(cells), cells[LATER]];
    ReceiverCounts::from_cells(outcomes, &cells[DURATION..], &cells[FAILURES..])
}

/// The counts in one page of counters, or the sums of several such pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CounterTotals {
    topics: BTreeMap<String, Vec<u64>>,
    nodes: BTreeMap<String, Vec<u64>>,
}

impl CounterTotals {
    /// Reads the numbers of a page.
    pub fn from_page(page: Page<'_>) -> CounterTotals {
        CounterTotals { topics: page.topics(), nodes: page.nodes() }
    }

    /// Adds the numbers of another page.
    pub fn join(&mut self, other: CounterTotals) {
        for (mine, others) in [(&mut self.topics, other.topics), (&mut self.nodes, other.nodes)] {
            for (name, cells) in others {
                let sums = mine.entry(name).or_insert_with(|| vec![0; cells.len()]);
                for (sum, cell) in sums.iter_mut().zip(cells) {
                    *sum = sum.wrapping_add(cell);
                }
            }
        }
    }

    /// Returns the sums that the daily statistics keep.
    pub fn sums(&self) -> Vec<(MetricSubject, Sums)> {
        let topic = |cells: &[u64]| {
            let late = Histogram::new(&cells[LATENESS..], &LATENESS_BOUNDS);
            Sums {
                written: cells[ADDS + AddOutcome::New as usize]
                    + cells[ADDS + AddOutcome::Replaced as usize]
                    + cells[SPOOLED],
                delivered: cells[DELIVERED],
                failed: failed_attempts(cells),
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
        let topics =
            self.topics.iter().map(|(name, cells)| (MetricSubject::Topic(name.clone()), topic(cells)));
        let nodes = self.nodes.iter().map(|(name, cells)| (MetricSubject::Node(name.clone()), node(cells)));
        topics.chain(nodes).filter(|(_, sums)| *sums != Sums::default()).collect()
    }

    /// Returns how late the attempts of all topics began.
    pub fn lateness(&self) -> LatenessHistogram {
        let mut all = LatenessHistogram::default();
        self.topics.values().for_each(|cells| all.join(&lateness_of(cells)));
        all
    }

    /// Returns how late the attempts of a topic began.
    pub fn lateness_of(&self, topic: &str) -> LatenessHistogram {
        self.topics.get(topic).map(|cells| lateness_of(cells)).unwrap_or_default()
    }

    /// Returns what the receiver of a topic did.
    pub fn receiver_of(&self, topic: &str) -> ReceiverCounts {
        self.topics.get(topic).map(|cells| receiver_of(cells)).unwrap_or_default()
    }

    /// Returns what the receiver of each topic did, for topics with attempts.
    pub fn receivers(&self) -> Vec<(&str, ReceiverCounts)> {
        let all = self.topics.iter().map(|(name, cells)| (name.as_str(), receiver_of(cells)));
        all.filter(|(_, counts)| counts.attempts() > 0).collect()
    }

    /// Writes all numbers as metrics.
    pub fn write_metrics(&self, text: &mut MetricsText) {
        let topics = || self.topics.iter().map(|(name, cells)| (("topic", name.as_str()), cells.as_slice()));
        let nodes = || self.nodes.iter().map(|(name, cells)| (("node", name.as_str()), cells.as_slice()));
        let named = |text: &mut MetricsText, of: (&str, &str), label: &str, names: &[&str], cells: &[u64]| {
            for (name, n) in names.iter().zip(cells) {
                text.sample(&[of, (label, name)], *n as f64);
            }
        };

        text.family("dq_adds_total", MetricKind::Counter, "Jobs that clients tried to add, by outcome.");
        for (topic, cells) in topics() {
            named(text, topic, "outcome", &AddOutcome::NAMES, &cells[ADDS..DELETES]);
            if cells[SPOOLED] > 0 {
                text.sample(&[topic, ("outcome", "spooled")], cells[SPOOLED] as f64);
            }
        }
        text.family(
            "dq_deletes_total",
            MetricKind::Counter,
            "Jobs that clients tried to delete, by outcome.",
        );
        topics().for_each(|(t, c)| named(text, t, "outcome", &DeleteOutcome::NAMES, &c[DELETES..ATTEMPTS]));
        text.family(
            "dq_attempts_total",
            MetricKind::Counter,
            "Attempts that ended, by outcome and by the class of the HTTP status.",
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
        text.family("dq_deliveries_total", MetricKind::Counter, "Jobs that were accepted and are done.");
        topics().for_each(|(t, c)| text.sample(&[t], c[DELIVERED] as f64));
        text.family(
            "dq_retries_total",
            MetricKind::Counter,
            "Failed attempts after which the job is tried again.",
        );
        topics().for_each(|(t, c)| text.sample(&[t], c[RETRIES] as f64));
        text.family("dq_dead_letters_total", MetricKind::Counter, "Jobs that became dead letters, by cause.");
        topics().for_each(|(t, c)| named(text, t, "cause", &DeathCause::NAMES, &c[DEAD..LATENESS]));
        text.family("dq_dead_purged_total", MetricKind::Counter, "Dead letters that were removed, by cause.");
        topics().for_each(|(t, c)| named(text, t, "cause", &PurgeCause::NAMES, &c[PURGED..SPOOLED]));
        text.family(
            "dq_schedule_lateness_seconds",
            MetricKind::Histogram,
            "The time from the due time of an attempt, or from the add if that is later, to the beginning of its callback or to its reserve.",
        );
        for (topic, cells) in topics() {
            let lateness = Histogram::new(&cells[LATENESS..], &LATENESS_BOUNDS);
            text.coarse_histogram(&[topic], &lateness, &LATENESS_SHOWN);
        }
        text.family(
            "dq_attempt_duration_seconds",
            MetricKind::Histogram,
            "How long callbacks, and clients with reserved jobs, took.",
        );
        topics().for_each(|(t, c)| text.histogram(&[t], &Histogram::new(&c[DURATION..], &ATTEMPT_BOUNDS)));

        text.family(
            "dq_store_latency_seconds",
            MetricKind::Histogram,
            "How long a node took for a call, by operation. Many calls are for a whole batch.",
        );
        for (node, cells) in nodes() {
            let each = cells[NODE_LATENCY..].chunks(Histogram::cells(&STORE_BOUNDS));
            for (name, cells) in StoreOperation::NAMES.iter().zip(each) {
                text.histogram(&[node, ("operation", name)], &Histogram::new(cells, &STORE_BOUNDS));
            }
        }
        text.family("dq_store_errors_total", MetricKind::Counter, "Calls that failed, fully or in part.");
        nodes().for_each(|(n, c)| {
            named(text, n, "operation", &StoreOperation::NAMES, &c[NODE_ERRORS..NODE_LATENCY])
        });
        for (name, help, at) in [
            ("dq_node_written_total", "Jobs that were stored and whose home is the node.", NODE_WRITTEN),
            ("dq_node_delivered_total", "Jobs that were leased from the node and are done.", NODE_DELIVERED),
            ("dq_node_deleted_total", "Jobs that were deleted and whose home is the node.", NODE_DELETED),
        ] {
            text.family(name, MetricKind::Counter, help);
            nodes().for_each(|(node, cells)| text.sample(&[node], cells[at] as f64));
        }
    }
}

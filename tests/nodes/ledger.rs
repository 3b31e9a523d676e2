//! What was asked, answered and delivered, and when: pure data that the judgement reads. All times are in microseconds
//! since the campaign began, by the clock of this process.

use std::collections::BTreeMap;
use std::fmt;

pub type Micros = u64;

pub const MILLISECOND: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;

/// The number of a body. Each body that is stored under an id has its own number.
pub type Version = u64;

/// The id of a job. The variant says how the clients use the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    /// One of a few ids that all clients use at the same time.
    Shared(u32),
    /// An id that is added once.
    Single(u32),
    /// An id that is added once. The deliveries of its job fail until the end, so the job becomes a dead letter.
    Failing(u32),
    /// An id whose jobs clients reserve. All clients use the low numbers at the same time. The other numbers are added
    /// once.
    Pulled(u32),
}

impl Id {
    /// Returns the topic of the id.
    pub fn topic(self) -> &'static str {
        match self {
            Id::Shared(_) | Id::Single(_) => "t",
            Id::Failing(_) => "failing",
            Id::Pulled(_) => "pulled",
        }
    }

    pub fn parse(text: &str) -> Option<Id> {
        let (kind, number) = text.split_once('-')?;
        let number = number.parse().ok()?;
        match kind {
            "shared" => Some(Id::Shared(number)),
            "single" => Some(Id::Single(number)),
            "failing" => Some(Id::Failing(number)),
            "pulled" => Some(Id::Pulled(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Id::Shared(n) => write!(f, "shared-{n}"),
            Id::Single(n) => write!(f, "single-{n}"),
            Id::Failing(n) => write!(f, "failing-{n}"),
            Id::Pulled(n) => write!(f, "pulled-{n}"),
        }
    }
}

/// `on_conflict` of an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Replace,
    Keep,
    Reject,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    Add {
        version: Version,
        rule: Rule,
        delay: Micros,
    },
    /// Gives a pending job another body and another due time.
    Patch {
        version: Version,
        delay: Micros,
    },
    Delete,
    Run,
    Get,
    Redrive,
    /// Removes the dead letters of the id.
    Purge,
    /// The client that reserved this version has done its work.
    Ack(Version),
    /// The client that reserved this version could not do its work. The version comes again after the delay.
    Nack {
        version: Version,
        delay: Micros,
    },
    /// The client that reserved this version needs more time.
    Extend(Version),
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The change waits on the disk of the host, and is passed on later.
    Spooled,
    /// A `get` that shows this version.
    Shown(Version),
    NotFound,
    /// An add with `reject` that found a job with the id.
    Exists,
    /// Nothing was changed. The text is the code of the refusal.
    Refused(String),
    /// The request may have been done, or may be done later.
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Operation {
    pub id: Id,
    /// The number of the connection on which the request was sent. A reopened connection has another number.
    pub line: u64,
    /// The number of the request on its connection.
    pub number: u64,
    pub operation_kind: OperationKind,
    pub sent: Micros,
    pub answered: Micros,
    pub outcome: Outcome,
}

impl Operation {
    /// Whether the operation may have changed something.
    pub fn is_possible(&self) -> bool {
        matches!(self.outcome, Outcome::Done | Outcome::Spooled | Outcome::Unknown)
    }

    /// Returns the version that the operation may have stored.
    pub fn version(&self) -> Option<Version> {
        match self.operation_kind {
            OperationKind::Add { version, .. } | OperationKind::Patch { version, .. } => Some(version),
            _ => None,
        }
    }

    /// Whether a request of this kind ends the earlier version of the job.
    pub fn ends_others(&self) -> bool {
        match self.operation_kind {
            OperationKind::Add { rule, .. } => rule == Rule::Replace,
            OperationKind::Patch { .. } | OperationKind::Delete | OperationKind::Purge => true,
            OperationKind::Run
            | OperationKind::Get
            | OperationKind::Redrive
            | OperationKind::Ack(_)
            | OperationKind::Nack { .. }
            | OperationKind::Extend(_) => false,
        }
    }

    /// If the request is a report about a lease, returns the leased version.
    pub fn reported(&self) -> Option<Version> {
        match self.operation_kind {
            OperationKind::Ack(version)
            | OperationKind::Nack { version, .. }
            | OperationKind::Extend(version) => Some(version),
            _ => None,
        }
    }
}

/// One call of the receiver, or one job that a client has reserved.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub id: Id,
    pub version: Version,
    pub at: Micros,
    /// Whether the receiver accepted the callback, or the ack of the client was answered with success.
    pub is_accepted: bool,
    /// When the client sent its reserve request. `None`: the delivery was a callback.
    pub asked: Option<Micros>,
}

/// A span of time.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub from: Micros,
    pub to: Micros,
}

/// The job of an id at some moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Nothing,
    Pending(Version),
    Dead(Version),
    /// The test asked for the id until the deadline, and got no answer.
    NoAnswer(String),
}

/// The number of pending jobs and of dead letters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub pending: u64,
    pub dead: u64,
}

#[derive(Debug, Clone)]
pub struct Census {
    pub when: &'static str,
    pub reported: Count,
    pub found: Count,
}

/// Everything that is known of a campaign.
#[derive(Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub deliveries: Vec<Delivery>,
    /// The times in which a process was stopped. Afterwards, the process continues the work that it had begun.
    pub stops: Vec<Span>,
    /// The times in which an acknowledged change may be lost, because a replica that lacks the change was promoted.
    pub weak: Vec<Span>,
    /// When the test first found the spool empty, after all faults. `None`: it has not found this yet.
    pub spools_empty_at: Option<Micros>,
    /// How much too early a job may come after it moved between servers whose clocks differ.
    pub clocks_differ_by: Micros,
    pub censuses: Vec<Census>,
    /// The job of each id at the end, after all pending jobs were made due and had time to be delivered.
    pub left: BTreeMap<Id, Found>,
}

impl History {
    /// Returns a text for people: what happened to an id around a moment, in order. Refused requests are left out,
    /// because they changed nothing.
    pub fn story(&self, id: Id, around: Micros) -> String {
        let mut lines: Vec<(Micros, String)> = Vec::new();
        let is_shown = |o: &&Operation| o.id == id && !matches!(o.outcome, Outcome::Refused(_));
        for o in self.operations.iter().filter(is_shown) {
            let (line, number, took) = (o.line, o.number, o.answered - o.sent);
            lines.push((
                o.sent,
                format!("{:?} -> {:?} after {took} us, line {line}.{number}", o.operation_kind, o.outcome),
            ));
        }
        for d in self.deliveries.iter().filter(|d| d.id == id) {
            let word = if d.is_accepted { "accepted" } else { "refused" };
            let asked =
                d.asked.map_or(String::new(), |asked| format!(", reserve sent {} us before", d.at - asked));
            lines.push((d.at, format!("delivery of version {}, {word}{asked}", d.version)));
        }
        lines.sort();
        let here = lines.partition_point(|(at, _)| *at < around);
        let near = &lines[here.saturating_sub(12)..lines.len().min(here + 18)];
        let line =
            |(at, text): &(Micros, String)| format!("  {:>9.3} s  {text}\n", *at as f64 / SECOND as f64);
        near.iter().map(line).collect()
    }
}

//! The content of alerts. There are two kinds: problems, which begin and end, and dead letters, which are events. Pure:
//! this module decides who gets which alerts, when, and in which words. The `alert` module of the `delivery` crate
//! sends the messages.

mod ledger;
mod outbox;
mod template;
mod text;

use serde::{Deserialize, Serialize};

pub use self::ledger::AlertLedger;
pub use self::outbox::{AlertQueue, MessageTiming, OutgoingMessage};
pub use self::template::{AlertTemplate, plain};
pub use self::text::Message;
use crate::status::Finding;

/// The kind for jobs that became dead letters. Such an alert has the state [`AlertPhase::Event`]: it is neither open
/// nor over.
pub const DEAD_LETTER: &str = "dead_letter";

/// The kind of the alert which says that alerts do not reach a recipient. The other recipients get this alert.
pub const NOT_SENT: &str = "alerts_not_sent";

/// The kind for test alerts, which show whether alerts arrive. A test alert is sent when somebody asks for it.
pub const TEST: &str = "test";

/// All kinds of alerts except [`TEST`]. An alert about a finding has the name of the finding as its kind. Only such an
/// alert can be over.
pub const KINDS: &[&str] = &[
    DEAD_LETTER,
    "topic_late",
    "circuit_open",
    "jobs_stranded",
    "topic_problem",
    "quota_nearly_used",
    "process_restarting",
    "registry_away",
    "disk_nearly_full",
    "file_missing",
    "file_replaced",
    "log_too_long",
    "store_fails",
    "damaged",
    "run_dir_gone",
    "node_down",
    "node_is_replica",
    "node_evicts",
    "node_not_persistent",
    "node_persistence_fails",
    "node_memory_short",
    "node_emptied",
    "node_replica_lost",
    "node_clock_off",
    "node_slots_away",
    "node_older",
    "spool_waits",
    "outbox_waits",
    "node_not_durable",
    NOT_SENT,
];

/// The maximum number of jobs that an alert names. For all other jobs, the alert gives only their number.
pub const JOBS_NAMED: usize = 10;

/// One alert: something that people get a message about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// One of [`KINDS`], or [`TEST`].
    pub kind: String,
    /// Whether the alert is open, is over, or is an event.
    pub state: AlertPhase,
    /// What is wrong, in one line.
    pub title: String,
    /// Figures, and what would help.
    pub detail: String,
    /// The topic that the alert is about.
    pub topic: Option<String>,
    /// The node that the alert is about.
    pub node: Option<String>,
    /// The process that the alert is about.
    pub process: Option<String>,
    /// Since when the problem exists, in Unix milliseconds.
    pub since_ms: i64,
    /// When the problem was over, or when the event happened last, in Unix milliseconds.
    pub at_ms: i64,
    /// How many jobs became dead letters. 0: the alert is not about dead letters.
    pub count: u64,
    /// Some of the jobs that became dead letters, at most [`JOBS_NAMED`].
    pub jobs: Vec<DeadJob>,
}

/// Whether an alert is open, is over, or is an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertPhase {
    /// The problem exists now.
    Open,
    /// The problem is over.
    Over,
    /// The alert is an event, which has no end.
    Event,
}

/// A job that became a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadJob {
    /// The id of the job.
    pub id: String,
    /// The number of its attempts.
    pub attempts: u32,
    /// How the last attempt ended.
    pub reason: String,
    /// When it became a dead letter, in Unix milliseconds.
    pub died_ms: i64,
}

/// The recipient of an alert.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recipient {
    /// A mail address.
    Mail(String),
    /// A webhook, by its name.
    Webhook(String),
}

impl std::fmt::Display for Recipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Recipient::Mail(address) => f.write_str(address),
            Recipient::Webhook(name) => write!(f, "the webhook {name}"),
        }
    }
}

impl Notice {
    /// Makes the alert which says that there is a finding.
    pub fn from_finding(finding: &Finding) -> Notice {
        let Finding { name, what, node, topic, process, loses_jobs, detail, since_ms } = finding.clone();
        let risk = if loses_jobs { "jobs may be lost because of it; " } else { "" };
        Notice {
            kind: name,
            state: AlertPhase::Open,
            title: what,
            detail: format!("{risk}{detail}"),
            topic,
            node,
            process,
            since_ms,
            at_ms: since_ms,
            count: 0,
            jobs: Vec::new(),
        }
    }

    /// Makes the alert that reports the end of this alert.
    fn over(self, now_ms: i64) -> Notice {
        Notice { state: AlertPhase::Over, at_ms: now_ms, ..self }
    }

    /// Makes the alert which says that `count` jobs of a topic became dead letters. `jobs` contains those of the jobs
    /// that dq has found.
    pub fn dead(topic: &str, count: u64, jobs: Vec<DeadJob>, now_ms: i64) -> Notice {
        let since_ms = jobs.iter().map(|job| job.died_ms).min().unwrap_or(now_ms);
        Notice {
            kind: DEAD_LETTER.to_owned(),
            state: AlertPhase::Event,
            title: dead_title(topic, count),
            detail: String::new(),
            topic: Some(topic.to_owned()),
            node: None,
            process: None,
            since_ms: since_ms.min(now_ms),
            at_ms: now_ms,
            count,
            jobs,
        }
    }

    /// Makes a test alert.
    pub fn test(now_ms: i64) -> Notice {
        Notice {
            kind: TEST.to_owned(),
            state: AlertPhase::Event,
            title: "a test: alerts of dq arrive here".to_owned(),
            detail: String::new(),
            topic: None,
            node: None,
            process: None,
            since_ms: now_ms,
            at_ms: now_ms,
            count: 0,
            jobs: Vec::new(),
        }
    }

    /// Returns whether two alerts are about the same thing: they have the same kind, topic, node and process.
    fn is_of(&self, other: &Notice) -> bool {
        let subject = |n: &Notice| (n.kind.clone(), n.topic.clone(), n.node.clone(), n.process.clone());
        subject(self) == subject(other)
    }

    /// Adds the event `more` to this event. Returns false and adds nothing if the two alerts are about different
    /// things, or if one of the two alerts is not an event.
    fn take_in(&mut self, more: &Notice) -> bool {
        if !(self.state == AlertPhase::Event && more.state == AlertPhase::Event && self.is_of(more)) {
            return false;
        }
        self.count += more.count;
        self.at_ms = self.at_ms.max(more.at_ms);
        self.jobs.extend(more.jobs.iter().cloned());
        self.jobs.truncate(JOBS_NAMED);
        if let Some(topic) = &self.topic {
            self.title = dead_title(topic, self.count);
        }
        true
    }
}

fn dead_title(topic: &str, count: u64) -> String {
    match count {
        1 => format!("a dead letter of topic {topic}"),
        count => format!("{count} dead letters of topic {topic}"),
    }
}

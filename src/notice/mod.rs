//! What people are told of: alerts that open and are over again, and dead letters. Pure: what is told to whom, when, and in which
//! words; who carries it there is `alert`.

mod ledger;
mod outbox;
mod template;
mod text;

use serde::{Deserialize, Serialize};

pub use self::ledger::Ledger;
pub use self::outbox::{Dispatch, Outbox, Pace};
pub use self::template::{Template, plain};
pub use self::text::Message;
use crate::status::Finding;

/// Jobs that became dead letters: what happened, and is never over.
pub const DEAD_LETTER: &str = "dead_letter";

/// That some alerts do not arrive: the others are told.
pub const NOT_SENT: &str = "alerts_not_sent";

/// That a channel works: sent when somebody asks for it.
pub const TEST: &str = "test";

/// All kinds of alerts that there are: those that have an end are the names of findings.
pub const KINDS: &[&str] = &[
    DEAD_LETTER,
    "topic_late",
    "circuit_open",
    "jobs_stranded",
    "topic_problem",
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
    NOT_SENT,
];

/// So many jobs are named; of the others it is told how many there are.
pub const JOBS_NAMED: usize = 10;

/// One thing that people are told of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// One of [`KINDS`].
    pub kind: String,
    /// Whether it has begun, or is over.
    pub state: State,
    /// What it is, in a line.
    pub title: String,
    /// Figures, and what would help.
    pub detail: String,
    /// The topic that it is about.
    pub topic: Option<String>,
    /// The node that it is about.
    pub node: Option<String>,
    /// The process that it is about.
    pub process: Option<String>,
    /// Since when it is so, Unix milliseconds.
    pub since_ms: i64,
    /// When it was over, or happened last, Unix milliseconds.
    pub at_ms: i64,
    /// How many jobs died.
    pub count: u64,
    /// Some of them.
    pub jobs: Vec<DeadJob>,
}

/// Whether it has begun, or is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is so.
    Open,
    /// It was so.
    Over,
    /// It has happened, and there is no end to wait for.
    Event,
}

/// A job that became a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadJob {
    /// Its id.
    pub id: String,
    /// How often its delivery was tried.
    pub attempts: u32,
    /// How the last one ended.
    pub reason: String,
    /// When it died, Unix milliseconds.
    pub died_ms: i64,
}

/// Who is told.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recipient {
    /// An address.
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
    /// That it is so.
    pub fn of(finding: &Finding) -> Notice {
        let Finding { name, what, node, topic, process, loses_jobs, detail, since_ms } = finding.clone();
        let risk = if loses_jobs { "jobs may be lost by it; " } else { "" };
        Notice {
            kind: name,
            state: State::Open,
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

    /// That it is no longer so.
    fn over(self, now_ms: i64) -> Notice {
        Notice { state: State::Over, at_ms: now_ms, ..self }
    }

    /// That so many jobs of a topic have died, some of which are known.
    pub fn dead(topic: &str, count: u64, jobs: Vec<DeadJob>, now_ms: i64) -> Notice {
        let since_ms = jobs.iter().map(|job| job.died_ms).min().unwrap_or(now_ms);
        Notice {
            kind: DEAD_LETTER.to_owned(),
            state: State::Event,
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

    /// That somebody wants to know whether this arrives.
    pub fn test(now_ms: i64) -> Notice {
        Notice {
            kind: TEST.to_owned(),
            state: State::Event,
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

    /// Whether it is about the same as that.
    fn is_of(&self, other: &Notice) -> bool {
        let subject = |n: &Notice| (n.kind.clone(), n.topic.clone(), n.node.clone(), n.process.clone());
        subject(self) == subject(other)
    }

    /// Takes in what has happened besides; false: it is something else, or no such thing.
    fn take_in(&mut self, more: &Notice) -> bool {
        if !(self.state == State::Event && more.state == State::Event && self.is_of(more)) {
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

//! Keeps topics, tokens, accounts and statistics in a database, so that they can change while dq runs.
//!
//! [`Registry`] is the trait. It has three implementations: `sqlite`, `mysql` (MySQL or MariaDB, also with the tables
//! of the PHP daemon), and `redis` (tables on a node of the store). dq-http-server changes the registry.
//! dq-redis-checker adds the statistics to the registry. dq-redis-checker also reads the registry and writes a
//! [`Snapshot`] file, which all other processes follow. So deliveries continue while the database does not answer.
//!
//! This crate never touches jobs, and it never retries in a loop: an error goes to the caller.
//!
//! Begin with the trait in this file, then `snapshot`.

#![cfg_attr(test, recursion_limit = "256")]

mod bulk;
mod copy;
mod expected;
mod migrate;
mod mysql;
mod nudge;
mod open;
mod php_alert;
mod record;
mod redis;
mod snapshot;
mod sqlite;
mod token;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::copy::{CopySummary, copy};
pub use self::expected::Expected;
pub use self::mysql::{MysqlRegistry, newest_migration as newest_mysql_migration};
pub use self::nudge::{nudge, nudge_file};
pub use self::open::{UnmigratedTables, open, open_existing, open_known, php_nodes, php_smtp, read_as_it_is};
pub use self::php_alert::PhpAlert;
pub use self::redis::RedisRegistry;
pub use self::snapshot::{Snapshot, SnapshotError, folder as snapshot_folder};
pub use self::sqlite::{SqliteRegistry, newest_migration as newest_sqlite_migration};
use model::audit::AuditEntry;
use model::bulk::{BulkEnd, BulkProgress, BulkRequest, StoredBulkOperation};
use model::job::TopicName;
use model::metrics::{PageSums, Statistics};
use model::php_node::PhpNode;
use model::token::{Token, TokenName};
use model::topic::{InvalidTopic, Topic, TopicStatus};
use store::StoreError;

/// The result of a method of a registry.
pub type Result<T> = std::result::Result<T, RegistryError>;

/// Why the registry did not do something. After [`RegistryError::Unknown`], the change may have happened. After any
/// other error, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The database does not answer, or it refuses the call.
    #[error("{0}")]
    Away(String),
    /// The connection broke after a change was sent. The change may or may not have happened.
    #[error("the change may or may not have happened: {0}")]
    Unknown(String),
    /// Somebody else has changed the topic in the meantime.
    #[error("topic {0} was changed meanwhile: read it again")]
    Changed(TopicName),
    /// There is already a topic with that name.
    #[error("topic {0} is registered already")]
    Exists(TopicName),
    /// There is no topic with that name.
    #[error("topic {0} is not registered")]
    NotFound(TopicName),
    /// There is already a token with that name.
    #[error("there is a token {0} already: take another name, or revoke it first")]
    TokenExists(TokenName),
    /// There is no token with that name.
    #[error("there is no token {0}")]
    NoToken(TokenName),
    /// The topic is not valid.
    #[error("{0}")]
    InvalidTopic(#[from] InvalidTopic),
    /// The database has a row for the topic, but dq cannot use this row.
    #[error("{0}")]
    Unusable(InvalidRow),
}

impl From<StoreError> for RegistryError {
    fn from(e: StoreError) -> RegistryError {
        match e {
            StoreError::Unknown(why) => RegistryError::Unknown(why),
            e => RegistryError::Away(e.to_string()),
        }
    }
}

/// A number for one topic, or for all topics and tokens together. The number of a topic changes whenever the topic
/// changes. The number for all changes whenever any topic or token changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A registered topic, with the revision at which it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The topic.
    pub topic: Topic,
    /// Its revision.
    pub revision: Revision,
}

/// Something in the registry that dq leaves out: a row that is neither a topic nor a token, or one part of a topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[error("{which}: {why}")]
pub struct InvalidRow {
    /// The row, in words for people: for example `topic "orders"`.
    pub which: String,
    /// What is wrong, and what would be accepted.
    pub why: String,
}

impl Registered {
    /// Returns the parts of the topic that are left out when dq serves the topic. These parts are reported together
    /// with the rows that dq cannot use at all. (Flaws for which a topic is held are not included: [`Topic::held`]
    /// reports these flaws.)
    fn left_out(&self) -> impl Iterator<Item = InvalidRow> {
        let which = format!("topic \"{}\"", self.topic.name);
        let flaws = self.topic.flaws().into_iter().filter(|flaw| !flaw.holds());
        flaws.map(move |flaw| InvalidRow {
            which: which.clone(),
            why: format!("{flaw} (the topic is served without it)"),
        })
    }
}

/// All that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The revision of all that is registered.
    pub revision: Revision,
    /// The topics, each name once.
    pub topics: Vec<Registered>,
    /// The tokens.
    pub tokens: Vec<Token>,
    /// What dq cannot use.
    pub unusable: Vec<InvalidRow>,
}

/// A runner asks for an operation that it can run. A runner is a process that runs operations on many jobs.
#[derive(Debug, Clone, Copy)]
pub struct BulkClaim<'a> {
    /// A random text that identifies the runner.
    pub runner: &'a str,
    /// The present time, Unix milliseconds.
    pub now_ms: i64,
    /// The end of the runner's right to run the operation that it claims, Unix milliseconds.
    pub until_ms: i64,
}

/// What a runner writes about an operation on many jobs.
#[derive(Debug, Clone, Copy)]
pub struct BulkSave<'a> {
    /// The number of the operation.
    pub number: u64,
    /// The text that identifies the runner.
    pub runner: &'a str,
    /// How far the operation has come.
    pub progress: &'a BulkProgress,
    /// The end of the runner's right to run the operation, Unix milliseconds. Nobody else runs the operation before
    /// that moment.
    pub until_ms: i64,
    /// Whether the runner gives the operation up. Any runner may then continue the operation at `until_ms`.
    pub gives_up: bool,
    /// How the operation ended, and the entry of the audit log about this end. Both are written in one step. None: the
    /// operation has not ended.
    pub ended: Option<(BulkEnd, &'a AuditEntry)>,
}

/// A database with topics. In SQLite each change is one transaction. In MySQL the changes of topics and tokens hold a
/// named lock, so that no other dq writes at the same time. On Redis each change reads its table first. If somebody
/// else changes the table before the change is written, the change starts again.
pub trait Registry: Send + fmt::Debug {
    /// Returns a number that changes whenever a topic or a token changes, no matter who changes it. The call must be
    /// cheap, because it is made every second.
    fn revision(&mut self) -> Result<Revision>;

    /// Returns all that is registered.
    fn list(&mut self) -> Result<Listing>;

    /// Returns the topic with that name.
    fn get(&mut self, name: &TopicName) -> Result<Option<Registered>>;

    /// Writes a topic. The topic is new, or it replaces the expected topic. Returns its revision.
    fn put(&mut self, topic: &Topic, expected: Expected) -> Result<Revision>;

    /// Sets only the status of a topic. Returns its revision.
    fn set_status(&mut self, name: &TopicName, status: TopicStatus) -> Result<Revision>;

    /// Removes a topic. Its jobs stay in the store.
    fn delete(&mut self, name: &TopicName, expected: Expected) -> Result<()>;

    /// Returns the tokens, sorted by name.
    fn tokens(&mut self) -> Result<Vec<Token>> {
        let mut tokens = self.list()?.tokens;
        tokens.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tokens)
    }

    /// Writes a new token. A name that is taken is refused.
    fn put_token(&mut self, token: &Token) -> Result<()>;

    /// Writes the account of a person, who signs in with a password. An account with the same name is replaced.
    fn put_account(&mut self, account: &Token) -> Result<()>;

    /// Ends all sessions of an account, by setting `created_ms` one millisecond later ([`model::session`]).
    fn end_sessions(&mut self, account: &TokenName) -> Result<()>;

    /// Removes a token.
    fn delete_token(&mut self, name: &TokenName) -> Result<()>;

    /// Adds an entry to the audit log. Removes some of the oldest entries, if they are older than [`model::audit::KEPT`]
    /// or if there are too many.
    fn note(&mut self, entry: &AuditEntry) -> Result<()>;

    /// Returns entries of the audit log, each with its number, the latest first. With `before`, only entries before
    /// that number are returned.
    fn audit(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<(u64, AuditEntry)>>;

    /// Begins an operation on many jobs. Returns its number. None: the operation was not begun, because
    /// [`model::bulk::RUNNING_MAX`] operations have not ended yet. Also removes old operations that have ended: all
    /// that are not among the last [`model::bulk::KEPT`].
    fn begin_bulk(&mut self, request: &BulkRequest, who: &str, now_ms: i64) -> Result<Option<u64>>;

    /// Returns operations before this number, the latest first. Operations that another release has written and this
    /// release cannot read are left out.
    fn bulks(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<StoredBulkOperation>>;

    /// Returns the operation with this number.
    fn bulk(&mut self, number: u64) -> Result<Option<StoredBulkOperation>> {
        Ok(self.bulks(Some(number.saturating_add(1)), 1)?.pop().filter(|row| row.number == number))
    }

    /// Gives a runner the right to run an operation until a moment. The runner gets the first operation that has not
    /// ended and that nobody has the right to run. None: there is no such operation.
    fn claim_bulk(&mut self, claim: &BulkClaim<'_>) -> Result<Option<StoredBulkOperation>>;

    /// Writes how far an operation has come, if the runner still has the right to run it. None: the runner has lost
    /// this right, and nothing was written. Otherwise returns whether somebody has asked to stop the operation.
    fn save_bulk(&mut self, save: &BulkSave<'_>) -> Result<Option<bool>>;

    /// Asks to stop an operation. Returns false if the operation has already ended.
    fn stop_bulk(&mut self, number: u64) -> Result<bool>;

    /// Adds new counts to the statistics: to the sums of all time, and to the sums of a day, such as `2026-11-21`. New
    /// counts are those that the pages of counters have gained since the last call. The registry also notes which
    /// counts it has added. The note and the sums are written in one transaction. If a call fails or its outcome is
    /// unknown, the caller repeats the call with the same pages or with later pages. The note ensures that no count is
    /// added twice or lost. Returns how many subjects had new counts.
    fn carry(&mut self, day: &str, pages: &[PageSums]) -> Result<usize>;

    /// Returns the statistics of all time, and of the days from `since` on.
    fn statistics(&mut self, since: &str) -> Result<Statistics>;

    /// Returns the nodes of a PHP daemon that used this database. The order of the nodes decides which node a job
    /// belongs to.
    fn php_nodes(&mut self) -> Result<Vec<PhpNode>> {
        Ok(Vec::new())
    }

    /// Returns the mail settings of a PHP daemon that used this database.
    fn php_alert(&mut self) -> Result<Option<PhpAlert>> {
        Ok(None)
    }
}

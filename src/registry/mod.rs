//! The registry: topics and tokens in a database, which people and programs change while dq runs. One trait, two databases: SQLite, and
//! MySQL or MariaDB in the tables of the PHP daemon. A database that is away is told of, and never waited for in a loop.

mod migrate;
mod mysql;
mod nudge;
mod record;
mod snapshot;
mod sqlite;
mod token;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::mysql::MysqlRegistry;
pub use self::nudge::{nudge, nudge_file};
pub use self::snapshot::{Snapshot, SnapshotError, folder as snapshot_folder};
pub use self::sqlite::SqliteRegistry;
use crate::audit::Entry;
use crate::job::TopicName;
use crate::metrics::{PageSums, Statistics};
use crate::php_node::PhpNode;
use crate::settings::{self, Smtp, SmtpTls};
use crate::token::{Token, TokenName};
use crate::topic::{Status, Topic, Unfit};

/// How long the mail server of the PHP daemon may take to connect, and to each of its answers.
const MAIL_TIMEOUT: Duration = Duration::from_secs(10);

/// What a registry gives.
pub type Result<T> = std::result::Result<T, RegistryError>;

/// Why the registry did not do something. Nothing was changed then, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The database does not answer, or refuses.
    #[error("{0}")]
    Away(String),
    /// The connection broke after a change was sent: it was made, or it was not.
    #[error("whether it was changed is unknown: {0}")]
    Unknown(String),
    /// Somebody else has changed the topic meanwhile.
    #[error("topic {0} was changed meanwhile: read it again")]
    Changed(TopicName),
    /// There is a topic of that name already.
    #[error("topic {0} is registered already")]
    Exists(TopicName),
    /// There is none.
    #[error("topic {0} is not registered")]
    NotFound(TopicName),
    /// There is a token of that name already.
    #[error("there is a token {0} already: take another name, or revoke it first")]
    TokenExists(TokenName),
    /// There is none.
    #[error("there is no token {0}")]
    NoToken(TokenName),
    /// The topic cannot be.
    #[error("{0}")]
    Unfit(#[from] Unfit),
    /// The database holds what is no topic.
    #[error("{0}")]
    Unusable(Unusable),
}

/// A number that changes with whatever it is of: all topics and tokens, or one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A topic that is registered, and in which state it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// It.
    pub topic: Topic,
    /// Its revision.
    pub revision: Revision,
}

/// What stands in the database, and is no topic or token of which dq could make use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[error("{which}: {why}")]
pub struct Unusable {
    /// Which row.
    pub which: String,
    /// What is wrong with it, and what would do.
    pub why: String,
}

impl Registered {
    /// What of a topic is left out when it is served; told beside what is no topic at all. (For what it is held, it tells itself.)
    fn left_out(&self) -> impl Iterator<Item = Unusable> {
        let which = format!("topic \"{}\"", self.topic.name);
        let flaws = self.topic.flaws().into_iter().filter(|flaw| !flaw.holds());
        flaws.map(move |flaw| Unusable {
            which: which.clone(),
            why: format!("{flaw} (the topic is served without it)"),
        })
    }
}

/// All that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Of this state.
    pub revision: Revision,
    /// The topics, one of each name.
    pub topics: Vec<Registered>,
    /// The tokens.
    pub tokens: Vec<Token>,
    /// The rest.
    pub unusable: Vec<Unusable>,
}

/// What has to be there for a change to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Whatever is there.
    Any,
    /// No topic of that name.
    Absent,
    /// The topic as it was read.
    At(Revision),
}

/// The mail settings of the PHP daemon: a row of `dq_alert`.
#[derive(Clone, PartialEq, Eq)]
pub struct PhpAlert {
    /// The mail server.
    pub host: String,
    /// Its port.
    pub port: i64,
    /// Who sends.
    pub user: String,
    /// The password.
    pub password: String,
    /// JSON: `{"redis": "mail,mail"}`, who hears of a node that is down.
    pub ext: String,
}

impl PhpAlert {
    /// The mail server that it names; none: it names none. What port 465 speaks is TLS; elsewhere that is taken where it is offered.
    pub fn smtp(&self) -> Option<Smtp> {
        let (host, port) = (self.host.trim(), u16::try_from(self.port).ok().filter(|port| *port > 0)?);
        if host.is_empty() {
            return None;
        }
        let login = (!self.password.is_empty()).then(|| (self.user.clone(), self.password.clone()));
        let from = if self.user.contains('@') { self.user.clone() } else { format!("{}@{host}", self.user) };
        let tls = if port == 465 { SmtpTls::Tls } else { SmtpTls::Opportunistic };
        Some(Smtp { host: host.to_owned(), port, tls, login, from, timeout: MAIL_TIMEOUT, ca: None })
    }
}

/// The password is not shown.
impl fmt::Debug for PhpAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhpAlert").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// A database with topics. Each call is one round, and one transaction where it changes something.
pub trait Registry: Send + fmt::Debug {
    /// A number that changes whenever a topic or a token does, whoever changes it. Cheap: it is asked for each second.
    fn revision(&mut self) -> Result<Revision>;

    /// All that is there.
    fn list(&mut self) -> Result<Listing>;

    /// The topic of that name.
    fn get(&mut self, name: &TopicName) -> Result<Option<Registered>>;

    /// Writes a topic, new or in the place of the one that is expected. Gives its revision.
    fn put(&mut self, topic: &Topic, expected: Expected) -> Result<Revision>;

    /// Sets a topic's status alone. Gives its revision.
    fn set_status(&mut self, name: &TopicName, status: Status) -> Result<Revision>;

    /// Removes a topic. Its jobs stay in the store.
    fn delete(&mut self, name: &TopicName, expected: Expected) -> Result<()>;

    /// The tokens, by name.
    fn tokens(&mut self) -> Result<Vec<Token>> {
        let mut tokens = self.list()?.tokens;
        tokens.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tokens)
    }

    /// Writes a new token. A name that is taken is refused.
    fn put_token(&mut self, token: &Token) -> Result<()>;

    /// Writes the token of a person, who has a password: new, or in the place of the one of that name.
    fn put_account(&mut self, account: &Token) -> Result<()>;

    /// Removes a token.
    fn delete_token(&mut self, name: &TokenName) -> Result<()>;

    /// Adds an entry to the audit log; those go that are older than [`crate::audit::KEPT`] then.
    fn note(&mut self, entry: &Entry) -> Result<()>;

    /// Entries of the audit log, the latest first, each with its number; of those before a number, if one is given.
    fn audit(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<(u64, Entry)>>;

    /// Adds to the statistics what has come to pages of counters since they were last carried here: to those of all time, and of a
    /// day, `2026-11-21`. What was carried stands beside the sums, and changes in the same transaction: a call that failed,
    /// or of which nobody knows, is made again with the same pages or with later ones, and nothing is added twice or lost. Gives
    /// of how many subjects something was added.
    fn carry(&mut self, day: &str, pages: &[PageSums]) -> Result<usize>;

    /// The statistics of all time, and of the days since that one.
    fn statistics(&mut self, since: &str) -> Result<Statistics>;

    /// The nodes of a PHP daemon that lived here; in the order that its jobs go by.
    fn php_nodes(&mut self) -> Result<Vec<PhpNode>> {
        Ok(Vec::new())
    }

    /// The mail settings of a PHP daemon that lived here.
    fn php_alert(&mut self) -> Result<Option<PhpAlert>> {
        Ok(None)
    }
}

/// The nodes of a PHP daemon that lived in a registry. Changes nothing there.
pub fn php_nodes(settings: &settings::Registry) -> Result<Vec<PhpNode>> {
    match settings {
        // It is asked as it is, whoever asks.
        settings::Registry::Mysql(server) => MysqlRegistry::connect(server)?.php_nodes(),
        settings::Registry::Sqlite { .. } => Ok(Vec::new()),
    }
}

/// What a registry in MySQL says of topics and of a PHP daemon that lived there, read as it is.
#[derive(Debug, Default)]
pub struct Reading {
    /// The topics, also of a table that was never brought up to date.
    pub topics: Vec<Registered>,
    /// What is no topic.
    pub unusable: Vec<Unusable>,
    /// The rows of `dq_redis`.
    pub nodes: Vec<PhpNode>,
}

/// Reads a registry in MySQL, and changes nothing there, not even its tables; none: it is another database.
pub fn read_as_it_is(settings: &settings::Registry) -> Result<Option<Reading>> {
    match settings {
        settings::Registry::Mysql(server) => Ok(Some(MysqlRegistry::connect(server)?.read_as_it_is()?)),
        settings::Registry::Sqlite { .. } => Ok(None),
    }
}

/// The mail server of a PHP daemon that lived in a registry. Changes nothing there.
pub fn php_smtp(settings: &settings::Registry) -> Result<Option<Smtp>> {
    match settings {
        settings::Registry::Mysql(server) => {
            Ok(MysqlRegistry::connect(server)?.php_alert()?.and_then(|row| row.smtp()))
        }
        settings::Registry::Sqlite { .. } => Ok(None),
    }
}

/// Opens the registry of the daemon with that `run_dir`, and brings its tables up to date. A file that is gone is not made anew
/// as long as the snapshot says that something stood in it: all of that would go by what an empty one says.
pub fn open_known(settings: &settings::Registry, run_dir: &Path) -> Result<Box<dyn Registry>> {
    if let settings::Registry::Sqlite { path } = settings
        && !path.exists()
        && let Ok(Some((known, _))) = Snapshot::read(run_dir)
        && known.source == settings.to_string()
    {
        let (topics, tokens) = (known.topics.len(), known.tokens.as_ref().map_or(0, Vec::len));
        if topics + tokens > 0 {
            let snapshot = Snapshot::file(run_dir);
            return Err(RegistryError::Away(format!(
                "{} is gone, which held {topics} topics and {tokens} tokens: put it back; or stop dq and remove {}, to begin anew",
                path.display(),
                snapshot.display()
            )));
        }
    }
    open(settings)
}

/// Opens a registry, and brings its tables up to date.
pub fn open(settings: &settings::Registry) -> Result<Box<dyn Registry>> {
    Ok(match settings {
        settings::Registry::Sqlite { path } => Box::new(SqliteRegistry::open(path)?),
        settings::Registry::Mysql(server) => Box::new(MysqlRegistry::open(server)?),
    })
}

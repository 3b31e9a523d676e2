//! The validated settings, as every process sees them. Pure types: `config` makes them, dq-master seals them into
//! memory and hands them to its children, nobody changes them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::topic::Topic;

/// All settings of one generation. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What this host calls itself.
    pub instance: String,
    /// Lock, owners, sockets.
    pub run_dir: PathBuf,
    /// Where log files go; none: stderr.
    pub log_dir: Option<PathBuf>,
    /// The IANA zone in which the TCP protocol's times are read and written; none: the host's.
    pub timezone: Option<String>,
    /// How long a drain may take on TERM.
    pub drain_timeout: Duration,
    /// How long a child may take to report ready.
    pub start_timeout: Duration,
    /// How long a child may give no sign of life before it is replaced; none: for ever.
    pub watchdog: Option<Duration>,
    /// Whether a changed configuration file acts as HUP.
    pub watch_config: bool,
    /// The TCP port.
    pub server: Server,
    /// The HTTP port.
    pub http: Http,
    /// How many timers.
    pub timer: Timer,
    /// How many consumers.
    pub consume: Consume,
    /// Where jobs are stored.
    pub store: Store,
    /// Where topics are that may change at any time; none: only those of the file.
    pub registry: Option<Registry>,
    /// What may be called, and defaults for topics.
    pub callback: Callback,
    /// Who is told of what is wrong, and how.
    pub alert: Alert,
    /// The topics of the configuration file.
    pub topics: Vec<Topic>,
}

/// The TCP port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Where it listens; none: no dq-server.
    pub listen: Option<SocketAddr>,
    /// What a client has to show.
    pub auth: Auth,
    /// Which clients may connect; empty: all that can reach it.
    pub allow: Vec<IpNet>,
    /// Connections open at the same time.
    pub max_connections: usize,
    /// The longest frame, in bytes, without its length.
    pub max_frame: usize,
    /// A connection on which nothing moved for so long is closed.
    pub idle_timeout: Duration,
}

/// The HTTP port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http {
    /// Where it listens; none: no dq-http-server.
    pub listen: Option<SocketAddr>,
    /// What a client has to show; the Unix socket knows root and the daemon's user.
    pub auth: Auth,
    /// Which clients may connect; empty: all that can reach it.
    pub allow: Vec<IpNet>,
    /// Connections open at the same time.
    pub max_connections: usize,
    /// Requests that are being answered at the same time.
    pub max_requests: usize,
    /// A connection on which no request has come in full for so long is closed.
    pub idle_timeout: Duration,
    /// What it proves itself by; none: it speaks plainly.
    pub tls: Option<Certificate>,
    /// Where receivers find it, without a slash at its end; none: they do not.
    pub public_url: Option<String>,
}

/// What a client has to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Nothing.
    None,
    /// A token.
    Token,
}

/// A certificate and its key, as PEM files have them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// It, and those by which it is certified.
    pub chain: String,
    /// Its key.
    pub key: String,
}

/// The key is not shown.
impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate(..)")
    }
}

/// The timers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// How many processes; with the embedded store one is active and the others stand by.
    pub processes: u32,
}

/// The consumers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consume {
    /// How many processes.
    pub processes: u32,
    /// Callbacks in flight, per process.
    pub concurrency: u32,
}

/// Where jobs are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Store {
    /// One SQLite file, opened by all processes of this host.
    Embedded {
        /// The file.
        path: PathBuf,
    },
    /// Nodes of Redis.
    Redis(Redis),
}

/// A store on nodes of Redis.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redis {
    /// What all keys begin with.
    pub prefix: String,
    /// How long a node may take to connect and to answer.
    pub timeout: Duration,
    /// Connections to a node, per process, beside those on which it waits for bells.
    pub pool: u32,
    /// The nodes.
    pub nodes: Vec<Node>,
}

/// Where passwords are among the settings, they are not shown.
impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.nodes.iter().map(|n| n.name.as_str()).collect();
        f.debug_struct("Redis").field("prefix", &self.prefix).field("nodes", &names).finish_non_exhaustive()
    }
}

/// One node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What dq calls it, and by which jobs find it: it stays, whatever its address.
    pub name: String,
    /// Where it is.
    pub at: At,
    /// How many shards it has.
    pub shards: u32,
    /// How long it may take to connect and to answer; none: as the store has it.
    pub timeout: Option<Duration>,
    /// Connections to each of its servers, per process; none: as the store has it.
    pub pool: Option<u32>,
    /// What servers prove themselves by, and dq to them.
    pub tls: Tls,
}

/// Where a node is. URLs say user, password and database as well.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum At {
    /// One server.
    Server {
        /// Its address.
        url: String,
    },
    /// Whichever server some sentinels call the master of that name.
    Sentinel {
        /// Where they are.
        sentinels: Vec<String>,
        /// What they call it.
        master_name: String,
        /// How to speak with the master, whose host this is not.
        url: String,
    },
    /// The masters of a Redis Cluster.
    Cluster {
        /// Where some of its servers are; they tell of the others.
        seeds: Vec<String>,
    },
}

/// Certificates and a key, as PEM files have them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// Whom servers have to be certified by; none: one whom this host trusts.
    pub ca: Option<String>,
    /// What dq shows of itself, and the key to it.
    pub own: Option<(String, String)>,
}

/// The key is not shown.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Node {
    /// A node that is one server, and has nothing of its own.
    pub fn server(name: impl Into<String>, url: impl Into<String>, shards: u32) -> Node {
        Node::new(name, At::Server { url: url.into() }, shards)
    }

    /// A node that has nothing of its own.
    pub fn new(name: impl Into<String>, at: At, shards: u32) -> Node {
        Node { name: name.into(), at, shards, timeout: None, pool: None, tls: Tls::default() }
    }
}

/// Whether the stores that these words say are one and the same: nodes may come and go, and each keeps its shards.
pub fn is_one_store(before: &str, after: &str) -> bool {
    let parts = |text: &str| -> (String, Vec<(String, String)>) {
        let mut parts = text.split(", ").map(str::to_owned);
        let first = parts.next().unwrap_or_default();
        (first, parts.filter_map(|p| p.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()))).collect())
    };
    let ((store, nodes), (other, others)) = (parts(before), parts(after));
    let is_same = |(name, shards): &(String, String)| others.iter().all(|(n, s)| n != name || s == shards);
    before == after || store == other && store.starts_with("redis") && nodes.iter().all(is_same)
}

/// Which one it is, in words: what a running daemon cannot change.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Embedded { path } => write!(f, "embedded in {}", path.display()),
            Store::Redis(redis) => {
                write!(f, "redis under {}", redis.prefix)?;
                redis.nodes.iter().try_for_each(|n| write!(f, ", {}: {} shards", n.name, n.shards))
            }
        }
    }
}

/// A database with topics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Registry {
    /// A SQLite file.
    Sqlite {
        /// The file.
        path: PathBuf,
    },
    /// MySQL or MariaDB.
    Mysql(MysqlServer),
}

/// Which one it is, without its password.
impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Registry::Sqlite { path } => write!(f, "sqlite:{}", path.display()),
            Registry::Mysql(server) => f.write_str(&server.name),
        }
    }
}

/// A database of a MySQL server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MysqlServer {
    /// What it is called where people see it: no password.
    pub name: String,
    /// Where it is, with user, password and database.
    pub url: String,
}

impl fmt::Debug for MysqlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What may be called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// Which addresses are never called.
    pub guard: Guard,
    /// Ranges that are called whatever the guard says.
    pub allow: Vec<IpNet>,
    /// Whom receivers are certified by, beside those whom this host trusts, and what dq shows of itself.
    pub tls: Tls,
}

/// Which addresses are never called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Guard {
    /// Link-local ones (cloud metadata), multicast, unspecified and reserved ones.
    Metadata,
    /// Those, and private and loopback ones.
    Strict,
}

/// Who is told of what is wrong, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// The mail server; none: no mail, unless the registry's database names one, as the PHP daemon's does.
    pub smtp: Option<Smtp>,
    /// Who gets a mail of everything.
    pub to: Vec<String>,
    /// What comes within so long goes into one message.
    pub gather: Duration,
    /// Nobody gets more than one message in so long.
    pub interval: Duration,
    /// A topic is late whose oldest ready job waits for longer; none: never.
    pub late_after: Option<Duration>,
    /// A process is started again and again that was so three times within this; until as long was quiet.
    pub restarts_within: Duration,
    /// Who is told by HTTP.
    pub webhooks: Vec<AlertWebhook>,
}

/// A mail server, and how it is spoken with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Smtp {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether what is said can be read on the way.
    pub tls: SmtpTls,
    /// User and password, where it wants some.
    pub login: Option<(String, String)>,
    /// Whom mails are from.
    pub from: String,
    /// How long it may take to connect, and to each of its answers.
    pub timeout: Duration,
    /// Whom it has to be certified by, as PEM; none: one whom this host trusts.
    pub ca: Option<String>,
}

/// The password is not shown.
impl fmt::Debug for Smtp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Smtp").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// Whether mail is encrypted on the way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// Not at all.
    None,
    /// From the first byte.
    Tls,
    /// After the greeting.
    Starttls,
    /// After the greeting, where the server offers it.
    Opportunistic,
}

/// Somebody who is told by HTTP.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertWebhook {
    /// What it is called where people see it.
    pub name: String,
    /// Where it is. It may hold what nobody else should know.
    pub url: String,
    /// Headers beside dq's own.
    pub headers: BTreeMap<String, String>,
    /// What it is sent; none: a plain JSON document.
    pub template: Option<String>,
    /// Of which kinds of alerts; empty: of all.
    pub kinds: Vec<String>,
    /// Of which topics; empty: of all, and of what is no topic's.
    pub topics: Vec<String>,
}

/// Where it is, is not shown.
impl fmt::Debug for AlertWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlertWebhook").field("name", &self.name).finish_non_exhaustive()
    }
}

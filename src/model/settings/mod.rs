//! The validated settings, as every process sees them. Pure types. `config` makes the settings. dq-master writes them
//! into sealed memory, and hands them to its child processes. No process changes the settings.

mod alert;
mod beanstalk;
mod certificate;
pub mod files;
mod gmq;
mod log;
mod registry;
mod safety;
mod store_change;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use self::alert::{AlertSettings, AlertWebhook, SmtpSettings, SmtpTls};
pub use self::beanstalk::BeanstalkSettings;
pub use self::certificate::Certificate;
pub use self::files::beside;
pub use self::gmq::GmqSettings;
pub use self::log::{LogFormat, LogSettings};
pub use self::registry::{MysqlServer, RegistrySettings};
pub use self::safety::DurabilitySettings;
pub use self::store_change::refused_store_change;
use crate::topic::{HostPattern, Rate, Topic};

/// All settings of one generation. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The name of this host.
    pub instance: String,
    /// The folder of the daemon's locks, owners and sockets.
    pub run_dir: PathBuf,
    /// The folder of the log files. None: the log goes to stderr.
    pub log_dir: Option<PathBuf>,
    /// How the log is written.
    pub log: LogSettings,
    /// The IANA time zone in which the TCP protocol reads and writes times. None: the zone of the host.
    pub timezone: Option<String>,
    /// How long a drain on TERM may take.
    pub drain_timeout: Duration,
    /// How long a child process may take to report that it is ready.
    pub start_timeout: Duration,
    /// How long a child process may be silent before it is replaced. None: a silent process is not replaced.
    pub watchdog: Option<Duration>,
    /// Whether a change of the configuration file acts like HUP.
    pub watch_config: bool,
    /// The settings of the TCP port.
    pub server: ServerSettings,
    /// The settings of the HTTP port.
    pub http: HttpSettings,
    /// The settings of the port for clients of gmq-redis.
    pub gmq: GmqSettings,
    /// The settings of the port for clients of beanstalkd.
    pub beanstalk: BeanstalkSettings,
    /// The settings of the timers.
    pub timer: TimerSettings,
    /// The settings of the consumers.
    pub consume: ConsumeSettings,
    /// Where jobs are stored.
    pub store: StoreSettings,
    /// The maximum size of the records of ended jobs of all topics together, in bytes.
    pub records_max: u64,
    /// Where the topics that may change at any time are stored. None: there are only the topics of the configuration
    /// file.
    pub registry: Option<RegistrySettings>,
    /// The addresses to which callbacks may go, and the TLS of callbacks.
    pub callback: CallbackSettings,
    /// Who gets alerts, and how.
    pub alert: AlertSettings,
    /// The topics of the configuration file.
    pub topics: Vec<Topic>,
}

impl Settings {
    /// Returns the path of the file with the key of the console's sessions.
    pub fn session_key_path(&self) -> PathBuf {
        self.http.session_key_file.clone().unwrap_or_else(|| self.run_dir.join("session-key"))
    }
}

/// The TCP port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSettings {
    /// The address to listen on. None: there is no dq-server.
    pub listen: Option<SocketAddr>,
    /// How clients prove who they are.
    pub auth: Auth,
    /// The addresses of clients that may connect. Empty: all clients that can reach the port.
    pub allow: Vec<IpNet>,
    /// The greatest number of connections that are open at the same time.
    pub max_connections: usize,
    /// The greatest number of connections that are open at the same time from one address, or from one IPv6 network of
    /// 64 bits.
    pub max_connections_per_source: usize,
    /// The longest frame, in bytes, without the bytes of its length.
    pub max_frame: usize,
    /// A connection is closed if nothing was sent or received on it for this long.
    pub idle_timeout: Duration,
    /// The certificate of the port. None: connections are not encrypted.
    pub tls: Option<Certificate>,
}

/// The HTTP port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpSettings {
    /// The address to listen on. None: there is no dq-http-server.
    pub listen: Option<SocketAddr>,
    /// How clients prove who they are. On the Unix socket, root and the daemon's user need no token.
    pub auth: Auth,
    /// The addresses of clients that may connect. Empty: all clients that can reach the port.
    pub allow: Vec<IpNet>,
    /// The greatest number of connections that are open at the same time.
    pub max_connections: usize,
    /// The greatest number of connections that are open at the same time from one address, or from one IPv6 network of
    /// 64 bits.
    pub max_connections_per_source: usize,
    /// The greatest number of requests that are being answered at the same time.
    pub max_requests: usize,
    /// The greatest number of clients that wait for jobs to reserve. These clients do not count for `max_requests`.
    pub max_reserves: usize,
    /// A connection is closed if no complete request head arrives on it for this long, or if the client reads nothing
    /// of an answer for this long.
    pub idle_timeout: Duration,
    /// Whether dq-http-server serves the console.
    pub console: bool,
    /// The file with the key of sessions. None: `session-key` in `run_dir`.
    pub session_key_file: Option<PathBuf>,
    /// The certificate of the port. None: connections are not encrypted.
    pub tls: Option<Certificate>,
    /// The URL at which receivers reach the port, without a slash at its end. None: receivers cannot reach the port.
    pub public_url: Option<String>,
}

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Clients need no proof.
    None,
    /// Each client must present a token.
    Token,
}

/// The timers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerSettings {
    /// The number of processes. One timer is active, and the others wait.
    pub processes: u32,
}

/// The consumers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumeSettings {
    /// The number of processes.
    pub processes: u32,
    /// The greatest number of callbacks in flight, per process.
    pub concurrency: u32,
    /// The limits of callbacks to some hosts.
    #[serde(default)]
    pub host_limits: Vec<HostLimit>,
}

/// The limits of callbacks to a host, for all topics together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLimit {
    /// Host and port, as they are in the configuration, in lower case.
    pub name: String,
    /// The host and the port.
    pub host: HostPattern,
    /// How many callbacks may run at the same time.
    pub max_in_flight: Option<u32>,
    /// How many callbacks may begin in a given time.
    pub rate: Option<Rate>,
}

/// Where jobs are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreSettings {
    /// One SQLite file, opened by all processes of this host.
    Embedded {
        /// The file.
        path: PathBuf,
        /// Adds are refused while the disk of the file has fewer free bytes than this number.
        min_free: u64,
    },
    /// Nodes of Redis.
    Redis(RedisSettings),
}

/// A store on nodes of Redis.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisSettings {
    /// The prefix of all keys.
    pub prefix: String,
    /// How long a node may take to accept a connection, and to answer.
    pub timeout: Duration,
    /// The number of connections to each server of a node, per process, without the connections that wait for bells.
    pub pool: u32,
    /// The nodes.
    pub nodes: Vec<NodeSettings>,
    /// The spool, where changes wait while a node does not answer. None: there is no spool.
    pub spool: Option<SpoolSettings>,
    /// How safe the jobs of the nodes are.
    pub safety: DurabilitySettings,
}

/// The spool: the file of this host in which changes wait while a node does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolSettings {
    /// The file.
    pub path: PathBuf,
    /// How many bytes the file may have. 0: the spool takes no new changes, and the changes that it has are sent.
    pub bytes: usize,
}

/// The file `-turn` beside the spool begins with this byte if nothing waits in the spool. Each batch of requests has to
/// know whether changes wait. Reading this byte costs one system call. When nothing waits, a process sets the byte
/// during its turn. The byte is cleared before a change is stored. The byte is also cleared when the spool is opened,
/// because the byte may be wrong after a crash of the machine. If the file begins with another byte, the process reads
/// the spool.
pub const NOTHING_WAITS: u8 = b'0';

impl RedisSettings {
    /// Makes a store of these nodes with the default safety, and without a spool.
    pub fn of_nodes(
        prefix: impl Into<String>,
        timeout: Duration,
        pool: u32,
        nodes: Vec<NodeSettings>,
    ) -> RedisSettings {
        RedisSettings {
            prefix: prefix.into(),
            timeout,
            pool,
            nodes,
            spool: None,
            safety: DurabilitySettings::default(),
        }
    }

    /// Returns the spool, if it takes changes, or may still contain earlier changes.
    pub fn used_spool(&self) -> Option<&SpoolSettings> {
        self.spool.as_ref().filter(|spool| spool.bytes > 0 || spool.path.exists())
    }
}

/// Hides the passwords that the settings contain.
impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.nodes.iter().map(|n| n.name.as_str()).collect();
        f.debug_struct("Redis").field("prefix", &self.prefix).field("nodes", &names).finish_non_exhaustive()
    }
}

/// One node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// The name of the node. The homes of jobs depend on this name, so the name must stay the same when the address
    /// changes.
    pub name: String,
    /// The server or servers of the node.
    pub at: NodeAddress,
    /// The number of shards of the node.
    pub shards: u32,
    /// How long the node may take to accept a connection, and to answer. None: the timeout of the store.
    pub timeout: Option<Duration>,
    /// The number of connections to each server of the node, per process. None: the number of the store.
    pub pool: Option<u32>,
    /// The certificates with which the servers and dq prove who they are.
    pub tls: TlsClientSettings,
}

/// The server or servers of a node. Each URL also contains the user, the password and the database.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAddress {
    /// One server.
    Server {
        /// The URL of the server.
        url: String,
    },
    /// The server that Sentinels currently name as the master.
    Sentinel {
        /// The URLs of the Sentinels.
        sentinels: Vec<String>,
        /// The name by which the Sentinels know the master.
        master_name: String,
        /// How to connect to the master. The host of this URL is not used, because the Sentinels name the host of the
        /// master.
        url: String,
    },
    /// The masters of a Redis Cluster.
    Cluster {
        /// The URLs of some servers of the Cluster. These servers name the other servers.
        seeds: Vec<String>,
    },
}

/// Certificates and a key, in the PEM format.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsClientSettings {
    /// The authorities that may sign servers' certificates. None: the authorities that this host trusts.
    pub ca: Option<String>,
    /// The certificate that dq presents, and its key.
    pub own: Option<(String, String)>,
}

/// Hides the key.
impl fmt::Debug for TlsClientSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl NodeSettings {
    /// Makes a node of one server, with the store's timeout and pool and without certificates.
    pub fn server(name: impl Into<String>, url: impl Into<String>, shards: u32) -> NodeSettings {
        NodeSettings::new(name, NodeAddress::Server { url: url.into() }, shards)
    }

    /// Makes a node with the store's timeout and pool and without certificates.
    pub fn new(name: impl Into<String>, at: NodeAddress, shards: u32) -> NodeSettings {
        NodeSettings {
            name: name.into(),
            at,
            shards,
            timeout: None,
            pool: None,
            tls: TlsClientSettings::default(),
        }
    }
}

impl StoreSettings {
    /// Returns the settings of the same store without a spool: each change waits until the home of the job has the
    /// change.
    pub fn without_spool(&self) -> StoreSettings {
        match self.clone() {
            StoreSettings::Redis(redis) => StoreSettings::Redis(RedisSettings { spool: None, ..redis }),
            embedded @ StoreSettings::Embedded { .. } => embedded,
        }
    }

    /// Returns the file of the embedded store. None: the store is on Redis.
    pub fn file(&self) -> Option<&Path> {
        match self {
            StoreSettings::Embedded { path, .. } => Some(path),
            StoreSettings::Redis(_) => None,
        }
    }
}

/// Describes in words what a running daemon cannot change of its store: the path, or the prefix and the shards of each
/// node.
impl fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreSettings::Embedded { path, .. } => write!(f, "embedded in {}", path.display()),
            StoreSettings::Redis(redis) => {
                write!(f, "redis under {}", redis.prefix)?;
                redis.nodes.iter().try_for_each(|n| write!(f, ", {}: {} shards", n.name, n.shards))
            }
        }
    }
}

/// The addresses to which callbacks may go, and the TLS of callbacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackSettings {
    /// Which addresses are never called.
    pub guard: GuardLevel,
    /// Address ranges that may be called even if the guard denies them.
    pub allow: Vec<IpNet>,
    /// The authorities that may sign receivers' certificates, in addition to the authorities that this host trusts. The
    /// settings also contain the certificate that dq presents to receivers.
    pub tls: TlsClientSettings,
}

/// Which addresses are never called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuardLevel {
    /// Link-local (cloud metadata), multicast, unspecified and reserved addresses.
    Metadata,
    /// The addresses of `Metadata`, and also private and loopback addresses.
    Strict,
}

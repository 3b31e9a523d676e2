//! The configuration as it is written: every key with its default. Unknown keys are refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub(super) use super::raw_foreign::{Beanstalk, Gmq};
use super::units::{ByteCount, ConfigDuration};
use model::record::RECORDS_MAX;
use model::settings::GuardLevel;
use model::settings::{LogFormat, LogSettings};
use model::strict_json::{StrictValue, UniqueFields};
use model::topic::Rate;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    pub(super) instance: String,
    pub(super) run_dir: String,
    pub(super) log_dir: String,
    pub(super) log_format: LogFormat,
    pub(super) log_max_size: ByteCount,
    pub(super) log_keep: usize,
    pub(super) timezone: String,
    pub(super) drain_timeout: ConfigDuration,
    pub(super) start_timeout: ConfigDuration,
    pub(super) watchdog: ConfigDuration,
    pub(super) watch_config: bool,
    pub(super) server: Server,
    pub(super) http: Http,
    pub(super) gmq: Gmq,
    pub(super) beanstalk: Beanstalk,
    pub(super) timer: Timer,
    pub(super) consume: Consume,
    pub(super) store: Store,
    pub(super) registry: Registry,
    pub(super) callback: Callback,
    pub(super) alert: Alert,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "topics")]
    pub(super) topic: Vec<Map<String, Value>>,
}

fn topics<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Map<String, Value>>, D::Error> {
    let topics = Vec::<UniqueFields<StrictValue>>::deserialize(from)?;
    let map = |UniqueFields(fields): UniqueFields<StrictValue>| {
        fields.into_iter().map(|(name, StrictValue(value))| (name, value)).collect()
    };
    Ok(topics.into_iter().map(map).collect())
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Server {
    pub listen: String,
    pub auth: String,
    pub allow: Vec<String>,
    pub max_connections: usize,
    pub max_connections_per_source: usize,
    pub max_frame: ByteCount,
    pub idle_timeout: ConfigDuration,
    pub tls: PortTls,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Http {
    pub listen: String,
    pub auth: String,
    pub allow: Vec<String>,
    pub max_connections: usize,
    pub max_connections_per_source: usize,
    pub max_requests: usize,
    pub max_reserves: usize,
    pub idle_timeout: ConfigDuration,
    pub console: bool,
    pub session_key_file: String,
    pub public_url: String,
    pub tls: PortTls,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PortTls {
    pub cert: String,
    pub key: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Timer {
    pub processes: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Consume {
    pub processes: u32,
    pub concurrency: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Store {
    pub backend: String,
    pub path: String,
    pub min_free: ByteCount,
    pub records_max: ByteCount,
    pub prefix: String,
    pub timeout: ConfigDuration,
    pub pool: u32,
    pub shards_per_node: u32,
    pub nodes_from_registry: bool,
    pub spool: ByteCount,
    pub spool_path: String,
    pub durability: String,
    pub durability_timeout: ConfigDuration,
    pub allow_snapshots: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node: Vec<Node>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Node {
    pub name: String,
    pub url: String,
    pub sentinels: Vec<String>,
    pub master_name: String,
    pub cluster: bool,
    pub seeds: Vec<String>,
    pub shards: Option<u32>,
    pub timeout: Option<ConfigDuration>,
    pub pool: Option<u32>,
    pub password_file: String,
    pub ca_file: String,
    pub cert_file: String,
    pub key_file: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Registry {
    pub url: String,
    pub url_file: String,
    pub password_file: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Callback {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    pub guard: GuardLevel,
    pub allow: Vec<String>,
    pub ca_file: String,
    pub cert_file: String,
    pub key_file: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<CallbackHost>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CallbackHost {
    pub name: String,
    pub max_in_flight: Option<u32>,
    pub rate: Option<Rate>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Alert {
    pub to: Vec<String>,
    pub gather: ConfigDuration,
    pub interval: ConfigDuration,
    pub late_after: ConfigDuration,
    pub restarts_within: ConfigDuration,
    pub smtp: Smtp,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub webhook: Vec<AlertWebhook>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Smtp {
    pub host: String,
    pub port: u16,
    pub tls: String,
    pub user: String,
    pub password: String,
    pub password_file: String,
    pub from: String,
    pub timeout: ConfigDuration,
    pub ca_file: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AlertWebhook {
    pub name: String,
    pub url: String,
    pub headers: BTreeMap<String, String>,
    pub template_file: String,
    pub kinds: Vec<String>,
    pub topics: Vec<String>,
}

fn seconds(n: u64) -> ConfigDuration {
    ConfigDuration(std::time::Duration::from_secs(n))
}

impl Default for Raw {
    fn default() -> Raw {
        Raw {
            instance: String::new(),
            run_dir: "var/run".into(),
            log_dir: String::new(),
            log_format: LogSettings::default().format,
            log_max_size: ByteCount(LogSettings::default().max_size as usize),
            log_keep: LogSettings::default().keep,
            timezone: String::new(),
            drain_timeout: seconds(30),
            start_timeout: seconds(30),
            watchdog: seconds(30),
            watch_config: false,
            server: Server::default(),
            http: Http::default(),
            gmq: Gmq::default(),
            beanstalk: Beanstalk::default(),
            timer: Timer::default(),
            consume: Consume::default(),
            store: Store::default(),
            registry: Registry::default(),
            callback: Callback::default(),
            alert: Alert::default(),
            topic: Vec::new(),
        }
    }
}

impl Default for Server {
    fn default() -> Server {
        Server {
            listen: "127.0.0.1:6789".into(),
            auth: "none".into(),
            allow: Vec::new(),
            max_connections: 10_000,
            max_connections_per_source: 0,
            max_frame: ByteCount(1 << 20),
            idle_timeout: seconds(600),
            tls: PortTls::default(),
        }
    }
}

impl Default for Http {
    fn default() -> Http {
        Http {
            listen: "127.0.0.1:8088".into(),
            auth: "none".into(),
            allow: Vec::new(),
            max_connections: 1000,
            max_connections_per_source: 0,
            max_requests: 500,
            max_reserves: 500,
            idle_timeout: seconds(60),
            console: true,
            session_key_file: String::new(),
            public_url: String::new(),
            tls: PortTls::default(),
        }
    }
}

impl Default for Timer {
    fn default() -> Timer {
        Timer { processes: 2 }
    }
}

impl Default for Consume {
    fn default() -> Consume {
        Consume { processes: 2, concurrency: 64 }
    }
}

impl Default for Store {
    fn default() -> Store {
        Store {
            backend: "embedded".into(),
            path: "var/dq.db".into(),
            min_free: ByteCount(32 << 20),
            records_max: ByteCount(RECORDS_MAX as usize),
            prefix: "dq".into(),
            timeout: seconds(2),
            pool: 8,
            shards_per_node: 2,
            nodes_from_registry: false,
            spool: ByteCount(256 << 20),
            spool_path: String::new(),
            durability: String::new(),
            durability_timeout: seconds(3),
            allow_snapshots: false,
            node: Vec::new(),
        }
    }
}

impl Default for Callback {
    fn default() -> Callback {
        Callback {
            max_attempts: None,
            guard: GuardLevel::Metadata,
            allow: Vec::new(),
            ca_file: String::new(),
            cert_file: String::new(),
            key_file: String::new(),
            host: Vec::new(),
        }
    }
}

impl Default for Alert {
    fn default() -> Alert {
        Alert {
            to: Vec::new(),
            gather: seconds(10),
            interval: seconds(60),
            late_after: seconds(300),
            restarts_within: seconds(300),
            smtp: Smtp::default(),
            webhook: Vec::new(),
        }
    }
}

impl Default for Smtp {
    fn default() -> Smtp {
        Smtp {
            host: String::new(),
            port: 587,
            tls: "starttls".into(),
            user: String::new(),
            password: String::new(),
            password_file: String::new(),
            from: String::new(),
            timeout: seconds(10),
            ca_file: String::new(),
        }
    }
}

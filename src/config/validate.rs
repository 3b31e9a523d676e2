//! Checks every value of the configuration and every combination, and returns the settings.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::bounds::{HOUR, count, size, within};
use super::durability;
use super::nodes;
use super::ports;
use super::raw::Raw;
use super::registry;
use super::units::ByteCount;
use super::unknown_key::with_suggestion;
use super::{ConfigError, NodeLookup};
use super::{alert, callback};
use model::guard::GuardRules;
use model::job::TopicName;
use model::settings::{ConsumeSettings, LogSettings, Settings, StoreSettings, TimerSettings};
use model::topic::{InvalidTopic, Setting, Topic};

/// The maximum length of `run_dir`, in bytes. The path of a Unix socket has at most 107 bytes, and the names of the
/// sockets in `run_dir` have up to 30.
const RUN_DIR_MAX: usize = 107 - 30;

/// Checks a configuration. Relative paths resolve against `base`.
pub fn validate(raw: Raw, base: &Path, ask_nodes: Option<NodeLookup<'_>>) -> Result<Settings, ConfigError> {
    let path = |key: &str, value: &str| -> Result<PathBuf, ConfigError> {
        if value.is_empty() {
            return Err(ConfigError::key(key, "\"\" is not a path"));
        }
        Ok(base.join(value))
    };
    let run_dir = path("run_dir", &raw.run_dir)?;
    if run_dir.as_os_str().len() > RUN_DIR_MAX {
        let length = run_dir.as_os_str().len();
        let problem =
            format!("{} is {length} bytes long; sockets need at most {RUN_DIR_MAX}", run_dir.display());
        return Err(ConfigError::key("run_dir", problem));
    }
    let (from_registry, shards) = (raw.store.nodes_from_registry, raw.store.shards_per_node);
    let records_max = size("store.records_max", raw.store.records_max, RECORDS)? as u64;
    let mut store = match raw.store.backend.as_str() {
        "embedded" if raw.store.nodes_from_registry => {
            let problem = "true is for store.backend = \"redis\"; \"embedded\" has no nodes";
            return Err(ConfigError::key("store.nodes_from_registry", problem));
        }
        "embedded" if !raw.store.node.is_empty() => {
            let problem = "\"embedded\" has no nodes; to use nodes, set \"redis\"";
            return Err(ConfigError::key("store.backend", problem));
        }
        "embedded" => {
            durability::check_embedded(&raw.store)?;
            let min_free = size("store.min_free", raw.store.min_free, MIN_FREE)? as u64;
            StoreSettings::Embedded { path: path("store.path", &raw.store.path)?, min_free }
        }
        "redis" => StoreSettings::Redis(nodes::redis(raw.store, base, &run_dir)?),
        other => {
            let problem = format!("{other:?} is not a store; use \"embedded\" or \"redis\"");
            return Err(ConfigError::key("store.backend", problem));
        }
    };
    let max_attempts = raw.callback.max_attempts;
    let max_attempts = max_attempts.map(|n| count("callback.max_attempts", n, 1, 1000)).transpose()?;
    let registry = registry::registry(raw.registry, max_attempts, &store, base)?;
    if let (true, StoreSettings::Redis(redis)) = (from_registry, &mut store) {
        redis.nodes = nodes::from_registry(shards, registry.as_ref(), &run_dir, ask_nodes)?;
    }
    let [raw_http_listen, raw_gmq_listen, raw_beanstalk_listen] =
        [&raw.http.listen, &raw.gmq.listen, &raw.beanstalk.listen].map(String::clone);
    let http = ports::http(raw.http, registry.is_some(), base)?;
    let server = ports::server(raw.server, registry.is_some(), base)?;
    let callback = callback::callback(&raw.callback, base)?;
    let settings = Settings {
        instance: if raw.instance.is_empty() { host_name() } else { raw.instance },
        run_dir,
        log_dir: if raw.log_dir.is_empty() { None } else { Some(path("log_dir", &raw.log_dir)?) },
        log: LogSettings {
            format: raw.log_format,
            max_size: size("log_max_size", raw.log_max_size, LOG_SIZES)? as u64,
            keep: count("log_keep", raw.log_keep, 0, 100_000)?,
        },
        timezone: zone(raw.timezone)?,
        drain_timeout: within("drain_timeout", raw.drain_timeout, Duration::ZERO, 24 * HOUR)?,
        start_timeout: within("start_timeout", raw.start_timeout, Duration::from_secs(1), HOUR)?,
        watchdog: match raw.watchdog.0 {
            Duration::ZERO => None,
            _ => Some(within("watchdog", raw.watchdog, Duration::from_secs(1), HOUR)?),
        },
        watch_config: raw.watch_config,
        gmq: ports::gmq(raw.gmq, http.listen)?,
        beanstalk: ports::beanstalk(raw.beanstalk, http.listen, &server, registry.is_some())?,
        server,
        http,
        timer: TimerSettings { processes: count("timer.processes", raw.timer.processes, 0, 64)? },
        consume: ConsumeSettings {
            processes: count("consume.processes", raw.consume.processes, 0, 64)?,
            concurrency: count("consume.concurrency", raw.consume.concurrency, 1, 4096)?,
            host_limits: callback::host_limits(raw.callback.host)?,
        },
        store,
        records_max,
        registry,
        alert: alert::alert(raw.alert, base)?,
        topics: topics(raw.topic, max_attempts, &GuardRules::new(&callback))?,
        callback,
    };
    durability::check_topics(&settings.store, &settings.topics)?;
    let same = |a: SocketAddr, b: SocketAddr| {
        a.port() == b.port() && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
    };
    let ports = [
        ("server", settings.server.listen, ""),
        ("http", settings.http.listen, raw_http_listen.as_str()),
        ("gmq", settings.gmq.listen, &raw_gmq_listen),
        ("beanstalk", settings.beanstalk.listen, &raw_beanstalk_listen),
    ];
    for (number, (name, listen, text)) in ports.iter().enumerate() {
        for (other, other_listen, _) in &ports[..number] {
            if let (Some(listen), Some(other_listen)) = (*listen, *other_listen)
                && same(listen, other_listen)
            {
                let problem = format!("{text:?} has the port of {other}.listen; use another port");
                return Err(ConfigError::key(format!("{name}.listen"), problem));
            }
        }
    }
    Ok(settings)
}

/// The smallest and the largest `store.min_free`.
const MIN_FREE: (ByteCount, ByteCount) = (ByteCount(0), ByteCount(1 << 40));

/// The smallest and the largest `store.records_max`.
const RECORDS: (ByteCount, ByteCount) = (ByteCount(0), ByteCount(1 << 40));

/// The smallest and the largest `log_max_size`.
const LOG_SIZES: (ByteCount, ByteCount) = (ByteCount(64 << 10), ByteCount(16 << 30));

fn zone(name: String) -> Result<Option<String>, ConfigError> {
    if name.is_empty() {
        return Ok(None);
    }
    match jiff::tz::TimeZone::get(&name) {
        Ok(_) => Ok(Some(name)),
        Err(_) => Err(ConfigError::key(
            "timezone",
            format!("{name:?} is not a time zone, such as \"Asia/Shanghai\""),
        )),
    }
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().map(|name| name.to_string_lossy().into_owned());
    name.filter(|n| !n.is_empty()).unwrap_or_else(|| "localhost".into())
}

fn topics(
    written: Vec<Map<String, Value>>,
    max_attempts: Option<u32>,
    rules: &GuardRules,
) -> Result<Vec<Topic>, ConfigError> {
    let mut names = HashSet::new();
    let mut topics = Vec::new();
    for (i, written) in written.iter().enumerate() {
        let key = |name: &str| format!("topic[{i}].{name}");
        let topic = topic(&key, written, max_attempts)?;
        // Only an address in the URL is checked here. A host name is looked up only when the host is called. Reading
        // the configuration must not wait for a name server.
        if let Some(why) = rules.denies_literal(&topic.callback) {
            return Err(ConfigError::key(key("callback"), why));
        }
        if !names.insert(topic.name.clone()) {
            return Err(ConfigError::key(key("name"), format!("\"{}\" is defined twice", topic.name)));
        }
        topics.push(topic);
    }
    Ok(topics)
}

fn topic(
    key: &dyn Fn(&str) -> String,
    written: &Map<String, Value>,
    max_attempts: Option<u32>,
) -> Result<Topic, ConfigError> {
    let is_unknown = |name: &&String| *name != "name" && Setting::named(name).is_none();
    if let Some(name) = written.keys().find(is_unknown) {
        let known: Vec<String> =
            Topic::SETTINGS.iter().map(|setting| format!("`{}`", setting.name)).collect();
        let problem = format!("unknown field `{name}`, expected one of `name`, {}", known.join(", "));
        return Err(ConfigError::key(key(name), with_suggestion(problem)));
    }
    let name = match written.get("name") {
        Some(Value::String(name)) => TopicName::new(name).map_err(|e| e.to_string()),
        Some(other) => Err(format!("{other} is not a text")),
        None => Err("is missing: 1 to 128 letters, digits, _ . -".to_owned()),
    };
    let name = name.map_err(|problem| ConfigError::key(key("name"), problem))?;
    let mut topic = Topic::new(name, "");
    topic.max_attempts = max_attempts.unwrap_or(topic.max_attempts);
    let refused = |invalid: InvalidTopic| ConfigError::key(key(invalid.field), invalid.problem);
    topic.assign(written).map_err(refused)?;
    alert::addresses(&key("alert"), &topic.alert)?;
    topic.check().map_err(refused)?;
    Ok(topic)
}

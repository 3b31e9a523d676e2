//! Checks the settings of the store on Redis: each node, its address and its connection.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{AccessFlags, access};
use redis::IntoConnectionInfo;

use super::bounds::{count, within};
use super::durability;
use super::raw;
use super::units::ByteCount;
use super::{ConfigError, NodeLookup};
use model::php_node;
use model::settings::{
    NodeAddress, NodeSettings, RedisSettings, RegistrySettings, SpoolSettings, TlsClientSettings,
};

/// The number of shards of a Cluster if the file does not set this number. A Cluster can spread this number of shards
/// over many servers.
const SHARDS_OF_CLUSTER: u32 = 64;

/// The maximum number of shards. A lease token has two bytes for the shard, and each bell needs one connection per
/// shard.
const SHARDS_MAX: u32 = 1024;

const SERVER: [&str; 4] = ["redis", "rediss", "redis+unix", "unix"];
const NETWORK: [&str; 2] = ["redis", "rediss"];

pub(super) fn redis(raw: raw::Store, base: &Path, run_dir: &Path) -> Result<RedisSettings, ConfigError> {
    check_name("store.prefix", &raw.prefix)?;
    let safety = durability::of_redis(&raw)?;
    match (raw.nodes_from_registry, raw.node.is_empty()) {
        (false, true) => {
            let problem = "\"redis\" needs a [[store.node]] with a name and a url, such as \"redis://127.0.0.1:6379/0\"";
            return Err(ConfigError::key("store.node", problem));
        }
        (true, false) => return Err(unlisted("there are [[store.node]] as well: leave one of them out")),
        _ => {}
    }
    let shards = count("store.shards_per_node", raw.shards_per_node, 1, SHARDS_MAX)?;
    let mut seen = HashSet::new();
    let mut nodes = Vec::new();
    for (i, raw) in raw.node.into_iter().enumerate() {
        let written = NodeValidator { at: format!("store.node[{i}]"), raw, base };
        if !written.raw.name.is_empty() && !seen.insert(written.raw.name.clone()) {
            let problem = format!("{:?} is already the name of another node", written.raw.name);
            return Err(written.wrong("name", problem));
        }
        let node = written.node(shards)?;
        if let Some(same) = nodes.iter().find(|n: &&NodeSettings| n.at == node.at) {
            let problem = format!(
                "is already that of node {}: two nodes need two servers, or two databases",
                same.name
            );
            return Err(written.wrong("url", problem));
        }
        nodes.push(node);
    }
    Ok(RedisSettings {
        prefix: raw.prefix,
        timeout: within("store.timeout", raw.timeout, TIMEOUT.0, TIMEOUT.1)?,
        pool: count("store.pool", raw.pool, 1, 1024)?,
        nodes,
        spool: spool(raw.spool, &raw.spool_path, base, run_dir)?,
        safety,
    })
}

/// The smallest and the largest size of a spool, in bytes. A smaller spool is not useful. The largest size is 2^31
/// pages of 4 kB, and SQLite allows that many pages.
const SPOOL: (usize, usize) = (1 << 20, 1 << 43);

/// Returns where the spool is if the file does not name a path. The name of the file is made from `run_dir`. So daemons
/// have different spools, even if their configuration files are in one folder.
fn usual_spool(base: &Path, run_dir: &Path) -> PathBuf {
    let var = base.join("var");
    if run_dir == var.join("run") {
        return var.join("spool.db");
    }
    let name = run_dir.strip_prefix(base).unwrap_or(run_dir).to_string_lossy();
    var.join(format!("spool-{}.db", name.trim_matches('/').replace('/', "-")))
}

/// Returns the spool. None: the file names no path, there is no spool at the usual path, and none can be made there. A
/// file that was written for an earlier release names no path. If the daemon cannot make a spool at the usual path, it
/// still starts with such a file, but without a spool. But if a spool exists, changes may wait in it. Then the daemon
/// uses this spool, and does not start if it cannot write to it.
fn spool(
    bytes: ByteCount,
    path: &str,
    base: &Path,
    run_dir: &Path,
) -> Result<Option<SpoolSettings>, ConfigError> {
    if bytes.0 > 0 && !(SPOOL.0..=SPOOL.1).contains(&bytes.0) {
        let shown = serde_json::to_string(&bytes).unwrap_or_default();
        let problem = format!("{shown} is not 0 (no spool) or \"1MiB\" to \"8TiB\"");
        return Err(ConfigError::key("store.spool", problem));
    }
    if !path.is_empty() && base.join(path).is_dir() {
        let problem = format!("{path:?} is a folder: name a file, such as \"/var/lib/dq/spool.db\"");
        return Err(ConfigError::key("store.spool_path", problem));
    }
    let usual = usual_spool(base, run_dir);
    match path {
        "" if !may_exist(&usual) && !can_be_made(&usual) => Ok(None),
        "" => Ok(Some(SpoolSettings { path: usual, bytes: bytes.0 })),
        path => Ok(Some(SpoolSettings { path: base.join(path), bytes: bytes.0 })),
    }
}

/// Returns whether the file exists, or may exist in a folder that this process cannot read.
fn may_exist(path: &Path) -> bool {
    path.try_exists().unwrap_or_else(|e| e.kind() != ErrorKind::NotADirectory)
}

/// Returns whether this process may write to the nearest folder that exists above the file.
fn can_be_made(path: &Path) -> bool {
    let there = path.ancestors().find(|path| path.exists());
    there.is_some_and(|path| access(path, AccessFlags::W_OK).is_ok())
}

const FROM_REGISTRY: &str = "store.nodes_from_registry";

fn unlisted(problem: impl Into<String>) -> ConfigError {
    ConfigError::key(FROM_REGISTRY, problem)
}

/// Returns the nodes in the tables of the PHP daemon. Each node gets its name from the number of its row, because
/// people can change the name in the row. If a row has a master and a slave, the master is used. `ask` is None if there
/// is no configuration file.
pub(super) fn from_registry(
    shards: u32,
    registry: Option<&RegistrySettings>,
    run_dir: &Path,
    ask: Option<NodeLookup<'_>>,
) -> Result<Vec<NodeSettings>, ConfigError> {
    let Some(registry @ RegistrySettings::Mysql(_)) = registry else {
        let problem =
            "true needs the PHP daemon's database: registry.url = \"mysql://user:password@host:3306/dq\"";
        return Err(unlisted(problem));
    };
    let ask = ask.ok_or_else(|| unlisted("true needs a configuration file"))?;
    let rows = ask(registry, run_dir).map_err(|why| ConfigError::unavailable(FROM_REGISTRY, why))?;
    if rows.is_empty() {
        return Err(unlisted("the table dq_redis is empty: add a row, or use [[store.node]]"));
    }
    let mut nodes: Vec<NodeSettings> = Vec::new();
    for row in rows {
        let wrong =
            |problem: String| unlisted(format!("row {} of dq_redis ({}) {problem}", row.id, row.name));
        let url = php_node::master(&row.content).and_then(|(host, port, password)| {
            let mut url = redis::parse_redis_url(&format!("redis://{host}:{port}/0"))?;
            let password = Some(password).filter(|p| !p.is_empty());
            url.set_password(password).ok().map(|()| String::from(url))
        });
        let url = url.ok_or_else(|| wrong("is not \"host:port\" or \"host:port:password\"".to_owned()))?;
        let node = NodeSettings::server(format!("r{}", row.id), url, shards);
        if let Some(same) = nodes.iter().find(|n| n.at == node.at) {
            return Err(wrong(format!("is already that of node {}", same.name)));
        }
        nodes.push(node);
    }
    Ok(nodes)
}

const TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

fn check_name(key: &str, name: &str) -> Result<(), ConfigError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if (1..=32).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    if name.is_empty() {
        return Err(ConfigError::key(key, "is missing: 1 to 32 letters, digits, `_` or `-`"));
    }
    Err(ConfigError::key(key, format!("{name:?} must be 1 to 32 letters, digits, `_` or `-`")))
}

/// A node as the file describes it, and its place in the file.
struct NodeValidator<'a> {
    at: String,
    raw: raw::Node,
    base: &'a Path,
}

impl NodeValidator<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.at)
    }

    fn wrong(&self, name: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::key(self.key(name), problem)
    }

    fn node(&self, shards_per_node: u32) -> Result<NodeSettings, ConfigError> {
        check_name(&self.key("name"), &self.raw.name)?;
        let at = self.place()?;
        let urls = match &at {
            NodeAddress::Server { url } => vec![url],
            NodeAddress::Sentinel { sentinels, url, .. } => sentinels.iter().chain([url]).collect(),
            NodeAddress::Cluster { seeds } => seeds.iter().collect(),
        };
        let tls = self.tls(urls.iter().any(|url| url.starts_with("rediss:")))?;
        let default = if self.raw.cluster { SHARDS_OF_CLUSTER } else { shards_per_node };
        let shards = count(&self.key("shards"), self.raw.shards.unwrap_or(default), 1, SHARDS_MAX)?;
        let timeout =
            self.raw.timeout.map(|t| within(&self.key("timeout"), t, TIMEOUT.0, TIMEOUT.1)).transpose()?;
        let pool = self.raw.pool.map(|n| count(&self.key("pool"), n, 1, 1024)).transpose()?;
        Ok(NodeSettings { name: self.raw.name.clone(), at, shards, timeout, pool, tls })
    }

    fn place(&self) -> Result<NodeAddress, ConfigError> {
        let raw = &self.raw;
        let password = self.password()?;
        if raw.cluster {
            if !raw.sentinels.is_empty() || !raw.master_name.is_empty() {
                let problem =
                    "true allows no sentinels and no master_name: a Cluster finds its masters itself";
                return Err(self.wrong("cluster", problem));
            }
            let first = self.url("url", &raw.url, &NETWORK, &password)?;
            let more = raw.seeds.iter().map(|seed| self.url("seeds", seed, &NETWORK, &password));
            let seeds: Vec<String> = std::iter::once(Ok(first)).chain(more).collect::<Result<_, _>>()?;
            if seeds.iter().any(|s| s.starts_with("rediss:") != seeds[0].starts_with("rediss:")) {
                return Err(
                    self.wrong("seeds", "must all begin like url, with \"redis://\" or \"rediss://\"")
                );
            }
            return Ok(NodeAddress::Cluster { seeds });
        }
        if !raw.seeds.is_empty() {
            return Err(
                self.wrong("seeds", "are more servers of a Cluster: set cluster = true, or leave them out")
            );
        }
        match (raw.sentinels.is_empty(), raw.master_name.as_str()) {
            (true, "") => Ok(NodeAddress::Server { url: self.url("url", &raw.url, &SERVER, &password)? }),
            (true, name) => {
                let problem =
                    format!("{name:?} needs sentinels = [\"redis://10.0.0.1:26379\"] that know its address");
                Err(self.wrong("master_name", problem))
            }
            (false, "") => Err(self.wrong(
                "master_name",
                "is missing: the name of the master that the sentinels monitor, such as \"mymaster\"",
            )),
            (false, name) => {
                let host = |url: &str| redis::parse_redis_url(url)?.host_str().map(str::to_owned);
                let url = if raw.url.is_empty() { "redis://master/".to_owned() } else { raw.url.clone() };
                let url = self.url("url", &url, &NETWORK, &password)?;
                if !raw.url.is_empty() && host(&raw.url).is_none_or(|h| !h.eq_ignore_ascii_case(name)) {
                    let problem = format!(
                        "its host must be the master's name, because the sentinels know the address: such as \"redis://:password@{name}/0\""
                    );
                    return Err(self.wrong("url", problem));
                }
                let none = Password(None);
                let sentinels = raw.sentinels.iter().map(|s| self.url("sentinels", s, &NETWORK, &none));
                let sentinels = sentinels.collect::<Result<_, _>>()?;
                Ok(NodeAddress::Sentinel { sentinels, master_name: name.to_owned(), url })
            }
        }
    }

    /// Checks a URL, and adds the password from `password_file`. Messages never show a text that may contain a
    /// password.
    fn url(
        &self,
        key: &str,
        written: &str,
        schemes: &[&str],
        password: &Password,
    ) -> Result<String, ConfigError> {
        let begins = schemes.iter().map(|s| format!("\"{s}://\"")).collect::<Vec<_>>().join(" or ");
        let example = "such as \"redis://:password@127.0.0.1:6379/0\"";
        if written.is_empty() {
            return Err(self.wrong(key, format!("is missing, {example}")));
        }
        if !written.split_once("://").is_some_and(|(scheme, _)| schemes.contains(&scheme)) {
            return Err(self.wrong(key, format!("a url begins with {begins}, {example}")));
        }
        let problem = |e: &str| self.wrong(key, format!("a url that cannot be read: {e}; use one {example}"));
        let parts = "is there a port above 65535, or a `/`, `@` or space that is not percent-encoded in the password?";
        let mut url = redis::parse_redis_url(written).ok_or_else(|| problem(parts))?;
        let info = written.into_connection_info().map_err(|e| problem(e.detail().unwrap_or(parts)))?;
        if info.redis_settings().db() < 0 {
            return Err(problem("its database must be a number from 0"));
        }
        if url.fragment().is_some() {
            return Err(self.wrong(key, "\"#…\" is not allowed here; for a private certificate, use ca_file"));
        }
        if self.raw.cluster && info.redis_settings().db() != 0 {
            return Err(self.wrong(key, "a Cluster has only database 0: leave the database out"));
        }
        if let Some(password) = &password.0 {
            let is_file = !NETWORK.contains(&url.scheme());
            if is_file
                || info.redis_settings().password().is_some()
                || url.set_password(Some(password)).is_err()
            {
                let problem = if is_file {
                    "needs \"redis://\" or \"rediss://\"; for a socket, use \"redis+unix:///run/redis.sock?pass=…\""
                } else {
                    "the url also has a password: leave one of them out"
                };
                return Err(self.wrong("password_file", problem));
            }
            return Ok(url.into());
        }
        Ok(written.to_owned())
    }

    fn password(&self) -> Result<Password, ConfigError> {
        let text = self.file("password_file", &self.raw.password_file)?;
        let text = text.map(|t| t.trim_end_matches(['\r', '\n']).to_owned());
        match text.as_deref() {
            Some("") => Err(self.wrong("password_file", format!("{:?} is empty", self.raw.password_file))),
            _ => Ok(Password(text)),
        }
    }

    /// Returns the text of the file that the value of a key names. None: the value is empty.
    fn file(&self, key: &str, name: &str) -> Result<Option<String>, ConfigError> {
        if name.is_empty() {
            return Ok(None);
        }
        let path = self.base.join(name);
        let read = std::fs::read_to_string(&path);
        read.map(Some).map_err(|e| ConfigError::unreadable(self.key(key), &path, &e))
    }

    fn tls(&self, is_used: bool) -> Result<TlsClientSettings, ConfigError> {
        let raw = &self.raw;
        let names = [("ca_file", &raw.ca_file), ("cert_file", &raw.cert_file), ("key_file", &raw.key_file)];
        if let Some((key, name)) = names.iter().find(|(_, name)| !name.is_empty() && !is_used) {
            return Err(self.wrong(key, format!("{name:?} is for a url that begins with \"rediss://\"")));
        }
        let ca = self.file("ca_file", &raw.ca_file)?;
        let own = match (self.file("cert_file", &raw.cert_file)?, self.file("key_file", &raw.key_file)?) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            (Some(_), None) => return Err(self.wrong("key_file", "is missing: cert_file needs its key")),
            (None, Some(_)) => {
                return Err(self.wrong("cert_file", "is missing: key_file needs its certificate"));
            }
        };
        let certificates = [("ca_file", ca.as_ref()), ("cert_file", own.as_ref().map(|(cert, _)| cert))];
        for (key, text) in certificates {
            if text.is_some_and(|t| !t.contains("-----BEGIN CERTIFICATE-----")) {
                return Err(self.wrong(
                    key,
                    "the file holds no certificate; certificates begin with \"-----BEGIN CERTIFICATE-----\"",
                ));
            }
        }
        if own.as_ref().is_some_and(|(_, key)| !key.contains("PRIVATE KEY-----")) {
            return Err(self.wrong(
                "key_file",
                "the file holds no key; keys begin with \"-----BEGIN PRIVATE KEY-----\"",
            ));
        }
        Ok(TlsClientSettings { ca, own })
    }
}

/// The password that a file contains. None: no file is named.
struct Password(Option<String>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_of_one_folder_have_different_spools() {
        let spool = |run_dir: &str| usual_spool(Path::new("/etc/dq"), Path::new(run_dir));
        assert_eq!(spool("/etc/dq/var/run"), Path::new("/etc/dq/var/spool.db"));
        assert_eq!(spool("/etc/dq/b/run"), Path::new("/etc/dq/var/spool-b-run.db"));
        assert_eq!(spool("/run/dq"), Path::new("/etc/dq/var/spool-run-dq.db"));
    }

    #[test]
    fn a_default_spool_that_exists_is_not_left_behind() {
        let path = |base: &Path| {
            let spool = spool(ByteCount(1 << 20), "", base, &base.join("var/run")).unwrap();
            spool.map(|spool| spool.path)
        };
        // Nobody may write here, not even root.
        assert_eq!(path(Path::new("/proc/sys/kernel")), None);
        assert_eq!(path(Path::new("/proc/sys/kernel/ostype")), None);
        let dir = tempfile::tempdir().unwrap();
        let default = dir.path().join("var/spool.db");
        assert_eq!(path(dir.path()), Some(default.clone()));
        std::fs::create_dir(dir.path().join("var")).unwrap();
        std::os::unix::fs::symlink("/proc/sys/kernel/ostype", &default).unwrap();
        assert!(access(&default, AccessFlags::W_OK).is_err());
        assert_eq!(path(dir.path()), Some(default));
    }
}

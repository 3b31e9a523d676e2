//! Checks what is written of the store on Redis: each node, where it is and how it is spoken with.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use redis::IntoConnectionInfo;

use super::ConfigError;
use super::raw;
use super::validate::{count, within};
use crate::php_node::{self, PhpNode};
use crate::settings::{At, Node, Redis, Registry, Tls};

/// How many shards a Cluster has when nothing else is said: enough to be spread over many servers.
const SHARDS_OF_CLUSTER: u32 = 64;

/// A token says in two bytes on which shard its lease is, and bells need a connection each.
const SHARDS_MAX: u32 = 1024;

const SERVER: [&str; 4] = ["redis", "rediss", "redis+unix", "unix"];
const NETWORK: [&str; 2] = ["redis", "rediss"];

pub(super) fn redis(raw: raw::Store, base: &Path) -> Result<Redis, ConfigError> {
    check_name("store.prefix", &raw.prefix)?;
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
        let written = Written { at: format!("store.node[{i}]"), raw, base };
        if !written.raw.name.is_empty() && !seen.insert(written.raw.name.clone()) {
            let problem = format!("{:?} is another node's name already", written.raw.name);
            return Err(written.wrong("name", problem));
        }
        let node = written.node(shards)?;
        if let Some(same) = nodes.iter().find(|n: &&Node| n.at == node.at) {
            let problem =
                format!("is that of node {} already: two nodes are two servers, or two databases", same.name);
            return Err(written.wrong("url", problem));
        }
        nodes.push(node);
    }
    Ok(Redis {
        prefix: raw.prefix,
        timeout: within("store.timeout", raw.timeout, TIMEOUT.0, TIMEOUT.1)?,
        pool: count("store.pool", raw.pool, 1, 1024)?,
        nodes,
    })
}

fn unlisted(problem: impl Into<String>) -> ConfigError {
    ConfigError::key("store.nodes_from_registry", problem)
}

/// The nodes in the tables of the PHP daemon. Each is called by the number of its row, which stays when people call it
/// otherwise; of a master and its slave the master counts.
pub(super) fn from_registry(
    shards: u32,
    registry: Option<&Registry>,
    ask: impl FnOnce(&Registry) -> Result<Vec<PhpNode>, String>,
) -> Result<Vec<Node>, ConfigError> {
    let Some(registry @ Registry::Mysql(_)) = registry else {
        let problem =
            "true needs the PHP daemon's database: registry.url = \"mysql://user:password@host:3306/dq\"";
        return Err(unlisted(problem));
    };
    let rows = ask(registry).map_err(unlisted)?;
    if rows.is_empty() {
        return Err(unlisted("the table dq_redis is empty: add a row, or take [[store.node]]"));
    }
    let mut nodes: Vec<Node> = Vec::new();
    for row in rows {
        let wrong =
            |problem: String| unlisted(format!("row {} of dq_redis ({}) {problem}", row.id, row.name));
        let url = php_node::master(&row.content).and_then(|(host, port, password)| {
            let mut url = redis::parse_redis_url(&format!("redis://{host}:{port}/0"))?;
            let password = Some(password).filter(|p| !p.is_empty());
            url.set_password(password).ok().map(|()| String::from(url))
        });
        let url = url.ok_or_else(|| wrong("is not \"host:port\" or \"host:port:password\"".to_owned()))?;
        let node = Node::server(format!("r{}", row.id), url, shards);
        if let Some(same) = nodes.iter().find(|n| n.at == node.at) {
            return Err(wrong(format!("is that of node {} already", same.name)));
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
        return Err(ConfigError::key(key, "is missing: 1 to 32 of letters, digits, `_`, `-`"));
    }
    Err(ConfigError::key(key, format!("{name:?} is not 1 to 32 of letters, digits, `_`, `-`")))
}

/// A node as it is written, and where.
struct Written<'a> {
    at: String,
    raw: raw::Node,
    base: &'a Path,
}

impl Written<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.at)
    }

    fn wrong(&self, name: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::key(self.key(name), problem)
    }

    fn node(&self, shards_per_node: u32) -> Result<Node, ConfigError> {
        check_name(&self.key("name"), &self.raw.name)?;
        let at = self.place()?;
        let urls = match &at {
            At::Server { url } => vec![url],
            At::Sentinel { sentinels, url, .. } => sentinels.iter().chain([url]).collect(),
            At::Cluster { seeds } => seeds.iter().collect(),
        };
        let tls = self.tls(urls.iter().any(|url| url.starts_with("rediss:")))?;
        let default = if self.raw.cluster { SHARDS_OF_CLUSTER } else { shards_per_node };
        let shards = count(&self.key("shards"), self.raw.shards.unwrap_or(default), 1, SHARDS_MAX)?;
        let timeout =
            self.raw.timeout.map(|t| within(&self.key("timeout"), t, TIMEOUT.0, TIMEOUT.1)).transpose()?;
        let pool = self.raw.pool.map(|n| count(&self.key("pool"), n, 1, 1024)).transpose()?;
        Ok(Node { name: self.raw.name.clone(), at, shards, timeout, pool, tls })
    }

    fn place(&self) -> Result<At, ConfigError> {
        let raw = &self.raw;
        let password = self.password()?;
        if raw.cluster {
            if !raw.sentinels.is_empty() || !raw.master_name.is_empty() {
                let problem =
                    "true goes without sentinels and master_name: a Cluster finds its masters itself";
                return Err(self.wrong("cluster", problem));
            }
            let first = self.url("url", &raw.url, &NETWORK, &password)?;
            let more = raw.seeds.iter().map(|seed| self.url("seeds", seed, &NETWORK, &password));
            let seeds: Vec<String> = std::iter::once(Ok(first)).chain(more).collect::<Result<_, _>>()?;
            if seeds.iter().any(|s| s.starts_with("rediss:") != seeds[0].starts_with("rediss:")) {
                return Err(self.wrong("seeds", "all begin as url does, with \"redis://\" or \"rediss://\""));
            }
            return Ok(At::Cluster { seeds });
        }
        if !raw.seeds.is_empty() {
            return Err(self.wrong("seeds", "are more servers of a Cluster: set cluster = true"));
        }
        match (raw.sentinels.is_empty(), raw.master_name.as_str()) {
            (true, "") => Ok(At::Server { url: self.url("url", &raw.url, &SERVER, &password)? }),
            (true, name) => {
                let problem =
                    format!("{name:?} needs sentinels = [\"redis://10.0.0.1:26379\"] to ask for it");
                Err(self.wrong("master_name", problem))
            }
            (false, "") => Err(self.wrong(
                "master_name",
                "\"\" is no name; it is what the sentinels monitor, such as \"mymaster\"",
            )),
            (false, name) => {
                let host = |url: &str| redis::parse_redis_url(url)?.host_str().map(str::to_owned);
                let url = if raw.url.is_empty() { "redis://master/".to_owned() } else { raw.url.clone() };
                let url = self.url("url", &url, &NETWORK, &password)?;
                if !raw.url.is_empty() && host(&raw.url).is_none_or(|h| !h.eq_ignore_ascii_case(name)) {
                    let problem = format!(
                        "its host is not the master's name: the sentinels say where it is, such as \"redis://:password@{name}/0\""
                    );
                    return Err(self.wrong("url", problem));
                }
                let none = Password(None);
                let sentinels = raw.sentinels.iter().map(|s| self.url("sentinels", s, &NETWORK, &none));
                let sentinels = sentinels.collect::<Result<_, _>>()?;
                Ok(At::Sentinel { sentinels, master_name: name.to_owned(), url })
            }
        }
    }

    /// A URL that is one, with the password of the file. What may hold a password is not shown.
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
        let problem = |e: &str| self.wrong(key, format!("a url that cannot be read: {e}; one is {example}"));
        let parts = "is there a port above 65535, or a `/`, `@` or space that is not percent-encoded in the password?";
        let mut url = redis::parse_redis_url(written).ok_or_else(|| problem(parts))?;
        let info = written.into_connection_info().map_err(|e| problem(e.detail().unwrap_or(parts)))?;
        if info.redis_settings().db() < 0 {
            return Err(problem("its database is a number from 0"));
        }
        if url.fragment().is_some() {
            return Err(
                self.wrong(key, "\"#…\" means nothing here; a certificate of one's own goes by ca_file")
            );
        }
        if self.raw.cluster && info.redis_settings().db() != 0 {
            return Err(self.wrong(key, "a Cluster has no database but 0: leave it out"));
        }
        if let Some(password) = &password.0 {
            let is_file = !NETWORK.contains(&url.scheme());
            if is_file
                || info.redis_settings().password().is_some()
                || url.set_password(Some(password)).is_err()
            {
                let problem = if is_file {
                    "goes with \"redis://\" and \"rediss://\"; on a socket it is \"redis+unix:///run/redis.sock?pass=…\""
                } else {
                    "the url has a password already: leave one of them out"
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

    /// What a file holds that a key names; none: it names none.
    fn file(&self, key: &str, name: &str) -> Result<Option<String>, ConfigError> {
        if name.is_empty() {
            return Ok(None);
        }
        let read = std::fs::read_to_string(self.base.join(name));
        read.map(Some).map_err(|e| self.wrong(key, format!("cannot read {:?}: {e}", self.base.join(name))))
    }

    fn tls(&self, is_used: bool) -> Result<Tls, ConfigError> {
        let raw = &self.raw;
        let names = [("ca_file", &raw.ca_file), ("cert_file", &raw.cert_file), ("key_file", &raw.key_file)];
        if let Some((key, name)) = names.iter().find(|(_, name)| !name.is_empty() && !is_used) {
            return Err(self.wrong(key, format!("{name:?} is for a url that begins with \"rediss://\"")));
        }
        let ca = self.file("ca_file", &raw.ca_file)?;
        let own = match (self.file("cert_file", &raw.cert_file)?, self.file("key_file", &raw.key_file)?) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            (Some(_), None) => return Err(self.wrong("key_file", "\"\" is no file; cert_file needs its key")),
            (None, Some(_)) => return Err(self.wrong("cert_file", "\"\" is no file; key_file goes with it")),
        };
        let certificates = [("ca_file", ca.as_ref()), ("cert_file", own.as_ref().map(|(cert, _)| cert))];
        for (key, text) in certificates {
            if text.is_some_and(|t| !t.contains("-----BEGIN CERTIFICATE-----")) {
                return Err(self.wrong(
                    key,
                    "there is no certificate in it; one begins \"-----BEGIN CERTIFICATE-----\"",
                ));
            }
        }
        if own.as_ref().is_some_and(|(_, key)| !key.contains("PRIVATE KEY-----")) {
            return Err(
                self.wrong("key_file", "there is no key in it; one begins \"-----BEGIN PRIVATE KEY-----\"")
            );
        }
        Ok(Tls { ca, own })
    }
}

/// The password that a file holds.
struct Password(Option<String>);

//! The address of a Redis of the PHP daemon, as people write it: a URL, or the content of a row of its table dq_redis.
//! Pure. A password is never shown.

use anyhow::{Result, bail};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};

use model::php_node;

/// The examples in error messages.
const EXAMPLE: &str =
    "such as redis://:password@10.0.0.1:6379 or, as the table dq_redis has it, 10.0.0.1:6379:password";

/// The address of a Redis.
#[derive(Debug, Clone)]
pub struct RedisAddress {
    /// The URL of the Redis, without secrets.
    pub shown: String,
    /// The address for the connection, with secrets.
    pub info: ConnectionInfo,
}

/// Parses the addresses that were given with an option. Each address may be given only once.
pub fn addresses(option: &str, texts: &[String]) -> Result<Vec<RedisAddress>> {
    let mut addresses: Vec<RedisAddress> = Vec::new();
    for text in texts {
        let address = RedisAddress::parse(text).map_err(|problem| anyhow::anyhow!("{option} {problem}"))?;
        if addresses.iter().any(|a| a.shown == address.shown) {
            bail!("{option} {}: it is given twice", address.shown);
        }
        addresses.push(address);
    }
    Ok(addresses)
}

impl RedisAddress {
    /// Parses a URL or a row. A row has one or two addresses, with a comma between them. Each address is `host:port` or
    /// `host:port:password`. The first address of a row is the master, and only the master is used.
    pub fn parse(text: &str) -> Result<RedisAddress> {
        match text.split_once("://") {
            Some((scheme, _)) => url(text, scheme),
            None => row(text),
        }
    }
}

/// Returns a URL without the parts that may be secret.
pub fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    // User and password end at the last `@`. The URL of a socket may have the password after its path.
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{}", place.split('?').next().unwrap_or_default())
}

fn url(text: &str, scheme: &str) -> Result<RedisAddress> {
    let shown = without_secrets(text);
    if scheme == "rediss" {
        bail!("{shown}: TLS is not supported; use redis:// or redis+unix://");
    }
    if !matches!(scheme, "redis" | "redis+unix" | "unix") {
        bail!("{shown}: {scheme:?} is not a scheme of Redis; give a url {EXAMPLE}");
    }
    match text.into_connection_info() {
        Ok(info) => Ok(RedisAddress { shown, info }),
        Err(e) => bail!("{shown}: {e}; give a url {EXAMPLE}"),
    }
}

fn row(text: &str) -> Result<RedisAddress> {
    let Some((host, port, password)) = php_node::master(text) else {
        let host = text.split(':').next().unwrap_or_default();
        bail!("{host}…: neither a url nor host:port:password; give one {EXAMPLE}");
    };
    let secret = RedisConnectionInfo::default();
    let secret = if password.is_empty() { secret } else { secret.set_password(password) };
    match ConnectionAddr::Tcp(host.to_owned(), port).into_connection_info() {
        Ok(info) => Ok(RedisAddress {
            shown: format!("redis://{host}:{port}"),
            info: info.set_redis_settings(secret),
        }),
        Err(e) => bail!("redis://{host}:{port}: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(text: &str) -> (String, String, Option<String>, i64) {
        let RedisAddress { shown, info } = RedisAddress::parse(text).unwrap();
        let redis = info.redis_settings();
        (shown, info.addr().to_string(), redis.password().map(str::to_owned), redis.db())
    }

    #[test]
    fn an_address_is_a_url_or_a_row_of_the_table() {
        for (text, shown, address, password, db) in [
            ("redis://10.0.0.1:6379", "redis://10.0.0.1:6379", "10.0.0.1:6379", None, 0),
            ("redis://u:se%40cret@h:6380/3", "redis://h:6380/3", "h:6380", Some("se@cret"), 3),
            (
                "redis+unix:///run/r.sock?pass=secret",
                "redis+unix:///run/r.sock",
                "/run/r.sock",
                Some("secret"),
                0,
            ),
            ("h:6379", "redis://h:6379", "h:6379", None, 0),
            ("h:6379:", "redis://h:6379", "h:6379", None, 0),
            ("h:6379:se:cr@t", "redis://h:6379", "h:6379", Some("se:cr@t"), 0),
            ("h:6379:secret, s:6380:other", "redis://h:6379", "h:6379", Some("secret"), 0),
        ] {
            let expected = (shown.to_owned(), address.to_owned(), password.map(str::to_owned), db);
            assert_eq!(understood(text), expected, "{text}");
        }
    }

    #[test]
    fn an_option_is_named_in_its_errors() {
        let given = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            addresses("--to", &texts).map(|all| all.len()).map_err(|e| e.to_string())
        };
        assert_eq!(given(&["h:1", "h:2"]), Ok(2));
        assert_eq!(given(&["h:1", "h:1:secret"]).unwrap_err(), "--to redis://h:1: it is given twice");
        assert!(given(&["h"]).unwrap_err().starts_with("--to h…: neither"));
    }

    #[test]
    fn what_is_no_address_is_named_without_its_password() {
        for (text, named) in [
            ("", "neither"),
            ("h", "h…"),
            ("h:0:secret", "h…"),
            ("h:99999:secret", "h…"),
            ("h:port:secret", "h…"),
            ("h:6379:sec,ret", "h…"),
            ("user:secret@h:6379", "user…"),
            ("::1:6379", "neither"),
            ("http://u:secret@h:6379", "http://h:6379"),
            ("rediss://u:secret@h:6379", "TLS"),
            ("redis://u:secret@", "redis://"),
            ("redis://u:sec/ret@h:6379", "redis://h:6379"),
            ("redis://u:secret@h:6379/first", "redis://h:6379/first"),
        ] {
            let message = RedisAddress::parse(text).unwrap_err().to_string();
            assert!(message.contains(named), "{text}: {message}");
            assert!(!message.contains("ret"), "{text}: {message}");
        }
    }
}

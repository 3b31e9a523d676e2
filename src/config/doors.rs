//! Checks who may come in by the TCP and the HTTP port.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use ureq::http::Uri;

use super::ConfigError;
use super::certificate::{Named, certificate};
use super::raw;
use super::validate::{HOUR, count, within};
use crate::settings::{Auth, Http, Server};

/// The longest frame that the binary framing can announce and still be told apart from the other: its first byte is 0.
const FRAME_MAX: usize = 15 << 20;

/// A connection may be idle for so long, at least and at most.
const IDLE: (Duration, Duration) = (Duration::from_millis(100), HOUR.saturating_mul(24));

pub(super) fn server(raw: raw::Server, has_registry: bool) -> Result<Server, ConfigError> {
    let door = Door { name: "server", example: "127.0.0.1:6789" };
    let (listen, auth, allow) = door.of(&raw.listen, &raw.auth, &raw.allow, has_registry)?;
    if !(256..=FRAME_MAX).contains(&raw.max_frame.0) {
        let shown = serde_json::to_string(&raw.max_frame).unwrap_or_default();
        return Err(ConfigError::key(
            "server.max_frame",
            format!("{shown} is not within \"256B\" and \"15MiB\""),
        ));
    }
    Ok(Server {
        listen,
        auth,
        allow,
        max_connections: count("server.max_connections", raw.max_connections, 1, 1_000_000)?,
        max_frame: raw.max_frame.0,
        idle_timeout: within("server.idle_timeout", raw.idle_timeout, IDLE.0, IDLE.1)?,
    })
}

pub(super) fn http(raw: raw::Http, has_registry: bool, base: &Path) -> Result<Http, ConfigError> {
    let door = Door { name: "http", example: "127.0.0.1:8088" };
    let (listen, auth, allow) = door.of(&raw.listen, &raw.auth, &raw.allow, has_registry)?;
    let tls = certificate(
        Named { key: "http.tls.cert", file: &raw.tls.cert },
        Named { key: "http.tls.key", file: &raw.tls.key },
        base,
    )?;
    Ok(Http {
        public_url: public_url(&raw.public_url, listen, tls.is_some())?,
        listen,
        auth,
        allow,
        max_connections: count("http.max_connections", raw.max_connections, 1, 1_000_000)?,
        max_requests: count("http.max_requests", raw.max_requests, 1, 1_000_000)?,
        idle_timeout: within("http.idle_timeout", raw.idle_timeout, IDLE.0, IDLE.1)?,
        tls,
    })
}

/// Where receivers find the API: where it says so, or where it listens, if that is an address that somebody can call.
fn public_url(said: &str, listen: Option<SocketAddr>, has_tls: bool) -> Result<Option<String>, ConfigError> {
    if said.is_empty() {
        let scheme = if has_tls { "https" } else { "http" };
        return Ok(listen.filter(|a| !a.ip().is_unspecified()).map(|a| format!("{scheme}://{a}")));
    }
    let uri: Option<Uri> = said.parse().ok();
    let good = uri.is_some_and(|u| {
        matches!(u.scheme_str(), Some("http" | "https"))
            && u.host().is_some_and(|host| !host.is_empty())
            && !said.contains(['?', '#', '@'])
    });
    if !good {
        let problem =
            format!("{said:?} is no URL that a path can be put behind, such as \"https://dq.example.com\"");
        return Err(ConfigError::key("http.public_url", problem));
    }
    Ok(Some(said.trim_end_matches('/').to_owned()))
}

/// One of the ports.
struct Door {
    name: &'static str,
    example: &'static str,
}

impl Door {
    fn wrong<T>(&self, key: &str, problem: String) -> Result<T, ConfigError> {
        Err(ConfigError::key(format!("{}.{key}", self.name), problem))
    }

    /// Where it is, and who may come in there.
    fn of(
        &self,
        listen: &str,
        auth: &str,
        allow: &[String],
        has_registry: bool,
    ) -> Result<(Option<SocketAddr>, Auth, Vec<IpNet>), ConfigError> {
        let name = self.name;
        let address = match listen {
            "" => None,
            text => match text.parse().ok().filter(|a: &SocketAddr| a.port() != 0) {
                Some(address) => Some(address),
                None => {
                    let example = self.example;
                    return self
                        .wrong("listen", format!("{text:?} is no address and port, such as \"{example}\""));
                }
            },
        };
        let auth = match auth {
            "none" => Auth::None,
            "token" if has_registry => Auth::Token,
            "token" => {
                let problem = "\"token\" needs a place where tokens are, and registry.url names none: take a MySQL there \
                    (or, with the embedded store, a SQLite file), or \"none\" here";
                return self.wrong("auth", problem.to_owned());
            }
            other => return self.wrong("auth", format!("{other:?} is neither \"none\" nor \"token\"")),
        };
        let allow = networks(&format!("{name}.allow"), allow)?;
        let is_wide = address.is_some_and(|a| !a.ip().to_canonical().is_loopback());
        if is_wide && auth == Auth::None && allow.is_empty() {
            let problem = format!(
                "\"{listen}\" is wider than loopback: set {name}.auth = \"token\", or say who may connect, such as \
                 {name}.allow = [\"10.0.0.0/8\"]"
            );
            return self.wrong("listen", problem);
        }
        Ok((address, auth, allow))
    }
}

pub(super) fn networks(key: &str, values: &[String]) -> Result<Vec<IpNet>, ConfigError> {
    let parse = |v: &String| {
        v.parse().map_err(|_| ConfigError::key(key, format!("{v:?} is no range, such as \"10.0.0.0/8\"")))
    };
    values.iter().map(parse).collect()
}

//! Checks who may connect to the TCP port, the HTTP port, and the ports for clients of gmq-redis and of beanstalkd.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use ipnet::IpNet;

use super::ConfigError;
use super::bounds::{HOUR, count, size, within};
use super::certificate::{ConfiguredFile, certificate};
use super::raw;
use super::units::ByteCount;
use model::scope::Scope;
use model::session::KEY_LEAST;
use model::settings::{Auth, BeanstalkSettings, GmqSettings, HttpSettings, ServerSettings};

/// The smallest and the largest `max_frame`. A frame is shorter than 16 MiB, so in the binary framing its length begins
/// with the byte 0. In the framing with digits, the length begins with a digit. So the first byte that a client sends
/// shows which framing the client uses.
const FRAMES: (ByteCount, ByteCount) = (ByteCount(256), ByteCount(15 << 20));

/// The maximum number of connections of a port.
const CONNECTIONS_MAX: usize = 1_000_000;

/// The smallest default of `max_connections_per_source`. The default is a quarter of `max_connections`, but at least
/// this number, and never more than `max_connections`.
const PER_SOURCE_LEAST: usize = 16;

/// The shortest and the longest `idle_timeout`.
const IDLE: (Duration, Duration) = (Duration::from_millis(100), HOUR.saturating_mul(24));

pub(super) fn server(
    raw: raw::Server,
    has_registry: bool,
    base: &Path,
) -> Result<ServerSettings, ConfigError> {
    let port = PortValidator { name: "server", example: "127.0.0.1:6789" };
    let (listen, auth, allow) = port.check(&raw.listen, &raw.auth, &raw.allow, has_registry)?;
    let (max_connections, max_connections_per_source) =
        port.connections(raw.max_connections, raw.max_connections_per_source)?;
    Ok(ServerSettings {
        listen,
        auth,
        allow,
        max_connections,
        max_connections_per_source,
        max_frame: size("server.max_frame", raw.max_frame, FRAMES)?,
        idle_timeout: within("server.idle_timeout", raw.idle_timeout, IDLE.0, IDLE.1)?,
        tls: certificate(
            ConfiguredFile { key: "server.tls.cert", file: &raw.tls.cert },
            ConfiguredFile { key: "server.tls.key", file: &raw.tls.key },
            base,
        )?,
    })
}

pub(super) fn http(raw: raw::Http, has_registry: bool, base: &Path) -> Result<HttpSettings, ConfigError> {
    let port = PortValidator { name: "http", example: "127.0.0.1:8088" };
    let (listen, auth, allow) = port.check(&raw.listen, &raw.auth, &raw.allow, has_registry)?;
    let tls = certificate(
        ConfiguredFile { key: "http.tls.cert", file: &raw.tls.cert },
        ConfiguredFile { key: "http.tls.key", file: &raw.tls.key },
        base,
    )?;
    let (max_connections, max_connections_per_source) =
        port.connections(raw.max_connections, raw.max_connections_per_source)?;
    Ok(HttpSettings {
        public_url: public_url(&raw.public_url, listen, tls.is_some())?,
        listen,
        auth,
        allow,
        max_connections,
        max_connections_per_source,
        console: raw.console,
        session_key_file: session_key_file(&raw.session_key_file, base)?,
        max_requests: count("http.max_requests", raw.max_requests, 1, 1_000_000)?,
        max_reserves: count("http.max_reserves", raw.max_reserves, 1, 1_000_000)?,
        idle_timeout: within("http.idle_timeout", raw.idle_timeout, IDLE.0, IDLE.1)?,
        tls,
    })
}

/// Checks the port for clients of gmq-redis. `http`: the address of the HTTP API. The process of the HTTP API also
/// serves this port.
pub(super) fn gmq(raw: raw::Gmq, http: Option<SocketAddr>) -> Result<GmqSettings, ConfigError> {
    let port = PortValidator { name: "gmq", example: "127.0.0.1:9503" };
    let (listen, allow) = port.check_without_login("gmq-redis", &raw.listen, &raw.allow, http)?;
    let (max_connections, max_connections_per_source) =
        port.connections(raw.max_connections, raw.max_connections_per_source)?;
    Ok(GmqSettings {
        listen,
        allow,
        scopes: port.scopes(&raw.scopes)?,
        max_connections,
        max_connections_per_source,
        idle_timeout: within("gmq.idle_timeout", raw.idle_timeout, IDLE.0, IDLE.1)?,
    })
}

/// Checks the port for clients of beanstalkd. `server`: the settings of the TCP port. Their `max_frame` is the largest
/// size of any request, so it also limits `max_job_size`.
pub(super) fn beanstalk(
    raw: raw::Beanstalk,
    http: Option<SocketAddr>,
    server: &ServerSettings,
    has_registry: bool,
) -> Result<BeanstalkSettings, ConfigError> {
    let port = PortValidator { name: "beanstalk", example: "127.0.0.1:11300" };
    let (listen, allow) = port.check_without_login("beanstalkd", &raw.listen, &raw.allow, http)?;
    let (max_connections, max_connections_per_source) =
        port.connections(raw.max_connections, raw.max_connections_per_source)?;
    if raw.create && !has_registry {
        let problem = "true needs a registry for the topics, and registry.url is \"none\": leave registry.url out, or \
                       put the topics into this file and set beanstalk.create = false";
        return port.wrong("create", problem.to_owned());
    }
    let max_job_size = size("beanstalk.max_job_size", raw.max_job_size, (ByteCount(1), FRAMES.1))?;
    if listen.is_some() && max_job_size > server.max_frame {
        let problem =
            format!("{max_job_size} bytes are more than server.max_frame, which bounds all requests");
        return port.wrong("max_job_size", problem);
    }
    Ok(BeanstalkSettings {
        listen,
        allow,
        scopes: port.scopes(&raw.scopes)?,
        create: raw.create,
        max_connections,
        max_connections_per_source,
        idle_timeout: within("beanstalk.idle_timeout", raw.idle_timeout, IDLE.0, IDLE.1)?,
        max_job_size: max_job_size as u32,
    })
}

/// Whether a port can be reached from other hosts.
fn is_wide(listen: Option<SocketAddr>) -> bool {
    listen.is_some_and(|a| !a.ip().to_canonical().is_loopback())
}

/// Returns the path of the file with the key for sessions of the console. dq-http-server reads this file.
fn session_key_file(text: &str, base: &Path) -> Result<Option<PathBuf>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    let path = base.join(text);
    let wrong = |problem: String| ConfigError::key("http.session_key_file", format!("{text:?}: {problem}"));
    let length = std::fs::metadata(&path).map_err(|e| wrong(e.to_string()))?.len();
    if length < KEY_LEAST as u64 {
        return Err(wrong(format!("it has {length} bytes, and needs at least {KEY_LEAST} random ones")));
    }
    Ok(Some(path))
}

/// Returns the URL at which receivers find the API: `http.public_url`. If `http.public_url` is empty, the URL is made
/// from the address in `http.listen`. None: receivers cannot call this address, or there is no address.
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
            format!("{said:?} is not a URL to which a path can be added, such as \"https://dq.example.com\"");
        return Err(ConfigError::key("http.public_url", problem));
    }
    Ok(Some(said.trim_end_matches('/').to_owned()))
}

/// Checks the settings of one port. `name` is the section of the configuration, and `example` is a valid address for
/// messages.
struct PortValidator {
    name: &'static str,
    example: &'static str,
}

impl PortValidator {
    fn wrong<T>(&self, key: &str, problem: String) -> Result<T, ConfigError> {
        Err(ConfigError::key(format!("{}.{key}", self.name), problem))
    }

    /// Returns how many connections the port may have, in all and from one source.
    fn connections(&self, most: usize, per_source: usize) -> Result<(usize, usize), ConfigError> {
        let most = count(&format!("{}.max_connections", self.name), most, 1, CONNECTIONS_MAX)?;
        let key = format!("{}.max_connections_per_source", self.name);
        Ok(match count(&key, per_source, 0, CONNECTIONS_MAX)? {
            0 => (most, most.div_ceil(4).max(PER_SOURCE_LEAST).min(most)),
            per_source => (most, per_source),
        })
    }

    /// Returns the address of the port. None: there is no such port.
    fn address(&self, listen: &str) -> Result<Option<SocketAddr>, ConfigError> {
        if listen.is_empty() {
            return Ok(None);
        }
        match listen.parse().ok().filter(|a: &SocketAddr| a.port() != 0) {
            Some(address) => Ok(Some(address)),
            None => {
                let example = self.example;
                self.wrong("listen", format!("{listen:?} is not an address and port, such as \"{example}\""))
            }
        }
    }

    /// Checks a port with a protocol without credentials. Returns the address of the port, and the networks that may
    /// connect. `clients`: the program whose clients use the port. `http`: the address of the HTTP API. The process of
    /// the HTTP API also serves this port.
    fn check_without_login(
        &self,
        clients: &str,
        listen: &str,
        allow: &[String],
        http: Option<SocketAddr>,
    ) -> Result<(Option<SocketAddr>, Vec<IpNet>), ConfigError> {
        let name = self.name;
        let allow = networks(&format!("{name}.allow"), allow)?;
        let address = self.address(listen)?;
        if is_wide(address) && allow.is_empty() {
            let problem = format!(
                "\"{listen}\" is no loopback address, and clients of {clients} have no credentials: say who may \
                 connect, such as {name}.allow = [\"10.0.0.0/8\"]"
            );
            return self.wrong("listen", problem);
        }
        if address.is_some() && http.is_none() {
            let problem = format!(
                "\"{listen}\" needs the HTTP API, whose process serves this port too: set http.listen, such as \
                 \"127.0.0.1:8088\""
            );
            return self.wrong("listen", problem);
        }
        Ok((address, allow))
    }

    /// Returns what each client of a port without credentials may do.
    fn scopes(&self, scopes: &[String]) -> Result<Vec<Scope>, ConfigError> {
        let scope = |text: &String| match text.parse() {
            Ok(scope @ (Scope::Produce(_) | Scope::Consume(_))) => Ok(scope),
            _ => {
                let problem = format!(
                    "{text:?} is neither \"produce:<topic>\" nor \"consume:<topic>\", such as \
                     \"consume:orders.*\""
                );
                self.wrong("scopes", problem)
            }
        };
        scopes.iter().map(scope).collect()
    }

    /// Returns the address of the port, whether clients need a token, and the networks that may connect.
    fn check(
        &self,
        listen: &str,
        auth: &str,
        allow: &[String],
        has_registry: bool,
    ) -> Result<(Option<SocketAddr>, Auth, Vec<IpNet>), ConfigError> {
        let name = self.name;
        let address = self.address(listen)?;
        let auth = match auth {
            "none" => Auth::None,
            "token" if has_registry => Auth::Token,
            "token" => {
                let problem = "\"token\" needs a registry for the tokens, and registry.url is \"none\": leave registry.url \
                    out, or set \"none\" here";
                return self.wrong("auth", problem.to_owned());
            }
            other => return self.wrong("auth", format!("{other:?} is neither \"none\" nor \"token\"")),
        };
        let allow = networks(&format!("{name}.allow"), allow)?;
        if is_wide(address) && auth == Auth::None && allow.is_empty() {
            let problem = format!(
                "\"{listen}\" is no loopback address: set {name}.auth = \"token\", or say who may connect, such as \
                 {name}.allow = [\"10.0.0.0/8\"]"
            );
            return self.wrong("listen", problem);
        }
        Ok((address, auth, allow))
    }
}

pub(super) fn networks(key: &str, values: &[String]) -> Result<Vec<IpNet>, ConfigError> {
    let parse = |v: &String| {
        v.parse().map_err(|_| {
            ConfigError::key(key, format!("{v:?} is not a range of addresses, such as \"10.0.0.0/8\""))
        })
    };
    values.iter().map(parse).collect()
}

//! The first steps of every request. Each request gets an id. If no token is needed, a request must not come from a web
//! page of another site.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that dq accepts from a client, in bytes.
const ID_MAX: usize = 128;

/// Gives an answer the id of its request: the client's id, or a new one. `record` gets the answer and the id before the
/// answer is sent.
pub(super) async fn with_id<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
    record: impl FnOnce(&Response, &str),
) -> Response {
    let good = |id: &&HeaderValue| {
        (1..=ID_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    let made = || HeaderValue::try_from(made_id()).ok();
    let id = request.headers().get(REQUEST_ID).filter(good).cloned().or_else(made);
    let mut response = next(request).await;
    record(&response, id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default());
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Makes a request id. It is unique in this process, and almost certainly unique among all processes. The id mixes
/// random bits of the process with a counter. The mixing function is the finisher of splitmix64: different numbers
/// always have different results. Random bits for each request would cost one system call per request.
fn made_id() -> String {
    static FIRST: LazyLock<u64> = LazyLock::new(|| getrandom::u64().unwrap_or_else(|_| fastrand::u64(..)));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bits = FIRST.wrapping_add(number);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    format!("{:016x}", bits ^ bits >> 31)
}

/// The host names that requests without a token may use. A person may open any web page in a browser that can reach dq,
/// and this page can then send requests to dq. The page sends these requests under its own host name (DNS rebinding),
/// or from its own origin. The browser reports the host name in `Host`, and the origin in `Origin`.
#[derive(Debug)]
pub(super) struct AcceptedHosts {
    /// The scheme of the origin of this host's pages: `http://` or `https://`.
    scheme: &'static str,
    /// A host name that is accepted in addition to loopback. If it is set, any IP address is accepted, too. None: only
    /// loopback is accepted.
    wide: Option<String>,
}

impl AcceptedHosts {
    /// Returns the host names that requests to this instance may use. The names depend on the address at which this
    /// instance listens. `with_tls` decides the scheme of the accepted origin.
    pub(super) fn new(listen: Option<SocketAddr>, with_tls: bool, instance: &str) -> AcceptedHosts {
        let scheme = if with_tls { "https://" } else { "http://" };
        let is_wide = listen.is_some_and(|a| !a.ip().to_canonical().is_loopback());
        AcceptedHosts { scheme, wide: is_wide.then(|| instance.to_owned()) }
    }

    /// Checks that a request is meant for this host. The error says why the request is refused.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), String> {
        let text = |name: HeaderName| headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()));
        let host = text(HOST).unwrap_or_default();
        match &self.wide {
            None if !is_loopback(&host) => {
                return Err(format!("host is {host:?}, and not \"localhost\" or a loopback address"));
            }
            // An IP address is accepted, because DNS rebinding works only with a host name.
            Some(name)
                if !is_loopback(&host)
                    && address(&host).is_none()
                    && !without_port(&host).eq_ignore_ascii_case(name) =>
            {
                return Err(format!("host is {host:?}, and neither an address nor {name:?} (instance)"));
            }
            _ => {}
        }
        let scheme = self.scheme;
        match text(ORIGIN) {
            Some(origin) if origin.strip_prefix(scheme) != Some(&*host) => {
                Err(format!("origin is {origin:?}, and not \"{scheme}{host}\""))
            }
            _ => Ok(()),
        }
    }
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn address(authority: &str) -> Option<IpAddr> {
    without_port(authority).trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether a host, with or without a port, is a loopback address or `localhost`.
fn is_loopback(authority: &str) -> bool {
    without_port(authority).eq_ignore_ascii_case("localhost")
        || address(authority).is_some_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_requests_are_sixteen_letters_and_never_the_same() {
        let ids: std::collections::HashSet<String> = (0..10_000).map(|_| made_id()).collect();
        assert!(ids.len() == 10_000 && ids.iter().all(|id| id.len() == 16));
    }

    #[test]
    fn only_this_host_and_its_own_pages_are_let_in() {
        let loopback = AcceptedHosts::new(Some("127.0.0.1:8088".parse().unwrap()), false, "host-a");
        let wide = AcceptedHosts::new(Some("0.0.0.0:8088".parse().unwrap()), true, "host-a");
        let check_of = |hosts: &AcceptedHosts, host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::try_from(host).unwrap())]);
            if let Some(origin) = origin {
                headers.insert(ORIGIN, HeaderValue::try_from(origin).unwrap());
            }
            hosts.check(&headers)
        };
        let check = |host: &str, origin: Option<&str>| check_of(&loopback, host, origin);
        for host in ["127.0.0.1:8088", "localhost", "10.0.0.1:8088", "[2001:db8::1]:8088", "Host-A:8088"] {
            assert_eq!(check_of(&wide, host, None), Ok(()), "{host}");
        }
        assert_eq!(check_of(&wide, "10.0.0.1:8088", Some("https://10.0.0.1:8088")), Ok(()));
        for (host, origin) in [
            ("", None),
            ("evil.example", None),
            ("host-a.evil.example", None),
            ("10.0.0.1", Some("http://10.0.0.1")),
        ] {
            assert!(check_of(&wide, host, origin).is_err(), "{host}");
        }
        for host in ["127.0.0.1:8088", "localhost:8088", "LOCALHOST", "[::1]:8088", "127.0.0.1"] {
            assert_eq!(check(host, None), Ok(()), "{host}");
        }
        for host in ["", "evil.example", "evil.example:8088", "10.0.0.1:8088", "localhost.evil.example"] {
            assert!(check(host, None).is_err(), "{host}");
        }
        assert_eq!(check("localhost:8088", Some("http://localhost:8088")), Ok(()));
        for origin in ["null", "http://evil.example", "http://localhost:9000", "https://localhost:8088"] {
            assert!(check("localhost:8088", Some(origin)).is_err(), "{origin}");
        }
    }
}

//! What every request goes through: it has an id, and comes from no web page of somebody else's.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::{Problem, Reason};
use crate::process;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken over from a client, in bytes.
const ID_MAX: usize = 128;

/// Gives an answer the id of its request, which the client may have given. What is refused is logged under it.
pub(super) async fn with_id(request: Request, next: Next) -> Response {
    let good = |id: &&HeaderValue| {
        (1..=ID_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    let made = || HeaderValue::try_from(process::random_name().unwrap_or_default()).ok();
    let id = request.headers().get(REQUEST_ID).filter(good).cloned().or_else(made);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    if let (Some(Reason(reason)), Some(id)) = (response.extensions().get(), &id) {
        let (status, id) = (response.status().as_u16(), id.to_str().unwrap_or_default());
        log::info!(target: "request", "refused: {method} {path}: {status} {reason} [{id}]");
    }
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Lets in only who has asked for this host by its own name. A web page that somebody on this host looks at can ask here as
/// well, by a name of its own (DNS rebinding) or from its own origin; such a browser says so.
pub(super) async fn of_this_host(request: Request, next: Next) -> Response {
    // These change nothing and tell nothing.
    if !matches!(request.uri().path(), "/healthz" | "/readyz")
        && let Err(why) = is_of_this_host(request.headers())
    {
        return Problem::new(StatusCode::FORBIDDEN, "foreign", why).into_response();
    }
    next.run(request).await
}

fn is_of_this_host(headers: &HeaderMap) -> Result<(), String> {
    let text = |name: HeaderName| headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()));
    let host = text(HOST).unwrap_or_default();
    if !is_loopback(&host) {
        return Err(format!("host is {host:?}, and not \"localhost\" or a loopback address"));
    }
    match text(ORIGIN) {
        Some(origin) if origin.strip_prefix("http://") != Some(&*host) => {
            Err(format!("origin is {origin:?}, and not \"http://{host}\""))
        }
        _ => Ok(()),
    }
}

/// Whether a host, with or without a port, is this one.
fn is_loopback(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_and_its_own_pages_are_let_in() {
        let check = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::try_from(host).unwrap())]);
            if let Some(origin) = origin {
                headers.insert(ORIGIN, HeaderValue::try_from(origin).unwrap());
            }
            is_of_this_host(&headers)
        };
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

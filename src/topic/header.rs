//! Which headers a topic or a job may bring along for its callbacks. Pure.

use ureq::http::{HeaderName, HeaderValue};

/// Headers that say how the request itself travels, and what follows from the topic's other fields. Those that begin with
/// `dq-` or `webhook-` are dq's own.
const OWN: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether only dq sets a header of that name, in whatever case it is written.
pub fn is_own_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("dq-") || name.starts_with("webhook-") || OWN.contains(&name.as_str())
}

/// Why a header cannot be sent along; none: it can.
pub fn refuse_header(name: &str, value: &str) -> Option<String> {
    if HeaderName::try_from(name).is_err() {
        return Some(format!("{name:?} is no name of a header; one is \"x-shop\""));
    }
    if is_own_header(name) {
        return Some(format!("{name:?} is set by dq itself: leave it out"));
    }
    if HeaderValue::try_from(value).is_err() || !value.is_ascii() {
        return Some(format!(
            "the value of {name:?} holds what no header does: visible ASCII, spaces and tabs do"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_dq_and_of_the_connection_are_refused_by_name() {
        for name in [
            "Host",
            "content-length",
            "Connection",
            "TRANSFER-ENCODING",
            "dq-topic",
            "Webhook-Id",
            "content-type",
        ] {
            assert!(refuse_header(name, "x").unwrap().contains(name), "{name}");
        }
        for (name, value) in [("a b", "x"), ("", "x"), ("x-a", "a\nb"), ("x-a", "中")] {
            assert!(refuse_header(name, value).is_some(), "{name}: {value}");
        }
        for name in ["x-shop", "Authorization", "traceparent", "user-agent", "accept"] {
            assert_eq!(refuse_header(name, "a b\tc"), None, "{name}");
        }
    }
}

//! Decides which headers a topic or a job may add to its callbacks. Pure.

use http::{HeaderName, HeaderValue};

/// Headers that only dq sets: headers about the transfer of the request, and headers that follow from other fields of
/// the topic. Headers that begin with `dq-` or `webhook-` are also set only by dq.
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

/// Headers that say who sends a callback, or that some receivers use in place of the method, host or path of the
/// callback. Headers that begin with `x-forwarded-` are also guarded.
const GUARDED: [&str; 15] = [
    "authorization",
    "cookie",
    "cookie2",
    "forwarded",
    "proxy",
    "via",
    "x-forwarded",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
];

/// Returns whether two names of headers are the same to a receiver. CGI and PHP treat `_` and `-` as the same
/// character, and PHP treats `.` as this character too. For all receivers, upper and lower case are the same. So this
/// function treats all characters except letters and digits as the same.
pub fn is_same_header(a: &str, b: &str) -> bool {
    a.len() == b.len() && begins_like(a, b)
}

/// Returns whether a name begins with another name. The names are compared as in [`is_same_header`].
fn begins_like(name: &str, prefix: &str) -> bool {
    let folded = |byte: u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' };
    name.len() >= prefix.len() && name.bytes().zip(prefix.bytes()).all(|(a, b)| folded(a) == folded(b))
}

/// Returns whether the header with this name is guarded: a job may set it only if the topic of the job names it in
/// `job_headers`. A receiver may trust such a header, so a client that may add jobs must not be able to forge it. Names
/// are compared by [`is_same_header`].
pub fn is_guarded_header(name: &str) -> bool {
    begins_like(name, "x-forwarded-") || GUARDED.iter().any(|guarded| is_same_header(name, guarded))
}

/// Returns whether only dq sets the header with this name. Names are compared by [`is_same_header`].
pub fn is_own_header(name: &str) -> bool {
    begins_like(name, "dq-")
        || begins_like(name, "webhook-")
        || OWN.iter().any(|own| is_same_header(name, own))
}

/// Returns why a header cannot be sent. None: the header can be sent.
pub fn refuse_header(name: &str, value: &str) -> Option<String> {
    if HeaderName::try_from(name).is_err() {
        return Some(format!("{name:?} is not a valid name of a header; an example is \"x-shop\""));
    }
    if is_own_header(name) {
        return Some(format!("{name:?} is set by dq itself: leave it out"));
    }
    if HeaderValue::try_from(value).is_err() || !value.is_ascii() {
        return Some(format!(
            "the value of {name:?} has characters that a header cannot have: use visible ASCII, spaces and tabs"
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
            "dq_topic",
            "webhook.id",
            "webhook_signature",
            "Transfer_Encoding",
        ] {
            assert!(refuse_header(name, "x").unwrap().contains(name), "{name}");
        }
        for (name, value) in [("a b", "x"), ("", "x"), ("x-a", "a\nb"), ("x-a", "中")] {
            assert!(refuse_header(name, value).is_some(), "{name}: {value}");
        }
        for name in [
            "Cookie",
            "AUTHORIZATION",
            "X-Forwarded-For",
            "x_forwarded_for",
            "X_Real.IP",
            "proxy",
            "forwarded",
            "X-Original-URL",
            "x_rewrite_url",
            "X-HTTP-Method-Override",
            "x-http-method",
            "x-method-override",
            "X-Original-Host",
            "x-host",
        ] {
            assert!(is_guarded_header(name) && !is_own_header(name), "{name}");
        }
        assert!(!is_guarded_header("x-shop") && !is_guarded_header("x-original-id"));
        assert!(!is_guarded_header("x-host-id") && !is_guarded_header("traceparent"));
        for name in ["x-shop", "Authorization", "traceparent", "user-agent", "accept"] {
            assert_eq!(refuse_header(name, "a b\tc"), None, "{name}");
        }
    }
}

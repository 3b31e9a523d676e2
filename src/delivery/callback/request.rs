//! The request of a delivery: its target, payload and headers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::http::uri::PathAndQuery;
use hyper::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use jiff::tz::TimeZone;
use percent_encoding::percent_decode_str;

use super::Delivery;
use super::sign::signatures;
use model::destination::Destination;
use model::fields::{BodyFields, DaemonFields};
use model::topic::{self, Payload, Topic, is_own_header, is_same_header};

/// A request, and its receiver.
#[derive(Debug)]
pub(super) struct AddressedRequest {
    pub receiver: Receiver,
    pub request: Request<Full<Bytes>>,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Receiver {
    /// Scheme, host and port of the URL. Requests with the same origin may share connections. If a topic does not check
    /// certificates, the scheme `https` is replaced by another word, so that its requests use separate connections.
    pub origin: String,
    /// A name or an address, as it is in the URL.
    pub host: String,
    pub port: u16,
    pub is_secure: bool,
}

impl Receiver {
    /// Reads the receiver from a URL. `verifies`: whether certificates are checked. None: the URL has no host or no
    /// valid port, or its scheme is not http or https.
    fn from_uri(uri: &Uri, verifies: bool) -> Option<Receiver> {
        let is_secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?;
        let port = match uri.port_u16() {
            Some(port) => port,
            // The text after the host is not a valid port.
            None if host_header(uri).len() > host.len() + 1 => return None,
            None if is_secure => 443,
            None => 80,
        };
        let scheme = match (is_secure, verifies) {
            (false, _) => "http",
            (true, true) => "https",
            (true, false) => "https-unverified",
        };
        let origin = format!("{scheme}://{host}:{port}");
        Some(Receiver { origin, host: host.to_owned(), port, is_secure })
    }
}

impl AddressedRequest {
    /// Makes the request of a delivery. `now_s`: the present time in Unix seconds.
    pub(super) fn new(
        topic: &Topic,
        delivery: &Delivery,
        is_test: bool,
        zone: &TimeZone,
        now_s: i64,
    ) -> Result<AddressedRequest, String> {
        let form = || {
            let daemon_fields = DaemonFields {
                due_ms: delivery.due_ms,
                added_ms: delivery.stamp_us / 1000,
                failures: delivery.attempt.saturating_sub(1),
            };
            BodyFields::from_body(&delivery.body).with(daemon_fields, zone)
        };
        let url = topic.url_for(delivery.destination.as_ref()).map_err(|e| {
            let field = delivery.destination.as_ref().map_or("path", Destination::field);
            format!("the {field} of the job cannot be used: {e}")
        })?;
        let (uri, body, content_type) = match (&topic.method, topic.payload) {
            (topic::Method::Other(text), _) => return Err(format!("the method {text:?} cannot be used")),
            (topic::Method::Get, _) => (with_query(&url, &form()), None, None),
            (topic::Method::Post, Payload::Form) => {
                (url.into_owned(), Some(form().url_encoded()), Some("application/x-www-form-urlencoded"))
            }
            (topic::Method::Post, Payload::Json) => {
                (url.into_owned(), Some(delivery.body.as_str().to_owned()), Some("application/json"))
            }
        };
        // Errors do not show the URL: it may contain a password, and the body of the job.
        let uri: Uri = uri.parse().map_err(|e| format!("the URL cannot be called: {e}"))?;
        let receiver = Receiver::from_uri(&uri, topic.tls_verify)
            .ok_or("the URL cannot be called: it needs http or https, a host and a valid port")?;
        let mut headers = HeaderMap::with_capacity(20);
        let mut own = |name: &'static str, value: String| {
            // All these values are visible ASCII.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        };
        if let Some(body) = &body {
            own("content-length", body.len().to_string());
        }
        // Two headers have a default. A value of the topic or the job replaces the default.
        let says = |wanted: &str| {
            let is_it = |name: &str| is_same_header(name, wanted);
            delivery.headers.iter().any(|(name, _)| is_it(name))
                || topic.headers.keys().any(|name| is_it(name))
        };
        for (name, value) in [("user-agent", concat!("dq/", env!("CARGO_PKG_VERSION"))), ("accept", "*/*")] {
            if !says(name) {
                own(name, value.to_owned());
            }
        }
        own("host", host_header(&uri));
        let id = webhook_id(delivery);
        let signed = body.as_deref().unwrap_or_default().as_bytes();
        let signatures = signatures(topic.signing_secrets(now_s.saturating_mul(1000)), &id, now_s, signed);
        own("webhook-id", id);
        own("webhook-timestamp", now_s.to_string());
        if let Some(signatures) = signatures {
            own("webhook-signature", signatures);
        }
        own("dq-topic", delivery.key.topic.to_string());
        own("dq-job-id", header_text(delivery.key.id.as_str(), |_| true));
        own("dq-attempt", delivery.attempt.to_string());
        own("dq-due-at", delivery.due_ms.to_string());
        if let Some(url) = &delivery.ack_url {
            own("dq-ack-url", url.clone());
        }
        if is_test {
            own("dq-test", "1".to_owned());
        }
        if let Some(content_type) = content_type {
            own("content-type", content_type.to_owned());
        }
        let of_topic = topic.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        add_headers(&mut headers, of_topic);
        if let Some(who) = authorization(&uri) {
            add_headers(&mut headers, [("authorization", who.as_str())].into_iter());
        }
        // The headers of the job come last, so they replace no header of the topic. They were checked when the job was
        // added, but the topic may have changed since then.
        let of_job = delivery.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        add_headers(&mut headers, of_job.filter(|(name, _)| topic.may_job_set(name)));
        let method = if body.is_some() { Method::POST } else { Method::GET };
        // The connection already leads to the receiver, so the target of the request is only the path and the query of
        // the URL. (If there is only a query, hyper writes the path `/` before it. If both are empty, `as_str` gives
        // "/", but hyper would write nothing. So in this case, the target is replaced by the path `/`.)
        let target = uri.path_and_query().filter(|target| target.as_str() != "/");
        let target = target.cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut request = Request::new(Full::from(body.unwrap_or_default()));
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from(target);
        *request.headers_mut() = headers;
        Ok(AddressedRequest { receiver, request })
    }
}

/// Returns host and port as they are in the URL, without the user.
fn host_header(uri: &Uri) -> String {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    authority.rsplit_once('@').map_or(authority, |(_, host)| host).to_owned()
}

/// Adds the headers of `more`, but leaves out a header if `headers` already has its name. `more` may have several
/// headers with the same name: all of them are added.
fn add_headers<'a>(headers: &mut HeaderMap, more: impl Iterator<Item = (&'a str, &'a str)>) {
    let taken: Vec<HeaderName> = headers.keys().cloned().collect();
    for (name, value) in more.filter(|(name, _)| !is_own_header(name)) {
        // Invalid headers were refused when somebody set them.
        let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
            continue;
        };
        if !taken.iter().any(|taken| is_same_header(taken.as_str(), name.as_str())) {
            headers.append(name, value);
        }
    }
}

/// Returns the `Authorization` value for `user:password@` in a URL, as all HTTP clients send it.
fn authorization(uri: &Uri) -> Option<String> {
    let (who, _) = uri.authority()?.as_str().rsplit_once('@')?;
    let plain: Vec<u8> = percent_decode_str(who).collect();
    let plain = if who.contains(':') { plain } else { [&plain[..], b":"].concat() };
    Some(format!("Basic {}", STANDARD.encode(plain)))
}

/// Returns the receiver's idempotency key. All attempts of a job have the same key. If a job is replaced, the new job
/// has another key. The key contains no dot, because dots separate the parts of the text that is signed.
fn webhook_id(delivery: &Delivery) -> String {
    let part = |text: &str| header_text(text, |b| !matches!(b, b'.' | b':'));
    format!(
        "{}:{}:{:x}",
        part(delivery.key.topic.as_str()),
        part(delivery.key.id.as_str()),
        delivery.stamp_us
    )
}

/// Returns text as a header value. `%`, bytes that are not visible ASCII, and bytes that are not `plain` are
/// percent-encoded.
fn header_text(text: &str, plain: impl Fn(u8) -> bool) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        match b {
            b'!'..=b'~' if b != b'%' && plain(b) => out.push(char::from(b)),
            _ => write!(out, "%{b:02X}").expect("a string takes everything"),
        }
    }
    out
}

/// Returns the URL with the fields in its query. A parameter of the URL is left out if a field has the same name, as in
/// the PHP daemon. The other parameters stay as they are.
fn with_query(url: &str, fields: &BodyFields) -> String {
    let url = url.split('#').next().unwrap_or(url);
    let (place, own) = url.split_once('?').unwrap_or((url, ""));
    let form = fields.url_encoded();
    if form.is_empty() {
        return url.to_owned();
    }
    let is_kept = |parameter: &&str| {
        let name = parameter.split_once('=').map_or(*parameter, |(name, _)| name).replace('+', " ");
        !fields.has(&percent_decode_str(&name).decode_utf8_lossy())
    };
    let kept: Vec<&str> = own.split('&').filter(is_kept).collect();
    match kept.join("&").as_str() {
        "" => format!("{place}?{form}"),
        kept => format!("{place}?{kept}&{form}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::{Body, JobId, JobKey, TopicName};

    fn delivery(topic: &str, id: &str) -> Delivery {
        Delivery {
            key: JobKey { topic: TopicName::new(topic).unwrap(), id: JobId::new(id).unwrap() },
            body: Body::parse("{\"a\":1}").unwrap(),
            attempt: 1,
            due_ms: 0,
            stamp_us: 255,
            headers: Vec::new(),
            destination: None,
            ack_url: None,
        }
    }

    #[test]
    fn a_query_is_put_behind_the_url() {
        let of = |url: &str, body: &str| with_query(url, &BodyFields::from_body(&Body::parse(body).unwrap()));
        assert_eq!(of("http://h/p", "{\"a\":1}"), "http://h/p?a=1");
        assert_eq!(of("http://h/p?x=2#f", "{\"a\":1}"), "http://h/p?x=2&a=1");
        assert_eq!(of("http://h/p", "{}"), "http://h/p");
        assert_eq!(of("http://h/p?a=2&a=3", "{}"), "http://h/p?a=2&a=3");
    }

    #[test]
    fn a_field_replaces_the_parameter_of_its_name() {
        let of = |query: &str, body: &str| {
            with_query(&format!("http://h/?{query}"), &BodyFields::from_body(&Body::parse(body).unwrap()))
        };
        assert_eq!(of("id=0&x=%20a+&&y", r#"{"id":1}"#), "http://h/?x=%20a+&&y&id=1");
        assert_eq!(of("id=0", r#"{"id":1}"#), "http://h/?id=1");
        assert_eq!(
            of("a%20b=1&a+b=2&%E4%B8%AD=3&k", r#"{"a b":7,"中":8,"k":9}"#),
            "http://h/?a%20b=7&%E4%B8%AD=8&k=9"
        );
        assert_eq!(of("ID=0&id2=3&%69d=4&%=5&%ff=6", r#"{"id":1}"#), "http://h/?ID=0&id2=3&%=5&%ff=6&id=1");
        // A field that dq itself adds, such as `notify_time`, also replaces a parameter with the same name.
        let delivery = delivery("t", "1");
        let topic = Topic {
            method: topic::Method::Get,
            ..Topic::new(delivery.key.topic.clone(), "http://h/?notify_time=0&a=0")
        };
        let request = AddressedRequest::new(&topic, &delivery, false, &TimeZone::UTC, 7).unwrap().request;
        assert_eq!(request.uri().to_string().matches("notify_time=").count(), 1, "{}", request.uri());
    }

    #[test]
    fn any_url_gives_a_target_and_errors_do_not_show_the_url() {
        let of = |url: &str, method: topic::Method| {
            let topic = Topic { method, ..Topic::new(TopicName::new("t").unwrap(), url) };
            AddressedRequest::new(&topic, &delivery("t", "1"), false, &TimeZone::UTC, 7)
        };
        for (url, origin, path_and_query) in [
            ("http://h", "http://h:80", "/"),
            ("http://h#f", "http://h:80", "/"),
            ("http://h?x=1", "http://h:80", "/?x=1"),
            ("https://u:p@h:8443/a?x", "https://h:8443", "/a?x"),
            ("HTTP://[::1]:9/", "http://[::1]:9", "/"),
        ] {
            let AddressedRequest { receiver, request } = of(url, topic::Method::Post).unwrap();
            let target = request.uri().to_string();
            assert_eq!((receiver.origin.as_str(), target.as_str()), (origin, path_and_query), "{url}");
        }
        let form = of("http://h", topic::Method::Get).unwrap().request;
        assert!(form.uri().to_string().starts_with("/?a=1&"), "{}", form.uri());
        for url in [format!("http://u:secret@h/{}", "x".repeat(70_000)), "http://u:secret@h:port/".to_owned()]
        {
            let why = of(&url, topic::Method::Post).unwrap_err();
            assert!(why.contains("cannot be called") && !why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn a_path_is_joined_with_the_callback_as_it_is_then() {
        let of = |callback: &str, method: topic::Method, path: &str| {
            let topic = Topic { method, ..Topic::new(TopicName::new("t").unwrap(), callback) };
            let destination = Some(Destination::Path(path.to_owned()));
            let delivery = Delivery { destination, ..delivery("t", "1") };
            let parts = AddressedRequest::new(&topic, &delivery, false, &TimeZone::UTC, 7)?;
            let host = parts.request.headers()["host"].to_str().unwrap().to_owned();
            Ok::<_, String>(format!("{} {host} {}", parts.receiver.origin, parts.request.uri()))
        };
        for (callback, path, sent) in [
            ("http://u:p@h/hooks/?k=1", "/7?x=2", "http://h:80 h /hooks/7?k=1&x=2"),
            ("https://other:8443", "/7?x=2", "https://other:8443 other:8443 /7?x=2"),
            ("https://other:8443", "?x=2", "https://other:8443 other:8443 /?x=2"),
        ] {
            assert_eq!(of(callback, topic::Method::Post, path).as_deref(), Ok(sent));
        }
        // A field of the body replaces a parameter with the same name, in the URL and in the path.
        let get = of("http://h/hooks?k=1", topic::Method::Get, "/7?a=2&x=3").unwrap();
        assert!(get.starts_with("http://h:80 h /hooks/7?k=1&x=3&a=1&notify_time="), "{get}");
        for path in ["/../x", "//evil", "/a%2f..", "@evil", "/a b"] {
            let why = of("http://h/hooks", topic::Method::Post, path).unwrap_err();
            assert!(why.contains("the path of the job cannot be used"), "{why}");
        }
    }

    #[test]
    fn any_id_makes_a_header() {
        assert_eq!(header_text("a b%中\n", |_| true), "a%20b%25%E4%B8%AD%0A");
    }

    #[test]
    fn a_webhook_id_has_no_dot_and_is_of_one_job_alone() {
        assert_eq!(webhook_id(&delivery("a.b", "1.763:x")), "a%2Eb:1%2E763%3Ax:ff");
        assert_ne!(webhook_id(&delivery("a", "b")), webhook_id(&delivery("a.b", "b")));
    }

    #[test]
    fn dqs_own_headers_win_and_a_topics_win_over_the_jobs() {
        let mut topic = Topic::new(TopicName::new("t").unwrap(), "http://u:p%40@h/");
        topic.headers = [
            ("X-A", "topic"),
            ("x-b", "topic"),
            ("Dq-Topic", "topic"),
            ("Content-Length", "7"),
            ("bad\n", "x"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let mut delivery = delivery("t", "1");
        delivery.headers =
            [("x-a", "job"), ("webhook-id", "job"), ("traceparent", "00-1-2-01"), ("cookie", "job")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        delivery.ack_url = Some("https://h/ack".to_owned());
        let parts = AddressedRequest::new(&topic, &delivery, false, &TimeZone::UTC, 7).unwrap();
        let all: Vec<(&str, &str)> = parts
            .request
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        let expected = [
            ("content-length", "7"),
            ("user-agent", concat!("dq/", env!("CARGO_PKG_VERSION"))),
            ("accept", "*/*"),
            ("host", "h"),
            ("webhook-id", "t:1:ff"),
            ("webhook-timestamp", "7"),
            ("dq-topic", "t"),
            ("dq-job-id", "1"),
            ("dq-attempt", "1"),
            ("dq-due-at", "0"),
            ("dq-ack-url", "https://h/ack"),
            ("content-type", "application/json"),
            ("x-a", "topic"),
            ("x-b", "topic"),
            ("authorization", "Basic dTpwQA=="),
            ("traceparent", "00-1-2-01"),
        ];
        assert_eq!(all, expected);
        // Some receivers treat `_` as `-`.
        delivery.headers.push(("x_a".to_owned(), "job".to_owned()));
        delivery.headers.push(("X_Forwarded_For".to_owned(), "job".to_owned()));
        let request = AddressedRequest::new(&topic, &delivery, false, &TimeZone::UTC, 7).unwrap().request;
        assert_eq!(request.headers().len(), expected.len());
        topic.job_headers = vec!["Cookie".to_owned(), "authorization".to_owned()];
        delivery.headers.push(("authorization".to_owned(), "job".to_owned()));
        let request = AddressedRequest::new(&topic, &delivery, false, &TimeZone::UTC, 7).unwrap().request;
        assert_eq!(request.headers()["cookie"], "job");
        assert_eq!(request.headers()["authorization"], "Basic dTpwQA==");
    }
}

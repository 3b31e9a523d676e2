//! What a receiver is sent, byte by byte, and how connections are kept, secured and given up. Over real sockets.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::certificates::{certificates, self_signed};
use crate::support::raw::{Line, Raw, read_request};
use delivery::callback::{Call, Caller, Delivery, Verdict};
use jiff::tz::TimeZone;
use model::job::{Body, JobId, JobKey, TopicName};
use model::settings::{CallbackSettings, GuardLevel, TlsClientSettings};
use model::topic::{Failure, Method, Payload, Success, Topic};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;

/// 2026-11-20 23:58:21 UTC, and the second before it.
const DUE_MS: i64 = 1_795_219_101_000;
const ADDED_US: i64 = 1_795_219_100_999_000;

fn caller_with(tls: TlsClientSettings) -> Caller {
    let settings = CallbackSettings { guard: GuardLevel::Metadata, allow: Vec::new(), tls };
    Caller::new(4, &settings, TimeZone::UTC).unwrap()
}

fn caller() -> Caller {
    caller_with(TlsClientSettings::default())
}

fn topic(url: &str) -> Topic {
    Topic { timeout: Duration::from_secs(10), ..Topic::new(TopicName::new("t").unwrap(), url) }
}

fn delivery(body: &str) -> Delivery {
    Delivery {
        key: JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("nest-2").unwrap() },
        body: Body::parse(body).unwrap(),
        attempt: 1,
        due_ms: DUE_MS,
        stamp_us: ADDED_US,
        headers: Vec::new(),
        destination: None,
        ack_url: None,
    }
}

/// Starts a receiver that answers with success, and keeps connections.
fn good() -> Raw {
    Raw::start(|mut line: Line| {
        while line.request().is_some() {
            line.answer("ok");
        }
    })
}

fn accepted(caller: &Caller, topic: &Topic, delivery: &Delivery) {
    let (verdict, attempt) = caller.call(topic, delivery);
    assert_eq!(verdict, Verdict::Accepted, "{attempt:?}");
}

/// Returns a request with its timestamp replaced by `@`.
fn masked(request: &[u8]) -> String {
    let text = String::from_utf8(request.to_vec()).unwrap();
    let (before, after) = text.split_once("webhook-timestamp: ").unwrap();
    let (time, after) = after.split_once("\r\n").unwrap();
    assert!(time.parse::<i64>().unwrap() > 1_700_000_000);
    format!("{before}webhook-timestamp: @\r\n{after}")
}

#[test]
fn requests_are_what_is_documented_byte_by_byte() {
    // A body that clients of the PHP daemon send, and the calls that the PHP daemon makes for it, as they were
    // recorded. Only nested values differ: here they are JSON texts, and the PHP daemon sent the word Array for them.
    const NEST: &str =
        r#"{"id":"nest-2","a":1,"zh":"中 文&=+","t":true,"f":false,"nul":null,"fl":1.5,"n":{"x":[1,2]}}"#;
    const FORM: &str =
        "id=nest-2&a=1&zh=%E4%B8%AD%20%E6%96%87%26%3D%2B&t=1&f=&nul=&fl=1.5&n=%7B%22x%22%3A%5B1%2C2%5D%7D";
    const TIMES: &str = "notify_time=2026-11-20%2023%3A58%3A21&dq_set_time=2026-11-20%2023%3A58%3A20";
    const URL_ENCODED: &str = "application/x-www-form-urlencoded";
    let form = |fields: &str| [fields, TIMES].join(if fields.is_empty() { "" } else { "&" });
    let sink = good();
    let caller = caller();
    #[allow(clippy::type_complexity)]
    let table: Vec<(Method, Payload, &str, u32, String, Option<(&str, String)>)> = vec![
        (Method::Post, Payload::Json, NEST, 1, "/hook".into(), Some(("application/json", NEST.into()))),
        // The body is sent as it came, with its spaces, order, numbers and escapes.
        (
            Method::Post,
            Payload::Json,
            "{ \"b\":1.00, \"a\" : \"\\u4e2d\" }",
            3,
            "/hook".into(),
            Some(("application/json", "{ \"b\":1.00, \"a\" : \"\\u4e2d\" }".into())),
        ),
        (Method::Post, Payload::Json, "\"text\"", 1, "/hook".into(), Some(("application/json", "\"text\"".into()))),
        (Method::Post, Payload::Form, NEST, 1, "/hook".into(), Some((URL_ENCODED, form(FORM)))),
        (Method::Get, Payload::Form, NEST, 1, format!("/hook?{}", form(FORM)), None),
        // After failed attempts, a form has their number.
        (
            Method::Post,
            Payload::Form,
            "{\"a\":1}",
            3,
            "/hook".into(),
            Some((URL_ENCODED, format!("{}&exp_notify_nums=2", form("a=1")))),
        ),
        (
            Method::Get,
            Payload::Form,
            "{\"a\":1,\"exp_notify_nums\":9,\"notify_time\":\"x\"}",
            2,
            "/hook?a=1&exp_notify_nums=1&notify_time=2026-11-20%2023%3A58%3A21&dq_set_time=2026-11-20%2023%3A58%3A20"
                .into(),
            None,
        ),
        (Method::Post, Payload::Form, "\"a b\"", 1, "/hook".into(), Some((URL_ENCODED, form("body=a%20b")))),
        (Method::Post, Payload::Form, "{}", 1, "/hook".into(), Some((URL_ENCODED, form("")))),
        (Method::Get, Payload::Form, "[7,\"x\"]", 1, format!("/hook?{}", form("0=7&1=x")), None),
    ];
    for (n, (method, payload, body, attempt, target, content)) in table.into_iter().enumerate() {
        let topic = Topic { method, payload, ..topic(&sink.url()) };
        accepted(&caller, &topic, &Delivery { attempt, ..delivery(body) });
        let (content_type, length, body) = match &content {
            Some((kind, body)) => (
                format!("content-type: {kind}\r\n"),
                format!("content-length: {}\r\n", body.len()),
                body.as_str(),
            ),
            None => (String::new(), String::new(), ""),
        };
        let name = if content.is_some() { "POST" } else { "GET" };
        let expected = format!(
            "{name} {target} HTTP/1.1\r\n{length}user-agent: dq/{}\r\naccept: */*\r\nhost: {}\r\n\
             webhook-id: t:nest-2:{ADDED_US:x}\r\nwebhook-timestamp: @\r\ndq-topic: t\r\ndq-job-id: nest-2\r\n\
             dq-attempt: {attempt}\r\ndq-due-at: {DUE_MS}\r\n{content_type}\r\n{body}",
            env!("CARGO_PKG_VERSION"),
            sink.address,
        );
        assert_eq!(masked(&sink.requests()[n]), expected);
    }
    assert_eq!(sink.connections(), 1, "connections are kept");
}

#[test]
fn headers_of_topic_and_job_go_along_and_a_test_says_so() {
    let sink = good();
    let mut topic = topic(&sink.url());
    topic.headers =
        [("x-shop".to_owned(), "7".to_owned()), ("user-agent".to_owned(), "shop".to_owned())].into();
    let mut delivery = delivery("1");
    delivery.headers = vec![("traceparent".to_owned(), "00-0af7-b7ad-01".to_owned())];
    delivery.ack_url = Some("https://dq.example/v1/ack/x".to_owned());
    let verdict = caller().test(&topic, &delivery).verdict;
    assert_eq!(verdict, Verdict::Accepted);
    let request = masked(&sink.requests()[0]);
    for line in [
        "x-shop: 7",
        "user-agent: shop",
        "traceparent: 00-0af7-b7ad-01",
        "dq-ack-url: https://dq.example/v1/ack/x",
        "dq-test: 1",
    ] {
        assert_eq!(request.matches(&format!("\r\n{line}\r\n")).count(), 1, "{line}: {request}");
    }
}

/// A Python program. It reads requests as JSON, verifies them, and prints one line for each.
const VERIFIER: &str = r#"
import base64, json, sys
from standardwebhooks import Webhook, WebhookVerificationError
for line in sys.stdin:
    call = json.loads(line)
    secret = call["secret"] if call["secret"].startswith("whsec_") else call["secret"].encode()
    try:
        Webhook(secret).verify(base64.b64decode(call["body"]), call["headers"], json_parse=False)
        print("good")
    except WebhookVerificationError as e:
        print(f"bad: {e}")
"#;

#[test]
fn signatures_are_verified_by_a_library_that_does_not_know_dq() {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin/python");
    assert!(python.exists(), "{} is not there: make tools", python.display());
    let sink = good();
    let secrets = ["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "an older secret, as text"].map(str::to_owned);
    let body = "{\"zh\": \"中文\", \"n\":1.0}";
    for (method, payload) in
        [(Method::Post, Payload::Json), (Method::Post, Payload::Form), (Method::Get, Payload::Form)]
    {
        let topic = Topic { method, payload, secrets: secrets.to_vec(), ..topic(&sink.url()) };
        accepted(&caller(), &topic, &delivery(body));
    }
    let mut child = Command::new(python)
        .args(["-c", VERIFIER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut expected = Vec::new();
    for request in sink.requests() {
        let text = String::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let headers: serde_json::Map<_, _> = head
            .lines()
            .skip(1)
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect();
        assert_eq!(headers["webhook-signature"].as_str().unwrap().matches("v1,").count(), 2);
        let wrong = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        for (secret, body, is_good) in [
            (&secrets[0][..], body.to_owned(), true),
            (&secrets[1], body.to_owned(), true),
            (wrong, body.to_owned(), false),
            (&secrets[0], format!("{body} "), false),
        ] {
            let line = json!({"secret": secret, "headers": headers, "body": STANDARD.encode(body)});
            writeln!(stdin, "{line}").unwrap();
            expected.push(is_good);
        }
    }
    drop(stdin);
    let mut found = String::new();
    child.stdout.take().unwrap().read_to_string(&mut found).unwrap();
    assert!(child.wait().unwrap().success());
    let good: Vec<bool> = found.lines().map(|line| line == "good").collect();
    assert_eq!((good, expected.len()), (expected, 12), "{found}");
}

#[test]
fn a_connection_closed_while_idle_is_not_used_again() {
    // The receiver closes the connection after each answer, and does not announce this. It closes the last connection
    // while dq does not watch it.
    let sink = Raw::start(|mut line: Line| {
        if line.request().is_some() {
            line.answer("ok");
        }
        line.close();
    });
    let (caller, topic) = (caller(), topic(&sink.url()));
    for n in 1..=5 {
        accepted(&caller, &topic, &delivery("1"));
        assert_eq!(sink.requests().len(), n, "each request once");
    }
}

#[test]
fn a_request_on_a_closed_connection_is_resent_as_one_attempt() {
    for resets in [false, true] {
        // The receiver takes the second request of a connection, and does not answer it.
        let sink = Raw::start(move |mut line: Line| {
            line.request();
            line.answer("first");
            if line.request().is_some() {
                if resets { line.reset() } else { line.close() }
            }
        });
        let (caller, topic) = (caller(), topic(&sink.url()));
        accepted(&caller, &topic, &delivery("1"));
        let (verdict, attempt) = caller.call(&topic, &delivery("2"));
        assert_eq!(verdict, Verdict::Accepted);
        assert_eq!((attempt.number, attempt.status), (1, Some(200)));
        let bodies: Vec<u8> = sink.requests().iter().map(|r| *r.last().unwrap()).collect();
        assert_eq!((bodies.as_slice(), sink.connections()), (&b"122"[..], 2), "resets: {resets}");
    }
}

#[test]
fn a_second_try_avoids_other_connections_of_the_same_age() {
    // Two connections exist at the same time, and each of them ends with its second request.
    let both = Arc::new(std::sync::Barrier::new(2));
    let sink = Raw::start(move |mut line: Line| {
        line.request();
        if line.number <= 2 {
            both.wait();
            line.answer("first");
            line.request();
            line.close();
        } else {
            line.answer("anew");
        }
    });
    let (caller, topic) = (caller(), topic(&sink.url()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| accepted(&caller, &topic, &delivery("1")));
        }
    });
    let (verdict, attempt) = caller.call(&topic, &delivery("2"));
    assert_eq!((verdict, attempt.answer.as_str()), (Verdict::Accepted, "anew"));
    assert_eq!(sink.connections(), 3);
}

#[test]
fn what_may_have_been_answered_is_not_sent_again() {
    // A new connection that ends without an answer.
    let sink = Raw::start(|mut line: Line| {
        line.request();
        line.close();
    });
    let (verdict, _) = caller().call(&topic(&sink.url()), &delivery("1"));
    assert!(matches!(verdict, Verdict::Failed { kind: Failure::Broken, .. }), "{verdict:?}");
    assert_eq!(sink.requests().len(), 1);
    // A kept connection that ends in the middle of an answer.
    let sink = Raw::start(|mut line: Line| {
        line.request();
        line.answer("first");
        line.request();
        line.say("HTTP/1.1 200 OK\r\ncont");
        line.close();
    });
    let (caller, topic) = (caller(), topic(&sink.url()));
    accepted(&caller, &topic, &delivery("1"));
    let (verdict, _) = caller.call(&topic, &delivery("2"));
    assert!(matches!(verdict, Verdict::Failed { kind: Failure::Broken, .. }), "{verdict:?}");
    assert_eq!(sink.requests().len(), 2);
    // A kept connection on which no answer comes in time.
    let sink = Raw::start(|mut line: Line| {
        line.request();
        line.answer("first");
        line.request();
        line.hang();
    });
    let topic = Topic { callback: sink.url(), timeout: Duration::from_millis(300), ..topic };
    accepted(&caller, &topic, &delivery("1"));
    let (verdict, _) = caller.call(&topic, &delivery("2"));
    assert!(matches!(verdict, Verdict::Failed { kind: Failure::Timeout, .. }), "{verdict:?}");
    assert_eq!(sink.requests().len(), 2);
}

#[test]
fn the_second_try_has_only_what_is_left_of_the_time() {
    let sink = Raw::start(|mut line: Line| {
        line.request();
        if line.number == 1 {
            line.answer("first");
            line.request();
            std::thread::sleep(Duration::from_millis(1500));
            line.close();
        } else {
            line.hang();
        }
    });
    let caller = caller();
    let topic = Topic { timeout: Duration::from_secs(2), ..topic(&sink.url()) };
    accepted(&caller, &topic, &delivery("1"));
    let begun = Instant::now();
    let (verdict, _) = caller.call(&topic, &delivery("2"));
    assert!(matches!(verdict, Verdict::Failed { kind: Failure::Timeout, .. }), "{verdict:?}");
    let took = begun.elapsed();
    // If the second try had the full timeout again, the call would take 3.5 s.
    assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(3400), "{took:?}");
    assert_eq!(sink.requests().len(), 3);
}

#[test]
fn a_call_that_waited_longer_than_its_timeout_is_not_sent() {
    let sink = good();
    let (sender, ended) = std::sync::mpsc::channel();
    let topic = Arc::new(topic(&sink.url()));
    let caller = caller();
    // The second call has waited for its whole timeout, as if its process had been stopped before the call could begin.
    for waited in [Duration::from_secs(1), topic.timeout] {
        let sender = sender.clone();
        caller.begin(vec![Call {
            topic: Arc::clone(&topic),
            delivery: delivery("{}"),
            is_test: false,
            began: Instant::now().checked_sub(waited).unwrap(),
            on_completion: Box::new(move |call| sender.send(call.verdict).unwrap()),
        }]);
    }
    let mut verdicts: Vec<Verdict> = (0..2).map(|_| ended.recv_timeout(topic.timeout * 3).unwrap()).collect();
    verdicts.sort_by_key(|verdict| *verdict != Verdict::Accepted);
    assert_eq!(verdicts[0], Verdict::Accepted);
    assert!(matches!(verdicts[1], Verdict::Failed { .. }), "{verdicts:?}");
    assert_eq!(sink.requests().len(), 1);
}

#[test]
fn a_body_over_the_limit_fails_only_for_expressions() {
    let sink = Raw::start(|mut line: Line| {
        while let Some(request) = line.request() {
            let length: usize =
                String::from_utf8_lossy(&request).rsplit("\r\n\r\n").next().unwrap().parse().unwrap();
            line.answer(&format!("\"{}\"", "x".repeat(length - 2)));
        }
    });
    let caller = caller();
    let by = |success: &str, length: &str| {
        let topic = Topic { success: Success::from(success.to_owned()), ..topic(&sink.url()) };
        let (verdict, attempt) = caller.call(&topic, &delivery(length));
        assert_eq!(attempt.answer.len(), 200);
        verdict
    };
    for length in ["65536", "65537", "1000000"] {
        assert_eq!(by("status", length), Verdict::Accepted);
        assert_eq!(by("non_empty", length), Verdict::Accepted);
    }
    // Expressions. For the longer answer, the expression would be true for the part that was read, but the call fails.
    assert_eq!(by("{res} > 'w'", "65536"), Verdict::Accepted);
    assert!(matches!(by("{status} == 200", "65537"), Verdict::Failed { kind: Failure::Answer, .. }));
}

/// Starts a receiver with TLS that may ask for a certificate. It answers with the number of certificates that it got.
fn secure(dir: &Path, wants: bool) -> Raw {
    secure_as(dir, "server", wants)
}

/// Does the same as `secure`, with another certificate.
fn secure_as(dir: &Path, name: &str, wants: bool) -> Raw {
    let own = |end: &str| format!("{name}.{end}");
    let pem = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(&pem(&own("pem"))).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(&pem(&own("key"))).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if wants {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem("ca.pem")).unwrap()).unwrap();
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let config = Arc::new(builder.with_single_cert(chain, key).unwrap());
    Raw::start(move |line: Line| {
        let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, line.stream);
        while read_request(&mut stream).is_some() {
            let shown = stream.conn.peer_certificates().map_or(0, <[_]>::len);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{shown}");
        }
    })
}

#[test]
fn https_accepts_a_private_ca_and_sends_a_client_certificate() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let pem = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let own = || Some((pem("client.pem"), pem("client.key")));
    let call = |tls: TlsClientSettings, sink: &Raw| {
        let caller = caller_with(tls);
        let topic = topic(&sink.url().replace("http:", "https:"));
        let first = caller.call(&topic, &delivery("1"));
        (0..2).for_each(|_| assert_eq!(caller.call(&topic, &delivery("1")).0, first.0));
        (first.0, first.1.answer)
    };
    let refused = |verdict: &Verdict, hint: &str| match verdict {
        Verdict::Failed { kind: Failure::Connect, reason, .. } => assert!(reason.contains(hint), "{reason}"),
        other => panic!("{other:?}"),
    };
    let plain = secure(dir.path(), false);
    let trusts = |ca: &str| TlsClientSettings { ca: Some(pem(ca)), own: None };
    assert_eq!(call(trusts("ca.pem"), &plain), (Verdict::Accepted, "0".to_owned()));
    assert_eq!(plain.connections(), 1, "connections within TLS are kept as well");
    refused(&call(trusts("other.pem"), &plain).0, "certificate");
    refused(&call(TlsClientSettings::default(), &plain).0, "TLS: ");
    let mutual = secure(dir.path(), true);
    assert_eq!(
        call(TlsClientSettings { own: own(), ..trusts("ca.pem") }, &mutual),
        (Verdict::Accepted, "1".to_owned())
    );
    refused(&call(trusts("ca.pem"), &mutual).0, "CertificateRequired");
}

/// Calls a receiver with TLS, and returns the verdict.
fn call_https(caller: &Caller, sink: &Raw, tls_verify: bool) -> Verdict {
    let topic = Topic { tls_verify, ..topic(&sink.url().replace("http:", "https:")) };
    caller.call(&topic, &delivery("1")).0
}

#[track_caller]
fn assert_refused(verdict: &Verdict, hint: &str) {
    match verdict {
        Verdict::Failed { kind: Failure::Connect, reason, .. } => assert!(reason.contains(hint), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_named_self_signed_certificate_is_accepted_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    self_signed(dir.path());
    let pem = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let trusting = |names: &[&str]| {
        let ca: String = names.iter().map(|name| pem(name)).collect();
        caller_with(TlsClientSettings { ca: Some(ca), own: None })
    };
    let all = trusting(&["ca.pem", "self.pem", "elsewhere.pem", "expired.pem"]);
    let [own, elsewhere, expired] =
        ["self", "elsewhere", "expired"].map(|name| secure_as(dir.path(), name, false));
    assert_eq!(call_https(&all, &own, true), Verdict::Accepted);
    assert_eq!(call_https(&all, &secure(dir.path(), false), true), Verdict::Accepted);
    assert_refused(&call_https(&all, &elsewhere, true), "not valid for name");
    assert_refused(&call_https(&all, &expired, true), "expired");
    assert_refused(&call_https(&trusting(&["ca.pem", "elsewhere.pem"]), &own, true), "certificate");
}

#[test]
fn a_topic_may_accept_any_certificate_on_its_own_connections() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    self_signed(dir.path());
    let caller = caller_with(TlsClientSettings::default());
    for name in ["server", "self", "elsewhere", "expired"] {
        let sink = secure_as(dir.path(), name, false);
        assert_eq!(call_https(&caller, &sink, false), Verdict::Accepted, "{name}");
        // A topic that checks certificates does not use a kept connection of a topic that does not check them.
        assert_refused(&call_https(&caller, &sink, true), "TLS: ");
        assert_eq!(call_https(&caller, &sink, false), Verdict::Accepted, "{name}");
        assert_eq!(sink.connections(), 2, "{name}: one is kept, and one was refused");
    }
    // dq still presents its own certificate.
    let pem = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let own = Some((pem("client.pem"), pem("client.key")));
    let caller = caller_with(TlsClientSettings { ca: None, own });
    assert_eq!(call_https(&caller, &secure(dir.path(), true), false), Verdict::Accepted);
}

#[test]
fn as_many_connections_are_kept_as_calls_run() {
    let sink = good();
    let (caller, topic) = (Arc::new(caller()), Arc::new(topic(&sink.url())));
    let problems = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..5 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (verdict, attempt) = caller.call(&topic, &delivery("1"));
                    if verdict != Verdict::Accepted {
                        problems.lock().unwrap().push(attempt);
                    }
                });
            }
        });
    }
    assert_eq!(*problems.lock().unwrap(), []);
    assert!(sink.connections() <= 4, "{}", sink.connections());
}

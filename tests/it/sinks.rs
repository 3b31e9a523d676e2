//! A receiver fails in every possible way. dq must do what docs/CALLBACKS.md says about each of these ways.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::certificates::certificates;
use crate::support::raw::{Line, Raw};
use delivery::callback::{Caller, Delivery, Verdict};
use jiff::tz::TimeZone;
use model::job::{Body, JobId, JobKey, TopicName};
use model::settings::{CallbackSettings, GuardLevel, TlsClientSettings};
use model::topic::{Success, Topic};
use nix::sys::socket::{Backlog, listen};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The time limits of every call.
const TIMEOUT: Duration = Duration::from_millis(1500);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How much longer a call may take on a busy machine.
const SLACK: Duration = Duration::from_millis(3000);

/// How long a call takes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Takes {
    /// The call ends as soon as the receiver has done its part.
    Little,
    /// The call ends when no connection is made in time.
    ConnectTimeout,
    /// The call ends when its time limit is over.
    Timeout,
}

use Takes::{ConnectTimeout, Little, Timeout};

/// The receiver's behaviour; the outcome and the duration of a call that is judged by status; the same for a call that
/// is judged by an expression; the script of the receiver.
type Row = (&'static str, (&'static str, Takes), (&'static str, Takes), fn(Line));

const GOOD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"ok\":true}";

/// Calls `then` after a request has come.
fn after(mut line: Line, then: impl FnOnce(Line)) {
    if line.request().is_some() {
        then(line);
    }
}

/// Sends `text` after a request, and then hangs.
fn says(line: Line, text: &str) {
    after(line, |mut line| {
        line.say(text);
        line.hang();
    });
}

const ROWS: &[Row] = &[
    ("resets the connection", ("`broken`", Little), ("`broken`", Little), |line| after(line, Line::reset)),
    ("closes without an answer", ("`broken`", Little), ("`broken`", Little), |line| after(line, Line::close)),
    ("hangs before the head", ("`timeout`", Timeout), ("`timeout`", Timeout), |line| says(line, "")),
    ("hangs within the head", ("`timeout`", Timeout), ("`timeout`", Timeout), |line| {
        says(line, "HTTP/1.1 200 OK\r\ncontent-le")
    }),
    ("hangs within the body", ("accepted", Timeout), ("`timeout`", Timeout), |line| {
        says(line, "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"ok\":true}")
    }),
    ("closes within the body", ("accepted", Little), ("`broken`", Little), |line| {
        after(line, |mut line| {
            line.say("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"ok\":true}");
            line.close();
        })
    }),
    ("sends a body without end", ("accepted", Little), ("`answer`", Little), |line| {
        after(line, |mut line| {
            line.say("HTTP/1.1 200 OK\r\n\r\n");
            line.go_on(&"x".repeat(4096), Duration::ZERO);
        })
    }),
    ("sends a body without end, slowly", ("accepted", Timeout), ("`timeout`", Timeout), |line| {
        after(line, |mut line| {
            line.say("HTTP/1.1 200 OK\r\n\r\n");
            line.go_on("x", Duration::from_millis(10));
        })
    }),
    ("sends more bytes than its `Content-Length` says", ("accepted", Little), ("accepted", Little), |line| {
        says(line, &format!("{GOOD}HTTP/1.1 200 OK\r\n"))
    }),
    ("answers 500", ("`500`", Little), ("`500`", Little), |line| {
        says(line, "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
    }),
    ("answers 301 to a metadata address", ("`301`", Little), ("`301`", Little), |line| {
        says(
            line,
            "HTTP/1.1 301 Away\r\nlocation: http://169.254.169.254/latest\r\ncontent-length: 0\r\n\r\n",
        )
    }),
    ("answers 301 to itself", ("`301`", Little), ("`301`", Little), |mut line| {
        while line.request().is_some() {
            line.say("HTTP/1.1 301 Here\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n");
        }
    }),
    ("answers garbage", ("`broken`", Little), ("`broken`", Little), |line| {
        says(line, "SSH-2.0-OpenSSH_9.2\r\n\r\n")
    }),
    ("sends a head that is too long", ("`broken`", Little), ("`broken`", Little), |line| {
        after(line, |mut line| {
            line.say("HTTP/1.1 200 OK\r\n");
            line.go_on(&format!("x-a: {}\r\n", "x".repeat(4096)), Duration::ZERO);
        })
    }),
    ("sends 100 and 103 before its answer", ("accepted", Little), ("accepted", Little), |line| {
        let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
        says(line, &format!("{early}{GOOD}"))
    }),
    ("sends 100 without end", ("`timeout`", Timeout), ("`timeout`", Timeout), |line| {
        after(line, |mut line| line.go_on("HTTP/1.1 100 Continue\r\n\r\n", Duration::from_millis(1)))
    }),
    ("sends 100 without end, as fast as it can", ("`broken`", Little), ("`broken`", Little), |line| {
        after(line, |mut line| line.go_on(&"HTTP/1.1 100 Continue\r\n\r\n".repeat(100), Duration::ZERO))
    }),
    ("answers 101", ("`101`", Little), ("`101`", Little), |line| {
        says(line, "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")
    }),
    ("answers 204 with a body", ("accepted", Little), ("`answer`", Little), |line| {
        says(line, "HTTP/1.1 204 No Content\r\ncontent-length: 11\r\n\r\n{\"ok\":true}")
    }),
    ("sends a chunked body with invalid chunks", ("accepted", Little), ("`broken`", Little), |line| {
        says(line, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{\"ok\":true}\r\n0\r\n\r\n")
    }),
    ("answers 413 before the request is read", ("`413`", Little), ("`413`", Little), |mut line| {
        line.say("HTTP/1.1 413 Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        line.close();
    }),
    ("answers 200 before the request is read", ("accepted", Little), ("accepted", Little), |mut line| {
        line.say(GOOD);
        line.close();
    }),
    (
        "hangs in the TLS handshake",
        ("`connect`", ConnectTimeout),
        ("`connect`", ConnectTimeout),
        |mut line| {
            // Sends the head of a TLS record, and then the record byte by byte. The record never becomes complete.
            line.say("\u{16}\u{3}\u{3}\u{40}\u{0}");
            line.go_on("\u{2}", Duration::from_millis(10));
        },
    ),
    ("speaks no TLS", ("`connect`", Little), ("`connect`", Little), |mut line| {
        line.say(GOOD);
        line.hang();
    }),
    ("answers 410", ("dead letter", Little), ("dead letter", Little), |line| {
        says(line, "HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n")
    }),
    ("answers 500 with dq-retry: no", ("dead letter", Little), ("dead letter", Little), |line| {
        says(line, "HTTP/1.1 500 No\r\nDQ-Retry: No\r\ncontent-length: 0\r\n\r\n")
    }),
];

fn call(url: &str, success: &str, body: &str) -> (Verdict, Duration) {
    let settings = CallbackSettings {
        guard: GuardLevel::Metadata,
        allow: Vec::new(),
        tls: TlsClientSettings::default(),
    };
    let name = TopicName::new("t").unwrap();
    let topic = Topic {
        timeout: TIMEOUT,
        connect_timeout: CONNECT_TIMEOUT,
        success: Success::from(success.to_owned()),
        ..Topic::new(name.clone(), url)
    };
    let delivery = Delivery {
        key: JobKey { topic: name, id: JobId::new("1").unwrap() },
        body: Body::parse(body).unwrap(),
        attempt: 1,
        due_ms: 0,
        stamp_us: 0,
        headers: Vec::new(),
        destination: None,
        ack_url: None,
    };
    let caller = Caller::new(1, &settings, TimeZone::UTC).unwrap();
    let begun = Instant::now();
    let (verdict, attempt) = caller.call(&topic, &delivery);
    let took = begun.elapsed();
    println!("{success}: {} ms, {attempt:?}", took.as_millis());
    (verdict, took)
}

/// Returns the verdict in the words of the document.
fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accepted => "accepted".to_owned(),
        Verdict::Failed { kind, .. } => format!("`{kind}`"),
        Verdict::Refused { .. } => "dead letter".to_owned(),
        Verdict::Again { .. } => "again".to_owned(),
        Verdict::Later => "later".to_owned(),
    }
}

fn check(name: &str, url: &str, body: &str, by_status: (&str, Takes), by_expression: (&str, Takes)) {
    let document = include_str!("../../docs/CALLBACKS.md");
    let line = format!("\n| {name} | {} | {} |\n", by_status.0, by_expression.0);
    assert!(document.contains(&line), "docs/CALLBACKS.md says otherwise than{line}");
    for (success, (expected, takes)) in [("status", by_status), ("{res.ok} === true", by_expression)] {
        let (verdict, took) = call(url, success, body);
        assert_eq!(word(&verdict), expected, "{name}, by {success}: {verdict:?}");
        let (least, most) = match takes {
            Little => (Duration::ZERO, CONNECT_TIMEOUT),
            ConnectTimeout => (CONNECT_TIMEOUT, CONNECT_TIMEOUT),
            Timeout => (TIMEOUT, TIMEOUT),
        };
        // The kernel gets times in whole milliseconds, so the call may end a little earlier.
        let least = least.saturating_sub(Duration::from_millis(2));
        assert!(took >= least && took < most + SLACK, "{name}, by {success}: {took:?}");
    }
}

#[test]
fn a_receiver_that_fails_in_any_way_leads_to_what_is_documented() {
    std::thread::scope(|scope| {
        for (name, by_status, by_expression, script) in ROWS {
            scope.spawn(move || {
                let sink = Raw::start(script);
                let secure = name.contains("TLS");
                let url = if secure { sink.url().replace("http:", "https:") } else { sink.url() };
                // The body is larger than the buffers of the sockets, so that not all of it can be sent.
                let large = name.contains("before the request is read");
                let body = if large { format!("\"{}\"", "x".repeat(8 << 20)) } else { "1".to_owned() };
                check(name, &url, &body, *by_status, *by_expression);
                assert_eq!(sink.connections(), 2, "{name}: one of each call");
                assert!(sink.requests().len() <= 2, "{name}: one of each call");
            });
        }
    });
}

#[test]
fn an_unreachable_receiver_has_the_documented_effects() {
    let refusing = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    check(
        "refuses connections",
        &format!("http://{refusing}/"),
        "1",
        ("`connect`", Little),
        ("`connect`", Little),
    );
    // The backlog of the socket is full.
    let full = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listen(&full, Backlog::new(0).unwrap()).unwrap();
    let address: SocketAddr = full.local_addr().unwrap();
    let waiting: Vec<_> =
        (0..4).map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(100))).collect();
    if waiting.iter().all(Result::is_ok) {
        eprintln!("this kernel has no end of the row: not tested");
        return;
    }
    let takes = ConnectTimeout;
    check(
        "does not answer connection attempts",
        &format!("http://{address}/"),
        "1",
        ("`connect`", takes),
        ("`connect`", takes),
    );
}

#[test]
fn a_certificate_that_nobody_trusts_leads_to_what_is_documented() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let pem = |name: &str| std::fs::read(Path::new(dir.path()).join(name)).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(&pem("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(&pem("server.key")).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
    let config = Arc::new(config);
    let sink = Raw::start(move |mut line: Line| {
        let mut connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        let _ = connection.complete_io(&mut line.stream);
        line.hang();
    });
    let url = sink.url().replace("http:", "https:");
    let name = "has a certificate that nobody trusts";
    check(name, &url, "1", ("`connect`", Little), ("`connect`", Little));
}

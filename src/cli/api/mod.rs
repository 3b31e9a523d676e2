//! A client of the daemon's HTTP API: one request, one answer, over the Unix socket or over a network.

mod early;
mod unix;

use std::time::Duration;

use anyhow::{Context as _, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE};
use ureq::http::{HeaderMap, Request};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector as _, DefaultConnector};
use ureq::{Agent, Timeout};

use self::early::EarlyAnswerConnector;
use super::failure::{Failure, Problem};
use super::target::{DaemonAddress, DaemonEndpoint, TargetOptions};

/// How long it may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an answer may take: longer than the daemon waits for its store.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest answer that is read, in bytes.
const ANSWER_MAX: u64 = 1 << 30;

/// The characters that are escaped in a path: all but letters, digits and these four.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A client of one daemon.
#[derive(Debug)]
pub(super) struct Api {
    agent: Agent,
    /// The URL before the path.
    base: String,
    address: DaemonAddress,
    token: Option<String>,
}

/// The answer to a request that succeeded.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    headers: HeaderMap,
    body: Vec<u8>,
}

impl HttpAnswer {
    /// Reads the body as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).context("cannot understand the daemon's answer")
    }

    /// Returns the value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the body as text, for an answer that is not JSON.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as the JSON text that was sent, so that numbers keep all their digits.
    pub(super) fn raw(&self) -> Result<Box<RawValue>> {
        self.json()
    }
}

impl Api {
    /// Returns a client of the daemon that the options choose.
    pub(super) fn from_options(at: &TargetOptions) -> Result<Api> {
        Api::new(&at.target()?, PATIENCE)
    }

    /// Returns a client like `from_options`, but an answer may take up to `patience`.
    pub(super) fn patient(at: &TargetOptions, patience: Duration) -> Result<Api> {
        Api::new(&at.target()?, patience)
    }

    /// Returns a client of a daemon. An answer may take up to `patience`.
    pub(super) fn new(target: &DaemonEndpoint, patience: Duration) -> Result<Api> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Connections are not kept open. A daemon may close a connection after its answer. The outcome of a further
            // request on this connection would then be unknown.
            .max_idle_connections(0)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT.min(patience)))
            .timeout_global(Some(patience))
            .user_agent(concat!("dq-cli/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build());
        let (agent, base) = match &target.address {
            DaemonAddress::Unix(path) => {
                let connector = unix::UnixConnector(path.clone()).chain(EarlyAnswerConnector);
                let config = config.proxy(None).build();
                (Agent::with_parts(config, connector, unix::FixedResolver), "http://localhost".to_owned())
            }
            DaemonAddress::Url(url) => {
                // A proxy is used only for other hosts.
                let config = if is_near(url) { config.proxy(None).build() } else { config.build() };
                let connector = DefaultConnector::default().chain(EarlyAnswerConnector);
                (Agent::with_parts(config, connector, DefaultResolver::default()), url.clone())
            }
        };
        Ok(Api { agent, base, address: target.address.clone(), token: target.token()? })
    }

    /// Ends the requests of this client that wait for an answer in other threads. Further requests fail.
    pub(super) fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Sends a GET.
    pub(super) fn get(&self, path: &str) -> Result<HttpAnswer> {
        self.send("GET", path, &[], None)
    }

    /// Sends a DELETE.
    pub(super) fn delete(&self, path: &str) -> Result<HttpAnswer> {
        self.send("DELETE", path, &[], None)
    }

    /// Sends a request with a JSON body.
    pub(super) fn ask(&self, method: &str, path: &str, body: &impl Serialize) -> Result<HttpAnswer> {
        self.ask_with(method, path, &[], body)
    }

    /// Sends a request with a JSON body and headers.
    pub(super) fn ask_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &impl Serialize,
    ) -> Result<HttpAnswer> {
        let body = serde_json::to_vec(body).context("cannot write the request")?;
        self.send(method, path, headers, Some(body))
    }

    /// Sends a POST with an empty body.
    pub(super) fn bid(&self, path: &str) -> Result<HttpAnswer> {
        self.send("POST", path, &[], Some(Vec::new()))
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<HttpAnswer> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let changes = method != "GET";
        let response = match body {
            None => self.agent.run(request.body(()).map_err(bad_request)?),
            Some(body) => {
                if !body.is_empty() {
                    request = request.header(CONTENT_TYPE, "application/json");
                }
                self.agent.run(request.body(body).map_err(bad_request)?)
            }
        };
        let mut response = response.map_err(|e| self.failed(e, changes))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
        let body = body.map_err(|e| self.failed(e, changes))?;
        match status {
            200..=299 => Ok(HttpAnswer { headers: response.headers().clone(), body }),
            _ => Err(Failure::Refused(problem(status, &body)).into()),
        }
    }

    /// Returns why there was no answer. `changes`: the request may have changed something.
    fn failed(&self, error: ureq::Error, changes: bool) -> Failure {
        let message = |why: &dyn std::fmt::Display| format!("no daemon answers at {}: {why}", self.address);
        let hint = "(--run-dir, --config or --url say where it is)";
        match &error {
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) | ureq::Error::HostNotFound => {
                Failure::Unreachable(message(&error))
            }
            ureq::Error::ConnectionFailed => Failure::Unreachable(message(&format!("{error} {hint}"))),
            ureq::Error::Io(e) if is_before_connection(e) => match (&self.address, e.kind()) {
                (DaemonAddress::Unix(_), std::io::ErrorKind::NotFound) => {
                    Failure::Unreachable(message(&format!("there is no such socket {hint}")))
                }
                _ => Failure::Unreachable(message(&format!("{e} {hint}"))),
            },
            ureq::Error::Rustls(_) | ureq::Error::Tls(_) => Failure::Unreachable(message(&error)),
            _ if changes => {
                let address = &self.address;
                Failure::Unknown(format!(
                    "no answer from {address}: {error}; the change may or may not have happened"
                ))
            }
            _ => Failure::Unreachable(format!("no answer from {}: {error}", self.address)),
        }
    }
}

/// Returns whether the error came before there was a connection. In this case nothing was sent.
fn is_before_connection(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound, PermissionDenied,
    };
    matches!(
        e.kind(),
        NotFound
            | ConnectionRefused
            | PermissionDenied
            | HostUnreachable
            | NetworkUnreachable
            | AddrNotAvailable
    )
}

fn bad_request(e: ureq::http::Error) -> anyhow::Error {
    Failure::Usage(format!("this cannot be sent: {e}")).into()
}

fn problem(status: u16, body: &[u8]) -> Problem {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => Problem { status, ..problem },
        // Another server answers at this address, or a proxy in front of the daemon answers.
        Err(_) => {
            let text = String::from_utf8_lossy(body);
            let first = text.lines().next().unwrap_or_default().trim();
            Problem { status, detail: first.chars().take(200).collect(), ..Problem::default() }
        }
    }
}

/// Returns whether a URL names this host.
fn is_near(url: &str) -> bool {
    let uri: Option<ureq::http::Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(|uri| uri.host()).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.is_loopback())
}

/// Returns a name or an id, escaped for a path.
pub(super) fn part(text: &str) -> String {
    match text {
        // A program that splits a path into its parts would drop `.` and `..`.
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        text => utf8_percent_encode(text, PLAIN).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use serde_json::{Value, json};

    use super::*;

    /// Starts a thread that answers one request with these bytes. The thread returns the request.
    fn stand_in(dir: &tempfile::TempDir, answer: &'static [u8]) -> (Api, JoinHandle<String>) {
        let path = dir.path().join("http.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let serve = move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(&stream);
            let (mut asked, mut length) = (String::new(), 0);
            while !asked.ends_with("\r\n\r\n") {
                let from = asked.len();
                reader.read_line(&mut asked).unwrap();
                let line = asked[from..].to_ascii_lowercase();
                length = line.strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().unwrap());
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            (&stream).write_all(answer).unwrap();
            asked + &String::from_utf8(body).unwrap()
        };
        let at = TargetOptions { url: Some(format!("unix:{}", path.display())), ..TargetOptions::default() };
        let at = TargetOptions { token: Some("secret".into()), ..at };
        (Api::new(&at.target().unwrap(), Duration::from_secs(10)).unwrap(), std::thread::spawn(serve))
    }

    #[test]
    fn answers_are_read_whole_whatever_their_length_is_told_by() {
        let dir = tempfile::tempdir().unwrap();
        for answer in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}"[..],
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"a\":1}",
        ] {
            let (api, served) = stand_in(&dir, answer);
            let answer = api.get("/v1/x?limit=3").unwrap();
            assert_eq!(answer.json::<Value>().unwrap(), json!({"a": 1}));
            let asked = served.join().unwrap();
            assert!(asked.starts_with("GET /v1/x?limit=3 HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains("authorization: Bearer secret\r\n"), "{asked}");
        }
    }

    #[test]
    fn a_body_is_sent_as_json_and_one_that_is_empty_is_sent_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (api, served) = stand_in(&dir, b"HTTP/1.1 204 No Content\r\n\r\n");
        api.ask_with("PATCH", "/v1/topics/t", &[("if-match", "\"1\"")], &json!({"delay": "5m"})).unwrap();
        let asked = served.join().unwrap();
        assert!(
            asked.starts_with("PATCH /v1/topics/t ") && asked.ends_with("\r\n\r\n{\"delay\":\"5m\"}"),
            "{asked}"
        );
        assert!(asked.contains("content-type: application/json\r\n") && asked.contains("if-match: \"1\""));
        let (api, served) = stand_in(&dir, b"HTTP/1.1 204 No Content\r\n\r\n");
        api.bid("/v1/topics/t/pause").unwrap();
        let asked = served.join().unwrap();
        assert!(asked.contains("content-length: 0\r\n") && asked.ends_with("\r\n\r\n"), "{asked}");
    }

    fn failure<T: std::fmt::Debug>(result: Result<T>) -> Failure {
        result.unwrap_err().downcast().unwrap()
    }

    #[test]
    fn a_request_fails_as_refused_unknown_or_unreachable() {
        let dir = tempfile::tempdir().unwrap();
        let (api, _) = stand_in(
            &dir,
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 42\r\n\r\n{\"code\":\"unknown_topic\",\"detail\":\"no t\"}  ",
        );
        let Failure::Refused(problem) = failure(api.get("/")) else { panic!("a problem") };
        assert_eq!((problem.status, problem.sentence().as_str()), (404, "no t (404 unknown_topic)"));
        let (api, _) = stand_in(&dir, b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\nnginx\nlines");
        assert_eq!(failure(api.get("/")).to_string(), "nginx (502)");
        // The request was sent, and no answer came.
        let (api, _) = stand_in(&dir, b"HTTP/1.1 2");
        assert!(matches!(failure(api.bid("/")), Failure::Unknown(_)));
        let (api, _) = stand_in(&dir, b"");
        assert!(matches!(failure(api.get("/")), Failure::Unreachable(_)));
        std::fs::remove_file(dir.path().join("http.sock")).unwrap();
        let error = failure(api.bid("/"));
        assert!(
            matches!(error, Failure::Unreachable(_)) && error.to_string().contains("no such socket"),
            "{error}"
        );
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let at = TargetOptions { url: Some(url), ..TargetOptions::default() };
        let error = failure(Api::from_options(&at).unwrap().bid("/"));
        assert!(matches!(error, Failure::Unreachable(_)), "{error}");
    }

    #[test]
    fn an_answer_that_comes_before_the_request_was_read_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("http.sock");
        let answer = b"HTTP/1.1 413 Too Large\r\ncontent-length: 20\r\n\r\n{\"code\":\"too_large\"}";
        let unix = UnixListener::bind(&path).unwrap();
        let tcp = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let urls = [format!("unix:{}", path.display()), format!("http://{}", tcp.local_addr().unwrap())];
        let served = std::thread::spawn(move || {
            let (mut stream, _) = unix.accept().unwrap();
            stream.write_all(answer).unwrap();
            drop(stream);
            let (mut stream, _) = tcp.accept().unwrap();
            // The server reads all that is sent. Otherwise, closing the connection would send a reset, which could
            // overtake the answer.
            stream.read_exact(&mut [0; 1024]).unwrap();
            stream.write_all(answer).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
        });
        for url in urls {
            let api =
                Api::from_options(&TargetOptions { url: Some(url.clone()), ..TargetOptions::default() })
                    .unwrap();
            let error = failure(api.ask("POST", "/", &"x".repeat(8 << 20)));
            let Failure::Refused(problem) = error else { panic!("{url}: {error:?}") };
            assert_eq!((problem.status, problem.code.as_str()), (413, "too_large"), "{url}");
        }
        served.join().unwrap();
    }

    #[test]
    fn names_and_ids_stand_in_paths_as_they_are() {
        for (text, path) in
            [("a:b/c", "a%3Ab%2Fc"), ("..", "%2E%2E"), ("x y", "x%20y"), ("a.b-c_d~", "a.b-c_d~")]
        {
            assert_eq!(part(text), path);
        }
    }
}

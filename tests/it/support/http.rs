//! A client of dq-http-server, over TCP and over the Unix socket.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::{Daemon, SECOND, eventually};

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection to dq-http-server that is kept open.
pub struct Http {
    reader: BufReader<Box<dyn Stream>>,
    host: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub json: Value,
}

impl Http {
    pub fn tcp(daemon: &Daemon) -> Http {
        let stream =
            eventually(10 * SECOND, "the HTTP port", || TcpStream::connect(("127.0.0.1", daemon.http)).ok());
        stream.set_read_timeout(Some(30 * SECOND)).unwrap();
        stream.set_nodelay(true).unwrap();
        Http { reader: BufReader::new(Box::new(stream)), host: format!("127.0.0.1:{}", daemon.http) }
    }

    /// Waits until an alert with this name is open.
    pub fn wait_for_alert(&mut self, name: &str) {
        eventually(10 * SECOND, name, || {
            let alerts = self.get("/v1/alerts").is(200);
            alerts["alerts"].as_array().unwrap().iter().any(|alert| alert["name"] == name).then_some(())
        });
    }

    pub fn unix(daemon: &Daemon) -> Http {
        let stream = UnixStream::connect(daemon.dir.path().join("var/run/http.sock")).unwrap();
        stream.set_read_timeout(Some(30 * SECOND)).unwrap();
        Http { reader: BufReader::new(Box::new(stream)), host: "dq".to_owned() }
    }

    pub fn doors(daemon: &Daemon) -> [Http; 2] {
        [Http::tcp(daemon), Http::unix(daemon)]
    }

    pub fn ask(&mut self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, "", body.as_bytes())
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &Value::Null)
    }

    /// Sends a request with these header lines, and waits for the answer.
    pub fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.begin(method, path, headers, body);
        self.receive()
    }

    /// Sends a request, and does not wait for the answer.
    pub fn begin(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let host = match headers.to_ascii_lowercase().contains("host:") {
            true => String::new(),
            false => format!("Host: {}\r\n", self.host),
        };
        let head =
            format!("{method} {path} HTTP/1.1\r\n{host}Content-Length: {}\r\n{headers}\r\n", body.len());
        let stream = self.reader.get_mut();
        // The server may refuse a request before it has read all of it. Then this write may fail, but there is an
        // answer.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
    }

    /// Sends some bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    pub fn receive(&mut self) -> Answer {
        let mut headers = HashMap::new();
        let mut status = 0;
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "cut off after {status}, {headers:?}");
            match line.trim_end().split_once(": ") {
                Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.to_owned())),
                None if line == "\r\n" => break,
                None => status = line.split(' ').nth(1).unwrap().parse().unwrap(),
            }
        }
        let length = headers.get("content-length").map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        let is_json = headers
            .get("content-type")
            .is_some_and(|kind| kind.ends_with("json") && !kind.contains("ndjson"));
        let json = match is_json {
            true => serde_json::from_slice(&body).unwrap(),
            false if body.is_empty() => Value::Null,
            false => Value::String(String::from_utf8(body).unwrap()),
        };
        Answer { status, headers, json }
    }
}

impl Answer {
    #[track_caller]
    pub fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json
    }

    /// Checks that the answer is a problem with this status, code and field, in the form of RFC 9457.
    #[track_caller]
    pub fn is_problem(&self, status: u16, code: &str, field: Option<&str>) {
        assert_eq!((self.status, self.json["code"].as_str()), (status, Some(code)), "{self:?}");
        assert_eq!(self.json["field"].as_str(), field, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.json["status"], status);
        for text in ["type", "title", "detail"] {
            assert!(self.json[text].as_str().is_some_and(|t| !t.is_empty()), "{self:?}");
        }
    }
}

//! The clients of a campaign. Each client plays its part of the schedule, and records the answers. A client of the TCP
//! port sends a whole batch at once, before it reads an answer.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cli::TcpClient;
use protocol::dq::Framing;
use serde_json::{Value, json};

use crate::ledger::{MILLISECOND, Micros, Operation, OperationKind, Outcome, Rule};
use crate::requests::{Ask, Batch};
use crate::sink::body;

/// Returns a new number for a connection.
pub fn next_line() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What all clients of a campaign share.
pub struct Clients {
    pub begun: Instant,
    pub tcp: SocketAddr,
    pub http: SocketAddr,
    pub is_over: AtomicBool,
}

impl Clients {
    pub fn new(begun: Instant, tcp: u16, http: u16) -> Clients {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Clients { begun, tcp: at(tcp), http: at(http), is_over: AtomicBool::new(false) }
    }

    pub fn now(&self) -> Micros {
        self.begun.elapsed().as_micros() as u64
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Sends the requests of a part of the schedule over TCP. Stops when all are sent, or when the campaign ends.
    pub fn play_tcp(&self, batches: &[Batch]) -> Vec<Operation> {
        let mut line = Line::new(self);
        for batch in batches {
            std::thread::sleep(Duration::from_micros(batch.pause));
            if self.is_over() {
                break;
            }
            line.play(&batch.requests);
        }
        line.noted
    }

    /// Plays a part of the schedule over HTTP, with one connection for each request.
    pub fn play_http(&self, batches: &[Batch]) -> Vec<Operation> {
        let mut noted = Vec::new();
        for batch in batches {
            std::thread::sleep(Duration::from_micros(batch.pause));
            if self.is_over() {
                break;
            }
            noted.extend(batch.requests.iter().flatten().map(|ask| self.ask_http(ask)));
        }
        noted
    }

    pub fn ask_http(&self, ask: &Ask) -> Operation {
        let sent = self.now();
        let (method, path, body) = to_http(ask);
        let outcome = match exchange(self.http, method, &path, &body) {
            Ok((status, answer)) => from_http(ask, status, &answer),
            Err(Broken::NotSent) => Outcome::Refused("not sent".into()),
            Err(Broken::Unknown) => Outcome::Unknown,
        };
        let line = next_line();
        let Ask { id, operation_kind, .. } = *ask;
        Operation { id, line, number: 0, operation_kind, sent, answered: self.now(), outcome }
    }
}

/// A connection to the TCP port. When the connection breaks, the next request opens a new one.
pub struct Line<'a> {
    clients: &'a Clients,
    connection: Option<(u64, TcpClient)>,
    number: u64,
    pub noted: Vec<Operation>,
}

impl<'a> Line<'a> {
    pub fn new(clients: &'a Clients) -> Line<'a> {
        Line { clients, connection: None, number: 0, noted: Vec::new() }
    }

    /// Sends all these requests, and reads the answers. If a request was sent but not answered, its outcome is unknown.
    pub fn play(&mut self, requests: &[Vec<Ask>]) {
        if self.connection.is_none() {
            let Ok(client) = TcpClient::connect(self.clients.tcp, Framing::Binary) else {
                return self.not_sent(requests);
            };
            let _ = client.stream.set_read_timeout(Some(Duration::from_secs(10)));
            self.connection = Some((next_line(), client));
        }
        let Some((line, client)) = &mut self.connection else { return };
        let json: Vec<Value> = requests.iter().map(|asks| to_tcp(asks)).collect();
        let sent = self.clients.now();
        let mut is_broken = client.send(&json).is_err();
        for asks in requests {
            let answer = if is_broken { None } else { client.receive().ok() };
            is_broken |= answer.is_none();
            let answered = self.clients.now();
            for (n, ask) in asks.iter().enumerate() {
                let one = answer.as_ref().map(|answer| match asks.len() {
                    1 => answer,
                    _ if answer["code"] == 1 => &answer["data"][n],
                    _ => answer,
                });
                let outcome = one.map_or(Outcome::Unknown, |one| from_tcp(ask, one));
                self.number += 1;
                let (Ask { id, operation_kind, .. }, line, number) = (*ask, *line, self.number);
                self.noted.push(Operation { id, line, number, operation_kind, sent, answered, outcome });
            }
        }
        if is_broken {
            self.connection = None;
        }
    }
}

impl Line<'_> {
    fn not_sent(&mut self, requests: &[Vec<Ask>]) {
        let now = self.clients.now();
        for Ask { id, operation_kind, .. } in requests.iter().flatten() {
            let outcome = Outcome::Refused("not sent".into());
            let (line, number) = (next_line(), 0);
            self.noted.push(Operation {
                id: *id,
                line,
                number,
                operation_kind: *operation_kind,
                sent: now,
                answered: now,
                outcome,
            });
        }
    }
}

fn to_tcp(asks: &[Ask]) -> Value {
    if asks.len() > 1 {
        return json!({"cmd": "madd", "jobs": asks.iter().map(job).collect::<Vec<_>>()});
    }
    let ask = &asks[0];
    let name = match ask.operation_kind {
        OperationKind::Add { .. } => {
            let mut job = job(ask);
            job["cmd"] = "add".into();
            return job;
        }
        OperationKind::Delete => "del",
        OperationKind::Run => "run",
        OperationKind::Get => "get",
        other => unreachable!("{other:?} is asked for over HTTP"),
    };
    json!({"cmd": name, "topic": ask.id.topic(), "id": ask.id.to_string()})
}

fn job(ask: &Ask) -> Value {
    let OperationKind::Add { version, rule, delay } = ask.operation_kind else {
        unreachable!("{:?} is no add", ask.operation_kind)
    };
    let rule = match rule {
        Rule::Replace => "replace",
        Rule::Keep => "keep",
        Rule::Reject => "reject",
    };
    json!({
        "topic": ask.id.topic(), "id": ask.id.to_string(), "on_conflict": rule,
        "delay_ms": delay / MILLISECOND, "body": body(ask.id, version, ask.fate),
    })
}

/// Returns the outcome of a code. With `unknown` and `timeout`, it is not known whether something was done. All other
/// codes say that nothing was done.
pub fn refused(code: &str) -> Outcome {
    match code {
        "not_found" => Outcome::NotFound,
        "exists" => Outcome::Exists,
        "unknown" | "timeout" => Outcome::Unknown,
        other => Outcome::Refused(other.to_owned()),
    }
}

fn from_tcp(ask: &Ask, answer: &Value) -> Outcome {
    if answer["code"] != 1 {
        return refused(answer["err"].as_str().unwrap_or("no code"));
    }
    match ask.operation_kind {
        OperationKind::Get => answer["data"]["version"].as_u64().map_or(Outcome::Unknown, Outcome::Shown),
        _ if answer["spooled"] == true => Outcome::Spooled,
        _ => Outcome::Done,
    }
}

fn to_http(ask: &Ask) -> (&'static str, String, Value) {
    let (id, topic) = (ask.id.to_string(), ask.id.topic());
    let jobs = format!("/v1/topics/{topic}/jobs");
    let dead = |what: &str| ("POST", format!("/v1/topics/{topic}/dead/{what}"), json!({"ids": [id]}));
    match ask.operation_kind {
        OperationKind::Add { delay, .. } => {
            let mut job = job(ask);
            let fields = job.as_object_mut().unwrap();
            fields.retain(|name, _| name != "topic" && name != "delay_ms");
            job["delay"] = format!("{}ms", delay / MILLISECOND).into();
            ("POST", jobs, job)
        }
        OperationKind::Patch { version, delay } => {
            let changes = json!({"delay": format!("{}ms", delay / MILLISECOND), "body": body(ask.id, version, ask.fate)});
            ("PATCH", format!("{jobs}/{id}"), changes)
        }
        OperationKind::Delete => ("DELETE", format!("{jobs}/{id}"), Value::Null),
        OperationKind::Get => ("GET", format!("{jobs}/{id}"), Value::Null),
        OperationKind::Run => ("POST", format!("{jobs}/{id}/run"), Value::Null),
        OperationKind::Redrive => dead("redrive"),
        OperationKind::Purge => dead("purge"),
        OperationKind::Ack(_) | OperationKind::Nack { .. } | OperationKind::Extend(_) => {
            unreachable!("{:?} is of a client that reserves", ask.operation_kind)
        }
    }
}

fn from_http(ask: &Ask, status: u16, answer: &Value) -> Outcome {
    if status >= 300 {
        return refused(answer["code"].as_str().unwrap_or("no code"));
    }
    let many = |name: &str| match answer[name].as_u64() {
        Some(0) => Outcome::NotFound,
        _ => Outcome::Done,
    };
    match ask.operation_kind {
        OperationKind::Get => answer["body"]["version"].as_u64().map_or(Outcome::Unknown, Outcome::Shown),
        OperationKind::Redrive => many("redriven"),
        OperationKind::Purge => many("purged"),
        _ if answer["spooled"] == true => Outcome::Spooled,
        _ => Outcome::Done,
    }
}

/// Why there is no answer.
pub enum Broken {
    NotSent,
    Unknown,
}

/// Sends one request on its own connection.
pub fn exchange(to: SocketAddr, method: &str, path: &str, body: &Value) -> Result<(u16, Value), Broken> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).map_err(|_| Broken::NotSent)?;
    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).map_err(|_| Broken::Unknown)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).map_err(|_| Broken::Unknown)?;
    let text = String::from_utf8_lossy(&text);
    let (head, rest) = text.split_once("\r\n\r\n").ok_or(Broken::Unknown)?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or(Broken::Unknown)?;
    let answer = if rest.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(rest).map_err(|_| Broken::Unknown)?
    };
    Ok((status, answer))
}

/// Returns how often each outcome occurs, as text.
pub fn figures(operations: &[Operation]) -> String {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for operation in operations {
        let word = match &operation.outcome {
            Outcome::Refused(code) => code.clone(),
            Outcome::Shown(_) => "shown".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
        *counts.entry(word).or_default() += 1;
    }
    let mut counts: Vec<String> = counts.into_iter().map(|(word, n)| format!("{n} {word}")).collect();
    counts.sort();
    counts.join(", ")
}

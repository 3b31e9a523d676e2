//! Clients that reserve jobs during a whole campaign, until no job is left. They report what the fate of each version
//! says: they ack it, extend its lease first, nack it once, or let its lease run out once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use cli::TcpClient;
use protocol::dq::Framing;
use serde_json::{Value, json};

use crate::clients::{Broken, Clients, exchange, next_line, refused};
use crate::ledger::{Delivery, Id, MILLISECOND, Micros, Operation, OperationKind, Outcome, Version};
use crate::requests::Fate;

/// The length of a lease. It is short, so that some leases run out while a process is stopped.
const LEASE: &str = "1500ms";

/// How long a version that was nacked waits.
const NACK_DELAY: Micros = 300 * MILLISECOND;

/// All clients that reserve. They end when this value is dropped.
pub struct Workers {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(Vec<Operation>, Vec<Delivery>)>>,
}

impl Workers {
    /// Starts two clients of the TCP port and two of the HTTP API.
    pub fn start(clients: &Clients) -> Workers {
        let (is_over, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(HashSet::new())));
        let start = |is_tcp: bool| {
            let (is_over, refused) = (Arc::clone(&is_over), Arc::clone(&refused));
            let clients = Clients::new(clients.begun, clients.tcp.port(), clients.http.port());
            std::thread::spawn(move || {
                let port = if is_tcp { Port::Tcp(None) } else { Port::Http };
                let mut worker =
                    Worker { clients, port, refused, operations: Vec::new(), deliveries: Vec::new() };
                while !is_over.load(Ordering::SeqCst) {
                    worker.work();
                }
                (worker.operations, worker.deliveries)
            })
        };
        let threads = [true, false, true, false].into_iter().map(start).collect();
        Workers { is_over, threads }
    }

    /// Ends the clients. Returns their requests, and the jobs that they have reserved.
    pub fn end(mut self) -> (Vec<Operation>, Vec<Delivery>) {
        self.is_over.store(true, Ordering::SeqCst);
        let (mut operations, mut deliveries) = (Vec::new(), Vec::new());
        for thread in self.threads.drain(..) {
            let (mut some, mut others) = thread.join().unwrap();
            operations.append(&mut some);
            deliveries.append(&mut others);
        }
        (operations, deliveries)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// The port that a client uses.
enum Port {
    /// The connection is kept until it breaks.
    Tcp(Option<TcpClient>),
    /// Each request has its own connection.
    Http,
}

struct Worker {
    clients: Clients,
    port: Port,
    /// The versions that were refused once.
    refused: Arc<Mutex<HashSet<Version>>>,
    operations: Vec<Operation>,
    deliveries: Vec<Delivery>,
}

impl Worker {
    /// Reserves some jobs, and reports about each.
    fn work(&mut self) {
        let asked = self.clients.now();
        let limits = json!({"max": 5, "wait": "500ms", "lease": LEASE});
        let Ok(jobs) = self.ask("reserve", None, limits) else {
            std::thread::sleep(Duration::from_millis(20));
            return;
        };
        let at = self.clients.now();
        for job in jobs.as_array().into_iter().flatten() {
            let (body, token) = (&job["body"], &job["token"]);
            let id = body["id"].as_str().and_then(Id::parse).expect("a job of a campaign");
            let version = body["version"].as_u64().expect("a version");
            let is_accepted = self.report(id, version, token, body["fate"].as_str().unwrap_or_default());
            self.deliveries.push(Delivery { id, version, at, is_accepted, asked: Some(asked) });
        }
    }

    /// Reports as the fate of the version says. Returns whether it is acked.
    fn report(&mut self, id: Id, version: Version, token: &Value, fate: &str) -> bool {
        if fate == Fate::SecondAttempt.word() && self.refused.lock().unwrap().insert(version) {
            if version.is_multiple_of(2) {
                let delay = format!("{}ms", NACK_DELAY / MILLISECOND);
                let kind = OperationKind::Nack { version, delay: NACK_DELAY };
                self.note(id, kind, "nack", json!({"token": token, "delay": delay}));
            }
            return false;
        }
        if fate == Fate::AcceptedSlowly.word() {
            self.note(id, OperationKind::Extend(version), "extend", json!({"token": token, "lease": "3s"}));
            std::thread::sleep(Duration::from_millis(400));
        }
        self.note(id, OperationKind::Ack(version), "ack", json!({"token": token})) == Outcome::Done
    }

    /// Sends a report, and records its outcome.
    fn note(&mut self, id: Id, operation_kind: OperationKind, verb: &str, fields: Value) -> Outcome {
        let sent = self.clients.now();
        let outcome = match self.ask(verb, Some(id), fields) {
            Ok(_) => Outcome::Done,
            Err(outcome) => outcome,
        };
        let (line, number, answered) = (next_line(), 0, self.clients.now());
        let noted = outcome.clone();
        self.operations.push(Operation { id, line, number, operation_kind, sent, answered, outcome: noted });
        outcome
    }

    /// Sends a request about the topic, or about a job. Returns the jobs of a reserve, or the answer to a report.
    fn ask(&mut self, verb: &str, id: Option<Id>, mut fields: Value) -> Result<Value, Outcome> {
        let topic = Id::Pulled(0).topic();
        let to = self.clients.tcp;
        match &mut self.port {
            Port::Http => {
                let job = id.map_or(String::new(), |id| format!("/jobs/{id}"));
                let path = format!("/v1/topics/{topic}{job}/{verb}");
                match exchange(self.clients.http, "POST", &path, &fields) {
                    Ok((200, answer)) if id.is_none() => Ok(answer["jobs"].clone()),
                    Ok((200, answer)) => Ok(answer),
                    Ok((_, problem)) => Err(refused(problem["code"].as_str().unwrap_or("no code"))),
                    Err(Broken::NotSent) => Err(Outcome::Refused("not sent".into())),
                    Err(Broken::Unknown) => Err(Outcome::Unknown),
                }
            }
            Port::Tcp(connection) => {
                fields["cmd"] = verb.into();
                fields["topic"] = topic.into();
                if let Some(id) = id {
                    fields["id"] = id.to_string().into();
                }
                if connection.is_none() {
                    let not_sent = |_| Outcome::Refused("not sent".into());
                    let client = TcpClient::connect(to, Framing::Binary).map_err(not_sent)?;
                    let _ = client.stream.set_read_timeout(Some(Duration::from_secs(10)));
                    *connection = Some(client);
                }
                let answer = connection.as_mut().and_then(|client| client.ask(&fields).ok());
                let Some(mut answer) = answer else {
                    *connection = None;
                    return Err(Outcome::Unknown);
                };
                match answer["code"] == 1 {
                    true => Ok(answer["data"].take()),
                    false => Err(refused(answer["err"].as_str().unwrap_or("no code"))),
                }
            }
        }
    }
}

//! The receiver of all callbacks. It records each callback, and answers as the fate of the job says.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cli::{CallbackReceiver, HandlerAnswer, ReceivedRequest};
use serde_json::{Value, json};

use crate::ledger::{Delivery, Id, Version};
use crate::requests::Fate;

/// Returns the body of a job. The body contains the version, so that the sink knows which version was delivered.
pub fn body(id: Id, version: Version, fate: Fate) -> Value {
    json!({"id": id.to_string(), "version": version, "fate": fate.word()})
}

pub struct Sink {
    address: SocketAddr,
    deliveries: Arc<Mutex<Vec<Delivery>>>,
    accepts_all: Arc<AtomicBool>,
}

impl Sink {
    pub fn start(begun: Instant) -> Sink {
        let deliveries: Arc<Mutex<Vec<Delivery>>> = Arc::default();
        let accepts_all = Arc::new(AtomicBool::new(false));
        let (noted, all, refused) =
            (Arc::clone(&deliveries), Arc::clone(&accepts_all), Mutex::new(HashSet::new()));
        let handler = move |call: ReceivedRequest| {
            let at = begun.elapsed().as_micros() as u64;
            let Some((id, version, fate)) = read(&call) else {
                return HandlerAnswer::new(400, "no job of a campaign");
            };
            let is_accepted = all.load(Ordering::SeqCst)
                || match fate.as_str() {
                    "refused" => false,
                    "second" => !refused.lock().unwrap().insert(version),
                    _ => true,
                };
            noted.lock().unwrap().push(Delivery { id, version, at, is_accepted, asked: None });
            let answer = HandlerAnswer::new(if is_accepted { 200 } else { 500 }, "");
            if fate == "slowly" { answer.after(Duration::from_millis(400)) } else { answer }
        };
        let receiver = CallbackReceiver::start((Ipv4Addr::LOCALHOST, 0).into(), Arc::new(handler)).unwrap();
        Sink { address: receiver.address, deliveries, accepts_all }
    }

    /// Accepts everything from now on, whatever the fate of a job is.
    pub fn accept_all(&self) {
        self.accepts_all.store(true, Ordering::SeqCst);
    }

    pub fn deliveries(&self) -> Vec<Delivery> {
        self.deliveries.lock().unwrap().clone()
    }

    /// Returns the topics of a campaign. `more` is added to the topic `t`.
    pub fn topics(&self, more: &str) -> String {
        let url = format!("http://{}/", self.address);
        let topic = |name: &str, more: &str| {
            format!(
                "[[topic]]\nname = \"{name}\"\ncallback = \"{url}\"\ntimeout = \"1s\"\nbreaker_failures = 0\n{more}"
            )
        };
        topic("t", &format!("retry = [\"200ms\"]\n{more}"))
            + &topic("failing", "retry = [\"100ms\"]\nmax_attempts = 2\n")
            + "[[topic]]\nname = \"pulled\"\nmode = \"pull\"\nretry = [\"200ms\"]\nmax_attempts = 1000\n"
    }
}

fn read(call: &ReceivedRequest) -> Option<(Id, Version, String)> {
    let body: Value = serde_json::from_str(&call.body).ok()?;
    let id = Id::parse(body["id"].as_str()?)?;
    Some((id, body["version"].as_u64()?, body["fate"].as_str()?.to_owned()))
}

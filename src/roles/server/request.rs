//! From a client's command to what the store is asked.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::answer::{Asked, Json, Manner, SUCCESS, Tcp, Ticket, refused};
use crate::counters::Counters;
use crate::job::{Due, NewJob, TopicName};
use crate::metrics::AddOutcome;
use crate::protocol::dq::{self, Add, Command, DIGITS_MAX, Framing, Refusal};
use crate::role::LiveTopics;
use crate::settings::Settings;
use crate::submit::{Ask, Submits};
use crate::topic::Status;

/// The most jobs of a `madd` in the digits framing: their answers, shortened, fit into its longest frame.
const MADD_DIGITS_MAX: usize = 200;

/// The longest answer in bytes.
fn longest(framing: Framing) -> usize {
    match framing {
        Framing::Digits => DIGITS_MAX,
        Framing::Binary => usize::MAX,
    }
}

/// What became of a request that was taken.
pub(super) enum Taken {
    /// It is answered.
    Answered(Json),
    /// The store is asked.
    Asked {
        /// Whether the answer may be as long as a body.
        is_get: bool,
    },
}

/// What the event loop knows without the store.
pub(super) struct Front {
    pub settings: Arc<Settings>,
    pub topics: LiveTopics,
    pub zone: TimeZone,
    pub counters: Counters,
}

impl Front {
    /// Whether a client is let in beside `open` others.
    pub(super) fn admit(&self, peer: SocketAddr, open: usize) -> Result<(), String> {
        let server = &self.settings.server;
        if !server.allow.is_empty() && !server.allow.iter().any(|net| net.contains(&peer.ip().to_canonical()))
        {
            return Err("server.allow does not name it".into());
        }
        if open >= server.max_connections {
            return Err(format!("{open} connections are open (server.max_connections)"));
        }
        Ok(())
    }

    /// Takes a request: hands it to the store, or answers it at once.
    pub(super) fn take(
        &self,
        json: &[u8],
        framing: Framing,
        ticket: Ticket,
        submit: &mut Submits<Tcp>,
    ) -> Taken {
        let (ask, manner) = match dq::parse(json, &self.zone).and_then(|command| self.ask(command, framing)) {
            Ok(Some(ask)) => ask,
            Ok(None) => return Taken::Answered(SUCCESS.into()),
            Err(refusal) => {
                log::info!(target: "request", "refused: {}", refusal.msg);
                return Taken::Answered(refused(&refusal));
            }
        };
        let is_get = matches!(ask, Ask::Get(_));
        match submit.hand_in(Asked { ticket, manner }, ask, json.len()) {
            Ok(()) => Taken::Asked { is_get },
            Err(hung) => Taken::Answered(refused(&Refusal::new("store_busy", hung.to_string()))),
        }
    }

    /// What the store is asked, and how its answer is told; nothing, for a ping.
    fn ask(&self, command: Command, framing: Framing) -> Result<Option<(Ask, Manner)>, Refusal> {
        let most = longest(framing);
        Ok(Some(match command {
            Command::Add(add) => (Ask::Add(self.job(add)?), Manner::Plain),
            Command::Madd(adds) if framing == Framing::Digits && adds.len() > MADD_DIGITS_MAX => {
                let problem = format!(
                    "jobs holds {} of them; the answers of {MADD_DIGITS_MAX} are what 4 digits of length can say",
                    adds.len()
                );
                return Err(Refusal::new("bad_field", problem));
            }
            Command::Madd(adds) => {
                let mut jobs = Vec::new();
                let take = |add: Result<Add, Refusal>| self.job(add?).map(|job| jobs.push(job));
                let items = adds.into_iter().map(take).collect();
                (Ask::AddMany(jobs), Manner::Madd { items, most })
            }
            Command::Get(key) => (Ask::Get(key), Manner::Get { most }),
            Command::Del(key) => (Ask::Delete(key), Manner::Plain),
            Command::Run(key) => (Ask::Run(key), Manner::Plain),
            Command::Stats(Some(topic)) if self.topics.now().get(topic.as_str()).is_none() => {
                return Err(unregistered(&topic));
            }
            Command::Stats(topic) => (Ask::Count, Manner::Stats(topic)),
            Command::Ping => return Ok(None),
        }))
    }

    fn job(&self, add: Add) -> Result<NewJob, Refusal> {
        let name = &add.key.topic;
        let refused = || self.counters.known_topic(name.as_str()).added(AddOutcome::Refused, 1);
        let Some(topic) = self.topics.now().get(name.as_str()) else {
            refused();
            return Err(unregistered(name));
        };
        if topic.status == Status::Offline {
            refused();
            return Err(Refusal::new("topic_offline", format!("topic {name} is offline")));
        }
        Ok(NewJob {
            due: add.due.unwrap_or(Due::In(topic.delay)),
            key: add.key,
            body: add.body,
            priority: add.priority,
            on_conflict: add.on_conflict,
            max_attempts: add.max_attempts,
            attempts: 0,
        })
    }
}

fn unregistered(topic: &TopicName) -> Refusal {
    Refusal::new("unknown_topic", format!("topic {topic} is not registered"))
}

//! From a client's command to what the store is asked.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use jiff::tz::TimeZone;

use super::answer::{Asked, Json, Manner, SUCCESS, Tcp, Ticket, refused};
use crate::counters::Counters;
use crate::excerpt::Excerpt;
use crate::job::{Due, NewJob, TopicName};
use crate::metrics::AddOutcome;
use crate::process;
use crate::protocol::dq::{self, Add, Command, DIGITS_MAX, FrameError, Framing, Refusal};
use crate::role::{LiveTopics, RefusalLog};
use crate::scope::Need;
use crate::settings::{Auth, Settings};
use crate::strikes::{Source, Strike, Strikes};
use crate::submit::{Ask, Submits};
use crate::token::{Pass, Shown, Token};

/// The most jobs of a `madd` in the digits framing: their answers, shortened, fit into its longest frame.
const MADD_DIGITS_MAX: usize = 200;

/// The longest frame of a client that has to show a token and has not, in bytes.
const UNKNOWN_MAX: usize = 64 << 10;

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
    pub strikes: RefCell<Strikes>,
    pub refusals: RefCell<RefusalLog>,
    pub counters: Counters,
}

/// Who asks.
pub(super) struct Client<'a> {
    pub peer: SocketAddr,
    /// By what it has been let in.
    pub pass: &'a mut Option<Pass>,
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

    /// The longest frame that a client may send.
    pub(super) fn max_frame(&self, pass: Option<&Pass>) -> usize {
        let server = &self.settings.server;
        match (server.auth, pass) {
            (Auth::Token, None) => server.max_frame.min(UNKNOWN_MAX),
            _ => server.max_frame,
        }
    }

    /// Takes a request: hands it to the store, or answers it at once.
    pub(super) fn take(
        &self,
        json: &[u8],
        framing: Framing,
        client: Client<'_>,
        ticket: Ticket,
        submit: &mut Submits<Tcp>,
    ) -> Taken {
        let command = match dq::parse(json, &self.zone) {
            Ok(Command::Ping) => return Taken::Answered(SUCCESS.into()),
            Ok(Command::Auth(shown)) => return Taken::Answered(self.let_in(&shown, client)),
            other => other,
        };
        let token = match self.token(client.pass.as_ref()) {
            Ok(token) => token,
            Err(refusal) => return Taken::Answered(self.refuse(client.peer, false, &refusal)),
        };
        let (ask, manner) = match command.and_then(|command| self.ask(command, framing, token)) {
            Ok(ask) => ask,
            Err(refusal) => return Taken::Answered(self.refuse(client.peer, true, &refusal)),
        };
        let is_get = matches!(ask, Ask::Get(_));
        match submit.hand_in(Asked { ticket, manner }, ask, json.len()) {
            Ok(()) => Taken::Asked { is_get },
            Err(hung) => Taken::Answered(refused(&Refusal::new("store_busy", hung.to_string()))),
        }
    }

    /// Takes a token that is shown. From then on the connection is let in as long as that is one.
    fn let_in(&self, shown: &Shown, client: Client<'_>) -> Json {
        if self.settings.server.auth == Auth::None {
            return SUCCESS.into();
        }
        *client.pass = self.topics.tokens().shown(&shown.0, process::now_ms()).map(Pass::from);
        if client.pass.is_some() {
            return SUCCESS.into();
        }
        let source = Source::address(client.peer.ip());
        let refusal = match self.strikes.borrow_mut().strike(source, Instant::now()) {
            Strike::TooMany(until) => {
                let left = until.saturating_duration_since(Instant::now()).as_secs() + 1;
                let problem = format!("too many wrong tokens from {source}: wait {left} s");
                Refusal::new("too_many_failures", problem)
            }
            Strike::Counted => Refusal::new("unauthorized", UNKNOWN),
        };
        self.refuse(client.peer, false, &refusal)
    }

    /// Refuses a request, and records it for the log. `has_token`: its connection had a valid token, or needs none.
    fn refuse(&self, peer: SocketAddr, has_token: bool, refusal: &Refusal) -> Json {
        let text = || format!("{}: {}", refusal.err, Excerpt(&refusal.msg));
        self.refusals.borrow_mut().record(Source::address(peer.ip()), has_token, text);
        refused(refusal)
    }

    /// Refuses a frame that cannot be told from the next one.
    pub(super) fn refuse_frame(&self, client: &Client<'_>, error: &FrameError) -> Json {
        let has_token = self.token(client.pass.as_ref()).is_ok();
        self.refuse(client.peer, has_token, &Refusal::new("bad_frame", error.to_string()))
    }

    /// The token of a connection, as it is now; none: none is needed.
    fn token(&self, pass: Option<&Pass>) -> Result<Option<&Token>, Refusal> {
        if self.settings.server.auth == Auth::None {
            return Ok(None);
        }
        let refuse = |why| Err(Refusal::new("unauthorized", why));
        let Some(pass) = pass else {
            return refuse("a token is needed: {\"cmd\":\"auth\",\"token\":\"dq_…\"}");
        };
        let token = self.topics.tokens().passed(pass, process::now_ms());
        token.map_or_else(|| refuse(UNKNOWN), |token| Ok(Some(token)))
    }

    /// What the store is asked, and how its answer is told.
    fn ask(
        &self,
        command: Command,
        framing: Framing,
        token: Option<&Token>,
    ) -> Result<(Ask, Manner), Refusal> {
        let most = longest(framing);
        match &command {
            Command::Get(key) => check(token, Need::Jobs(key.topic.as_str()))?,
            Command::Del(key) | Command::Run(key) => check(token, Need::Produce(key.topic.as_str()))?,
            Command::Stats(_) => check(token, Need::Read)?,
            // Each job by itself, below.
            Command::Add(_) | Command::Madd(_) => {}
            Command::Ping | Command::Auth(_) => {}
        }
        Ok(match command {
            Command::Add(add) => (Ask::Add(self.job(add, token)?), Manner::Plain),
            Command::Madd(adds) if framing == Framing::Digits && adds.len() > MADD_DIGITS_MAX => {
                let problem = format!(
                    "jobs holds {} of them; the answers of {MADD_DIGITS_MAX} are what 4 digits of length can say",
                    adds.len()
                );
                return Err(Refusal::new("bad_field", problem));
            }
            Command::Madd(adds) => {
                let mut jobs = Vec::new();
                let take = |add: Result<Add, Refusal>| self.job(add?, token).map(|job| jobs.push(job));
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
            Command::Ping | Command::Auth(_) => unreachable!("they are answered before"),
        })
    }

    fn job(&self, add: Add, token: Option<&Token>) -> Result<NewJob, Refusal> {
        let name = &add.key.topic;
        check(token, Need::Produce(name.as_str()))?;
        let refused = || self.counters.known_topic(name.as_str()).added(AddOutcome::Refused, 1);
        let Some(topic) = self.topics.now().get(name.as_str()) else {
            refused();
            return Err(unregistered(name));
        };
        if let Some(why) = self.topics.now().refusal(name.as_str()) {
            refused();
            return Err(Refusal::new("topic_offline", why));
        }
        Ok(NewJob {
            due: add.due.unwrap_or(Due::In(topic.delay)),
            key: add.key,
            body: add.body,
            priority: add.priority,
            on_conflict: add.on_conflict,
            max_attempts: add.max_attempts,
            attempts: 0,
            headers: add.headers,
        })
    }
}

/// Why a token lets nobody in.
const UNKNOWN: &str = "the token is unknown, revoked or expired";

/// Whether a token is enough; none: none is needed.
fn check(token: Option<&Token>, need: Need<'_>) -> Result<(), Refusal> {
    match token {
        Some(token) if !token.permits(need) => {
            let problem = format!("token {} has no scope {need}, which this needs", token.name);
            Err(Refusal::new("forbidden", problem))
        }
        _ => Ok(()),
    }
}

fn unregistered(topic: &TopicName) -> Refusal {
    Refusal::new("unknown_topic", format!("topic {topic} is not registered"))
}

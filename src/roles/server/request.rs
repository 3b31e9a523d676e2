//! Turns a client's command into a request for the store.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;

use super::answer::{
    JsonBytes, ReplyAddress, SUCCESS, TcpFrontend, added, added_many, changed, counted, deleted, job_found,
    refused,
};
use super::reserves::{Reserves, WaitingReserve};
use host::now_ms;
use model::excerpt::Excerpt;
use model::failure_limiter::{ClientSource, FailureLimiter, FailureLimiterVerdict};
use model::follow::ThenRefusal;
use model::job::{Due, NewJob, TopicName};
use model::metrics::AddOutcome;
use model::open_connections::OpenConnections;
use model::quota::Quota;
use model::scope::RequiredAccess;
use model::settings::{Auth, Settings};
use model::token::{PresentedToken, Token, VerifiedToken};
use protocol::LocalClock;
use protocol::dq::{self, Add, Command, DIGITS_MAX, FrameError, Framing, Refusal, Reserve};
use role::submit::{StoreRequest, Submitter};
use role::{RefusalLog, RegistryView};
use telemetry::counters::Counters;

/// The maximum number of jobs of a `madd` in the digits framing. The shortened answers for these jobs fit into the
/// longest frame of that framing.
const MADD_DIGITS_MAX: usize = 200;

/// The longest frame, in bytes, of a client that must show a token and has not shown it yet.
const UNKNOWN_MAX: usize = 64 << 10;

/// A client that needs a token must show it within this time after its connection was opened.
const PROOF_PATIENCE: Duration = Duration::from_secs(10);

/// Returns the length of the longest answer in bytes.
fn longest(framing: Framing) -> usize {
    match framing {
        Framing::Digits => DIGITS_MAX,
        Framing::Binary => usize::MAX,
    }
}

/// What happened to a request.
pub(super) enum RequestOutcome {
    /// The request is answered.
    Answered(JsonBytes),
    /// The request was handed to the store.
    Asked {
        /// Whether the answer may be as long as a job's body.
        is_get: bool,
    },
    /// The request reserves jobs, and waits for them.
    Waits(WaitingReserve),
    /// The request is taken when all earlier requests of its connection are answered.
    Later,
}

/// Answers requests that do not need the store, refuses wrong requests, and hands all other requests to the store.
pub(super) struct RequestRouter {
    pub settings: Arc<Settings>,
    pub topics: RegistryView,
    pub zone: TimeZone,
    pub failures: RefCell<FailureLimiter>,
    pub refusals: RefCell<RefusalLog>,
    pub counters: Counters,
    pub reserves: Reserves,
}

/// The client that sent a request.
pub(super) struct Client<'a> {
    pub peer: SocketAddr,
    /// The token that the client has shown.
    pub pass: &'a mut Option<VerifiedToken>,
    /// Whether earlier requests are not answered yet.
    pub is_owed: bool,
}

impl RequestRouter {
    /// Whether a client may connect while `open` connections are open. `more` further connections are not yet counted
    /// in `open`.
    pub(super) fn admit(&self, peer: SocketAddr, open: &OpenConnections, more: usize) -> Result<(), String> {
        let server = &self.settings.server;
        if !server.allow.is_empty() && !server.allow.iter().any(|net| net.contains(&peer.ip().to_canonical()))
        {
            return Err("server.allow does not name it".into());
        }
        open.check(ClientSource::address(peer.ip()), more).map_err(|no_place| no_place.to_string())
    }

    /// Reads the topics and tokens again if they have changed.
    pub(super) fn follow_topics(&mut self) {
        if let Some(topics) = self.topics.reload() {
            self.reserves.serve(topics.clone());
        }
    }

    /// How long a new connection may take to show its token. None: the client needs no token.
    pub(super) fn proof_patience(&self) -> Option<Duration> {
        (self.settings.server.auth == Auth::Token).then_some(PROOF_PATIENCE)
    }

    /// The longest frame that a client may send.
    pub(super) fn max_frame(&self, pass: Option<&VerifiedToken>) -> usize {
        let server = &self.settings.server;
        match (server.auth, pass) {
            (Auth::Token, None) => server.max_frame.min(UNKNOWN_MAX),
            _ => server.max_frame,
        }
    }

    /// Handles a request: hands it to the store, or answers it at once.
    pub(super) fn take(
        &self,
        json: &[u8],
        framing: Framing,
        client: Client<'_>,
        reply_to: ReplyAddress,
        submit: &mut Submitter<TcpFrontend>,
    ) -> RequestOutcome {
        let command = match dq::parse(json, LocalClock { zone: &self.zone, now_ms: host::now_ms }) {
            Ok(Command::Ping) => return RequestOutcome::Answered(SUCCESS.into()),
            Ok(Command::Auth(shown)) => return RequestOutcome::Answered(self.let_in(&shown, client)),
            other => other,
        };
        let token = match self.token(client.pass.as_ref()) {
            Ok(token) => token,
            Err(refusal) => return RequestOutcome::Answered(self.refuse(client.peer, false, &refusal)),
        };
        let command = match command {
            Ok(Command::Reserve(_)) if client.is_owed => return RequestOutcome::Later,
            Ok(Command::Reserve(reserve)) => {
                return match self.reserve(reserve, framing, client.peer, token, reply_to) {
                    Ok(waiting) => RequestOutcome::Waits(waiting),
                    Err(refusal) => RequestOutcome::Answered(self.refuse(client.peer, true, &refusal)),
                };
            }
            other => other,
        };
        let is_get = matches!(command, Ok(Command::Get(_)));
        let request = match command.and_then(|command| self.request(command, framing, token)) {
            Ok(request) => request,
            Err(refusal) => return RequestOutcome::Answered(self.refuse(client.peer, true, &refusal)),
        };
        match submit.hand_in(reply_to, request, json.len()) {
            Ok(()) => RequestOutcome::Asked { is_get },
            Err(hung) => RequestOutcome::Answered(refused(&Refusal::new("store_busy", hung.to_string()))),
        }
    }

    /// Checks a token that the client shows. The connection may then send requests as long as the token is valid.
    fn let_in(&self, shown: &PresentedToken, client: Client<'_>) -> JsonBytes {
        if self.settings.server.auth == Auth::None {
            return SUCCESS.into();
        }
        *client.pass = self.topics.tokens().find_by_secret(&shown.0, host::now_ms()).map(VerifiedToken::from);
        if client.pass.is_some() {
            return SUCCESS.into();
        }
        let source = ClientSource::address(client.peer.ip());
        let refusal = match self.failures.borrow_mut().record_failure(source, Instant::now()) {
            FailureLimiterVerdict::TooMany(until) => {
                let left = until.saturating_duration_since(Instant::now()).as_secs() + 1;
                let problem = format!("too many wrong tokens from {source}: wait {left} s");
                Refusal::new("too_many_failures", problem)
            }
            FailureLimiterVerdict::Counted => Refusal::new("unauthorized", UNKNOWN),
        };
        self.refuse(client.peer, false, &refusal)
    }

    /// Refuses a request, and records it for the log. `has_token`: the connection has a valid token, or needs none.
    fn refuse(&self, peer: SocketAddr, has_token: bool, refusal: &Refusal) -> JsonBytes {
        let text = || format!("{}: {}", refusal.err, Excerpt(&refusal.msg));
        self.refusals.borrow_mut().record(ClientSource::address(peer.ip()), has_token, text);
        refused(refusal)
    }

    /// Refuses a frame whose end cannot be found.
    pub(super) fn refuse_frame(&self, client: &Client<'_>, error: &FrameError) -> JsonBytes {
        let has_token = self.token(client.pass.as_ref()).is_ok();
        self.refuse(client.peer, has_token, &Refusal::new("bad_frame", error.to_string()))
    }

    /// Returns the present state of a connection's token. `None` if no token is needed.
    pub(super) fn token(&self, pass: Option<&VerifiedToken>) -> Result<Option<&Token>, Refusal> {
        if self.settings.server.auth == Auth::None {
            return Ok(None);
        }
        let refuse = |why| Err(Refusal::new("unauthorized", why));
        let Some(pass) = pass else {
            return refuse("a token is needed: {\"cmd\":\"auth\",\"token\":\"dq_…\"}");
        };
        let token = self.topics.tokens().passed(pass, host::now_ms());
        token.map_or_else(|| refuse(UNKNOWN), |token| Ok(Some(token)))
    }

    /// Begins a reserve.
    fn reserve(
        &self,
        reserve: Reserve,
        framing: Framing,
        peer: SocketAddr,
        token: Option<&Token>,
        reply_to: ReplyAddress,
    ) -> Result<WaitingReserve, Refusal> {
        if framing == Framing::Digits {
            // A job that does not fit into the answer would be leased and handed back again and again.
            let problem = "reserve needs frames with a length of 4 bytes in big-endian order, because an answer \
                           may be longer than 9999 bytes";
            return Err(Refusal::new("bad_frame", problem));
        }
        for topic in &reserve.topics {
            check(token, RequiredAccess::Consume(topic.as_str()))?;
        }
        let valid_for = token.and_then(|token| token.valid_for(now_ms()));
        self.reserves.begin(reserve, valid_for, self.topics.now(), peer.ip(), reply_to)
    }

    /// Returns the request for the store.
    fn request(
        &self,
        command: Command,
        framing: Framing,
        token: Option<&Token>,
    ) -> Result<StoreRequest<JsonBytes>, Refusal> {
        let most = longest(framing);
        match &command {
            Command::Get(key) => check(token, RequiredAccess::Jobs(key.topic.as_str()))?,
            Command::Del(key) | Command::Run(key) => {
                check(token, RequiredAccess::Produce(key.topic.as_str()))?
            }
            Command::Stats(None) => check(token, RequiredAccess::Read)?,
            Command::Stats(Some(topic)) => check(token, RequiredAccess::Topic(topic.as_str()))?,
            // Each job is checked by itself, below.
            Command::Add(_) | Command::Madd(_) => {}
            Command::Report(report) => check(token, RequiredAccess::Consume(report.key.topic.as_str()))?,
            Command::Ping | Command::Auth(_) | Command::Reserve(_) => {}
        }
        Ok(match command {
            Command::Add(add) => StoreRequest::add(self.job(add, token)?, added),
            Command::Madd(adds) if framing == Framing::Digits && adds.len() > MADD_DIGITS_MAX => {
                let problem = format!(
                    "jobs holds {} jobs; with a length of 4 digits, at most {MADD_DIGITS_MAX} can be answered",
                    adds.len()
                );
                return Err(Refusal::new("bad_field", problem));
            }
            Command::Madd(adds) => {
                let mut jobs = Vec::new();
                let take = |add: Result<Add, Refusal>| self.job(add?, token).map(|job| jobs.push(job));
                let items: Vec<_> = adds.into_iter().map(take).collect();
                StoreRequest::add_many(jobs, move |all| added_many(&items, all, most))
            }
            Command::Get(key) => {
                let zone = self.zone.clone();
                let need = RequiredAccess::Answers(key.topic.as_str());
                let sees_answers = token.is_none_or(|token| token.permits(need));
                StoreRequest::get(key, move |key, found| job_found(key, found, &zone, most, sees_answers))
            }
            Command::Del(key) => StoreRequest::delete(key, deleted),
            Command::Run(key) => StoreRequest::run(key, changed),
            Command::Stats(Some(topic)) if self.topics.now().get(topic.as_str()).is_none() => {
                return Err(unregistered(&topic));
            }
            Command::Stats(topic) => StoreRequest::count(move |counts| counted(topic.as_ref(), counts)),
            Command::Report(report) => self.reserves.report(report, self.topics.now())?,
            Command::Ping | Command::Auth(_) | Command::Reserve(_) => unreachable!("they are taken before"),
        })
    }

    fn job(&self, add: Add, token: Option<&Token>) -> Result<NewJob, Refusal> {
        let name = &add.key.topic;
        check(token, RequiredAccess::Produce(name.as_str()))?;
        let refused = || self.counters.known_topic(name.as_str()).added(AddOutcome::Refused, 1);
        let Some(topic) = self.topics.now().get(name.as_str()) else {
            refused();
            return Err(unregistered(name));
        };
        if let Some(why) = self.topics.now().refusal(name.as_str()) {
            refused();
            return Err(Refusal::new("topic_offline", why));
        }
        if let Some(problem) = topic.refuse_job_headers(&add.headers) {
            refused();
            return Err(Refusal::new("bad_field", format!("headers: {problem}")));
        }
        if let Some(destination) = add.headers.destination()
            && let Some(problem) = topic.refuse_destination(destination)
        {
            refused();
            return Err(Refusal::new("bad_field", format!("{}: {problem}", destination.field())));
        }
        let permits = |need: RequiredAccess<'_>| token.is_none_or(|token| token.permits(need));
        let then = add.headers.then().clone().checked(self.topics.now(), permits);
        let then = then.map_err(|why| {
            refused();
            refusal_of(why)
        })?;
        let due = add.due.unwrap_or(Due::In(topic.delay));
        let expires_ms = topic.expires_ms(add.expire_after, due, now_ms());
        Ok(NewJob {
            due,
            key: add.key,
            body: add.body,
            priority: add.priority,
            on_conflict: add.on_conflict,
            max_attempts: add.max_attempts,
            attempts: 0,
            headers: add.headers.with_then(then).with_expires_ms(expires_ms),
            quota: Quota::of(topic, token),
        })
    }
}

/// Why a token is refused.
const UNKNOWN: &str = "the token is unknown, revoked or expired";

/// Checks that a token has the needed scope. `None` if no token is needed.
fn check(token: Option<&Token>, need: RequiredAccess<'_>) -> Result<(), Refusal> {
    match token {
        Some(token) if !token.permits(need) => {
            let problem = format!("token {} has no scope {need}, which this needs", token.name);
            Err(Refusal::new("forbidden", problem))
        }
        _ => Ok(()),
    }
}

/// Returns why the jobs that should follow a job are refused.
fn refusal_of(refused: ThenRefusal) -> Refusal {
    let (code, field, why) = match refused {
        ThenRefusal::UnknownTopic(field, why) => ("unknown_topic", field, why),
        ThenRefusal::Offline(field, why) => ("topic_offline", field, why),
        ThenRefusal::Field(field, why) => ("bad_field", field, why),
        ThenRefusal::Forbidden(field, scope) => {
            ("forbidden", field, format!("the token has no scope {scope}, which this needs"))
        }
    };
    Refusal::new(code, format!("{field}: {why}"))
}

fn unregistered(topic: &TopicName) -> Refusal {
    Refusal::new("unknown_topic", format!("topic {topic} is not registered"))
}

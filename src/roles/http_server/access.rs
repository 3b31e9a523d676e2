//! Who may do what: what each route needs, and whether who asks has it.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request};
use axum::http::header::{AUTHORIZATION, COOKIE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::sync::{Semaphore, watch};

use super::admission::Hosts;
use super::problem::Problem;
use crate::process;
use crate::role::lock;
use crate::scope::Need;
use crate::session;
use crate::settings::{Auth, Http};
use crate::strikes::{Source, Strike, Strikes};
use crate::token::{Pass, Token, TokenName, Tokens};

/// What a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Nothing.
    Anyone,
    /// What its path holds, which the route itself looks at.
    Ticket,
    /// What its body holds, which the route itself looks at.
    Password,
    Read,
    /// To look at jobs of its topic.
    Jobs,
    Produce,
    Consume,
    Admin,
}

/// What routes need. Whatever is not here needs everything: a route that somebody forgets is shut.
#[rustfmt::skip]
const RULES: &[(&str, &str, Rule)] = &[
    ("GET",    "/",                               Rule::Anyone),
    ("GET",    "/console/{path}",                 Rule::Anyone),
    ("GET",    "/console/session",                Rule::Anyone),
    ("POST",   "/console/session",                Rule::Password),
    ("DELETE", "/console/session",                Rule::Anyone),
    ("GET",    "/healthz",                        Rule::Anyone),
    ("GET",    "/readyz",                         Rule::Anyone),
    ("GET",    "/metrics",                        Rule::Read),
    ("GET",    "/openapi.json",                   Rule::Read),
    ("GET",    "/v1/stats",                       Rule::Read),
    ("GET",    "/v1/nodes",                       Rule::Read),
    ("GET",    "/v1/processes",                   Rule::Read),
    ("GET",    "/v1/alerts",                      Rule::Read),
    ("GET",    "/v1/alerts/channels",             Rule::Read),
    ("GET",    "/v1/events",                      Rule::Read),
    ("GET",    "/v1/history",                     Rule::Read),
    ("GET",    "/v1/forecast",                    Rule::Read),
    ("POST",   "/v1/check/topic",                 Rule::Read),
    ("GET",    "/v1/topics",                      Rule::Read),
    ("GET",    "/v1/topics/{t}",                  Rule::Read),
    ("GET",    "/v1/topics/{t}/jobs",             Rule::Jobs),
    ("POST",   "/v1/topics/{t}/jobs",             Rule::Produce),
    // What is a batch to a POST is a job of this name to the others.
    ("POST",   "/v1/topics/{t}/jobs/batch",       Rule::Produce),
    ("GET",    "/v1/topics/{t}/jobs/batch",       Rule::Jobs),
    ("PATCH",  "/v1/topics/{t}/jobs/batch",       Rule::Produce),
    ("DELETE", "/v1/topics/{t}/jobs/batch",       Rule::Produce),
    ("GET",    "/v1/topics/{t}/jobs/{id}",        Rule::Jobs),
    ("PATCH",  "/v1/topics/{t}/jobs/{id}",        Rule::Produce),
    ("DELETE", "/v1/topics/{t}/jobs/{id}",        Rule::Produce),
    ("POST",   "/v1/topics/{t}/jobs/{id}/run",    Rule::Produce),
    ("POST",   "/v1/topics/{t}/reserve",          Rule::Consume),
    ("POST",   "/v1/topics/{t}/jobs/{id}/ack",    Rule::Consume),
    ("POST",   "/v1/topics/{t}/jobs/{id}/nack",   Rule::Consume),
    ("POST",   "/v1/topics/{t}/jobs/{id}/extend", Rule::Consume),
    ("GET",    "/v1/topics/{t}/dead",             Rule::Jobs),
    ("POST",   "/v1/ack/{ticket}",                Rule::Ticket),
];

/// Whether a route is that one; how its parts are called does not matter.
pub(super) fn is_route(known: &str, route: &str) -> bool {
    let (mut known, mut parts) = (known.split('/'), route.split('/'));
    loop {
        match (known.next(), parts.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a == b || a.starts_with('{') && b.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// What that route needs.
fn rule(method: &Method, route: &str) -> Rule {
    // HEAD is a GET of which the answer's body is left out.
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    let found = RULES.iter().find(|(m, known, _)| *m == method && is_route(known, route));
    found.map_or(Rule::Admin, |(_, _, rule)| *rule)
}

impl Rule {
    /// Of that topic; none: nobody needs anything.
    fn need(self, topic: &str) -> Option<Need<'_>> {
        Some(match self {
            Rule::Anyone | Rule::Ticket | Rule::Password => return None,
            Rule::Read => Need::Read,
            Rule::Jobs => Need::Jobs(topic),
            Rule::Produce => Need::Produce(topic),
            Rule::Consume => Need::Consume(topic),
            Rule::Admin => Need::Admin,
        })
    }
}

/// From where a connection has come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// By TCP.
    Address(IpAddr),
    /// By the Unix socket; which user, if the system has said it.
    User(Option<u32>),
}

impl Peer {
    pub(super) fn source(self) -> Source {
        match self {
            Peer::Address(ip) => Source::address(ip),
            Peer::User(uid) => Source::User(uid.unwrap_or(u32::MAX)),
        }
    }
}

/// Who asks; among a request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Caller {
    /// Root, or the daemon's own user, by the Unix socket.
    Local(u32),
    /// Whoever reaches a port that asks for nothing.
    Anybody,
    /// Who has a token.
    Token(TokenName),
    /// Who has signed in to the console.
    Account(TokenName),
}

/// As it is written down.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Local(0) => f.write_str("root"),
            Caller::Local(uid) => write!(f, "user {uid}"),
            Caller::Anybody => Ok(()),
            Caller::Token(name) => write!(f, "token {name}"),
            Caller::Account(name) => write!(f, "account {name}"),
        }
    }
}

/// Among an answer's extensions: who asked had a valid token or session, or needed none here.
#[derive(Debug, Clone, Copy)]
pub(super) struct HasToken;

/// Who it is, and by which token.
type Known = (Caller, Option<Token>);

/// What a page shows with each change.
const CSRF: HeaderName = HeaderName::from_static("dq-csrf");

/// The cookies of that name: one that is left over from another path may stand before the one that counts.
fn cookies<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    all.flat_map(|cookies| cookies.split(';')).filter_map(move |one| {
        let (own, value) = one.trim().split_once('=')?;
        (own == name).then_some(value)
    })
}

/// Who has signed in, and what his cookie of that name says, if a request is of his browser.
pub(super) fn holder<'a, 'b>(
    headers: &'b HeaderMap,
    name: &str,
    tokens: &'a Tokens,
) -> Option<(&'a Token, &'b str)> {
    let now_ms = process::now_ms();
    cookies(headers, name).find_map(|value| Some((session::holder(tokens, value, now_ms)?, value)))
}

/// What is needed to let somebody in.
pub(super) struct Access {
    auth: Auth,
    tokens: watch::Receiver<Tokens>,
    strikes: Mutex<Strikes>,
    hosts: Arc<Hosts>,
    /// The name of the cookie of those who have signed in.
    cookie: String,
    requests: Semaphore,
    /// Of those who show a ticket: they take no room from those who show a token.
    tickets: Semaphore,
    max_requests: usize,
    own_user: u32,
}

impl Access {
    pub(super) fn new(http: &Http, tokens: watch::Receiver<Tokens>, hosts: Arc<Hosts>) -> Access {
        Access {
            auth: http.auth,
            tokens,
            strikes: Mutex::default(),
            hosts,
            cookie: session::cookie(http.listen),
            requests: Semaphore::new(http.max_requests),
            tickets: Semaphore::new(http.max_requests.div_ceil(4)),
            max_requests: http.max_requests,
            own_user: nix::unistd::geteuid().as_raw(),
        }
    }

    /// Whether somebody needs no token at all.
    fn needs_no_token(&self, peer: Peer) -> bool {
        self.auth == Auth::None || self.local_user(peer).is_some()
    }

    /// Root, or the daemon's own user, by the Unix socket.
    fn local_user(&self, peer: Peer) -> Option<u32> {
        match peer {
            Peer::User(uid) => uid.filter(|uid| *uid == 0 || *uid == self.own_user),
            Peer::Address(_) => None,
        }
    }

    /// Who it is, and by which token; or why that is not to be known.
    fn caller(&self, peer: Peer, method: &Method, headers: &HeaderMap) -> Result<Known, Box<Response>> {
        if let Some(uid) = self.local_user(peer) {
            return Ok((Caller::Local(uid), None));
        }
        if !headers.contains_key(AUTHORIZATION)
            && let Some(known) = self.signed_in(method, headers)?
        {
            return Ok(known);
        }
        if self.auth == Auth::None {
            if matches!(peer, Peer::Address(_)) {
                let foreign =
                    |why| Box::new(Problem::new(StatusCode::FORBIDDEN, "foreign", why).into_response());
                self.hosts.check(headers).map_err(foreign)?;
            }
            return Ok((Caller::Anybody, None));
        }
        let Some(header) = headers.get(AUTHORIZATION) else {
            let wanted = "a token is needed: \"Authorization: Bearer dq_…\"";
            return Err(Box::new(unauthorized(wanted, "Bearer realm=\"dq\"")));
        };
        let shown = header.to_str().ok().and_then(|text| text.split_once(' '));
        let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, t)| t.trim());
        let tokens = self.tokens.borrow().clone();
        match shown.and_then(|secret| tokens.shown(secret, process::now_ms())) {
            Some(token) => Ok((Caller::Token(token.name.clone()), Some(token.clone()))),
            None => Err(Box::new(self.wrong_token(peer))),
        }
    }

    /// Who has signed in to the console, if a request is of his browser. A change shows besides the cookie, which a browser sends by
    /// itself, what only the console's own page knows.
    fn signed_in(&self, method: &Method, headers: &HeaderMap) -> Result<Option<Known>, Box<Response>> {
        if !headers.contains_key(COOKIE) {
            return Ok(None);
        }
        let tokens = self.tokens.borrow().clone();
        let Some((account, value)) = holder(headers, &self.cookie, &tokens) else { return Ok(None) };
        let shown = headers.get(CSRF).and_then(|shown| shown.to_str().ok()).unwrap_or_default();
        if !method.is_safe() && !session::is_csrf(account, value, shown) {
            let detail = "a change by who has signed in carries dq-csrf, as GET /console/session tells it";
            return Err(Box::new(Problem::new(StatusCode::FORBIDDEN, "no_csrf", detail).into_response()));
        }
        Ok(Some((Caller::Account(account.name.clone()), Some(account.clone()))))
    }

    fn wrong_token(&self, peer: Peer) -> Response {
        let strike = lock(&self.strikes).strike(peer.source(), Instant::now());
        if let Strike::TooMany(until) = strike {
            return too_many_failures("tokens", peer, until);
        }
        let why = "the token is unknown, revoked or expired";
        unauthorized(why, "Bearer realm=\"dq\", error=\"invalid_token\"")
    }
}

/// Refuses whoever has shown too many wrong tokens, or passwords, until that moment.
pub(super) fn too_many_failures(of_what: &str, peer: Peer, until: Instant) -> Response {
    let left = until.saturating_duration_since(Instant::now()).as_secs() + 1;
    let detail = format!("too many wrong {of_what} from {}: wait {left} s", peer.source());
    let mut response =
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_failures", detail).into_response();
    response.headers_mut().insert(RETRY_AFTER, left.into());
    response
}

fn unauthorized(why: &str, challenge: &'static str) -> Response {
    let mut response = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", why).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    response
}

fn forbidden(caller: &Caller, need: Need<'_>) -> Response {
    let detail = format!("{caller} has no scope {need}, which this needs");
    let mut response = Problem::new(StatusCode::FORBIDDEN, "forbidden", detail).into_response();
    let challenge = format!("Bearer realm=\"dq\", error=\"insufficient_scope\", scope=\"{need}\"");
    // A topic is as the path names it, which may be anything.
    if let Ok(challenge) =
        HeaderValue::try_from(challenge.replace(|c: char| !c.is_ascii_graphic() && c != ' ', "?"))
    {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// The first part of a path that is no fixed one: a topic, where a rule is about topics.
async fn topic(parts: &mut Parts) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, &()).await.ok()?;
    params.iter().next().map(|(_, topic)| topic.to_owned())
}

/// Lets in who may do what he asks for, and not more of them at once than there is room for. An answer tells whether who asked
/// had a token.
pub(super) async fn let_in<F: Future<Output = Response>>(
    access: &Access,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let (parts, body) = request.into_parts();
    let peer = parts.extensions.get::<Peer>().copied().unwrap_or(Peer::User(None));
    let route = parts.extensions.get::<MatchedPath>().cloned();
    let rule = route.as_ref().map(|route| rule(&parts.method, route.as_str()));
    let mut has_token = rule != Some(Rule::Password) && access.needs_no_token(peer);
    let mut answer = match rule {
        Some(Rule::Anyone | Rule::Password) => next(Request::from_parts(parts, body)).await,
        _ => let_in_by(access, rule, (peer, &mut has_token), (parts, body), next).await,
    };
    if has_token {
        answer.extensions_mut().insert(HasToken);
    }
    answer
}

/// Lets somebody in to a route that needs something; `has_token` becomes true when he has shown a valid token.
async fn let_in_by<F: Future<Output = Response>>(
    access: &Access,
    rule: Option<Rule>,
    (peer, has_token): (Peer, &mut bool),
    (mut parts, body): (Parts, Body),
    next: impl FnOnce(Request) -> F,
) -> Response {
    let known = match rule {
        Some(Rule::Ticket) => Ok((Caller::Anybody, None)),
        _ => access.caller(peer, &parts.method, &parts.headers),
    };
    let (caller, token) = match known {
        Ok(known) => known,
        Err(refusal) => return *refusal,
    };
    *has_token |= rule != Some(Rule::Ticket);
    // To whom it may tell anything, it tells that there is nothing.
    if let (Some(rule), Some(token)) = (rule, &token) {
        let topic = topic(&mut parts).await.unwrap_or_default();
        if let Some(need) = rule.need(&topic)
            && !token.permits(need)
        {
            return forbidden(&caller, need);
        }
    }
    let rooms = if rule == Some(Rule::Ticket) { &access.tickets } else { &access.requests };
    let room = rooms.try_acquire();
    // Whoever is called when nothing works any more finds a way in.
    if room.is_err() && !matches!(caller, Caller::Local(_)) {
        let detail = format!("{} requests are being answered (http.max_requests)", access.max_requests);
        return Problem::unavailable("busy", detail).into_response();
    }
    parts.extensions.insert(caller);
    if let Some(token) = &token {
        parts.extensions.insert(Pass::from(token));
    }
    let answer = next(Request::from_parts(parts, body)).await;
    drop(room);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_in_the_table_needs_everything() {
        for (method, route, expected) in [
            ("GET", "/healthz", Rule::Anyone),
            ("POST", "/v1/ack/{ticket}", Rule::Ticket),
            ("GET", "/v1/ack/{ticket}", Rule::Admin),
            ("HEAD", "/v1/stats", Rule::Read),
            ("POST", "/v1/stats", Rule::Admin),
            ("GET", "/v1/topics/{topic}/jobs/{id}", Rule::Jobs),
            ("GET", "/v1/topics/{name}/jobs/{key}", Rule::Jobs),
            ("POST", "/v1/topics/{topic}/jobs/batch", Rule::Produce),
            ("PUT", "/v1/topics/{topic}", Rule::Admin),
            ("POST", "/v1/topics/{topic}/dead/purge", Rule::Admin),
            ("GET", "/v1/tokens", Rule::Admin),
            ("GET", "/v1/topics/{topic}/jobs/{id}/more", Rule::Admin),
            ("GET", "/", Rule::Anyone),
            ("POST", "/console/session", Rule::Password),
            ("POST", "/", Rule::Admin),
            ("GET", "/console/{*path}", Rule::Anyone),
            ("PUT", "/console/session", Rule::Admin),
            ("GET", "/v1/audit", Rule::Admin),
            ("GET", "/v1/accounts", Rule::Admin),
            ("OPTIONS", "/v1/topics", Rule::Admin),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(rule(&method, route), expected, "{method} {route}");
        }
    }
}

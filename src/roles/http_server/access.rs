//! Access control: whether a caller has what a route needs (`route_rule`), and whether one more request may run now.

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
use tokio::sync::watch;

use super::admission::AcceptedHosts;
use super::connections::AuthenticatedFlag;
use super::pool::{PoolHolder, ResourcePool};
use super::problem::Problem;
use super::reserves::RequestShare;
use super::route_rule::{RouteRule, rule};
use super::sessions::SessionSettings;
use model::failure_limiter::{ClientSource, FailureLimiter, FailureLimiterVerdict};
use model::scope::RequiredAccess;
use model::session;
use model::settings::{Auth, HttpSettings};
use model::token::{Token, TokenName, Tokens, VerifiedToken};
use role::lock;

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// TCP: the client's address.
    Address(IpAddr),
    /// The Unix socket: the client's user id, if the system reports it.
    User(Option<u32>),
}

impl Peer {
    pub(super) fn source(self) -> ClientSource {
        match self {
            Peer::Address(ip) => ClientSource::address(ip),
            Peer::User(uid) => ClientSource::User(uid.unwrap_or(u32::MAX)),
        }
    }
}

/// Who makes a request. The value is stored in the request's axum extensions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Caller {
    /// Root or the daemon's own user, on the Unix socket. The value is the user id.
    Local(u32),
    /// A caller that needs no token: `http.auth` is `none`, or the route takes a ticket.
    Anybody,
    /// A client with a token. The value is the token's name.
    Token(TokenName),
    /// A person who has signed in to the console. The value is the account's name.
    Account(TokenName),
}

/// Writes the caller in the form that the audit log and the log lines use.
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

/// An extension of an answer. It is present if the caller had a valid token or session, or needed no token.
#[derive(Debug, Clone, Copy)]
pub(super) struct AuthenticatedMark;

/// What the caller of a request may do. The value is an extension of each request that needs a scope.
#[derive(Debug, Clone)]
pub(super) struct CallerPermissions(Option<Token>);

impl CallerPermissions {
    /// The token or account of the caller. None: the caller needs no token.
    pub(super) fn token(&self) -> Option<&Token> {
        self.0.as_ref()
    }

    /// Whether the caller may do what `need` names. A caller that needs no token may do everything.
    pub(super) fn permits(&self, need: RequiredAccess<'_>) -> bool {
        self.0.as_ref().is_none_or(|token| token.permits(need))
    }
}

/// The caller, and the token or account that proved who the caller is.
type AuthenticatedCaller = (Caller, Option<Token>);

/// The header that the console's page sends with each change.
const CSRF: HeaderName = HeaderName::from_static("dq-csrf");

/// Returns the values of all cookies with this name. There may be several, because a browser may send an old cookie of
/// another path before the valid cookie.
fn cookies<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    all.flat_map(|cookies| cookies.split(';')).filter_map(move |one| {
        let (own, value) = one.trim().split_once('=')?;
        (own == name).then_some(value)
    })
}

/// Returns the account that has signed in, and the value of its session cookie. None: the request has no valid session
/// cookie.
pub(super) fn holder<'a, 'b>(
    headers: &'b HeaderMap,
    sessions: &SessionSettings,
    tokens: &'a Tokens,
) -> Option<(&'a Token, &'b str)> {
    let now_ms = host::now_ms();
    let holder = |value| Some((session::holder(&sessions.key, tokens, value, now_ms)?, value));
    cookies(headers, &sessions.cookie).find_map(holder)
}

/// Decides who may make a request, and how many requests run at once.
pub(super) struct AccessControl {
    auth: Auth,
    tokens: watch::Receiver<Tokens>,
    failures: Mutex<FailureLimiter>,
    hosts: Arc<AcceptedHosts>,
    /// None: there is no console, so there are no sessions.
    sessions: Option<Arc<SessionSettings>>,
    requests: ResourcePool,
    /// The places for requests with a ticket. So requests with a ticket take no places from requests with a token.
    tickets: ResourcePool,
    max_requests: usize,
    own_user: u32,
}

impl AccessControl {
    pub(super) fn new(
        http: &HttpSettings,
        tokens: watch::Receiver<Tokens>,
        hosts: Arc<AcceptedHosts>,
        sessions: Option<Arc<SessionSettings>>,
    ) -> AccessControl {
        AccessControl {
            auth: http.auth,
            tokens,
            failures: Mutex::default(),
            hosts,
            sessions,
            // One caller or one source gets at most half of the places.
            requests: ResourcePool::new(http.max_requests, http.max_requests.div_ceil(2)),
            tickets: ResourcePool::new(http.max_requests.div_ceil(4), http.max_requests.div_ceil(8)),
            max_requests: http.max_requests,
            own_user: nix::unistd::geteuid().as_raw(),
        }
    }

    /// Whether this caller needs no token.
    fn needs_no_token(&self, peer: Peer) -> bool {
        self.auth == Auth::None || self.local_user(peer).is_some()
    }

    /// Returns the caller's user id, if the caller is root or the daemon's user on the Unix socket.
    fn local_user(&self, peer: Peer) -> Option<u32> {
        match peer {
            Peer::User(uid) => uid.filter(|uid| *uid == 0 || *uid == self.own_user),
            Peer::Address(_) => None,
        }
    }

    /// Returns the caller and its token, or the answer that refuses the request.
    fn caller(
        &self,
        peer: Peer,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<AuthenticatedCaller, Box<Response>> {
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
        match shown.and_then(|secret| tokens.find_by_secret(secret, host::now_ms())) {
            Some(token) => Ok((Caller::Token(token.name.clone()), Some(token.clone()))),
            None => Err(Box::new(self.wrong_token(peer))),
        }
    }

    /// Returns the account that has signed in to the console, if the request has a valid session cookie. A browser adds
    /// the cookie to a request automatically, so the cookie does not prove that the console's own page made the
    /// request. Therefore a change must also carry the CSRF value, which only this page knows.
    fn signed_in(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Option<AuthenticatedCaller>, Box<Response>> {
        let Some(sessions) = self.sessions.as_deref().filter(|_| headers.contains_key(COOKIE)) else {
            return Ok(None);
        };
        let tokens = self.tokens.borrow().clone();
        let Some((account, value)) = holder(headers, sessions, &tokens) else { return Ok(None) };
        let shown = headers.get(CSRF).and_then(|shown| shown.to_str().ok()).unwrap_or_default();
        if !method.is_safe() && !session::is_csrf(&sessions.key, account, value, shown) {
            let detail = "with a session cookie, a change needs dq-csrf (see GET /console/session)";
            return Err(Box::new(Problem::new(StatusCode::FORBIDDEN, "no_csrf", detail).into_response()));
        }
        Ok(Some((Caller::Account(account.name.clone()), Some(account.clone()))))
    }

    fn wrong_token(&self, peer: Peer) -> Response {
        let record_failure = lock(&self.failures).record_failure(peer.source(), Instant::now());
        if let FailureLimiterVerdict::TooMany(until) = record_failure {
            return too_many_failures("tokens", peer, until);
        }
        let why = "the token is unknown, revoked or expired";
        unauthorized(why, "Bearer realm=\"dq\", error=\"invalid_token\"")
    }
}

/// Returns the refusal for a caller that has sent too many wrong tokens or passwords. The refusal ends at the time
/// `until`.
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

fn forbidden(caller: &Caller, need: RequiredAccess<'_>) -> Response {
    let detail = format!("{caller} has no scope {need}, which this needs");
    let mut response = Problem::new(StatusCode::FORBIDDEN, "forbidden", detail).into_response();
    let challenge = format!("Bearer realm=\"dq\", error=\"insufficient_scope\", scope=\"{need}\"");
    // The topic comes from the path, so it may contain any character.
    let challenge = challenge.replace(|c: char| !c.is_ascii_graphic() && c != ' ', "?");
    if let Ok(challenge) = HeaderValue::try_from(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Returns the first parameter of a path. If the rule of the route is about a topic, this is the topic.
async fn topic(parts: &mut Parts) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, &()).await.ok()?;
    params.iter().next().map(|(_, topic)| topic.to_owned())
}

/// Passes on a request if its caller may make the request, and if there is a free place for the request. The answer
/// gets the extension [`AuthenticatedMark`] if the caller has a valid token or session, or needs no token.
pub(super) async fn let_in<F: Future<Output = Response>>(
    access: &AccessControl,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let peer = parts.extensions.get::<Peer>().copied().unwrap_or(Peer::User(None));
    let route = parts.extensions.get::<MatchedPath>().cloned();
    let rule = route.as_ref().map(|route| rule(&parts.method, route.as_str()));
    let proof = parts.extensions.get::<AuthenticatedFlag>().cloned().unwrap_or_default();
    let mut has_token = rule != Some(RouteRule::Password) && access.needs_no_token(peer);
    if has_token {
        proof.record();
    }
    if rule == Some(RouteRule::AnyoneInBrief)
        && let Ok((caller, token)) = access.caller(peer, &parts.method, &parts.headers)
        && token.is_none_or(|token| token.permits(RequiredAccess::Read))
    {
        parts.extensions.insert(caller);
    }
    let mut answer = match rule {
        Some(RouteRule::Anyone | RouteRule::AnyoneInBrief | RouteRule::Password) => {
            next(Request::from_parts(parts, body)).await
        }
        _ => let_in_by(access, rule, (peer, &mut has_token), (parts, body), next).await,
    };
    if has_token {
        answer.extensions_mut().insert(AuthenticatedMark);
    }
    answer
}

/// Passes on a request for a route that needs a scope or a ticket. Sets `has_token` when the caller has a valid token
/// or session, or needs no token.
async fn let_in_by<F: Future<Output = Response>>(
    access: &AccessControl,
    rule: Option<RouteRule>,
    (peer, has_token): (Peer, &mut bool),
    (mut parts, body): (Parts, Body),
    next: impl FnOnce(Request) -> F,
) -> Response {
    let known = match rule {
        Some(RouteRule::Ticket) => Ok((Caller::Anybody, None)),
        _ => access.caller(peer, &parts.method, &parts.headers),
    };
    let (caller, token) = match known {
        Ok(known) => known,
        Err(refusal) => return *refusal,
    };
    if rule != Some(RouteRule::Ticket) {
        *has_token = true;
        parts.extensions.get::<AuthenticatedFlag>().inspect(|proof| proof.record());
    }
    // A path that does not exist has no rule. So a caller with a valid token passes, and gets the answer 404.
    if let (Some(rule), Some(token)) = (rule, &token) {
        let topic = topic(&mut parts).await.unwrap_or_default();
        if let Some(need) = rule.need(&topic)
            && !token.permits(need)
        {
            return forbidden(&caller, need);
        }
    }
    let holder = PoolHolder::new(&caller, peer);
    let places = if rule == Some(RouteRule::Ticket) { &access.tickets } else { &access.requests };
    let place = places.take(holder.clone(), 1);
    // Root and the daemon's own user get an answer even when all places are taken, so that an operator can examine an
    // overloaded daemon.
    if place.is_none() && !matches!(caller, Caller::Local(_)) {
        let detail = format!(
            "{} requests are being answered, or half of that many for this client (http.max_requests)",
            access.max_requests
        );
        return Problem::unavailable("busy", detail).into_response();
    }
    parts.extensions.insert(caller);
    holder.map(|holder| parts.extensions.insert(holder));
    if let Some(token) = &token {
        parts.extensions.insert(VerifiedToken::from(token));
    }
    parts.extensions.insert(CallerPermissions(token));
    // The place becomes free when the request is done, or earlier if the route gives the place back.
    let place = RequestShare::new(place);
    parts.extensions.insert(place.clone());
    next(Request::from_parts(parts, body)).await
}

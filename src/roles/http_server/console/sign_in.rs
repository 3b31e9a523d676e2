//! Sign-in to the console, and sign-out. Passwords are checked on a separate thread, one at a time, because a check is
//! slow on purpose.

use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::header::{CACHE_CONTROL, HOST, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::super::access::{Peer, holder, too_many_failures};
use super::super::accounts::AccountRole;
use super::super::api::Api;
use super::super::body::JsonBody;
use super::super::problem::Problem;
use super::super::sessions::SessionSettings;
use super::super::typed_body;
use host::now_ms;
use model::failure_limiter::{ClientSource, FailureLimiter, FailureLimiterVerdict};
use model::password::{self, StoredPassword};
use model::scope::Scope;
use model::session::{self, LIFE};
use model::settings::Auth;
use model::token::{Token, TokenCredential, TokenName, TokenSecret, Tokens};
use registry::{Registry, RegistryError};
use role::lock;

/// The name of the account that dq makes if there is none.
const FIRST: &str = "admin";

/// Allows one check of a password at a time.
static CHECKING: Semaphore = Semaphore::const_new(1);

/// How many sign-ins may wait for a check.
static WAITING: Semaphore = Semaphore::const_new(64);

/// How many wrong passwords a source may send within a minute, for all accounts together.
const MOST_OF_SOURCE: u32 = 50;

/// Counts wrong passwords. Each account has its own count, so that somebody behind the same address cannot block a
/// person's sign-in to another account.
#[derive(Debug)]
struct WrongPasswords {
    of_account: FailureLimiter<(ClientSource, u64)>,
    of_source: FailureLimiter,
}

static WRONG_PASSWORDS: LazyLock<Mutex<WrongPasswords>> = LazyLock::new(|| {
    Mutex::new(WrongPasswords {
        of_account: FailureLimiter::default(),
        of_source: FailureLimiter::new(MOST_OF_SOURCE),
    })
});

impl WrongPasswords {
    /// Returns the time until which dq checks no passwords of this account from this source. None: dq checks such
    /// passwords now.
    fn blocked_until(&self, (source, account): (ClientSource, u64), now: Instant) -> Option<Instant> {
        self.of_account.blocked_until((source, account), now).max(self.of_source.blocked_until(source, now))
    }

    /// Counts a wrong password.
    fn record(&mut self, (source, account): (ClientSource, u64), now: Instant) -> FailureLimiterVerdict {
        let of_source = self.of_source.record_failure(source, now);
        match self.of_account.record_failure((source, account), now) {
            FailureLimiterVerdict::Counted => of_source,
            too_many => too_many,
        }
    }
}

/// Who has signed in, if anyone.
#[derive(Serialize)]
struct SessionResponse<'a> {
    signed_in: bool,
    /// Whether there can be accounts. Without a registry, nobody can sign in.
    has_accounts: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<AccountRole>,
    /// The value that each change must carry in `dq-csrf`.
    #[serde(skip_serializing_if = "Option::is_none")]
    csrf: Option<String>,
    version: &'static str,
    instance: &'a str,
}

fn session_response(api: &Api, of: Option<(&Token, &str)>) -> Response {
    let session = SessionResponse {
        signed_in: of.is_some(),
        has_accounts: api.registrar.is_there(),
        name: of.map(|(token, _)| token.name.as_str()),
        role: of.map(|(token, _)| AccountRole::from_account(token)),
        csrf: of.and_then(|(token, value)| session::csrf(&api.sessions.as_ref()?.key, token, value)),
        version: env!("CARGO_PKG_VERSION"),
        instance: &api.settings.instance,
    };
    let mut response = Json(session).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Sets the session cookie in the browser. The browser keeps the cookie for `seconds`.
fn set_cookie(response: &mut Response, sessions: &SessionSettings, value: &str, seconds: u64) {
    let secure = if sessions.is_secure { "; Secure" } else { "" };
    let name = &sessions.cookie;
    let text = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(text) = HeaderValue::try_from(text) {
        response.headers_mut().insert(SET_COOKIE, text);
    }
}

/// Returns the account that has signed in, and the value of its cookie.
fn holder_in<'a, 'b>(api: &Api, headers: &'b HeaderMap, tokens: &'a Tokens) -> Option<(&'a Token, &'b str)> {
    holder(headers, api.sessions.as_deref()?, tokens)
}

/// The answer if there is no console. It is never sent, because the routes of the console are not served in this case.
fn no_console() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_route", "there is no console (http.console)")
}

/// Shows who has signed in.
pub(super) async fn show(State(api): State<Api>, headers: HeaderMap) -> Response {
    let tokens = api.tokens.borrow().clone();
    session_response(&api, holder_in(&api, &headers, &tokens))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignInRequest {
    name: Option<String>,
    password: Option<String>,
}

/// A name and a password that somebody has given.
struct Credentials {
    name: String,
    password: String,
}

/// Signs a person in.
pub(super) async fn begin(
    State(api): State<Api>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    JsonBody(json): JsonBody,
) -> Result<Response, Problem> {
    of_this_page(&api, &headers)?;
    api.registrar.takes("accounts")?;
    let SignInRequest { name, password } = typed_body::read(&json)?;
    let name = name.ok_or_else(|| Problem::missing("name", "the name of an account"))?;
    let password = password.ok_or_else(|| Problem::missing("password", "the password of the account"))?;
    let shown = Credentials { name, password };
    // The check continues if the client closes the connection. So a wrong password is counted in any case, and the
    // check keeps its permits (`WAITING`, `CHECKING`) until it ends.
    let checked = tokio::spawn(async move { check(&api, peer, shown).await });
    checked.await.map_err(|_| busy())?
}

/// Checks a password when its turn comes.
async fn check(api: &Api, peer: Peer, shown: Credentials) -> Result<Response, Problem> {
    let mut hasher = DefaultHasher::new();
    shown.name.hash(&mut hasher);
    let key = (peer.source(), hasher.finish());
    if let Some(until) = lock(&WRONG_PASSWORDS).blocked_until(key, Instant::now()) {
        return Ok(too_many_failures("passwords", peer, until));
    }
    let Ok(_place) = WAITING.try_acquire() else { return Err(busy()) };
    let _turn = CHECKING.acquire().await.map_err(|_| busy())?;
    let tokens = api.tokens.borrow().clone();
    let account = TokenName::of_account(&shown.name).ok().and_then(|name| tokens.named(&name).cloned());
    // Other sign-ins from the same source may have failed while this one waited.
    if let Some(until) = lock(&WRONG_PASSWORDS).blocked_until(key, Instant::now()) {
        return Ok(too_many_failures("passwords", peer, until));
    }
    let checked = hash_in_background(move || match account {
        Some(Token { proof: TokenCredential::Password(ref hashed), .. }) => {
            hashed.is_of(&shown.password).then_some(account).flatten()
        }
        _ => {
            password::check_nobodys(&shown.password);
            None
        }
    });
    let account = checked.await.ok_or_else(busy)?;
    let now_ms = now_ms();
    let begun = account.filter(|account| account.is_good_at(now_ms));
    let sessions = api.sessions.as_deref().ok_or_else(no_console)?;
    let Some((account, value)) =
        begun.and_then(|a| session::begin(&sessions.key, &a, now_ms).map(|value| (a, value)))
    else {
        let counted = lock(&WRONG_PASSWORDS).record(key, Instant::now());
        return match counted {
            FailureLimiterVerdict::TooMany(until) => Ok(too_many_failures("passwords", peer, until)),
            FailureLimiterVerdict::Counted => {
                let detail = "there is no account of that name with that password";
                Err(Problem::new(StatusCode::FORBIDDEN, "wrong_password", detail))
            }
        };
    };
    log::info!("{} has signed in to the console", account.name);
    let mut response = session_response(api, Some((&account, &value)));
    set_cookie(&mut response, sessions, &value, LIFE.as_secs());
    Ok(response)
}

/// Signs a person out. This ends all sessions of the account, in all browsers. So a copy of the cookie is no longer
/// valid.
pub(super) async fn end(State(api): State<Api>, headers: HeaderMap) -> Result<Response, Problem> {
    of_this_page(&api, &headers)?;
    let sessions = api.sessions.as_deref().ok_or_else(no_console)?;
    let tokens = api.tokens.borrow().clone();
    let mut response = match holder_in(&api, &headers, &tokens) {
        Some((account, _)) => end_sessions(&api, account).await.into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    };
    // This browser forgets its session, even if the other sessions cannot be ended now.
    set_cookie(&mut response, sessions, "", 0);
    Ok(response)
}

async fn end_sessions(api: &Api, account: &Token) -> Result<StatusCode, Problem> {
    let ended = account.name.clone();
    api.registrar.change(move |registry| registry.end_sessions(&ended)).await?;
    let is_seen = |now: &Token| now.created_ms != account.created_ms;
    api.known(|tokens| tokens.named(&account.name).is_none_or(is_seen)).await;
    log::info!("{} has signed out of the console", account.name);
    Ok(StatusCode::NO_CONTENT)
}

/// Refuses a request that the browser sends for a page of another site. A browser reports where a request comes from.
/// Before a browser sends JSON for a page of another origin, it asks the server whether that page may do this (a CORS
/// preflight request). dq never allows it.
fn of_this_page(api: &Api, headers: &HeaderMap) -> Result<(), Problem> {
    let foreign = |why: &str| Problem::new(StatusCode::FORBIDDEN, "foreign", why);
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return Err(foreign("the request comes from a page of another site"));
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(HOST).unwrap_or_default();
    // A proxy before dq may speak TLS although this port does not, so the scheme is not compared.
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host));
    if text(ORIGIN).is_some_and(|origin| !is_own(origin)) {
        return Err(foreign("the request comes from a page of another origin"));
    }
    // If no token is needed, only this host's own names are accepted (DNS rebinding).
    if api.settings.http.auth == Auth::None {
        api.hosts.check(headers).map_err(|why| foreign(&why))?;
    }
    Ok(())
}

fn busy() -> Problem {
    Problem::unavailable("busy", "too many passwords are being checked: try again")
}

/// The file in the run folder with the password of the first account.
const FIRST_PASSWORD: &str = "first-password";

/// The pause before dq tries again to make the first account. The registry may be on a Redis that starts with dq.
const FIRST_ACCOUNT_RETRY: Duration = Duration::from_secs(1);

/// If there is no account, makes one with a random password, and writes the password to a file that only the daemon's
/// user can read. The log names the file. Without a registry, logs that there can be no accounts. While the registry
/// does not answer, tries again.
pub(in super::super) async fn first_account(api: Api) {
    let http = &api.settings.http;
    let Some(listen) = http.listen.filter(|_| http.console) else { return };
    if !api.registrar.is_there() {
        log::warn!(
            "nobody can sign in to the console: accounts need a registry, and registry.url is \"none\""
        );
        return;
    }
    let mut has_failed = false;
    let made = loop {
        match api.registrar.change(make_first_account).await {
            Err(RegistryError::Away(why)) => {
                if !std::mem::replace(&mut has_failed, true) {
                    log::warn!("the console's first account is made when the registry answers: {why}");
                }
                tokio::time::sleep(FIRST_ACCOUNT_RETRY).await;
            }
            made => break made,
        }
    };
    // The log names the file only after this process knows the account. So the password works as soon as somebody reads
    // the log.
    if let Ok(Some(_)) = made {
        api.known(|tokens| tokens.iter().any(Token::is_account)).await;
    }
    let scheme = if http.tls.is_some() { "https" } else { "http" };
    match made {
        Ok(Some(password)) => match keep_first_password(&api.settings.run_dir, &password) {
            Ok(path) => log::warn!(
                "the console is at {scheme}://{listen}/: sign in as {FIRST} with the password in {}, then remove the file",
                path.display()
            ),
            Err(e) => log::warn!(
                "the console is at {scheme}://{listen}/: the password of {FIRST} cannot be written to {:?}: {e}; \
                 `dq console password` sets another",
                api.settings.run_dir.join(FIRST_PASSWORD)
            ),
        },
        Ok(None) => {}
        Err(e) => log::warn!("cannot make the console's first account: {e}; `dq console password` makes one"),
    }
}

/// Makes an account with a random password, and returns the password. None: an account exists already, or the system
/// gives no random bytes.
fn make_first_account(registry: &mut dyn Registry) -> Result<Option<String>, RegistryError> {
    if registry.tokens()?.iter().any(Token::is_account) {
        return Ok(None);
    }
    let Some((password, account)) = random_account() else { return Ok(None) };
    host::give_memory_back();
    match registry.put_token(&account) {
        Ok(()) => Ok(Some(password)),
        // Another host has made the account first.
        Err(RegistryError::TokenExists(_)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Writes the password to its file, and returns the file's path.
fn keep_first_password(run_dir: &Path, password: &str) -> io::Result<PathBuf> {
    let path = run_dir.join(FIRST_PASSWORD);
    // The password is written to a new file, because an old file may be readable by others. The new file is renamed
    // when it is complete, so nobody reads a part of the password.
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    writeln!(file, "{password}")?;
    fs::rename(new, &path)?;
    Ok(path)
}

/// If `account` is the first account, removes the file with its first password, because the account has another
/// password now.
pub(in super::super) fn forget_first_password(run_dir: &Path, account: &TokenName) {
    if account.as_str() == FIRST
        && let Err(e) = fs::remove_file(run_dir.join(FIRST_PASSWORD))
        && e.kind() != io::ErrorKind::NotFound
    {
        log::warn!(
            "cannot remove {:?}, whose password is not valid any more: {e}",
            run_dir.join(FIRST_PASSWORD)
        );
    }
}

/// Hashes a password on a thread for slow work. After that, the memory of the hashing is given back to the system.
/// None: the thread failed.
pub(in super::super) async fn hash_in_background<T: Send + 'static>(
    hash: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let hashed = tokio::task::spawn_blocking(|| {
        let hashed = hash();
        host::give_memory_back();
        hashed
    });
    hashed.await.ok()
}

/// Makes a random password, and an account with this password.
fn random_account() -> Option<(String, Token)> {
    let (mut random, mut salt) = ([0; 32], [0; 16]);
    getrandom::fill(&mut random).and_then(|()| getrandom::fill(&mut salt)).ok()?;
    // The password has 100 random bits, in groups that are easy to type.
    let letters: Vec<char> = TokenSecret::new(random).reveal().chars().skip(3).take(20).collect();
    let password = letters.chunks(5).map(|some| some.iter().collect()).collect::<Vec<String>>().join("-");
    let account = Token {
        name: TokenName::of_account(FIRST).ok()?,
        proof: TokenCredential::Password(StoredPassword::new(&password, salt).ok()?),
        scopes: vec![Scope::Admin],
        created_ms: now_ms(),
        expires_ms: None,
        creator: "dq".to_owned(),
        add_rate: None,
    };
    Some((password, account))
}

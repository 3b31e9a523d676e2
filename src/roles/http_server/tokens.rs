//! The routes of tokens: they are made, shown without their secrets, and revoked. What is changed here holds in this process when
//! it is answered, and everywhere within two seconds.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, FromRequest, Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use super::access::Caller;
use super::problem::Problem;
use super::registrar::Registrar;
use crate::process;
use crate::registry::RegistryError;
use crate::scope::{NoScope, Scope};
use crate::token::{Secret, Token, TokenName, Tokens};

/// The longest body, in bytes: all the scopes that a token may have.
const BODY_MAX: usize = 64 << 10;

/// How long a client may take to send it.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// How many scopes a token may have.
const SCOPES_MAX: usize = 100;

/// The longest life of a token that has an end.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// How long an answer waits until this process knows of a change.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Api {
    registrar: Registrar,
    /// As they are now.
    tokens: watch::Receiver<Tokens>,
}

pub(super) fn routes(registrar: Registrar, tokens: watch::Receiver<Tokens>) -> Router {
    Router::new()
        .route("/v1/tokens", get(list).post(create))
        .route("/v1/tokens/{name}", delete(revoke))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(Api { registrar, tokens })
}

/// What is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    name: String,
    scopes: Vec<String>,
    #[serde(default)]
    expires: Value,
}

impl FromRequest<Api> for Wanted {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Wanted, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).map(|v| v.as_bytes().to_ascii_lowercase());
        if kind.is_some_and(|kind| !kind.starts_with(b"application/json")) {
            let detail = "content-type is not \"application/json\"";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", detail));
        }
        let body = match tokio::time::timeout(BODY_PATIENCE, Bytes::from_request(request, api)).await {
            Ok(body) => body.map_err(|rejection| Problem::body(&rejection, BODY_MAX))?,
            Err(_) => {
                let detail = format!("the body did not arrive within {BODY_PATIENCE:?}");
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail));
            }
        };
        let object: serde_json::Map<String, Value> =
            serde_json::from_slice(&body).map_err(Problem::bad_json)?;
        const KNOWN: &[&str] = &["name", "scopes", "expires"];
        if let Some(unknown) = object.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(Problem::unknown_field(&unknown.chars().take(80).collect::<String>(), KNOWN));
        }
        for (field, wanted) in
            [("name", "what to call the token"), ("scopes", "what it is for, such as [\"read\"]")]
        {
            if !object.contains_key(field) {
                return Err(Problem::missing(field, wanted));
            }
        }
        serde_path_to_error::deserialize(Value::Object(object)).map_err(|e| {
            let path = e.path().to_string();
            let field = path.split(['[', '.']).next().unwrap_or_default().to_owned();
            Problem::field(&field, format!("{path}: {}", e.into_inner()))
        })
    }
}

impl Wanted {
    /// The token that is to be, of that secret.
    fn token(self, secret: &Secret, creator: String) -> Result<Token, Problem> {
        let name = TokenName::new(&self.name).map_err(|e| Problem::field("name", format!("name: {e}")))?;
        let mut scopes: Vec<Scope> = Vec::new();
        for text in &self.scopes {
            let scope = text.parse().map_err(|e: NoScope| Problem::field("scopes", e.to_string()))?;
            if !scopes.contains(&scope) && scopes.len() <= SCOPES_MAX {
                scopes.push(scope);
            }
        }
        if !(1..=SCOPES_MAX).contains(&scopes.len()) {
            let detail = format!("scopes are {}, and not 1 to {SCOPES_MAX}", scopes.len());
            return Err(Problem::field("scopes", detail));
        }
        let created_ms = process::now_ms();
        let life = match &self.expires {
            Value::Null => None,
            value => Some(
                span(value).filter(|life| (Duration::from_secs(1)..=LONGEST).contains(life)).ok_or_else(
                    || {
                        let shown: String = value.to_string().chars().take(80).collect();
                        let wanted = "a duration such as \"90d\", or a number of seconds, up to 100 years";
                        Problem::field("expires", format!("expires is {shown}, and not {wanted}"))
                    },
                )?,
            ),
        };
        let expires_ms = life.map(|life| created_ms + life.as_millis() as i64);
        Ok(Token { name, digest: secret.digest(), scopes, created_ms, expires_ms, creator })
    }
}

fn span(value: &Value) -> Option<Duration> {
    match value {
        Value::String(text) => humantime::parse_duration(text).ok(),
        Value::Number(seconds) => seconds.as_u64().map(Duration::from_secs),
        _ => None,
    }
}

/// A token as it is shown.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a TokenName,
    /// When it is made, and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    scopes: &'a [Scope],
    created_ms: i64,
    expires_ms: Option<i64>,
    creator: &'a str,
}

impl<'a> Shown<'a> {
    fn of(token: &'a Token, secret: Option<&'a Secret>) -> Shown<'a> {
        let Token { name, scopes, created_ms, expires_ms, creator, .. } = token;
        let (created_ms, expires_ms) = (*created_ms, *expires_ms);
        Shown { name, token: secret.map(Secret::reveal), scopes, created_ms, expires_ms, creator }
    }
}

async fn list(State(api): State<Api>) -> Json<Value> {
    let tokens = api.tokens.borrow().clone();
    let shown: Vec<Shown<'_>> = tokens.iter().map(|token| Shown::of(token, None)).collect();
    Json(serde_json::json!({ "tokens": shown }))
}

async fn create(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    wanted: Wanted,
) -> Result<Response, Problem> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|e| Problem::unavailable("no_chance", format!("the system gives no random bytes: {e}")))?;
    let secret = Secret::of(random);
    let token = wanted.token(&secret, caller.to_string())?;
    let written = token.clone();
    api.registrar.change(move |registry| registry.put_token(&written)).await.map_err(problem)?;
    log::info!("token {} is made by {caller}", token.name);
    api.known(|tokens| tokens.named(&token.name).is_some_and(|t| t.digest == token.digest)).await;
    let mut response = (StatusCode::CREATED, Json(Shown::of(&token, Some(&secret)))).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn revoke(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    let name = TokenName::new(&name).map_err(|e| Problem::field("name", format!("name: {e}")))?;
    let gone = name.clone();
    api.registrar.change(move |registry| registry.delete_token(&gone)).await.map_err(problem)?;
    log::info!("token {name} is revoked by {caller}");
    api.known(|tokens| tokens.named(&name).is_none()).await;
    Ok(StatusCode::NO_CONTENT)
}

impl Api {
    /// Waits until this process knows of a change; it holds all the same where that takes too long.
    async fn known(&self, is_known: impl Fn(&Tokens) -> bool) {
        let mut tokens = self.tokens.clone();
        let _ = tokio::time::timeout(KNOWN_WITHIN, tokens.wait_for(|now| is_known(now))).await;
    }
}

fn problem(error: RegistryError) -> Problem {
    let detail = error.to_string();
    match error {
        RegistryError::TokenExists(_) => Problem::conflict("exists", detail),
        RegistryError::NoToken(_) => Problem::new(StatusCode::NOT_FOUND, "not_found", detail),
        RegistryError::Unknown(_) => Problem::unavailable("unknown", detail),
        _ => Problem::unavailable("registry_away", detail),
    }
}

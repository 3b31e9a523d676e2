//! The routes of tokens: make them, show them without their secrets, revoke them. A change is answered when this
//! process uses the change, or at the latest 2 seconds after it is written (`KNOWN_WITHIN`). All other processes use
//! the change within two seconds.

use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Caller;
use super::api::{Api, NameInPath};
use super::audit::AuditNote;
use super::body::JsonBody;
use super::input::random;
use super::problem::Problem;
use super::schema;
use super::typed_body;
use model::json_time;
use model::scope::{InvalidScope, Scope};
use model::token::{Token, TokenCredential, TokenName, TokenSecret, Tokens};
use model::topic::Rate;

/// The maximum number of scopes of a token.
const SCOPES_MAX: usize = 100;

/// The longest life of a token that expires.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// The maximum time that an answer waits until this process uses the change.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke))
}

/// A token to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewToken, example = json!({"name": "shop", "scopes": ["produce:orders", "read"], "expires": "90d"}))]
struct NewToken {
    /// The name of the token: 1 to 128 letters, digits, `_`, `.`, `-`.
    #[schema(value_type = String, required = true, pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128)]
    name: Option<String>,
    /// What the token allows: `admin`, `metrics`, `read`, and for topics `read:<topic>`, `manage:<topic>`,
    /// `produce:<topic>`, `consume:<topic>`. A `*` stands for all topics, and `shop7.*` for all topics whose names
    /// begin with `shop7.`.
    #[schema(value_type = Vec<String>, required = true, min_items = 1, max_items = 100)]
    scopes: Option<Vec<String>>,
    /// How long the token is valid. If it is missing, the token never expires.
    #[schema(schema_with = schema::span, required = false)]
    expires: Option<TokenLifetime>,
    /// How many jobs clients may add with the token in a given time, such as "100/s". If it is missing, there is no
    /// limit.
    #[serde(default, deserialize_with = "rate")]
    #[schema(schema_with = schema::rate, required = false)]
    add_rate: Option<Rate>,
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Rate>, D::Error> {
    let rate = Option::<Rate>::deserialize(from).ok();
    let is_fit = |rate: &Option<Rate>| rate.is_none_or(|rate| (1..1_000_000).contains(&rate.jobs));
    rate.filter(is_fit)
        .ok_or_else(|| typed_body::invalid("a rate such as \"100/s\", \"30/m\", \"500/h\", or null"))
}

/// How long a token is valid.
#[derive(Debug)]
struct TokenLifetime(Duration);

impl<'de> Deserialize<'de> for TokenLifetime {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TokenLifetime, D::Error> {
        let lifetime = json_time::duration(<&RawValue>::deserialize(from)?);
        let within = lifetime.filter(|lifetime| (Duration::from_secs(1)..=LONGEST).contains(lifetime));
        let wanted = "a duration such as \"90d\", or a number of seconds, up to 100 years";
        within.map(TokenLifetime).ok_or_else(|| typed_body::invalid(wanted))
    }
}

impl NewToken {
    /// Builds the token with a secret.
    fn token(self, secret: &TokenSecret, creator: String) -> Result<Token, Problem> {
        let missing = |name, wanted| move || Problem::missing(name, wanted);
        let name = self.name.ok_or_else(missing("name", "the name of the token"))?;
        let texts = self.scopes.ok_or_else(missing("scopes", "what the token allows, such as [\"read\"]"))?;
        let name = TokenName::new(&name).map_err(|e| Problem::field("name", format!("name: {e}")))?;
        let mut scopes: Vec<Scope> = Vec::new();
        for text in &texts {
            let scope = text.parse().map_err(|e: InvalidScope| Problem::field("scopes", e.to_string()))?;
            if !scopes.contains(&scope) && scopes.len() <= SCOPES_MAX {
                scopes.push(scope);
            }
        }
        if !(1..=SCOPES_MAX).contains(&scopes.len()) {
            let detail = format!("scopes are {}, and not 1 to {SCOPES_MAX}", scopes.len());
            return Err(Problem::field("scopes", detail));
        }
        let created_ms = host::now_ms();
        let lifetime = self.expires.map(|TokenLifetime(lifetime)| lifetime);
        let expires_ms = lifetime.map(|lifetime| created_ms + lifetime.as_millis() as i64);
        let proof = TokenCredential::Secret(secret.digest());
        Ok(Token { name, proof, scopes, created_ms, expires_ms, creator, add_rate: self.add_rate })
    }
}

/// A token.
#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
struct TokenResponse<'a> {
    #[schema(value_type = String)]
    name: &'a TokenName,
    /// The secret, which clients send as `Authorization: Bearer …`. It is shown when the token is made, and never
    /// again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    token: Option<&'a str>,
    #[schema(value_type = Vec<String>)]
    scopes: &'a [Scope],
    created_ms: i64,
    expires_ms: Option<i64>,
    creator: &'a str,
    /// How many jobs clients may add with the token in a given time. Null: no limit.
    #[schema(value_type = Option<String>)]
    add_rate: Option<String>,
}

impl<'a> TokenResponse<'a> {
    fn new(token: &'a Token, secret: Option<&'a TokenSecret>) -> TokenResponse<'a> {
        let Token { name, scopes, created_ms, expires_ms, creator, add_rate, .. } = token;
        let add_rate = add_rate.map(|rate| rate.to_string());
        let (created_ms, expires_ms) = (*created_ms, *expires_ms);
        TokenResponse {
            name,
            token: secret.map(TokenSecret::reveal),
            scopes,
            created_ms,
            expires_ms,
            creator,
            add_rate,
        }
    }
}

/// All tokens.
#[derive(ToSchema)]
#[schema(as = Tokens)]
#[allow(dead_code, reason = "the document is made of it")]
struct TokenList<'a> {
    tokens: Vec<TokenResponse<'a>>,
}

/// Lists all tokens, without their secrets. Accounts are not listed here.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", operation_id = "list_tokens",
    responses((status = 200, body = TokenList, description = "All tokens"), schema::ReadErrorResponses))]
async fn list(State(api): State<Api>) -> Json<Value> {
    let tokens = api.tokens.borrow().clone();
    let shown = tokens.iter().filter(|token| !token.is_account());
    let shown: Vec<TokenResponse<'_>> = shown.map(|token| TokenResponse::new(token, None)).collect();
    Json(serde_json::json!({ "tokens": shown }))
}

/// Makes a token, and shows its secret. The secret is shown only once.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", operation_id = "create_token",
    request_body(content = NewToken, content_type = "application/json"),
    responses((status = 201, body = TokenResponse, description = "The token with its secret"), schema::ChangeErrorResponses))]
async fn create(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    JsonBody(json): JsonBody,
) -> Result<Response, Problem> {
    api.registrar.takes("tokens")?;
    let wanted: NewToken = typed_body::read(&json)?;
    let secret = TokenSecret::new(random()?);
    let token = wanted.token(&secret, caller.to_string())?;
    let written = token.clone();
    api.registrar.change(move |registry| registry.put_token(&written)).await?;
    log::info!("token {} is made by {caller}", token.name);
    api.known(|tokens| tokens.named(&token.name).is_some_and(|t| t.proof == token.proof)).await;
    let mut response = (StatusCode::CREATED, Json(TokenResponse::new(&token, Some(&secret)))).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let detail = token.scopes.iter().map(Scope::to_string).collect::<Vec<_>>().join(" ");
    let target = Some(token.name.to_string());
    response.extensions_mut().insert(AuditNote { target, detail, ..AuditNote::default() });
    Ok(response)
}

/// Revokes a token.
#[utoipa::path(delete, path = "/v1/tokens/{name}", tag = "tokens", operation_id = "revoke_token",
    params(schema::TokenPath),
    responses((status = 204, description = "The token is revoked"), schema::LookupErrorResponses))]
async fn revoke(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    NameInPath(name): NameInPath,
) -> Result<StatusCode, Problem> {
    api.registrar.takes("tokens")?;
    let name = TokenName::new(&name).map_err(|e| Problem::field("name", format!("name: {e}")))?;
    let gone = name.clone();
    api.registrar.change(move |registry| registry.delete_token(&gone)).await?;
    log::info!("token {name} is revoked by {caller}");
    api.known(|tokens| tokens.named(&name).is_none()).await;
    Ok(StatusCode::NO_CONTENT)
}

impl Api {
    /// Waits at most [`KNOWN_WITHIN`] until this process uses a change that was made.
    pub(super) async fn known(&self, is_known: impl Fn(&Tokens) -> bool) {
        let mut tokens = self.tokens.clone();
        let _ = tokio::time::timeout(KNOWN_WITHIN, tokens.wait_for(|now| is_known(now))).await;
    }
}

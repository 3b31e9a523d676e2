//! The routes of accounts: of people, who sign in to the console with a password. An account is a token that is shown by a password.

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Caller;
use super::api::{Api, Sent};
use super::audit::Noted;
use super::input::{Fields, random};
use super::problem::Problem;
use super::schema;
use super::told::Told;
use crate::password::Hashed;
use crate::process::now_ms;
use crate::registry::RegistryError;
use crate::scope::{Need, Scope};
use crate::token::{Proof, Token, TokenName};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(put, remove))
}

/// What somebody who signs in may do.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = AccountRole)]
pub(super) enum Role {
    /// Everything.
    Admin,
    /// Look at everything but tokens and accounts.
    Read,
}

impl Role {
    /// That of an account.
    pub(super) fn of(account: &Token) -> Role {
        if account.permits(Need::Admin) { Role::Admin } else { Role::Read }
    }

    fn scope(self) -> Scope {
        match self {
            Role::Admin => Scope::Admin,
            Role::Read => Scope::Read,
        }
    }
}

/// An account to be made, or the password and role that one has from now on.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = NewAccount, example = json!({"role": "read", "password": "a long sentence"}))]
struct Wanted {
    /// `admin`, if it is missing.
    #[schema(required = false)]
    role: Option<Role>,
    #[schema(min_length = 8, max_length = 256)]
    password: String,
}

/// An account.
#[derive(Serialize, ToSchema)]
#[schema(as = Account)]
struct Shown {
    name: String,
    role: Role,
    /// When its password was set.
    set_ms: i64,
    /// Who has set it.
    creator: String,
}

/// All accounts.
#[derive(Serialize, ToSchema)]
#[schema(as = Accounts)]
struct Listed {
    accounts: Vec<Shown>,
}

fn name(text: &str) -> Result<TokenName, Problem> {
    TokenName::of_account(text).map_err(|e| Problem::field("name", format!("name: {e}")))
}

/// Shows who may sign in to the console.
#[utoipa::path(get, path = "/v1/accounts", tag = "tokens", operation_id = "list_accounts",
    responses((status = 200, body = Listed, description = "All of them"), schema::FindProblems))]
async fn list(State(api): State<Api>) -> Result<Json<Value>, Problem> {
    api.registrar.keeps("accounts")?;
    let tokens = api.tokens.borrow().clone();
    let shown = |token: &Token| Shown {
        name: token.name.to_string(),
        role: Role::of(token),
        set_ms: token.created_ms,
        creator: token.creator.clone(),
    };
    let accounts: Vec<Shown> = tokens.iter().filter(|token| token.is_account()).map(shown).collect();
    Ok(Json(serde_json::json!({ "accounts": accounts })))
}

/// Makes an account, or gives one another password and role; its sessions end with the password.
#[utoipa::path(put, path = "/v1/accounts/{name}", tag = "tokens", operation_id = "put_account",
    params(schema::TokenPath), request_body(content = Wanted, content_type = "application/json"),
    responses((status = 204, description = "It has that password from now on"), schema::ChangeProblems))]
async fn put(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<String>,
    Sent(json): Sent,
) -> Result<Told, Problem> {
    api.registrar.takes("accounts")?;
    let name = name(&path)?;
    let fields = Fields::of(&json, &["role", "password"])?;
    let role: Option<Role> = fields.plain("role", "\"admin\" or \"read\"")?;
    let password: Option<String> = fields.plain("password", "a text")?;
    let password = password.ok_or_else(|| Problem::missing("password", "8 to 256 characters"))?;
    let role = role.unwrap_or(Role::Admin);
    let salt = random()?;
    // It takes long, on purpose.
    let hashed = tokio::task::spawn_blocking(move || Hashed::of(&password, salt)).await;
    let hashed = hashed.map_err(|_| Problem::unavailable("no_thread", "nobody could hash the password"))?;
    let hashed = hashed.map_err(|e| Problem::field("password", format!("password: {e}")))?;
    let account = Token {
        name: name.clone(),
        proof: Proof::Password(hashed),
        scopes: vec![role.scope()],
        created_ms: now_ms(),
        expires_ms: None,
        creator: caller.to_string(),
    };
    let written = account.clone();
    api.registrar.change(move |registry| registry.put_account(&written)).await?;
    log::info!("the password of account {name} is set by {caller}");
    api.known(|tokens| tokens.named(&name).is_some_and(|t| t.proof == account.proof)).await;
    Ok(Told::done().noting(Noted { detail: role.scope().to_string(), ..Noted::default() }))
}

/// Removes an account; its sessions end.
#[utoipa::path(delete, path = "/v1/accounts/{name}", tag = "tokens", operation_id = "remove_account",
    params(schema::TokenPath),
    responses((status = 204, description = "Nobody signs in with it any more"), schema::FindProblems))]
async fn remove(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<String>,
) -> Result<StatusCode, Problem> {
    api.registrar.takes("accounts")?;
    let name = name(&path)?;
    let gone = name.clone();
    let removed = api.registrar.change(move |registry| {
        match registry.tokens()?.iter().find(|token| token.name == gone) {
            Some(token) if token.is_account() => registry.delete_token(&gone),
            _ => Err(RegistryError::NoToken(gone.clone())),
        }
    });
    removed.await.map_err(|e| match e {
        RegistryError::NoToken(name) => {
            Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is no account {name}"))
        }
        e => e.into(),
    })?;
    log::info!("account {name} is removed by {caller}");
    api.known(|tokens| tokens.named(&name).is_none()).await;
    Ok(StatusCode::NO_CONTENT)
}

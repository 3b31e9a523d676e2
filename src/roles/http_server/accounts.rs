//! The routes of accounts: people who sign in to the console with a password. An account is stored as a token with a
//! password.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Caller;
use super::api::{Api, NameInPath};
use super::api_response::ApiResponse;
use super::audit::AuditNote;
use super::body::JsonBody;
use super::console;
use super::input::random;
use super::problem::Problem;
use super::schema;
use super::typed_body::{self, word};
use host::now_ms;
use model::password::StoredPassword;
use model::scope::{RequiredAccess, Scope, ScopeTopics};
use model::token::{Token, TokenCredential, TokenName};
use registry::RegistryError;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(put, remove))
}

/// What a person who signs in may do.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = AccountRole)]
pub(super) enum AccountRole {
    /// Everything.
    Admin,
    /// Look at everything except tokens and accounts.
    Read,
}

impl AccountRole {
    /// Returns the role of an account.
    pub(super) fn from_account(account: &Token) -> AccountRole {
        if account.permits(RequiredAccess::Admin) { AccountRole::Admin } else { AccountRole::Read }
    }

    fn scope(self) -> Scope {
        match self {
            AccountRole::Admin => Scope::Admin,
            AccountRole::Read => Scope::Read(ScopeTopics::All),
        }
    }
}

/// An account to make, or the new password and role of an account that exists.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewAccount, example = json!({"role": "read", "password": "a long sentence"}))]
struct NewAccount {
    /// Default: `admin`.
    #[serde(default, deserialize_with = "word")]
    #[schema(required = false)]
    role: Option<AccountRole>,
    #[schema(value_type = String, required = true, min_length = 8, max_length = 256)]
    password: Option<String>,
}

/// An account.
#[derive(Serialize, ToSchema)]
#[schema(as = Account)]
struct AccountResponse {
    name: String,
    role: AccountRole,
    /// When the password was set, Unix milliseconds.
    set_ms: i64,
    /// Who set the password.
    creator: String,
}

/// All accounts.
#[derive(Serialize, ToSchema)]
#[schema(as = Accounts)]
struct AccountList {
    accounts: Vec<AccountResponse>,
}

fn name(text: &str) -> Result<TokenName, Problem> {
    TokenName::of_account(text).map_err(|e| Problem::field("name", format!("name: {e}")))
}

/// Whether a token is an account that was not removed.
fn is_account_in_use(token: &Token) -> bool {
    token.is_account() && token.expires_ms.is_none()
}

/// Lists the accounts that may sign in to the console.
#[utoipa::path(get, path = "/v1/accounts", tag = "tokens", operation_id = "list_accounts",
    responses((status = 200, body = AccountList, description = "All accounts"), schema::LookupErrorResponses))]
async fn list(State(api): State<Api>) -> Result<Json<Value>, Problem> {
    api.registrar.keeps("accounts")?;
    let tokens = api.tokens.borrow().clone();
    let shown = |token: &Token| AccountResponse {
        name: token.name.to_string(),
        role: AccountRole::from_account(token),
        set_ms: token.created_ms,
        creator: token.creator.clone(),
    };
    let accounts: Vec<AccountResponse> =
        tokens.iter().filter(|token| is_account_in_use(token)).map(shown).collect();
    Ok(Json(serde_json::json!({ "accounts": accounts })))
}

/// Makes an account, or changes the password and the role of an existing account. A new password ends the sessions of
/// the account.
#[utoipa::path(put, path = "/v1/accounts/{name}", tag = "tokens", operation_id = "put_account",
    params(schema::TokenPath), request_body(content = NewAccount, content_type = "application/json"),
    responses((status = 204, description = "The account has this password now"), schema::ChangeErrorResponses))]
async fn put(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    NameInPath(path): NameInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    api.registrar.takes("accounts")?;
    let name = name(&path)?;
    let NewAccount { role, password } = typed_body::read(&json)?;
    let password = password.ok_or_else(|| Problem::missing("password", "8 to 256 characters"))?;
    let role = role.unwrap_or(AccountRole::Admin);
    let salt = random()?;
    let hashed = console::hash_in_background(move || StoredPassword::new(&password, salt)).await;
    let hashed = hashed
        .ok_or_else(|| Problem::unavailable("no_thread", "the thread that hashes the password failed"))?;
    let hashed = hashed.map_err(|e| Problem::field("password", format!("password: {e}")))?;
    let account = Token {
        name: name.clone(),
        proof: TokenCredential::Password(hashed),
        scopes: vec![role.scope()],
        created_ms: now_ms(),
        expires_ms: None,
        creator: caller.to_string(),
        add_rate: None,
    };
    let written = account.clone();
    api.registrar.change(move |registry| registry.put_account(&written)).await?;
    log::info!("the password of account {name} is set by {caller}");
    console::forget_first_password(&api.settings.run_dir, &name);
    api.known(|tokens| tokens.named(&name).is_some_and(|t| t.proof == account.proof)).await;
    Ok(ApiResponse::done().noting(AuditNote { detail: role.scope().to_string(), ..AuditNote::default() }))
}

/// Removes an account. Its sessions end.
#[utoipa::path(delete, path = "/v1/accounts/{name}", tag = "tokens", operation_id = "remove_account",
    params(schema::TokenPath),
    responses((status = 204, description = "The account is removed"), schema::LookupErrorResponses))]
async fn remove(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    NameInPath(path): NameInPath,
) -> Result<StatusCode, Problem> {
    api.registrar.takes("accounts")?;
    let name = name(&path)?;
    let gone = name.clone();
    let removed = api.registrar.change(move |registry| {
        let tokens = registry.tokens()?;
        let Some(account) = tokens.iter().find(|token| token.name == gone && is_account_in_use(token)) else {
            return Err(RegistryError::NoToken(gone.clone()));
        };
        if tokens.iter().filter(|token| token.is_account()).count() > 1 {
            return registry.delete_token(&gone);
        }
        // The row of the last account stays, but nobody can sign in to this account. The row shows that there was an
        // account, so dq does not make a first account again.
        registry.put_account(&Token { expires_ms: Some(0), ..account.clone() })
    });
    removed.await.map_err(|e| match e {
        RegistryError::NoToken(name) => {
            Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is no account {name}"))
        }
        e => e.into(),
    })?;
    log::info!("account {name} is removed by {caller}");
    api.known(|tokens| tokens.named(&name).is_none_or(|account| !is_account_in_use(account))).await;
    Ok(StatusCode::NO_CONTENT)
}

//! The console: a web page for people, made of files inside the executable. The console has no data of its own. It
//! reads and changes everything through the API, in the session of the person who has signed in.

mod assets;
mod sign_in;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;

use super::api::Api;

pub(super) use self::assets::PAGE_HEADERS;
pub(super) use self::sign_in::{first_account, forget_first_password, hash_in_background};

/// The longest body that these routes accept, in bytes. A name and a password fit into it.
const BODY_MAX: usize = 8 << 10;

/// The routes of the page itself. They are not part of the API or of `/openapi.json`.
pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(assets::index))
        .route("/console/{*path}", get(assets::asset))
        .route("/console/session", get(sign_in::show).post(sign_in::begin).delete(sign_in::end))
        .layer(DefaultBodyLimit::max(BODY_MAX))
}

//! The console: a page for people, of assets inside the executable. It holds no data of its own: what it shows and changes goes
//! through the API, under the session of who has signed in.

mod assets;
mod sign_in;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;

use super::api::Api;

pub(super) use self::sign_in::first_account;

/// The longest body that is taken by them, in bytes: a name and a password.
const BODY_MAX: usize = 8 << 10;

/// The routes of the page itself, which is no part of the API and of its document.
pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(assets::index))
        .route("/console/{*path}", get(assets::asset))
        .route("/console/session", get(sign_in::show).post(sign_in::begin).delete(sign_in::end))
        .layer(DefaultBodyLimit::max(BODY_MAX))
}

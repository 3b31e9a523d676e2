//! `/docs`: the document of `/openapi.json` as a page for people. The page is rendered here, without a script or any
//! other file. So the page also works without a console, and people can save it. The page shows everything that the
//! document says. Parts that the renderer does not know are shown unchanged.
//!
//! Begin with `page`.

mod curl;
mod html;
mod operation;
mod page;
mod shape;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::console;
use super::schema;

/// The style of the page. It is a part of the page itself.
const STYLE: &str = include_str!("../../../../assets/docs/style.css");

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(show))
}

/// Shows this document as a page for people.
#[utoipa::path(get, path = "/docs", tag = "daemon", operation_id = "get_docs",
    responses((status = 200, body = String, content_type = "text/html", description = "A page of HTML"), schema::ReadErrorResponses))]
async fn show(State(api): State<Api>) -> Response {
    let page = api.docs_page.get_or_init(|| {
        let document: Value =
            api.document.get().and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
        page::render(&document, STYLE).into()
    });
    let mut response = ([(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))], page.clone())
        .into_response();
    for (name, value) in console::PAGE_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Ok(policy) = HeaderValue::try_from(policy()) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// What the page may do: use this one style. Everything else is forbidden, such as scripts and other files.
fn policy() -> String {
    let digest = STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

//! The files of the console, which are inside the executable. Browsers may cache the files, but check each time whether
//! the files have changed. So a new release is visible at once.

use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use rust_embed::Embed;

use super::super::problem::Problem;

/// The embedded files.
#[derive(Embed)]
#[folder = "../../../assets/console"]
struct Assets;

/// What the page may do: load its own scripts, styles and images, and send requests to its own host. Everything else is
/// forbidden. For example, no frame may show the page. Texts never become markup or scripts (Trusted Types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of the console and of the page with the API documentation. The console and this page each also have
/// their own Content-Security-Policy header.
pub(in super::super) const PAGE_HEADERS: [(HeaderName, &str); 5] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (CACHE_CONTROL, "no-cache"),
];

/// Serves the page.
pub(super) async fn index(headers: HeaderMap) -> Response {
    serve("index.html", &headers)
}

/// Serves a file of the page.
pub(super) async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Response {
    serve(&path, &headers)
}

fn serve(path: &str, asked: &HeaderMap) -> Response {
    let Some(file) = Assets::get(path) else {
        let detail = format!("the console has no {path:?}");
        return Problem::new(StatusCode::NOT_FOUND, "no_route", detail).into_response();
    };
    let hash: String = file.metadata.sha256_hash()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{hash}\"");
    let is_known = asked.get_all(IF_NONE_MATCH).iter().any(|known| {
        known
            .to_str()
            .is_ok_and(|known| known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag))
    });
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(CONTENT_TYPE, kind(path))], file.data).into_response(),
    };
    for (name, value) in PAGE_HEADERS.into_iter().chain([(CONTENT_SECURITY_POLICY, POLICY)]) {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::try_from(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

fn kind(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_a_kind_that_browsers_take() {
        for path in Assets::iter() {
            let known = [".html", ".js", ".css", ".svg", ".LICENSE"].iter().any(|end| path.ends_with(end));
            assert!(known, "{path}");
        }
        assert!(Assets::get("index.html").is_some());
    }
}

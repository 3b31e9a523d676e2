//! `/openapi.json`: the description of the routes. The document is made from the declarations at the handlers. The same
//! declarations register the routes, so the methods and paths of the document cannot differ from the routes.

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{Components, InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::problem::Problem;
use super::schema;

/// Returns the document without the routes. The routes are added later.
pub(super) fn beginning() -> OpenApi {
    let info = InfoBuilder::new()
        .title("dq")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("The HTTP API of dq, a delay-queue daemon. docs/HTTP.md has examples."))
        .build();
    let mut components = Components::new();
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "A token. It is not needed where `http.auth` is \"none\", nor by root and the daemon's user on the Unix socket.",
        ))
        .build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let tag = |name: &str, what: &str| TagBuilder::new().name(name).description(Some(what)).build();
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .security(Some([
            SecurityRequirement::default(),
            SecurityRequirement::new::<_, [&str; 0], &str>("bearer", []),
        ]))
        .tags(Some([
            tag("jobs", "Add, show, change and remove jobs"),
            tag("topics", "Register, change and test topics"),
            tag("dead letters", "Jobs that used up their attempts"),
            tag("tokens", "Tokens and accounts: who may do what"),
            tag("daemon", "The daemon itself"),
        ]))
        .build()
}

/// Returns the document as JSON. utoipa describes an optional body as a body that may also be null. This is wrong, so
/// the `null` is removed here.
pub(super) fn to_json(document: &OpenApi) -> serde_json::Result<Vec<u8>> {
    let mut json = serde_json::to_value(document)?;
    let paths = json.get_mut("paths").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut);
    for operation in paths.filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        let Some(schema) = operation.pointer_mut("/requestBody/content/application~1json/schema") else {
            continue;
        };
        if let Some([one, other]) = schema["oneOf"].as_array().map(Vec::as_slice)
            && let Some(body) = [(one, other), (other, one)].iter().find(|(null, _)| null["type"] == "null")
        {
            *schema = body.1.clone();
        }
    }
    serde_json::to_vec(&json)
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(document))
}

/// Shows this document.
#[utoipa::path(get, path = "/openapi.json", tag = "daemon", operation_id = "get_openapi",
    responses((status = 200, body = serde_json::Value, description = "OpenAPI 3.1"), schema::ReadErrorResponses))]
async fn document(State(api): State<Api>) -> Response {
    let json = api.document.get().cloned().unwrap_or_default();
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], json).into_response()
}

//! The route that gives a topic a new secret. The old secrets of the topic still sign callbacks for some time, and then
//! end. The end of this time is stored with the topic. Each process that signs callbacks compares the end with its
//! clock.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, TopicInPath};
use super::api_response::ApiResponse;
use super::body::JsonBody;
use super::input::random;
use super::problem::Problem;
use super::schema;
use super::topics::TRIES;
use super::typed_body::{self, JsonDuration, given};
use host::now_ms;
use model::json_time;
use model::topic::{Moment, Topic, new_secret};
use registry::{Expected, Registry, RegistryError};

/// How long the old secrets sign, if the request names no time.
const KEEP: Duration = Duration::from_secs(24 * 3600);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(rotate))
}

/// How a secret is replaced.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = SecretRotation, example = json!({"keep": "24h"}))]
struct RotationRequest {
    /// How long the old secrets sign callbacks beside the new secret. Default: 24h. If an earlier rotation has set a
    /// later end, that end stays. Zero: the old secrets end at once.
    #[serde(deserialize_with = "given")]
    #[schema(schema_with = schema::span, required = false)]
    keep: Option<JsonDuration>,
}

/// The new secret of a topic.
#[derive(Serialize, ToSchema)]
#[schema(as = RotatedSecret)]
struct RotationResponse<'a> {
    topic: &'a str,
    /// The new secret. It is shown only here.
    secret: &'a str,
    /// How many secrets sign callbacks now.
    secrets: usize,
    /// The time until which the old secrets sign, RFC 3339 in UTC. Null: there are no old secrets.
    old_secrets_until: Option<String>,
}

/// Returns the advice for a topic that has too many secrets.
fn advice(topic: &Topic) -> String {
    let until = topic.old_secrets_until.map(|Moment(ms)| json_time::rfc3339(ms));
    let wait =
        until.map_or(String::new(), |until| format!("Wait until {until}, when the old secrets end, or "));
    let advice = wait + "rotate with \"keep\": \"0s\" (--keep 0s), which ends the old secrets at once";
    advice[..1].to_uppercase() + &advice[1..]
}

/// Gives a topic a new secret, and shows it once. The old secrets sign for some more time, and then end.
#[utoipa::path(post, path = "/v1/topics/{topic}/rotate-secret", tag = "topics", operation_id = "rotate_secret",
    params(schema::TopicPath, schema::IdempotencyKey), request_body = Option<RotationRequest>,
    responses((status = 200, body = RotationResponse, description = "The new secret"), schema::ChangeErrorResponses))]
async fn rotate(
    State(api): State<Api>,
    TopicInPath(name): TopicInPath,
    JsonBody(json): JsonBody,
) -> Result<Response, Problem> {
    let wanted: RotationRequest = match json.trim_ascii() {
        [] => RotationRequest::default(),
        json => typed_body::read(json)?,
    };
    if api.is_of_file(&name) {
        let detail = format!(
            "topic {name} is as the configuration file has it: change its secrets there (docs/CALLBACKS.md, Signatures)"
        );
        return Err(Problem::conflict("read_only", detail));
    }
    api.check_writable(&name)?;
    let keep = wanted.keep.map_or(KEEP, |JsonDuration(keep)| keep);
    let secret = new_secret(random()?);
    let (of, new) = (name.clone(), secret.clone());
    let step = move |registry: &mut dyn Registry| -> Result<Result<Topic, Problem>, RegistryError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let there = registry.get(&of)?.ok_or_else(|| RegistryError::NotFound(of.clone()))?;
            let mut topic = there.topic;
            topic.rotate_secret(new.clone(), keep, now_ms());
            let secrets = model::topic::Setting::named("secrets").expect("it is a setting");
            if let Err(invalid) = secrets.check_written(&secrets.value(&topic)) {
                return Ok(Err(Problem::field(invalid.field, format!("{invalid}. {}", advice(&topic)))));
            }
            match registry.put(&topic, Expected::At(there.revision)) {
                Ok(_) => return Ok(Ok(topic)),
                Err(RegistryError::Changed(_)) if tries < TRIES => {}
                Err(e) => return Err(e),
            }
        }
    };
    let topic = api.registrar.change(step).await??;
    api.seen(&name, Some(&topic)).await;
    let shown = RotationResponse {
        topic: name.as_str(),
        secret: &secret,
        secrets: topic.secrets.len(),
        old_secrets_until: topic.old_secrets_until.map(|Moment(ms)| json_time::rfc3339(ms)),
    };
    let mut response = ApiResponse::new(StatusCode::OK, &shown).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

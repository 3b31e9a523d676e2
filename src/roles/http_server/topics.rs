//! The routes of topics. The routes read topics from the registry, and write topics to it. A change is answered when
//! this process uses the change, or at the latest 2 seconds after it is written (`SEEN`). The other processes use the
//! change a moment later.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::admin_settings::AdminSettingsAccess;
use super::api::{Api, CallerContext, TopicInPath};
use super::api_response::ApiResponse;
use super::audit::AuditNote;
use super::body::JsonBody;
use super::condition::RevisionCondition;
use super::credentials;
use super::problem::Problem;
use super::schema;
use super::topic_fields::TopicFields;
use super::topic_shown::{PausesAndCircuits, TopicList, TopicResponse, TopicSource};
use model::job::TopicName;
use model::scope::RequiredAccess;
use model::topic::Topic;
use registry::{Expected, Registry, RegistryError, Revision};

/// The maximum time that an answer waits until this process uses the written topic.
const SEEN: Duration = Duration::from_secs(2);

/// The maximum number of tries for one change, if other changes of the topic happen at the same time.
pub(super) const TRIES: usize = 5;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(show, put, patch))
}

/// The result of a change of a topic.
struct TopicChangeResult {
    topic: Topic,
    revision: Revision,
    created: bool,
}

/// The result of a write, if the registry has answered. A write may be refused because of the topic that was registered
/// before.
type WriteResult = Result<TopicChangeResult, Problem>;

impl TopicChangeResult {
    /// Builds the answer. `fields` holds the names of the changed fields, for the audit log.
    fn response(
        &self,
        requester: &CallerContext,
        held: &PausesAndCircuits,
        created: StatusCode,
        fields: &str,
    ) -> ApiResponse {
        let topic = requester.shown(&self.topic);
        let shown = TopicResponse::new(&topic, TopicSource::Registry, Some(self.revision)).with(held);
        let status = if self.created { created } else { StatusCode::OK };
        let answer = ApiResponse::new(status, &shown).with_etag(self.revision.to_string());
        let answer = if self.created { answer.at(format!("/v1/topics/{}", self.topic.name)) } else { answer };
        let (target, detail) = (Some(self.topic.name.to_string()), fields.to_owned());
        answer.noting(AuditNote { target, detail, ..AuditNote::default() })
    }
}

impl Api {
    /// Returns a topic as the requester may see it.
    fn topic_response(
        &self,
        requester: &CallerContext,
        topic: &Topic,
        source: TopicSource,
        revision: Option<Revision>,
    ) -> TopicResponse {
        let lacks = topic.durability.and_then(|level| self.settings.store.lacks(level));
        let shown = TopicResponse::new(&requester.shown(topic), source, revision);
        lacks.into_iter().fold(shown, |shown, why| shown.with_problem(&format!("durability: {why}")))
    }

    /// Refuses a change of a topic of the configuration file, and any change if there is no registry.
    pub(super) fn check_writable(&self, name: &TopicName) -> Result<(), Problem> {
        if self.is_of_file(name) {
            let detail = format!("topic {name} is as the configuration file has it: change it there");
            return Err(Problem::conflict("read_only", detail));
        }
        if !self.registrar.is_there() {
            let detail = "there is no registry: registry.url is \"none\" (docs/REGISTRY.md); put topics into the configuration file";
            return Err(Problem::conflict("no_registry", detail));
        }
        Ok(())
    }

    /// Waits until this process knows the written topic, or knows that the topic is removed. The wait lasts at most
    /// [`SEEN`].
    pub(super) async fn seen(&self, name: &TopicName, topic: Option<&Topic>) {
        let mut topics = self.topics.clone();
        let as_written = topics.wait_for(|now| now.get(name.as_str()).map(AsRef::as_ref) == topic);
        if tokio::time::timeout(SEEN, as_written).await.is_err() {
            log::warn!(topic = name.as_str(); "the topic was changed, but this process does not know it after {SEEN:?}");
        }
    }

    /// Waits at most [`SEEN`] until this process knows a topic.
    pub(super) async fn seen_any(&self, name: &TopicName) {
        let mut topics = self.topics.clone();
        let _ = tokio::time::timeout(SEEN, topics.wait_for(|now| now.get(name.as_str()).is_some())).await;
    }

    async fn write(
        &self,
        name: &TopicName,
        step: impl Fn(&mut dyn Registry) -> Result<WriteResult, RegistryError> + Send + 'static,
    ) -> Result<TopicChangeResult, Problem> {
        let written = self.registrar.change(move |registry| step(registry)).await??;
        self.seen(name, Some(&written.topic)).await;
        Ok(written)
    }
}

/// Returns the entry of the registry for a name, with its revision. None: there is no such entry. `Some(None)`: the
/// entry is not a usable topic, and its revision is unknown.
pub(super) fn found(
    registry: &mut dyn Registry,
    name: &TopicName,
) -> Result<Option<Option<(Topic, Revision)>>, RegistryError> {
    match registry.get(name) {
        Ok(found) => Ok(found.map(|r| Some((r.topic, r.revision)))),
        Err(RegistryError::Unusable(_)) => Ok(Some(None)),
        Err(e) => Err(e),
    }
}

/// Lists all topics of the configuration file and of the registry, by name.
#[utoipa::path(get, path = "/v1/topics", tag = "topics", operation_id = "list_topics",
    responses((status = 200, body = TopicList, description = "All topics"), schema::ReadErrorResponses))]
async fn list(State(api): State<Api>, requester: CallerContext) -> Result<ApiResponse, Problem> {
    let of_file = |name: &TopicName| api.is_of_file(name);
    let mut topics: Vec<TopicResponse> = api
        .settings
        .topics
        .iter()
        .map(|t| api.topic_response(&requester, t, TopicSource::File, None))
        .collect();
    let (mut unusable, mut away) = (Vec::new(), None);
    if api.registrar.is_there() {
        match api.registrar.ask(|registry| registry.list()).await {
            Ok(listing) => {
                let own = listing.topics.iter().filter(|r| !of_file(&r.topic.name));
                topics.extend(own.map(|r| {
                    api.topic_response(&requester, &r.topic, TopicSource::Registry, Some(r.revision))
                }));
                unusable = listing.unusable.iter().map(ToString::to_string).collect();
            }
            Err(e) => {
                let known = api.topics.borrow().clone();
                let own = known.iter().filter(|topic| !of_file(&topic.name));
                topics.extend(
                    own.map(|topic| api.topic_response(&requester, topic, TopicSource::Registry, None)),
                );
                away = Some(e.to_string());
            }
        }
    }
    let paused = api.paused().await;
    let may_see = |shown: &TopicResponse| requester.permits(RequiredAccess::Topic(shown.name()));
    let topics = topics.into_iter().filter(may_see).map(|shown| shown.with(&paused));
    let mut topics: Vec<TopicResponse> = topics.collect();
    // An entry that is not usable may belong to any topic, so only callers who may read all topics see it.
    unusable.retain(|_| requester.permits(RequiredAccess::Read));
    topics.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(ApiResponse::new(StatusCode::OK, &TopicList { topics, unusable, away }))
}

/// Shows a topic.
#[utoipa::path(get, path = "/v1/topics/{topic}", tag = "topics", operation_id = "get_topic",
    params(schema::TopicPath),
    responses((status = 200, body = TopicResponse, description = "The topic", headers(("ETag" = String, description = "The revision, for If-Match"))),
        schema::LookupErrorResponses))]
async fn show(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(name): TopicInPath,
) -> Result<ApiResponse, Problem> {
    let paused = api.paused().await;
    if let Some(topic) = api.settings.topics.iter().find(|topic| topic.name == name) {
        return Ok(ApiResponse::new(
            StatusCode::OK,
            &api.topic_response(&requester, topic, TopicSource::File, None).with(&paused),
        ));
    }
    if !api.registrar.is_there() {
        return Err(Problem::unknown_topic(&name));
    }
    let asked = name.clone();
    match api.registrar.ask(move |registry| registry.get(&asked)).await {
        Ok(Some(found)) => {
            let shown = api
                .topic_response(&requester, &found.topic, TopicSource::Registry, Some(found.revision))
                .with(&paused);
            Ok(ApiResponse::new(StatusCode::OK, &shown).with_etag(found.revision.to_string()))
        }
        Ok(None) => Err(Problem::unknown_topic(&name)),
        // The registry does not answer: the topic is shown as this process knows it.
        Err(RegistryError::Away(why) | RegistryError::Unknown(why)) => match api.topic(&name) {
            Ok(topic) => Ok(ApiResponse::new(
                StatusCode::OK,
                &api.topic_response(&requester, &topic, TopicSource::Registry, None).with(&paused),
            )),
            Err(_) => Err(RegistryError::Away(why).into()),
        },
        Err(e) => Err(e.into()),
    }
}

/// Registers a topic.
#[utoipa::path(post, path = "/v1/topics", tag = "topics", operation_id = "create_topic",
    params(schema::IdempotencyKey), request_body = schema::TopicRequestSchema,
    responses((status = 201, body = TopicResponse, description = "The topic is registered",
            headers(("Location" = String, description = "The path of the topic"), ("ETag" = String, description = "The revision of the topic"))),
        schema::ChangeErrorResponses))]
async fn create(
    State(api): State<Api>,
    requester: CallerContext,
    body: JsonBody,
) -> Result<ApiResponse, Problem> {
    let parts = TopicFields::read(&body.0)?;
    let name = parts.name(None)?;
    let mut topic = api.can_give(parts.new_topic(name.clone())?)?;
    AdminSettingsAccess::for_requester(&requester, &name, &api.topics.borrow()).check(None, &mut topic)?;
    if api.is_of_file(&name) {
        return Err(RegistryError::Exists(name).into());
    }
    api.check_writable(&name)?;
    api.trials.check(&topic.callback).await?;
    let write = move |registry: &mut dyn Registry| {
        let revision = registry.put(&topic, Expected::Absent)?;
        Ok(Ok(TopicChangeResult { topic: topic.clone(), revision, created: true }))
    };
    let written = api.write(&name, write).await?;
    Ok(written.response(&requester, &api.paused().await, StatusCode::CREATED, ""))
}

/// Registers a topic, or replaces it. A field that is missing gets its default.
#[utoipa::path(put, path = "/v1/topics/{topic}", tag = "topics", operation_id = "put_topic",
    params(schema::TopicPath,
        ("If-Match" = Option<String>, Header, description = "Replaces the topic only if it has this revision, in quotes. With *, only if it exists"),
        ("If-None-Match" = Option<String>, Header, description = "With *, registers the topic only if it does not exist")),
    request_body = schema::TopicRequestSchema,
    responses((status = 201, body = TopicResponse, description = "The topic is new"), (status = 200, body = TopicResponse, description = "The topic is replaced"),
        schema::ChangeErrorResponses))]
async fn put(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(name): TopicInPath,
    headers: HeaderMap,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let condition = RevisionCondition::from_headers(&headers)?;
    let parts = TopicFields::read(&json)?;
    let topic = api.can_give(parts.new_topic(parts.name(Some(&name))?)?)?;
    api.check_writable(&name)?;
    api.trials.check(&topic.callback).await?;
    let sees_credentials = requester.sees_credentials();
    let admin_settings = AdminSettingsAccess::for_requester(&requester, &name, &api.topics.borrow());
    let write = move |registry: &mut dyn Registry| {
        let mut tries = 0;
        loop {
            tries += 1;
            let there = found(registry, &topic.name)?;
            condition.check(&topic.name, there.as_ref().map(|t| t.as_ref().map(|(_, r)| *r)))?;
            let mut topic = topic.clone();
            let before = there.as_ref().and_then(Option::as_ref).map(|(before, _)| before);
            if let (false, Some(before)) = (sees_credentials, before) {
                credentials::restore(before, &mut topic);
            }
            if let Err(problem) = admin_settings.check(before, &mut topic) {
                return Ok(Err(problem));
            }
            let expected = match &there {
                None => Expected::Absent,
                // The checks above were made with this revision.
                Some(Some((_, revision))) => Expected::At(*revision),
                // The row of this topic cannot be used, so its revision is not known.
                Some(None) => Expected::Any,
            };
            match registry.put(&topic, expected) {
                Ok(revision) => {
                    return Ok(Ok(TopicChangeResult { topic, revision, created: there.is_none() }));
                }
                Err(RegistryError::Exists(_) | RegistryError::Changed(_) | RegistryError::NotFound(_))
                    if tries < TRIES => {}
                Err(e) => return Err(e),
            }
        }
    };
    let written = api.write(&name, write).await?;
    Ok(written.response(&requester, &api.paused().await, StatusCode::CREATED, ""))
}

/// Changes some fields of a topic. A null resets a field to its default.
#[utoipa::path(patch, path = "/v1/topics/{topic}", tag = "topics", operation_id = "change_topic",
    params(schema::TopicPath, ("If-Match" = Option<String>, Header, description = "Changes the topic only if it has this revision, in quotes")),
    request_body = schema::TopicRequestSchema,
    responses((status = 200, body = TopicResponse, description = "The topic after the change"), schema::ChangeErrorResponses))]
async fn patch(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(name): TopicInPath,
    headers: HeaderMap,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let condition = RevisionCondition::from_headers(&headers)?;
    let parts = TopicFields::read(&json)?;
    parts.name(Some(&name))?;
    api.check_writable(&name)?;
    if let Some(callback) = parts.callback()? {
        api.trials.check(&callback).await?;
    }
    let (of, fields) = (name.clone(), parts.names());
    let (checks, sees_credentials) = (api.clone(), requester.sees_credentials());
    let admin_settings = AdminSettingsAccess::for_requester(&requester, &name, &api.topics.borrow());
    let step = move |registry: &mut dyn Registry| {
        let mut tries = 0;
        loop {
            tries += 1;
            let there = registry.get(&of)?.ok_or_else(|| RegistryError::NotFound(of.clone()))?;
            condition.check(&of, Some(Some(there.revision)))?;
            let before = there.topic.clone();
            let mut topic = there.topic;
            topic.drop_ended_secrets(host::now_ms());
            // The changed fields may be invalid in combination with the unchanged fields.
            let patched = TopicFields::read(&json).and_then(|parts| parts.topic(topic));
            let checked = patched.and_then(|topic| checks.can_give(topic)).and_then(|mut topic| {
                if !sees_credentials {
                    credentials::restore(&before, &mut topic);
                }
                admin_settings.check(Some(&before), &mut topic).map(|()| topic)
            });
            let topic = match checked {
                Ok(topic) => topic,
                Err(problem) => return Ok(Err(problem)),
            };
            match registry.put(&topic, Expected::At(there.revision)) {
                Ok(revision) => return Ok(Ok(TopicChangeResult { topic, revision, created: false })),
                Err(RegistryError::Changed(_)) if tries < TRIES => {}
                Err(e) => return Err(e),
            }
        }
    };
    let written = api.write(&name, step).await?;
    Ok(written.response(&requester, &api.paused().await, StatusCode::OK, &fields))
}

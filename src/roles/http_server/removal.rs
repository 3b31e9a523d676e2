//! The route that removes a topic. The jobs of the topic stay in the store, or are removed with the topic.
//!
//! Removing a topic with its jobs takes four steps. The topic is paused, so that no job is delivered any more. The
//! topic is removed from the registry. Its jobs are removed, and then its records. The pause is ended. If the request
//! is refused, or the process dies before the second step is done, no job is lost. If the process dies later, jobs that
//! nobody delivers may remain in the store. The client can send the same request again to remove them. So with
//! `jobs=purge` the route also accepts a topic that is not registered.

use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::admin_settings::AdminSettingsAccess;
use super::api::{Api, CallerContext, TopicInPath};
use super::api_response::ApiResponse;
use super::audit::AuditNote;
use super::condition::RevisionCondition;
use super::input::{parameters, short};
use super::problem::Problem;
use super::schema;
use super::store_client::AnswerSender;
use super::topics::found;
use model::job::{State as JobState, TopicName};
use model::scope::RequiredAccess;
use registry::{Expected, Registry, RegistryError};
use role::submit::StoreRequest;

/// The maximum number of jobs that one step removes, so that other requests get their turn at the store. `PATIENCE`:
/// after the removal of jobs has taken this time, no further step begins. The removal of records has the same limit,
/// counted from its own start.
const STEP: usize = 500;
const PATIENCE: Duration = Duration::from_secs(20);

/// The order in which the states are emptied. A job must not change into a state that was already emptied. So the
/// leased jobs come first, because they may change into any other state. Delayed jobs come before ready jobs, because a
/// delayed job may become ready. No job becomes leased, because the topic is paused.
const ORDER: [JobState; 4] = [JobState::Leased, JobState::Delayed, JobState::Ready, JobState::Dead];

/// What happens to the jobs of a removed topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum RemainingJobsChoice {
    /// The jobs stay, and are delivered when the topic is registered again.
    Keep,
    /// The jobs are removed.
    Purge,
}

/// What happens to the jobs of the topic.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
struct RemovalQuery {
    /// What happens to the topic's jobs and dead letters. Required if there are any.
    #[param(inline, required = false)]
    jobs: RemainingJobsChoice,
}

/// What was removed.
#[derive(Serialize, ToSchema)]
#[schema(as = Removed)]
struct RemovalCounts {
    /// The number of removed jobs, including dead letters.
    purged: usize,
    /// The number of erased records of ended jobs, including those of the removed jobs. With Redis, the records of one
    /// id count as one.
    records: usize,
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(delete))
}

fn decision(query: &str) -> Result<Option<RemainingJobsChoice>, Problem> {
    let given = parameters(query, &["jobs"])?;
    let decision = |value: &str| match value {
        "keep" => Ok(RemainingJobsChoice::Keep),
        "purge" => Ok(RemainingJobsChoice::Purge),
        other => {
            Err(Problem::field("jobs", format!("jobs is {:?}, and not \"keep\" or \"purge\"", short(other))))
        }
    };
    given.first().map(|(_, value)| decision(value)).transpose()
}

/// How many jobs a topic has.
#[derive(Debug, Default)]
struct RemainingJobs {
    pending: u64,
    dead: u64,
    /// The nodes that did not answer.
    away: Vec<String>,
}

impl RemainingJobs {
    fn is_nothing(&self) -> bool {
        self.pending + self.dead == 0 && self.away.is_empty()
    }

    /// Builds the error that asks the client to decide about the jobs.
    fn undecided(&self, name: &TopicName) -> Problem {
        let RemainingJobs { pending, dead, away } = self;
        let unknown = match away.is_empty() {
            true => String::new(),
            false => format!(", and those on nodes that do not answer ({})", away.join(", ")),
        };
        let detail = format!(
            "topic {name} has {pending} pending jobs and {dead} dead letters{unknown}: say with the parameter jobs whether they are removed with it (purge), \
             or stay, undelivered, until it is registered again (keep)"
        );
        Problem::conflict("topic_has_jobs", detail)
    }
}

impl Api {
    async fn left(&self, name: &TopicName) -> Result<RemainingJobs, Problem> {
        let Some((mut counts, away)) = self.metrics.counts().await else {
            let detail = format!(
                "no node of the store reports whether topic {name} has jobs; jobs=keep leaves them as they are"
            );
            return Err(Problem::unavailable("store_unavailable", detail));
        };
        let counts = counts.remove(name);
        let of = |count: fn(&store::Counts) -> u64| counts.as_ref().map_or(0, count);
        Ok(RemainingJobs { pending: of(|c| c.delayed + c.ready + c.leased), dead: of(|c| c.dead), away })
    }

    /// Returns the condition of the removal, if the registry has the topic. If the topic does not have the revision
    /// that `condition` demands, returns an error. For a caller that is not an administrator, the returned condition is
    /// the revision that was checked here. So the caller cannot remove limits that an administrator sets at the same
    /// time.
    async fn checked_condition(
        &self,
        name: &TopicName,
        condition: &RevisionCondition,
        requester: &CallerContext,
    ) -> Result<Option<RevisionCondition>, Problem> {
        if !self.registrar.is_there() {
            return Ok(None);
        }
        let (of, wanted) = (name.clone(), condition.clone());
        let look = move |registry: &mut dyn Registry| {
            let there = found(registry, &of)?;
            if let Some(there) = &there {
                wanted.check(&of, Some(there.as_ref().map(|(_, revision)| *revision)))?;
            }
            Ok(there)
        };
        let Some(there) = self.registrar.ask(look).await? else { return Ok(None) };
        match there {
            Some((topic, revision)) if !requester.permits(RequiredAccess::Admin) => {
                AdminSettingsAccess::for_requester(requester, &topic.name, &self.topics.borrow())
                    .check_removal(&topic)?;
                Ok(Some(RevisionCondition::at(revision)))
            }
            _ => Ok(Some(condition.clone())),
        }
    }

    /// Removes a topic from the registry.
    async fn take_out(&self, name: &TopicName, condition: RevisionCondition) -> Result<(), RegistryError> {
        let of = name.clone();
        let step = move |registry: &mut dyn Registry| {
            if condition.is_any() {
                return registry.delete(&of, Expected::Any);
            }
            let there = found(registry, &of)?.ok_or_else(|| RegistryError::NotFound(of.clone()))?;
            let revision = there.map(|(_, revision)| revision);
            condition.check(&of, Some(revision))?;
            registry.delete(&of, revision.map_or(Expected::Any, Expected::At))
        };
        self.registrar.change(step).await?;
        self.seen(name, None).await;
        Ok(())
    }

    /// Removes a topic, if it is registered, and then its jobs and records.
    async fn remove_with_jobs(
        &self,
        name: &TopicName,
        condition: RevisionCondition,
        is_there: bool,
    ) -> Result<RemovalCounts, Problem> {
        let paused = self.paused().await;
        let Some((was_paused, _)) = paused.state_of(name.as_str()) else {
            return Err(Problem::unavailable(
                "store_unavailable",
                "the store does not answer: nothing was removed",
            ));
        };
        self.pause_jobs(name.clone(), true).await?;
        if is_there && let Err(e) = self.take_out(name, condition).await {
            if matches!(e, RegistryError::Unknown(_)) {
                let paused = format!("topic {name} is paused: repeat the request, or resume it");
                return Err(Problem::from(e).beside(&paused));
            }
            if !was_paused && let Err(problem) = self.pause_jobs(name.clone(), false).await {
                log::error!(topic = name.as_str(); "the topic was not removed, but stays paused: {}", problem.detail);
            }
            return Err(e.into());
        }
        let purged = self.purge_jobs(name).await?;
        let records = self.erase_records(name).await?;
        self.pause_jobs(name.clone(), false).await?;
        Ok(RemovalCounts { purged, records })
    }

    /// Erases all records of a topic.
    async fn erase_records(&self, name: &TopicName) -> Result<usize, Problem> {
        let (until, mut erased) = (Instant::now() + PATIENCE, 0);
        let so_far = "the topic is removed, but not all its records: remove it again, with its jobs, to remove the rest";
        loop {
            let name = name.clone();
            let ask =
                |reply: AnswerSender<_>| StoreRequest::purge_records(name, STEP, |count| reply.with(count));
            let step = self.store_client.ask(0, ask).await.and_then(|count| Ok(count?));
            let gone = step.map_err(|problem| problem.beside(so_far))?;
            erased += gone;
            if gone < STEP {
                return Ok(erased);
            }
            if Instant::now() >= until {
                return Err(Problem::unavailable("purge_unfinished", so_far));
            }
        }
    }

    /// Removes all jobs of a topic that is paused.
    async fn purge_jobs(&self, name: &TopicName) -> Result<usize, Problem> {
        let (until, mut purged) = (Instant::now() + PATIENCE, 0);
        let so_far = |purged: usize| {
            format!(
                "topic {name} and {purged} of its jobs are removed; the others are not delivered: repeat the request"
            )
        };
        for state in ORDER {
            loop {
                let name = name.clone();
                let ask = |reply: AnswerSender<_>| {
                    StoreRequest::purge(name, state, STEP, |count| reply.with(count))
                };
                let step = self.store_client.ask(0, ask).await.and_then(|count| Ok(count?));
                let gone = step.map_err(|problem| problem.beside(&so_far(purged)))?;
                purged += gone;
                if gone < STEP {
                    break;
                }
                if Instant::now() >= until {
                    return Err(Problem::unavailable("purge_unfinished", so_far(purged)));
                }
            }
        }
        Ok(purged)
    }
}

/// Removes a topic. If it has jobs, `jobs` says what happens to them. `purge` also removes the jobs of a topic that is
/// not registered. The records of ended jobs are erased, except with `keep`.
#[utoipa::path(delete, path = "/v1/topics/{topic}", tag = "topics", operation_id = "delete_topic",
    params(schema::TopicPath, RemovalQuery, ("If-Match" = Option<String>, Header, description = "Removes the topic only if it has this revision, in quotes")),
    responses((status = 204, description = "The topic is removed"), (status = 200, body = RemovalCounts, description = "The topic and its jobs are removed"),
        schema::ChangeErrorResponses))]
async fn delete(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(name): TopicInPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<ApiResponse, Problem> {
    let decision = decision(query.as_deref().unwrap_or_default())?;
    let condition = RevisionCondition::from_headers(&headers)?;
    // A topic that was removed may have left jobs in the store. These jobs may be purged even if there is no registry.
    if decision != Some(RemainingJobsChoice::Purge) || api.topics.borrow().get(name.as_str()).is_some() {
        api.check_writable(&name)?;
    }
    {
        let topics = api.topics.borrow();
        if let Some(topic) = topics.get(name.as_str()) {
            AdminSettingsAccess::for_requester(&requester, &topic.name, &topics).check_removal(topic)?;
        }
    }
    let checked = api.checked_condition(&name, &condition, &requester).await?;
    let (is_there, condition) = (checked.is_some(), checked.unwrap_or(condition));
    if !is_there && decision != Some(RemainingJobsChoice::Purge) {
        return Err(Problem::unknown_topic(&name));
    }
    if decision == Some(RemainingJobsChoice::Keep) {
        api.take_out(&name, condition).await?;
        return Ok(ApiResponse::done());
    }
    let left = api.left(&name).await?;
    match decision {
        None if !left.is_nothing() => Err(left.undecided(&name)),
        None => {
            api.take_out(&name, condition).await?;
            // A later topic with this name must not show the records of the removed topic.
            api.erase_records(&name).await?;
            Ok(ApiResponse::done())
        }
        Some(_) => {
            let has_nothing = !is_there && left.is_nothing() && api.paused().await.lets_through(&name);
            let removed = match has_nothing {
                false => api.remove_with_jobs(&name, condition, is_there).await?,
                true => match api.erase_records(&name).await? {
                    0 => return Err(Problem::unknown_topic(&name)),
                    records => RemovalCounts { purged: 0, records },
                },
            };
            let detail = format!("and {} jobs", removed.purged);
            let noted = AuditNote { detail, jobs: Some(removed.purged), ..AuditNote::default() };
            Ok(ApiResponse::new(StatusCode::OK, &removed).noting(noted))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_decides_or_says_nothing_and_nothing_else() {
        assert_eq!(decision("").unwrap(), None);
        assert_eq!(decision("jobs=keep").unwrap(), Some(RemainingJobsChoice::Keep));
        assert_eq!(decision("jobs=purge").unwrap(), Some(RemainingJobsChoice::Purge));
        assert!(decision("jobs=all").unwrap_err().detail.contains("\"purge\""));
        assert_eq!(decision("job=keep").unwrap_err().named_field(), Some("job"));
    }

    #[test]
    fn what_is_left_is_told_in_numbers() {
        let name = TopicName::new("t").unwrap();
        let left = RemainingJobs { pending: 12, dead: 3, away: vec!["r1".into()] };
        let detail = left.undecided(&name).detail;
        for part in ["12 pending jobs and 3 dead letters", "(r1)", "(purge)", "(keep)"] {
            assert!(detail.contains(part), "{part}: {detail}");
        }
        assert!(!left.is_nothing() && RemainingJobs::default().is_nothing());
    }
}

//! The route that removes a topic, and what becomes of its jobs then: they stay, or are removed with it.
//!
//! With its jobs a topic is removed in four steps: it is paused, so that none of them is delivered any more; it is taken out of the
//! registry; its jobs are removed; the pause is taken back. Nothing of a job is touched before the topic is gone: whoever is refused,
//! or dies before that, has lost nothing. Whoever dies later leaves jobs that nobody delivers, which the same request removes when it
//! is made again: therefore it is also there for jobs of a topic that is not registered.

use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, InTopic};
use super::audit::Noted;
use super::input::short;
use super::problem::Problem;
use super::schema;
use super::told::{Manner, Told};
use super::topics::{Condition, found};
use crate::job::{State as JobState, TopicName};
use crate::registry::{Expected, Registry, RegistryError};
use crate::submit::Ask;

/// So many jobs are removed in one step, so that others have their turn at the store; and for so long in one request.
const STEP: usize = 500;
const PATIENCE: Duration = Duration::from_secs(20);

/// In this order nothing escapes from one state into one that was emptied before: what is leased may become delayed or ready, what is
/// delayed ready; and what is paused is not leased.
const ORDER: [JobState; 4] = [JobState::Leased, JobState::Delayed, JobState::Ready, JobState::Dead];

/// What becomes of the jobs of a topic that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Decision {
    /// They stay, and are delivered when the topic is registered again.
    Keep,
    /// They are removed.
    Purge,
}

/// What becomes of its jobs.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
struct JobsQuery {
    /// What becomes of its jobs and dead letters, if there are some.
    #[param(inline, required = false)]
    jobs: Decision,
}

/// What was removed.
#[derive(Serialize, ToSchema)]
struct Removed {
    /// How many jobs, dead letters among them.
    purged: usize,
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(delete))
}

fn decision(query: &str) -> Result<Option<Decision>, Problem> {
    let mut decision = None;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        decision = Some(match (&*name, &*value) {
            ("jobs", "keep") => Decision::Keep,
            ("jobs", "purge") => Decision::Purge,
            ("jobs", other) => {
                let detail = format!("jobs is {:?}, and not \"keep\" or \"purge\"", short(other));
                return Err(Problem::field("jobs", detail));
            }
            (other, _) => return Err(Problem::unknown_field(&short(other), &["jobs"])),
        });
    }
    Ok(decision)
}

/// How many jobs of a topic there are.
#[derive(Debug, Default)]
struct Left {
    pending: u64,
    dead: u64,
    /// The nodes that do not say.
    away: Vec<String>,
}

impl Left {
    fn is_nothing(&self) -> bool {
        self.pending + self.dead == 0 && self.away.is_empty()
    }

    /// That somebody has to decide over them.
    fn undecided(&self, name: &TopicName) -> Problem {
        let Left { pending, dead, away } = self;
        let unknown = match away.is_empty() {
            true => String::new(),
            false => format!(", and those on nodes that do not answer ({})", away.join(", ")),
        };
        let detail = format!(
            "topic {name} has {pending} pending jobs and {dead} dead letters{unknown}: say jobs=purge to remove them with it, or \
             jobs=keep to leave them, undelivered, until it is registered again"
        );
        Problem::conflict("topic_has_jobs", detail)
    }
}

impl Api {
    async fn left(&self, name: &TopicName) -> Result<Left, Problem> {
        let Some((mut counts, away)) = self.metrics.counts().await else {
            let detail = format!(
                "the store does not say whether topic {name} has jobs; jobs=keep leaves them as they are"
            );
            return Err(Problem::unavailable("store_unavailable", detail));
        };
        let counts = counts.remove(name);
        let of = |count: fn(&crate::store::Counts) -> u64| counts.as_ref().map_or(0, count);
        Ok(Left { pending: of(|c| c.delayed + c.ready + c.leased), dead: of(|c| c.dead), away })
    }

    /// Whether the registry has the topic, as it is expected.
    async fn is_there(&self, name: &TopicName, condition: &Condition) -> Result<bool, Problem> {
        if !self.registrar.is_there() {
            return Ok(false);
        }
        let (of, condition) = (name.clone(), condition.clone());
        let look = move |registry: &mut dyn Registry| {
            let Some(there) = found(registry, &of)? else { return Ok(false) };
            condition.check(&of, Some(there.map(|(_, revision)| revision)))?;
            Ok(true)
        };
        Ok(self.registrar.ask(look).await?)
    }

    /// Takes a topic out of the registry.
    async fn take_out(&self, name: &TopicName, condition: Condition) -> Result<(), RegistryError> {
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

    async fn pause_jobs(&self, name: &TopicName, paused: bool) -> Result<(), Problem> {
        self.desk.ask(Ask::Pause(name.clone(), paused), Manner::Plain, 0).await.map(drop)
    }

    /// Removes a topic, if it is there, and then its jobs. Tells how many there were.
    async fn remove_with_jobs(
        &self,
        name: &TopicName,
        condition: Condition,
        is_there: bool,
    ) -> Result<usize, Problem> {
        let paused = self.paused().await;
        let Some((was_paused, _)) = paused.of(name.as_str()) else {
            return Err(Problem::unavailable(
                "store_unavailable",
                "the store does not answer: nothing was removed",
            ));
        };
        self.pause_jobs(name, true).await?;
        if is_there && let Err(e) = self.take_out(name, condition).await {
            if matches!(e, RegistryError::Unknown(_)) {
                let paused = format!("topic {name} is paused: repeat the request, or resume it");
                return Err(Problem::from(e).beside(&paused));
            }
            if !was_paused && let Err(problem) = self.pause_jobs(name, false).await {
                log::error!("topic {name} was not removed, and stays paused: {}", problem.detail);
            }
            return Err(e.into());
        }
        let purged = self.purge_jobs(name).await?;
        self.pause_jobs(name, false).await?;
        Ok(purged)
    }

    /// Removes all jobs of a topic that nobody delivers any more.
    async fn purge_jobs(&self, name: &TopicName) -> Result<usize, Problem> {
        let (until, mut purged) = (Instant::now() + PATIENCE, 0);
        let so_far = |purged: usize| {
            format!(
                "topic {name} is removed, and {purged} of its jobs; the others are not delivered: repeat the request"
            )
        };
        for state in ORDER {
            loop {
                let step = self.desk.ask(Ask::Purge(name.clone(), state, STEP), Manner::Plain, 0).await;
                let gone = step.map_err(|problem| problem.beside(&so_far(purged)))?.count;
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

/// Removes a topic. If it has jobs, `jobs` says what becomes of them. Jobs of a topic that is not registered are removed as well.
#[utoipa::path(delete, path = "/v1/topics/{topic}", tag = "topics", operation_id = "delete_topic",
    params(schema::TopicPath, JobsQuery, ("If-Match" = Option<String>, Header, description = "Only this revision, in quotes")),
    responses((status = 204, description = "It is gone"), (status = 200, body = Removed, description = "It is gone, and its jobs"),
        schema::ChangeProblems))]
async fn delete(
    State(api): State<Api>,
    InTopic(name): InTopic,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Told, Problem> {
    let decision = decision(query.as_deref().unwrap_or_default())?;
    let condition = Condition::of(&headers)?;
    // What is not registered may have left jobs behind.
    if decision != Some(Decision::Purge) || api.topics.borrow().get(name.as_str()).is_some() {
        api.check_writable(&name)?;
    }
    let is_there = api.is_there(&name, &condition).await?;
    if !is_there && decision != Some(Decision::Purge) {
        return Err(Problem::unknown_topic(&name));
    }
    if decision == Some(Decision::Keep) {
        api.take_out(&name, condition).await?;
        return Ok(Told::done());
    }
    let left = api.left(&name).await?;
    match decision {
        None if !left.is_nothing() => Err(left.undecided(&name)),
        None => {
            api.take_out(&name, condition).await?;
            Ok(Told::done())
        }
        Some(_) if !is_there && left.is_nothing() && api.paused().await.lets_through(&name) => {
            Err(Problem::unknown_topic(&name))
        }
        Some(_) => {
            let purged = api.remove_with_jobs(&name, condition, is_there).await?;
            let detail = format!("and {purged} jobs");
            let noted = Noted { detail, jobs: Some(purged), ..Noted::default() };
            Ok(Told::new(StatusCode::OK, &Removed { purged }).noting(noted))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_decides_or_says_nothing_and_nothing_else() {
        assert_eq!(decision("").unwrap(), None);
        assert_eq!(decision("jobs=keep").unwrap(), Some(Decision::Keep));
        assert_eq!(decision("jobs=purge").unwrap(), Some(Decision::Purge));
        assert!(decision("jobs=all").unwrap_err().detail.contains("\"purge\""));
        assert_eq!(decision("job=keep").unwrap_err().named_field(), Some("job"));
    }

    #[test]
    fn what_is_left_is_told_in_numbers() {
        let name = TopicName::new("t").unwrap();
        let left = Left { pending: 12, dead: 3, away: vec!["r1".into()] };
        let detail = left.undecided(&name).detail;
        for part in ["12 pending jobs and 3 dead letters", "(r1)", "jobs=purge", "jobs=keep"] {
            assert!(detail.contains(part), "{part}: {detail}");
        }
        assert!(!left.is_nothing() && Left::default().is_nothing());
    }
}

//! What happens to leased jobs before a client gets them. Expired jobs become dead letters. Jobs of
//! topics with `on_reserve = "remove"` are settled as done.
//!
//! | the process dies | expired job | job that is removed |
//! |---|---|---|
//! | before the settlement | it comes back at its deadline, and has expired then too | it comes back at its deadline |
//! | after the settlement | it is a dead letter | it is gone without a client: the topic delivers at most once |

use std::collections::BTreeSet;

use super::calls::LeaseCall;
use crate::expiry::expired;
use host::now_ms;
use model::excerpt::Excerpt;
use model::job::{Attempt, JobKey, TopicName};
use model::metrics::AttemptOutcome;
use store::{LeaseResult, LeasedJob, Outcome, OwnerTag, Settled, Settlement, Store, StoreError};
use telemetry::counters::Counters;

/// How many times a call leases again, if all jobs that it got had expired.
const ROUNDS: usize = 32;

/// The answer in the recorded attempt of a job that was removed when it was reserved.
const REMOVED: &str = "removed when it was reserved";

/// Leases jobs. Expired jobs become dead letters. Returns the other jobs, and the topics of the expired jobs. If all
/// jobs have expired, leases again, up to `ROUNDS` times. So a client that does not wait gets the jobs behind the
/// expired jobs.
pub(super) fn lease_unexpired(
    store: &mut dyn Store,
    call: &LeaseCall,
    owner: Option<&OwnerTag>,
) -> Result<(LeaseResult, BTreeSet<TopicName>), StoreError> {
    let mut topics = BTreeSet::new();
    let mut batch = store.lease(&call.wanted, call.limit, owner)?;
    for round in 0.. {
        let mut settlements = Vec::new();
        batch.jobs.retain(|job| match expired(job) {
            None => true,
            Some(attempt) => {
                let JobKey { topic, id } = &job.key;
                let error = Excerpt(&attempt.error);
                log::warn!(target: "notify", topic = topic.as_str(), id = id.as_str(); "is a dead letter: {error}");
                topics.insert(topic.clone());
                settlements.push(settlement(job, Outcome::DeadLetter, attempt));
                false
            }
        });
        if settlements.is_empty() {
            break;
        }
        if !batch.jobs.is_empty() || round == ROUNDS {
            // A job that cannot be settled now comes back at its deadline, and has expired then too.
            store.settle(&settlements);
            break;
        }
        batch = store.exchange(&settlements, &call.wanted, call.limit, owner).1?;
    }
    Ok((batch, topics))
}

/// Settles the jobs of these topics as done. If the settlement of a job fails, the job is left out: it may come back at
/// its deadline.
pub(super) fn remove(store: &mut dyn Store, jobs: &mut Vec<LeasedJob>, topics: &BTreeSet<TopicName>) {
    let is_removed = |job: &LeasedJob| topics.contains(&job.key.topic);
    let done = |job: &LeasedJob| {
        let attempt = Attempt {
            number: job.attempt,
            at_ms: now_ms(),
            took_ms: 0,
            status: None,
            answer: REMOVED.to_owned(),
            error: String::new(),
            late: None,
        };
        settlement(job, Outcome::Ack, attempt)
    };
    let settlements: Vec<Settlement> = jobs.iter().filter(|job| is_removed(job)).map(done).collect();
    if settlements.is_empty() {
        return;
    }
    let mut results = store.settle(&settlements).into_iter();
    jobs.retain(|job| !is_removed(job) || matches!(results.next(), Some(Ok(Settled::Done))));
}

/// Counts how late jobs were reserved, and the attempts of the removed jobs, which are done.
pub(super) fn count(counters: &Counters, jobs: &[LeasedJob], removed: &BTreeSet<TopicName>) {
    for job in jobs {
        let of_topic = counters.topic(job.key.topic.as_str());
        of_topic.reserved(job.late().as_micros() as u64);
        if removed.contains(&job.key.topic) {
            of_topic.reported(AttemptOutcome::Accepted, 0);
        }
    }
}

fn settlement(job: &LeasedJob, outcome: Outcome, attempt: Attempt) -> Settlement {
    Settlement { key: job.key.clone(), token: job.token.clone(), outcome, attempt: Some(attempt) }
}

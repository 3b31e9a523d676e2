//! What becomes of a job whose callback ended, and what is said of it.

use crate::callback::Verdict;
use crate::job::{Due, JobKey};
use crate::store::{Leased, Outcome};
use crate::topic::Topic;

/// What becomes of a job whose callback ended so.
pub(super) fn outcome(topic: &Topic, leased: &Leased, verdict: &Verdict) -> Outcome {
    let limit = leased.max_attempts.unwrap_or(topic.max_attempts);
    match verdict {
        Verdict::Accepted => Outcome::Ack,
        // Answer later: as long as no ack_url is sent, no receiver can say so.
        Verdict::Later => Outcome::Ack,
        Verdict::Refused { .. } => Outcome::Bury,
        Verdict::Failed { .. } if leased.attempt >= limit => Outcome::Bury,
        Verdict::Failed { retry_after, .. } => {
            let own = topic.retry.delay_after(leased.attempt, fastrand::f64());
            Outcome::Retry(Due::In(own.max(retry_after.unwrap_or_default())))
        }
    }
}

/// Logs it.
pub(super) fn note(leased: &Leased, verdict: &Verdict, outcome: &Outcome) {
    let (JobKey { topic, id }, attempt) = (&leased.key, leased.attempt);
    let Some(reason) = verdict.reason() else {
        return log::debug!(target: "notify", "{topic}:{id} accepted at attempt {attempt}");
    };
    match outcome {
        Outcome::Bury => {
            log::error!(target: "notify", "{topic}:{id} is a dead letter after attempt {attempt}: {reason}")
        }
        _ => log::warn!(target: "notify", "{topic}:{id} failed at attempt {attempt}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::{Body, JobId, TopicName};
    use crate::retry::RetryPolicy;
    use crate::store::Token;
    use crate::topic::Failure;

    const MINUTE: Duration = Duration::from_secs(60);

    fn of(attempt: u32, verdict: &Verdict) -> Outcome {
        let name = TopicName::new("t").unwrap();
        let retry = RetryPolicy::List(vec![MINUTE]);
        let topic = Topic { retry, max_attempts: 3, ..Topic::new(name.clone(), "http://h/") };
        let leased = Leased {
            key: JobKey { topic: name, id: JobId::new("1").unwrap() },
            body: Body::trusted("1"),
            token: Token(Box::from([7])),
            attempt,
            due_ms: 0,
            stamp_us: 0,
            deadline_ms: 0,
            max_attempts: None,
        };
        outcome(&topic, &leased, verdict)
    }

    fn failed(retry_after: Option<Duration>) -> Verdict {
        Verdict::Failed { kind: Failure::Timeout, reason: "late".to_owned(), retry_after }
    }

    #[test]
    fn a_failure_comes_again_after_the_longer_of_the_policys_delay_and_the_receivers() {
        assert_eq!(of(1, &failed(None)), Outcome::Retry(Due::In(MINUTE)));
        assert_eq!(of(1, &failed(Some(MINUTE / 2))), Outcome::Retry(Due::In(MINUTE)));
        assert_eq!(of(1, &failed(Some(10 * MINUTE))), Outcome::Retry(Due::In(10 * MINUTE)));
    }

    #[test]
    fn what_is_used_up_or_refused_is_buried() {
        assert_eq!(of(3, &failed(Some(MINUTE))), Outcome::Bury);
        let refused = Verdict::Refused { kind: Failure::Status(410), reason: "gone".to_owned() };
        assert_eq!(of(1, &refused), Outcome::Bury);
        assert_eq!(of(1, &Verdict::Accepted), Outcome::Ack);
    }
}

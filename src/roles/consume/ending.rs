//! What becomes of jobs: of those whose callbacks ended, and of those that are too old to be called for. Pure, but for the log.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::callback::Verdict;
use crate::job::{Attempt, Due, JobKey};
use crate::store::{Leased, Outcome};
use crate::topic::{CatchUp, Failure, Topic};

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

/// Logs it. No reason: it was accepted.
pub(super) fn note(leased: &Leased, reason: Option<&str>, outcome: &Outcome) {
    let (JobKey { topic, id }, attempt) = (&leased.key, leased.attempt);
    let Some(reason) = reason else {
        return log::debug!(target: "notify", "{topic}:{id} accepted at attempt {attempt}");
    };
    match outcome {
        Outcome::Bury => {
            log::error!(target: "notify", "{topic}:{id} is a dead letter after attempt {attempt}: {reason}")
        }
        _ => log::warn!(target: "notify", "{topic}:{id} failed at attempt {attempt}: {reason}"),
    }
}

/// Whether the receiver failed, and not only this job at it: then others would fail as well.
pub(super) fn receiver_failed(verdict: &Verdict) -> bool {
    let (Verdict::Failed { kind, .. } | Verdict::Refused { kind, .. }) = verdict else { return false };
    match kind {
        Failure::Answer => false,
        Failure::Connect | Failure::Timeout | Failure::Broken => true,
        Failure::Status(status) => *status >= 500 || *status == 429,
        Failure::Class(class) => *class == 5,
    }
}

/// What a job is buried with that has been due for longer than its topic allows; none: it is called for.
pub(super) fn too_old(topic: &Topic, leased: &Leased) -> Option<Attempt> {
    let CatchUp::Skip(most) = topic.catch_up else { return None };
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
    let late = Duration::from_millis(u64::try_from(now_ms - leased.due_ms).unwrap_or(0));
    if late <= most {
        return None;
    }
    let error = format!(
        "not called: it has been due for {}, and catch_up is {:?}",
        humantime::format_duration(Duration::from_secs(late.as_secs())),
        topic.catch_up.to_string()
    );
    Some(Attempt {
        number: leased.attempt,
        at_ms: now_ms,
        took_ms: 0,
        status: None,
        answer: String::new(),
        error,
    })
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
            probe: None,
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

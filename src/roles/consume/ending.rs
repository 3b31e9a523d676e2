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
        Verdict::Refused => Outcome::Bury,
        Verdict::Failed(_) if leased.attempt >= limit => Outcome::Bury,
        Verdict::Failed(_) => {
            Outcome::Retry(Due::In(topic.retry.delay_after(leased.attempt, fastrand::f64())))
        }
    }
}

pub(super) fn note(leased: &Leased, verdict: &Verdict, outcome: &Outcome) {
    let (JobKey { topic, id }, attempt) = (&leased.key, leased.attempt);
    let reason = match verdict {
        Verdict::Accepted => {
            return log::debug!(target: "notify", "{topic}:{id} accepted at attempt {attempt}");
        }
        Verdict::Refused => "410: the receiver is gone",
        Verdict::Failed(reason) => reason,
    };
    match outcome {
        Outcome::Bury => {
            log::error!(target: "notify", "{topic}:{id} is a dead letter after attempt {attempt}: {reason}")
        }
        _ => log::warn!(target: "notify", "{topic}:{id} failed at attempt {attempt}: {reason}"),
    }
}

/// In which way a delivery failed, as far as it says so; none: it did not.
fn failure(verdict: &Verdict, attempt: &Attempt) -> Option<Failure> {
    match (verdict, attempt.status) {
        (Verdict::Accepted, _) => None,
        (Verdict::Refused, _) => Some(Failure::Status(410)),
        (Verdict::Failed(_), None) => Some(Failure::Connect),
        (Verdict::Failed(why), Some(_)) if why.contains("; then ") => Some(Failure::Broken),
        (Verdict::Failed(_), Some(200..=299)) => Some(Failure::Answer),
        (Verdict::Failed(_), Some(status)) => Some(Failure::Status(status)),
    }
}

/// Whether the receiver failed, and not only this job at it: then others would fail as well.
pub(super) fn receiver_failed(verdict: &Verdict, attempt: &Attempt) -> bool {
    match failure(verdict, attempt) {
        None | Some(Failure::Answer) => false,
        Some(Failure::Connect | Failure::Timeout | Failure::Broken) => true,
        Some(Failure::Status(status)) => status >= 500 || status == 429,
        Some(Failure::Class(class)) => class == 5,
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
    use super::*;
    use crate::job::{Body, JobId, TopicName};
    use crate::store::Token;

    fn attempt(status: Option<u16>) -> Attempt {
        let (answer, error) = (String::new(), String::new());
        Attempt { number: 1, at_ms: 0, took_ms: 0, status, answer, error }
    }

    #[test]
    fn a_receiver_fails_that_cannot_be_reached_or_cannot_answer_and_not_one_that_says_no() {
        let failed = |why: &str, status| receiver_failed(&Verdict::Failed(why.into()), &attempt(status));
        assert!(failed("no answer in time", None) && failed("status 500", Some(500)));
        assert!(failed("status 503", Some(503)) && failed("status 429", Some(429)));
        assert!(failed("an empty answer (status 200); then it broke", Some(200)));
        assert!(!failed("status 404", Some(404)) && !failed("an empty answer (status 200)", Some(200)));
        assert!(!receiver_failed(&Verdict::Refused, &attempt(Some(410))));
        assert!(!receiver_failed(&Verdict::Accepted, &attempt(Some(500))), "whatever its status");
    }

    #[test]
    fn a_job_is_too_old_by_its_own_topic_alone() {
        let name = TopicName::new("t").unwrap();
        let mut topic = Topic::new(name.clone(), "http://h/");
        let leased = |due_ms| Leased {
            key: JobKey { topic: name.clone(), id: JobId::new("i").unwrap() },
            body: Body::trusted("1"),
            token: Token([].into()),
            attempt: 3,
            due_ms,
            stamp_us: 0,
            deadline_ms: 0,
            max_attempts: None,
            probe: None,
        };
        assert_eq!(too_old(&topic, &leased(0)), None);
        topic.catch_up = CatchUp::Spread(Duration::from_secs(1));
        assert_eq!(too_old(&topic, &leased(0)), None);
        topic.catch_up = CatchUp::Skip(Duration::from_secs(3600));
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        assert_eq!(too_old(&topic, &leased(now_ms - 3_500_000)), None);
        assert_eq!(too_old(&topic, &leased(now_ms + 1000)), None);
        let buried = too_old(&topic, &leased(now_ms - 3_700_000)).unwrap();
        assert_eq!(buried.number, 3);
        assert!(buried.error.starts_with("not called: it has been due for 1h 1m 40s"), "{}", buried.error);
    }
}

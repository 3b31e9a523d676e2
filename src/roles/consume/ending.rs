//! What becomes of jobs: of those whose callbacks ended, and of those that are too old to be called for. Pure, but for the log.

use std::time::Duration;

use crate::callback::Verdict;
use crate::excerpt::Excerpt;
use crate::job::{Attempt, Due, JobKey};
use crate::process::now_ms;
use crate::store::{Leased, Outcome, Settlement, Token};
use crate::ticket::{Secret, Ticket};
use crate::topic::{CatchUp, Failure, Topic};

/// Where a receiver of this attempt says what came of it; none: it may not answer later. `base` is where the HTTP API is reached.
pub(super) fn ack_url(
    base: Option<&str>,
    secret: Option<&Secret>,
    topic: &Topic,
    leased: &Leased,
) -> Option<String> {
    let (base, secret) = (base?, secret?);
    if topic.answer_later.is_zero() {
        return None;
    }
    let began_ms = now_ms();
    let ticket = Ticket {
        key: leased.key.clone(),
        token: leased.token.0.clone(),
        attempt: leased.attempt,
        limit: leased.max_attempts.unwrap_or(topic.max_attempts),
        began_ms,
        until_ms: began_ms.saturating_add(topic.answer_later.as_millis() as i64),
    };
    Some(format!("{base}/v1/ack/{}", ticket.sign(secret)))
}

/// What becomes of a job whose callback ended so.
pub(super) fn settlement(
    topic: &Topic,
    leased: Leased,
    token: Token,
    verdict: &Verdict,
    attempt: Attempt,
) -> Settlement {
    let limit = leased.max_attempts.unwrap_or(topic.max_attempts);
    let outcome = match verdict {
        Verdict::Accepted => Outcome::Ack,
        Verdict::Refused { .. } => Outcome::Bury,
        Verdict::Failed { retry_after, .. } => {
            match topic.again_after(leased.attempt, limit, fastrand::f64()) {
                Some(delay) => Outcome::Retry(Due::In(delay.max(retry_after.unwrap_or_default()))),
                None => Outcome::Bury,
            }
        }
        // Counted from when the attempt began.
        Verdict::Later => {
            Outcome::Later(topic.answer_later.saturating_sub(Duration::from_millis(attempt.took_ms)))
        }
    };
    note(&leased, verdict.reason(), &outcome);
    // What came of an attempt that is answered later is kept when it is known.
    let attempt = (!matches!(outcome, Outcome::Ack | Outcome::Later(_))).then_some(attempt);
    Settlement { key: leased.key, token, outcome, attempt }
}

/// Logs it. No reason: the receiver did not refuse it.
fn note(leased: &Leased, reason: Option<&str>, outcome: &Outcome) {
    let (JobKey { topic, id }, attempt) = (&leased.key, leased.attempt);
    let (id, reason) = (Excerpt(id), Excerpt(reason.unwrap_or_default()));
    match outcome {
        Outcome::Bury => {
            log::error!(target: "notify", "{topic}:{id} is a dead letter after attempt {attempt}: {reason}")
        }
        Outcome::Retry(_) => {
            log::warn!(target: "notify", "{topic}:{id} failed at attempt {attempt}: {reason}")
        }
        Outcome::Later(_) => {
            log::debug!(target: "notify", "{topic}:{id} is answered later, attempt {attempt}")
        }
        _ => log::debug!(target: "notify", "{topic}:{id} accepted at attempt {attempt}"),
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
    let late = leased.late();
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
        at_ms: now_ms(),
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

    fn leased(attempt: u32, due_ms: i64) -> Leased {
        Leased {
            key: JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("1").unwrap() },
            body: Body::trusted("1"),
            token: Token(Box::from([7])),
            attempt,
            due_ms,
            stamp_us: 0,
            leased_ms: 4_000_000,
            deadline_ms: 0,
            max_attempts: None,
            probe: None,
            headers: Default::default(),
        }
    }

    fn topic() -> Topic {
        let retry = RetryPolicy::List(vec![MINUTE]);
        Topic { retry, max_attempts: 3, ..Topic::new(TopicName::new("t").unwrap(), "http://h/") }
    }

    fn of(attempt: u32, verdict: &Verdict) -> Outcome {
        let token = Token(Box::from([7]));
        let (answer, error) = (String::new(), String::new());
        let made = Attempt { number: attempt, at_ms: 0, took_ms: 1500, status: None, answer, error };
        settlement(&topic(), leased(attempt, 0), token, verdict, made).outcome
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

    #[test]
    fn a_receiver_that_answers_later_has_its_time_from_when_the_attempt_began() {
        let hour = Duration::from_secs(3600);
        assert_eq!(of(1, &Verdict::Later), Outcome::Later(hour - Duration::from_millis(1500)));
    }

    #[test]
    fn a_receiver_fails_that_cannot_be_reached_or_cannot_answer_and_not_one_that_says_no() {
        let failed =
            |kind| receiver_failed(&Verdict::Failed { kind, reason: String::new(), retry_after: None });
        let broken =
            [Failure::Connect, Failure::Timeout, Failure::Broken, Failure::Status(500), Failure::Status(429)];
        assert!(broken.into_iter().all(failed));
        assert!(![Failure::Answer, Failure::Status(404), Failure::Status(410)].into_iter().any(failed));
        assert!(receiver_failed(&Verdict::Refused { kind: Failure::Status(503), reason: String::new() }));
        assert!(!receiver_failed(&Verdict::Accepted) && !receiver_failed(&Verdict::Later));
    }

    #[test]
    fn a_job_is_too_old_by_its_own_topic_alone() {
        let mut topic = topic();
        assert_eq!(too_old(&topic, &leased(3, 0)), None);
        topic.catch_up = CatchUp::Spread(Duration::from_secs(1));
        assert_eq!(too_old(&topic, &leased(3, 0)), None);
        topic.catch_up = CatchUp::Skip(Duration::from_secs(3600));
        assert_eq!(too_old(&topic, &leased(3, 500_000)), None);
        assert_eq!(too_old(&topic, &leased(3, 4_001_000)), None);
        let buried = too_old(&topic, &leased(3, 300_000)).unwrap();
        assert_eq!(buried.number, 3);
        assert!(buried.error.starts_with("not called: it has been due for 1h 1m 40s"), "{}", buried.error);
    }
}

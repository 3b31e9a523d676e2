//! What happens to jobs whose callbacks ended, and to jobs that are too old for a callback. Pure, except for the log.

use std::time::{Duration, Instant};

use super::failure_log::FailureLog;
use delivery::callback::Verdict;
use host::now_ms;
use model::excerpt::Excerpt;
use model::job::{Attempt, Due};
use model::ticket::{Ticket, TicketSecret};
use model::topic::{CatchUp, Failure, Topic};
use role::expiry::attempt_without_call;
use store::{LeasedJob, Outcome, Settlement, Token};

/// Returns the URL where a receiver reports the outcome of this attempt. `None` if the receiver cannot answer this
/// attempt later. `base` is the address of the HTTP API.
pub(super) fn ack_url(
    base: Option<&str>,
    secret: Option<&TicketSecret>,
    topic: &Topic,
    leased: &LeasedJob,
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

/// Returns the settlement of the lease of a job whose callback ended with this verdict.
pub(super) fn settlement(
    topic: &Topic,
    leased: &LeasedJob,
    token: Token,
    verdict: &Verdict,
    attempt: Attempt,
) -> Settlement {
    let again = |limit: u32, retry_after: &Option<Duration>| match topic.again_after(
        leased.attempt,
        limit,
        fastrand::f64(),
    ) {
        Some(delay) => Outcome::Retry(Due::In(delay.max(retry_after.unwrap_or_default()))),
        None => Outcome::DeadLetter,
    };
    let outcome = match verdict {
        Verdict::Accepted => Outcome::Ack,
        Verdict::Refused { .. } => Outcome::DeadLetter,
        Verdict::Failed { retry_after, .. } => {
            again(leased.max_attempts.unwrap_or(topic.max_attempts), retry_after)
        }
        Verdict::Again { retry_after, .. } => {
            again(topic.notifications_limit(leased.max_attempts), retry_after)
        }
        // The time limit of the receiver counts from the beginning of the attempt.
        Verdict::Later => {
            Outcome::Later(topic.answer_later.saturating_sub(Duration::from_millis(attempt.took_ms)))
        }
    };
    // An attempt that is answered later is recorded when its outcome is known. An accepted attempt is recorded only if
    // the topic keeps records of its jobs.
    let is_recorded = match outcome {
        Outcome::Later(_) => false,
        Outcome::Ack => topic.record_keeping().is_on(),
        _ => true,
    };
    let attempt = is_recorded.then_some(attempt);
    Settlement { key: leased.key.clone(), token, outcome, attempt }
}

/// Logs the outcome of a verdict.
pub(super) fn note(
    failures: &mut FailureLog,
    leased: &LeasedJob,
    verdict: &Verdict,
    outcome: &Outcome,
    now: Instant,
) {
    let (topic, id, attempt) = (leased.key.topic.as_str(), leased.key.id.as_str(), leased.attempt);
    let reason = Excerpt(verdict.reason().unwrap_or_default());
    let is_dead = matches!(outcome, Outcome::DeadLetter);
    if !is_dead && matches!(verdict, Verdict::Again { .. }) {
        log::debug!(target: "notify", topic, id, attempt; "is delivered again after attempt {attempt}: {reason}");
        return;
    }
    let has_failed = is_dead || matches!(outcome, Outcome::Retry(_));
    if has_failed && !failures.admits(&leased.key.topic, is_dead, now) {
        log::debug!(target: "notify", topic, id, attempt; "failed at attempt {attempt}: {reason}");
        return;
    }
    match outcome {
        Outcome::DeadLetter => {
            log::error!(target: "notify", topic, id, attempt; "is a dead letter after attempt {attempt}: {reason}")
        }
        Outcome::Retry(_) => {
            log::warn!(target: "notify", topic, id, attempt; "failed at attempt {attempt}: {reason}")
        }
        Outcome::Later(_) => {
            log::debug!(target: "notify", topic, id, attempt; "is answered later, attempt {attempt}")
        }
        _ => log::debug!(target: "notify", topic, id, attempt; "accepted at attempt {attempt}"),
    }
}

/// Whether the receiver itself failed, so that other jobs would fail as well. Otherwise only this job failed.
pub(super) fn receiver_failed(verdict: &Verdict) -> bool {
    let (Verdict::Failed { kind, .. } | Verdict::Refused { kind, .. }) = verdict else { return false };
    match kind {
        Failure::Answer => false,
        Failure::Connect | Failure::Timeout | Failure::Broken => true,
        Failure::Status(status) => *status >= 500 || *status == 429,
        Failure::Class(class) => *class == 5,
    }
}

/// If a job has been due for longer than its topic allows, the job becomes a dead letter. Then this function returns
/// the attempt that must be recorded. `None`: the job gets its callback.
pub(super) fn too_old(topic: &Topic, leased: &LeasedJob) -> Option<Attempt> {
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
    Some(attempt_without_call(leased, error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use model::job::JobKey;
    use model::job::{Body, JobId, TopicName};
    use model::retry::Retry;
    use model::topic::Failure;
    use store::Token;

    const MINUTE: Duration = Duration::from_secs(60);

    fn leased(attempt: u32, due_ms: i64) -> LeasedJob {
        LeasedJob {
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
        let retry = Retry::List(vec![MINUTE]);
        let answer_later = 60 * MINUTE;
        Topic {
            retry,
            max_attempts: 3,
            answer_later,
            ..Topic::new(TopicName::new("t").unwrap(), "http://h/")
        }
    }

    fn of(attempt: u32, verdict: &Verdict) -> Outcome {
        let token = Token(Box::from([7]));
        let (answer, error) = (String::new(), String::new());
        let made =
            Attempt { number: attempt, at_ms: 0, took_ms: 1500, status: None, answer, error, late: None };
        settlement(&topic(), &leased(attempt, 0), token, verdict, made).outcome
    }

    fn failed(retry_after: Option<Duration>) -> Verdict {
        Verdict::Failed { kind: Failure::Timeout, reason: "late".to_owned(), retry_after }
    }

    #[test]
    fn a_retry_waits_for_the_longer_delay_of_policy_and_receiver() {
        assert_eq!(of(1, &failed(None)), Outcome::Retry(Due::In(MINUTE)));
        assert_eq!(of(1, &failed(Some(MINUTE / 2))), Outcome::Retry(Due::In(MINUTE)));
        assert_eq!(of(1, &failed(Some(10 * MINUTE))), Outcome::Retry(Due::In(10 * MINUTE)));
    }

    #[test]
    fn what_is_used_up_or_refused_is_buried() {
        assert_eq!(of(3, &failed(Some(MINUTE))), Outcome::DeadLetter);
        let refused = Verdict::Refused { kind: Failure::Status(410), reason: "gone".to_owned() };
        assert_eq!(of(1, &refused), Outcome::DeadLetter);
        assert_eq!(of(1, &Verdict::Accepted), Outcome::Ack);
    }

    #[test]
    fn a_flag_asks_again_up_to_a_limit_of_its_own() {
        let again = Verdict::Again { reason: "flag".to_owned(), retry_after: None };
        let outcome = |attempt: u32, own: Option<u32>, max_notifications: Option<u32>| {
            let topic = Topic { max_notifications, ..topic() };
            let leased = LeasedJob { max_attempts: own, ..leased(attempt, 0) };
            let (answer, error) = (String::new(), String::new());
            let made =
                Attempt { number: attempt, at_ms: 0, took_ms: 0, status: None, answer, error, late: None };
            settlement(&topic, &leased, Token(Box::from([7])), &again, made).outcome
        };
        let comes = Outcome::Retry(Due::In(MINUTE));
        assert_eq!([outcome(3, None, None), outcome(100_000, None, None)], [comes.clone(), comes.clone()]);
        assert_eq!(
            [outcome(4, None, Some(5)), outcome(5, None, Some(5))],
            [comes.clone(), Outcome::DeadLetter]
        );
        assert_eq!(
            [outcome(1, Some(2), Some(5)), outcome(2, Some(2), Some(5))],
            [comes, Outcome::DeadLetter]
        );
        // After a failed attempt, all attempts count, as in the PHP daemon. The attempts with the verdict `Again`
        // count, too.
        assert_eq!(of(100, &failed(None)), Outcome::DeadLetter);
        assert!(!receiver_failed(&again));
    }

    #[test]
    fn the_time_for_a_later_answer_begins_with_the_attempt() {
        let hour = Duration::from_secs(3600);
        assert_eq!(of(1, &Verdict::Later), Outcome::Later(hour - Duration::from_millis(1500)));
    }

    #[test]
    fn a_receiver_fails_if_it_cannot_answer_and_not_if_it_says_no() {
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

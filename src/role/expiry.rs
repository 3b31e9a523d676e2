//! Jobs that have expired. No further attempt of such a job begins (docs/FLOW.md, `expire_after`). Pure.
//!
//! The moment when a job expires is fixed when the job is added, and is kept with its headers. A change or a redrive
//! may later set a due time after that moment. The job then still gets one attempt, if no earlier attempt is counted.

use host::now_ms;
use model::job::Attempt;
use model::json_time;
use store::LeasedJob;

/// Returns the attempt to record if a leased job has expired. The job then becomes a dead letter. None: the job has not
/// expired.
pub fn expired(leased: &LeasedJob) -> Option<Attempt> {
    expired_at(leased, leased.leased_ms)
}

/// Does the same as [`expired`], for an attempt that would begin at `begins_ms`, by the shard's clock.
pub fn expired_at(leased: &LeasedJob, begins_ms: i64) -> Option<Attempt> {
    let expires_ms = leased.headers.expires_ms()?;
    let is_excepted = leased.attempt <= 1 && leased.due_ms > expires_ms;
    if begins_ms <= expires_ms || is_excepted {
        return None;
    }
    Some(attempt_without_call(leased, format!("expired at {}", json_time::rfc3339(expires_ms))))
}

/// Returns the attempt to record for a leased job that becomes a dead letter before a receiver or client gets the job.
pub fn attempt_without_call(leased: &LeasedJob, error: String) -> Attempt {
    Attempt {
        number: leased.attempt,
        at_ms: now_ms(),
        took_ms: 0,
        status: None,
        answer: String::new(),
        error,
        late: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::headers::Headers;
    use model::job::{Body, JobId, JobKey, TopicName};
    use store::Token;

    #[test]
    fn a_job_expires_unless_it_got_a_later_due_time() {
        let is_expired = |attempt, due_ms, leased_ms, expires_ms| {
            let leased = LeasedJob {
                key: JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("1").unwrap() },
                body: Body::trusted("1"),
                token: Token(Box::from([7])),
                attempt,
                due_ms,
                stamp_us: 0,
                leased_ms,
                deadline_ms: 0,
                max_attempts: None,
                probe: None,
                headers: Headers::default().with_expires_ms(expires_ms),
            };
            expired(&leased).is_some()
        };
        assert!(!is_expired(1, 0, 9000, None));
        assert!(!is_expired(1, 1000, 5000, Some(5000)) && is_expired(1, 1000, 5001, Some(5000)));
        assert!(is_expired(2, 6000, 6000, Some(5000)), "a retry that was due later");
        assert!(!is_expired(1, 6000, 9000, Some(5000)), "a job that was redriven");
    }
}

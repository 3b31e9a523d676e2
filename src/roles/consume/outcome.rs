//! What a callback's end means for its job, and the ticket by which a receiver may say it later.

use std::time::Duration;

use crate::callback::Verdict;
use crate::job::{Attempt, Due, JobKey};
use crate::process::now_ms;
use crate::store::{Leased, Outcome, Settlement, Token};
use crate::ticket::{Secret, Ticket};
use crate::topic::Topic;

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
        Verdict::Refused => Outcome::Bury,
        Verdict::Failed(_) => match topic.again_after(leased.attempt, limit, fastrand::f64()) {
            Some(delay) => Outcome::Retry(Due::In(delay)),
            None => Outcome::Bury,
        },
        // Counted from when the attempt began.
        Verdict::Later => {
            Outcome::Later(topic.answer_later.saturating_sub(Duration::from_millis(attempt.took_ms)))
        }
    };
    note(&leased, verdict, &outcome);
    // What came of an attempt that is answered later is kept when it is known.
    let attempt = (!matches!(outcome, Outcome::Ack | Outcome::Later(_))).then_some(attempt);
    Settlement { key: leased.key, token, outcome, attempt }
}

fn note(leased: &Leased, verdict: &Verdict, outcome: &Outcome) {
    let (JobKey { topic, id }, attempt) = (&leased.key, leased.attempt);
    let reason = match verdict {
        Verdict::Accepted => {
            return log::debug!(target: "notify", "{topic}:{id} accepted at attempt {attempt}");
        }
        Verdict::Later => {
            return log::debug!(target: "notify", "{topic}:{id} is answered later, attempt {attempt}");
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

//! What a report means for a lease. A client reports about a job that it has reserved. A receiver reports about an
//! attempt that it answers later. Pure.

use std::time::Duration;

use model::job::{Attempt, Due};
use model::job_priority::JobPriority;
use model::ticket::Ticket;
use model::topic::{LEASES, Topic};
use store::{Outcome, Settlement, Token};

/// How many characters of the text of a report are kept with the job.
const TEXT_KEPT: usize = 200;

/// The HTTP status of an attempt whose receiver answers later: 202 Accepted.
const ACCEPTED: u16 = 202;

/// What a client or a receiver reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportVerb {
    /// The job is done.
    Ack,
    /// The attempt failed.
    Nack {
        /// The delay until the next attempt. None: the topic's retry policy decides.
        delay: Option<Duration>,
    },
    /// The job needs more time.
    Extend {
        /// How long the lease lasts from now on. None: as long as the job or its topic says. A receiver that answers
        /// later never gets more than its ticket allows.
        lease: Option<Duration>,
    },
}

/// The report of a client about a job that it has reserved, or of a receiver about an attempt that it answers later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The kind of the report.
    pub verb: ReportVerb,
    /// With `Ack`: the answer of the attempt. With `Nack`: the reason. The first 200 characters are kept with the job.
    pub text: String,
}

/// What happens to a job if its lease has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettlementEffect {
    /// The job is done.
    Done,
    /// The job gets a further attempt.
    Retried,
    /// The job is a dead letter.
    Dead,
    /// The job stays leased.
    Extended,
}

/// What the store is asked to do with a lease, and what happens to the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettlementPlan {
    /// What the store is asked to do.
    pub settlement: Settlement,
    /// What happens to the job.
    pub became: SettlementEffect,
    /// With `Extended`: how long the lease lasts from now on.
    pub hold: Option<Duration>,
}

impl SettlementPlan {
    /// Returns what a report means. `random` is as in [`model::retry::Retry::delay_after`].
    pub fn new(ticket: &Ticket, topic: &Topic, report: &Report, random: f64, now_ms: i64) -> SettlementPlan {
        let text: String = report.text.trim().chars().take(TEXT_KEPT).collect();
        let is_reserved = ticket.is_reserved();
        let attempt = |answer: String, error: String| Attempt {
            number: ticket.attempt,
            at_ms: ticket.began_ms,
            took_ms: now_ms.saturating_sub(ticket.began_ms).max(0) as u64,
            status: (!is_reserved).then_some(ACCEPTED),
            answer,
            error,
            late: None,
        };
        let (outcome, became, attempt, hold) = match report.verb {
            ReportVerb::Ack => {
                (Outcome::Ack, SettlementEffect::Done, Some(attempt(text, String::new())), None)
            }
            ReportVerb::Extend { lease } => {
                let lease = lease.or(ticket.own_ttr()).unwrap_or(topic.ttr);
                let hold = match is_reserved {
                    true => lease.clamp(LEASES.0, LEASES.1),
                    false => lease.min(millis(ticket.until_ms.saturating_sub(now_ms))),
                };
                (Outcome::Extend(hold), SettlementEffect::Extended, None, Some(hold))
            }
            ReportVerb::Nack { delay } => {
                let reason = match (text.is_empty(), is_reserved) {
                    (false, _) => text,
                    (true, true) => "the client refused it".to_owned(),
                    (true, false) => "refused later".to_owned(),
                };
                let attempt = Some(attempt(String::new(), reason));
                match topic.again_after(ticket.attempt, ticket.limit, random) {
                    None => (Outcome::DeadLetter, SettlementEffect::Dead, attempt, None),
                    Some(by_topic) => {
                        let due = Due::In(delay.unwrap_or(by_topic));
                        let outcome = match topic.retried_first && is_reserved {
                            true => Outcome::RetryAs(due, JobPriority::from_number(0)),
                            false => Outcome::Retry(due),
                        };
                        (outcome, SettlementEffect::Retried, attempt, None)
                    }
                }
            }
        };
        let (key, token) = (ticket.key.clone(), Token(ticket.token.clone()));
        SettlementPlan { settlement: Settlement { key, token, outcome, attempt }, became, hold }
    }
}

/// Returns a span in milliseconds. A negative number gives a span of zero.
fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::{JobId, JobKey, TopicName};
    use model::retry::Retry;

    const SECOND: Duration = Duration::from_secs(1);

    fn settling(attempt: u32, verb: ReportVerb, text: &str) -> SettlementPlan {
        settling_until(Ticket::RESERVED, attempt, verb, text)
    }

    fn settling_until(until_ms: i64, attempt: u32, verb: ReportVerb, text: &str) -> SettlementPlan {
        let name = TopicName::new("t").unwrap();
        let topic = Topic { retry: Retry::List(vec![SECOND]), ..Topic::new(name.clone(), "") };
        let ticket = Ticket {
            key: JobKey { topic: name, id: JobId::new("1").unwrap() },
            token: Box::from([7]),
            attempt,
            limit: 3,
            began_ms: 1000,
            until_ms,
        };
        SettlementPlan::new(&ticket, &topic, &Report { verb, text: text.to_owned() }, 0.0, 3500)
    }

    #[test]
    fn a_report_settles_by_the_topic_and_is_kept_as_the_attempt() {
        let done = settling(1, ReportVerb::Ack, &"x".repeat(300));
        let kept = done.settlement.attempt.unwrap();
        assert_eq!((done.settlement.outcome, kept.answer.len(), kept.took_ms), (Outcome::Ack, 200, 2500));
        let again = settling(2, ReportVerb::Nack { delay: None }, " no stock ");
        assert_eq!(again.settlement.outcome, Outcome::Retry(Due::In(SECOND)));
        assert_eq!(again.settlement.attempt.unwrap().error, "no stock");
        let delay = Some(9 * SECOND);
        assert_eq!(
            settling(2, ReportVerb::Nack { delay }, "").settlement.outcome,
            Outcome::Retry(Due::In(9 * SECOND))
        );
        let dead = settling(3, ReportVerb::Nack { delay }, "");
        assert_eq!((dead.settlement.outcome, dead.became), (Outcome::DeadLetter, SettlementEffect::Dead));
        let extended = settling(1, ReportVerb::Extend { lease: None }, "");
        assert_eq!((extended.hold, extended.settlement.attempt), (Some(60 * SECOND), None));
        let own = settling_until(-3000, 1, ReportVerb::Extend { lease: None }, "");
        assert_eq!(own.hold, Some(3 * SECOND), "the job has a ttr of its own");
        let long = settling(1, ReportVerb::Extend { lease: Some(1000 * 3600 * SECOND) }, "");
        assert_eq!(long.hold, Some(LEASES.1));
    }

    #[test]
    fn a_refused_job_comes_first_if_the_topic_says_so() {
        let name = TopicName::new("t").unwrap();
        let topic =
            Topic { retry: Retry::List(vec![SECOND]), retried_first: true, ..Topic::new(name.clone(), "") };
        let ticket = |until_ms| Ticket {
            key: JobKey { topic: name.clone(), id: JobId::new("1").unwrap() },
            token: Box::from([7]),
            attempt: 1,
            limit: 3,
            began_ms: 1000,
            until_ms,
        };
        let report = Report { verb: ReportVerb::Nack { delay: None }, text: String::new() };
        let settle =
            |until_ms| SettlementPlan::new(&ticket(until_ms), &topic, &report, 0.0, 3500).settlement.outcome;
        let first = JobPriority::from_number(0);
        assert_eq!(settle(Ticket::RESERVED), Outcome::RetryAs(Due::In(SECOND), first));
        assert_eq!(settle(5000), Outcome::Retry(Due::In(SECOND)), "a receiver that answers later");
    }

    #[test]
    fn a_ticket_bounds_what_a_receiver_that_answers_later_gets() {
        let later = |verb, text| settling_until(5000, 1, verb, text);
        let kept = |settling: SettlementPlan| settling.settlement.attempt.unwrap();
        let done = kept(later(ReportVerb::Ack, ""));
        assert_eq!((done.status, done.answer.as_str(), done.error.as_str()), (Some(202), "", ""));
        assert_eq!(kept(later(ReportVerb::Nack { delay: None }, "")).error, "refused later");
        for (asked, held) in [(SECOND, SECOND), (9 * SECOND, Duration::from_millis(1500))] {
            assert_eq!(later(ReportVerb::Extend { lease: Some(asked) }, "").hold, Some(held));
        }
        let over = settling_until(3000, 1, ReportVerb::Extend { lease: Some(SECOND) }, "");
        assert_eq!(over.settlement.outcome, Outcome::Extend(Duration::ZERO));
    }
}

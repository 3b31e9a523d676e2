//! How an answer is judged: by the topic's rule, and by the headers of the receiver. Pure, except for a cache of
//! expressions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value as Json;

use model::expression::{self, Expression, ExpressionError};
use model::topic::{Failure, Success, Topic};

/// The longest delay that a receiver can ask for with `Retry-After`.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How many parsed expressions are kept.
const EXPRESSIONS: usize = 1000;

/// What an answer means for its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has accepted the job.
    Accepted,
    /// The receiver has not accepted the job. The job is tried again.
    Failed {
        /// The kind of failure.
        kind: Failure,
        /// The reason, for people.
        reason: String,
        /// The delay that the receiver asks for. None: it does not ask for a delay.
        retry_after: Option<Duration>,
    },
    /// The receiver has not accepted the job, and the job is not tried again.
    Refused {
        /// The kind of failure.
        kind: Failure,
        /// The reason, for people.
        reason: String,
    },
    /// The receiver has answered, and the topic's `re_notify_flag` asks for the job again.
    Again {
        /// The reason, for people.
        reason: String,
        /// The delay that the receiver asks for. None: it does not ask for a delay.
        retry_after: Option<Duration>,
    },
    /// The receiver has the job, and reports the outcome later, to the `dq-ack-url` of the request.
    Later,
}

impl Verdict {
    /// Returns the verdict on a failed attempt. The job is tried again if the topic's `retry_on` is empty or names this
    /// kind of failure.
    pub(super) fn failed(
        topic: &Topic,
        kind: Failure,
        reason: String,
        retry_after: Option<Duration>,
    ) -> Verdict {
        if topic.retry_on.is_empty() || topic.retry_on.iter().any(|covers| covers.covers(kind)) {
            return Verdict::Failed { kind, reason, retry_after };
        }
        Verdict::Refused { kind, reason: format!("{reason}; retry_on does not name {kind}") }
    }

    /// Returns why the job was not accepted. None: the job was accepted, or the receiver will report the outcome later.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Verdict::Failed { reason, .. }
            | Verdict::Refused { reason, .. }
            | Verdict::Again { reason, .. } => Some(reason),
            Verdict::Accepted | Verdict::Later => None,
        }
    }
}

/// How much of an answer's body arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BodyCompleteness {
    /// The whole body arrived.
    Whole,
    /// The body is longer than what dq reads.
    Cut,
    /// The body ended too early.
    Broken(Failure, String),
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub status: u16,
    /// The first bytes of the body.
    pub body: Vec<u8>,
    pub end: BodyCompleteness,
    /// `Retry-After`, as a delay from now.
    pub retry_after: Option<Duration>,
    /// Whether the answer has `dq-retry: no`.
    pub refuses: bool,
    /// Whether the answer has `dq-ack: later`, and the request had a `dq-ack-url`.
    pub later: bool,
}

impl Answer {
    /// Returns whether the whole answer arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.end == BodyCompleteness::Whole
    }
}

/// The parsed expressions of topics, so that each is parsed once.
#[derive(Debug, Default)]
pub(super) struct Expressions(Mutex<HashMap<(ExpressionSetting, String), ParsedExpression>>);

/// An expression that all tasks share, or why it cannot be read.
type ParsedExpression = Arc<Result<Expression, ExpressionError>>;

/// The setting of a topic that an expression comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ExpressionSetting {
    Success,
    Flag,
}

impl Expressions {
    fn read(&self, part: ExpressionSetting, text: &str) -> ParsedExpression {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (part, text.to_owned());
        if let Some(read) = known.get(&key) {
            return Arc::clone(read);
        }
        if known.len() >= EXPRESSIONS {
            known.clear();
        }
        let read = Arc::new(match part {
            ExpressionSetting::Success => Expression::parse(text),
            ExpressionSetting::Flag => Expression::parse_flag(text),
        });
        known.insert(key, Arc::clone(&read));
        read
    }
}

/// Judges an answer.
pub(super) fn judge(topic: &Topic, expressions: &Expressions, answer: &Answer) -> Verdict {
    if answer.status == 202 && answer.later {
        return Verdict::Later;
    }
    let (kind, reason, asks_again) = match check_answer(topic, expressions, answer) {
        Ok(None) => return Verdict::Accepted,
        // `retry_on` names failures. An answer that asks for the job again is not a failure, so `retry_on` does not
        // matter here.
        Ok(Some((kind, reason))) => (kind, reason, true),
        Err((kind, reason)) => (kind, reason, false),
    };
    if answer.status == 410 {
        return Verdict::Refused { kind, reason: "410: the receiver is gone".to_owned() };
    }
    if answer.refuses {
        return Verdict::Refused { kind, reason: format!("{reason}; the receiver says dq-retry: no") };
    }
    let retry_after = answer.retry_after.filter(|_| matches!(answer.status, 429 | 503));
    let retry_after = retry_after.map(|span| span.min(RETRY_AFTER_MAX));
    match asks_again {
        true => Verdict::Again { reason, retry_after },
        false => Verdict::failed(topic, kind, reason, retry_after),
    }
}

/// A kind of failure, and the reason for people.
type FailureReason = (Failure, String);

/// Checks whether the topic's rule accepts an answer. An error says why the rule does not accept it. If the rule
/// accepts the answer, but the topic's `re_notify_flag` is true of it, returns the reason for the next attempt.
fn check_answer(
    topic: &Topic,
    expressions: &Expressions,
    answer: &Answer,
) -> Result<Option<FailureReason>, FailureReason> {
    let status = answer.status;
    // If the status is 2xx and the job is not accepted, the reason is in another part of the answer.
    let kind = if (200..300).contains(&status) { Failure::Answer } else { Failure::Status(status) };
    let whole = || match &answer.end {
        BodyCompleteness::Whole => Ok(()),
        BodyCompleteness::Cut => {
            Err((Failure::Answer, format!("the answer (status {status}) is too long to be judged")))
        }
        BodyCompleteness::Broken(kind, why) => Err((*kind, why.clone())),
    };
    let json = || serde_json::from_slice::<Json>(&answer.body).ok();
    let of =
        |res: Option<&Json>, expression: &Expression| expression.holds(expression::Answer { status, res });
    match &topic.success {
        // The rule `status` needs only the head of the answer.
        Success::Status if (200..300).contains(&status) => {}
        Success::Status => return Err((kind, format!("status {status}"))),
        Success::NonEmpty => {
            if answer.end != BodyCompleteness::Cut {
                whole()?;
            }
            // PHP's `empty` counts "0" as empty.
            if matches!(&*answer.body, b"" | b"0") && answer.end == BodyCompleteness::Whole {
                return Err((kind, format!("an empty answer (status {status})")));
            }
        }
        Success::When(text) => {
            whole()?;
            match &*expressions.read(ExpressionSetting::Success, text) {
                Ok(expression) if of(json().as_ref(), expression) => {}
                Ok(_) => return Err((kind, format!("{text} is not true of the answer (status {status})"))),
                Err(mistake) => return Err((kind, format!("success is no expression: {mistake}"))),
            }
        }
    }
    if topic.re_notify_flag.is_empty() {
        return Ok(None);
    }
    whole()?;
    // If the flag of a topic cannot be read, the topic is held, and dq makes no callbacks for it. If there is a
    // callback anyway, nobody can tell whether the job is done. So the job is not accepted.
    let read = expressions.read(ExpressionSetting::Flag, &topic.re_notify_flag);
    let flag = match &*read {
        Ok(flag) => flag,
        Err(mistake) => return Err((kind, format!("re_notify_flag is no expression: {mistake}"))),
    };
    // The PHP daemon applies the flag only to lists and objects.
    match json().filter(|res| res.is_object() || res.is_array()) {
        Some(res) if of(Some(&res), flag) => {
            Ok(Some((kind, format!("re_notify_flag {} is true of the answer", topic.re_notify_flag))))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::TopicName;

    fn topic(success: &str, flag: &str) -> Topic {
        Topic {
            success: Success::from(success.to_owned()),
            re_notify_flag: flag.to_owned(),
            ..Topic::new(TopicName::new("t").unwrap(), "http://h/")
        }
    }

    fn answer(status: u16, body: &str) -> Answer {
        let body = body.as_bytes().to_vec();
        Answer { status, body, end: BodyCompleteness::Whole, retry_after: None, refuses: false, later: false }
    }

    fn judged(topic: &Topic, answer: &Answer) -> Verdict {
        judge(topic, &Expressions::default(), answer)
    }

    /// Returns the kind of failure. None: the job was accepted.
    fn kind(topic: &Topic, answer: &Answer) -> Option<Failure> {
        match judged(topic, answer) {
            Verdict::Accepted => None,
            Verdict::Failed { kind, .. } => Some(kind),
            Verdict::Again { .. } => Some(Failure::Answer),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn status_accepts_2xx_and_nothing_else() {
        let topic = topic("status", "");
        for status in [200, 204, 299] {
            assert_eq!(kind(&topic, &answer(status, "")), None);
        }
        for status in [101, 301, 302, 404, 429, 500, 503] {
            assert_eq!(kind(&topic, &answer(status, "ok")), Some(Failure::Status(status)));
        }
    }

    #[test]
    fn non_empty_accepts_any_answer_with_a_body() {
        let topic = topic("non_empty", "");
        for status in [200, 404, 410, 500] {
            assert_eq!(kind(&topic, &answer(status, "x")), None);
        }
        assert_eq!(kind(&topic, &answer(200, "")), Some(Failure::Answer));
        assert_eq!(kind(&topic, &answer(500, "")), Some(Failure::Status(500)));
        // The body `0` counts as empty, as in PHP's `empty`. The bodies in the list below do not.
        assert_eq!(kind(&topic, &answer(200, "0")), Some(Failure::Answer));
        for body in ["00", "0.0", " 0", "0\n", "null", "false"] {
            assert_eq!(kind(&topic, &answer(200, body)), None, "{body:?}");
        }
    }

    #[test]
    fn an_expression_is_asked_of_status_and_answer() {
        let topic = topic("{status} < 500 && {res.code} === 0", "");
        assert_eq!(kind(&topic, &answer(404, "{\"code\": 0}")), None);
        assert_eq!(kind(&topic, &answer(500, "{\"code\": 0}")), Some(Failure::Status(500)));
        assert_eq!(kind(&topic, &answer(200, "{\"code\": 1}")), Some(Failure::Answer));
        assert_eq!(kind(&topic, &answer(200, "ok")), Some(Failure::Answer));
    }

    #[test]
    fn a_job_is_delivered_again_when_re_notify_flag_is_true_of_json() {
        for success in ["status", "non_empty", "{status} == 200"] {
            let topic = topic(success, "{res.code} != 0");
            for (body, again) in [
                ("{\"code\": 1}", true),
                ("{\"code\": 0}", false),
                ("wait", false),
                ("{}", false),
                ("[1]", false),
                // The flag applies only to lists and objects.
                ("1", false),
                ("\"ok\"", false),
                ("true", false),
                ("null", false),
            ] {
                let expected = again.then_some(Failure::Answer);
                assert_eq!(kind(&topic, &answer(200, body)), expected, "{success}: {body}");
            }
        }
        // If an answer is not a success, it stays a failure, even if the flag is not true of it.
        assert!(kind(&topic("status", "{res.code} != 0"), &answer(500, "{\"code\": 0}")).is_some());
        // If the flag cannot be read, nobody can tell whether the job is done.
        assert_eq!(kind(&topic("non_empty", "system('ls')"), &answer(200, "x")), Some(Failure::Answer));
    }

    #[test]
    fn a_flag_asks_again_and_only_the_receiver_stops_it() {
        let retry_on = vec!["timeout".parse().unwrap()];
        let topic = Topic { retry_on, ..topic("non_empty", "{res.code} != 0") };
        let waits = answer(200, "{\"code\": 1}");
        let after = Some(Duration::from_secs(7));
        for (status, retry_after, expected) in [(200, after, None), (503, None, None), (503, after, after)] {
            let again = judged(&topic, &Answer { status, retry_after, ..waits.clone() });
            assert!(
                matches!(&again, Verdict::Again { reason, retry_after } if *retry_after == expected
                    && reason == "re_notify_flag {res.code} != 0 is true of the answer"),
                "{again:?}"
            );
        }
        for stops in [Answer { status: 410, ..waits.clone() }, Answer { refuses: true, ..waits.clone() }] {
            let refused = judged(&topic, &stops);
            assert!(matches!(refused, Verdict::Refused { .. }), "{refused:?}");
        }
        assert_eq!(judged(&topic, &answer(200, "{\"code\": 0}")), Verdict::Accepted);
    }

    #[test]
    fn an_incomplete_answer_is_judged_as_far_as_possible() {
        let late = BodyCompleteness::Broken(Failure::Timeout, "late".to_owned());
        let with = |end: &BodyCompleteness, body: &str| Answer { end: end.clone(), ..answer(200, body) };
        for (success, flag, of_cut, of_late) in [
            ("status", "", None, None),
            ("non_empty", "", None, Some(Failure::Timeout)),
            ("{status} == 200", "", Some(Failure::Answer), Some(Failure::Timeout)),
            ("status", "{res.a} == 1", Some(Failure::Answer), Some(Failure::Timeout)),
        ] {
            let topic = topic(success, flag);
            assert_eq!(kind(&topic, &with(&BodyCompleteness::Cut, "x")), of_cut, "{success}");
            assert_eq!(kind(&topic, &with(&late, "x")), of_late, "{success}");
        }
    }

    #[test]
    fn a_receiver_may_be_gone_or_refuse_retries_or_answer_later() {
        let by_status = topic("status", "");
        let gone = judged(&by_status, &answer(410, "bye"));
        assert!(matches!(&gone, Verdict::Refused { reason, .. } if reason == "410: the receiver is gone"));
        let refused = judged(&by_status, &Answer { refuses: true, ..answer(400, "") });
        assert!(
            refused.reason().unwrap().contains("status 400; the receiver says dq-retry: no"),
            "{refused:?}"
        );
        assert!(matches!(refused, Verdict::Refused { kind: Failure::Status(400), .. }));
        // A success cannot refuse retries.
        assert_eq!(judged(&by_status, &Answer { refuses: true, ..answer(200, "") }), Verdict::Accepted);
        let later = |status| judged(&by_status, &Answer { later: true, ..answer(status, "") });
        assert_eq!(later(202), Verdict::Later);
        assert_eq!(later(200), Verdict::Accepted);
    }

    #[test]
    fn retry_after_counts_with_429_and_503_up_to_its_limit() {
        let after = |status, seconds| {
            let answer = Answer { retry_after: Some(Duration::from_secs(seconds)), ..answer(status, "") };
            match judged(&topic("status", ""), &answer) {
                Verdict::Failed { retry_after, .. } => retry_after.map(|span| span.as_secs()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([after(429, 7), after(503, 8), after(500, 9)], [Some(7), Some(8), None]);
        assert_eq!(after(503, 1_000_000), Some(3600));
    }

    #[test]
    fn retry_on_says_which_failures_come_again() {
        let retry_on = |names: &[&str]| names.iter().map(|n| n.parse().unwrap()).collect();
        let some = Topic { retry_on: retry_on(&["5xx", "timeout"]), ..topic("status", "") };
        assert_eq!(kind(&some, &answer(503, "")), Some(Failure::Status(503)));
        let buried = judged(&some, &answer(404, ""));
        assert_eq!(buried.reason(), Some("status 404; retry_on does not name 404"));
        assert!(matches!(buried, Verdict::Refused { .. }));
    }
}

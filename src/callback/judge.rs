//! How an answer is judged: by the topic's rule, and by what the receiver says beside it. Pure, but for what it has read before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value as Json;

use crate::expression::{self, Expression, Mistake};
use crate::topic::{Failure, Success, Topic};

/// The longest that a receiver may have a delivery put off by `Retry-After`.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How many expressions are kept.
const EXPRESSIONS: usize = 1000;

/// What an answer means for its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The job is accepted.
    Accepted,
    /// It is not; it is tried again.
    Failed {
        /// In which way.
        kind: Failure,
        /// Why, for people.
        reason: String,
        /// For how long the receiver wants to be left alone; none: it did not say.
        retry_after: Option<Duration>,
    },
    /// It is not, and is not tried again.
    Refused {
        /// In which way.
        kind: Failure,
        /// Why, for people.
        reason: String,
    },
    /// The receiver has it, and will say later what came of it, by the URL that it was sent.
    Later,
}

impl Verdict {
    /// Not accepted, and to be tried again where the topic does not say otherwise.
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

    /// Why it is not accepted; none: it is, or will be told later.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Verdict::Failed { reason, .. } | Verdict::Refused { reason, .. } => Some(reason),
            Verdict::Accepted | Verdict::Later => None,
        }
    }
}

/// How much of an answer's body came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// All of it.
    Whole,
    /// More of it than is read.
    Cut,
    /// It broke off.
    Broken(Failure, String),
}

/// What came back of a request.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub status: u16,
    /// Its first bytes.
    pub body: Vec<u8>,
    pub end: End,
    /// `Retry-After`, from now on.
    pub retry_after: Option<Duration>,
    /// `dq-retry: no`.
    pub refuses: bool,
    /// `dq-ack: later`, and it was told where.
    pub later: bool,
}

impl Answer {
    /// Whether all of it came.
    pub(super) fn is_whole(&self) -> bool {
        self.end == End::Whole
    }
}

/// The expressions of topics, each read once.
#[derive(Debug, Default)]
pub(super) struct Expressions(Mutex<HashMap<String, Arc<Result<Expression, Mistake>>>>);

impl Expressions {
    fn read(&self, text: &str) -> Arc<Result<Expression, Mistake>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = known.get(text) {
            return Arc::clone(read);
        }
        if known.len() >= EXPRESSIONS {
            known.clear();
        }
        let read = Arc::new(Expression::parse(text));
        known.insert(text.to_owned(), Arc::clone(&read));
        read
    }
}

/// Judges an answer.
pub(super) fn judge(topic: &Topic, expressions: &Expressions, answer: &Answer) -> Verdict {
    if answer.status == 202 && answer.later {
        return Verdict::Later;
    }
    let Err((kind, reason)) = look(topic, expressions, answer) else { return Verdict::Accepted };
    if answer.status == 410 {
        return Verdict::Refused { kind, reason: "410: the receiver is gone".to_owned() };
    }
    if answer.refuses {
        return Verdict::Refused { kind, reason: format!("{reason}; the receiver says dq-retry: no") };
    }
    let retry_after = answer.retry_after.filter(|_| matches!(answer.status, 429 | 503));
    Verdict::failed(topic, kind, reason, retry_after.map(|span| span.min(RETRY_AFTER_MAX)))
}

/// Whether the topic's rule takes an answer, and why not.
fn look(topic: &Topic, expressions: &Expressions, answer: &Answer) -> Result<(), (Failure, String)> {
    let status = answer.status;
    // Where a status of success is not taken, it is for what was answered.
    let kind = if (200..300).contains(&status) { Failure::Answer } else { Failure::Status(status) };
    let whole = || match &answer.end {
        End::Whole => Ok(()),
        End::Cut => Err((Failure::Answer, format!("the answer (status {status}) is too long to be judged"))),
        End::Broken(kind, why) => Err((*kind, why.clone())),
    };
    let json = || serde_json::from_slice::<Json>(&answer.body).ok();
    let of =
        |res: Option<&Json>, expression: &Expression| expression.holds(expression::Answer { status, res });
    match &topic.success {
        // All of it stands in the head.
        Success::Status if (200..300).contains(&status) => {}
        Success::Status => return Err((kind, format!("status {status}"))),
        Success::NonEmpty => {
            if answer.end != End::Cut {
                whole()?;
            }
            if answer.body.is_empty() {
                return Err((kind, format!("an empty answer (status {status})")));
            }
        }
        Success::When(text) => {
            whole()?;
            match &*expressions.read(text) {
                Ok(expression) if of(json().as_ref(), expression) => {}
                Ok(_) => return Err((kind, format!("{text} is not true of the answer (status {status})"))),
                Err(mistake) => return Err((kind, format!("success is no expression: {mistake}"))),
            }
        }
    }
    if topic.re_notify_flag.is_empty() {
        return Ok(());
    }
    whole()?;
    // A topic whose flag cannot be read is held, and not called. Nobody can say that such a job is done.
    let read = expressions.read(&topic.re_notify_flag);
    let flag = match &*read {
        Ok(flag) => flag,
        Err(mistake) => return Err((kind, format!("re_notify_flag is no expression: {mistake}"))),
    };
    match json() {
        Some(res) if of(Some(&res), flag) => {
            Err((kind, format!("re_notify_flag {} is true of the answer", topic.re_notify_flag)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::TopicName;

    fn topic(success: &str, flag: &str) -> Topic {
        Topic {
            success: Success::from(success.to_owned()),
            re_notify_flag: flag.to_owned(),
            ..Topic::new(TopicName::new("t").unwrap(), "http://h/")
        }
    }

    fn answer(status: u16, body: &str) -> Answer {
        let body = body.as_bytes().to_vec();
        Answer { status, body, end: End::Whole, retry_after: None, refuses: false, later: false }
    }

    fn judged(topic: &Topic, answer: &Answer) -> Verdict {
        judge(topic, &Expressions::default(), answer)
    }

    /// In which way it failed; none: it was accepted.
    fn kind(topic: &Topic, answer: &Answer) -> Option<Failure> {
        match judged(topic, answer) {
            Verdict::Accepted => None,
            Verdict::Failed { kind, .. } => Some(kind),
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
            ] {
                let expected = again.then_some(Failure::Answer);
                assert_eq!(kind(&topic, &answer(200, body)), expected, "{success}: {body}");
            }
        }
        // What is no success is none, whatever the flag says.
        assert!(kind(&topic("status", "{res.code} != 0"), &answer(500, "{\"code\": 0}")).is_some());
        // With one that cannot be read nobody can say that the job is done.
        assert_eq!(kind(&topic("non_empty", "system('ls')"), &answer(200, "x")), Some(Failure::Answer));
    }

    #[test]
    fn an_answer_that_did_not_come_whole_is_judged_as_far_as_that_will_do() {
        let late = End::Broken(Failure::Timeout, "late".to_owned());
        let with = |end: &End, body: &str| Answer { end: end.clone(), ..answer(200, body) };
        for (success, flag, of_cut, of_late) in [
            ("status", "", None, None),
            ("non_empty", "", None, Some(Failure::Timeout)),
            ("{status} == 200", "", Some(Failure::Answer), Some(Failure::Timeout)),
            ("status", "{res.a} == 1", Some(Failure::Answer), Some(Failure::Timeout)),
        ] {
            let topic = topic(success, flag);
            assert_eq!(kind(&topic, &with(&End::Cut, "x")), of_cut, "{success}");
            assert_eq!(kind(&topic, &with(&late, "x")), of_late, "{success}");
        }
    }

    #[test]
    fn a_receiver_that_is_gone_or_refuses_or_answers_later_is_taken_at_its_word() {
        let by_status = topic("status", "");
        let gone = judged(&by_status, &answer(410, "bye"));
        assert!(matches!(&gone, Verdict::Refused { reason, .. } if reason == "410: the receiver is gone"));
        let refused = judged(&by_status, &Answer { refuses: true, ..answer(400, "") });
        assert!(
            refused.reason().unwrap().contains("status 400; the receiver says dq-retry: no"),
            "{refused:?}"
        );
        assert!(matches!(refused, Verdict::Refused { kind: Failure::Status(400), .. }));
        // Of a success there is nothing to refuse.
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

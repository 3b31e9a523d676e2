//! How an answer is judged. Pure.

use crate::topic::Success;

/// What an answer means for its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The job is accepted.
    Accepted,
    /// It is not, for this reason; it is tried again.
    Failed(String),
    /// It is refused for good: the receiver is gone (410).
    Refused,
    /// The receiver says later what came of it.
    Later,
}

/// Judges an answer by a topic's rule.
pub(super) fn judge(success: &Success, status: u16, body: &[u8]) -> Verdict {
    match (success, status) {
        (Success::Status, 200..=299) => Verdict::Accepted,
        (Success::Status, 410) => Verdict::Refused,
        (Success::Status, _) => Verdict::Failed(format!("status {status}")),
        (Success::NonEmpty, _) if !body.is_empty() => Verdict::Accepted,
        (Success::NonEmpty, _) => Verdict::Failed(format!("an empty answer (status {status})")),
        (Success::When(_), _) => Verdict::Failed("expressions are not evaluated yet".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_accepts_2xx_and_nothing_else() {
        for status in [200, 204, 299] {
            assert_eq!(judge(&Success::Status, status, b""), Verdict::Accepted);
        }
        for status in [100, 301, 302, 404, 429, 500, 503] {
            assert_eq!(judge(&Success::Status, status, b"ok"), Verdict::Failed(format!("status {status}")));
        }
        assert_eq!(judge(&Success::Status, 410, b""), Verdict::Refused);
    }

    #[test]
    fn non_empty_accepts_any_answer_with_a_body() {
        for status in [200, 404, 410, 500] {
            assert_eq!(judge(&Success::NonEmpty, status, b"x"), Verdict::Accepted);
            assert!(matches!(judge(&Success::NonEmpty, status, b""), Verdict::Failed(_)));
        }
    }
}

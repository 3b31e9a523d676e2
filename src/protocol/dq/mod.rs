//! The PHP daemon's protocol. A frame is a length in bytes, and then JSON of this length. There are two framings; the
//! first byte of a connection shows which one it uses. Requests and answers have the form that clients of the PHP
//! daemon send and expect. The parts of the protocol that the PHP daemon does not know are optional.
//!
//! | framing | length | clients |
//! |---|---|---|
//! | [`Framing::Digits`] | 4 ASCII digits, at most 9999 | DqClient (PHP), the Java client |
//! | [`Framing::Binary`] | 4 bytes, big-endian | DqSwooleClient |

mod fields;
mod frame;
mod request;

use serde::Serialize;

pub use self::frame::{DIGITS_MAX, FrameError, Framing, HEADER};
pub use self::request::{Add, BATCH_MAX, Command, JobReport, ReportKind, Reserve, parse};
use model::json_time;

/// Why a request is refused: a name for programs, and a reason for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// A name for programs, such as `bad_field`.
    pub err: &'static str,
    /// A reason for people. It names the field, the value, and what would be accepted.
    pub msg: String,
}

impl Refusal {
    /// Makes a refusal from its name and its reason.
    pub fn new(err: &'static str, msg: impl Into<String>) -> Refusal {
        Refusal { err, msg: msg.into() }
    }
}

/// The answer to a request. `data` is `[]` if there is no data, as in the PHP daemon.
#[derive(Debug, Serialize)]
pub struct Answer<'a, D: Serialize> {
    code: u8,
    msg: &'a str,
    data: D,
    #[serde(skip_serializing_if = "Option::is_none")]
    err: Option<&'a str>,
    #[serde(flatten)]
    due: Option<DueAnswer>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    spooled: bool,
}

/// The due time of an added job in an answer, in two forms: for people and for programs.
#[derive(Debug, Serialize)]
pub struct DueAnswer {
    /// RFC 3339, in UTC.
    due: String,
    /// Unix milliseconds.
    due_ms: i64,
}

impl From<i64> for DueAnswer {
    /// Makes both forms from a due time in Unix milliseconds.
    fn from(due_ms: i64) -> DueAnswer {
        DueAnswer { due: json_time::rfc3339(due_ms), due_ms }
    }
}

/// The value of `data` in an answer without data.
const NONE: [(); 0] = [];

impl<'a> Answer<'a, [(); 0]> {
    /// `{"code":1,"msg":"succ","data":[]}`
    pub fn success() -> Self {
        Answer::with(NONE)
    }

    /// `{"code":1,"msg":"succ","data":[],"due":"2026-12-01T15:50:50.000Z","due_ms":1796140250000}`
    pub fn added(due_ms: i64) -> Self {
        Answer { due: Some(due_ms.into()), ..Answer::success() }
    }

    /// The same as [`Answer::added`], with `"spooled":true`: the job waits on this host's disk until its home answers.
    pub fn spooled(due_ms: i64) -> Self {
        Answer { spooled: true, ..Answer::added(due_ms) }
    }

    /// `{"code":0,"msg":"…","data":[],"err":"…"}`
    pub fn failure(refusal: &'a Refusal) -> Self {
        Answer { code: 0, msg: &refusal.msg, data: NONE, err: Some(refusal.err), due: None, spooled: false }
    }
}

impl<D: Serialize> Answer<'_, D> {
    /// `{"code":1,"msg":"succ","data":…}`
    pub fn with(data: D) -> Self {
        Answer { code: 1, msg: "succ", data, err: None, due: None, spooled: false }
    }

    /// Returns the answer as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("answers are plain values")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_as_the_clients_expect_them() {
        assert_eq!(Answer::success().to_json(), br#"{"code":1,"msg":"succ","data":[]}"#);
        assert_eq!(
            Answer::added(1_796_140_250_000).to_json(),
            br#"{"code":1,"msg":"succ","data":[],"due":"2026-12-01T15:50:50.000Z","due_ms":1796140250000}"#
        );
        let refusal = Refusal::new("unknown_topic", "no");
        assert_eq!(
            Answer::failure(&refusal).to_json(),
            br#"{"code":0,"msg":"no","data":[],"err":"unknown_topic"}"#
        );
    }
}

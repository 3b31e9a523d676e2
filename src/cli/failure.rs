//! Why a command failed, and the exit code for scripts.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::json;

/// The exit codes, as `dq --help` shows them.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed, or something is wrong
  2  wrong usage: an option, an argument or a value is not valid
  3  not found: no such job, topic, node or token
  4  refused because of a conflict, or because it is not allowed
  5  the daemon cannot be reached";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// An option, an argument or a value is not valid.
    #[error("{0}")]
    Usage(String),
    /// The daemon has refused the request, for this reason.
    #[error("{}", .0.sentence())]
    Refused(Problem),
    /// There is nothing with this name.
    #[error("{0}")]
    NotFound(String),
    /// No daemon answers.
    #[error("{0}")]
    Unreachable(String),
    /// The request was sent, and no answer came: the change may or may not have happened.
    #[error("{0}")]
    Unknown(String),
    /// The user did not agree.
    #[error("nothing was done")]
    Declined,
}

impl Failure {
    /// Returns whether the daemon does not know the topic of the request.
    pub(super) fn is_unknown_topic(error: &anyhow::Error) -> bool {
        matches!(error.downcast_ref(), Some(Failure::Refused(problem)) if problem.code == "unknown_topic")
    }
}

/// The daemon's answer to a request that it has refused, in the form of `application/problem+json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Problem {
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// The code, a word for programs.
    #[serde(default)]
    pub code: String,
    /// The reason, for people.
    #[serde(default)]
    pub detail: String,
    /// The field that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl Problem {
    /// Returns the problem as a text for people.
    pub(super) fn sentence(&self) -> String {
        let Problem { status, code, detail, .. } = self;
        let hint = match code.as_str() {
            "unauthorized" => "; give a token with --token-file, --token or DQ_TOKEN",
            "topic_has_jobs" => "; the options for this are --purge and --keep",
            "no_route" | "no_method" => "; is the daemon of an older release?",
            _ => "",
        };
        match (detail.is_empty(), code.is_empty()) {
            (false, false) => format!("{detail} ({status} {code}){hint}"),
            (false, true) => format!("{detail} ({status}){hint}"),
            (true, false) => format!("the daemon answers {status} {code}{hint}"),
            (true, true) => format!("the daemon answers {status}"),
        }
    }

    /// Returns whether the daemon does not know the route or the method of the request.
    pub(super) fn is_no_route(&self) -> bool {
        matches!(self.code.as_str(), "no_route" | "no_method")
    }
}

impl Failure {
    fn exit(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::NotFound(_) => 3,
            Failure::Unreachable(_) => 5,
            Failure::Unknown(_) | Failure::Declined => 1,
            Failure::Refused(problem) if problem.is_no_route() => 1,
            Failure::Refused(problem) => match problem.status {
                404 => 3,
                401 | 403 | 409 | 412 | 428 => 4,
                400 | 413 | 415 | 422 => 2,
                _ => 1,
            },
        }
    }
}

/// Returns the exit code of an error.
pub(super) fn exit(error: &anyhow::Error) -> u8 {
    error.downcast_ref().map_or(1, Failure::exit)
}

/// Prints an error on stderr, as text or as one line of JSON. Returns its exit code.
pub(super) fn print_error(error: &anyhow::Error, as_json: bool) -> ExitCode {
    let exit = exit(error);
    if as_json {
        eprintln!("{}", to_json(error, exit));
    } else {
        eprintln!("dq: {error:#}");
    }
    ExitCode::from(exit)
}

fn to_json(error: &anyhow::Error, exit: u8) -> serde_json::Value {
    let failure = error.downcast_ref::<Failure>();
    let (code, detail, status, field) = match failure {
        Some(Failure::Refused(p)) => (p.code.as_str(), p.detail.clone(), Some(p.status), p.field.clone()),
        Some(Failure::Usage(_)) => ("usage", format!("{error:#}"), None, None),
        Some(Failure::NotFound(_)) => ("not_found", format!("{error:#}"), None, None),
        Some(Failure::Unreachable(_)) => ("unreachable", format!("{error:#}"), None, None),
        Some(Failure::Unknown(_)) => ("unknown", format!("{error:#}"), None, None),
        Some(Failure::Declined) => ("declined", format!("{error:#}"), None, None),
        None => ("failed", format!("{error:#}"), None, None),
    };
    json!({"error": {"code": code, "detail": detail, "status": status, "field": field, "exit": exit}})
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    fn problem(status: u16, code: &str) -> Failure {
        let detail = "topic nope is not registered".to_owned();
        Failure::Refused(Problem { status, code: code.into(), detail, field: None })
    }

    #[test]
    fn each_kind_of_failure_has_its_exit_code() {
        for (status, code, exit) in [
            (404, "unknown_topic", 3),
            (404, "no_route", 1),
            (409, "exists", 4),
            (403, "forbidden", 4),
            (401, "unauthorized", 4),
            (412, "changed", 4),
            (422, "bad_field", 2),
            (413, "too_large", 2),
            (503, "store_busy", 1),
            (500, "", 1),
        ] {
            assert_eq!(problem(status, code).exit(), exit, "{status} {code}");
        }
        assert_eq!(Failure::Unreachable(String::new()).exit(), 5);
        assert_eq!(exit(&anyhow::anyhow!("else")), 1);
        // The exit code stays the same when context is added.
        let wrapped = Err::<(), _>(Failure::Usage("x".into())).context("line 3").unwrap_err();
        assert_eq!((exit(&wrapped), format!("{wrapped:#}").as_str()), (2, "line 3: x"));
    }

    #[test]
    fn a_problem_is_told_as_people_read_it_and_as_programs_do() {
        let error = anyhow::Error::from(problem(404, "unknown_topic"));
        assert_eq!(format!("{error:#}"), "topic nope is not registered (404 unknown_topic)");
        let shown = to_json(&error, exit(&error));
        assert_eq!(shown["error"]["code"], "unknown_topic");
        assert_eq!((&shown["error"]["exit"], &shown["error"]["status"]), (&json!(3), &json!(404)));
        let bare = Problem { status: 502, ..Problem::default() };
        assert_eq!(bare.sentence(), "the daemon answers 502");
    }
}

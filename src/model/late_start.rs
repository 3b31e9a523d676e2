//! Why an attempt began late. Pure.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// If an attempt begins this long or longer after its due time, the reason is stored with the attempt.
pub const NOTED: Duration = Duration::from_secs(1);

/// Why a job had to wait. The consumer that called the receiver determines the reason. There is one exception:
/// [`LateReason::TopicPaused`] is found later, in the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LateReason {
    /// The circuit of its topic was open, because its receiver failed.
    CircuitOpen,
    /// Its topic had reached `max_in_flight` or `rate`.
    TopicLimit,
    /// The host of its receiver had reached a limit.
    HostLimit,
    /// All workers of the consumer were busy for at least half of the time since the job was due.
    WorkersBusy,
    /// The store did not answer.
    StoreDown,
    /// The job was due before the consumer started.
    NotStarted,
    /// The topic was paused. The consumer does not know this reason, so the pause is looked up in the audit log when
    /// the job is shown.
    TopicPaused,
    /// The consumer saw no reason why the job had to wait.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for LateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LateReason::CircuitOpen => "the circuit of its topic was open, because its receiver failed",
            LateReason::TopicLimit => "its topic had reached max_in_flight or rate",
            LateReason::HostLimit => "the host of its receiver had reached a limit",
            LateReason::WorkersBusy => "all workers were busy",
            LateReason::StoreDown => "the store did not answer",
            LateReason::NotStarted => "the consumer had not been started when it was due",
            LateReason::TopicPaused => "its topic was paused",
            LateReason::Unknown => {
                "the consumer does not know why. The topic may have been paused, held or not registered, or it had its share \
                 of the workers, or no timer ran"
            }
        })
    }
}

/// How late an attempt began, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateStart {
    /// How long after its due time the attempt began, in milliseconds.
    pub ms: u64,
    /// The last reason why the job had to wait.
    pub reason: LateReason,
}

impl fmt::Display for LateStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let late = match self.ms {
            ..60_000 => format!("{:.1} s", self.ms as f64 / 1000.0),
            _ => humantime::format_duration(Duration::from_secs(self.ms / 1000)).to_string(),
        };
        write!(f, "began {late} after it was due: {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_says_how_late_and_why() {
        let text = |ms, reason| LateStart { ms, reason }.to_string();
        let circuit = text(4_260, LateReason::CircuitOpen);
        assert!(circuit.starts_with("began 4.3 s after it was due: the circuit of its topic"), "{circuit}");
        assert!(text(3_720_400, LateReason::Unknown).contains("1h 2m after"));
    }

    #[test]
    fn a_reason_of_a_later_release_is_unknown() {
        let read = |json| serde_json::from_str::<LateStart>(json).unwrap();
        assert_eq!(read(r#"{"ms":1,"reason":"host_limit"}"#).reason, LateReason::HostLimit);
        assert_eq!(read(r#"{"ms":1,"reason":"eclipse"}"#).reason, LateReason::Unknown);
    }
}

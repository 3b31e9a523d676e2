//! An answer that a client waits for.

use std::time::Instant;

use super::answer::JsonBytes;
use super::reserves::WaitingReserve;

/// The answer to one request of a client.
#[derive(Debug)]
pub(super) enum Reply {
    /// The store has had the request since `since`. The answer counts as `guess` bytes.
    Pending { since: Instant, guess: usize },
    /// A reserve waits for jobs.
    Waiting(WaitingReserve),
    /// The answer is known.
    Done(JsonBytes),
}

impl Reply {
    /// Returns the length of the answer. For a pending answer, this is the guess.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Reply::Pending { guess, .. } => *guess,
            Reply::Waiting(_) => 0,
            Reply::Done(json) => json.len(),
        }
    }
}

//! A call on a shard, and why it may have brought nothing.

use redis::Cmd;

use super::super::script::Script;
use crate::store::StoreError;

/// A call on a shard.
#[derive(Clone)]
pub(in super::super) struct Call {
    pub shard: usize,
    /// The script that it is of; none: it is a plain command.
    pub script: Option<Script>,
    pub cmd: Cmd,
}

/// Why a call brought nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Failure {
    /// Nothing was changed.
    NotRun(StoreError),
    /// The server does not know the script, and has not run it.
    NoScript,
    /// The server does not have the shard, and has not run it.
    Elsewhere(String),
    /// It may have been done or not.
    Unknown(StoreError),
}

impl Failure {
    pub(in super::super) fn into_error(self) -> StoreError {
        match self {
            Failure::NotRun(e) | Failure::Unknown(e) => e,
            Failure::NoScript => StoreError::Unavailable("a server forgets its scripts at once".into()),
            Failure::Elsewhere(text) => StoreError::NodeDown(text),
        }
    }

    /// Whether the shard can do nothing now.
    pub(in super::super) fn is_away(&self) -> bool {
        matches!(self, Failure::NotRun(StoreError::NodeDown(_)) | Failure::Elsewhere(_))
    }
}

//! A call on a shard, and the reasons why it may fail.

use redis::Cmd;

use super::super::script::Script;
use crate::StoreError;
use model::topic::Durability;

/// A call on a shard.
#[derive(Clone)]
pub(in super::super) struct Call {
    pub shard: usize,
    /// The script of the call. None: the call is a plain command.
    pub script: Option<Script>,
    /// Whether jobs are being moved, according to the set of nodes that this call has.
    pub while_moving: bool,
    /// Whether the call is made only on a server that this process has met.
    pub to_met: bool,
    /// How safe the changes must be before the call counts as answered. If several calls that are made together need
    /// more than `Memory`, they all need the same level.
    pub durability: Durability,
    pub cmd: Cmd,
}

impl Call {
    /// Makes a call of a plain command on the server of a shard.
    pub(in super::super) fn plain(shard: usize, cmd: Cmd) -> Call {
        Call { shard, script: None, while_moving: false, to_met: false, durability: Durability::Memory, cmd }
    }

    /// Returns the same call with the script's text instead of its hash, so that a server that does not know the script
    /// can run it.
    pub(in super::super) fn whole(&self) -> Call {
        let mut cmd = Cmd::new();
        for (i, argument) in self.cmd.args_iter().enumerate() {
            match (i, self.script, argument) {
                (0, Some(_), _) => cmd.arg("EVAL"),
                (1, Some(script), _) => cmd.arg(script.text()),
                (_, _, redis::Arg::Simple(bytes)) => cmd.arg(bytes),
                _ => &mut cmd,
            };
        }
        Call { cmd, ..*self }
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Failure {
    /// Nothing was changed.
    NotRun(StoreError),
    /// The server does not know the script, and has not run it.
    NoScript,
    /// The server does not have the shard, and has not run the call.
    Elsewhere(String),
    /// The shard has another set of nodes, and has not run the call. The text is the set of the shard. Empty: the shard
    /// has no set.
    OtherSet(String),
    /// This process has not met the server with this name, or has not met it again after the server was down. The call
    /// was not sent.
    Unmet(String),
    /// The call may or may not have been done.
    Unknown(StoreError),
}

impl Failure {
    pub(in super::super) fn into_error(self) -> StoreError {
        match self {
            Failure::NotRun(e) | Failure::Unknown(e) => e,
            Failure::NoScript => StoreError::Unavailable("the server does not keep loaded scripts".into()),
            Failure::Elsewhere(text) => StoreError::NodeDown(text),
            Failure::OtherSet(_) => StoreError::Moving("the set of nodes has just changed".into()),
            Failure::Unmet(_) => StoreError::NodeDown("the server that answers for it keeps changing".into()),
        }
    }
}

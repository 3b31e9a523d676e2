//! The meaning of the errors that a server answers. One table says what the caller gets, whether dq sends nothing to
//! the server for a while, and what happens to the connections. Pure.
//!
//! Each of these errors means that nothing was changed. A server refuses a script only at the first change that the
//! script makes, and never at a later change.

use super::call::Failure;
use crate::StoreError;

/// What the caller gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerErrorKind {
    /// The server does not know the script. It has to be loaded first.
    Unknown,
    /// Another server of the Cluster has the shard.
    Elsewhere,
    /// The shard has another set of nodes: see part/fence.lua.
    OtherSet,
    /// The shard cannot be used now.
    Away,
    /// The server has no room left.
    Full,
    /// The server is busy with a long operation.
    Busy,
    /// The server never runs such a call.
    Refused,
}

/// What happens to the connections to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionFate {
    Kept,
    /// No connection is used again. The server is not the master, or not the expected server. So new connections ask
    /// for the address again.
    AllDropped,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ErrorRule {
    code: &'static str,
    pub means: ServerErrorKind,
    /// Whether dq sends nothing more to the server for half a second. False if the error concerns only one of several
    /// shards.
    pub opens_breaker: bool,
    pub wires: ConnectionFate,
}

const fn rule(
    code: &'static str,
    means: ServerErrorKind,
    opens_breaker: bool,
    wires: ConnectionFate,
) -> ErrorRule {
    ErrorRule { code, means, opens_breaker, wires }
}

const RULES: [ErrorRule; 14] = [
    // The server is a replica, or a master that has been made one.
    rule("READONLY", ServerErrorKind::Away, true, ConnectionFate::AllDropped),
    rule("MASTERDOWN", ServerErrorKind::Away, true, ConnectionFate::AllDropped),
    // A Cluster says that the slot of the shard is on another server, or is being moved. dq never follows ASK:
    // docs/REDIS.md.
    rule("MOVED", ServerErrorKind::Elsewhere, false, ConnectionFate::Kept),
    rule("ASK", ServerErrorKind::Away, false, ConnectionFate::Kept),
    rule("TRYAGAIN", ServerErrorKind::Away, false, ConnectionFate::Kept),
    rule("CLUSTERDOWN", ServerErrorKind::Away, false, ConnectionFate::Kept),
    // The server cannot be used now, but it will work again.
    rule("LOADING", ServerErrorKind::Away, true, ConnectionFate::Kept),
    rule("NOREPLICAS", ServerErrorKind::Away, true, ConnectionFate::Kept),
    rule("MISCONF", ServerErrorKind::Away, true, ConnectionFate::Kept),
    // The server is full. The jobs on this server can still be delivered.
    rule("OOM", ServerErrorKind::Full, false, ConnectionFate::Kept),
    rule("BUSY", ServerErrorKind::Busy, false, ConnectionFate::Kept),
    rule("NOSCRIPT", ServerErrorKind::Unknown, false, ConnectionFate::Kept),
    rule("DQSET", ServerErrorKind::OtherSet, false, ConnectionFate::Kept),
    // Only on a bell's connection: the server has become a replica, or a client ended the wait.
    rule("UNBLOCKED", ServerErrorKind::Refused, false, ConnectionFate::AllDropped),
];

/// The rule for all codes that the table does not name.
const OTHER: ErrorRule = rule("", ServerErrorKind::Refused, false, ConnectionFate::Kept);

/// Returns the rule for an error code.
pub(super) fn rule_for(code: &str) -> ErrorRule {
    RULES.into_iter().find(|rule| rule.code == code).unwrap_or(OTHER)
}

impl ErrorRule {
    /// Returns the failure for the caller. `text` is the error of the server for display. `details` is the unchanged
    /// text after the error code.
    pub(super) fn failure(self, text: String, details: &str) -> Failure {
        match self.means {
            ServerErrorKind::OtherSet => Failure::OtherSet(details.to_owned()),
            ServerErrorKind::Unknown => Failure::NoScript,
            ServerErrorKind::Elsewhere => Failure::Elsewhere(text),
            ServerErrorKind::Away => Failure::NotRun(StoreError::NodeDown(text)),
            ServerErrorKind::Full => Failure::NotRun(StoreError::Full(text)),
            ServerErrorKind::Busy => Failure::NotRun(StoreError::Busy),
            ServerErrorKind::Refused => Failure::NotRun(StoreError::Unavailable(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_rule() {
        // Code, what clients get, whether the breaker opens, whether all connections are closed.
        for (code, kind, opens, drops) in [
            ("READONLY", "node_down", true, true),
            ("MASTERDOWN", "node_down", true, true),
            ("MOVED", "asked elsewhere", false, false),
            ("ASK", "node_down", false, false),
            ("TRYAGAIN", "node_down", false, false),
            ("CLUSTERDOWN", "node_down", false, false),
            ("LOADING", "node_down", true, false),
            ("NOREPLICAS", "node_down", true, false),
            ("MISCONF", "node_down", true, false),
            ("OOM", "store_full", false, false),
            ("BUSY", "store_busy", false, false),
            ("NOSCRIPT", "asked again", false, false),
            ("DQSET", "asked again", false, false),
            ("UNBLOCKED", "store_unavailable", false, true),
            ("NOPERM", "store_unavailable", false, false),
            ("ERR", "store_unavailable", false, false),
        ] {
            let rule = rule_for(code);
            let says = match rule.failure("why".into(), "7 x a") {
                Failure::NoScript => "asked again",
                Failure::Elsewhere(_) => "asked elsewhere",
                Failure::OtherSet(set) => {
                    assert_eq!(set, "7 x a");
                    "asked again"
                }
                Failure::Unmet(_) => "not asked",
                Failure::NotRun(e) => e.code(),
                Failure::Unknown(_) => "unknown",
            };
            assert_eq!(
                (says, rule.opens_breaker, rule.wires == ConnectionFate::AllDropped),
                (kind, opens, drops),
                "{code}"
            );
        }
    }
}

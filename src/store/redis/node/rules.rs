//! What a server's refusals mean. One table: what the caller is told, whether the server is left alone for a while, and what
//! becomes of connections. Pure.
//!
//! Each of them says that nothing was changed: a script's first change is what is refused, and what a script does after its
//! first change is never refused.

use super::call::Failure;
use crate::store::StoreError;

/// What the caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// The script has to be loaded first.
    Unknown,
    /// Another server of the Cluster has the shard.
    Elsewhere,
    /// The shard can do nothing now.
    Away,
    /// There is no room.
    Full,
    /// It does something else, and takes long for it.
    Busy,
    /// It does not do this.
    Refused,
}

/// What becomes of connections to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wires {
    Kept,
    /// The server is not what it was taken for: whoever connects anew asks where to.
    AllDropped,
}

/// A row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    code: &'static str,
    pub means: Means,
    /// Whether nothing else is asked of the server for a moment. Not where only a shard of several is concerned.
    pub opens_breaker: bool,
    pub wires: Wires,
}

const fn rule(code: &'static str, means: Means, opens_breaker: bool, wires: Wires) -> Rule {
    Rule { code, means, opens_breaker, wires }
}

const RULES: [Rule; 13] = [
    // A replica, or a master that has been made one.
    rule("READONLY", Means::Away, true, Wires::AllDropped),
    rule("MASTERDOWN", Means::Away, true, Wires::AllDropped),
    // Of a Cluster: where the shard's slot is, or that it is on its way. ASK is never followed: docs/REDIS.md.
    rule("MOVED", Means::Elsewhere, false, Wires::Kept),
    rule("ASK", Means::Away, false, Wires::Kept),
    rule("TRYAGAIN", Means::Away, false, Wires::Kept),
    rule("CLUSTERDOWN", Means::Away, false, Wires::Kept),
    // It will do, but not now.
    rule("LOADING", Means::Away, true, Wires::Kept),
    rule("NOREPLICAS", Means::Away, true, Wires::Kept),
    rule("MISCONF", Means::Away, true, Wires::Kept),
    // What it has can still be delivered.
    rule("OOM", Means::Full, false, Wires::Kept),
    rule("BUSY", Means::Busy, false, Wires::Kept),
    rule("NOSCRIPT", Means::Unknown, false, Wires::Kept),
    // Of a bell alone: the server has become a replica, or somebody ended the waiting.
    rule("UNBLOCKED", Means::Refused, false, Wires::AllDropped),
];

/// Of all that is not named.
const OTHER: Rule = rule("", Means::Refused, false, Wires::Kept);

/// The rule for a refusal.
pub(super) fn of(code: &str) -> Rule {
    RULES.into_iter().find(|rule| rule.code == code).unwrap_or(OTHER)
}

impl Rule {
    /// What the caller is told; `text` is what the server said.
    pub(super) fn failure(self, text: String) -> Failure {
        match self.means {
            Means::Unknown => Failure::NoScript,
            Means::Elsewhere => Failure::Elsewhere(text),
            Means::Away => Failure::NotRun(StoreError::NodeDown(text)),
            Means::Full => Failure::NotRun(StoreError::Full),
            Means::Busy => Failure::NotRun(StoreError::Busy),
            Means::Refused => Failure::NotRun(StoreError::Unavailable(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_rule() {
        // What clients are told, whether the breaker opens, whether all connections go.
        for (code, told, opens, drops) in [
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
            ("UNBLOCKED", "store_unavailable", false, true),
            ("NOPERM", "store_unavailable", false, false),
            ("ERR", "store_unavailable", false, false),
        ] {
            let rule = of(code);
            let says = match rule.failure("why".into()) {
                Failure::NoScript => "asked again",
                Failure::Elsewhere(_) => "asked elsewhere",
                Failure::NotRun(e) => e.code(),
                Failure::Unknown(_) => "unknown",
            };
            assert_eq!(
                (says, rule.opens_breaker, rule.wires == Wires::AllDropped),
                (told, opens, drops),
                "{code}"
            );
        }
    }
}

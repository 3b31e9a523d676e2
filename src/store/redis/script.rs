//! The scripts: each transition of a job is one file in `lua/`, and runs as a whole or not at all. A script names the parts
//! that it uses in its first line; they are put before it.

use std::sync::LazyLock;

/// What a script does; its file says what it takes and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Add,
    Announce,
    Change,
    Close,
    Counts,
    DeadSince,
    Delete,
    Drain,
    Expire,
    Forecast,
    Get,
    GiveBack,
    HandBack,
    Held,
    Ids,
    Lease,
    Letters,
    List,
    Mark,
    Open,
    Pause,
    Permits,
    Promote,
    Purge,
    PurgeLetters,
    ReconcileDemote,
    ReconcileDrop,
    ReconcileForget,
    ReconcileMark,
    ReconcilePut,
    ReconcileTake,
    ReconcileYield,
    Redrive,
    Release,
    Secret,
    Settle,
}

macro_rules! sources {
    ($folder:literal, $($name:literal),*) => {
        [$(($name, include_str!(concat!($folder, $name, ".lua")))),*]
    };
}

/// In the order of [`Script`].
const SOURCES: [(&str, &str); 36] = sources!(
    "lua/",
    "add",
    "announce",
    "change",
    "close",
    "counts",
    "dead_since",
    "delete",
    "drain",
    "expire",
    "forecast",
    "get",
    "give_back",
    "hand_back",
    "held",
    "ids",
    "lease",
    "letters",
    "list",
    "mark",
    "open",
    "pause",
    "permits",
    "promote",
    "purge",
    "purge_letters",
    "reconcile_demote",
    "reconcile_drop",
    "reconcile_forget",
    "reconcile_mark",
    "reconcile_put",
    "reconcile_take",
    "reconcile_yield",
    "redrive",
    "release",
    "secret",
    "settle"
);

const PARTS: [(&str, &str); 15] = sources!(
    "lua/part/",
    "bells",
    "circuits",
    "clock",
    "copies",
    "endings",
    "graves",
    "leases",
    "moves",
    "places",
    "records",
    "scores",
    "seek",
    "shard",
    "sizes",
    "views"
);

/// A script as servers get it, and the name by which they know it then.
struct Assembled {
    text: String,
    hash: String,
}

static ASSEMBLED: LazyLock<[Assembled; SOURCES.len()]> = LazyLock::new(|| {
    SOURCES.map(|(_, source)| {
        let first = source.lines().next().unwrap_or_default();
        let parts = first.strip_prefix("--@ use ").unwrap_or_default().split(' ');
        let part = |name: &str| PARTS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text);
        let text: String = parts.filter_map(part).chain([source]).collect();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Assembled { text, hash }
    })
});

impl Script {
    fn assembled(self) -> &'static Assembled {
        &ASSEMBLED[self as usize]
    }

    /// What servers are given.
    pub(super) fn text(self) -> &'static str {
        &self.assembled().text
    }

    /// The name by which they know it.
    pub(super) fn hash(self) -> &'static str {
        &self.assembled().hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_finds_its_parts_and_every_part_is_used() {
        let mut used = std::collections::HashSet::new();
        for (name, source) in SOURCES {
            let first = source.lines().next().unwrap();
            for part in first.strip_prefix("--@ use ").unwrap().split(' ') {
                assert!(PARTS.iter().any(|(n, _)| *n == part), "{name} uses {part}");
                used.insert(part);
            }
        }
        assert_eq!(used.len(), PARTS.len());
        let name = |script: Script| SOURCES[script as usize].0;
        assert_eq!(
            (name(Script::Add), name(Script::HandBack), name(Script::Settle)),
            ("add", "hand_back", "settle")
        );
        assert!(Script::Get.text().contains("local call, base") && Script::Get.hash().len() == 40);
    }
}

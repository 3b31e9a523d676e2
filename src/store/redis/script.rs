//! The scripts. Each transition of a job is one file in `lua/`, and runs as a whole or not at all. The first line of a
//! script names the parts that it uses. The texts of these parts are put before the text of the script.

use std::sync::LazyLock;

/// The scripts. The file of each script says which arguments the script gets, and what it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Add,
    Announce,
    Change,
    ChangeListed,
    Close,
    Counts,
    DeadSince,
    Delete,
    Expire,
    Forecast,
    Get,
    GiveBack,
    HandBack,
    Heads,
    Lease,
    LeaseJob,
    Letters,
    LimitUse,
    List,
    MovePutLetters,
    MoveDrop,
    MoveTakeLetters,
    MoveLook,
    MovePut,
    MoveTake,
    Open,
    OutboxNote,
    OutboxState,
    OutboxTake,
    Pause,
    Permits,
    Promote,
    Purge,
    PurgeLetters,
    RecordForget,
    RecordGet,
    RecordKeep,
    RecordList,
    RecordPut,
    RecordTrim,
    Redrive,
    Release,
    RingPull,
    Secret,
    Set,
    Settle,
    TablesWrite,
    TakeBack,
}

macro_rules! sources {
    ($folder:literal, $($name:literal),*) => {
        [$(($name, include_str!(concat!($folder, $name, ".lua")))),*]
    };
}

/// The name and text of each script, in the order of [`Script`].
const SOURCES: [(&str, &str); 48] = sources!(
    "lua/",
    "add",
    "announce",
    "change",
    "change_listed",
    "close",
    "counts",
    "dead_since",
    "delete",
    "expire",
    "forecast",
    "get",
    "give_back",
    "hand_back",
    "heads",
    "lease",
    "lease_job",
    "letters",
    "limit_use",
    "list",
    "move_put_letters",
    "move_drop",
    "move_take_letters",
    "move_look",
    "move_put",
    "move_take",
    "open",
    "outbox_note",
    "outbox_state",
    "outbox_take",
    "pause",
    "permits",
    "promote",
    "purge",
    "purge_letters",
    "record_forget",
    "record_get",
    "record_keep",
    "record_list",
    "record_put",
    "record_trim",
    "redrive",
    "release",
    "ring_pull",
    "secret",
    "set",
    "settle",
    "tables_write",
    "take_back"
);

const PARTS: [(&str, &str); 22] = sources!(
    "lua/part/",
    "batch",
    "bells",
    "circuits",
    "clock",
    "endings",
    "fence",
    "dead_letters",
    "history",
    "leases",
    "unsettled",
    "meter",
    "moves",
    "numbered",
    "owned",
    "places",
    "quota",
    "records",
    "scores",
    "seek",
    "shard",
    "sizes",
    "views"
);

/// The text of a script that is sent to servers, and the hash by which servers then know the script.
struct LoadedScript {
    text: String,
    hash: String,
    is_fenced: bool,
}

static ASSEMBLED: LazyLock<[LoadedScript; SOURCES.len()]> = LazyLock::new(|| {
    SOURCES.map(|(_, source)| {
        let first = source.lines().next().unwrap_or_default();
        let parts = first.strip_prefix("--@ use ").unwrap_or_default().split(' ');
        let part = |name: &str| PARTS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text);
        let text: String = parts.filter_map(part).chain([source]).collect();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        LoadedScript { text, hash, is_fenced: first.contains(" fence") }
    })
});

impl Script {
    fn assembled(self) -> &'static LoadedScript {
        &ASSEMBLED[self as usize]
    }

    /// Whether the script runs only where the shard has the same set of nodes as the caller.
    pub(super) fn is_fenced(self) -> bool {
        self.assembled().is_fenced
    }

    /// Whether the script only reads. Such a script also runs while jobs are moved.
    pub(super) fn is_read_only(self) -> bool {
        !self.is_fenced() || matches!(self, Script::Get | Script::RecordGet)
    }

    /// Returns the text that is sent to servers.
    pub(super) fn text(self) -> &'static str {
        &self.assembled().text
    }

    /// Returns the hash by which servers know the script.
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

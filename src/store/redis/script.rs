//! The scripts. Each transition of a job is one file in `lua/`, and runs as a whole or not at all. The first line of a
//! script names the parts that it uses. The texts of these parts are put before the text of the script.
//!
//! A server defines all functions of a script anew in each call, which can take as long as the work itself. So lines
//! that begin with `--@ first` may name the functions of the parts that most calls need. Then only these functions are
//! defined at once. Another way: a line that begins with `--@ later` names the parts that few calls need. Then only the
//! functions of the other parts are defined at once. The script must call `define_others()` before it uses any other
//! function of its parts. Constants are written in capital letters: a server gets their values in place of their names.
//! `script_text.rs` changes the texts in these two ways.

use std::sync::LazyLock;

use super::script_text::assemble;

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

const PARTS: [(&str, &str); 25] = sources!(
    "lua/part/",
    "batch",
    "bells",
    "circuits",
    "clock",
    "endings",
    "fence",
    "dead_letters",
    "history",
    "late_letters",
    "latest_letters",
    "leases",
    "unsettled",
    "meter",
    "moves",
    "numbered",
    "order",
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
struct AssembledScript {
    text: String,
    hash: String,
    is_fenced: bool,
}

static ASSEMBLED: LazyLock<[AssembledScript; SOURCES.len()]> = LazyLock::new(|| {
    SOURCES.map(|(_, source)| {
        let first = source.lines().next().unwrap_or_default();
        let parts = first.strip_prefix("--@ use ").unwrap_or_default().split(' ');
        let part = |name: &str| PARTS.iter().find(|(n, _)| *n == name).copied();
        let parts: Vec<(&str, &str)> = parts.filter_map(part).collect();
        let text = assemble(&parts, source);
        let hash = redis::Script::new(&text).get_hash().to_owned();
        AssembledScript { text, hash, is_fenced: first.contains(" fence") }
    })
});

impl Script {
    fn assembled(self) -> &'static AssembledScript {
        &ASSEMBLED[self as usize]
    }

    /// Whether the script runs only where the shard has the same set of nodes as the caller.
    pub(super) fn is_fenced(self) -> bool {
        self.assembled().is_fenced
    }

    /// Whether the script also runs while jobs are moved. Such a script has no fence, or it only reads.
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
    use super::super::script_text::{constants_of, first_functions};
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

    #[test]
    fn the_first_functions_of_a_script_are_functions_of_parts() {
        for (name, source) in SOURCES {
            let is_function = |function: &str| PARTS.iter().any(|(_, part)| defines(part, function));
            let first = first_functions(&PARTS, source).unwrap_or_default();
            first.iter().for_each(|function| assert!(is_function(function), "{name}: {function}"));
        }
    }

    fn defines(text: &str, function: &str) -> bool {
        text.contains(&format!("local function {function}("))
    }

    /// The functions in `define_others()` are defined after all variables of the parts. If two parts had a variable of
    /// the same name, such a function would use the last variable, and not the variable of its own part. A constant has
    /// one value in the whole script.
    #[test]
    fn each_name_of_a_part_occurs_once_in_a_script() {
        for (name, source) in SOURCES {
            let first = source.lines().next().unwrap().strip_prefix("--@ use ").unwrap();
            let parts = first.split(' ').filter_map(|part| PARTS.iter().find(|(n, _)| *n == part));
            let texts = parts.map(|(_, text)| *text).chain([source]);
            let lines = texts.flat_map(str::lines).filter_map(|line| line.strip_prefix("local "));
            let names = lines.flat_map(|line| match line.strip_prefix("function ") {
                Some(function) => vec![function.split('(').next().unwrap()],
                None => line.split(" = ").next().unwrap().split(", ").collect(),
            });
            let mut seen = std::collections::HashSet::new();
            for one in names {
                assert!(seen.insert(one), "{name}: {one} is defined twice");
            }
        }
    }

    #[test]
    fn no_text_in_a_script_has_the_name_of_a_constant() {
        let texts = SOURCES.iter().chain(&PARTS).map(|(_, text)| *text);
        let code: Vec<&str> =
            texts.flat_map(str::lines).filter(|line| !line.trim_start().starts_with("--")).collect();
        let constants: std::collections::HashSet<&str> =
            code.iter().flat_map(|line| constants_of(line)).map(|(name, _)| name).collect();
        assert!(constants.len() > 30);
        let words = |text: &'static str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for line in &code {
            let in_quotes = line.split('\'').skip(1).step_by(2);
            in_quotes.flat_map(words).for_each(|word| assert!(!constants.contains(word), "{line}"));
        }
        // The code that is sent to servers has no name of a constant. Each name was replaced by the value of the
        // constant.
        for script in &*ASSEMBLED {
            let lines = script.text.lines().filter(|line| !line.trim_start().starts_with("--"));
            for word in lines.flat_map(words) {
                assert!(!constants.contains(word), "{word}");
            }
        }
    }
}

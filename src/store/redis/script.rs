//! The scripts. Each transition of a job is one file in `lua/`, and runs as a whole or not at all. The first line of a
//! script names the parts that it uses. The texts of these parts are put before the text of the script.
//!
//! A server defines all functions of a script anew in each call, which can take as long as the work itself. So lines
//! that begin with `--@ first` may name the functions of the parts that most calls need. Such a script must call
//! `define_others()` before it uses any other function of its parts.

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

const PARTS: [(&str, &str); 23] = sources!(
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
        let parts: String = parts.filter_map(part).collect();
        let first_functions = first_functions(source);
        let text = match first_functions.is_empty() {
            true => parts + source,
            false => with_others_deferred(&parts, &first_functions, source),
        };
        let hash = redis::Script::new(&text).get_hash().to_owned();
        LoadedScript { text, hash, is_fenced: first.contains(" fence") }
    })
});

/// Returns the functions that most calls of a script need, if the script names them.
fn first_functions(source: &str) -> Vec<&str> {
    source
        .lines()
        .filter_map(|line| line.strip_prefix("--@ first "))
        .flat_map(|names| names.split(' '))
        .collect()
}

/// Returns the text of a script where only these functions of its parts are defined at once. `define_others()` defines
/// the others, in the table `OTHERS`. (The more variables from outside a function uses, the longer its definition
/// takes. If the others were variables, `define_others()` and their callers would use them from outside. So they are
/// fields of a table.)
fn with_others_deferred(parts: &str, first: &[&str], source: &str) -> String {
    let (mut at_once, mut deferred, mut names) = (String::new(), String::new(), Vec::new());
    let mut is_in_deferred = false;
    for line in parts.lines() {
        let function = line.strip_prefix("local function ").and_then(|rest| rest.split_once('('));
        match function.filter(|(name, _)| !first.contains(name)) {
            Some((name, rest)) => {
                is_in_deferred = true;
                names.push(name);
                deferred.push_str(&format!("OTHERS.{name} = function({rest}\n"));
            }
            None if is_in_deferred => {
                deferred.push_str(&format!("{line}\n"));
                is_in_deferred = line != "end";
            }
            None => at_once.push_str(&format!("{line}\n")),
        }
    }
    let is_done = names[0];
    let text = format!(
        "local OTHERS = {{}}\n{at_once}local function define_others()\nif OTHERS.{is_done} then return end\n{deferred}end\n{source}"
    );
    names.iter().fold(text, |text, name| with_calls_of_others(&text, name))
}

/// Returns the text of a script with `OTHERS.` before each call of this function.
fn with_calls_of_others(text: &str, name: &str) -> String {
    let call = format!("{name}(");
    let mut out = String::with_capacity(text.len());
    for (n, part) in text.split(&call).enumerate() {
        if n > 0 {
            let is_whole = !out.ends_with(|c: char| c.is_ascii_alphanumeric() || "_.:".contains(c));
            out.push_str(if is_whole { "OTHERS." } else { "" });
            out.push_str(&call);
        }
        out.push_str(part);
    }
    out
}

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

    #[test]
    fn functions_that_few_calls_need_are_defined_later() {
        let parts =
            "local A = 1\nlocal function f(x)\n  return x\nend\n\nlocal function g()\n  return f(A)\nend\n";
        let g_later = "local OTHERS = {}\nlocal A = 1\nlocal function f(x)\n  return x\nend\n\n\
                       local function define_others()\nif OTHERS.g then return end\n\
                       OTHERS.g = function()\n  return f(A)\nend\nend\nreturn OTHERS.g(string.g(beg(1)))\n";
        assert_eq!(with_others_deferred(parts, &["f"], "return g(string.g(beg(1)))\n"), g_later);
        for (name, source) in SOURCES {
            let is_function = |function: &str| PARTS.iter().any(|(_, part)| defines(part, function));
            first_functions(source)
                .iter()
                .for_each(|function| assert!(is_function(function), "{name}: {function}"));
        }
    }

    fn defines(text: &str, function: &str) -> bool {
        text.contains(&format!("local function {function}("))
    }

    /// The functions in `define_others()` are defined after all variables of the parts. If two parts had a variable of
    /// the same name, such a function would use the last one, and not the one above it.
    #[test]
    fn each_name_of_a_part_occurs_once_in_a_script() {
        for (name, source) in SOURCES.iter().filter(|(_, source)| !first_functions(source).is_empty()) {
            let first = source.lines().next().unwrap().strip_prefix("--@ use ").unwrap();
            let parts = first.split(' ').filter_map(|part| PARTS.iter().find(|(n, _)| *n == part));
            let lines =
                parts.flat_map(|(_, text)| text.lines()).filter_map(|line| line.strip_prefix("local "));
            let names = lines.flat_map(|line| match line.strip_prefix("function ") {
                Some(function) => vec![function.split('(').next().unwrap()],
                None => line.split(" = ").next().unwrap().split(", ").collect(),
            });
            let mut seen = std::collections::HashSet::new();
            for one in names {
                assert!(seen.insert(one), "{name}: two parts have {one}");
                assert!(!defines(source, one), "{name}: {one} is a function of a part, too");
            }
        }
    }
}

//! docs/CONFIGURATION.md, the reference of all settings. It is made from `conf/dq.toml` (what each setting means), from
//! the code (types, defaults, bounds, what a reload refuses) and from the declarations of the settings of topics. A
//! test in this file compares the result with docs/CONFIGURATION.md. `make configuration` writes docs/CONFIGURATION.md.

use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use super::commented_file::{DocumentedKey, DocumentedTable, sections};
use super::raw::{AlertWebhook, CallbackHost, Node};
use super::{ConfigError, Settings, check, defaults, shown_keys};
use model::settings::refused_store_change;
use model::topic::{Setting, SettingKind, Topic};

/// The longest line of a document.
const WIDTH: usize = 120;

/// A configuration of the store in Redis.
const REDIS: &str = "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\nurl = \"redis://h\"\n";

/// Sets a key of a configuration. If the key belongs to a list of tables, the key is set in the first table of the
/// list.
fn set(table: &mut Table, section: &DocumentedTable, name: &str, value: Value) {
    let mut target = table;
    let mut parts = section.path.split('.').filter(|part| !part.is_empty()).peekable();
    while let Some(part) = parts.next() {
        let is_list = section.is_list && parts.peek().is_none();
        let empty =
            if is_list { Value::Array(vec![Value::Table(Table::new())]) } else { Value::Table(Table::new()) };
        let entry = target.entry(part.to_owned()).or_insert(empty);
        target = match entry {
            Value::Array(list) => list[0].as_table_mut(),
            entry => entry.as_table_mut(),
        }
        .expect("a table");
    }
    target.insert(name.to_owned(), value);
}

/// Checks a configuration in which one value is changed.
fn with(base: &str, section: &DocumentedTable, name: &str, value: Value) -> Result<Settings, ConfigError> {
    let mut table: Table = base.parse().unwrap();
    set(&mut table, section, name, value);
    check(table, Path::new("/etc/dq"), std::iter::empty(), None)
}

/// Returns the type of a key in words. The function gets this type from the error about a value of a wrong type.
fn type_of(section: &DocumentedTable, key: &DocumentedKey) -> String {
    if key.value.is_table() {
        return "a table".to_owned();
    }
    let wrong = Value::Table([("nonsense".to_owned(), Value::Integer(1))].into_iter().collect());
    let error = with("", section, &key.name, wrong).expect_err(&key.name).to_string();
    let expected = error.rsplit_once("expected ").map_or("a string", |(_, expected)| expected);
    let expected = expected.split(", in `").next().unwrap_or_default();
    match expected {
        "a string" => "text".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "list of texts".to_owned(),
        "usize" | "u16" | "u32" => "number".to_owned(),
        expected if expected.starts_with("a duration") => "duration".to_owned(),
        expected if expected.starts_with("a size") => "size".to_owned(),
        expected => expected.replace("one of ", "").replace('`', "\""),
    }
}

/// Returns the bounds of a key. The function gets these bounds from the error about a value that is too large.
fn bounds(section: &DocumentedTable, key: &DocumentedKey, kind: &str) -> Option<String> {
    let largest = match kind {
        "number" if key.name != "port" => Value::Integer(4_000_000_000),
        "duration" => Value::String("1000years".to_owned()),
        "size" => Value::String("9000TiB".to_owned()),
        _ => return None,
    };
    ["", REDIS, "[alert.smtp]\nhost = \"h\"\nfrom = \"a@b.example\"\n[[callback.host]]\nname = \"h\"\n"]
        .iter()
        .find_map(|base| {
            let error = with(base, section, &key.name, largest.clone()).err()?.to_string();
            let (_, bounds) = error.split_once(" is not within ")?;
            Some(bounds.replace(" and ", " to ").replace('"', ""))
        })
}

/// Returns whether a reload refuses a changed value of this key.
fn is_fixed(section: &DocumentedTable, key: &DocumentedKey) -> bool {
    if section.path.is_empty() && key.name == "run_dir" {
        return true;
    }
    let parse =
        |text: &str| check(text.parse().unwrap(), Path::new("/etc/dq"), std::iter::empty(), None).unwrap();
    let refuses = |before: &Settings, after: &Settings| {
        refused_store_change(&before.store.to_string(), &after.store.to_string()).is_some()
    };
    if section.path == "store" && key.name == "backend" {
        return refuses(&parse(""), &parse(REDIS));
    }
    let others = [Value::String("other".to_owned()), Value::Integer(3)];
    ["", REDIS].iter().any(|base| {
        let after = others.iter().filter_map(|other| with(base, section, &key.name, other.clone()).ok());
        after.into_iter().any(|after| refuses(&parse(base), &after))
    })
}

/// Returns the variable of the environment that overrides a key.
fn variable(section: &DocumentedTable, key: &DocumentedKey) -> Option<String> {
    let is_nested = section.path.contains('.') || section.is_list;
    let known = shown_keys();
    let table = if section.path.is_empty() {
        Some(&known)
    } else {
        known.get(&section.path).and_then(Value::as_table)
    };
    if is_nested || table?.get(&key.name).is_none() {
        return None;
    }
    let path = if section.path.is_empty() { String::new() } else { format!("{}__", section.path) };
    Some(format!("DQ_{path}{}", key.name).to_ascii_uppercase())
}

/// Returns the text of comments as Markdown: indented lines are a list, other lines are prose.
fn prose(lines: &[String]) -> String {
    let mut blocks: Vec<(bool, String)> = Vec::new();
    for line in lines {
        let text = line.trim_start();
        let (name, meaning) = text.split_once("  ").unwrap_or(("", text));
        let is_item = line.starts_with("  ") && !name.is_empty();
        match blocks.last_mut() {
            _ if is_item => blocks.push((true, format!("- `{name}`: {}", marked(meaning.trim_start())))),
            Some((is_list, block)) if *is_list == line.starts_with("  ") => {
                *block += &format!(" {}", marked(text))
            }
            _ => blocks.push((false, marked(text))),
        }
    }
    let mut markdown = String::new();
    for (at, (is_list, block)) in blocks.iter().enumerate() {
        if at > 0 && *is_list != blocks[at - 1].0 {
            markdown.push('\n');
        }
        markdown += &wrapped(block, if *is_list { "  " } else { "" });
    }
    markdown
}

/// Returns a text in which only code between backticks is markup.
fn marked(text: &str) -> String {
    let part = |(at, part): (usize, &str)| match at % 2 {
        0 => part.replace('*', "\\*").replace('<', "\\<").replace('|', "\\|"),
        _ => part.to_owned(),
    };
    text.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

/// Breaks a text into lines, but not inside code between backticks.
fn wrapped(text: &str, indent: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut().filter(|last| last.matches('`').count() % 2 == 1) {
            Some(last) => *last += &format!(" {word}"),
            None => words.push(word.to_owned()),
        }
    }
    let mut lines = vec![String::new()];
    for word in words {
        let line = lines.last_mut().expect("there is a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else {
            *line += &format!("{}{word}", if line.is_empty() { "" } else { " " });
        }
    }
    lines.join("\n") + "\n"
}

fn entry(section: &DocumentedTable, key: &DocumentedKey) -> String {
    let path =
        if section.path.is_empty() { key.name.clone() } else { format!("{}.{}", section.path, key.name) };
    let kind = type_of(section, key);
    let bounds = bounds(section, key, &kind).map(|bounds| format!(", {bounds}")).unwrap_or_default();
    let has_default =
        !section.is_list && defaults_of(section).is_some_and(|table| table.contains_key(&key.name));
    let value = if has_default { "default" } else { "such as" };
    let mut facts =
        vec![format!("**`{path}`**"), format!("{value} `{}`", key.value), format!("{kind}{bounds}")];
    facts.extend(variable(section, key).map(|name| format!("`{name}`")));
    if is_fixed(section, key) {
        facts.push("fixed while dq runs".to_owned());
    }
    format!("{}\n{}\n", wrapped(&facts.join(" · "), ""), prose(&key.about))
}

fn defaults_of(section: &DocumentedTable) -> Option<Table> {
    section
        .path
        .split('.')
        .filter(|part| !part.is_empty())
        .try_fold(defaults(), |table, part| table.get(part)?.as_table().cloned())
}

/// Returns the entry of a setting of topics.
fn topic_entry(setting: &Setting) -> String {
    let default = match setting.default() {
        serde_json::Value::Null => "no default".to_owned(),
        default => format!("default `{default}`"),
    };
    let kind = match setting.kind {
        SettingKind::Span { least, most } => {
            let [least, most] = [least, most].map(humantime::format_duration);
            format!("duration, {least} to {most}")
        }
        SettingKind::Bytes { least, most } => {
            let [least, most] = [least, most].map(model::topic::Size);
            format!("size, {least} to {most}")
        }
        SettingKind::Rate { most } => format!("rate, at most {most}"),
        SettingKind::Text { most } => format!("text, at most {most} bytes"),
        SettingKind::Texts | SettingKind::Secrets => "list of texts".to_owned(),
        SettingKind::Headers => "table of texts".to_owned(),
        _ => setting.wanted().trim_end_matches(", or null").to_owned(),
    };
    let facts = format!("**`topic.{}`** · {default} · {}", setting.name, marked(&kind));
    format!("{}\n{}\n", wrapped(&facts, ""), wrapped(&marked(setting.about()), ""))
}

const HEAD: &str = "\
# Configuration

All settings of dq, with their defaults. This document is made from conf/dq.toml and from the code. conf/dq.toml
has all of these settings, so you can start from a copy of it. Your own file needs only the keys that you change.

- `dq-master --config dq.toml --check` checks a file.
- An entry names the setting, its default or an example, its type with its bounds, and the variable of the environment
  that overrides it. A setting without a variable can only be set in the file.
- After you change the file, send HUP to dq-master. It then loads the file (docs/SUPERVISION.md). A setting that is
  marked \"fixed while dq runs\" cannot change in this way: dq refuses the reload, and says what to do.
- A duration is `\"250ms\"`, `\"30s\"`, `\"1h30m\"`, `\"3days\"`, or a number of seconds. A size is `\"64kB\"`, `\"1MiB\"`, or a
  number of bytes. Relative paths start at the folder of the file.

";

/// Returns the document.
fn document() -> String {
    let mut text = HEAD.to_owned();
    for section in sections() {
        let title = match (section.path.as_str(), section.is_list) {
            ("", _) => "The daemon".to_owned(),
            (path, false) => format!("[{path}]"),
            (path, true) => format!("[[{path}]]"),
        };
        text += &format!("## {title}\n\n");
        if section.path == "topic" {
            text += "A topic of the file. Topics of the registry have the same settings (docs/REGISTRY.md). `name` is required: 1 to 128\n\
                letters, digits, `_`, `.` or `-`.\n\n";
            text.extend(Topic::SETTINGS.iter().map(topic_entry));
            continue;
        }
        if !section.about.is_empty() {
            text += &format!("{}\n", prose(&section.about));
        }
        text.extend(section.keys.iter().map(|key| entry(&section, key)));
    }
    text.trim_end().to_owned() + "\n"
}

#[test]
fn the_reference_of_settings_is_what_code_and_file_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFIGURATION.md");
    let document = document();
    if std::env::var_os("WRITE_CONFIGURATION").is_some() {
        std::fs::write(&file, &document).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = document.lines().zip(written.lines()).find(|(a, b)| a != b);
    assert!(
        document == written,
        "docs/CONFIGURATION.md is old: make configuration. First difference: {differs:?}"
    );
}

/// Returns the keys of a table. The function gets these keys from the error about a key that does not exist.
fn keys_of<'de, T: Deserialize<'de>>() -> Vec<String> {
    let wrong: Table = [("?".to_owned(), Value::Integer(1))].into_iter().collect();
    let Err(error) = Value::Table(wrong).try_into::<Table>().and_then(T::deserialize) else {
        panic!("it has a key ?")
    };
    let error = error.to_string();
    let mut keys: Vec<String> = error.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    keys.sort();
    keys
}

#[test]
fn every_setting_is_explained_and_no_other() {
    for section in sections() {
        let mut names: Vec<String> = section.keys.iter().map(|key| key.name.clone()).collect();
        names.sort();
        let known = match section.path.as_str() {
            "topic" => continue,
            "store.node" => keys_of::<Node>(),
            "callback.host" => keys_of::<CallbackHost>(),
            "alert.webhook" => keys_of::<AlertWebhook>(),
            path => {
                // A table inside a section is a section of its own, so it is not a key here.
                let table = if path == "callback" {
                    shown_keys()["callback"].as_table().cloned()
                } else {
                    defaults_of(&section)
                };
                let is_key = |(_, value): &(String, Value)| {
                    !value.is_table() || value.as_table().is_some_and(|t| t.contains_key("cert"))
                };
                table.unwrap().into_iter().filter(is_key).map(|(name, _)| name).collect()
            }
        };
        assert_eq!(names, known, "[{}]", section.path);
        for key in &section.keys {
            assert!(!key.about.is_empty(), "{}.{} has no comment", section.path, key.name);
        }
    }
}

#[test]
fn bounds_types_and_fixed_settings_come_from_the_code() {
    // In `text`, each paragraph of the document is one line.
    let text = document().split("\n\n").map(|text| text.replace('\n', " ")).collect::<Vec<_>>().join("\n");
    for line in [
        "**`server.max_frame`** · default `\"1MiB\"` · size, 256B to 15MiB · `DQ_SERVER__MAX_FRAME`",
        "**`store.pool`** · default `8` · number, 1 to 1024 · `DQ_STORE__POOL`",
        "**`drain_timeout`** · default `\"30s\"` · duration, 0s to 1day · `DQ_DRAIN_TIMEOUT`",
        "**`callback.max_attempts`** · such as `10` · number, 1 to 1000 · `DQ_CALLBACK__MAX_ATTEMPTS`",
        "**`http.console`** · default `true` · true or false · `DQ_HTTP__CONSOLE`",
        "**`store.node.shards`** · such as `2` · number, 1 to 1024 · fixed while dq runs",
        "**`alert.smtp.port`** · default `587` · number",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}");
    }
    let fixed = text.lines().filter(|line| line.ends_with("fixed while dq runs"));
    let fixed: Vec<&str> = fixed.map(|line| line.split('`').nth(1).unwrap()).collect();
    assert_eq!(
        fixed,
        [
            "run_dir",
            "store.backend",
            "store.path",
            "store.prefix",
            "store.shards_per_node",
            "store.node.shards"
        ]
    );
    // Each variable of the environment in the text belongs to a key that exists.
    let variables: Vec<&str> = text.split('`').filter(|code| code.starts_with("DQ_")).collect();
    assert!(variables.len() > 70, "{}", variables.len());
    for name in variables {
        let value = || [(name.to_owned(), "{".to_owned())].into_iter();
        let mut table = Table::new();
        let problem =
            super::environment::apply(&mut table, value()).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(!problem.contains("there is no key"), "{problem}");
    }
}

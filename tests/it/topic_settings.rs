//! The settings of a topic are declared once, in src/model/topic/mod.rs. The tests compare what is written by hand with
//! this declaration.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use model::topic::{Setting, SettingKind, Topic};
use serde_json::Value;

fn text(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn the_documented_file_shows_each_setting_of_a_topic() {
    let text = text("conf/dq.toml");
    let example: String = text
        .split_once("#: [[topic]]")
        .unwrap()
        .1
        .lines()
        .filter_map(|line| Some(line.strip_prefix("#: ")?.to_owned() + "\n"))
        .collect();
    let example: toml::Table = example.parse().unwrap();
    let shown: BTreeSet<&str> = example.keys().map(String::as_str).collect();
    let declared = Topic::SETTINGS.iter().map(|setting| setting.name).chain(["name"]).collect();
    assert_eq!(shown, declared);
    // For settings that are spans, words, numbers or switches, the example shows the default.
    for setting in Topic::SETTINGS {
        let default = setting.default();
        if matches!(
            setting.kind,
            SettingKind::Span { .. }
                | SettingKind::Words(_)
                | SettingKind::Count { .. }
                | SettingKind::Switch
        ) && !default.is_null()
        {
            assert_eq!(serde_json::to_value(&example[setting.name]).unwrap(), default, "{}", setting.name);
        }
    }
}

/// Returns the value of a member of a field of the console's form. `line`: the line of topic_fields.js that declares
/// the field.
fn part<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(&format!("{name}: '"))?.1.split_once('\'').map(|(value, _)| value)
}

#[test]
fn the_form_of_the_console_has_each_setting_and_its_default() {
    let text = text("assets/console/parts/topic_fields.js");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("{ name: '")).collect();
    let form: BTreeSet<&str> = lines.iter().filter_map(|line| part(line, "name")).collect();
    let own = ["name", "retry_list"];
    let declared: BTreeSet<&str> = Topic::SETTINGS.iter().map(|setting| setting.name).chain(own).collect();
    assert_eq!(form, declared);
    for line in lines {
        let name = part(line, "name").unwrap();
        let Some(setting) = Setting::named(name) else { continue };
        let first = match setting.default() {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(is_on) => is_on.to_string(),
            _ => String::new(),
        };
        assert_eq!(part(line, "first"), Some(first.as_str()), "{name}");
        let kind = part(line, "kind").unwrap();
        let is_of_kind = match setting.kind {
            SettingKind::Span { .. } => kind == "span",
            SettingKind::Count { .. } => kind == "number",
            SettingKind::Words(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
                kind == "select" && line.contains(&format!("options: [{}]", quoted.join(", ")))
            }
            SettingKind::Switch => kind == "switch" && line.contains("options: ['true', 'false']"),
            SettingKind::Retry => kind == "select",
            SettingKind::Headers => kind == "headers",
            SettingKind::Secrets => kind == "secrets",
            SettingKind::Failures | SettingKind::Texts => kind == "list",
            _ => kind == "text",
        };
        assert!(is_of_kind, "{name} is entered as {kind}");
    }
}

#[test]
fn the_command_line_has_an_option_for_each_setting() {
    let help = Command::new(env!("CARGO_BIN_EXE_dq")).args(["topics", "set", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let options: Vec<&str> = help.split_whitespace().filter(|word| word.starts_with("--")).collect();
    for setting in Topic::SETTINGS {
        let option = match setting.kind {
            SettingKind::Headers => "--header".to_owned(),
            SettingKind::Secrets => "--secrets-file".to_owned(),
            _ => format!("--{}", setting.name.replace('_', "-")),
        };
        assert!(options.contains(&option.as_str()), "{option} is missing in\n{help}");
    }
}

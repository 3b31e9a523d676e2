//! A test: the commands and options that appear in documents, the configuration file and messages exist.

use std::path::{Path, PathBuf};

use super::command_line;

/// Commands that do not exist any more. The texts that name these commands say that they are gone.
const GONE: [&str; 1] = ["nodes drain"];

/// Returns the files whose texts are checked.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_text =
            path.extension().is_some_and(|e| ["md", "toml", "rs", "js"].iter().any(|known| e == *known));
        if path.is_dir() {
            files(&path, found);
        } else if is_text {
            found.push(path);
        }
    }
}

/// Returns the commands in a text: what follows `dq ` between two backticks.
fn commands(text: &str) -> Vec<String> {
    let parts = text.match_indices("`dq ").filter_map(|(at, begin)| {
        let rest = &text[at + begin.len()..];
        Some(
            rest[..rest.find('`')?]
                .split_whitespace()
                .filter(|word| *word != "//!" && *word != "///")
                .collect::<Vec<_>>()
                .join(" "),
        )
    });
    parts.filter(|command| command.len() < 200).collect()
}

/// Returns why a command cannot be run.
fn problem(command: &str) -> Option<String> {
    let (mut known, mut is_verb) = (command_line(), true);
    known.build();
    for word in command.split(' ') {
        let word = word.trim_end_matches([',', '.', ':']);
        if is_verb && known.has_subcommands() {
            let is_name = !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            match known.find_subcommand(word) {
                Some(found) => known = found.clone(),
                None if is_name && !word.starts_with('-') => return Some(format!("`{word}` is no command")),
                None => is_verb = word.starts_with('-'),
            }
        } else {
            is_verb = false;
        }
        if word == "--" {
            break;
        }
        let Some(option) = word.strip_prefix("--").map(|o| o.split('=').next().unwrap_or(o)) else {
            continue;
        };
        let has = |arg: &clap::Arg| {
            arg.get_long() == Some(option) || arg.get_all_aliases().unwrap_or_default().contains(&option)
        };
        let is_word = option.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        if is_word && !known.get_arguments().any(has) {
            return Some(format!("`--{option}` is no option of it"));
        }
    }
    None
}

#[test]
fn the_commands_that_texts_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name)).to_vec();
    for folder in ["docs", "conf", "src", "assets/console"] {
        files(&root.join(folder), &mut found);
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        for command in commands(&text) {
            count += 1;
            let is_gone = GONE.iter().any(|gone| command.starts_with(gone));
            wrong.extend(
                problem(&command)
                    .filter(|_| !is_gone)
                    .map(|why| format!("{}: dq {command}: {why}", path.display())),
            );
        }
    }
    assert!(count > 100, "only {count} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    for wrong in ["pause t", "topics make t --mode pull", "list t --colour", "nodes"] {
        assert_eq!(problem(wrong).is_some(), wrong != "nodes", "{wrong}");
    }
    for right in ["topics pause NAME", "list t --state ready", "bulk …", "reserve TOPIC --exec …", "--help"]
    {
        assert_eq!(problem(right), None, "{right}");
    }
}

//! Holds the layers of ARCHITECTURE.md: imports point down only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which modules of the crate a top-level module may use, beside itself.
fn allowed(module: &str) -> Option<Vec<&'static str>> {
    const PURE: &[&str] = &[
        "job",
        "json_time",
        "topic",
        "retry",
        "fair",
        "flow",
        "fields",
        "headers",
        "letters",
        "rendezvous",
        "slot",
        "settings",
        "status",
        "php_node",
        "scope",
        "ticket",
        "password",
        "token",
        "session",
        "audit",
        "strikes",
        "metrics",
        "expression",
        "guard",
        "notice",
        "excerpt",
        "refusals",
    ];
    const KITS: &[&str] =
        &["config", "process", "store", "registry", "callback", "protocol", "counters", "history", "alert"];
    let role = || [PURE, KITS].concat();
    match module {
        m if PURE.contains(&m) || KITS.contains(&m) => Some(PURE.to_vec()),
        "role" => Some(role()),
        "submit" => Some([&role()[..], &["role"]].concat()),
        "supervisor" => Some([PURE, &["config", "process"]].concat()),
        "roles" | "cli" => Some([&role()[..], &["role", "submit"]].concat()),
        _ => None,
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// A source without comments and tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The first names of what stands in a group, `{a::{b, c}, d}` gives a and d; or the one name, where there is no group.
fn first_names(text: &str) -> Vec<String> {
    let word = |t: &str| t.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = text.strip_prefix('{') else { return vec![word(text)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(word(group[start..i].trim()));
                start = i + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|n| !n.is_empty());
    names
}

/// The names behind `crate::` in a source's code.
fn uses(text: &str) -> Vec<String> {
    code(text).split("crate::").skip(1).flat_map(first_names).collect()
}

/// How many modules up the code reaches by `super::`, at most.
fn reach(text: &str) -> usize {
    let code = code(text);
    let mut most = 0;
    let mut rest = code.as_str();
    while let Some(at) = rest.find("super::") {
        let mut up = 0;
        rest = &rest[at..];
        while let Some(next) = rest.strip_prefix("super::") {
            (up, rest) = (up + 1, next);
        }
        most = most.max(up);
    }
    most
}

#[test]
fn imports_point_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = Vec::new();
    for file in files.iter().filter(|f| !f.ends_with("src/lib.rs")) {
        let inner = file.strip_prefix(&src).unwrap();
        let module = inner.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        let allowed = allowed(module).unwrap_or_else(|| panic!("{module} has no layer: give it one"));
        let text = std::fs::read_to_string(file).unwrap();
        for name in uses(&text) {
            if name != module && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}: crate::{name}", inner.display()));
            }
        }
        // By `super::`, nobody reaches the crate itself, and no role the others.
        let depth = inner.components().count() - usize::from(inner.ends_with("mod.rs"));
        let floor = if module == "roles" && depth > 1 { 2 } else { 1 };
        if depth < floor + reach(&text) {
            wrong.push(format!("{}: super:: too far", inner.display()));
        }
        // Of roles, none uses another.
        if module == "roles" && inner.components().count() > 1 {
            let own = inner
                .components()
                .nth(1)
                .unwrap()
                .as_os_str()
                .to_str()
                .unwrap()
                .trim_end_matches(".rs")
                .to_owned();
            for after in text.split("roles::").skip(1) {
                let other: String =
                    after.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                if own != "mod" && other != own {
                    wrong.push(format!("{}: roles::{other}", inner.display()));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_source_says_what_it_owns_and_none_is_too_long() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut lines = BTreeMap::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.starts_with("//! "), "{} does not say what it owns", file.display());
        let code = text.split("#[cfg(test)]").next().unwrap_or_default().lines().count();
        lines.insert(file.display().to_string(), code);
    }
    let long: Vec<_> = lines.iter().filter(|(_, n)| **n > 400).collect();
    assert!(long.is_empty(), "look for the seam in {long:?}");
}

#[test]
fn the_test_sees_what_it_forbids() {
    assert_eq!(
        uses("use crate::store::Store;\nuse crate::{job, topic::Topic};\n// crate::nothing"),
        ["store", "job", "topic"]
    );
    let nested = "use crate::{role::{self, Context}, store::Store};\n#[cfg(test)]\nuse crate::later;";
    assert_eq!(uses(nested), ["role", "store"]);
    assert_eq!(reach("use super::super::store::Store; use super::x;"), 2);
    assert!(!allowed("store").unwrap().contains(&"process"));
    assert!(!allowed("supervisor").unwrap().contains(&"store"));
}

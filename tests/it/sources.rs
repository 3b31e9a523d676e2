//! Rules for documents and sources. The compiler and clippy do not check these rules. (Cargo checks that dependencies
//! only point down.)

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn files(folders: &[&str], extension: &str) -> Vec<PathBuf> {
    fn add(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, extension, found);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    folders.iter().for_each(|folder| add(&root.join(folder), extension, &mut found));
    assert!(!found.is_empty());
    found
}

#[test]
fn every_source_has_a_head_and_at_most_400_lines() {
    let mut lines = BTreeMap::new();
    for file in files(&["src"], "rs") {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{} does not say what it owns", file.display());
        let code = text.split("#[cfg(test)]").next().unwrap_or_default().lines().count();
        lines.insert(file, code);
    }
    lines.retain(|_, count| *count > 400);
    assert!(lines.is_empty(), "look for the seam in {lines:?}");
}

#[test]
fn names_of_tests_have_at_most_60_characters() {
    let mut long = Vec::new();
    for file in files(&["src", "tests"], "rs") {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                if name.len() > 60 {
                    long.push(format!("{}: {name}", file.display()));
                }
                is_test = false;
            }
            is_test |= line == "#[test]" || line == "#[tokio::test]";
        }
    }
    assert_eq!(long, Vec::<String>::new());
}

#[test]
fn lines_of_documents_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut documents = files(&["docs", "migrations"], "md");
    documents.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)),
    );
    let mut long = Vec::new();
    for file in documents {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            // A block of code, fenced or indented.
            let is_code = is_code || line.starts_with("    ");
            let too_long = match line.trim_start().starts_with('|') {
                // A table row: each cell is checked.
                true => line.split('|').any(|cell| cell.trim().chars().count() > 160),
                false => line.chars().count() > 120 && !line.contains("](") && !line.contains("://"),
            };
            if !is_code && too_long {
                long.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert_eq!(long, Vec::<String>::new());
}

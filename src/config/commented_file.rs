//! Reads `conf/dq.toml` with its comments, for the reference of all settings.

use toml::{Table, Value};

/// A key in `conf/dq.toml`.
pub(super) struct DocumentedKey {
    /// The key without its table.
    pub name: String,
    /// The value in the file: the default, or an example.
    pub value: Value,
    /// The lines of its comments.
    pub about: Vec<String>,
}

/// A table of `conf/dq.toml`.
pub(super) struct DocumentedTable {
    /// The path of the table, such as `alert.smtp`. Empty: this section has the keys before the first table.
    pub path: String,
    /// Whether a file may have several tables with this path.
    pub is_list: bool,
    /// The lines of its comments.
    pub about: Vec<String>,
    pub keys: Vec<DocumentedKey>,
}

/// Splits `value  # comment`.
fn split(text: &str) -> (Value, Option<String>) {
    let ends = text.match_indices('#').map(|(at, _)| at).chain([text.len()]);
    let parsed =
        |end: usize| format!("x = {}", &text[..end]).parse::<Table>().ok()?.remove("x").map(|v| (v, end));
    let (value, end) = { ends }.find_map(parsed).unwrap_or_else(|| panic!("{text}"));
    let comment = text[end..].trim_start_matches('#').trim();
    (value, (!comment.is_empty()).then(|| sentence(comment)))
}

/// Makes a sentence from the comment that follows a value on the same line.
fn sentence(comment: &str) -> String {
    let mut chars = comment.chars();
    let first =
        chars.next().filter(|_| !comment.starts_with("dq")).map(|c| c.to_ascii_uppercase().to_string());
    let text = first.map_or_else(|| comment.to_owned(), |first| first + chars.as_str());
    let end = if text.ends_with(['.', '?']) { "" } else { "." };
    text + end
}

/// Reads `conf/dq.toml`.
pub(super) fn sections() -> Vec<DocumentedTable> {
    let section = |path: &str, is_list, about| DocumentedTable {
        path: path.to_owned(),
        is_list,
        about,
        keys: Vec::new(),
    };
    let mut all = vec![section("", false, Vec::new())];
    let mut at = 0;
    let mut comments: Vec<String> = Vec::new();
    for line in include_str!("../../conf/dq.toml").lines() {
        let code = line.strip_prefix("#: ").unwrap_or(line);
        if code.is_empty() {
            comments.clear();
        } else if let Some(comment) = code.strip_prefix('#') {
            comments.push(comment.strip_prefix(' ').unwrap_or(comment).to_owned());
        } else if code.starts_with('[') {
            let path = code.trim_matches(['[', ']']);
            at = all.iter().position(|known| known.path == path).unwrap_or(all.len());
            if at == all.len() {
                all.push(section(path, code.starts_with("[["), std::mem::take(&mut comments)));
            }
            comments.clear();
        } else {
            let (name, rest) = code.split_once(" = ").unwrap_or_else(|| panic!("{line}"));
            let (value, comment) = split(rest);
            let mut about = std::mem::take(&mut comments);
            about.extend(comment);
            let keys = &mut all[at].keys;
            match keys.iter_mut().find(|key| key.name == name) {
                Some(known) => known.about.extend(about),
                None => keys.push(DocumentedKey { name: name.to_owned(), value, about }),
            }
        }
    }
    all
}

//! The lists and dictionaries of responses. beanstalkd writes a small part of YAML: `---`, and then one entry per line.

use std::borrow::Cow;
use std::fmt::Write;

/// A list or a dictionary. Its entries have the form in which they are written. If an entry has quotation marks, they
/// are included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YamlDocument {
    /// `- entry`
    List(Vec<String>),
    /// `key: entry`
    Dictionary(Vec<(Cow<'static, str>, String)>),
}

const BEGIN: &str = "---\n";

impl YamlDocument {
    /// Writes the document.
    pub fn to_yaml(&self) -> String {
        let mut yaml = BEGIN.to_owned();
        let result = match self {
            YamlDocument::List(entries) => entries.iter().try_for_each(|entry| writeln!(yaml, "- {entry}")),
            YamlDocument::Dictionary(entries) => {
                entries.iter().try_for_each(|(key, entry)| writeln!(yaml, "{key}: {entry}"))
            }
        };
        result.expect("a String takes all text");
        yaml
    }

    /// Reads a document. None: beanstalkd does not write such a document.
    pub fn parse(yaml: &[u8]) -> Option<YamlDocument> {
        let entries = std::str::from_utf8(yaml).ok()?.strip_prefix(BEGIN)?;
        if !entries.is_empty() && !entries.ends_with('\n') {
            return None;
        }
        let of_list = |entry: &str| entry.strip_prefix("- ").map(str::to_owned);
        let of_dictionary = |entry: &str| {
            entry.split_once(": ").map(|(key, value)| (Cow::Owned(key.to_owned()), value.to_owned()))
        };
        let entries = || entries.split_terminator('\n');
        let list: Option<Vec<_>> = entries().map(of_list).collect();
        list.map(YamlDocument::List)
            .or_else(|| entries().map(of_dictionary).collect::<Option<_>>().map(YamlDocument::Dictionary))
    }
}

//! Finds the place of a key in the configuration, for messages: the line of the file, the name of the topic, or the
//! variable of the environment that has set the key.

use std::collections::HashMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// Adds the place of the key to an error. `text`: the contents of the file.
pub fn with_place(
    error: ConfigError,
    path: &Path,
    text: &str,
    environment: &HashMap<String, String>,
) -> ConfigError {
    let ConfigError::Key { key, problem, can_pass, .. } = error else { return error };
    let at = |place: String, key: String| ConfigError::Key { place, key, problem, can_pass };
    let variable = format!("DQ_{}", key.replace('.', "__").to_ascii_uppercase());
    if environment.contains_key(&key) {
        // The key is the name of a variable.
        return at(String::new(), key);
    }
    if environment.contains_key(&variable) {
        return at(format!("{variable}: "), key);
    }
    let found = DeTable::parse(text).ok().and_then(|root| find(root.get_ref(), &key));
    let line =
        found.as_ref().map_or(String::new(), |found| format!("line {}: ", line_of(text, found.offset)));
    let key = match found.and_then(|found| found.topic) {
        Some(topic) => format!("{key} (topic {topic:?})"),
        None => key,
    };
    at(format!("{}: {line}", path.display()), key)
}

/// The place of a key. If the key is missing, this is the place of the table that lacks the key.
struct KeyPlace {
    /// The number of bytes before this place.
    offset: usize,
    /// The name of the topic, if this place is in a `[[topic]]` table that has a name.
    topic: Option<String>,
}

fn find(root: &DeTable<'_>, key: &str) -> Option<KeyPlace> {
    let (mut table, mut found) = (root, None);
    for part in key.split('.') {
        let (name, index) = match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((name, index)) => (name, index.parse::<usize>().ok()),
            None => (part, None),
        };
        let Some((written, value)) = table.get_key_value(name) else { break };
        let element = index.and_then(|index| value.get_ref().as_array()?.get(index));
        let offset = element.map_or(written.span(), Spanned::span).start;
        let Some(inner) = element.unwrap_or(value).get_ref().as_table() else {
            return Some(KeyPlace { offset, topic: found.and_then(|found: KeyPlace| found.topic) });
        };
        table = inner;
        let topic = (name == "topic").then(|| inner.get("name").and_then(|name| text_of(name.get_ref())));
        found = Some(KeyPlace { offset, topic: topic.flatten() });
    }
    found
}

fn text_of(value: &DeValue<'_>) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Returns the number of the line that has this byte. The first line has the number 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_file_the_line_and_the_topic() {
        let text = "drain_timeout = \"soon\"\n[server]\n# x\nlisten = \"y\"\n\n[[topic]]\nname = \"a\"\n[[topic]]\nname = \
                    \"超\"\nretry = 1\n[alert.smtp]\nport = 0\n";
        let environment = HashMap::from([("DQ_HTTP__LISTEN".to_owned(), "x".to_owned())]);
        let message = |key: &str| {
            let error = ConfigError::key(key, "no");
            with_place(error, Path::new("dq.toml"), text, &environment).to_string()
        };
        for (key, wanted) in [
            ("drain_timeout", "dq.toml: line 1: drain_timeout: no"),
            ("server.listen", "dq.toml: line 4: server.listen: no"),
            ("server.tls.cert", "dq.toml: line 2: server.tls.cert: no"),
            ("topic[0].callback", "dq.toml: line 6: topic[0].callback (topic \"a\"): no"),
            ("topic[1].retry", "dq.toml: line 10: topic[1].retry (topic \"超\"): no"),
            ("alert.smtp.port", "dq.toml: line 12: alert.smtp.port: no"),
            ("store.node", "dq.toml: store.node: no"),
            ("http.listen", "DQ_HTTP__LISTEN: http.listen: no"),
            ("DQ_HTTP__LISTEN", "DQ_HTTP__LISTEN: no"),
        ] {
            assert_eq!(message(key), wanted);
        }
    }
}

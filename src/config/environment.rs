//! Overrides from the environment: `DQ_SERVER__LISTEN` is `server.listen`, `DQ_RUN_DIR` is `run_dir`.

use toml::{Table, Value};

use super::ConfigError;
use super::unknown_key::nearest;

/// Returns whether a name that begins with `DQ_` is not a setting. There are two kinds of such names: variables that
/// the command `dq` uses, and variables that a container platform sets for a service with the name `dq`.
fn is_foreign(name: &str) -> bool {
    matches!(name, "DQ_URL" | "DQ_TOKEN" | "DQ_TOKEN_FILE")
        || name.starts_with("DQ_SERVICE_")
        || name.starts_with("DQ_PORT")
}

/// Puts the values from the environment into the table. A value must have the type of the key's default.
pub fn apply(
    table: &mut Table,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<(), ConfigError> {
    let defaults = super::shown_keys();
    for (name, value) in environment {
        let Some(path) = name.strip_prefix("DQ_").filter(|_| !is_foreign(&name)) else {
            continue;
        };
        let path = path.to_ascii_lowercase();
        let keys: Vec<&str> = path.split("__").collect();
        let (section, key) = match keys[..] {
            [key] => (None, key),
            [section, key] => (Some(section), key),
            _ => return Err(no_such(&defaults, &name, &keys)),
        };
        let known = match section {
            None => defaults.get(key).filter(|v| !v.is_table()),
            Some(section) => defaults.get(section).and_then(Value::as_table).and_then(|s| s.get(key)),
        };
        let default = known.ok_or_else(|| no_such(&defaults, &name, &keys))?;
        let value = typed(default, &name, value)?;
        let target = match section {
            None => &mut *table,
            Some(section) => {
                let entry = table.entry(section.to_owned()).or_insert_with(|| Value::Table(Table::new()));
                let problem = || ConfigError::key(section, "is a section, not a value");
                entry.as_table_mut().ok_or_else(problem)?
            }
        };
        target.insert(key.to_owned(), value);
    }
    Ok(())
}

fn no_such(defaults: &Table, name: &str, keys: &[&str]) -> ConfigError {
    let variable = |keys: &[&str]| format!("DQ_{}", keys.join("__").to_ascii_uppercase());
    let variables = defaults.iter().flat_map(|(key, value)| match value.as_table() {
        Some(section) => section.keys().map(|inner| variable(&[key, inner])).collect(),
        None => vec![variable(&[key])],
    });
    let variables: Vec<String> = variables.collect();
    let known: Vec<&str> = variables.iter().map(String::as_str).collect();
    let hint = nearest(name, &known).map_or(String::new(), |meant| format!(": did you mean {meant}?"));
    ConfigError::key(
        name,
        format!("there is no key {} (sections and keys are joined by `__`){hint}", keys.join(".")),
    )
}

fn typed(default: &Value, name: &str, text: String) -> Result<Value, ConfigError> {
    if default.is_str() {
        return Ok(Value::String(text));
    }
    let parsed: Option<Value> = format!("x = {text}").parse().ok().and_then(|mut t: Table| t.remove("x"));
    parsed.filter(|v| v.same_type(default)).ok_or_else(|| {
        ConfigError::key(
            name,
            format!("{text:?} is not of the type {}, such as {default}", default.type_str()),
        )
    })
}

//! Finds the key that was probably meant, if a key does not exist.

use toml::Value;

use model::topic::Setting;

/// Names the key that was probably meant, if the problem is an unknown key. Returns other problems as they are.
pub fn with_suggestion(problem: String) -> String {
    let Some((name, known)) = problem.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'))
    else {
        return problem;
    };
    // After the known names, the message may name the table. This part is cut off.
    let known = known.split(", in `").next().unwrap_or_default();
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let hint = match nearest(name, &known) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => match sections_with(name) {
            sections if sections.is_empty() => return problem,
            sections => format!("this key belongs {}", sections.join(", or ")),
        },
    };
    format!("unknown field `{name}`: {hint}")
}

/// Returns the known name that is spelled almost like `name`. If there is none, returns a known name with which `name`
/// begins.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
    let name = plain(name);
    let distance = |known: &&&str| strsim::osa_distance(&plain(known), &name);
    let allowed = if name.len() > 5 { 2 } else { 1 };
    let slip = known.iter().min_by_key(distance).filter(|known| distance(known) <= allowed);
    let begins = || known.iter().find(|known| known.len() > 3 && name.starts_with(&plain(known)));
    slip.or_else(begins).copied()
}

/// Returns the places of the file where a key with this name is valid.
fn sections_with(name: &str) -> Vec<String> {
    let keys = super::shown_keys();
    let mut places = Vec::new();
    if keys.get(name).is_some_and(|value| !value.is_table()) {
        places.push("at the top of the file, before the first section".to_owned());
    }
    let sections = keys.iter().filter_map(|(section, value)| Some((section, value.as_table()?)));
    let sections = sections.filter(|(_, keys)| keys.get(name).is_some_and(|value: &Value| !value.is_table()));
    places.extend(sections.map(|(section, _)| format!("in [{section}]")));
    if Setting::named(name).is_some() {
        places.push("in [[topic]]".to_owned());
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_told_what_was_meant() {
        let said =
            |name: &str, known: &str| with_suggestion(format!("unknown field `{name}`, expected {known}"));
        let server = "one of `listen`, `auth`, `max_frame`, in `server`";
        for (name, hint) in [
            ("listn", "did you mean `listen`?"),
            ("listen_on", "did you mean `listen`?"),
            ("maxFrame", "did you mean `max_frame`?"),
            ("concurrency", "this key belongs in [consume]"),
            ("drain_timeout", "this key belongs at the top of the file, before the first section"),
            ("max_in_flight", "this key belongs in [[topic]]"),
        ] {
            let wanted = format!("unknown field `{name}`: {hint}");
            assert_eq!(said(name, server), wanted);
        }
        assert_eq!(
            said("frobnicate", "`cert` or `key`"),
            "unknown field `frobnicate`, expected `cert` or `key`"
        );
        assert_eq!(with_suggestion("other".into()), "other");
    }
}

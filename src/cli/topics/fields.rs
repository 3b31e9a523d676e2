//! The settings of a topic as options of the command line. The options are made from the declarations of the settings.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::super::failure::Failure;
use model::strict_json::StrictValue;
use model::topic::{Setting, SettingKind, Topic};

/// The fields that the API shows, but that cannot be set.
pub(super) const SHOWN_ONLY: [&str; 7] =
    ["source", "problem", "revision", "paused", "circuit", "circuit_until_ms", "circuit_reason"];

/// The option that sets a setting back to its default.
const UNSET: &str = "unset";

/// The settings that are given on the command line.
#[derive(Debug, Default)]
pub(super) struct TopicFields {
    /// Each setting, with the values of its option.
    pub given: Vec<(&'static Setting, Vec<String>)>,
    /// The names of the settings that go back to their defaults.
    unset: Vec<String>,
}

impl clap::Args for TopicFields {
    fn augment_args(command: Command) -> Command {
        let unset =
            Arg::new(UNSET).long(UNSET).value_name("FIELD").action(ArgAction::Append).help(
                "A field to set back to its default, such as max_in_flight; may be given several times",
            );
        let options = Topic::SETTINGS.iter().map(option).chain([unset]);
        command.args(options.map(|option| option.help_heading("What is set")))
    }

    fn augment_args_for_update(command: Command) -> Command {
        TopicFields::augment_args(command)
    }
}

impl clap::FromArgMatches for TopicFields {
    fn from_arg_matches(matches: &ArgMatches) -> Result<TopicFields, clap::Error> {
        let values = |id: &str| matches.get_many::<String>(id).into_iter().flatten().cloned().collect();
        let given = Topic::SETTINGS.iter().map(|setting| (setting, values(setting.name)));
        let given = given.filter(|(_, values): &(_, Vec<String>)| !values.is_empty()).collect();
        Ok(TopicFields { given, unset: values(UNSET) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = TopicFields::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the option for a setting. The option has the name of the setting, except if the values are given in another
/// form.
fn option(setting: &'static Setting) -> Arg {
    let (name, value, more) = match setting.kind {
        SettingKind::Headers => ("header", "HEADER", Some("Given as \"Name: value\"")),
        SettingKind::Secrets => ("secrets-file", "FILE", Some("Given as a file with one secret a line")),
        SettingKind::Retry => {
            (setting.name, "POLICY", Some("A list is separated by commas, such as 10s,1m,10m"))
        }
        SettingKind::Failures => (setting.name, "FAILURES", Some("Separated by commas")),
        SettingKind::Span { .. } => (setting.name, "SPAN", None),
        SettingKind::Count { .. } => (setting.name, "NUMBER", None),
        SettingKind::Rate { .. } => (setting.name, "RATE", None),
        SettingKind::Bytes { .. } => (setting.name, "SIZE", None),
        SettingKind::CatchUp { .. } | SettingKind::Success { .. } => (setting.name, "RULE", None),
        SettingKind::Durability => (setting.name, "LEVEL", None),
        SettingKind::Moment => (setting.name, "WHEN", None),
        SettingKind::Words(_) => (setting.name, "WORD", None),
        SettingKind::Switch => (setting.name, "true|false", None),
        SettingKind::Text { .. } | SettingKind::Texts => (setting.name, "TEXT", None),
    };
    let is_list = matches!(setting.kind, SettingKind::Texts | SettingKind::Headers);
    let several = is_list.then_some("May be given several times; replaces all that were set before");
    let sentences = [Some(setting.about().trim_end_matches('.')), more, several];
    let help = sentences.into_iter().flatten().collect::<Vec<_>>().join(". ").replace('`', "");
    let option = Arg::new(setting.name)
        .long(name.replace('_', "-"))
        .value_name(value)
        .help(help)
        .action(if is_list { ArgAction::Append } else { ArgAction::Set });
    match setting.kind {
        SettingKind::Words(words) => option.value_parser(PossibleValuesParser::new(words)).ignore_case(true),
        SettingKind::Switch => option.value_parser(PossibleValuesParser::new(["true", "false"])),
        SettingKind::Count { .. } => {
            option.value_parser(|text: &str| text.parse().map(|n: u32| n.to_string()))
        }
        _ => option,
    }
}

impl TopicFields {
    /// Returns the fields that are given, with the API's names. Null sets a field back to its default.
    pub(super) fn object(&self) -> Result<Map<String, Value>> {
        let mut object = Map::new();
        for (setting, values) in &self.given {
            object.insert(setting.name.to_owned(), value(setting, values)?);
        }
        for name in &self.unset {
            let name = name.replace('-', "_");
            if object.insert(name.clone(), Value::Null).is_some_and(|given| !given.is_null()) {
                return Err(Failure::Usage(format!("{name} is set and unset: say one of them")).into());
            }
        }
        Ok(object)
    }
}

/// Makes the value of a setting, in the form that the API takes, from the values of the option.
fn value(setting: &Setting, values: &[String]) -> Result<Value> {
    let text = values.last().map_or("", String::as_str);
    let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    Ok(match setting.kind {
        SettingKind::Words(words) => {
            let known = words.iter().find(|word| word.eq_ignore_ascii_case(text));
            json!(known.map_or(text, |word| *word))
        }
        SettingKind::Count { .. } => json!(text.parse::<u32>()?),
        SettingKind::Switch => json!(text == "true"),
        SettingKind::Retry if !matches!(text, "2n+1" | "exponential") => parts().collect(),
        SettingKind::Failures => parts().collect(),
        SettingKind::Texts => json!(values),
        SettingKind::Headers => {
            let mut headers = Map::new();
            for line in values {
                let (name, value) = header(line)?;
                if headers.keys().any(|known: &String| known.eq_ignore_ascii_case(&name)) {
                    return Err(Failure::Usage(format!("--header {name:?} is given twice")).into());
                }
                headers.insert(name, value);
            }
            Value::Object(headers)
        }
        SettingKind::Secrets => {
            let text = super::super::add::given(&format!("@{text}"))?;
            let secrets: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            if secrets.is_empty() {
                let problem =
                    "the file of --secrets-file holds no secret (--unset secrets removes all secrets)";
                return Err(Failure::Usage(problem.to_owned()).into());
            }
            json!(secrets)
        }
        _ => json!(text),
    })
}

fn header(line: &str) -> Result<(String, Value)> {
    let parts = line.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
    match parts.filter(|(name, _)| !name.is_empty()) {
        Some((name, value)) => Ok((name.to_owned(), json!(value))),
        None => Err(Failure::Usage(format!("--header {line:?} is no header, such as \"X-Shop: 1\"")).into()),
    }
}

/// Returns the fields of the topic in a file. The file is JSON or TOML. In TOML, the fields may also be under
/// `[[topic]]`, as in the configuration.
pub(super) fn of_file(text: &str) -> Result<Map<String, Value>, String> {
    let StrictValue(value) = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|e| e.to_string())?
    } else {
        toml::from_str(text).map_err(|e| e.to_string().trim_end().replace('\n', "\n  "))?
    };
    let Value::Object(mut object) = value else { return Err("it is no object".to_owned()) };
    match object.remove("topic") {
        None => Ok(object),
        Some(Value::Array(mut topics)) if object.is_empty() && topics.len() == 1 => match topics.pop() {
            Some(Value::Object(topic)) => Ok(topic),
            _ => Err("topic is no section".to_owned()),
        },
        Some(_) => Err("it holds more than the fields of one topic".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestCommandLine {
        #[command(flatten)]
        fields: TopicFields,
    }

    fn object(line: &str) -> Result<Value> {
        let words = std::iter::once("set").chain(line.split('|'));
        TestCommandLine::try_parse_from(words).unwrap().fields.object().map(Value::Object)
    }

    #[test]
    fn only_what_is_said_is_sent_and_by_the_configurations_names() {
        assert_eq!(
            object("--callback|http://h/|--delay|5m|--method|get|--max-attempts|3|--retry|10s, 1m").unwrap(),
            json!({"callback": "http://h/", "delay": "5m", "method": "GET", "max_attempts": 3, "retry": ["10s", "1m"]})
        );
        assert_eq!(
            object(
                "--header|X-A: 1:2|--header|b:|--alert|a@b|--retry|2n+1|--unset|max-in-flight|--unset|rate"
            )
            .unwrap(),
            json!({"headers": {"X-A": "1:2", "b": ""}, "alert": ["a@b"], "retry": "2n+1", "max_in_flight": null, "rate": null})
        );
        assert!(object("--header|nothing").is_err());
        assert!(object("--rate|1|--unset|rate").unwrap_err().to_string().contains("rate is set and unset"));
    }

    #[test]
    fn a_file_is_json_or_toml_or_a_section_of_the_configuration() {
        let topic = json!({"name": "t", "callback": "http://h/", "retry": ["1s"]});
        for text in [
            topic.to_string().as_str(),
            "name = \"t\"\ncallback = \"http://h/\"\nretry = [\"1s\"]",
            "# as in dq.toml\n[[topic]]\nname = \"t\"\ncallback = \"http://h/\"\nretry = [\"1s\"]",
        ] {
            assert_eq!(Value::Object(of_file(text).unwrap()), topic, "{text}");
        }
        for bad in [
            "1",
            "{",
            "[server]\n[[topic]]\nname = \"t\"",
            "[[topic]]\n[[topic]]",
            "name = \"t\"\ndelay = inf",
            r#"{"name": "t", "delay": 1, "delay": 2}"#,
        ] {
            assert!(of_file(bad).is_err(), "{bad}");
        }
    }
}

//! The fields of a topic, as the command line takes them and the API has them: the configuration's names.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::super::failure::Failure;

/// What the API shows of a topic, and nobody sets.
pub(super) const SHOWN_ONLY: [&str; 7] =
    ["source", "problem", "revision", "paused", "circuit", "circuit_until_ms", "circuit_reason"];

/// What may be set.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "What is set")]
pub(super) struct Fields {
    /// The URL that is called
    #[arg(long, value_name = "URL")]
    pub callback: Option<String>,

    /// What people call it
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,

    /// Not shown: there is one mode, and the daemon says so of any other
    #[arg(long, value_name = "MODE", hide = true)]
    mode: Option<String>,

    /// POST or GET
    #[arg(long, value_name = "METHOD", value_parser = ["POST", "GET"], ignore_case = true)]
    method: Option<String>,

    /// json: the body as it was given; form: a field for each of its keys
    #[arg(long, value_name = "KIND", value_parser = ["json", "form"])]
    payload: Option<String>,

    /// A header beside dq's own, "Name: value"; may be given again, all of them are set together
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,

    /// When a job is due whose add does not say: "5m"
    #[arg(long, value_name = "SPAN")]
    delay: Option<String>,

    /// The longest that one callback may take: "3s"
    #[arg(long, value_name = "SPAN")]
    timeout: Option<String>,

    /// The longest that a connection may take to be made: "1s"
    #[arg(long, value_name = "SPAN")]
    connect_timeout: Option<String>,

    /// Which answers accept a job: "status" (any 2xx), "non_empty", or an expression
    #[arg(long, value_name = "RULE")]
    success: Option<String>,

    /// When it is true of an answer that was a success, the job is delivered again: "{res.code} != 0"
    #[arg(long, value_name = "RULE")]
    re_notify_flag: Option<String>,

    /// When a failed delivery comes again: "2n+1", "exponential", or spans with commas between: "10s,1m,10m"
    #[arg(long, value_name = "POLICY")]
    retry: Option<String>,

    /// The first span of "2n+1" and "exponential"
    #[arg(long, value_name = "SPAN")]
    retry_base: Option<String>,

    /// The longest span of "exponential"
    #[arg(long, value_name = "SPAN")]
    retry_cap: Option<String>,

    /// After which failures it comes again: connect, timeout, broken, answer, 503, 5xx, with commas between; else never
    #[arg(long, value_name = "FAILURES")]
    retry_on: Option<String>,

    /// How many deliveries are tried before a job is a dead letter
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,

    /// How long a receiver may take that says that it answers later: "1h"; "0s": none may
    #[arg(long, value_name = "SPAN")]
    answer_later: Option<String>,

    /// How many callbacks run at the same time, at most
    #[arg(long, value_name = "NUMBER")]
    max_in_flight: Option<u32>,

    /// How many callbacks begin in a span, at most: "100/s", "30/m", "500/h"
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,

    /// After so many failures of the receiver, one after the other, its jobs wait; 0: never
    #[arg(long, value_name = "NUMBER")]
    breaker_failures: Option<u32>,

    /// For how long they wait, the first time: "10s"
    #[arg(long, value_name = "SPAN")]
    breaker_pause: Option<String>,

    /// What became due while nobody could deliver it: "all", "spread 10m" or "skip older than 1h"
    #[arg(long, value_name = "RULE")]
    catch_up: Option<String>,

    /// Which topics are served before which
    #[arg(long, value_name = "PRIORITY", value_parser = ["high", "normal", "low"])]
    priority: Option<String>,

    /// Who is told of dead letters; may be given again, all of them are set together
    #[arg(long, value_name = "ADDRESS")]
    alert: Vec<String>,

    /// Who registered it
    #[arg(long, value_name = "NAME")]
    creator: Option<String>,

    /// online, or offline: adds are refused, and what is stored is still delivered
    #[arg(long, value_name = "STATUS", value_parser = ["online", "offline"])]
    status: Option<String>,

    /// A file with what callbacks are signed with, one secret a line; all of them sign
    #[arg(long, value_name = "FILE")]
    secrets_file: Option<std::path::PathBuf>,

    /// Not shown: no jobs are kept that were accepted, and the daemon says so
    #[arg(long, value_name = "SPAN", hide = true)]
    keep_done: Option<String>,

    /// For how long dead letters are kept; "0s": for ever
    #[arg(long, value_name = "SPAN")]
    keep_dead: Option<String>,

    /// A field that becomes what it is by default, such as max_in_flight; may be given again
    #[arg(long, value_name = "FIELD")]
    unset: Vec<String>,
}

impl Fields {
    /// What is said, by the API's names. Null: back to the default.
    pub(super) fn object(&self) -> Result<Map<String, Value>> {
        let mut object = Map::new();
        let texts = [
            ("callback", &self.callback),
            ("title", &self.title),
            ("mode", &self.mode),
            ("payload", &self.payload),
            ("delay", &self.delay),
            ("timeout", &self.timeout),
            ("connect_timeout", &self.connect_timeout),
            ("success", &self.success),
            ("re_notify_flag", &self.re_notify_flag),
            ("retry_base", &self.retry_base),
            ("retry_cap", &self.retry_cap),
            ("priority", &self.priority),
            ("creator", &self.creator),
            ("status", &self.status),
            ("answer_later", &self.answer_later),
            ("rate", &self.rate),
            ("breaker_pause", &self.breaker_pause),
            ("catch_up", &self.catch_up),
            ("keep_done", &self.keep_done),
            ("keep_dead", &self.keep_dead),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, json!(text.as_ref()?))));
        let numbers = [
            ("max_attempts", self.max_attempts),
            ("max_in_flight", self.max_in_flight),
            ("breaker_failures", self.breaker_failures),
        ];
        let numbers = numbers.into_iter().filter_map(|(name, number)| Some((name, json!(number?))));
        object.extend(texts.chain(numbers).map(|(name, value)| (name.to_owned(), value)));
        if let Some(method) = &self.method {
            object.insert("method".into(), json!(method.to_ascii_uppercase()));
        }
        if let Some(retry) = &self.retry {
            object.insert("retry".into(), policy(retry));
        }
        if let Some(failures) = &self.retry_on {
            let failures: Vec<&str> = failures.split(',').map(str::trim).filter(|f| !f.is_empty()).collect();
            object.insert("retry_on".into(), json!(failures));
        }
        if !self.headers.is_empty() {
            let headers = self.headers.iter().map(|line| header(line)).collect::<Result<_>>()?;
            object.insert("headers".into(), Value::Object(headers));
        }
        if !self.alert.is_empty() {
            object.insert("alert".into(), json!(self.alert));
        }
        if let Some(file) = &self.secrets_file {
            let text = super::super::add::given(&format!("@{}", file.display()))?;
            let secrets: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            object.insert("secrets".into(), json!(secrets));
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

/// A policy's name, or its spans.
fn policy(text: &str) -> Value {
    let is_name = matches!(text, "2n+1" | "exponential");
    if is_name { json!(text) } else { text.split(',').map(str::trim).collect::<Vec<_>>().into() }
}

fn header(line: &str) -> Result<(String, Value)> {
    let parts = line.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
    match parts.filter(|(name, _)| !name.is_empty()) {
        Some((name, value)) => Ok((name.to_owned(), json!(value))),
        None => Err(Failure::Usage(format!("--header {line:?} is no header, such as \"X-Shop: 1\"")).into()),
    }
}

/// A topic in a file: the fields as JSON, or as TOML, where they may also stand under `[[topic]]` as in the configuration.
pub(super) fn of_file(text: &str) -> Result<Map<String, Value>, String> {
    let value: Value = if text.trim_start().starts_with('{') {
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
    struct Line {
        #[command(flatten)]
        fields: Fields,
    }

    fn object(line: &str) -> Result<Value> {
        let words = std::iter::once("set").chain(line.split('|'));
        Line::try_parse_from(words).unwrap().fields.object().map(Value::Object)
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
        for bad in ["1", "{", "[server]\n[[topic]]\nname = \"t\"", "[[topic]]\n[[topic]]"] {
            assert!(of_file(bad).is_err(), "{bad}");
        }
    }
}

//! The fields of a topic: options of the command line, and fields of the API, which have the names of the
//! configuration.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::super::failure::Failure;

/// The fields that the API shows, but that cannot be set.
pub(super) const SHOWN_ONLY: [&str; 7] =
    ["source", "problem", "revision", "paused", "circuit", "circuit_until_ms", "circuit_reason"];

/// The options that set fields.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "What is set")]
pub(super) struct TopicFields {
    /// The callback URL
    #[arg(long, value_name = "URL")]
    pub callback: Option<String>,

    /// A title for people
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,

    /// Hidden: there is only one mode, and the daemon reports any other as a problem
    #[arg(long, value_name = "MODE", hide = true)]
    mode: Option<String>,

    /// The method of callbacks: POST or GET
    #[arg(long, value_name = "METHOD", value_parser = ["POST", "GET"], ignore_case = true)]
    method: Option<String>,

    /// The form of the request's body: json sends the body as it was given; form sends a field for each of its keys
    #[arg(long, value_name = "KIND", value_parser = ["json", "form"])]
    payload: Option<String>,

    /// A header for callbacks in addition to dq's own: "Name: value"; may be given several times. The headers replace
    /// all that were set before
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,

    /// The delay of jobs that are added without a due time: "5m"
    #[arg(long, value_name = "SPAN")]
    delay: Option<String>,

    /// The longest time for one callback: "3s"
    #[arg(long, value_name = "SPAN")]
    timeout: Option<String>,

    /// The longest time to connect: "1s"
    #[arg(long, value_name = "SPAN")]
    connect_timeout: Option<String>,

    /// Which answers accept a job: "status" (any 2xx), "non_empty", or an expression
    #[arg(long, value_name = "RULE")]
    success: Option<String>,

    /// If this expression is true for a successful answer, the job is delivered again: "{res.code} != 0"
    #[arg(long, value_name = "RULE")]
    re_notify_flag: Option<String>,

    /// The delays between attempts: "2n+1", "exponential", or spans separated by commas: "10s,1m,10m"
    #[arg(long, value_name = "POLICY")]
    retry: Option<String>,

    /// The first span of "2n+1" and "exponential"
    #[arg(long, value_name = "SPAN")]
    retry_base: Option<String>,

    /// The longest span of "exponential"
    #[arg(long, value_name = "SPAN")]
    retry_cap: Option<String>,

    /// The failures after which a job is tried again, separated by commas: connect, timeout, broken, answer, 503, 5xx.
    /// Any other failure makes it a dead letter
    #[arg(long, value_name = "FAILURES")]
    retry_on: Option<String>,

    /// How many attempts a job has before it becomes a dead letter
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,

    /// How long a receiver that answers later may take: "1h"; "0s": no receiver may answer later
    #[arg(long, value_name = "SPAN")]
    answer_later: Option<String>,

    /// The most callbacks that run at the same time
    #[arg(long, value_name = "NUMBER")]
    max_in_flight: Option<u32>,

    /// The most callbacks that begin in a span: "100/s", "30/m", "500/h"
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,

    /// After this many failures of the receiver in a row, the circuit opens and the jobs wait; 0: never
    #[arg(long, value_name = "NUMBER")]
    breaker_failures: Option<u32>,

    /// How long the jobs wait when the circuit opens for the first time: "10s"
    #[arg(long, value_name = "SPAN")]
    breaker_pause: Option<String>,

    /// What happens to jobs that became due while nobody could deliver them: "all", "spread 10m" or "skip older than
    /// 1h"
    #[arg(long, value_name = "RULE")]
    catch_up: Option<String>,

    /// How safe a change of its jobs is before it is answered: memory, fsync or replicas:1
    #[arg(long, value_name = "LEVEL")]
    durability: Option<String>,

    /// The topic's priority: high, normal or low; it decides which topics are served first
    #[arg(long, value_name = "PRIORITY", value_parser = ["high", "normal", "low"])]
    priority: Option<String>,

    /// An address that gets alerts about dead letters; may be given several times. The addresses replace all that were
    /// set before
    #[arg(long, value_name = "ADDRESS")]
    alert: Vec<String>,

    /// Who registered the topic
    #[arg(long, value_name = "NAME")]
    creator: Option<String>,

    /// online, or offline: adds are refused, and stored jobs are still delivered
    #[arg(long, value_name = "STATUS", value_parser = ["online", "offline"])]
    status: Option<String>,

    /// A file with the secrets that sign callbacks, one a line; each callback is signed with all of them
    #[arg(long, value_name = "FILE")]
    secrets_file: Option<std::path::PathBuf>,

    /// Hidden: jobs that were accepted are not kept, and the daemon reports this field as a problem
    #[arg(long, value_name = "SPAN", hide = true)]
    keep_done: Option<String>,

    /// How long dead letters are kept; "0s": for ever
    #[arg(long, value_name = "SPAN")]
    keep_dead: Option<String>,

    /// A field to set back to its default, such as max_in_flight; may be given several times
    #[arg(long, value_name = "FIELD")]
    unset: Vec<String>,
}

impl TopicFields {
    /// Returns the fields that are given, with the API's names. Null sets a field back to its default.
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
            ("durability", &self.durability),
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

/// Returns a retry policy as the API takes it: its name, or the list of its spans.
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

/// Returns the fields of the topic in a file. The file is JSON, or TOML, in which they may also be under `[[topic]]`,
/// as in the configuration.
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
        fields: TopicFields,
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

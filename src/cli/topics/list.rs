//! `dq topics list` and `dq topics show`.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::api::Api;
use super::super::show::{NOTHING, Table, cut, lines, moment, plain, raw_lines};
use super::super::target::TargetOptions;

/// List the topics of the configuration file and of the registry
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq topics list\n  dq topics list --json | jq -r .name")]
pub(super) struct TopicsListArguments {}

/// Show all fields of a topic
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq topics show orders\n  dq topics show orders --json > orders.json")]
pub(super) struct ShowTopic {
    /// The topic
    name: String,
}

#[derive(Debug, Deserialize)]
struct TopicList {
    topics: Vec<Box<RawValue>>,
    /// The rows of the registry that are not valid topics, each with the reason.
    #[serde(default)]
    unusable: Vec<String>,
}

/// Runs `dq topics list`.
pub(super) fn run(at: &TargetOptions) -> Result<()> {
    let TopicList { topics, unusable } = Api::from_options(at)?.get("/v1/topics")?.json()?;
    match at.json {
        true => raw_lines(&topics),
        false => print!("{}{}", table(&topics)?, notes(&topics, &unusable)?),
    }
    Ok(())
}

/// Runs `dq topics show`.
pub(super) fn show(at: &TargetOptions, ShowTopic { name }: &ShowTopic) -> Result<()> {
    let answer = Api::from_options(at)?.get(&super::path(name))?;
    match at.json {
        true => println!("{}", answer.raw()?.get()),
        false => print!("{}", page(&answer.json()?)),
    }
    Ok(())
}

/// Returns the value of a field as text.
fn words(value: &Value) -> String {
    match value {
        Value::Null => NOTHING.to_owned(),
        Value::String(text) if text.is_empty() => NOTHING.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) if all.is_empty() => NOTHING.to_owned(),
        Value::Array(all) => all.iter().map(words).collect::<Vec<_>>().join(", "),
        Value::Object(all) if all.is_empty() => NOTHING.to_owned(),
        Value::Object(all) => {
            all.iter().map(|(name, value)| format!("{name}: {}", words(value))).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// Returns the value of a field as text. A number of Unix milliseconds is shown as a date and a time.
fn fact(name: &str, value: &Value) -> String {
    match value.as_i64().filter(|_| name.ends_with("_until_ms")) {
        Some(ms) => moment(ms),
        None => words(value),
    }
}

fn page(topic: &Map<String, Value>) -> String {
    let facts: Vec<(&str, String)> =
        topic.iter().map(|(name, value)| (name.as_str(), fact(name, value))).collect();
    lines(&facts)
}

fn table(topics: &[Box<RawValue>]) -> Result<String> {
    let mut table =
        Table::new(&["NAME", "STATUS", "SOURCE", "DELAY", "RETRY", ">ATTEMPTS", "CALLBACK", "TITLE"]);
    for topic in topics {
        let topic: Map<String, Value> = serde_json::from_str(topic.get())?;
        let field = |name: &str| topic.get(name).map_or_else(|| NOTHING.to_owned(), words);
        let is_paused = topic.get("paused") == Some(&Value::Bool(true));
        let mut status = field("status");
        if is_paused {
            status += ", paused";
        }
        match field("circuit").as_str() {
            "open" => status += ", circuit open",
            "half_open" => status += ", circuit half open",
            _ => {}
        }
        if topic.get("problem").is_some_and(Value::is_string) {
            status += ", see below";
        }
        let callback =
            if field("mode") == "pull" { "(pull)".to_owned() } else { cut(&field("callback"), 60) };
        table.row([
            field("name"),
            status,
            field("source"),
            field("delay"),
            cut(&field("retry"), 24),
            field("max_attempts"),
            callback,
            cut(&field("title"), 30),
        ]);
    }
    Ok(table.text())
}

/// Returns lines about the topics that dq cannot serve with their settings, and about the rows of the registry that are
/// not valid topics.
fn notes(topics: &[Box<RawValue>], unusable: &[String]) -> Result<String> {
    #[derive(Deserialize)]
    struct TopicWithProblem {
        name: String,
        #[serde(default)]
        problem: Option<String>,
    }
    let mut text = String::new();
    for topic in topics {
        let TopicWithProblem { name, problem } = serde_json::from_str(topic.get())?;
        if let Some(problem) = problem {
            text += &format!("\n{name}: {}", plain(&problem));
        }
    }
    text.extend(unusable.iter().map(|why| format!("\nleft out of what the registry has: {}", plain(why))));
    if !text.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn topics_are_listed_and_shown_whatever_their_fields_are() {
        let topic = json!({"name": "orders", "title": "订单", "mode": "push", "callback": "http://h/", "status": "online",
            "source": "file", "delay": "5m", "retry": ["1s", "1m"], "max_attempts": 10, "paused": true, "circuit": "open", "rate": null,
            "circuit_until_ms": 864000000, "headers": {"X-A": "1"}});
        let raw = RawValue::from_string(topic.to_string()).unwrap();
        let text = table(&[raw]).unwrap();
        let row: Vec<&str> =
            text.lines().nth(1).unwrap().split("  ").map(str::trim).filter(|w| !w.is_empty()).collect();
        assert_eq!(
            row,
            ["orders", "online, paused, circuit open", "file", "5m", "1s, 1m", "10", "http://h/", "订单"]
        );
        let held = json!({"name": "held", "status": "online", "problem": "held: method: \"PUT\""});
        let all = [&topic, &held].map(|topic| RawValue::from_string(topic.to_string()).unwrap());
        assert!(table(&all).unwrap().contains("online, see below"), "{}", table(&all).unwrap());
        assert_eq!(
            notes(&all, &["row 3: no url".to_owned()]).unwrap(),
            "\nheld: held: method: \"PUT\"\nleft out of what the registry has: row 3: no url\n"
        );
        assert_eq!(notes(&all[..1], &[]).unwrap(), "");
        let page = page(topic.as_object().unwrap());
        assert!(page.contains("headers           X-A: 1\n") && page.contains(" -\n"), "{page}");
        assert!(page.contains("circuit_until_ms  1970-01-1"), "{page}");
    }
}

//! `dq topics set`: changes some fields of a topic or registers it, or sets all its fields from a file.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use serde_json::{Map, Value};

use super::super::add::given;
use super::super::api::{Api, HttpAnswer};
use super::super::failure::Failure;
use super::super::target::TargetOptions;
use super::fields::{self, SHOWN_ONLY, TopicFields};

/// Register a topic, or change one
///
/// Only the fields that are given are changed. If there is no such topic, it is registered, and its other fields get
/// their defaults. With --file, the topic becomes what the file says, and fields that the file leaves out get their
/// defaults. But if the file has only the number of the secrets, as `dq topics show --json` prints it, the fields that
/// the file leaves out stay as they are. A change takes effect everywhere within two seconds. Topics of the
/// configuration file can be changed only in that file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq topics set orders --callback https://shop.example/hook --delay 30m
  dq topics set orders --retry 10s,1m,10m --max-attempts 3
  dq topics set orders --unset max_in_flight
  dq topics set --file orders.toml
  dq topics show orders --json > orders.json; dq topics set --file orders.json")]
pub(super) struct TopicsSetArguments {
    /// The topic
    #[arg(required_unless_present = "file")]
    name: Option<String>,

    /// A file with the topic's fields, as JSON or TOML; - reads stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Change the topic only if it still has this revision
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<String>,

    #[command(flatten)]
    fields: TopicFields,
}

/// Runs `dq topics set`.
pub(super) fn run(at: &TargetOptions, arguments: &TopicsSetArguments) -> Result<()> {
    let said = arguments.fields.object()?;
    // The number of secrets, if the file has this number in place of the secrets.
    let mut lacks_secrets = None;
    let (name, topic, is_whole) = match &arguments.file {
        None => (arguments.name.clone().unwrap_or_default(), said, false),
        Some(file) => {
            let file = file.display().to_string();
            let text = given(&if file == "-" { file.clone() } else { format!("@{file}") })?;
            let wrong = |why: String| anyhow!(Failure::Usage(format!("{file}: {why}")));
            let mut topic = fields::of_file(&text).map_err(wrong)?;
            let name = name_of(&mut topic, arguments.name.as_deref()).map_err(wrong)?;
            // The API shows how many secrets a topic has, not the secrets. If the file has only this number, the
            // secrets stay as they are.
            let is_shown = topic.get("secrets").is_some_and(Value::is_number);
            lacks_secrets = topic.get("secrets").and_then(Value::as_u64).filter(|n| *n > 0);
            let is_left_out = |name: &str| SHOWN_ONLY.contains(&name) || is_shown && name == "secrets";
            topic.retain(|name, _| !is_left_out(name));
            if said.contains_key("secrets") {
                lacks_secrets = None;
            }
            topic.extend(said);
            (name, topic, !is_shown)
        }
    };
    if topic.is_empty() {
        let message = "no field of the topic is given: use --callback or other options, or --file";
        return Err(Failure::Usage(message.to_owned()).into());
    }
    let changes_callback = topic.contains_key("callback");
    let revision =
        arguments.if_revision.as_ref().map(|revision| format!("\"{}\"", revision.trim_matches('"')));
    let (outcome, answer) = send(
        &Api::from_options(at)?,
        &super::path(&name),
        topic,
        is_whole,
        lacks_secrets,
        revision.as_deref(),
    )?;
    if at.json {
        // Some answers have no body.
        match answer.raw() {
            Ok(raw) => println!("{}", raw.get()),
            Err(_) => super::done(at, &name, outcome)?,
        }
        return Ok(());
    }
    super::done(at, &name, outcome)?;
    if let Some(hint) = open_circuit(changes_callback, &answer, &name) {
        println!("{hint}");
    }
    Ok(())
}

/// Returns a hint that says how to call the new callback of a topic at once. `None`: the topic has no new callback, or
/// its circuit is not open.
fn open_circuit(changes_callback: bool, answer: &HttpAnswer, name: &str) -> Option<String> {
    let topic: Value = answer.json().ok().filter(|_| changes_callback)?;
    let is_open = topic.get("circuit").and_then(Value::as_str).is_some_and(|circuit| circuit == "open");
    is_open.then(|| {
        format!(
            "the circuit of the topic is open, so its jobs still wait. To call the new callback now: dq topics resume {name}"
        )
    })
}

/// Sends the fields of a topic. With `is_whole`, they replace the topic. Otherwise they change the topic, or register
/// it if it does not exist.
fn send(
    api: &Api,
    path: &str,
    mut topic: Map<String, Value>,
    is_whole: bool,
    lacks_secrets: Option<u64>,
    revision: Option<&str>,
) -> Result<(&'static str, HttpAnswer)> {
    let expected = revision.map(|revision| ("if-match", revision));
    if is_whole {
        let answer = api.ask_with("PUT", path, expected.as_slice(), &topic)?;
        return Ok(("set", answer));
    }
    match api.ask_with("PATCH", path, expected.as_slice(), &topic) {
        Ok(answer) => Ok(("changed", answer)),
        Err(e) if Failure::is_unknown_topic(&e) && revision.is_none() => {
            if let Some(n) = lacks_secrets {
                let problem = format!(
                    "the topic is not registered here, and the file has the number of its secrets ({n}), not the \
                     secrets: give them with --secrets-file, or --unset secrets"
                );
                return Err(Failure::Usage(problem).into());
            }
            topic.retain(|_, value| !value.is_null());
            // If somebody else registers the topic meanwhile, that topic stays.
            let made = api.ask_with("PUT", path, &[("if-none-match", "*")], &topic);
            Ok(("made", made.context("there is no such topic yet, and it cannot be registered")?))
        }
        Err(e) => Err(e),
    }
}

/// Takes the name out of the fields of a file. The file needs no name if the command line gives the name.
fn name_of(topic: &mut Map<String, Value>, said: Option<&str>) -> Result<String, String> {
    match (topic.remove("name"), said) {
        (None, Some(said)) => Ok(said.to_owned()),
        (Some(Value::String(name)), None) => Ok(name),
        (Some(Value::String(name)), Some(said)) if name == said => Ok(name),
        (Some(name), Some(said)) => Err(format!("it is about topic {name}, not {said:?}")),
        (Some(name), None) => Err(format!("name is {name}, which is not a text")),
        (None, None) => Err("name is missing".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use model::topic::Setting;

    use super::super::super::receiver::{CallbackReceiver, HandlerAnswer as Said, ReceivedRequest};
    use super::*;

    /// A stand-in for a daemon that has one topic, `there`.
    fn stand_in() -> (TargetOptions, Arc<Mutex<Vec<ReceivedRequest>>>) {
        let calls: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let kept = Arc::clone(&calls);
        let answer = move |call: ReceivedRequest| {
            let is_there = call.path.ends_with("/there");
            kept.lock().unwrap().push(call.clone());
            match (call.method.as_str(), is_there) {
                ("GET", _) => Said::new(200, r#"{"circuit":"open"}"#),
                ("PATCH", false) => Said::new(404, r#"{"code":"unknown_topic","detail":"no topic"}"#),
                _ => Said::new(200, "{}"),
            }
        };
        let receiver = CallbackReceiver::start(([127, 0, 0, 1], 0).into(), Arc::new(answer)).unwrap();
        let at =
            TargetOptions { url: Some(format!("http://{}", receiver.address)), ..TargetOptions::default() };
        (at, calls)
    }

    fn arguments(name: &str, file: Option<PathBuf>) -> TopicsSetArguments {
        let mut fields = TopicFields::default();
        let callback = Setting::named("callback").unwrap();
        fields.given.extend(file.is_none().then(|| (callback, vec!["http://h/".to_owned()])));
        TopicsSetArguments {
            name: (!name.is_empty()).then(|| name.to_owned()),
            file,
            if_revision: None,
            fields,
        }
    }

    fn asked(calls: &Arc<Mutex<Vec<ReceivedRequest>>>) -> Vec<(String, Value)> {
        let calls = std::mem::take(&mut *calls.lock().unwrap());
        let one = |c: ReceivedRequest| {
            let expected = c.headers.get("if-none-match").or(c.headers.get("if-match"));
            let expected = expected.map_or(String::new(), |e| format!(" {e}"));
            (format!("{} {}{expected}", c.method, c.path), serde_json::from_str(&c.body).unwrap())
        };
        calls.into_iter().map(one).collect()
    }

    #[test]
    fn fields_change_a_topic_and_make_one_where_there_is_none() {
        let (at, calls) = stand_in();
        run(&at, &arguments("there", None)).unwrap();
        let sent = json!({"callback": "http://h/"});
        assert_eq!(asked(&calls), [("PATCH /v1/topics/there".to_owned(), sent.clone())]);
        run(&at, &arguments("new", None)).unwrap();
        let expected = [
            ("PATCH /v1/topics/new".to_owned(), sent.clone()),
            ("PUT /v1/topics/new *".to_owned(), sent.clone()),
        ];
        assert_eq!(asked(&calls), expected);
        // If a revision is given, a topic that does not exist is not registered.
        let changed = TopicsSetArguments { if_revision: Some("1f".into()), ..arguments("new", None) };
        assert!(run(&at, &changed).is_err());
        assert_eq!(asked(&calls), [("PATCH /v1/topics/new \"1f\"".to_owned(), sent)]);
    }

    #[test]
    fn a_new_callback_behind_an_open_circuit_is_told() {
        let answer = Api::from_options(&stand_in().0).unwrap().get("/v1/topics/there").unwrap();
        let hint = open_circuit(true, &answer, "there").unwrap();
        assert!(hint.ends_with("dq topics resume there"), "{hint}");
        assert_eq!(open_circuit(false, &answer, "there"), None);
    }

    #[test]
    fn a_file_replaces_a_topic_and_a_shown_one_keeps_its_secrets() {
        let (at, calls) = stand_in();
        let dir = tempfile::tempdir().unwrap();
        let file = |text: Value| {
            let path = dir.path().join("topic.json");
            std::fs::write(&path, text.to_string()).unwrap();
            Some(path)
        };
        run(&at, &arguments("", file(json!({"name": "there", "callback": "http://x/"})))).unwrap();
        assert_eq!(asked(&calls), [("PUT /v1/topics/there".to_owned(), json!({"callback": "http://x/"}))]);
        let shown = json!({"name": "there", "rate": null, "secrets": 1, "source": "registry", "problem": null, "revision": "1", "paused": false});
        run(&at, &arguments("there", file(shown))).unwrap();
        assert_eq!(asked(&calls), [("PATCH /v1/topics/there".to_owned(), json!({"rate": null}))]);
        // A topic as `dq topics show` prints it has no secrets. So no new topic is registered from it.
        let shown = json!({"name": "new", "callback": "http://x/", "secrets": 1});
        let refused = run(&at, &arguments("", file(shown))).unwrap_err().to_string();
        assert!(refused.contains("the number of its secrets (1)"), "{refused}");
        assert_eq!(asked(&calls).len(), 1);
        assert!(run(&at, &arguments("other", file(json!({"name": "there"})))).is_err());
        assert!(run(&at, &arguments("", file(json!({"rate": 1})))).is_err());
        assert_eq!(asked(&calls), []);
    }
}

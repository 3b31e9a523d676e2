//! What webhooks are sent: a plain JSON document, or what a template makes of it. In a template values are JSON by themselves, with
//! their quotes: `{"text": {{ text }}}`.

use jiff::tz::TimeZone;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use super::text::{Message, moment};
use super::{DeadJob, Notice, State};

/// Its ending says that values are written as JSON.
const NAME: &str = "webhook.json";

/// More than this no template needs to be rendered: one that does is refused instead of keeping its thread for ever.
const FUEL: u64 = 1_000_000;

/// A template that can be rendered.
#[derive(Debug)]
pub struct Template(Environment<'static>);

/// What a template can speak of, and the document that is sent without one.
#[derive(Serialize)]
struct Document<'a> {
    host: &'a str,
    subject: &'a str,
    text: &'a str,
    alerts: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Told<'a> {
    kind: &'a str,
    state: State,
    title: &'a str,
    detail: &'a str,
    topic: Option<&'a str>,
    node: Option<&'a str>,
    process: Option<&'a str>,
    since: String,
    at: String,
    since_ms: i64,
    at_ms: i64,
    count: u64,
    jobs: &'a [DeadJob],
}

impl<'a> Document<'a> {
    fn of(message: &'a Message, zone: &TimeZone) -> Document<'a> {
        let told = |notice: &'a Notice| Told {
            kind: &notice.kind,
            state: notice.state,
            title: &notice.title,
            detail: &notice.detail,
            topic: notice.topic.as_deref(),
            node: notice.node.as_deref(),
            process: notice.process.as_deref(),
            since: moment(notice.since_ms, zone),
            at: moment(notice.at_ms, zone),
            since_ms: notice.since_ms,
            at_ms: notice.at_ms,
            count: notice.count,
            jobs: &notice.jobs,
        };
        let Message { host, subject, text, notices } = message;
        Document { host, subject, text, alerts: notices.iter().map(told).collect() }
    }
}

/// The document that is sent without a template.
pub fn plain(message: &Message, zone: &TimeZone) -> String {
    serde_json::to_string(&Document::of(message, zone)).expect("a message is plain values")
}

impl Template {
    /// Reads a template, or says where it is wrong.
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut environment = Environment::new();
        // A name that is mistyped is told when the template is read, and not by what is missing from an alert.
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_recursion_limit(50);
        environment.set_fuel(Some(FUEL));
        environment.add_template_owned(NAME, text.to_owned()).map_err(|e| match e.line() {
            Some(line) => format!("line {line}: {e}"),
            None => e.to_string(),
        })?;
        let template = Template(environment);
        for state in [State::Open, State::Over, State::Event] {
            template.render(&sample(state), &TimeZone::UTC)?;
        }
        Ok(template)
    }

    /// What it makes of a message.
    pub fn render(&self, message: &Message, zone: &TimeZone) -> Result<String, String> {
        let rendered = self
            .0
            .get_template(NAME)
            .and_then(|t| t.render(minijinja::value::Serde(Document::of(message, zone))));
        rendered.map_err(|e| format!("{e:#}"))
    }

    /// Whether what it makes is JSON, whatever stands in a message.
    pub fn makes_json(&self) -> Result<(), String> {
        for state in [State::Open, State::Over, State::Event] {
            let made = self.render(&sample(state), &TimeZone::UTC)?;
            serde_json::from_str::<serde::de::IgnoredAny>(&made)
                .map_err(|e| format!("what it makes is no JSON: {e}; a value has its quotes already: {{\"text\": {{{{ text }}}}}}"))?;
        }
        Ok(())
    }
}

/// A message with all that may get in a template's way.
fn sample(state: State) -> Message {
    let hostile = "\"quotes\" \\ <b>'&\n\t中文 \u{1f4a9} {{ x }} {% y %} \u{0}".to_owned();
    let job = DeadJob { id: hostile.clone(), attempts: 1, reason: hostile.clone(), died_ms: 0 };
    let some = || (state != State::Over).then(|| hostile.clone());
    let notice = Notice {
        state,
        title: hostile.clone(),
        detail: hostile.clone(),
        topic: some(),
        node: some(),
        process: some(),
        jobs: vec![job],
        ..Notice::test(0)
    };
    Message { host: hostile.clone(), subject: hostile.clone(), text: hostile, notices: vec![notice] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_make_json_of_hostile_texts_and_say_all_of_it() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/alerts");
        let mut names = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let template = Template::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
            template.makes_json().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let message = sample(State::Event);
            let made: serde_json::Value =
                serde_json::from_str(&template.render(&message, &TimeZone::UTC).unwrap()).unwrap();
            // Somewhere the text stands as it was.
            fn strings(value: &serde_json::Value, found: &mut Vec<String>) {
                match value {
                    serde_json::Value::String(text) => found.push(text.clone()),
                    serde_json::Value::Array(all) => all.iter().for_each(|v| strings(v, found)),
                    serde_json::Value::Object(all) => all.values().for_each(|v| strings(v, found)),
                    _ => {}
                }
            }
            let mut found = Vec::new();
            strings(&made, &mut found);
            assert!(found.iter().any(|t| t.contains(&message.text)), "{}: {found:?}", path.display());
            names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
        names.sort();
        assert_eq!(names, ["dingtalk", "feishu", "slack", "wecom"]);
    }

    #[test]
    fn without_a_template_all_is_told_as_json() {
        let made: serde_json::Value =
            serde_json::from_str(&plain(&sample(State::Event), &TimeZone::UTC)).unwrap();
        assert_eq!(made["alerts"][0]["jobs"][0]["id"], sample(State::Event).text);
        assert_eq!(made["alerts"][0]["state"], "event");
    }

    #[test]
    fn a_template_that_is_wrong_is_refused() {
        for (text, why) in [
            ("{\"a\": {{ text }", "line 1"),
            ("{\"a\": {{ txet }}}", "undefined"),
            ("{% for a in alerts %}{{ a.colour }}{% endfor %}", "undefined"),
            ("{{ text | nofilter }}", "nofilter"),
        ] {
            let said = Template::parse(text).expect_err(text);
            assert!(said.contains(why), "{text}: {said}");
        }
        for text in ["{\"a\": \"{{ text }}\"}", "plainly {{ text }}", "{\"a\": {{ text|safe }}}"] {
            let said = Template::parse(text).unwrap().makes_json().expect_err(text);
            assert!(said.contains("no JSON"), "{said}");
        }
    }
}

//! The body of a webhook's request: a plain JSON document, or the output of a template. In a template, a value is
//! written as JSON, including its quotes: `{"text": {{ text }}}`. Ids and reasons in a text come from clients and
//! receivers. A chat service may find commands in such a text, for example `<!channel>`. So a template for such a
//! service uses a filter: `{{ text | slack }}` or `{{ text | no_tags }}`.

use jiff::tz::TimeZone;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use super::text::{Message, moment};
use super::{AlertPhase, DeadJob, Notice};

/// The name of the template. Its ending makes minijinja write values as JSON.
const NAME: &str = "webhook.json";

/// A template that needs more steps than this number is refused. Without this limit, a template could occupy the thread
/// for ever. No useful template needs so many steps.
const FUEL: u64 = 1_000_000;

/// A template that can be rendered.
#[derive(Debug)]
pub struct AlertTemplate(Environment<'static>);

/// The values that a template can use, and the document that is sent without a template.
#[derive(Serialize)]
struct AlertDocument<'a> {
    host: &'a str,
    subject: &'a str,
    text: &'a str,
    alerts: Vec<AlertValues<'a>>,
}

#[derive(Serialize)]
struct AlertValues<'a> {
    kind: &'a str,
    state: AlertPhase,
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

impl<'a> AlertDocument<'a> {
    fn new(message: &'a Message, zone: &TimeZone) -> AlertDocument<'a> {
        let values = |notice: &'a Notice| AlertValues {
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
        AlertDocument { host, subject, text, alerts: notices.iter().map(values).collect() }
    }
}

/// Returns the document that is sent without a template.
pub fn plain(message: &Message, zone: &TimeZone) -> String {
    serde_json::to_string(&AlertDocument::new(message, zone)).expect("a message is plain values")
}

impl AlertTemplate {
    /// Parses a template. An error says where the template is wrong.
    pub fn parse(text: &str) -> Result<AlertTemplate, String> {
        let mut environment = Environment::new();
        // With this setting, a name that is spelt wrongly is an error when the template is parsed. Otherwise, the alert
        // would have an empty text in this place.
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_recursion_limit(50);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("slack", |text: String| slack(&text));
        environment.add_filter("no_tags", |text: String| no_tags(&text));
        environment.add_template_owned(NAME, text.to_owned()).map_err(|e| match e.line() {
            Some(line) => format!("line {line}: {e}"),
            None => e.to_string(),
        })?;
        let template = AlertTemplate(environment);
        for message in samples() {
            template.render(&message, &TimeZone::UTC)?;
        }
        Ok(template)
    }

    /// Renders a message.
    pub fn render(&self, message: &Message, zone: &TimeZone) -> Result<String, String> {
        let rendered = self
            .0
            .get_template(NAME)
            .and_then(|t| t.render(minijinja::value::Serde(AlertDocument::new(message, zone))));
        rendered.map_err(|e| format!("{e:#}"))
    }

    /// Checks that the output is JSON for any content of a message.
    pub fn makes_json(&self) -> Result<(), String> {
        for message in samples() {
            let made = self.render(&message, &TimeZone::UTC)?;
            serde_json::from_str::<serde::de::IgnoredAny>(&made)
                .map_err(|e| format!("its output is not JSON: {e}; a value already has its quotes: {{\"text\": {{{{ text }}}}}}"))?;
        }
        Ok(())
    }
}

/// Escapes a text, so that Slack shows it and finds no mentions, links or other commands in it. Slack's documentation
/// of message formatting says that `&`, `<` and `>` must be escaped.
fn slack(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Replaces `<` and `>` by similar characters, for services that read tags such as `<at user_id="all">` and have no
/// other way to write these characters. Also puts a word joiner after each `@`, so that no service reads a mention.
fn no_tags(text: &str) -> String {
    text.replace('<', "\u{2039}").replace('>', "\u{203a}").replace('@', "@\u{2060}")
}

/// Makes messages of all kinds. Only alerts about dead letters have jobs. Such an alert may also have no jobs.
fn samples() -> [Message; 5] {
    let without_jobs = |state| {
        let mut message = sample(state);
        message.notices[0].jobs.clear();
        message
    };
    let mut several = sample(AlertPhase::Event);
    several.notices.extend(without_jobs(AlertPhase::Event).notices);
    let [open, over, event] = [AlertPhase::Open, AlertPhase::Over, AlertPhase::Event].map(without_jobs);
    [open, over, event, sample(AlertPhase::Event), several]
}

/// Makes a message with all kinds of text that may break the output of a template.
fn sample(state: AlertPhase) -> Message {
    let hostile =
        "\"quotes\" \\ <b>'& <!channel> <at user_id=\"all\"> @all\n\t中文 \u{1f4a9} {{ x }} {% y %} \u{0}"
            .to_owned();
    let job = DeadJob { id: hostile.clone(), attempts: 1, reason: hostile.clone(), died_ms: 0 };
    let some = || (state != AlertPhase::Over).then(|| hostile.clone());
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
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf/alerts");
        let mut names = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let template = AlertTemplate::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
            template.makes_json().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let message = sample(AlertPhase::Event);
            let made: serde_json::Value =
                serde_json::from_str(&template.render(&message, &TimeZone::UTC).unwrap()).unwrap();
            // One of the strings in the output must contain the whole text of the message, as the filter for this
            // service writes it.
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
            let expected = [slack(&message.text), no_tags(&message.text)];
            assert!(
                found.iter().any(|t| expected.iter().any(|expected| t.contains(expected))),
                "{}: {found:?}",
                path.display()
            );
            assert!(found.iter().all(|t| !t.contains("<b>") && !t.contains("<!channel>")), "{found:?}");
            names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
        names.sort();
        assert_eq!(names, ["dingtalk", "feishu", "slack", "wecom"]);
    }

    #[test]
    fn without_a_template_all_is_told_as_json() {
        let made: serde_json::Value =
            serde_json::from_str(&plain(&sample(AlertPhase::Event), &TimeZone::UTC)).unwrap();
        assert_eq!(made["alerts"][0]["jobs"][0]["id"], sample(AlertPhase::Event).text);
        assert_eq!(made["alerts"][0]["state"], "event");
    }

    #[test]
    fn a_template_that_is_wrong_is_refused() {
        for (text, why) in [
            ("{\"a\": {{ text }", "line 1"),
            ("{\"a\": {{ txet }}}", "undefined"),
            ("{% for a in alerts %}{{ a.colour }}{% endfor %}", "undefined"),
            ("{{ text | nofilter }}", "nofilter"),
            // Most alerts have no jobs.
            ("{% for a in alerts %}{{ a.jobs[0].id }}{% endfor %}", "undefined"),
            ("{% if alerts[0].state == \"event\" %}{{ alerts[0].jobs[0].id }}{% endif %}", "undefined"),
        ] {
            let said = AlertTemplate::parse(text).expect_err(text);
            assert!(said.contains(why), "{text}: {said}");
        }
        for text in ["{\"a\": \"{{ text }}\"}", "plainly {{ text }}", "{\"a\": {{ text|safe }}}"] {
            let said = AlertTemplate::parse(text).unwrap().makes_json().expect_err(text);
            assert!(said.contains("not JSON"), "{said}");
        }
    }
}

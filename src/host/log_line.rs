//! The lines of the log: as text, as logfmt, or as JSON.
//!
//! A record about a job has the fields `topic` and `id`. A record about a topic has the field `topic`. In text, these
//! fields stand before the message (`orders:42 failed …`, `orders: its receiver …`), so messages do not name the topic
//! and the id again.

use std::fmt::Write as _;
use std::os::fd::AsFd;

use jiff::Zoned;
use log::kv::{Error, Key, Value, VisitSource};
use log::{Level, Record};

use model::excerpt::{self, Excerpt};
use model::settings::LogFormat;

/// The length of the longest message of a line, in characters.
const LONGEST: usize = 2000;

/// How the lines of this process are written.
#[derive(Debug, Clone)]
pub(super) struct LogLineFormatter {
    /// The name of the process.
    pub name: String,
    pub pid: u32,
    pub format: LogFormat,
    /// Whether the journal of systemd reads the lines. The journal adds the time, and reads the level from the first
    /// characters of a line.
    pub to_journal: bool,
}

impl LogLineFormatter {
    /// Returns the line of a record, with a line break at its end.
    pub fn line(&self, record: &Record<'_>) -> String {
        let mut fields = Fields::default();
        // A field that cannot be read is left out.
        let _ = record.key_values().visit(&mut fields);
        let mut line = match self.format {
            LogFormat::Text => self.text(record, &fields),
            LogFormat::Logfmt => self.logfmt(record, &fields),
            LogFormat::Json => self.json(record, &fields),
        };
        if self.to_journal {
            line.insert_str(0, priority(record.level()));
        }
        line.push('\n');
        line
    }

    fn text(&self, record: &Record<'_>, fields: &Fields) -> String {
        let time = if self.to_journal { String::new() } else { time("%Y-%m-%d %H:%M:%S%.3f ") };
        let what = match (fields.get("topic"), fields.get("id")) {
            (Some(topic), Some(id)) => format!("{topic}:{} ", Excerpt(id)),
            (Some(topic), None) => format!("{topic}: "),
            _ => String::new(),
        };
        let (name, pid, message) = (&self.name, self.pid, message(&record.args().to_string()));
        format!("{time}{:<5} {name}[{pid}] {what}{message}", record.level())
    }

    /// Returns the names and values of a line in the order in which they are written.
    fn pairs(&self, record: &Record<'_>, fields: &Fields) -> Vec<(&'static str, LineValue)> {
        let mut pairs = Vec::with_capacity(9);
        if !self.to_journal {
            pairs.push(("time", LineValue::Text(time("%Y-%m-%dT%H:%M:%S%.3f%:z"))));
            pairs.push(("level", LineValue::Text(record.level().as_str().to_lowercase())));
        }
        pairs.push(("process", LineValue::Text(self.name.clone())));
        pairs.push(("pid", LineValue::Number(self.pid.into())));
        if let log @ ("request" | "notify") = record.target() {
            pairs.push(("log", LineValue::Text(log.to_owned())));
        }
        for (name, value) in &fields.0 {
            // In JSON, the value of `attempt` is a number.
            let value = match value.parse() {
                Ok(number) if *name == "attempt" => LineValue::Number(number),
                _ => LineValue::Text(value.clone()),
            };
            pairs.push((name, value));
        }
        pairs.push(("message", LineValue::Text(message(&record.args().to_string()))));
        pairs
    }

    fn logfmt(&self, record: &Record<'_>, fields: &Fields) -> String {
        let mut line = String::new();
        for (name, value) in self.pairs(record, fields) {
            let space = if line.is_empty() { "" } else { " " };
            let _ = match value {
                LineValue::Number(number) => write!(line, "{space}{name}={number}"),
                LineValue::Text(text) if is_bare(&text) => write!(line, "{space}{name}={text}"),
                // JSON escapes the quotation marks and the control characters.
                LineValue::Text(text) => {
                    write!(line, "{space}{name}={}", serde_json::Value::String(text))
                }
            };
        }
        line
    }

    fn json(&self, record: &Record<'_>, fields: &Fields) -> String {
        let mut line = String::from("{");
        for (name, value) in self.pairs(record, fields) {
            let comma = if line.len() == 1 { "" } else { "," };
            let value = match value {
                LineValue::Number(number) => number.into(),
                LineValue::Text(text) => serde_json::Value::String(text),
            };
            let _ = write!(line, "{comma}\"{name}\":{value}");
        }
        line.push('}');
        line
    }
}

enum LineValue {
    Text(String),
    Number(u64),
}

/// The fields of a record, in their order. Only the names that dq uses are written.
#[derive(Debug, Default)]
struct Fields(Vec<(&'static str, String)>);

const NAMES: [&str; 3] = ["topic", "id", "attempt"];

impl Fields {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        if let Some(name) = NAMES.into_iter().find(|name| *name == key.as_str()) {
            self.0.push((name, value.to_string()));
        }
        Ok(())
    }
}

fn time(format: &str) -> String {
    Zoned::now().strftime(format).to_string()
}

/// Returns whether logfmt can write this text without quotation marks.
fn is_bare(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c > ' ' && !matches!(c, '"' | '=' | '\\') && !c.is_control())
}

/// Returns the characters that tell the journal the level of a line (sd-daemon(3)).
fn priority(level: Level) -> &'static str {
    match level {
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

/// Returns whether systemd has connected this descriptor to its journal. systemd shows this in JOURNAL_STREAM
/// (systemd.exec(5)).
pub(super) fn is_journal(fd: impl AsFd) -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    nix::sys::stat::fstat(fd).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Returns the text of a record as one line of bounded length. A line break becomes a space, and a tab stays. All other
/// control characters are escaped. Text from outside was already cut by [`Excerpt`], so it is much shorter than this
/// bound.
fn message(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LONGEST));
    for (n, c) in text.chars().enumerate() {
        match c {
            _ if n == LONGEST => {
                line.push('…');
                break;
            }
            '\t' => line.push(c),
            '\n' | '\r' => line.push(' '),
            c if excerpt::is_escaped(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        assert_eq!(message("a\tb\r\nc\u{1b}[2J\u{202e}d"), "a\tb  c\\u{1b}[2J\\u{202e}d");
        let long = message(&"订".repeat(60_000));
        assert_eq!(long, "订".repeat(LONGEST) + "…");
        assert_eq!(message(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
    }

    fn line(format: LogFormat, to_journal: bool) -> String {
        let lines = LogLineFormatter { name: "dq-consume-1".into(), pid: 7, format, to_journal };
        let fields = [("topic", "orders".into()), ("id", "4 2\"\n".into()), ("attempt", Value::from(3))];
        let args = format_args!("failed: \u{7}a=b");
        let record =
            Record::builder().level(Level::Warn).target("notify").key_values(&fields).args(args).build();
        lines.line(&record)
    }

    #[test]
    fn a_line_about_a_job_has_its_topic_and_id() {
        let text = line(LogFormat::Text, false);
        assert!(text.ends_with(" WARN  dq-consume-1[7] orders:4 2\"\\n failed: \\u{7}a=b\n"), "{text:?}");
        let logfmt = line(LogFormat::Logfmt, false);
        let fields =
            r#" level=warn process=dq-consume-1 pid=7 log=notify topic=orders id="4 2\"\n" attempt=3"#;
        assert!(logfmt.starts_with("time=20") && logfmt.contains(fields), "{logfmt:?}");
        assert!(logfmt.ends_with("message=\"failed: \\\\u{7}a=b\"\n"), "{logfmt:?}");
        let json: serde_json::Value = serde_json::from_str(&line(LogFormat::Json, false)).unwrap();
        let time = json["time"].as_str().unwrap().parse::<jiff::Timestamp>();
        assert!(time.is_ok(), "{json}");
        let expected = serde_json::json!({
            "time": json["time"], "level": "warn", "process": "dq-consume-1", "pid": 7, "log": "notify",
            "topic": "orders", "id": "4 2\"\n", "attempt": 3, "message": "failed: \\u{7}a=b",
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn the_journal_gets_no_time_and_a_priority() {
        assert!(line(LogFormat::Text, true).starts_with("<4>WARN  dq-consume-1[7] orders:"));
        assert!(line(LogFormat::Logfmt, true).starts_with("<4>process=dq-consume-1 pid=7 log=notify"));
        assert!(line(LogFormat::Json, true).starts_with(r#"<4>{"process":"dq-consume-1","#));
    }
}

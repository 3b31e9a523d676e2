//! The settings of a topic. Each setting is declared once, in `settings!`, with its documentation, type, default and
//! bounds. The configuration file, the API, the registry, the command line and the OpenAPI document follow from this
//! declaration. Pure.

use std::time::Duration;

use serde_json::Value;

use super::written::BoundedValue;
use super::{self as topic, InvalidTopic, Topic};
use crate::excerpt::Excerpt;
use crate::json_time;

pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// The longest span that a topic may have: ten years.
pub(super) const LONGEST: Duration = HOUR.saturating_mul(24 * 366 * 10);

/// The maximum number of entries of a list, or of an object of headers.
const ENTRIES_MAX: usize = 32;

/// The longest entry of a list, in bytes.
const ENTRY_MAX: usize = 255;

/// The longest value of a header, in bytes.
const HEADER_MAX: usize = 1024;

/// How a setting is written, and its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// A text. In the API, it has at most `most` bytes.
    Text {
        /// The maximum number of bytes.
        most: usize,
    },
    /// One of these words.
    Words(&'static [&'static str]),
    /// True or false.
    Switch,
    /// A duration within these bounds.
    Span {
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
    },
    /// A whole number within these bounds.
    Count {
        /// The least.
        least: u32,
        /// The greatest.
        most: u32,
    },
    /// A [`topic::Size`] within these bounds, in bytes.
    Bytes {
        /// The least.
        least: u64,
        /// The greatest.
        most: u64,
    },
    /// A [`topic::Rate`] of at most `most` jobs.
    Rate {
        /// The maximum number of jobs.
        most: u32,
    },
    /// A [`topic::CatchUp`] rule whose span is within these bounds.
    CatchUp {
        /// The shortest span.
        least: Duration,
        /// The longest span.
        most: Duration,
    },
    /// A [`topic::Moment`].
    Moment,
    /// A [`topic::Durability`].
    Durability,
    /// A [`topic::Success`] rule. In the API, it has at most `most` bytes.
    Success {
        /// The maximum number of bytes.
        most: usize,
    },
    /// A [`crate::retry::Retry`] policy.
    Retry,
    /// A list of [`topic::Failure`]s.
    Failures,
    /// A list of texts.
    Texts,
    /// A list of texts that are never shown.
    Secrets,
    /// An object of texts.
    Headers,
}

/// A setting of a topic.
#[derive(Debug)]
pub struct Setting {
    /// The name of the setting in the configuration file and in the API. (The registry adds `_ms` to the name of a
    /// span.)
    pub name: &'static str,
    /// What the setting does, in the words of its declaration.
    pub(super) about: &'static str,
    /// How the setting is written, and its bounds.
    pub kind: SettingKind,
    /// Reads the setting from its written form. None: the value does not have this form.
    pub(super) read: fn(&mut Topic, &Value) -> Option<()>,
    /// Returns the written form of the default of the setting.
    pub(super) default: fn() -> Value,
    /// Sets the setting to its default.
    pub(super) reset: fn(&mut Topic),
    /// Returns the written form of the setting's value.
    pub(super) write: fn(&Topic) -> Value,
    /// Returns the size of the setting's value, if the setting has bounds.
    pub(super) size: fn(&Topic) -> Option<BoundedValue>,
}

/// Declares the struct [`Topic`] and the list of its settings. Each setting has its documentation, type, default and
/// kind.
macro_rules! settings {
    ($($(#[doc = $about:literal])+ $name:ident: $type:ty = $default:expr, $kind:expr;)+) => {
        /// A registered kind of job. The serialized form of a topic is the result of [`Topic::written`], together with
        /// the name of the topic.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
        pub struct Topic {
            /// The name of the topic.
            pub name: TopicName,
            $($(#[doc = $about])+ pub $name: $type,)+
        }

        impl Topic {
            /// All settings, in the order in which they are documented.
            pub const SETTINGS: &[Setting] = &[$($crate::topic::setting::setting!(
                $name, $type, $default, $kind, concat!($($about),+)
            )),+];

            /// Makes a topic with the default of each setting.
            fn with_defaults(name: TopicName) -> Topic {
                Topic { name, $($name: $default),+ }
            }
        }
    };
}
pub(super) use settings;

/// One entry of [`Topic::SETTINGS`].
macro_rules! setting {
    ($name:ident, $type:ty, $default:expr, $kind:expr, $about:expr) => {
        Setting {
            name: stringify!($name),
            about: $about,
            kind: $kind,
            default: || {
                let default: $type = $default;
                $crate::topic::written::Written::write(&default)
            },
            read: |topic, value| {
                topic.$name = $crate::topic::written::Written::read(value)?;
                Some(())
            },
            reset: |topic| topic.$name = $default,
            write: |topic| $crate::topic::written::Written::write(&topic.$name),
            size: |topic| $crate::topic::written::Written::size(&topic.$name),
        }
    };
}
pub(super) use setting;

impl Setting {
    /// Returns the setting with this name.
    pub fn named(name: &str) -> Option<&'static Setting> {
        Topic::SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Returns what the setting does, in sentences.
    pub fn about(&self) -> &'static str {
        self.about.trim_start()
    }

    /// Returns the setting's value in its written form.
    pub fn value(&self, topic: &Topic) -> Value {
        (self.write)(topic)
    }

    /// Returns the default in its written form.
    pub fn default(&self) -> Value {
        (self.default)()
    }

    /// Returns the topic's value of the setting, if it is a span.
    pub fn span(&self, topic: &Topic) -> Option<Duration> {
        match (self.kind, (self.size)(topic)) {
            (SettingKind::Span { .. }, Some(BoundedValue::Span(span))) => Some(span),
            _ => None,
        }
    }

    /// Returns the valid values, as messages name them.
    pub fn wanted(&self) -> String {
        let or_null = if self.default().is_null() { ", or null" } else { "" };
        let wanted = match self.kind {
            SettingKind::Text { .. } => "a text".to_owned(),
            SettingKind::Words(words) => {
                words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ")
            }
            SettingKind::Switch => "true or false".to_owned(),
            SettingKind::Span { .. } => json_time::DURATION.to_owned(),
            SettingKind::Count { least, most } => format!("a whole number from {least} to {most}"),
            SettingKind::Bytes { .. } => "a size such as \"10MiB\", or a number of bytes".to_owned(),
            SettingKind::Rate { .. } => "a rate such as \"100/s\", \"30/m\", \"500/h\"".to_owned(),
            SettingKind::CatchUp { .. } => "\"all\", \"spread 10m\" or \"skip older than 1h\"".to_owned(),
            SettingKind::Moment => json_time::MOMENT.to_owned(),
            SettingKind::Durability => "\"memory\", \"fsync\", \"replicas:1\"".to_owned(),
            SettingKind::Success { .. } => {
                "\"status\", \"non_empty\" or an expression such as \"{res.code} == 0\"".to_owned()
            }
            SettingKind::Retry => {
                "\"2n+1\", \"exponential\" or a list of durations such as [\"1m\", \"5m\"]".to_owned()
            }
            SettingKind::Failures => {
                "a list of \"connect\", \"timeout\", \"broken\", \"answer\", of statuses such as \
                \"503\" and of \"5xx\""
                    .to_owned()
            }
            SettingKind::Texts | SettingKind::Secrets => "a list of texts".to_owned(),
            SettingKind::Headers => "an object of texts".to_owned(),
        };
        wanted + or_null
    }

    /// Returns what is wrong with a value that cannot be read. The error does not contain a secret.
    pub(super) fn wrong(&self, value: &Value) -> InvalidTopic {
        let value =
            if self.kind == SettingKind::Secrets { "the value".to_owned() } else { value.to_string() };
        InvalidTopic::new(self.name, format!("{} is not {}", Excerpt(&value), self.wanted()))
    }

    /// Checks that every registry can store a written value unchanged: the value is not too long and contains no
    /// control character. For headers, this function checks only the number of headers and the length of each value.
    /// [`Topic::check`] checks the characters of the values.
    ///
    /// # Errors
    ///
    /// The error names what is too long, or the control character.
    pub fn check_written(&self, value: &Value) -> Result<(), InvalidTopic> {
        let wrong = |problem: String| Err(InvalidTopic::new(self.name, problem));
        let text = |text: &str, most: usize| match text.chars().find(|c| c.is_control()) {
            _ if text.len() > most => {
                wrong(format!("is {} bytes long, which is more than {most}", text.len()))
            }
            Some(c) => wrong(format!("holds the control character {c:?}")),
            None => Ok(()),
        };
        match (self.kind, value) {
            (SettingKind::Text { most } | SettingKind::Success { most }, Value::String(given)) => {
                text(given, most)
            }
            (_, Value::Array(list)) if list.len() > ENTRIES_MAX => {
                wrong(format!("holds {} entries, which is more than {ENTRIES_MAX}", list.len()))
            }
            (_, Value::Array(list)) => {
                list.iter().filter_map(Value::as_str).try_for_each(|entry| text(entry, ENTRY_MAX))
            }
            (SettingKind::Headers, Value::Object(headers)) if headers.len() > ENTRIES_MAX => {
                wrong(format!("holds {} entries, which is more than {ENTRIES_MAX}", headers.len()))
            }
            (SettingKind::Headers, Value::Object(headers)) => {
                let is_long = |value: &Value| value.as_str().is_some_and(|text| text.len() > HEADER_MAX);
                match headers.iter().find(|(_, value)| is_long(value)) {
                    Some((name, _)) => {
                        wrong(format!("the value of {name:?} is longer than {HEADER_MAX} bytes"))
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Checks that the topic's value is within the bounds of the setting.
    pub(super) fn check_bounds(&self, topic: &Topic) -> Result<(), InvalidTopic> {
        match (self.kind, (self.size)(topic)) {
            (
                SettingKind::Span { least, most } | SettingKind::CatchUp { least, most },
                Some(BoundedValue::Span(span)),
            ) if !(least..=most).contains(&span) => {
                let [span, least, most] = [span, least, most].map(humantime::format_duration);
                Err(InvalidTopic::new(self.name, format!("{span} is not within {least} to {most}")))
            }
            (SettingKind::Count { least, most }, Some(BoundedValue::Count(n)))
                if !(least..=most).contains(&n) =>
            {
                Err(InvalidTopic::new(self.name, format!("{n} is not within {least} to {most}")))
            }
            (SettingKind::Bytes { least, most }, Some(BoundedValue::Bytes(n)))
                if !(least..=most).contains(&n.0) =>
            {
                let [least, most] = [least, most].map(topic::Size);
                Err(InvalidTopic::new(self.name, format!("{n} is not within {least} to {most}")))
            }
            (SettingKind::Rate { most }, Some(BoundedValue::Count(n))) if !(1..=most).contains(&n) => {
                Err(InvalidTopic::new(self.name, format!("{n} is not within 1 to {most}")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::TopicName;
    use serde_json::json;

    fn topic() -> Topic {
        Topic::new(TopicName::new("orders").unwrap(), "http://h/")
    }

    fn read(setting: &str, value: Value) -> Result<Topic, String> {
        let mut topic = topic();
        topic.assign(&[(setting.to_owned(), value)].into_iter().collect()).map_err(|e| e.to_string())?;
        Ok(topic)
    }

    #[test]
    fn each_setting_is_read_as_it_is_written() {
        for (setting, values) in [
            ("delay", vec![json!("1h30m"), json!("1ms")]),
            ("retry", vec![json!("exponential"), json!(["1s", "2m30s"])]),
            ("rate", vec![json!("100/s"), json!("30/m"), Value::Null]),
            ("headers", vec![json!({"x-shop": "7"})]),
            ("retry_on", vec![json!(["5xx", "timeout"])]),
            ("max_in_flight", vec![json!(3), Value::Null]),
            ("tls_verify", vec![json!(false), json!(true)]),
            ("method", vec![json!("GET"), json!("PUT")]),
        ] {
            for value in values {
                let topic = read(setting, value.clone()).unwrap();
                assert_eq!(topic.written()[setting], value);
                let map: serde_json::Map<String, Value> = topic.clone().into();
                assert_eq!(Topic::try_from(map), Ok(topic));
            }
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_what_would_do() {
        for (setting, value, wanted) in [
            ("delay", json!("soon"), "a duration such as"),
            ("delay", json!(-1), "a duration such as"),
            ("delay", json!(true), "a duration such as"),
            ("retry", json!("often"), "2n+1"),
            ("retry", json!([1, "x"]), "2n+1"),
            ("rate", json!("x/s"), "100/s"),
            ("max_in_flight", json!("3"), "a whole number from 1 to 1000000, or null"),
            ("status", json!("on"), "\"online\" or \"offline\""),
            ("tls_verify", json!("no"), "true or false"),
        ] {
            let message = read(setting, value.clone()).unwrap_err();
            let shown = value.to_string();
            assert!(message.starts_with(setting) && message.contains(&shown), "{message}");
            assert!(message.contains(wanted), "{message}");
        }
    }

    #[test]
    fn an_error_does_not_repeat_a_secret() {
        let message = read("secrets", json!("hunter22")).unwrap_err();
        assert_eq!(message, "secrets: the value is not a list of texts");
    }

    #[test]
    fn what_has_no_effect_is_refused_and_not_kept() {
        assert!(read("retry_cap", json!("2s")).unwrap_err().contains("no effect with \"2n+1\""));
        read("retry_cap", json!("60m")).unwrap();
        let mut topic = read("retry_base", json!("2s")).unwrap();
        assert_eq!(topic.retry_base, Duration::from_secs(2));
        topic.assign(&[("retry".to_owned(), json!(["1s"]))].into_iter().collect()).unwrap();
        assert_eq!(topic.retry_base, Duration::from_secs(60));
        assert_eq!(topic.written()["retry_base"], Value::Null);
    }

    #[test]
    fn each_default_passes_the_check_of_its_own_bounds() {
        topic().check().unwrap();
        for setting in Topic::SETTINGS {
            assert!(setting.about().ends_with('.') && !setting.wanted().is_empty(), "{}", setting.name);
        }
    }
}

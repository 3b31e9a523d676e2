//! Converts rows of `dq_topic` to topics, and topics to rows. The PHP daemon and dq write such rows.

use std::time::Duration;

use ::mysql::Value;
use ::mysql::prelude::FromValue;

use super::latin1::DecodedText;
use crate::record;
use crate::{InvalidRow, Registered, RegistryError, Result, Revision};
use model::job::{Priority, TopicName};
use model::topic::{InvalidTopic, Method, Payload, Success, Topic, TopicStatus};

/// The values of a statement.
pub(super) type Values = Vec<Value>;

/// An SQL expression that computes a 64-bit number from all columns of a row.
pub(super) const FINGERPRINT: &str = "CAST(CONV(LEFT(MD5(CONCAT_WS(',', id, IFNULL(HEX(topic), '-'), \
    IFNULL(HEX(t_name), '-'), IFNULL(delay, '-'), IFNULL(HEX(callback), '-'), IFNULL(timeout, '-'), \
    IFNULL(HEX(email), '-'), IFNULL(HEX(re_notify_flag), '-'), IFNULL(HEX(createor), '-'), IFNULL(status, '-'), \
    IFNULL(HEX(method), '-'), IFNULL(priority, '-'), IFNULL(HEX(dq_spec), '-'))), 16), 16, 10) AS UNSIGNED)";

/// Inserts a row.
pub(super) const INSERT: &str = "INSERT INTO dq_topic (topic, t_name, delay, callback, timeout, email, re_notify_flag, \
    createor, status, method, priority, dq_spec) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// Replaces the contents of the row with that id.
pub(super) const UPDATE: &str = "UPDATE dq_topic SET topic = ?, t_name = ?, delay = ?, callback = ?, timeout = ?, \
    email = ?, re_notify_flag = ?, createor = ?, status = ?, method = ?, priority = ?, dq_spec = ? WHERE id = ?";

/// Returns a query for rows as [`PhpTopicRow::from_row`] reads them. `which` is a WHERE clause, or empty for all rows.
pub(super) fn select(which: &str) -> String {
    select_from("dq_topic", which)
}

/// Returns the query of [`select`] for another table that has the same columns.
pub(super) fn select_from(table: &str, which: &str) -> String {
    format!(
        "SELECT id, {FINGERPRINT}, topic, t_name, delay, callback, timeout, email, re_notify_flag, createor, status, \
         method, priority, dq_spec FROM {table} {which} ORDER BY id"
    )
}

/// The maximum length of a text in the PHP daemon's columns, in characters.
const TEXT_MAX: usize = 1024;

/// The default of the column `re_notify_flag` in the PHP daemon's schema. It means that no flag is set.
const NO_FLAG: &str = "重试标记";

/// The shortest and the longest timeout of a topic.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// How often the PHP daemon tries to deliver a job.
pub(super) const PHP_ATTEMPTS: u32 = 12;

/// The fields that have a column of their own.
const PHP_FIELDS: [&str; 9] =
    ["title", "callback", "timeout_ms", "alert", "re_notify_flag", "creator", "status", "method", "priority"];

/// A row of `dq_topic`.
#[derive(Debug)]
pub(super) struct PhpTopicRow {
    pub id: i64,
    pub revision: Revision,
    /// The name of the topic. Empty if the column cannot be read.
    pub topic: String,
    columns: std::result::Result<PhpTopicValues, String>,
}

#[derive(Debug)]
struct PhpTopicValues {
    title: DecodedText,
    delay: i64,
    callback: DecodedText,
    timeout: i64,
    email: DecodedText,
    re_notify_flag: DecodedText,
    creator: DecodedText,
    status: i64,
    method: String,
    priority: i64,
    spec: Option<String>,
}

/// Takes the value of a column, with a default instead of null.
fn take<T: FromValue>(row: &mut ::mysql::Row, at: usize, default: T) -> std::result::Result<T, String> {
    match row.take_opt::<Option<T>, _>(at) {
        Some(Ok(value)) => Ok(value.unwrap_or(default)),
        Some(Err(e)) => {
            let columns = row.columns_ref();
            let name = columns.get(at).map_or_else(String::new, |c| c.name_str().into_owned());
            Err(format!("{name}: {e}"))
        }
        None => Err("a column is missing".to_owned()),
    }
}

/// Takes the value of a column. If it is null or cannot be read, returns the default.
pub(super) fn get<T: FromValue + Default>(row: &mut ::mysql::Row, at: usize) -> T {
    take(row, at, T::default()).unwrap_or_default()
}

/// Takes a text that may be encoded twice (`latin1` says why). If the text is null or cannot be read, returns an empty
/// text.
pub(super) fn get_text(row: &mut ::mysql::Row, at: usize) -> String {
    DecodedText::from_column(get(row, at)).text
}

impl PhpTopicRow {
    pub(super) fn from_row(mut row: ::mysql::Row) -> PhpTopicRow {
        let row = &mut row;
        PhpTopicRow {
            id: take(row, 0, 0).unwrap_or(0),
            revision: Revision(take(row, 1, 0).unwrap_or(0)),
            topic: take(row, 2, String::new()).unwrap_or_default(),
            columns: PhpTopicValues::from_row(row),
        }
    }

    /// Returns the topic. `max_attempts` is used if the row sets no limit.
    pub(super) fn into_registered(self, max_attempts: u32) -> std::result::Result<Registered, InvalidRow> {
        let which = format!("dq_topic row {}, topic {:?}", self.id, self.topic);
        let topic = self.into_topic(max_attempts);
        topic.map_err(|why| InvalidRow { which, why })
    }

    fn into_topic(self, max_attempts: u32) -> std::result::Result<Registered, String> {
        let name = TopicName::new(&self.topic).map_err(|e| e.to_string())?;
        let topic = self.columns?.into_topic(name, max_attempts)?;
        topic.check_values().map_err(|e| e.to_string())?;
        Ok(Registered { topic, revision: self.revision })
    }
}

impl PhpTopicValues {
    fn from_row(row: &mut ::mysql::Row) -> std::result::Result<PhpTopicValues, String> {
        let empty = String::new;
        let text = |row: &mut ::mysql::Row, at: usize| take(row, at, empty()).map(DecodedText::from_column);
        Ok(PhpTopicValues {
            title: text(row, 3)?,
            delay: take(row, 4, 0)?,
            callback: text(row, 5)?,
            timeout: take(row, 6, 0)?,
            email: text(row, 7)?,
            re_notify_flag: text(row, 8)?,
            creator: text(row, 9)?,
            status: take(row, 10, 1)?,
            method: take(row, 11, empty())?,
            priority: take(row, 12, 2)?,
            spec: take(row, 13, None)?,
        })
    }

    fn texts(&self) -> [&DecodedText; 5] {
        [&self.title, &self.callback, &self.email, &self.re_notify_flag, &self.creator]
    }

    /// Returns the topic. The columns of the PHP daemon take precedence over `dq_spec`. All other fields have the
    /// values that dq wrote into `dq_spec`. If dq wrote nothing, they match the behaviour of the PHP daemon.
    fn into_topic(self, name: TopicName, max_attempts: u32) -> std::result::Result<Topic, String> {
        let mut stored = Topic { max_attempts, ..Topic::new(name, "") };
        match self.spec.as_deref().filter(|spec| !spec.trim().is_empty()) {
            Some(spec) => {
                let record = serde_json::from_str(spec).map_err(|e| format!("dq_spec: {e}"))?;
                record::apply(&record, &mut stored).map_err(|e| format!("dq_spec: {e}"))?;
            }
            None => (stored.payload, stored.success) = (Payload::Form, Success::NonEmpty),
        }
        let delay_s = u64::try_from(self.delay).unwrap_or(0);
        let method = match self.method.trim().to_ascii_uppercase().as_str() {
            "" | "GET" => Method::Get,
            "POST" => Method::Post,
            _ => Method::Other(self.method.trim().to_owned()),
        };
        Ok(Topic {
            title: self.title.text,
            callback: self.callback.text.trim().to_owned(),
            method,
            // dq may store a delay with a part of a second. This delay is kept as long as nobody has changed the
            // seconds in the column.
            delay: if seconds(stored.delay) == delay_s { stored.delay } else { Duration::from_secs(delay_s) },
            timeout: timeout(self.timeout),
            alert: list(&self.email.text),
            re_notify_flag: match self.re_notify_flag.text.trim() {
                NO_FLAG => String::new(),
                flag => flag.to_owned(),
            },
            creator: self.creator.text,
            status: if self.status == 1 { TopicStatus::Online } else { TopicStatus::Offline },
            priority: Priority::from_number(self.priority).unwrap_or_default(),
            ..stored
        })
    }
}

/// Returns the timeout that a number of milliseconds means. 0 means no limit for the PHP daemon, so dq uses the longest
/// timeout. A negative number becomes 3 s. Any other invalid number becomes the nearest valid number.
fn timeout(column: i64) -> Duration {
    match u64::try_from(column) {
        Ok(0) => TIMEOUT_MAX,
        Ok(ms) => Duration::from_millis(ms).clamp(TIMEOUT_MIN, TIMEOUT_MAX),
        Err(_) => Duration::from_secs(3),
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
}

/// Returns a span in seconds, rounded up.
fn seconds(span: Duration) -> u64 {
    record::ms(span).div_ceil(1000)
}

/// Returns the PHP daemon's number for a status.
pub(super) fn status_number(status: TopicStatus) -> i64 {
    match status {
        TopicStatus::Online => 1,
        TopicStatus::Offline => 2,
    }
}

/// Returns new texts in the form in which they are written to the row. The new texts are encoded twice if the texts in
/// the row are encoded twice. Each text is given with the name of its field, in the order of [`PhpTopicValues::texts`].
fn texts_as_before(
    texts: [(&'static str, &String); 5],
    before: Option<&PhpTopicValues>,
) -> Result<[String; 5]> {
    let new = Default::default();
    let of_row = before.map_or([&new; 5], PhpTopicValues::texts);
    let row_is = of_row.iter().any(|column| column.is_doubly_encoded);
    let mut written: [String; 5] = Default::default();
    for (((field, text), column), out) in texts.into_iter().zip(of_row).zip(&mut written) {
        *out = column.to_column(text, row_is);
        let length = out.chars().count();
        if length > TEXT_MAX {
            let problem = format!("it is {length} characters long; the PHP daemon's table takes {TEXT_MAX}");
            return Err(RegistryError::InvalidTopic(InvalidTopic { field, problem }));
        }
    }
    Ok(written)
}

/// Returns a topic as the values of [`INSERT`] and [`UPDATE`]. Fields that this release does not know are kept.
/// `max_attempts`: the limit for rows that set no limit. If the topic has exactly this limit, and the row set no limit
/// before, the row still sets no limit.
pub(super) fn values(topic: &Topic, before: Option<&PhpTopicRow>, max_attempts: u32) -> Result<Values> {
    let before = before.and_then(|row| row.columns.as_ref().ok());
    let spec = before.and_then(|columns| columns.spec.as_deref());
    let is_said = |spec: Option<&str>| spec.is_some_and(|spec| record::says(spec, "max_attempts"));
    let keeps_limit = before.is_some() && !is_said(spec) && topic.max_attempts == max_attempts;
    let left_out = PHP_FIELDS.into_iter().chain(keeps_limit.then_some("max_attempts"));
    let email = topic.alert.join(",");
    // The number in the row stays if it means the same timeout.
    let kept = before.map(|columns| columns.timeout).filter(|column| timeout(*column) == topic.timeout);
    let timeout_ms = kept.unwrap_or_else(|| i64::try_from(record::ms(topic.timeout)).unwrap_or(i64::MAX));
    let texts = [
        ("title", &topic.title),
        ("callback", &topic.callback),
        ("alert", &email),
        ("re_notify_flag", &topic.re_notify_flag),
        ("creator", &topic.creator),
    ];
    let [title, callback, email, re_notify_flag, creator] = texts_as_before(texts, before)?;
    Ok(vec![
        topic.name.as_str().into(),
        title.into(),
        seconds(topic.delay).into(),
        callback.into(),
        timeout_ms.into(),
        email.into(),
        re_notify_flag.into(),
        creator.into(),
        status_number(topic.status).into(),
        String::from(topic.method.clone()).into(),
        (topic.priority as i64).into(),
        record::stored_over(topic, spec, &left_out.collect::<Vec<_>>()).into(),
    ])
}

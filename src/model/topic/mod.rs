//! Topics: the registered kinds of jobs, with their callbacks and their rules. Pure.

mod check;
mod done_topic;
mod durability;
mod header;
mod host_pattern;
mod problem;
mod record_keeping;
mod secret;
mod setting;
mod topics;
mod words;
mod written;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::check::InvalidTopic;
pub use self::done_topic::{DONE_SUFFIX, done_topic};
pub use self::durability::Durability;
pub use self::header::{is_guarded_header, is_own_header, is_same_header, refuse_header};
pub use self::host_pattern::HostPattern;
pub use self::record_keeping::RecordKeeping;
pub use self::secret::{new_secret, signing_key};
use self::setting::{HOUR, LONGEST, settings};
pub use self::setting::{Setting, SettingKind};
pub use self::topics::{TopicNonDeliveryReason, Topics};
pub use self::words::{CatchUp, Failure, Moment, Rate, Size, Success};
use crate::job_parts::{Due, Priority, TopicName};
use crate::retry::Retry;

/// Who starts a delivery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryMode {
    /// dq calls the callback.
    #[default]
    Push,
    /// Clients reserve the jobs. dq calls no receiver.
    Pull,
}

/// What a reserve does with the jobs that it returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnReserve {
    /// The jobs are leased. If the client does not report that a job is done, the job can be reserved again.
    #[default]
    Lease,
    /// The jobs count as done, and are removed before the client gets them.
    Remove,
}

/// The HTTP method of a callback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Method {
    /// `GET`: the fields are in the query.
    Get,
    /// `POST`: the fields, or the JSON text, are in the body of the request.
    Post,
    /// A text that dq cannot use as a method. Other programs may write such a text into the registry. A topic with
    /// such a method is held.
    Other(String),
}

impl From<String> for Method {
    fn from(text: String) -> Method {
        match text.as_str() {
            "GET" => Method::Get,
            "POST" => Method::Post,
            _ => Method::Other(text),
        }
    }
}

impl From<Method> for String {
    fn from(method: Method) -> String {
        match method {
            Method::Get => "GET".to_owned(),
            Method::Post => "POST".to_owned(),
            Method::Other(text) => text,
        }
    }
}

/// How the body of a job is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The body as the client sent it, as `application/json`.
    Json,
    /// A form with one field for each top-level key of the body, as the PHP daemon sends it.
    Form,
}

/// Whether a topic takes new jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopicStatus {
    /// The topic takes new jobs.
    #[default]
    Online,
    /// Adds are refused. Jobs that are stored are still delivered.
    Offline,
}

settings! {
    /// A title for people.
    title: String = String::new(), SettingKind::Text { most: 255 };
    /// Who starts a delivery. `push`: dq calls the callback. `pull`: clients reserve the jobs.
    mode: DeliveryMode = DeliveryMode::Push, SettingKind::Words(&["push", "pull"]);
    /// The http or https URL that dq calls. With the mode `pull`, it may be empty.
    callback: String = String::new(), SettingKind::Text { most: 1024 };
    /// The HTTP method of a callback.
    method: Method = Method::Post, SettingKind::Words(&["POST", "GET"]);
    /// How the body of a job is sent. `json`: the body is sent as it was given. `form`: the body is sent as a form,
    /// with one field for each of its top-level keys, as the PHP daemon does. `json` needs the method POST.
    payload: Payload = Payload::Json, SettingKind::Words(&["json", "form"]);
    /// The headers that each callback has in addition to dq's own headers.
    headers: BTreeMap<String, String> = BTreeMap::new(), SettingKind::Headers;
    /// Jobs cannot set some headers, such as `authorization` (docs/CALLBACKS.md has the list). But the jobs of this
    /// topic may set the headers that are named here.
    job_headers: Vec<String> = Vec::new(), SettingKind::Texts;
    /// A job of this topic may have its own `url` only if the host of the `url` is listed here, such as
    /// `shop.example:8443`. `*.example.com` matches every name with one label before `.example.com`. Empty: jobs cannot
    /// have their own URLs.
    job_hosts: Vec<String> = Vec::new(), SettingKind::Texts;
    /// The delay of a job that is added without a due time.
    delay: Duration = Duration::ZERO, SettingKind::Span { least: Duration::ZERO, most: LONGEST };
    /// The longest time that one whole callback may take.
    timeout: Duration = Duration::from_secs(3),
        SettingKind::Span { least: Duration::from_millis(10), most: HOUR };
    /// The longest time that may pass until the connection of a callback is open.
    connect_timeout: Duration = Duration::from_secs(1),
        SettingKind::Span { least: Duration::from_millis(1), most: HOUR };
    /// Whether the certificate of an https receiver is checked. If the certificate is not checked, an attacker in the
    /// network can read and change the callbacks.
    tls_verify: bool = true, SettingKind::Switch;
    /// Which answers of a receiver accept a job. `status`: any status from 200 to 299. `non_empty`: any answer with a
    /// body that is not empty and not `0`, as in the PHP daemon. Any other text is an expression. In an expression,
    /// `{status}` is the status, and `{res.…}` is a member of the JSON answer (docs/CALLBACKS.md).
    success: Success = Success::Status, SettingKind::Success { most: 255 };
    /// An expression. If the expression is true for a successful answer, the job is delivered again. Empty: never.
    re_notify_flag: String = String::new(), SettingKind::Text { most: 255 };
    /// If `re_notify_flag` is true again and again for a job, the job becomes a dead letter after this number of
    /// attempts. Null: no limit.
    max_notifications: Option<u32> = None, SettingKind::Count { least: 1, most: MILLION };
    /// The delays between attempts: `2n+1` (1, 3, 5 … times `retry_base`), `exponential` (1, 2, 4 … times `retry_base`,
    /// up to `retry_cap`, and a random part of up to a tenth), or a list of durations. After the last delay of the
    /// list, this last delay is used again.
    retry: Retry = Retry::TwoNPlusOne, SettingKind::Retry;
    /// The first delay of `2n+1` and of `exponential`.
    retry_base: Duration = Duration::from_secs(60),
        SettingKind::Span { least: Duration::from_millis(1), most: LONGEST_RETRY };
    /// The longest delay of `exponential`.
    retry_cap: Duration = HOUR, SettingKind::Span { least: Duration::from_millis(1), most: LONGEST_RETRY };
    /// The failures after which a job is tried again: `connect`, `timeout`, `broken`, `answer`, statuses such as `503`,
    /// and `5xx`. docs/CALLBACKS.md explains them. `answer` means: the status is 2xx, but `success` does not accept the
    /// answer. It also means that an answer is too long to be judged. After any other failure, the job becomes a dead
    /// letter. Empty: all failures.
    retry_on: Vec<Failure> = Vec::new(), SettingKind::Failures;
    /// How many attempts a job has before it becomes a dead letter.
    max_attempts: u32 = 10, SettingKind::Count { least: 1, most: 1000 };
    /// How long a receiver that answers later may take to report the outcome. Zero: a receiver must not answer later,
    /// and callbacks have no `dq-ack-url`.
    answer_later: Duration = Duration::ZERO, SettingKind::Span { least: Duration::ZERO, most: LONGEST };
    /// With `pull`: how long the lease of a reserved job lasts. The job or the client can set another time.
    ttr: Duration = Duration::from_secs(60), SettingKind::Span { least: LEASES.0, most: LEASES.1 };
    /// With `pull`: what happens to jobs that a client reserves. `lease`: if the client does not report that a job is
    /// done, the job can be reserved again after its lease. `remove`: the jobs count as done, and are removed at once.
    /// So a job is delivered at most once, and may be lost.
    on_reserve: OnReserve = OnReserve::Lease, SettingKind::Words(&["lease", "remove"]);
    /// With `pull`: whether a job gets the priority 0 after a client has reported a failure with `nack`. Jobs with the
    /// priority 0 are reserved first.
    retried_first: bool = false, SettingKind::Switch;
    /// An attempt of a job may begin only within this time after the due time. After this time, the job becomes a dead
    /// letter. A job can set its own value. Zero: there is no such limit.
    expire_after: Duration = Duration::ZERO, SettingKind::Span { least: Duration::ZERO, most: LONGEST };
    /// The maximum number of callbacks that run at the same time. With `pull`: the maximum number of jobs that are
    /// leased at the same time. Null: no limit.
    max_in_flight: Option<u32> = None, SettingKind::Count { least: 1, most: MILLION };
    /// The maximum number of callbacks that begin per second, minute or hour, such as `100/s`, `30/m` or `500/h`. With
    /// `pull`: the maximum number of jobs that are reserved in this time. Null: no limit.
    rate: Option<Rate> = None, SettingKind::Rate { most: MILLION };
    /// The maximum number of jobs that are delayed, ready or leased. Further adds are refused. Null: no limit.
    max_pending: Option<u32> = None, SettingKind::Count { least: 1, most: 1_000_000_000 };
    /// The maximum size of all jobs of the topic together, such as `10MiB`. Dead letters count too. Further adds are
    /// refused. Null: no limit.
    max_bytes: Option<Size> = None, SettingKind::Bytes { least: 1, most: 1 << 50 };
    /// The maximum number of jobs that clients add per second, minute or hour, such as `100/s`, `30/m` or `500/h`.
    /// Further adds are refused. Null: no limit.
    add_rate: Option<Rate> = None, SettingKind::Rate { most: MILLION };
    /// The tenant that owns the topic, such as a department or a customer. The workers are shared fairly among the
    /// tenants, and then among the topics of each tenant. Empty: the topic is a tenant of its own.
    tenant: String = String::new(), SettingKind::Text { most: 128 };
    /// After this number of failures of the receiver in a row, the circuit of the topic opens, and its jobs wait. 0:
    /// the circuit never opens.
    breaker_failures: u32 = 20, SettingKind::Count { least: 0, most: MILLION };
    /// How long the jobs wait when the circuit opens for the first time.
    breaker_pause: Duration = Duration::from_secs(10),
        SettingKind::Span { least: Duration::from_millis(10), most: HOUR.saturating_mul(24) };
    /// What happens to jobs that became due while nobody could deliver them. `all`: dq delivers them at once.
    /// `spread 10m`: dq gives them new due times, at random within the next 10 minutes. `skip older than 1h`: jobs that
    /// have been due for longer than one hour become dead letters (docs/FLOW.md).
    catch_up: CatchUp = CatchUp::All, SettingKind::CatchUp { least: Duration::from_secs(1), most: LONGEST };
    /// How safely dq must store a change of a job of this topic before dq answers the client: `memory`, `fsync` or
    /// `replicas:1`. Null: the value of `store.durability`.
    durability: Option<Durability> = None, SettingKind::Durability;
    /// The priority of the topic, compared with other topics: it decides which topics are served first.
    priority: Priority = Priority::Normal, SettingKind::Words(&["high", "normal", "low"]);
    /// The mail addresses that get alerts about this topic.
    alert: Vec<String> = Vec::new(), SettingKind::Texts;
    /// Who registered the topic.
    creator: String = String::new(), SettingKind::Text { most: 255 };
    /// Whether the topic takes new jobs. `offline`: adds are refused, and stored jobs are still delivered.
    status: TopicStatus = TopicStatus::Online, SettingKind::Words(&["online", "offline"]);
    /// The secrets that sign callbacks. Each callback is signed with all secrets. After `old_secrets_until`, only the
    /// first secret signs. dq does not show the secrets. There is one exception: the answer to a rotation shows the new
    /// secret once.
    secrets: Vec<String> = Vec::new(), SettingKind::Secrets;
    /// The first secret always signs callbacks. The other secrets sign only until this moment. Null: all secrets always
    /// sign. If `secrets` is changed and this setting is not given, this setting becomes null.
    old_secrets_until: Option<Moment> = None, SettingKind::Moment;
    /// How long the record of a job that has ended is kept. Zero: jobs leave no record.
    keep_done: Duration = RecordKeeping::DEFAULT.age, SettingKind::Span { least: Duration::ZERO, most: LONGEST };
    /// How many records of ended jobs are kept. On Redis, each shard keeps the records of at most this many ids.
    /// The oldest records are removed first. Zero: jobs leave no record.
    keep_done_jobs: u32 = RecordKeeping::DEFAULT.jobs, SettingKind::Count { least: 0, most: 10 * MILLION };
    /// Whether a record contains the body and the headers of its job, so that the job can be replayed. A body of more
    /// than 64 KiB is not kept.
    keep_done_body: bool = RecordKeeping::DEFAULT.with_body, SettingKind::Switch;
    /// The http or https URL to which dq sends an event when a job of the topic has been accepted or has become a dead
    /// letter. Empty: no events.
    on_done: String = String::new(), SettingKind::Text { most: 1024 };
    /// Whether the events of `on_done` contain the answer of the receiver.
    on_done_answer: bool = false, SettingKind::Switch;
    /// How long dead letters are kept. Zero: for ever.
    keep_dead: Duration = Duration::ZERO, SettingKind::Span { least: Duration::ZERO, most: LONGEST };
}

/// The shortest and the longest lease of a job that is reserved.
pub const LEASES: (Duration, Duration) = (Duration::from_millis(100), HOUR.saturating_mul(24));

/// The largest number of jobs that one reserve may ask for.
pub const RESERVE_JOBS_MAX: u32 = 100;

/// The greatest value that is allowed for most numbers.
const MILLION: u32 = 1_000_000;

/// The longest delay between two attempts: a year.
const LONGEST_RETRY: Duration = HOUR.saturating_mul(24 * 366);

impl Topic {
    /// Makes a topic that calls `callback` and has the defaults of a new topic in all other fields.
    pub fn new(name: TopicName, callback: impl Into<String>) -> Topic {
        Topic { callback: callback.into(), ..Topic::with_defaults(name) }
    }

    /// Returns the delay from the failure of attempt `number` (from 1) to the next attempt. None: attempt `number` was
    /// the last one, because the job has only `limit` attempts. `random` is as in [`Retry::delay_after`].
    pub fn again_after(&self, number: u32, limit: u32, random: f64) -> Option<Duration> {
        (number < limit).then(|| self.delay_after(number, random))
    }

    /// Returns the topic that delivers the events of this topic. None: this topic has no events.
    pub(super) fn of_events(&self) -> Option<Topic> {
        if self.on_done.is_empty() {
            return None;
        }
        let events = Topic::new(done_topic(&self.name)?, self.on_done.clone());
        Some(Topic {
            title: format!("Events of {}", self.name),
            secrets: self.secrets.clone(),
            old_secrets_until: self.old_secrets_until,
            tls_verify: self.tls_verify,
            tenant: if self.tenant.is_empty() { self.name.to_string() } else { self.tenant.clone() },
            durability: self.durability,
            priority: self.priority,
            alert: self.alert.clone(),
            ..events
        })
    }

    /// Returns what is kept of jobs that have ended.
    pub fn record_keeping(&self) -> RecordKeeping {
        RecordKeeping {
            age: self.keep_done,
            jobs: self.keep_done_jobs,
            with_body: self.keep_done_body,
            with_event: !self.on_done.is_empty(),
        }
    }

    /// Returns the moment after which no attempt of a new job begins, in Unix milliseconds. None: there is no such
    /// moment. `own` is the job's own limit: an attempt may begin only within this time after the due time. Zero: at
    /// any time.
    pub fn expires_ms(&self, own: Option<Duration>, due: Due, now_ms: i64) -> Option<i64> {
        let span = own.unwrap_or(self.expire_after);
        let due_ms = due.resolve(i128::from(now_ms) * 1_000_000);
        (!span.is_zero()).then(|| due_ms.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }

    /// Returns the limit of attempts of a job for which `re_notify_flag` is true again and again. `own` is the job's
    /// own limit.
    pub fn notifications_limit(&self, own: Option<u32>) -> u32 {
        own.or(self.max_notifications).unwrap_or(u32::MAX)
    }

    /// Returns the limit of attempts that applies when a lease expires. With `re_notify_flag`, each earlier attempt
    /// failed, or its answer made the flag true. dq does not know how many attempts there were of each kind. So if
    /// `max_notifications` is not set, the topic has no limit of attempts for expired leases.
    pub fn lease_limit(&self) -> u32 {
        match self.re_notify_flag.is_empty() {
            true => self.max_attempts,
            false => self.notifications_limit(None).max(self.max_attempts),
        }
    }

    /// Returns the delay after the failure of attempt `number`, as [`Retry::delay_after`] does.
    pub fn delay_after(&self, number: u32, random: f64) -> Duration {
        self.retry.delay_after(self.retry_base, self.retry_cap, number, random)
    }

    /// Sets the fields that `given` names, from their written forms. Null means the default. Other fields keep their
    /// values, with two exceptions. Settings that have no effect with `retry` get their defaults. If `secrets` is given
    /// and `old_secrets_until` is not given, `old_secrets_until` becomes null. The values are read, but not checked
    /// ([`Topic::check`] checks them). A name that is not a setting is ignored.
    ///
    /// # Errors
    ///
    /// A value cannot be read. Or `retry_base` or `retry_cap` is given although it has no effect with the value of
    /// `retry`. (With `2n+1`, the default of `retry_cap` may be given, although it has no effect.)
    pub fn assign(&mut self, given: &Map<String, Value>) -> Result<(), InvalidTopic> {
        for setting in Topic::SETTINGS {
            match given.get(setting.name) {
                None => {}
                Some(Value::Null) => (setting.reset)(self),
                Some(value) => (setting.read)(self, value).ok_or_else(|| setting.wrong(value))?,
            }
        }
        if given.contains_key("secrets") && !given.contains_key("old_secrets_until") {
            // The old moment was meant for the secrets that are now replaced.
            self.old_secrets_until = None;
        }
        let retry = self.retry.clone();
        for setting in Topic::SETTINGS.iter().filter(|setting| !retry.uses(setting.name)) {
            let is_given = given.get(setting.name).is_some_and(|value| !value.is_null());
            // The example file `conf/dq.toml` shows all settings with their defaults. So `retry_cap` may stand beside
            // "2n+1".
            let is_shown = retry == Retry::TwoNPlusOne && setting.value(self) == setting.default();
            if is_given && !is_shown {
                let problem = format!("has no effect with {}: leave it out", retry.name());
                return Err(InvalidTopic::new(setting.name, problem));
            }
            (setting.reset)(self);
        }
        Ok(())
    }

    /// Returns all settings in their written forms, by name. `retry_base` and `retry_cap` are null if they have no
    /// effect with the value of `retry`.
    pub fn written(&self) -> Map<String, Value> {
        let value = |setting: &Setting| match self.retry.uses(setting.name) {
            true => (setting.write)(self),
            false => Value::Null,
        };
        Topic::SETTINGS.iter().map(|setting| (setting.name.to_owned(), value(setting))).collect()
    }
}

impl From<Topic> for Map<String, Value> {
    fn from(topic: Topic) -> Map<String, Value> {
        let mut written = topic.written();
        written.insert("name".to_owned(), topic.name.as_str().into());
        written
    }
}

impl TryFrom<Map<String, Value>> for Topic {
    type Error = String;

    fn try_from(given: Map<String, Value>) -> Result<Topic, String> {
        let name = given.get("name").and_then(Value::as_str).ok_or("name is missing")?;
        let mut topic = Topic::new(TopicName::new(name).map_err(|e| e.to_string())?, "");
        topic.assign(&given).map_err(|e| e.to_string())?;
        Ok(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_expires_after_its_due_time_as_it_or_its_topic_says() {
        let hour = Topic { expire_after: HOUR, ..Topic::new(TopicName::new("t").unwrap(), "http://h/") };
        let never = Topic { expire_after: Duration::ZERO, ..hour.clone() };
        let (minute, due) = (Some(Duration::from_secs(60)), Due::In(Duration::from_secs(1)));
        assert_eq!(hour.expires_ms(None, due, 5000), Some(3_606_000));
        assert_eq!(hour.expires_ms(minute, Due::At(7000), 5000), Some(67_000));
        assert_eq!(
            [never.expires_ms(None, due, 5000), hour.expires_ms(Some(Duration::ZERO), due, 5000)],
            [None; 2]
        );
        assert_eq!(never.expires_ms(minute, due, 5000), Some(66_000));
    }

    #[test]
    fn an_expired_lease_is_never_the_last_while_a_flag_may_ask() {
        let plain = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        let with = |flag: &str, max_notifications: Option<u32>| {
            Topic { re_notify_flag: flag.to_owned(), max_notifications, ..plain.clone() }.lease_limit()
        };
        assert_eq!([with("", None), with("", Some(50))], [10, 10]);
        let flag = "{res.code} != 0";
        assert_eq!([with(flag, None), with(flag, Some(50)), with(flag, Some(5))], [u32::MAX, 50, 10]);
    }
}

//! Parses requests: from JSON to commands.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Refusal;
use super::fields::{Fields, OPTIONS, TIMES};
use crate::fix_time::{self, LocalClock};
use model::destination::Destination;
use model::follow::Then;
use model::headers::Headers;
use model::job::{Body, Due, JobId, JobKey, LATEST_MS, OnConflict, TopicName};
use model::job_priority::JobPriority;
use model::json_time;
use model::tags::Tags;
use model::token::PresentedToken;
use model::topic::{LEASES, RESERVE_JOBS_MAX};

/// The most jobs that one `madd` may hold.
pub const BATCH_MAX: usize = 10_000;

/// An add as the client asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    /// Topic and id.
    pub key: JobKey,
    /// The body.
    pub body: Body,
    /// When the job is due. `None`: the delay of the topic applies.
    pub due: Option<Due>,
    /// A number, or `high`, `normal` or `low`.
    pub priority: JobPriority,
    /// `replace`, `reject` or `keep`.
    pub on_conflict: OnConflict,
    /// The job's own limit of attempts. None: the limit of the topic.
    pub max_attempts: Option<u32>,
    /// The job's headers, which are added to those of the topic. They also contain the destination, the tags and the
    /// followers of the job.
    pub headers: Headers,
    /// How long after the due time an attempt of the job may begin. Zero: there is no limit. None: as long as the topic
    /// says.
    pub expire_after: Option<Duration>,
}

/// What a client reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    /// The topics, in the order of preference, as they were sent. At least one.
    pub topics: Vec<TopicName>,
    /// The maximum number of jobs.
    pub max: u32,
    /// How long the client waits if there is no job.
    pub wait: Duration,
    /// How long the leases last. None: as long as the job or its topic says.
    pub lease: Option<Duration>,
    /// The name of the client.
    pub consumer: Option<String>,
}

/// A report about a job that the client has reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobReport {
    /// The job.
    pub key: JobKey,
    /// The proof of the lease.
    pub token: String,
    /// What is reported.
    pub kind: ReportKind,
}

/// What a client reports about a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportKind {
    /// The job is done.
    Ack {
        /// What the client says about the result.
        answer: String,
    },
    /// The job could not be done.
    Nack {
        /// The delay until the next attempt. None: the retry policy of the topic decides.
        delay: Option<Duration>,
        /// Why the job could not be done.
        reason: String,
    },
    /// The client needs more time.
    Extend {
        /// How long the lease lasts from now on. None: as long as the job or its topic says.
        lease: Option<Duration>,
    },
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Store a job.
    Add(Add),
    /// Store several jobs. Each one has its own result in the answer.
    Madd(Vec<Result<Add, Refusal>>),
    /// Show a job.
    Get(JobKey),
    /// Remove a job.
    Del(JobKey),
    /// Make a job due now.
    Run(JobKey),
    /// Answer, and do nothing else.
    Ping,
    /// Count the jobs by topic and state. Some: count only the jobs of this topic.
    Stats(Option<TopicName>),
    /// Reserve jobs of pull topics.
    Reserve(Reserve),
    /// Report about a reserved job.
    Report(JobReport),
    /// Authenticate this connection with this token.
    Auth(PresentedToken),
}

/// Parses a request. `clock` gives the time and the zone for reading a `fix_time`.
pub fn parse(json: &[u8], clock: LocalClock<'_>) -> Result<Command, Refusal> {
    let broken = |e: String| Refusal::new("bad_json", format!("the request is not a JSON object: {e}"));
    let text = std::str::from_utf8(json).map_err(|e| broken(e.to_string()))?;
    let (fields, mistakes) = Fields::parse(text).map_err(|e| broken(e.to_string()))?;
    let request = RequestObject(fields);
    let cmd = request.required("cmd")?;
    match string("cmd", cmd)?.as_ref() {
        "add" => {
            fields.check(mistakes)?;
            Ok(Command::Add(request.add(None, clock)?))
        }
        "madd" => madd(request, clock),
        "get" => Ok(Command::Get(request.key(None)?)),
        "del" => Ok(Command::Del(request.key(None)?)),
        "run" => Ok(Command::Run(request.key(None)?)),
        "ping" => Ok(Command::Ping),
        "reserve" => Ok(Command::Reserve(request.reserve()?)),
        verb @ ("ack" | "nack" | "extend") => Ok(Command::Report(request.report(verb)?)),
        "stats" => Ok(Command::Stats(request.get("topic").map(topic).transpose()?)),
        "auth" => {
            // The message does not repeat the value, because the value may contain a part of a secret.
            let token = request.required("token")?;
            let shown = serde_json::from_str(token.get());
            let shown = shown.map_err(|_| Refusal::new("bad_field", "token is not a string"))?;
            Ok(Command::Auth(PresentedToken(shown)))
        }
        other => {
            let known = "add, madd, get, del, run, reserve, ack, nack, extend, ping, stats, auth";
            Err(Refusal::new("unknown_command", format!("cmd {:?} is none of {known}", short(other))))
        }
    }
}

fn madd(common: RequestObject<'_>, clock: LocalClock<'_>) -> Result<Command, Refusal> {
    let jobs: Vec<&RawValue> = serde_json::from_str(common.required("jobs")?.get())
        .map_err(|_| Refusal::new("bad_field", "jobs is not a list"))?;
    if jobs.len() > BATCH_MAX {
        let problem = format!("jobs holds {} jobs, which is more than {BATCH_MAX}", jobs.len());
        return Err(Refusal::new("bad_field", problem));
    }
    // `topic` is the only field of the request that applies to all jobs.
    let mut of_jobs = ["id", "body", "ttr"].into_iter().chain(TIMES).chain(OPTIONS);
    if let Some(field) = of_jobs.find(|field| common.get(field).is_some()) {
        let problem = format!("{field} has no effect beside jobs: give it in each job");
        return Err(Refusal::new("bad_field", problem));
    }
    let one = |raw: &&RawValue| {
        let (fields, mistakes) = Fields::parse(raw.get())
            .map_err(|e| Refusal::new("bad_field", format!("a job is not a JSON object: {e}")))?;
        fields.check(mistakes)?;
        RequestObject(fields).add(common.get("topic"), clock)
    };
    Ok(Command::Madd(jobs.iter().map(one).collect()))
}

/// A request, or a job in a `madd`.
#[derive(Clone, Copy)]
struct RequestObject<'a>(Fields<'a>);

impl<'a> RequestObject<'a> {
    fn get(&self, field: &str) -> Option<&'a RawValue> {
        self.0.get(field)
    }

    fn required(&self, field: &str) -> Result<&'a RawValue, Refusal> {
        self.get(field).ok_or_else(|| missing(field))
    }

    fn key(&self, topic_of_all: Option<&RawValue>) -> Result<JobKey, Refusal> {
        let topic = topic(self.get("topic").or(topic_of_all).ok_or_else(|| missing("topic"))?)?;
        let raw = self.required("id")?;
        // PHP sends the id as a number if the application had a number.
        let id = match raw.get().as_bytes() {
            [b'-' | b'0'..=b'9', ..] if !raw.get().contains(['e', 'E']) => Cow::Borrowed(raw.get()),
            _ => string("id", raw)?,
        };
        let id = JobId::new(id).map_err(|e| Refusal::new("bad_field", format!("id: {e}")))?;
        Ok(JobKey { topic, id })
    }

    fn add(&self, topic_of_all: Option<&RawValue>, clock: LocalClock<'_>) -> Result<Add, Refusal> {
        Ok(Add {
            key: self.key(topic_of_all)?,
            body: Body::from(self.required("body")?),
            due: self.due(clock)?,
            priority: match self.get("priority") {
                None => JobPriority::default(),
                Some(raw) => priority(raw)?,
            },
            on_conflict: match self.get("on_conflict") {
                None => OnConflict::default(),
                Some(raw) => one_of("on_conflict", raw, "\"replace\", \"reject\" or \"keep\"")?,
            },
            max_attempts: match self.get("max_attempts") {
                None => None,
                Some(raw) => Some(number("max_attempts", raw, 1..=1000)? as u32),
            },
            headers: self
                .headers()?
                .with_destination(self.destination()?)
                .with_tags(self.tags()?)
                .with_then(self.then()?)
                .with_ttr(self.ttr()?),
            expire_after: self.span("expire_after")?,
        })
    }

    fn reserve(&self) -> Result<Reserve, Refusal> {
        let topics = match (self.get("topic"), self.get("topics")) {
            (Some(one), None) => vec![topic(one)?],
            (None, Some(raw)) => topics(raw)?,
            (None, None) => return Err(missing("topic")),
            (Some(_), Some(_)) => {
                let problem = "topic and topics exclude each other: give one of them";
                return Err(Refusal::new("bad_field", problem));
            }
        };
        let max = self.get("max").map_or(Ok(1), |raw| number("max", raw, 1..=i64::from(RESERVE_JOBS_MAX)))?;
        let (wait, lease) = (self.span("wait")?.unwrap_or_default(), self.span("lease")?);
        let consumer =
            self.get("consumer").map(|raw| string("consumer", raw).map(Cow::into_owned)).transpose()?;
        Ok(Reserve { topics, max: max as u32, wait, lease, consumer })
    }

    fn report(&self, verb: &str) -> Result<JobReport, Refusal> {
        let text =
            |field| self.get(field).map_or(Ok(String::new()), |raw| string(field, raw).map(Into::into));
        let kind = match verb {
            "ack" => ReportKind::Ack { answer: text("answer")? },
            "nack" => ReportKind::Nack { delay: self.span("delay")?, reason: text("reason")? },
            _ => ReportKind::Extend { lease: self.span("lease")? },
        };
        // The message does not repeat the token, because the token proves the lease.
        let token = serde_json::from_str(self.required("token")?.get());
        let token = token.map_err(|_| Refusal::new("bad_field", "token is not a string"))?;
        Ok(JobReport { key: self.key(None)?, token, kind })
    }

    fn span(&self, field: &str) -> Result<Option<Duration>, Refusal> {
        let span = |raw| json_time::duration(raw).ok_or_else(|| wrong(field, raw, json_time::DURATION));
        self.get(field).map(span).transpose()
    }

    fn headers(&self) -> Result<Headers, Refusal> {
        // PHP writes an empty array for an object without members.
        let given = self.get("headers").filter(|raw| raw.get() != "[]");
        let headers = given.map_or_else(|| Ok(Headers::default()), |raw| Headers::parse(raw.get()));
        headers.map_err(|e| Refusal::new("bad_field", format!("headers: {e}")))
    }

    fn destination(&self) -> Result<Option<Destination>, Refusal> {
        let text = |field| self.get(field).map(|raw| string(field, raw)).transpose();
        let (path, url) = (text("path")?, text("url")?);
        let destination = Destination::from_fields(path.as_deref(), url.as_deref());
        let field = if url.is_some() { "url" } else { "path" };
        destination.map_err(|e| Refusal::new("bad_field", format!("{field}: {e}")))
    }

    fn tags(&self) -> Result<Tags, Refusal> {
        let Some(raw) = self.get("tags") else { return Ok(Tags::default()) };
        let texts: Vec<Cow<'_, str>> = serde_json::from_str(raw.get())
            .map_err(|_| wrong("tags", raw, "a list of texts, such as [\"shop:7\"]"))?;
        Tags::new(texts).map_err(|e| Refusal::new("bad_field", format!("tags: {e}")))
    }

    fn then(&self) -> Result<Then, Refusal> {
        let Some(raw) = self.get("then") else { return Ok(Then::default()) };
        Then::parse(raw.get()).map_err(|e| Refusal::new("bad_field", e.to_string()))
    }

    fn ttr(&self) -> Result<Option<Duration>, Refusal> {
        let ttr = self.span("ttr")?;
        match (ttr, self.get("ttr")) {
            (Some(ttr), Some(raw)) if !(LEASES.0..=LEASES.1).contains(&ttr) => {
                Err(wrong("ttr", raw, "a duration from 100ms to 1day"))
            }
            _ => Ok(ttr),
        }
    }

    fn due(&self, clock: LocalClock<'_>) -> Result<Option<Due>, Refusal> {
        // Users of the PHP client leave fix_time empty if they give no due time.
        let says = |name: &&str| self.get(name).is_some_and(|raw| *name != "fix_time" || raw.get() != "\"\"");
        let mut given = TIMES.into_iter().filter(says);
        let Some(name) = given.next() else { return Ok(None) };
        if let Some(other) = given.next() {
            let problem = format!("{name} and {other} exclude each other: give one of them");
            return Err(Refusal::new("bad_field", problem));
        }
        let raw = self.required(name)?;
        let due = match name {
            "fix_time" => {
                let text = string(name, raw)?;
                fix_time::due(&text, clock).ok_or(fix_time::FORMS)
            }
            "delay" => json_time::duration(raw).map(Due::In).ok_or(json_time::DURATION),
            "delay_ms" => {
                let ms = number(name, raw, 0..=LATEST_MS)?;
                Ok(Due::In(Duration::from_millis(ms as u64)))
            }
            "run_at" => json_time::moment_ms(raw).map(Due::At).ok_or(json_time::MOMENT),
            _ => {
                let ms = number(name, raw, 0..=LATEST_MS)?;
                if json_time::is_seconds(ms) {
                    Err("Unix milliseconds (it looks like seconds)")
                } else {
                    Ok(Due::At(ms))
                }
            }
        };
        due.map(Some).map_err(|wanted| wrong(name, raw, wanted))
    }
}

fn missing(field: &str) -> Refusal {
    Refusal::new("missing_field", format!("the field {field} is missing"))
}

fn wrong(field: &str, raw: &RawValue, wanted: &str) -> Refusal {
    Refusal::new("bad_field", format!("{field} is {}, and not {wanted}", short(raw.get())))
}

/// Returns the beginning of a value, at most 80 characters, for a message.
fn short(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(80) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

fn string<'a>(field: &str, raw: &'a RawValue) -> Result<Cow<'a, str>, Refusal> {
    // Most strings have no escapes and need no copy.
    let text = raw.get();
    if let Some(inner) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'))
        && !inner.contains('\\')
    {
        return Ok(inner.into());
    }
    serde_json::from_str::<String>(text).map(Cow::Owned).map_err(|_| wrong(field, raw, "a string"))
}

fn topic(raw: &RawValue) -> Result<TopicName, Refusal> {
    let name = string("topic", raw)?;
    TopicName::new(&name).map_err(|e| Refusal::new("bad_field", e.to_string()))
}

fn topics(raw: &RawValue) -> Result<Vec<TopicName>, Refusal> {
    let wanted = || wrong("topics", raw, "a list of topics");
    let names: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| wanted())?;
    if names.is_empty() { Err(wanted()) } else { names.into_iter().map(topic).collect() }
}

fn one_of<T: for<'a> Deserialize<'a>>(field: &str, raw: &RawValue, wanted: &str) -> Result<T, Refusal> {
    serde_json::from_str(raw.get()).map_err(|_| wrong(field, raw, wanted))
}

/// Reads a priority: a word, or a number in one of the forms of [`number`].
fn priority(raw: &RawValue) -> Result<JobPriority, Refusal> {
    let whole = || json_time::whole(raw.get().trim_matches('"')).and_then(|n| u32::try_from(n).ok());
    let read = serde_json::from_str(raw.get()).ok().or_else(|| whole().map(JobPriority::from_number));
    read.ok_or_else(|| wrong("priority", raw, JobPriority::FORMS))
}

/// Reads a whole number, also in the forms of some encoders (`1800000.0`, `1.8E6`) and as a string.
fn number(field: &str, raw: &RawValue, range: std::ops::RangeInclusive<i64>) -> Result<i64, Refusal> {
    let text = raw.get().trim_matches('"');
    let wanted = || format!("a whole number from {} to {}", range.start(), range.end());
    json_time::whole(text).filter(|n| range.contains(n)).ok_or_else(|| wrong(field, raw, &wanted()))
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use model::job::Priority;

    const UTC: LocalClock<'_> = LocalClock { zone: &TimeZone::UTC, now_ms: || 0 };

    fn parse_text(json: &str) -> Result<Command, Refusal> {
        parse(json.as_bytes(), UTC)
    }

    fn add_of(json: &str) -> Add {
        match parse_text(json) {
            Ok(Command::Add(add)) => add,
            other => panic!("{json}: {other:?}"),
        }
    }

    #[test]
    fn recorded_requests_are_understood() {
        let json = br#"{"id":"i-1","body":{"a":1,"zh":"\u4e2d\u6587","n":{"x":[1,2]}},"fix_time":"2026-12-01 23:50:50","cmd":"add","topic":"soon"}"#;
        let shanghai = TimeZone::get("Asia/Shanghai").unwrap();
        let add = match parse(json, LocalClock { zone: &shanghai, ..UTC }) {
            Ok(Command::Add(add)) => add,
            other => panic!("{other:?}"),
        };
        assert_eq!(add.key.to_string(), "soon:i-1");
        assert_eq!(add.body.as_str(), r#"{"a":1,"zh":"\u4e2d\u6587","n":{"x":[1,2]}}"#);
        assert_eq!(add.due, Some(Due::At(1_796_140_250_000)));
        assert!(matches!(parse_text(r#"{"cmd":"get","topic":"soon","id":"i-1"}"#), Ok(Command::Get(_))));
        assert!(matches!(parse_text(r#"{"cmd":"del","topic":"soon","id":"i-1"}"#), Ok(Command::Del(_))));
    }

    #[test]
    fn what_dq_adds_is_understood() {
        let add = add_of(
            r#"{"cmd":"add","topic":"t","id":7,"body":"x","delay_ms":1500,"priority":"high","on_conflict":"keep","max_attempts":2}"#,
        );
        assert_eq!(add.key.id.as_str(), "7");
        let id = |id: &str| parse_text(&format!(r#"{{"cmd":"get","topic":"t","id":{id}}}"#));
        for number in ["1.5", "-7", "12345678901234567890"] {
            assert!(matches!(id(number), Ok(Command::Get(key)) if key.id.as_str() == number), "{number}");
        }
        assert!(id("1e3").is_err(), "the application may have written it as 1000");
        assert_eq!(add.due, Some(Due::In(Duration::from_millis(1500))));
        assert_eq!(
            (add.priority, add.on_conflict, add.max_attempts),
            (Priority::High.into(), OnConflict::Keep, Some(2))
        );
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":null,"fix_time":"","run_at_ms":"17"}"#);
        assert_eq!((add.due, add.body.as_str()), (Some(Due::At(17)), "null"));
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":1,"headers":{"X-A":"7"}}"#);
        assert_eq!(add.headers.to_text(), r#"{"x-a":"7"}"#);
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":1,"headers":[]}"#);
        assert!(add.headers.is_empty());
        let add =
            add_of(r#"{"cmd":"add","topic":"t","id":"a","body":1,"path":"/7?x=1","headers":{"a":"b"}}"#);
        assert_eq!(add.headers.to_text(), r#"{":path":"/7?x=1","a":"b"}"#);
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":1,"tags":["b","a","b"]}"#);
        assert_eq!(add.headers.to_text(), r#"{":tags":"a b"}"#);
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":1,"ttr":"90s","TTR":7}"#);
        assert_eq!(add.headers.ttr(), Some(Duration::from_secs(90)));
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":1,"tags":[],"headers":{}}"#);
        assert!(add.headers.is_empty());
        let Ok(Command::Madd(jobs)) = parse_text(
            r#"{"cmd":"madd","topic":"t","jobs":[{"id":"a","body":1},{"id":"","body":1},{"topic":"u","id":"b","body":2},7]}"#,
        ) else {
            panic!()
        };
        assert_eq!(jobs.len(), 4);
        assert_eq!(jobs[0].as_ref().unwrap().key.to_string(), "t:a");
        assert!(jobs[1].is_err() && jobs[3].is_err());
        assert_eq!(jobs[2].as_ref().unwrap().key.to_string(), "u:b");
        assert_eq!(parse_text(r#"{"cmd":"ping"}"#), Ok(Command::Ping));
        assert_eq!(parse_text(r#"{"cmd":"stats"}"#), Ok(Command::Stats(None)));
        let auth = parse_text(r#"{"cmd":"auth","token":"dq_x"}"#);
        assert_eq!(auth, Ok(Command::Auth(PresentedToken("dq_x".into()))));
        assert!(!format!("{auth:?}").contains("dq_x"));
        let refused = parse_text(r#"{"cmd":"auth","token":["dq_x"]}"#).unwrap_err();
        assert!(refused.msg.contains("token") && !refused.msg.contains("dq_x"), "{}", refused.msg);
    }

    #[test]
    fn reserves_and_reports_are_understood() {
        let reserve = |json: &str| match parse_text(json) {
            Ok(Command::Reserve(reserve)) => reserve,
            other => panic!("{json}: {other:?}"),
        };
        let names =
            |topics: &[TopicName]| topics.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let one = reserve(r#"{"cmd":"reserve","topic":"t"}"#);
        assert_eq!((names(&one.topics), one.max, one.wait, one.lease), ("t".into(), 1, Duration::ZERO, None));
        let all = reserve(r#"{"cmd":"reserve","topics":["b","a","b"],"max":9,"wait":"30s","lease":90}"#);
        let lease = Some(Duration::from_secs(90));
        assert_eq!((names(&all.topics), all.max, all.lease), ("b a b".into(), 9, lease));
        assert_eq!(all.wait, Duration::from_secs(30));
        let report = |verb: &str, more: &str| {
            let json = format!(r#"{{"cmd":"{verb}","topic":"t","id":7,"token":"x"{more}}}"#);
            match parse_text(&json) {
                Ok(Command::Report(JobReport { key, token, kind })) if key.to_string() == "t:7" => {
                    (token, kind)
                }
                other => panic!("{json}: {other:?}"),
            }
        };
        let kind = |verb: &str, more: &str| report(verb, more).1;
        assert_eq!(report("ack", "").0, "x");
        assert_eq!(kind("ack", r#","answer":"ok""#), ReportKind::Ack { answer: "ok".into() });
        let (delay, reason) = (Some(Duration::from_secs(5)), "no".into());
        assert_eq!(kind("nack", r#","delay":5,"reason":"no""#), ReportKind::Nack { delay, reason });
        assert_eq!(kind("extend", r#","lease":"90s""#), ReportKind::Extend { lease });
    }

    #[test]
    fn delay_and_run_at_mean_what_they_mean_over_http() {
        let due =
            |more: &str| add_of(&format!(r#"{{"cmd":"add","topic":"t","id":"a","body":1,{more}}}"#)).due;
        for (said, ms) in [
            (r#""delay":"30m""#, 1_800_000),
            (r#""delay":"1h30m""#, 5_400_000),
            (r#""delay":1800"#, 1_800_000),
            (r#""delay":1.5"#, 1500),
            (r#""delay":0"#, 0),
            (r#""delay_ms":1800000.0"#, 1_800_000),
            (r#""delay_ms":1.8E6"#, 1_800_000),
        ] {
            assert_eq!(due(said), Some(Due::In(Duration::from_millis(ms))), "{said}");
        }
        assert_eq!(due(r#""run_at":"2030-01-01T00:00:00Z""#), Some(Due::At(1_893_456_000_000)));
        assert_eq!(due(r#""run_at":1893456000000"#), Some(Due::At(1_893_456_000_000)));
        assert_eq!(due(r#""delay":null,"trace_id":"x""#), None);
    }

    #[test]
    fn a_refusal_names_the_field_and_what_would_do() {
        let job = |more: &str| format!(r#"{{"cmd":"add","topic":"t","id":"i","body":1{more}}}"#);
        for (json, err, hints) in [
            ("{".to_owned(), "bad_json", ["JSON", "line 1"]),
            ("[]".to_owned(), "bad_json", ["JSON", "object"]),
            ("{}".to_owned(), "missing_field", ["cmd", "missing"]),
            (r#"{"cmd":"fly"}"#.to_owned(), "unknown_command", ["fly", "madd"]),
            (r#"{"cmd":1}"#.to_owned(), "bad_field", ["cmd is 1", "a string"]),
            (r#"{"cmd":"get","topic":"t"}"#.to_owned(), "missing_field", ["id", "missing"]),
            (r#"{"cmd":"get","topic":"a b","id":"x"}"#.to_owned(), "bad_field", ["a b", "letters"]),
            (r#"{"cmd":"get","topic":"t","id":""}"#.to_owned(), "bad_field", ["id", "256"]),
            (r#"{"cmd":"get","topic":"t","id":{}}"#.to_owned(), "bad_field", ["id is {}", "a string"]),
            (r#"{"cmd":"add","topic":"t","id":"i"}"#.to_owned(), "missing_field", ["body", "missing"]),
            (job(r#","fix_time":"never""#), "bad_field", ["fix_time", "never"]),
            (job(r#","fix_time":"2026-13-01 00:00:00""#), "bad_field", ["fix_time", "2026-13-01"]),
            (job(r#","delay_ms":-1"#), "bad_field", ["delay_ms is -1", "0 to"]),
            (job(r#","delay_ms":1.5"#), "bad_field", ["delay_ms is 1.5", "whole"]),
            (job(r#","run_at_ms":1,"delay_ms":1"#), "bad_field", ["delay_ms", "run_at_ms"]),
            (job(r#","run_at_ms":1796140250"#), "bad_field", ["run_at_ms is 1796140250", "seconds"]),
            (job(r#","delay":"soon""#), "bad_field", ["delay is \"soon\"", "90s"]),
            (job(r#","delay":"1800""#), "bad_field", ["delay is \"1800\"", "a number of seconds"]),
            (job(r#","delay":"""#), "bad_field", ["delay is \"\"", "90s"]),
            (job(r#","run_at":"2026-12-01 23:50:50""#), "bad_field", ["run_at", "+08:00"]),
            (job(r#","run_at":1796140250"#), "bad_field", ["run_at is 1796140250", "milliseconds"]),
            (job(r#","delay":"1s","run_at":5"#), "bad_field", ["delay", "run_at"]),
            (job(r#","delay_seconds":1800"#), "unknown_field", ["\"delay_seconds\"", "delay?"]),
            (job(r#","id":"j""#), "bad_json", ["id", "duplicate"]),
            (r#"{"cmd":"madd","jobs":[],"delay":"1h"}"#.to_owned(), "bad_field", ["delay", "each job"]),
            (job(r#","priority":"urgent""#), "bad_field", ["urgent", "high"]),
            (job(r#","priority":4294967296"#), "bad_field", ["priority", "4294967295"]),
            (job(r#","priority":-1"#), "bad_field", ["priority", "from 0"]),
            (job(r#","on_conflict":1"#), "bad_field", ["on_conflict", "reject"]),
            (job(r#","max_attempts":0"#), "bad_field", ["max_attempts is 0", "1 to"]),
            (job(r#","headers":{"host":"a"}"#), "bad_field", ["headers", "host"]),
            (job(r#","headers":[1]"#), "bad_field", ["headers", "object"]),
            (job(r#","tags":"shop:7""#), "bad_field", ["tags is \"shop:7\"", "list"]),
            (job(r#","tags":["a b"]"#), "bad_field", ["tags: \"a b\"", "white space"]),
            (job(r#","tags":[7]"#), "bad_field", ["tags is [7]", "list of texts"]),
            (job(r#","ttr":"25h""#), "bad_field", ["ttr is \"25h\"", "1day"]),
            (job(r#","ttr":0"#), "bad_field", ["ttr is 0", "100ms"]),
            (job(r#","path":7"#), "bad_field", ["path", "string"]),
            (job(r#","path":"/../a""#), "bad_field", ["path", "dots"]),
            (job(r#","url":"ftp://h/""#), "bad_field", ["url", "https"]),
            (job(r#","url":"http://h/","path":"/a""#), "bad_field", ["url", "path"]),
            (r#"{"cmd":"madd","jobs":{}}"#.to_owned(), "bad_field", ["jobs", "list"]),
            (r#"{"cmd":"reserve"}"#.to_owned(), "missing_field", ["topic", "missing"]),
            (r#"{"cmd":"reserve","topics":[]}"#.to_owned(), "bad_field", ["topics is []", "list"]),
            (r#"{"cmd":"reserve","topic":"t","topics":["t"]}"#.to_owned(), "bad_field", ["topic", "exclude"]),
            (r#"{"cmd":"reserve","topic":"t","max":0}"#.to_owned(), "bad_field", ["max is 0", "1 to 100"]),
            (r#"{"cmd":"reserve","topic":"t","wait":"x"}"#.to_owned(), "bad_field", ["wait", "90s"]),
            (r#"{"cmd":"ack","topic":"t","id":"1"}"#.to_owned(), "missing_field", ["token", "missing"]),
            (r#"{"cmd":"nack","topic":"t","id":"1","token":1}"#.to_owned(), "bad_field", ["token", "string"]),
        ] {
            let refusal = parse_text(&json).expect_err(&json);
            assert_eq!(refusal.err, err, "{json}: {}", refusal.msg);
            assert!(hints.iter().all(|h| refusal.msg.contains(h)), "{json}: {}", refusal.msg);
        }
        assert!(parse(b"\xff\xfe", UTC).is_err());
    }
}

//! The PHP daemon's protocol: a frame is a length and that many bytes of JSON, in one of two framings, told apart by a
//! connection's first byte. Requests and answers are as its clients send and expect them; what dq adds is optional.
//!
//! | framing | length | clients |
//! |---|---|---|
//! | [`Framing::Digits`] | 4 ASCII digits, at most 9999 | DqClient (PHP), the Java client |
//! | [`Framing::Binary`] | 4 bytes, big-endian | DqSwooleClient |

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fix_time;
use crate::headers::Headers;
use crate::job::{Body, Due, JobId, JobKey, LATEST_MS, OnConflict, Priority, TopicName};
use crate::token::Shown;

/// The bytes of a frame's length.
pub const HEADER: usize = 4;

/// The longest frame that 4 digits can announce.
pub const DIGITS_MAX: usize = 9999;

/// The most jobs that one `madd` may hold.
pub const BATCH_MAX: usize = 10_000;

/// How a connection's frames give their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// 4 ASCII digits.
    Digits,
    /// 4 bytes, big-endian; the first is 0, for no frame is 16 MiB long.
    Binary,
}

/// Why the framing is lost: what comes after cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first bytes are no length.
    #[error("a frame begins with 4 digits or 4 big-endian bytes of length, not with \"{}\"", .0.escape_ascii())]
    NoLength([u8; HEADER]),
    /// Longer than allowed, in bytes.
    #[error("a frame of {length} bytes is longer than max_frame, {most}")]
    TooLong {
        /// What it announced.
        length: usize,
        /// What is allowed.
        most: usize,
    },
}

impl Framing {
    /// The framing of a connection that begins with this byte.
    pub fn of(first: u8) -> Option<Framing> {
        match first {
            b'0'..=b'9' => Some(Framing::Digits),
            0 => Some(Framing::Binary),
            _ => None,
        }
    }

    /// Where in `bytes` the first frame's JSON lies; none: it has not arrived in full.
    pub fn frame(self, bytes: &[u8], max_frame: usize) -> Result<Option<Range<usize>>, FrameError> {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let length = match self {
            Framing::Binary => u32::from_be_bytes(*header) as usize,
            Framing::Digits if header.iter().all(u8::is_ascii_digit) => {
                header.iter().fold(0, |n, d| n * 10 + usize::from(d - b'0'))
            }
            Framing::Digits => return Err(FrameError::NoLength(*header)),
        };
        if length > max_frame {
            return Err(FrameError::TooLong { length, most: max_frame });
        }
        Ok((bytes.len() >= HEADER + length).then_some(HEADER..HEADER + length))
    }

    /// Appends a frame. False, and nothing appended: it is too long for this framing.
    #[must_use]
    pub fn append(self, json: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Framing::Digits if json.len() > DIGITS_MAX => return false,
            Framing::Digits => {
                let digit = |of: usize| b'0' + (json.len() / of % 10) as u8;
                out.extend_from_slice(&[digit(1000), digit(100), digit(10), digit(1)]);
            }
            Framing::Binary => match u32::try_from(json.len()) {
                Ok(length) => out.extend_from_slice(&length.to_be_bytes()),
                Err(_) => return false,
            },
        }
        out.extend_from_slice(json);
        true
    }
}

/// Why a request is refused: a machine-readable name, and a reason for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Such as `bad_field`.
    pub err: &'static str,
    /// Names the field, the value, and what would do.
    pub msg: String,
}

impl Refusal {
    /// A refusal of that name, for that reason.
    pub fn new(err: &'static str, msg: impl Into<String>) -> Refusal {
        Refusal { err, msg: msg.into() }
    }
}

/// An add as the client asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    /// Topic and id.
    pub key: JobKey,
    /// The body.
    pub body: Body,
    /// When; none: after the topic's delay.
    pub due: Option<Due>,
    /// `high`, `normal` or `low`.
    pub priority: Priority,
    /// `replace`, `reject` or `keep`.
    pub on_conflict: OnConflict,
    /// The job's own limit.
    pub max_attempts: Option<u32>,
    /// The job's own headers.
    pub headers: Headers,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Store a job.
    Add(Add),
    /// Store many, each answered by itself.
    Madd(Vec<Result<Add, Refusal>>),
    /// Show a job.
    Get(JobKey),
    /// Remove a job.
    Del(JobKey),
    /// Deliver a job now.
    Run(JobKey),
    /// Answer.
    Ping,
    /// Count jobs by topic and state; of one topic, if it is named.
    Stats(Option<TopicName>),
    /// Let this connection in, by this token.
    Auth(Shown),
}

/// The fields of a request, or of a job in a `madd`, each taken apart by itself, so that a refusal can name it. A null is
/// a field that is not there, but for the body.
#[derive(Deserialize, Clone, Copy, Default)]
#[serde(expecting = "an object")]
struct Request<'a> {
    #[serde(borrow, default)]
    cmd: Option<&'a RawValue>,
    #[serde(borrow, default)]
    jobs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    topic: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "any_value")]
    body: Option<&'a RawValue>,
    #[serde(borrow, default)]
    fix_time: Option<&'a RawValue>,
    #[serde(borrow, default)]
    delay_ms: Option<&'a RawValue>,
    #[serde(borrow, default)]
    run_at_ms: Option<&'a RawValue>,
    #[serde(borrow, default)]
    priority: Option<&'a RawValue>,
    #[serde(borrow, default)]
    on_conflict: Option<&'a RawValue>,
    #[serde(borrow, default)]
    max_attempts: Option<&'a RawValue>,
    #[serde(borrow, default)]
    headers: Option<&'a RawValue>,
    #[serde(borrow, default)]
    token: Option<&'a RawValue>,
}

fn any_value<'a, D: serde::Deserializer<'a>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

fn object(text: &str) -> Result<Request<'_>, String> {
    // serde takes a list of the fields' values for a struct as well.
    match text.trim_start().as_bytes().first() {
        Some(b'[') => Err("it is a list".to_owned()),
        _ => serde_json::from_str(text).map_err(|e| e.to_string()),
    }
}

/// Understands a request; `zone` is the one in which `fix_time` is meant.
pub fn parse(json: &[u8], zone: &TimeZone) -> Result<Command, Refusal> {
    let broken = |e: String| Refusal::new("bad_json", format!("the request is not a JSON object: {e}"));
    let text = std::str::from_utf8(json).map_err(|e| broken(e.to_string()))?;
    let request = object(text).map_err(broken)?;
    let Some(cmd) = request.cmd else { return Err(missing("cmd")) };
    match string("cmd", cmd)?.as_ref() {
        "add" => Ok(Command::Add(request.add(None, zone)?)),
        "madd" => madd(request.jobs.ok_or_else(|| missing("jobs"))?, request, zone),
        "get" => Ok(Command::Get(request.key(None)?)),
        "del" => Ok(Command::Del(request.key(None)?)),
        "run" => Ok(Command::Run(request.key(None)?)),
        "ping" => Ok(Command::Ping),
        "stats" => Ok(Command::Stats(request.topic.map(topic).transpose()?)),
        "auth" => {
            // What is no string is not repeated: it may be a part of a secret.
            let token = request.token.ok_or_else(|| missing("token"))?;
            let shown = serde_json::from_str(token.get());
            let shown = shown.map_err(|_| Refusal::new("bad_field", "token is not a string"))?;
            Ok(Command::Auth(Shown(shown)))
        }
        other => {
            let known = "add, madd, get, del, run, ping, stats, auth";
            Err(Refusal::new("unknown_command", format!("cmd {:?} is none of {known}", short(other))))
        }
    }
}

fn madd(jobs: &RawValue, common: Request<'_>, zone: &TimeZone) -> Result<Command, Refusal> {
    let jobs: Vec<&RawValue> =
        serde_json::from_str(jobs.get()).map_err(|_| Refusal::new("bad_field", "jobs is not a list"))?;
    if jobs.len() > BATCH_MAX {
        let problem = format!("jobs holds {} of them, which is more than {BATCH_MAX}", jobs.len());
        return Err(Refusal::new("bad_field", problem));
    }
    let one = |raw: &&RawValue| {
        let job = object(raw.get())
            .map_err(|e| Refusal::new("bad_field", format!("a job is not a JSON object: {e}")))?;
        job.add(common.topic, zone)
    };
    Ok(Command::Madd(jobs.iter().map(one).collect()))
}

impl Request<'_> {
    fn key(&self, topic_of_all: Option<&RawValue>) -> Result<JobKey, Refusal> {
        let topic = topic(self.topic.or(topic_of_all).ok_or_else(|| missing("topic"))?)?;
        let raw = self.id.ok_or_else(|| missing("id"))?;
        // PHP sends a number where the application had one.
        let id = match raw.get().as_bytes() {
            [b'-' | b'0'..=b'9', ..] if raw.get().parse::<i128>().is_ok() => Cow::Borrowed(raw.get()),
            _ => string("id", raw)?,
        };
        let id = JobId::new(id).map_err(|e| Refusal::new("bad_field", format!("id: {e}")))?;
        Ok(JobKey { topic, id })
    }

    fn add(&self, topic_of_all: Option<&RawValue>, zone: &TimeZone) -> Result<Add, Refusal> {
        Ok(Add {
            key: self.key(topic_of_all)?,
            body: Body::from(self.body.ok_or_else(|| missing("body"))?),
            due: self.due(zone)?,
            priority: match self.priority {
                None => Priority::default(),
                Some(raw) => one_of("priority", raw, "\"high\", \"normal\" or \"low\"")?,
            },
            on_conflict: match self.on_conflict {
                None => OnConflict::default(),
                Some(raw) => one_of("on_conflict", raw, "\"replace\", \"reject\" or \"keep\"")?,
            },
            max_attempts: match self.max_attempts {
                None => None,
                Some(raw) => Some(number("max_attempts", raw, 1..=1000)? as u32),
            },
            headers: self.headers()?,
        })
    }

    fn headers(&self) -> Result<Headers, Refusal> {
        // PHP writes an empty array for an object without members.
        let given = self.headers.filter(|raw| raw.get() != "[]");
        let headers = given.map_or_else(|| Ok(Headers::default()), |raw| Headers::parse(raw.get()));
        headers.map_err(|e| Refusal::new("bad_field", format!("headers: {e}")))
    }

    fn due(&self, zone: &TimeZone) -> Result<Option<Due>, Refusal> {
        // The PHP client's users leave fix_time empty for "none".
        let fix_time = self.fix_time.filter(|raw| raw.get() != "\"\"");
        let given = [("fix_time", fix_time), ("delay_ms", self.delay_ms), ("run_at_ms", self.run_at_ms)];
        let mut given = given.into_iter().filter_map(|(name, raw)| Some((name, raw?)));
        let Some((name, raw)) = given.next() else { return Ok(None) };
        if let Some((other, _)) = given.next() {
            return Err(Refusal::new(
                "bad_field",
                format!("{name} and {other} both say when: give one of them"),
            ));
        }
        Ok(Some(match name {
            "fix_time" => {
                let text = string(name, raw)?;
                let no_date = || {
                    let problem =
                        format!("fix_time {:?} is no date such as \"2026-12-01 23:50:50\"", short(&text));
                    Refusal::new("bad_field", problem)
                };
                Due::At(fix_time::moment(&text, zone).ok_or_else(no_date)?)
            }
            "delay_ms" => Due::In(Duration::from_millis(number(name, raw, 0..=LATEST_MS)? as u64)),
            _ => Due::At(number(name, raw, 0..=LATEST_MS)?),
        }))
    }
}

fn missing(field: &str) -> Refusal {
    Refusal::new("missing_field", format!("the field {field} is missing"))
}

fn wrong(field: &str, raw: &RawValue, wanted: &str) -> Refusal {
    Refusal::new("bad_field", format!("{field} is {}, and not {wanted}", short(raw.get())))
}

/// As much of a value as a message should repeat.
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

fn one_of<T: for<'a> Deserialize<'a>>(field: &str, raw: &RawValue, wanted: &str) -> Result<T, Refusal> {
    serde_json::from_str(raw.get()).map_err(|_| wrong(field, raw, wanted))
}

/// A whole number, or a string of its digits.
fn number(field: &str, raw: &RawValue, range: std::ops::RangeInclusive<i64>) -> Result<i64, Refusal> {
    let text = raw.get().trim_matches('"');
    let wanted = || format!("a whole number from {} to {}", range.start(), range.end());
    text.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| wrong(field, raw, &wanted()))
}

/// An answer. `data` is `[]` where there is none, as PHP has it.
#[derive(Debug, Serialize)]
pub struct Answer<'a, D: Serialize> {
    code: u8,
    msg: &'a str,
    data: D,
    #[serde(skip_serializing_if = "Option::is_none")]
    err: Option<&'a str>,
}

/// `data` where there is none.
const NONE: [(); 0] = [];

impl<'a> Answer<'a, [(); 0]> {
    /// `{"code":1,"msg":"succ","data":[]}`
    pub fn success() -> Self {
        Answer { code: 1, msg: "succ", data: NONE, err: None }
    }

    /// `{"code":0,"msg":"…","data":[],"err":"…"}`
    pub fn failure(refusal: &'a Refusal) -> Self {
        Answer { code: 0, msg: &refusal.msg, data: NONE, err: Some(refusal.err) }
    }
}

impl<D: Serialize> Answer<'_, D> {
    /// `{"code":1,"msg":"succ","data":…}`
    pub fn with(data: D) -> Self {
        Answer { code: 1, msg: "succ", data, err: None }
    }

    /// The JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("answers are plain values")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(json: &str) -> Result<Command, Refusal> {
        parse(json.as_bytes(), &TimeZone::UTC)
    }

    fn add_of(json: &str) -> Add {
        match parse_text(json) {
            Ok(Command::Add(add)) => add,
            other => panic!("{json}: {other:?}"),
        }
    }

    #[test]
    fn recorded_requests_are_understood() {
        let frame = br#"0123{"id":"i-1","body":{"a":1,"zh":"\u4e2d\u6587","n":{"x":[1,2]}},"fix_time":"2026-12-01 23:50:50","cmd":"add","topic":"soon"}"#;
        let framing = Framing::of(frame[0]).unwrap();
        let range = framing.frame(frame, 4096).unwrap().unwrap();
        let add = match parse(&frame[range], &TimeZone::get("Asia/Shanghai").unwrap()) {
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
    fn answers_are_as_the_clients_expect_them() {
        assert_eq!(Answer::success().to_json(), br#"{"code":1,"msg":"succ","data":[]}"#);
        let refusal = Refusal::new("unknown_topic", "no");
        assert_eq!(
            Answer::failure(&refusal).to_json(),
            br#"{"code":0,"msg":"no","data":[],"err":"unknown_topic"}"#
        );
        let mut out = Vec::new();
        assert!(Framing::Digits.append(b"{}", &mut out) && Framing::Binary.append(b"[]", &mut out));
        assert_eq!(out, b"0002{}\0\0\0\x02[]");
        assert!(!Framing::Digits.append(&[b' '; 10_000], &mut out));
        assert_eq!(out.len(), 12);
    }

    #[test]
    fn frames_are_cut_where_they_end() {
        assert_eq!(Framing::Digits.frame(b"000", 10), Ok(None));
        assert_eq!(Framing::Digits.frame(b"0003{}", 10), Ok(None));
        assert_eq!(Framing::Digits.frame(b"0002{}00", 10), Ok(Some(4..6)));
        assert_eq!(Framing::Binary.frame(b"\0\0\0\0\0", 10), Ok(Some(4..4)));
        assert_eq!(Framing::Digits.frame(b"00x2{}", 10), Err(FrameError::NoLength(*b"00x2")));
        assert_eq!(
            Framing::Binary.frame(b"\0\x01\0\0", 10),
            Err(FrameError::TooLong { length: 65536, most: 10 })
        );
        assert_eq!(Framing::of(b'{'), None);
    }

    #[test]
    fn what_dq_adds_is_understood() {
        let add = add_of(
            r#"{"cmd":"add","topic":"t","id":7,"body":"x","delay_ms":1500,"priority":"high","on_conflict":"keep","max_attempts":2}"#,
        );
        assert_eq!(add.key.id.as_str(), "7");
        assert_eq!(add.due, Some(Due::In(Duration::from_millis(1500))));
        assert_eq!(
            (add.priority, add.on_conflict, add.max_attempts),
            (Priority::High, OnConflict::Keep, Some(2))
        );
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":null,"fix_time":"","run_at_ms":"17"}"#);
        assert_eq!((add.due, add.body.as_str()), (Some(Due::At(17)), "null"));
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":1,"headers":{"X-A":"7"}}"#);
        assert_eq!(add.headers.to_text(), r#"{"x-a":"7"}"#);
        let add = add_of(r#"{"cmd":"add","topic":"t","id":"a","body":1,"headers":[]}"#);
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
        assert_eq!(auth, Ok(Command::Auth(Shown("dq_x".into()))));
        assert!(!format!("{auth:?}").contains("dq_x"));
        let refused = parse_text(r#"{"cmd":"auth","token":["dq_x"]}"#).unwrap_err();
        assert!(refused.msg.contains("token") && !refused.msg.contains("dq_x"), "{}", refused.msg);
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
            (job(r#","fix_time":"2026-02-30 00:00:00""#), "bad_field", ["fix_time", "2026-02-30"]),
            (job(r#","delay_ms":-1"#), "bad_field", ["delay_ms is -1", "0 to"]),
            (job(r#","delay_ms":1.5"#), "bad_field", ["delay_ms is 1.5", "whole"]),
            (job(r#","run_at_ms":1,"delay_ms":1"#), "bad_field", ["delay_ms", "run_at_ms"]),
            (job(r#","priority":"urgent""#), "bad_field", ["urgent", "high"]),
            (job(r#","on_conflict":1"#), "bad_field", ["on_conflict", "reject"]),
            (job(r#","max_attempts":0"#), "bad_field", ["max_attempts is 0", "1 to"]),
            (job(r#","headers":{"host":"a"}"#), "bad_field", ["headers", "host"]),
            (job(r#","headers":[1]"#), "bad_field", ["headers", "object"]),
            (r#"{"cmd":"madd","jobs":{}}"#.to_owned(), "bad_field", ["jobs", "list"]),
        ] {
            let refusal = parse_text(&json).expect_err(&json);
            assert_eq!(refusal.err, err, "{json}: {}", refusal.msg);
            assert!(hints.iter().all(|h| refusal.msg.contains(h)), "{json}: {}", refusal.msg);
        }
        assert!(parse(b"\xff\xfe", &TimeZone::UTC).is_err());
    }
}

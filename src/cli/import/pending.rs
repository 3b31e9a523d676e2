//! From an entry of the PHP daemon's to a job of dq's. Pure.

use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::headers::Headers;
use crate::job::{Body, Due, JobId, JobKey, LATEST_MS, NewJob, OnConflict, Priority, TopicName};

/// More failures than this are nobody's count: no topic allows so many attempts.
const FAILURES_MAX: u32 = 1_000_000;

/// An entry of `dq_job_info`, and what is said of it elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// `topic:id`.
    pub name: Vec<u8>,
    /// The body, with what the daemon has put into it.
    pub body: Vec<u8>,
    /// Its score in a bucket: when it is due, Unix seconds.
    pub score: Option<f64>,
    /// In which of the ready lists it is.
    pub list: Option<Priority>,
    /// What was noted of it when it was taken over.
    pub noted: Option<Vec<u8>>,
}

/// Where a job was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a bucket: it waits for its time.
    Waiting,
    /// In a ready list.
    Ready,
    /// In neither: the daemon died on the way from one to the other.
    Stranded,
}

impl Entry {
    /// Where it is.
    pub fn place(&self) -> Place {
        match (self.list, self.score) {
            (Some(_), _) => Place::Ready,
            (None, Some(_)) => Place::Waiting,
            (None, None) => Place::Stranded,
        }
    }

    /// The job that it is for dq; or why it is none. One that is in a bucket and in a list is not delivered before its time.
    pub fn job(&self) -> Result<NewJob, String> {
        let (topic, id) = split(&self.name).ok_or("its name holds no `:`")?;
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| "its name is not UTF-8");
        let topic = TopicName::new(text(topic)?).map_err(|e| e.to_string())?;
        let id = JobId::new(text(id)?).map_err(|e| e.to_string())?;
        let body = std::str::from_utf8(&self.body).map_err(|_| "its body is not UTF-8")?;
        let (body, attempts) = unmarked(Body::parse(body).map_err(|e| e.to_string())?);
        Ok(NewJob {
            headers: Headers::default(),
            key: JobKey { topic, id },
            body,
            due: self.due()?,
            priority: self.list.unwrap_or_default(),
            on_conflict: OnConflict::Keep,
            max_attempts: None,
            attempts,
        })
    }

    fn due(&self) -> Result<Due, String> {
        let Some(seconds) = self.score else { return Ok(Due::In(std::time::Duration::ZERO)) };
        let ms = (seconds * 1000.0).ceil();
        if ms.is_nan() || ms > LATEST_MS as f64 {
            return Err(format!("its due time {seconds} is no Unix time before the year 10000"));
        }
        Ok(Due::At(ms.max(0.0) as i64))
    }

    /// What tells it from what it was before, in 16 digits. The numbers are noted: they never change.
    pub fn fingerprint(&self) -> String {
        let due = match self.due() {
            Ok(Due::At(ms)) => ms.to_string(),
            _ => "now".to_owned(),
        };
        // FNV-1a.
        let eat = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let bytes = due.as_bytes().iter().chain(b"\n").chain(&self.body);
        format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, eat))
    }

    /// Its name for people.
    pub fn shown(&self) -> String {
        shown(&self.name)
    }
}

/// Topic and id of a name: an id may hold `:`, a topic does not.
pub fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = name.iter().position(|b| *b == b':')?;
    Some((&name[..at], &name[at + 1..]))
}

/// A name for people: no control characters, and not for ever.
pub fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut short: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().count() > 80 {
        short.push('…');
    }
    short
}

/// The body without what the daemon has put into it, and how often it had failed. All other members stay as they are, to
/// the letter.
fn unmarked(body: Body) -> (Body, u32) {
    let members = match body.as_str().as_bytes().first() {
        Some(b'{') => serde_json::Deserializer::from_str(body.as_str()).deserialize_map(Members).ok(),
        _ => None,
    };
    let Some(members) = members else { return (body, 0) };
    let (mut failures, mut text, mut found) = (0, "{".to_owned(), false);
    for (name, value) in &members {
        let mark = serde_json::from_str::<String>(name.get()).ok();
        let is_mark = match mark.as_deref() {
            Some("notify_time" | "dq_set_time") => true,
            // One that is no count is the business's own.
            Some("exp_notify_nums") => count(value).map(|n| failures = n).is_some(),
            _ => false,
        };
        found |= is_mark;
        if !is_mark {
            let comma = if text.len() > 1 { "," } else { "" };
            text += &format!("{comma}{}:{}", name.get(), value.get());
        }
    }
    text.push('}');
    if found { (Body::trusted(text), failures) } else { (body, 0) }
}

/// A count, as PHP writes it: a number, or the digits of one.
fn count(value: &RawValue) -> Option<u32> {
    value.get().trim_matches('"').parse().ok().filter(|n| *n <= FAILURES_MAX)
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(&'de RawValue, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = Vec::new();
        while let Some(member) = map.next_entry()? {
            out.push(member);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, body: &str) -> Entry {
        Entry { name: name.into(), body: body.into(), score: Some(1.5), list: None, noted: None }
    }

    fn body(text: &str) -> (String, u32) {
        let job = entry("t:i", text).job().unwrap();
        (job.body.as_str().to_owned(), job.attempts)
    }

    #[test]
    fn what_the_daemon_put_into_a_body_is_taken_out_and_the_rest_stays_to_the_letter() {
        let own = r#""b":1.0,"a":1234567890123456789,"zh":"\u4e2d文","n":{"notify_time": 1},"\ud800":[ 1 ],"e":1E+2"#;
        let all = format!(
            "{{\"notify_time\":\"2026-11-20 23:58:21\",{own},\"dq_set_time\":\"x\",\"exp_notify_nums\":3}}"
        );
        assert_eq!(body(&all), (format!("{{{own}}}"), 3));
        assert_eq!(body(r#"{"notify_time":"x","dq_set_time":"y"}"#), ("{}".to_owned(), 0));
        assert_eq!(body(r#"{"exp_notify_nums":"2", "a" : 1 }"#), (r#"{"a":1}"#.to_owned(), 2));
    }

    #[test]
    fn what_is_not_the_daemons_stays_in_the_body() {
        for text in [
            r#"{ "a" : 1 }"#,
            r#""{\"notify_time\":1}""#,
            r#"["notify_time", 1.0]"#,
            "17",
            "null",
            r#"{"exp_notify_nums":"often"}"#,
            r#"{"exp_notify_nums":-1}"#,
            r#"{"exp_notify_nums":5000000}"#,
        ] {
            assert_eq!(body(text), (text.to_owned(), 0));
        }
    }

    #[test]
    fn a_name_is_cut_at_its_first_colon() {
        let key = entry("orders:a: b:1", "1").job().unwrap().key;
        assert_eq!((key.topic.as_str(), key.id.as_str()), ("orders", "a: b:1"));
        let long = "x".repeat(257);
        for (name, why) in [
            ("orders", "no `:`"),
            ("orders:", "0 bytes"),
            (":i", "topic"),
            ("a b:i", "topic"),
            (&*format!("t:{long}"), "257"),
        ] {
            let error = entry(name, "1").job().unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
        let bytes =
            |name: &[u8], body: &[u8]| Entry { name: name.into(), body: body.into(), ..entry("", "") };
        assert!(bytes(b"t:\xff", b"1").job().unwrap_err().contains("UTF-8"));
        assert!(bytes(b"t:i", b"\"\xff\"").job().unwrap_err().contains("body is not UTF-8"));
        assert!(bytes(b"t:i", b"{").job().unwrap_err().contains("not JSON"));
    }

    #[test]
    fn a_due_time_is_the_score_in_milliseconds_and_never_earlier() {
        let due = |score| Entry { score, ..entry("t:i", "1") }.job().map(|job| job.due);
        assert_eq!(due(Some(1_800_000_000.0)), Ok(Due::At(1_800_000_000_000)));
        assert_eq!(due(Some(1.0001)), Ok(Due::At(1001)));
        assert_eq!(due(Some(-5.0)), Ok(Due::At(0)));
        assert_eq!(due(None), Ok(Due::In(std::time::Duration::ZERO)));
        for bad in [1e12, f64::INFINITY, f64::NAN] {
            assert!(due(Some(bad)).unwrap_err().contains("due time"), "{bad}");
        }
        let both = Entry { list: Some(Priority::High), ..entry("t:i", "1") };
        let job = both.job().unwrap();
        assert_eq!((both.place(), job.due, job.priority), (Place::Ready, Due::At(1500), Priority::High));
    }

    #[test]
    fn a_fingerprint_tells_bodies_and_due_times_apart_and_is_what_it_was() {
        let one = entry("t:i", "1");
        assert_eq!(one.fingerprint(), "49ecf8b27b61d3ce");
        assert_ne!(one.fingerprint(), entry("t:i", "2").fingerprint());
        assert_ne!(one.fingerprint(), Entry { score: Some(2.0), ..one.clone() }.fingerprint());
        let ready = Entry { score: None, ..one.clone() };
        assert_eq!(ready.fingerprint(), Entry { list: Some(Priority::Low), ..ready.clone() }.fingerprint());
    }
}

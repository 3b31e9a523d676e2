//! Makes a job of dq from an entry of the PHP daemon. Pure.

use jiff::tz::TimeZone;

use super::body::{PhpBody, unmarked};
use model::headers::Headers;
use model::job::{Body, Due, JobId, JobKey, LATEST_MS, NewJob, OnConflict, Priority, TopicName};

/// The beginning of a note while the job is held back in the store.
const HELD: &[u8] = b"held:";

/// The time zone and the moment by which the PHP daemon's times are read.
#[derive(Debug, Clone)]
pub struct PhpTimeContext {
    /// The zone in which the daemon writes times.
    pub zone: TimeZone,
    /// Now, Unix milliseconds.
    pub now_ms: i64,
}

/// An entry of `dq_job_info`, and what other keys hold about it.
#[derive(Debug, Clone, PartialEq)]
pub struct PhpJobInfo {
    /// `topic:id`.
    pub name: Vec<u8>,
    /// The body, with the members that the daemon has put into it.
    pub body: Vec<u8>,
    /// The score of the entry in a bucket: the due time, Unix seconds. `None`: it is in no bucket.
    pub score: Option<f64>,
    /// The ready list that the entry is in. `None`: it is in no list.
    pub list: Option<Priority>,
    /// The note of an import about the entry: it was taken over, or is held back in the store.
    pub noted: Option<Vec<u8>>,
}

/// Where a job was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhpJobState {
    /// In a bucket: it waits for its time.
    Waiting,
    /// In a ready list.
    Ready,
    /// In no bucket and in no list. The daemon died while it moved the job, or before it had put the job into a bucket.
    Stranded,
}

/// What was read from an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedPhpJob {
    /// The job for dq.
    pub job: NewJob,
    /// The `notify_time` of its body, Unix milliseconds.
    pub notify_ms: Option<i64>,
}

/// What the note of an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportNote {
    /// There is no note.
    Nothing,
    /// The job is in the store, and may be held back there.
    Held,
    /// The job was taken over.
    Taken,
    /// A job of this name was taken over or held back, but the entry has changed since.
    Otherwise,
}

impl PhpJobInfo {
    /// Returns where the entry is.
    pub fn place(&self) -> PhpJobState {
        match (self.list, self.score) {
            (Some(_), _) => PhpJobState::Ready,
            (None, Some(_)) => PhpJobState::Waiting,
            (None, None) => PhpJobState::Stranded,
        }
    }

    /// Returns the job for dq, or the reason why the entry cannot become a job. An entry that is both in a bucket and
    /// in a list is not delivered before its due time. The PHP daemon writes `notify_time` whenever it gives a job a
    /// due time. So `notify_time` is the due time of an entry that is in no bucket.
    pub fn parse(&self, clock: &PhpTimeContext) -> Result<ParsedPhpJob, String> {
        let (topic, id) = split(&self.name).ok_or("its name holds no `:`")?;
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| "its name is not UTF-8");
        let topic = TopicName::new(text(topic)?).map_err(|e| e.to_string())?;
        let id = JobId::new(text(id)?).map_err(|e| e.to_string())?;
        let body = std::str::from_utf8(&self.body).map_err(|_| "its body is not UTF-8")?;
        let PhpBody { body, failures, notify_time } = unmarked(Body::parse(body).map_err(|e| e.to_string())?);
        // When clocks are set back, a local time occurs twice. The later moment counts, so that no job is early.
        let notify_ms = notify_time
            .and_then(|at| clock.zone.to_ambiguous_zoned(at).later().ok())
            .map(|at| at.timestamp().as_millisecond());
        let job = NewJob {
            headers: Headers::default(),
            key: JobKey { topic, id },
            body,
            due: self.due(notify_ms, clock.now_ms)?,
            priority: self.list.unwrap_or_default().into(),
            on_conflict: OnConflict::Keep,
            max_attempts: None,
            attempts: failures,
            quota: None,
        };
        Ok(ParsedPhpJob { job, notify_ms })
    }

    fn due(&self, notify_ms: Option<i64>, now_ms: i64) -> Result<Due, String> {
        let Some(seconds) = self.score else {
            // The PHP daemon puts a job into a ready list only when the job is due. So a `notify_time` in the future
            // was read in the wrong time zone, and is not used.
            let known = notify_ms.filter(|at| self.place() == PhpJobState::Stranded || *at <= now_ms);
            return Ok(known.map_or(Due::In(std::time::Duration::ZERO), Due::At));
        };
        milliseconds(seconds)
            .map(Due::At)
            .ok_or_else(|| format!("its due time {seconds} is no Unix time before the year 10000"))
    }

    /// Returns by how many minutes the `notify_time` of a waiting job is later than its due time. The PHP daemon gives
    /// both the same moment. So a difference of whole quarters of an hour means that `notify_time` was read in a time
    /// zone that is not the PHP daemon's. `None`: there is no such difference.
    pub fn zone_error_min(&self, notify_ms: Option<i64>) -> Option<i64> {
        let off_ms = notify_ms?.checked_sub(milliseconds(self.score?)?)?;
        (off_ms != 0 && off_ms % 900_000 == 0).then_some(off_ms / 60_000)
    }

    /// Returns 16 digits that change when the due time or the body changes. The digits are stored in notes, so the
    /// calculation must never change. For a job that is in no bucket, the text `now` is used as its due time. So the
    /// digits do not depend on the present time.
    pub fn fingerprint(&self) -> String {
        self.fingerprint_due(self.score.and_then(milliseconds))
    }

    fn fingerprint_due(&self, due_ms: Option<i64>) -> String {
        let due = due_ms.map_or_else(|| "now".to_owned(), |ms| ms.to_string());
        // FNV-1a.
        let eat = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let bytes = due.as_bytes().iter().chain(b"\n").chain(&self.body);
        format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, eat))
    }

    /// Returns the note for a job that is held back in the store.
    pub fn held_note(&self) -> Vec<u8> {
        [HELD, self.fingerprint().as_bytes()].concat()
    }

    /// Returns what the note says. If the daemon moves a job from a bucket to a list, or loses it on the way, the entry
    /// still counts as the same job. This is safe, because the body contains the due time, and changes whenever the due
    /// time changes.
    pub fn noted(&self, notify_ms: Option<i64>) -> ImportNote {
        let Some(noted) = self.noted.as_deref() else { return ImportNote::Nothing };
        let (state, print) = match noted.strip_prefix(HELD) {
            Some(print) => (ImportNote::Held, print),
            None => (ImportNote::Taken, noted),
        };
        let is = |due_ms: Option<i64>| self.fingerprint_due(due_ms).as_bytes() == print;
        let moved = || notify_ms.is_some() && (is(None) || is(notify_ms));
        if is(self.score.and_then(milliseconds)) || moved() { state } else { ImportNote::Otherwise }
    }

    /// Returns the name of the entry for people.
    pub fn display_name(&self) -> String {
        display_name(&self.name)
    }
}

/// Returns a score as a due time in milliseconds, rounded up so that no job is early. `None`: the score is not a due
/// time.
fn milliseconds(seconds: f64) -> Option<i64> {
    let ms = (seconds * 1000.0).ceil();
    (!ms.is_nan() && ms <= LATEST_MS as f64).then_some(ms.max(0.0) as i64)
}

/// Splits a name into topic and id. An id may contain `:`, but a topic does not.
pub fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = name.iter().position(|b| *b == b':')?;
    Some((&name[..at], &name[at + 1..]))
}

/// Returns a name for people: without control characters, and cut after 80 characters.
pub fn display_name(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut short: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().count() > 80 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_796_000_000_000;

    fn clock(offset: i8) -> PhpTimeContext {
        PhpTimeContext { zone: TimeZone::fixed(jiff::tz::offset(offset)), now_ms: NOW_MS }
    }

    fn entry(name: &str, body: &str) -> PhpJobInfo {
        PhpJobInfo { name: name.into(), body: body.into(), score: Some(1.5), list: None, noted: None }
    }

    fn job(entry: &PhpJobInfo) -> Result<NewJob, String> {
        entry.parse(&clock(0)).map(|understood| understood.job)
    }

    #[test]
    fn a_name_is_cut_at_its_first_colon() {
        let key = job(&entry("orders:a: b:1", "1")).unwrap().key;
        assert_eq!((key.topic.as_str(), key.id.as_str()), ("orders", "a: b:1"));
        let long = "x".repeat(257);
        for (name, why) in [
            ("orders", "no `:`"),
            ("orders:", "this one has 0"),
            (":i", "topic"),
            ("a b:i", "topic"),
            (&*format!("t:{long}"), "257"),
        ] {
            let error = job(&entry(name, "1")).unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
        let bytes =
            |name: &[u8], body: &[u8]| PhpJobInfo { name: name.into(), body: body.into(), ..entry("", "") };
        assert!(job(&bytes(b"t:\xff", b"1")).unwrap_err().contains("UTF-8"));
        assert!(job(&bytes(b"t:i", b"\"\xff\"")).unwrap_err().contains("body is not UTF-8"));
        assert!(job(&bytes(b"t:i", b"{")).unwrap_err().contains("not JSON"));
    }

    #[test]
    fn a_due_time_is_the_score_in_milliseconds_and_never_earlier() {
        let due = |score| job(&PhpJobInfo { score, ..entry("t:i", "1") }).map(|job| job.due);
        assert_eq!(due(Some(1_800_000_000.0)), Ok(Due::At(1_800_000_000_000)));
        assert_eq!(due(Some(1.0001)), Ok(Due::At(1001)));
        assert_eq!(due(Some(-5.0)), Ok(Due::At(0)));
        assert_eq!(due(None), Ok(Due::In(std::time::Duration::ZERO)));
        for bad in [1e12, f64::INFINITY, f64::NAN] {
            assert!(due(Some(bad)).unwrap_err().contains("due time"), "{bad}");
        }
        let both = PhpJobInfo { list: Some(Priority::High), ..entry("t:i", "1") };
        let job = job(&both).unwrap();
        assert_eq!(
            (both.place(), job.due, job.priority),
            (PhpJobState::Ready, Due::At(1500), Priority::High.into())
        );
    }

    #[test]
    fn a_job_outside_the_buckets_keeps_its_own_time() {
        let body = r#"{"a":1,"notify_time":"2026-12-01 23:50:50"}"#;
        let at_utc_ms = 1_796_169_050_000;
        let stranded = PhpJobInfo { score: None, ..entry("t:i", body) };
        let due = |entry: &PhpJobInfo, clock: &PhpTimeContext| entry.parse(clock).unwrap().job.due;
        let now = Due::In(std::time::Duration::ZERO);
        assert_eq!(due(&stranded, &clock(0)), Due::At(at_utc_ms));
        assert_eq!(due(&stranded, &clock(8)), Due::At(at_utc_ms - 8 * 3_600_000));
        let late = PhpTimeContext { now_ms: at_utc_ms, ..clock(0) };
        assert_eq!(due(&stranded, &late), Due::At(at_utc_ms), "its time has passed");
        let ready = PhpJobInfo { list: Some(Priority::Low), ..stranded.clone() };
        assert_eq!((due(&ready, &late), due(&ready, &clock(0))), (Due::At(at_utc_ms), now));
        assert_eq!(due(&PhpJobInfo { score: Some(9.0), ..stranded.clone() }, &clock(0)), Due::At(9000));
        let other = PhpJobInfo { body: br#"{"notify_time":"soon"}"#.to_vec(), ..stranded };
        assert_eq!(due(&other, &clock(0)), now);
    }

    #[test]
    fn a_time_that_a_clock_shows_twice_is_the_later_one() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let twice = PhpJobInfo { score: None, ..entry("t:i", r#"{"notify_time":"2027-10-31 02:30:00"}"#) };
        let at = twice.parse(&PhpTimeContext { zone, now_ms: NOW_MS }).unwrap().job.due;
        assert_eq!(at, Due::At(1_824_946_200_000), "01:30 UTC, not 00:30");
    }

    #[test]
    fn another_time_zone_shows_by_quarters_of_an_hour() {
        let waits = PhpJobInfo { score: Some(1_796_169_050.0), ..entry("t:i", "1") };
        assert_eq!(waits.zone_error_min(Some(1_796_169_050_000)), None);
        assert_eq!(waits.zone_error_min(Some(1_796_169_050_000 + 8 * 3_600_000)), Some(480));
        assert_eq!(waits.zone_error_min(Some(1_796_169_050_000 - 900_000)), Some(-15));
        assert_eq!(waits.zone_error_min(Some(1_796_169_051_000)), None);
        assert_eq!(waits.zone_error_min(None), None);
    }

    #[test]
    fn a_fingerprint_depends_on_body_and_due_time_and_is_stable() {
        let one = entry("t:i", "1");
        assert_eq!(one.fingerprint(), "49ecf8b27b61d3ce");
        assert_ne!(one.fingerprint(), entry("t:i", "2").fingerprint());
        assert_ne!(one.fingerprint(), PhpJobInfo { score: Some(2.0), ..one.clone() }.fingerprint());
        let ready = PhpJobInfo { score: None, ..one.clone() };
        assert_eq!(
            ready.fingerprint(),
            PhpJobInfo { list: Some(Priority::Low), ..ready.clone() }.fingerprint()
        );
    }

    #[test]
    fn a_note_is_of_the_same_job_wherever_the_daemon_has_moved_it() {
        let body = r#"{"notify_time":"2026-12-01 23:50:50"}"#;
        let (seconds, at_ms) = (1_796_169_050.0, Some(1_796_169_050_000));
        let waits = PhpJobInfo { score: Some(seconds), ..entry("t:i", body) };
        let lost = PhpJobInfo { score: None, ..waits.clone() };
        let note =
            |of: &PhpJobInfo, note: Vec<u8>| PhpJobInfo { noted: Some(note), ..of.clone() }.noted(at_ms);
        assert_eq!(waits.noted(at_ms), ImportNote::Nothing);
        for (now, then) in [(&waits, &waits), (&waits, &lost), (&lost, &waits), (&lost, &lost)] {
            assert_eq!(note(now, then.fingerprint().into_bytes()), ImportNote::Taken);
            assert_eq!(note(now, then.held_note()), ImportNote::Held);
        }
        assert_eq!(note(&waits, entry("t:i", "1").fingerprint().into_bytes()), ImportNote::Otherwise);
        assert_eq!(note(&waits, entry("t:i", "1").held_note()), ImportNote::Otherwise);

        // If the body has no time, an entry with another due time counts as another job.
        let bare = entry("t:i", "1");
        let moved = PhpJobInfo { score: None, noted: Some(bare.fingerprint().into_bytes()), ..bare };
        assert_eq!(moved.noted(None), ImportNote::Otherwise);
    }
}

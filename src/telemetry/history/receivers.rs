//! Samples of the counts of the topics' receivers. They show how healthy a receiver was over ten minutes, a day and a
//! week. The counts since a sample are the current counts minus the counts of the sample. So one sample is enough to
//! calculate the counts of a span, and samples can be far apart.
//!
//! A sample is a file with the counts of all topics that had attempts. A file has at most [`SAMPLE_MAX`] bytes, and
//! there are at most 113 files. So the samples have at most 57 MiB, even with very many topics. A topic takes about 200
//! bytes of a sample.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Ring;
use model::job::TopicName;
use model::metrics::{CounterTotals, ReceiverCounts};

/// The beginning of a sample. A file that begins with another text is of another release, and is ignored.
const LAYOUT: &str = "dq-receivers-1";

/// The maximum size of a sample, in bytes. If the topics need more, the topics with the fewest attempts are left out.
const SAMPLE_MAX: usize = 512 << 10;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// A span of time that ends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiverSpan {
    /// Ten minutes.
    TenMinutes,
    /// A day.
    Day,
    /// A week.
    Week,
}

impl ReceiverSpan {
    const ALL: [ReceiverSpan; 3] = [ReceiverSpan::TenMinutes, ReceiverSpan::Day, ReceiverSpan::Week];

    /// Returns the span's name.
    pub fn name(self) -> &'static str {
        match self {
            ReceiverSpan::TenMinutes => "10m",
            ReceiverSpan::Day => "1d",
            ReceiverSpan::Week => "7d",
        }
    }

    /// Returns the ring of samples for the span. The ring has one sample for each step of the span, and one more.
    fn ring(self) -> Ring {
        let (step_ms, count) = match self {
            ReceiverSpan::TenMinutes => (MINUTE_MS / 2, 21),
            ReceiverSpan::Day => (HOUR_MS / 2, 49),
            ReceiverSpan::Week => (4 * HOUR_MS, 43),
        };
        Ring { step_ms, count, begin: 0 }
    }

    fn length_ms(self) -> i64 {
        let ring = self.ring();
        ring.step_ms * (ring.count - 1)
    }

    fn path(self, run_dir: &Path, step: i64) -> PathBuf {
        folder(run_dir).join(format!("{}.{}", self.name(), step.rem_euclid(self.ring().count)))
    }
}

impl FromStr for ReceiverSpan {
    type Err = ();
    fn from_str(text: &str) -> Result<ReceiverSpan, ()> {
        ReceiverSpan::ALL.into_iter().find(|span| span.name() == text).ok_or(())
    }
}

/// What a receiver did in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverPoint {
    /// When the span began, Unix milliseconds: the moment of the first sample in the requested span.
    pub since_ms: i64,
    /// What the receiver did since then.
    pub counts: ReceiverCounts,
}

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("history.receivers")
}

/// A sample as it was read.
struct ReceiverSample {
    at_ms: i64,
    /// Whether topics were left out.
    is_cut: bool,
    text: String,
}

impl ReceiverSample {
    /// Reads the sample of a step. None: there is no sample of this step.
    fn read(run_dir: &Path, span: ReceiverSpan, step: i64) -> io::Result<Option<ReceiverSample>> {
        let text = match fs::read_to_string(span.path(run_dir, step)) {
            Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::InvalidData].contains(&e.kind()) => {
                return Ok(None);
            }
            other => other?,
        };
        let head = |text: &str| {
            let mut words = text.lines().next()?.split(' ');
            words.next().filter(|layout| *layout == LAYOUT)?;
            let at_ms = words.next()?.parse().ok()?;
            Some((at_ms, words.next()? == "cut"))
        };
        let sample = head(&text).map(|(at_ms, is_cut)| ReceiverSample { at_ms, is_cut, text });
        Ok(sample.filter(|sample| span.ring().step(sample.at_ms) == step))
    }

    /// Returns the counts of a topic. None: the counts are not known, because some topics were left out of the sample,
    /// or because the line of the topic cannot be read.
    fn counts(&self, topic: &TopicName) -> Option<ReceiverCounts> {
        let own = |line: &'_ str| line.strip_prefix(topic.as_str()).is_some_and(|rest| rest.starts_with(' '));
        let Some(line) = self.text.lines().skip(1).find(|line| own(line)) else {
            return (!self.is_cut).then(ReceiverCounts::default);
        };
        let mut numbers = [0; ReceiverCounts::COUNT];
        for word in line.split(' ').skip(1) {
            let (place, number) = word.split_once(':')?;
            // A number that only a later release knows is left out.
            if let Some(place) = numbers.get_mut(place.parse::<usize>().ok()?) {
                *place = number.parse().ok()?;
            }
        }
        Some(ReceiverCounts::new(numbers))
    }
}

/// Returns the text of a sample of that moment.
fn text(at_ms: i64, totals: &CounterTotals, bytes_max: usize) -> String {
    let mut receivers = totals.receivers();
    receivers.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.attempts()));
    let (mut lines, mut size) = (Vec::new(), 0);
    for (topic, counts) in &receivers {
        let mut line = String::from(*topic);
        for (place, number) in counts.numbers().iter().enumerate().filter(|(_, number)| **number > 0) {
            // Writing to a string cannot fail.
            let _ = write!(line, " {place}:{number}");
        }
        line.push('\n');
        size += line.len();
        if size > bytes_max {
            break;
        }
        lines.push(line);
    }
    let extent = if lines.len() == receivers.len() { "whole" } else { "cut" };
    format!("{LAYOUT} {at_ms} {extent}\n{}", lines.concat())
}

/// Removes the drafts of processes that were killed. If another process is about to rename its draft, the renaming
/// fails, and that process writes the sample again a few seconds later.
fn remove_drafts(run_dir: &Path) {
    let entries = fs::read_dir(folder(run_dir)).into_iter().flatten().flatten();
    for draft in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"new.")) {
        // If the draft cannot be removed, it stays.
        let _ = fs::remove_file(draft.path());
    }
}

/// Writes the samples.
#[derive(Debug, Default)]
pub(super) struct ReceiverSampleWriter {
    /// The step that was written last, for each span.
    written: [i64; ReceiverSpan::ALL.len()],
}

impl ReceiverSampleWriter {
    /// Writes a sample for each span for which a new step has begun.
    pub(super) fn write(&mut self, run_dir: &Path, now_ms: i64, totals: &CounterTotals) -> io::Result<()> {
        if self.written == [0; ReceiverSpan::ALL.len()] {
            remove_drafts(run_dir);
        }
        let mut made = None;
        for (span, written) in ReceiverSpan::ALL.into_iter().zip(&mut self.written) {
            let step = span.ring().step(now_ms);
            // The previous process may have written the sample of this step already.
            if *written != step && ReceiverSample::read(run_dir, span, step)?.is_none() {
                let text = made.get_or_insert_with(|| text(now_ms, totals, SAMPLE_MAX));
                host::make_folder_in_run_dir(&folder(run_dir))?;
                // While one process takes over from another, both may write. So each process has its own draft.
                let new = folder(run_dir).join(format!("new.{}", std::process::id()));
                fs::write(&new, text.as_bytes())?;
                fs::rename(new, span.path(run_dir, step))?;
            }
            *written = step;
        }
        Ok(())
    }
}

/// Returns what the receiver of a topic did on this host in the span before `now_ms`, Unix milliseconds. `now` has the
/// counts of the topic at this moment. If there is no sample yet, the span is empty.
pub fn read_receiver(
    run_dir: &Path,
    now_ms: i64,
    span: ReceiverSpan,
    topic: &TopicName,
    now: &ReceiverCounts,
) -> io::Result<ReceiverPoint> {
    let (ring, from_ms) = (span.ring(), now_ms - span.length_ms());
    for step in ring.step(from_ms)..=ring.step(now_ms) {
        let Some(sample) =
            ReceiverSample::read(run_dir, span, step)?.filter(|sample| sample.at_ms >= from_ms)
        else {
            continue;
        };
        // If the counters were reset to 0 after a sample, a later sample is used.
        if let Some(counts) = sample.counts(topic).and_then(|before| now.since(&before)) {
            return Ok(ReceiverPoint { since_ms: sample.at_ms, counts });
        }
    }
    Ok(ReceiverPoint { since_ms: now_ms, counts: ReceiverCounts::default() })
}

#[cfg(test)]
mod tests {
    use model::metrics::AttemptOutcome::{Accepted, Failed};
    use model::topic::Failure;

    use super::*;
    use crate::counters::{self, Counters};
    use crate::history::HistoryWriter;

    const BEGIN_MS: i64 = 1_800_000_000_000;

    fn name(topic: &str) -> TopicName {
        TopicName::new(topic).unwrap()
    }

    fn fail(counters: &Counters, status: u16) {
        counters.topic("t").attempted(Failed, Some(status), 0, 3000);
        counters.topic("t").failed_with(Failure::Status(status));
    }

    fn health(run_dir: &Path, now_ms: i64, span: ReceiverSpan) -> ReceiverPoint {
        let now = counters::totals(run_dir).unwrap().receiver_of("t");
        read_receiver(run_dir, now_ms, span, &name("t"), &now).unwrap()
    }

    #[test]
    fn each_span_forgets_what_is_older_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path();
        fs::create_dir(folder(run_dir)).unwrap();
        fs::write(folder(run_dir).join("new.1"), "of a killed process").unwrap();
        // Two processes count for the topic, each in its own page.
        let pages = ["dq-consume-0", "dq-consume-1"].map(|slot| Counters::open(run_dir, slot));
        let mut recorder = HistoryWriter::default();
        // An attempt fails every ten minutes for nine days, and then every minute for an hour.
        let days = (0..9 * 24 * 6).map(|n| BEGIN_MS + n * 10 * MINUTE_MS);
        let hour_at = BEGIN_MS + 9 * 24 * HOUR_MS;
        let hour = (0..60).map(|n| hour_at + n * MINUTE_MS);
        for (n, now_ms) in days.chain(hour).enumerate() {
            if n % 100 == 0 {
                recorder = HistoryWriter::default();
            }
            recorder.record(run_dir, now_ms, || counters::totals(run_dir)).unwrap();
            fail(&pages[n % 2], if now_ms < hour_at { 503 } else { 418 });
        }
        let now_ms = hour_at + HOUR_MS - 1;
        for (span, shortest, failed, last_hour) in [
            (ReceiverSpan::TenMinutes, 9 * MINUTE_MS, 9..=10, 9..=10),
            (ReceiverSpan::Day, 23 * HOUR_MS, 60 + 22 * 6..=60 + 23 * 6, 60..=60),
            (ReceiverSpan::Week, 163 * HOUR_MS, 60 + 162 * 6..=60 + 167 * 6, 60..=60),
        ] {
            let ReceiverPoint { since_ms, counts } = health(run_dir, now_ms, span);
            assert!(failed.contains(&counts.failed()), "{span:?}: {}", counts.failed());
            let length_ms = now_ms - since_ms;
            assert!((shortest..=span.length_ms()).contains(&length_ms), "{span:?}: {length_ms}");
            let rare = counts.failures().into_iter().find(|(failure, _)| *failure == Failure::Class(4));
            assert!(last_hour.contains(&rare.unwrap().1), "{span:?}: {rare:?}");
            assert_eq!(counts.duration_us(0.99), Some(5000));
        }
        // More than a week later, if nobody has written samples in between, all samples are too old.
        let later = health(run_dir, now_ms + 8 * 24 * HOUR_MS, ReceiverSpan::Week);
        assert_eq!(later.counts, ReceiverCounts::default());
        let files = fs::read_dir(folder(run_dir)).unwrap().count();
        assert!(files <= 113 && !folder(run_dir).join("new.1").exists(), "{files}");
    }

    #[test]
    fn counters_that_begin_anew_are_taken_from_a_later_sample() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path();
        let mut recorder = HistoryWriter::default();
        let mut sample = |at_ms| recorder.record(run_dir, at_ms, || counters::totals(run_dir)).unwrap();
        assert_eq!(health(run_dir, BEGIN_MS, ReceiverSpan::Day).since_ms, BEGIN_MS, "there is no sample");
        let counters = Counters::open(run_dir, "dq-consume-0");
        (0..5).for_each(|_| fail(&counters, 503));
        sample(BEGIN_MS);
        drop(counters);
        fs::remove_dir_all(run_dir.join("metrics")).unwrap();
        sample(BEGIN_MS + HOUR_MS);
        let counters = Counters::open(run_dir, "dq-consume-0");
        counters.topic("t").attempted(Accepted, Some(200), 0, 100);
        let point = health(run_dir, BEGIN_MS + 2 * HOUR_MS, ReceiverSpan::Day);
        assert_eq!(
            (point.since_ms, point.counts.accepted(), point.counts.failed()),
            (BEGIN_MS + HOUR_MS, 1, 0)
        );
    }

    #[test]
    fn a_sample_has_a_bound_and_leaves_out_the_calm_topics() {
        let dir = tempfile::tempdir().unwrap();
        let counters = Counters::open(dir.path(), "dq-consume-0");
        for (topic, attempts) in [("calm", 1), ("busy", 9)] {
            (0..attempts).for_each(|_| counters.topic(topic).attempted(Accepted, Some(200), 0, 100));
        }
        let totals = counters::totals(dir.path()).unwrap();
        let sample = |bytes_max| {
            let text = text(BEGIN_MS, &totals, bytes_max);
            ReceiverSample { at_ms: BEGIN_MS, is_cut: text.contains(" cut\n"), text }
        };
        let cut = sample(30);
        assert_eq!(cut.counts(&name("busy")), Some(totals.receiver_of("busy")));
        assert_eq!(cut.counts(&name("calm")), None, "it is not known, so it is not 0");
        let whole = sample(SAMPLE_MAX);
        assert_eq!(whole.counts(&name("calm")), Some(totals.receiver_of("calm")));
        assert_eq!(whole.counts(&name("bus")), Some(ReceiverCounts::default()));
    }
}

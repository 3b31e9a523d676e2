//! The counts of the last minutes and hours, for charts. They are samples of the sums, in two ring buffers in a file of
//! `run_dir`. The moment of a sample gives its place in the file. So a new process can continue without knowledge about
//! the previous process, and a restart loses nothing. A reader takes the differences between samples.

mod receivers;
mod topics;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use self::receivers::{ReceiverPoint, ReceiverSpan, read_receiver};
pub use self::topics::{TopicPoint, add_rates, measured_rates, read_topic};
use model::metrics::{CounterTotals, LATENESS_RANGES, LatenessHistogram, MetricSubject, Sums};

/// The number of words in a sample: its layout, its moment, sums, lateness.
const WORDS: usize = 2 + Sums::COUNT + LATENESS_RANGES;

/// The layout of a sample. A sample with another number is of another release, and is ignored.
const LAYOUT: u64 = 2;

/// The size of a sample, in bytes.
const SIZE: usize = WORDS * 8;

/// A ring buffer: it has `count` samples, one for every `step_ms` milliseconds.
#[derive(Debug, Clone, Copy)]
struct Ring {
    step_ms: i64,
    count: i64,
    /// The place in the file at which the ring buffer begins, as a number of samples.
    begin: i64,
}

impl Ring {
    /// Returns the step that a moment belongs to.
    fn step(self, at_ms: i64) -> i64 {
        at_ms / self.step_ms
    }

    /// Returns whether a sample of `at_ms` is recent enough at `now_ms`.
    fn has(self, at_ms: i64, now_ms: i64) -> bool {
        (now_ms - self.step_ms * self.count..=now_ms).contains(&at_ms)
    }
}

/// Ten minutes, and one more sample for the first difference.
const SHORT: Ring = Ring { step_ms: 5_000, count: 121, begin: 0 };

/// A day, and one more sample for the first difference.
const LONG: Ring = Ring { step_ms: 60_000, count: 1441, begin: SHORT.count };

/// The sums of all topics at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SumsSample {
    at_ms: i64,
    sums: Sums,
    lateness: LatenessHistogram,
}

/// What was done between two samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// When the span between the samples ended, Unix milliseconds.
    pub at_ms: i64,
    /// How long the span was, in milliseconds.
    pub span_ms: i64,
    /// What was done in that span.
    pub sums: Sums,
    /// How late attempts began, in microseconds: the median and the 99th percentile. None: there were no attempts.
    pub late_us: Option<(u64, u64)>,
}

/// The points of both rings, the oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// The points of the last ten minutes.
    pub short: Vec<Point>,
    /// The points of the last day.
    pub long: Vec<Point>,
}

/// Returns the path of the file. The name contains the number of the layout, because samples of another layout have
/// another size.
fn path(run_dir: &Path) -> PathBuf {
    run_dir.join(format!("history.{LAYOUT}"))
}

/// Removes the file of the first layout, because dq does not read it any more.
fn remove_old_file(run_dir: &Path) {
    // The file may not exist. If the file cannot be removed, it stays.
    let _ = std::fs::remove_file(run_dir.join("history"));
}

impl SumsSample {
    fn new(at_ms: i64, totals: &CounterTotals) -> SumsSample {
        let topics =
            totals.sums().into_iter().filter(|(subject, _)| matches!(subject, MetricSubject::Topic(_)));
        let sums = topics.fold(Sums::default(), |all, (_, of)| all.plus(of));
        SumsSample { at_ms, sums, lateness: totals.lateness() }
    }

    fn bytes(&self) -> Vec<u8> {
        let words = [LAYOUT, self.at_ms as u64].into_iter().chain(self.sums.numbers());
        let words = words.chain(self.lateness.counts().iter().copied());
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Reads a sample. None: there is no sample of this layout at that place.
    fn parse(bytes: &[u8]) -> Option<SumsSample> {
        let mut words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()));
        words.next().filter(|layout| *layout == LAYOUT)?;
        let at_ms = words.next()? as i64;
        let sums = Sums::new(std::array::from_fn(|_| words.next().unwrap_or(0)));
        Some(SumsSample { at_ms, sums, lateness: LatenessHistogram::new(words) })
    }

    /// Returns what was done since an earlier sample. `None`: the sums were reset to 0 since then.
    fn since(&self, before: &SumsSample) -> Option<Point> {
        let sums = between(before.sums, self.sums)?;
        let lateness = self.lateness.since(&before.lateness)?;
        let late_us = lateness.percentile_us(0.5).zip(lateness.percentile_us(0.99));
        let (at_ms, span_ms) = (self.at_ms, self.at_ms - before.at_ms);
        Some(Point { at_ms, span_ms, sums, late_us })
    }
}

/// Returns what was done between two moments. `None`: the sums were reset to 0 between them.
fn between(before: Sums, now: Sums) -> Option<Sums> {
    let falls = now.numbers().into_iter().zip(before.numbers()).any(|(now, before)| now < before);
    (!falls).then(|| now.since(before))
}

/// Writes the history.
#[derive(Debug, Default)]
pub struct HistoryWriter {
    /// The step that was written last, for each ring buffer.
    written: [i64; 2],
    receivers: receivers::ReceiverSampleWriter,
}

impl HistoryWriter {
    /// Writes a sample into each ring buffer for which a new step has begun. `totals` is called only if there is such a
    /// ring buffer. If a sample cannot be written, it is left out. The next sample is written at the next step.
    pub fn record(
        &mut self,
        run_dir: &Path,
        now_ms: i64,
        totals: impl FnOnce() -> io::Result<CounterTotals>,
    ) -> io::Result<()> {
        let steps = [SHORT, LONG].map(|ring| ring.step(now_ms));
        let before = std::mem::replace(&mut self.written, steps);
        if steps == before {
            return Ok(());
        }
        if before == [0; 2] {
            remove_old_file(run_dir);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path(run_dir))?;
        let totals = totals()?;
        let bytes = SumsSample::new(now_ms, &totals).bytes();
        for (i, ring) in [SHORT, LONG].into_iter().enumerate().filter(|(i, _)| steps[*i] != before[*i]) {
            let place = (ring.begin + steps[i].rem_euclid(ring.count)) as u64 * SIZE as u64;
            // The previous process may have written the sample of this step already.
            let mut there = [0; SIZE];
            let is_written = before[i] == 0
                && file.read_exact_at(&mut there, place).is_ok()
                && SumsSample::parse(&there).is_some_and(|sample| ring.step(sample.at_ms) == steps[i]);
            if !is_written {
                file.write_all_at(&bytes, place)?;
            }
        }
        if steps[0] != before[0] {
            topics::write(run_dir, now_ms, &totals.sums())?;
            self.receivers.write(run_dir, now_ms, &totals)?;
        }
        Ok(())
    }
}

/// Reads the history up to `now_ms`, Unix milliseconds. If nobody has written a history, the result is empty.
pub fn read(run_dir: &Path, now_ms: i64) -> io::Result<History> {
    let bytes = match std::fs::read(path(run_dir)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(History::default()),
        other => other?,
    };
    let ring = |ring: Ring| {
        let begin = ring.begin as usize * SIZE;
        let own = bytes.get(begin..).unwrap_or_default().chunks_exact(SIZE).take(ring.count as usize);
        let mut samples: Vec<SumsSample> = own.filter_map(SumsSample::parse).collect();
        samples.retain(|sample| ring.has(sample.at_ms, now_ms));
        samples.sort_by_key(|sample| sample.at_ms);
        samples.windows(2).filter_map(|two| two[1].since(&two[0])).collect()
    };
    Ok(History { short: ring(SHORT), long: ring(LONG) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: i64, delivered: u64, ranges: &[(Option<u64>, u64)]) -> SumsSample {
        let lateness = LatenessHistogram::from_ranges(ranges.iter().copied());
        SumsSample { at_ms, sums: Sums { delivered, ..Sums::default() }, lateness }
    }

    #[test]
    fn a_point_is_what_was_done_between_two_samples() {
        let before = sample(1000, 5, &[(Some(60), 10)]);
        let after = [(Some(60), 20), (Some(10_000), 10)];
        let point = sample(6000, 25, &after).since(&before).unwrap();
        assert_eq!((point.at_ms, point.span_ms, point.sums.delivered), (6000, 5000, 20));
        // Ten attempts were up to 60 µs late, and ten are in the range that ends at 10 ms.
        let (p50, p99) = point.late_us.unwrap();
        assert!(p50 == 60 && (9_400..=10_000).contains(&p99), "{p50} {p99}");
        assert_eq!(before.since(&sample(0, 6, &[])), None, "the sums have begun anew");
        let calm = sample(7000, 25, &after).since(&sample(6000, 25, &after));
        assert_eq!(calm.unwrap().late_us, None);
        let written = sample(6000, 25, &after);
        assert_eq!(SumsSample::parse(&written.bytes()), Some(written));
    }

    #[test]
    fn samples_outlive_their_writer_and_go_round() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), 1).unwrap(), History::default());
        let none = || Ok(CounterTotals::default());
        let begin_ms = 1_800_000_000_000;
        std::fs::write(dir.path().join("history"), "of the first layout").unwrap();
        let mut recorder = HistoryWriter::default();
        for second in 0..900 {
            if second == 450 {
                recorder = HistoryWriter::default();
            }
            recorder.record(dir.path(), begin_ms + second * 1000, none).unwrap();
        }
        assert!(!dir.path().join("history").exists(), "the file of the first layout");
        let history = read(dir.path(), begin_ms + 899_000).unwrap();
        assert_eq!((history.short.len(), history.long.len()), (120, 14));
        assert!(history.short.iter().all(|point| point.span_ms == 5000), "{history:?}");
        assert!(history.long.iter().all(|point| point.span_ms == 60_000), "{history:?}");
        assert_eq!(history.short.last().unwrap().at_ms, begin_ms + 895_000);
        // A day later, all points are too old.
        assert_eq!(read(dir.path(), begin_ms + 90_000_000).unwrap(), History::default());
        let mut asked = 0;
        for _ in 0..3 {
            recorder
                .record(dir.path(), begin_ms + 899_500, || {
                    asked += 1;
                    Ok(CounterTotals::default())
                })
                .unwrap();
        }
        assert_eq!(asked, 0, "nothing is read where nothing is written");
    }
}

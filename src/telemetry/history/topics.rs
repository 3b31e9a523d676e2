//! Samples of each topic, over ten minutes. Each sample is a file with the sums of all topics. The file is written as a
//! whole, and replaces the file that was written ten minutes before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{SHORT, between};
use model::job::TopicName;
use model::metrics::{MetricSubject, Sums};
use model::quota;
use model::topic::{Rate, Topic};

/// The beginning of a sample. A file that begins with another text is of another release, and is ignored.
const LAYOUT: &str = "dq-topics-1";

/// A topic's sums at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TopicSample {
    at_ms: i64,
    sums: Sums,
}

/// What a topic did between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicPoint {
    /// When the span between the samples ended, Unix milliseconds.
    pub at_ms: i64,
    /// How long the span was, in milliseconds.
    pub span_ms: i64,
    /// What was done in that span.
    pub sums: Sums,
}

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("history.topics")
}

/// Reads the moment of a sample. None: the text is not a sample.
fn moment_ms(text: &str) -> Option<i64> {
    text.lines().next()?.strip_prefix(LAYOUT)?.trim().parse().ok()
}

/// Reads the moment of a sample, and the sums of a topic. The sums are zeros if the topic had done nothing by then.
/// None: the text is not a sample.
fn parse(text: &str, topic: &TopicName) -> Option<TopicSample> {
    let at_ms = moment_ms(text)?;
    let own = text.lines().skip(1).find_map(|line| line.strip_prefix(topic.as_str())?.strip_prefix(' '));
    let Some(own) = own else { return Some(TopicSample { at_ms, sums: Sums::default() }) };
    let mut numbers = own.split(' ').map_while(|n| n.parse().ok());
    let mut sums = [0; Sums::COUNT];
    for sum in &mut sums {
        *sum = numbers.next()?;
    }
    Some(TopicSample { at_ms, sums: Sums::new(sums) })
}

/// Writes a sample of that moment.
pub(super) fn write(run_dir: &Path, at_ms: i64, sums: &[(MetricSubject, Sums)]) -> io::Result<()> {
    let folder = folder(run_dir);
    host::make_folder_in_run_dir(&folder)?;
    let mut text = format!("{LAYOUT} {at_ms}\n");
    for (subject, sums) in sums.iter().filter(|(_, sums)| *sums != Sums::default()) {
        let MetricSubject::Topic(topic) = subject else { continue };
        text.push_str(topic);
        for number in sums.numbers() {
            // Writing to a string cannot fail.
            let _ = write!(text, " {number}");
        }
        text.push('\n');
    }
    // While one process takes over from another, both may write. So each process has its own draft.
    let new = folder.join(format!("new.{}", std::process::id()));
    fs::write(&new, text)?;
    fs::rename(new, folder.join(SHORT.step(at_ms).rem_euclid(SHORT.count).to_string()))
}

/// Returns what a topic did in the ten minutes before `now_ms`, Unix milliseconds. The oldest point comes first.
pub fn read_topic(run_dir: &Path, now_ms: i64, topic: &TopicName) -> io::Result<Vec<TopicPoint>> {
    let folder = folder(run_dir);
    let mut samples = Vec::new();
    for place in 0..SHORT.count {
        match fs::read_to_string(folder.join(place.to_string())) {
            Ok(text) => samples.extend(parse(&text, topic)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    samples.retain(|sample| SHORT.has(sample.at_ms, now_ms));
    samples.sort_by_key(|sample| sample.at_ms);
    let point = |two: &[TopicSample]| {
        let (before, now) = (two[0], two[1]);
        let sums = between(before.sums, now.sums)?;
        Some(TopicPoint { at_ms: now.at_ms, span_ms: now.at_ms - before.at_ms, sums })
    };
    Ok(samples.windows(2).filter_map(point).collect())
}

/// Returns how much was done on this host in one period of a rate, for each of these topics and rates. The number is a
/// mean: over the last ten seconds for a rate per second, over the last minute for a rate per minute, and over the last
/// ten minutes for a rate per hour. `count` chooses what is counted. A topic is missing if there are fewer than two
/// samples.
pub fn measured_rates<'a>(
    run_dir: &Path,
    now_ms: i64,
    limited: impl Iterator<Item = (&'a TopicName, Rate)>,
    count: fn(&Sums) -> u64,
) -> io::Result<BTreeMap<TopicName, u64>> {
    let mut newest = None;
    let mut pairs = BTreeMap::new();
    let mut rates = BTreeMap::new();
    for (topic, limit) in limited {
        if newest.is_none() {
            newest = Some(nearest(run_dir, now_ms, now_ms, -1)?);
        }
        let Some(Some(last)) = &newest else { break };
        let span_ms = quota::measured_span(limit).as_millis() as i64;
        let first = match pairs.entry(span_ms) {
            Entry::Occupied(first) => first.into_mut(),
            Entry::Vacant(new) => new.insert(nearest(run_dir, now_ms, now_ms - span_ms, 1)?),
        };
        let Some((first, last)) =
            first.as_deref().and_then(|text| parse(text, topic)).zip(parse(last, topic))
        else {
            continue;
        };
        // The first samples of the span may be missing. The counts are still divided by the full span. Otherwise a few
        // jobs in a short time would count as a high rate.
        let span = Duration::from_millis((last.at_ms - first.at_ms).max(span_ms) as u64);
        if let Some(sums) = between(first.sums, last.sums).filter(|_| last.at_ms > first.at_ms) {
            rates.insert(topic.clone(), quota::jobs_in_a_period(limit, count(&sums), span));
        }
    }
    Ok(rates)
}

/// Returns how many jobs clients add on this host in one period of `add_rate`, for each topic that has an `add_rate`.
/// The numbers are means, as in [`measured_rates`].
pub fn add_rates<'a>(
    run_dir: &Path,
    now_ms: i64,
    topics: impl Iterator<Item = &'a Topic>,
) -> io::Result<BTreeMap<TopicName, u64>> {
    let limited = topics.filter_map(|topic| Some((&topic.name, topic.add_rate?)));
    measured_rates(run_dir, now_ms, limited, |sums| sums.written)
}

/// Returns the sample of `at_ms`. If there is no such sample, returns the nearest sample before `at_ms` (`way` -1) or
/// after `at_ms` (`way` 1). None: there is no sample in this direction.
fn nearest(run_dir: &Path, now_ms: i64, at_ms: i64, way: i64) -> io::Result<Option<String>> {
    let step = SHORT.step(at_ms);
    for step in (0..SHORT.count).map(|n| step + n * way).take_while(|step| *step <= SHORT.step(now_ms)) {
        let place = step.rem_euclid(SHORT.count).to_string();
        match fs::read_to_string(folder(run_dir).join(place)) {
            Ok(text) if moment_ms(&text).is_some_and(|at_ms| SHORT.step(at_ms) == step) => {
                return Ok(Some(text));
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_has_its_own_points_which_go_after_ten_minutes() {
        let dir = tempfile::tempdir().unwrap();
        let name = |n: &str| TopicName::new(n).unwrap();
        let begin_ms = 1_800_000_000_000;
        assert_eq!(read_topic(dir.path(), begin_ms, &name("t")).unwrap(), []);
        for step in 0..200_u64 {
            let done = |delivered| Sums { delivered, ..Sums::default() };
            let mut sums = vec![
                (MetricSubject::Topic("t".into()), done(step)),
                (MetricSubject::Topic("t.more".into()), done(7)),
            ];
            // The sums begin at 0 again, as if the folder of the pages was emptied.
            if step >= 190 {
                sums[0].1 = done(step - 190);
            }
            write(dir.path(), begin_ms + step as i64 * 5000, &sums).unwrap();
        }
        let now_ms = begin_ms + 199 * 5000;
        let points = read_topic(dir.path(), now_ms, &name("t")).unwrap();
        // There are 121 samples. Between two of them, the sums were reset to 0.
        assert_eq!(points.len(), 119);
        assert!(points.iter().all(|p| (p.span_ms, p.sums.delivered) == (5000, 1)), "{points:?}");
        assert_eq!(points.last().unwrap().at_ms, now_ms);
        let other = read_topic(dir.path(), now_ms, &name("more")).unwrap();
        assert!(other.len() == 120 && other.iter().all(|p| p.sums == Sums::default()), "{other:?}");
        assert_eq!(fs::read_dir(folder(dir.path())).unwrap().count(), 121);
        // A sample of another release, and one that is cut off.
        fs::write(folder(dir.path()).join("3"), "dq-topics-0 5\n").unwrap();
        fs::write(folder(dir.path()).join("4"), format!("{LAYOUT} {now_ms}\nt 1 2")).unwrap();
        assert!(read_topic(dir.path(), now_ms, &name("t")).unwrap().len() > 110);
    }

    #[test]
    fn a_use_of_add_rate_is_the_mean_of_a_span() {
        let dir = tempfile::tempdir().unwrap();
        let topic = |name: &str, jobs, seconds| Topic {
            add_rate: Some(Rate { jobs, per: Duration::from_secs(seconds) }),
            ..Topic::new(TopicName::new(name).unwrap(), "")
        };
        let topics = [topic("s", 100, 1), topic("m", 100, 60), topic("h", 100, 3600), topic("none", 1, 1)];
        let now_ms = 1_800_000_000_000;
        let rates = |now_ms| add_rates(dir.path(), now_ms, topics.iter()).unwrap();
        assert!(rates(now_ms).is_empty(), "nothing was counted yet");
        for step in 0..=130_u64 {
            // In the last minute, twice as many jobs are added as before; in the last ten seconds, three times as many.
            let written = 10 * (step + step.saturating_sub(118) + step.saturating_sub(128));
            let sums = ["s", "m", "h"]
                .map(|name| (MetricSubject::Topic(name.into()), Sums { written, ..Sums::default() }));
            write(dir.path(), now_ms + step as i64 * 5000, &sums).unwrap();
        }
        let rates = rates(now_ms + 130 * 5000 + 2000);
        let rate = |name: &str| rates[&TopicName::new(name).unwrap()];
        assert_eq!((rate("s"), rate("m"), rate("h"), rate("none")), (6, 260, 8040, 0));
        assert_eq!(
            add_rates(dir.path(), now_ms + 3_600_000, topics.iter()).unwrap(),
            BTreeMap::new(),
            "too old"
        );
    }
}

//! What the log says of requests that are refused: of each source the first at once, and then one line a minute with how many
//! there were. A client that is refused all the time writes no more than that. Pure: the moment is given.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::strikes::Source;

/// How long refusals are counted before a line tells how many they were.
const WINDOW: Duration = Duration::from_secs(60);

/// How many sources are counted by themselves; all others count as one.
const SOURCES: usize = 64;

/// The requests of each source that were refused of late.
#[derive(Debug, Default)]
pub struct RefusalCounts {
    counts: HashMap<Source, SourceCount>,
    /// When the first of them is to be told; none: nothing is counted.
    due: Option<Instant>,
}

/// The refusals of one source since a moment.
#[derive(Debug)]
struct SourceCount {
    since: Instant,
    all: u64,
    /// Those of them by requests that had no valid token.
    without_token: u64,
    /// One that has no line of its own; none: all have.
    example: Option<String>,
}

/// How many requests of a source were refused within a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalSummary {
    /// Where they came from.
    pub source: Source,
    /// How many they were.
    pub all: u64,
    /// How many of them had no valid token, where one is needed.
    pub without_token: u64,
    span: Duration,
    example: String,
}

impl RefusalCounts {
    /// Counts a refused request. Gives `text` back if it is to be logged at once: it is the source's first for a minute,
    /// and had a valid token, or needed none. `text` is of bounded length.
    pub fn count(
        &mut self,
        source: Source,
        has_token: bool,
        now: Instant,
        text: impl FnOnce() -> String,
    ) -> Option<String> {
        let is_full = self.counts.len() >= SOURCES && !self.counts.contains_key(&source);
        let source = if is_full { Source::Others } else { source };
        let new = SourceCount { since: now, all: 0, without_token: 0, example: None };
        let is_first = !self.counts.contains_key(&source);
        let count = self.counts.entry(source).or_insert(new);
        count.all += 1;
        count.without_token += u64::from(!has_token);
        self.due.get_or_insert(now + WINDOW);
        if is_first && has_token {
            return Some(text());
        }
        if count.example.is_none() {
            count.example = Some(text());
        }
        None
    }

    /// When [`RefusalCounts::summaries`] is to be asked next; none: nothing is counted.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The counts of the sources whose minute is over. One that was refused nothing for a minute is forgotten.
    pub fn summaries(&mut self, now: Instant) -> Vec<RefusalSummary> {
        self.take(now, |count| now.saturating_duration_since(count.since) >= WINDOW)
    }

    /// All counts, however short their time was: nobody will ask again.
    pub fn last_summaries(&mut self, now: Instant) -> Vec<RefusalSummary> {
        let summaries = self.take(now, |_| true);
        *self = RefusalCounts::default();
        summaries
    }

    fn take(&mut self, now: Instant, is_over: impl Fn(&SourceCount) -> bool) -> Vec<RefusalSummary> {
        let mut summaries = Vec::new();
        self.counts.retain(|source, count| {
            if !is_over(count) {
                return true;
            }
            let next = SourceCount { since: now, all: 0, without_token: 0, example: None };
            let SourceCount { since, all, without_token, example } = std::mem::replace(count, next);
            // What had a line of its own need not be told again; and its source may have one again.
            let Some(example) = example else { return false };
            let span = now.saturating_duration_since(since);
            summaries.push(RefusalSummary { source: *source, all, without_token, span, example });
            true
        });
        self.due = self.counts.values().map(|count| count.since + WINDOW).min();
        summaries
    }
}

impl fmt::Display for RefusalSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusalSummary { source, all, without_token, span, example } = self;
        let requests = if *all == 1 { "request" } else { "requests" };
        write!(f, "refused {all} {requests} from {source} in the last ")?;
        // The one who asks may be late by a moment.
        match span.as_secs() {
            60 => f.write_str("minute")?,
            seconds => write!(f, "{seconds} s")?,
        }
        match *without_token {
            0 => {}
            n if n == *all => f.write_str(", all without a valid token")?,
            n => write!(f, ", {n} of them without a valid token")?,
        }
        write!(f, ", such as {example}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: u32) -> Source {
        Source::User(n)
    }

    fn texts(summaries: &[RefusalSummary]) -> Vec<String> {
        summaries.iter().map(RefusalSummary::to_string).collect()
    }

    #[test]
    fn the_first_refusal_has_a_line_and_the_others_one_a_minute() {
        let (start, mut refusals) = (Instant::now(), RefusalCounts::default());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(refusals.due(), None);
        let text = |n: u64| move || format!("GET /{n}: 404");
        assert_eq!(refusals.count(source(7), true, at(0), text(0)).as_deref(), Some("GET /0: 404"));
        for n in 1..1234 {
            assert_eq!(refusals.count(source(7), true, at(n / 100), text(n)), None);
        }
        assert_eq!(refusals.due(), Some(at(60)));
        assert_eq!(refusals.summaries(at(59)), []);
        let told = "refused 1234 requests from user 7 in the last minute, such as GET /1: 404";
        assert_eq!(texts(&refusals.summaries(at(60))), [told]);
        // The next one is one of many, and has no line either.
        assert_eq!(refusals.count(source(7), true, at(61), text(9)), None);
        assert_eq!(refusals.due(), Some(at(120)));
        let told = "refused 1 request from user 7 in the last minute, such as GET /9: 404";
        assert_eq!(texts(&refusals.summaries(at(120))), [told]);
        // After a minute without any, it is a first one again, and nothing is counted meanwhile.
        assert_eq!(refusals.summaries(at(180)), []);
        assert_eq!(refusals.due(), None);
        assert!(refusals.count(source(7), true, at(999), text(10)).is_some());
        assert_eq!(refusals.summaries(at(1059)), [], "it had its line");
    }

    #[test]
    fn a_request_without_a_valid_token_is_only_counted() {
        let (now, mut refusals) = (Instant::now(), RefusalCounts::default());
        let text = || "GET /v1/stats: 401".to_owned();
        for _ in 0..3 {
            assert_eq!(refusals.count(source(1), false, now, text), None);
        }
        // Nor does it make a line for the next one that has one.
        assert_eq!(refusals.count(source(2), false, now, text), None);
        assert_eq!(refusals.count(source(2), true, now, text), None);
        let mut told = texts(&refusals.summaries(now + WINDOW));
        told.sort();
        let of = "in the last minute";
        assert_eq!(
            told,
            [
                format!(
                    "refused 2 requests from user 2 {of}, 1 of them without a valid token, such as GET /v1/stats: 401"
                ),
                format!(
                    "refused 3 requests from user 1 {of}, all without a valid token, such as GET /v1/stats: 401"
                ),
            ]
        );
    }

    #[test]
    fn only_so_many_sources_are_told_apart() {
        let (now, mut refusals) = (Instant::now(), RefusalCounts::default());
        let mut lines = 0;
        for round in 0..2 {
            for n in 0..10_000 {
                lines += refusals.count(source(n), true, now, || format!("{round}")).iter().count();
            }
        }
        assert_eq!((lines, refusals.counts.len()), (SOURCES + 1, SOURCES + 1));
        let told = refusals.summaries(now + WINDOW);
        assert_eq!(told.len(), SOURCES + 1);
        assert_eq!(told.iter().map(|summary| summary.all).sum::<u64>(), 20_000);
        let others = told.iter().find(|summary| summary.source == Source::Others).unwrap();
        assert_eq!(others.all, 20_000 - 2 * SOURCES as u64);
    }

    #[test]
    fn what_is_counted_at_the_end_is_told() {
        let (now, mut refusals) = (Instant::now(), RefusalCounts::default());
        let text = || "GET /: 404".to_owned();
        refusals.count(source(1), false, now, text);
        let told = texts(&refusals.last_summaries(now + Duration::from_secs(7)));
        let expected =
            "refused 1 request from user 1 in the last 7 s, all without a valid token, such as GET /: 404";
        assert_eq!(told, [expected]);
        assert_eq!((refusals.due(), refusals.last_summaries(now)), (None, vec![]));
    }
}

//! Decides what the log says about refused requests. The first refusal of a source is logged at once. There is one
//! exception: the request needed a token and had no valid token. After that, one line a minute gives the number of
//! refusals of this source. So a client that is refused all the time causes at most one line a minute. Pure: the
//! current time is an argument.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::failure_limiter::ClientSource;

/// How long refusals are counted before a line gives their number.
const WINDOW: Duration = Duration::from_secs(60);

/// How many sources are counted separately. All other sources are counted as one source.
const SOURCES: usize = 64;

/// The counts of recently refused requests, by source.
#[derive(Debug, Default)]
pub struct RefusalCounts {
    counts: HashMap<ClientSource, SourceCount>,
    /// When the first count is due to be logged. None: nothing is counted.
    due: Option<Instant>,
}

/// The count of one source, since a given time.
#[derive(Debug)]
struct SourceCount {
    since: Instant,
    all: u64,
    /// How many of the refused requests had no valid token.
    without_token: u64,
    /// The text of a refusal that has no log line of its own. None: each counted refusal has its own line.
    example: Option<String>,
}

/// How many requests of a source were refused in a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalSummary {
    /// Where the requests came from.
    pub source: ClientSource,
    /// How many requests were refused.
    pub all: u64,
    /// How many of the refused requests had no valid token, although they needed one.
    pub without_token: u64,
    span: Duration,
    example: String,
}

impl RefusalCounts {
    /// Counts a refused request. Returns `text` if it must be logged at once. Two conditions must hold for this: no count
    /// of refusals is running for the source, and the request had a valid token or needed no token. `text` must have a
    /// bounded length.
    pub fn count(
        &mut self,
        source: ClientSource,
        has_token: bool,
        now: Instant,
        text: impl FnOnce() -> String,
    ) -> Option<String> {
        let is_full = self.counts.len() >= SOURCES && !self.counts.contains_key(&source);
        let source = if is_full { ClientSource::Others } else { source };
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

    /// Returns when to call [`RefusalCounts::summaries`] next. None: nothing is counted.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the counts of the sources whose minute is over. Forgets each source that had no refusal in its minute,
    /// or only one refusal, which was logged at once. The result has no count of such a source.
    pub fn summaries(&mut self, now: Instant) -> Vec<RefusalSummary> {
        self.take(now, |count| now.saturating_duration_since(count.since) >= WINDOW)
    }

    /// Returns all counts, even of sources whose minute is not over, because this is the last call.
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
            // In this minute, the source had no refusal, or only one refusal, which had a line of its own. So there is
            // nothing to log, and the source is forgotten. The next refusal of this source may have a line of its own
            // again.
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
        // If the caller is late by less than a second, the line still says "minute".
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

    fn source(n: u32) -> ClientSource {
        ClientSource::User(n)
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
        let message = "refused 1234 requests from user 7 in the last minute, such as GET /1: 404";
        assert_eq!(texts(&refusals.summaries(at(60))), [message]);
        // The source is still counted, so the next refusal has no line of its own either.
        assert_eq!(refusals.count(source(7), true, at(61), text(9)), None);
        assert_eq!(refusals.due(), Some(at(120)));
        let message = "refused 1 request from user 7 in the last minute, such as GET /9: 404";
        assert_eq!(texts(&refusals.summaries(at(120))), [message]);
        // After a minute without a refusal, nothing is counted, and the next refusal is a first refusal again.
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
        // The next request of that source, which has a valid token, has no line of its own either.
        assert_eq!(refusals.count(source(2), false, now, text), None);
        assert_eq!(refusals.count(source(2), true, now, text), None);
        let mut found = texts(&refusals.summaries(now + WINDOW));
        found.sort();
        let of = "in the last minute";
        assert_eq!(
            found,
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
        let found = refusals.summaries(now + WINDOW);
        assert_eq!(found.len(), SOURCES + 1);
        assert_eq!(found.iter().map(|summary| summary.all).sum::<u64>(), 20_000);
        let others = found.iter().find(|summary| summary.source == ClientSource::Others).unwrap();
        assert_eq!(others.all, 20_000 - 2 * SOURCES as u64);
    }

    #[test]
    fn what_is_counted_at_the_end_is_told() {
        let (now, mut refusals) = (Instant::now(), RefusalCounts::default());
        let text = || "GET /: 404".to_owned();
        refusals.count(source(1), false, now, text);
        let found = texts(&refusals.last_summaries(now + Duration::from_secs(7)));
        let expected =
            "refused 1 request from user 1 in the last 7 s, all without a valid token, such as GET /: 404";
        assert_eq!(found, [expected]);
        assert_eq!((refusals.due(), refusals.last_summaries(now)), (None, vec![]));
    }
}

//! Logs refused requests, in the form that `model::refusals` decides.

use std::time::Instant;

use model::failure_limiter::ClientSource;
use model::refusals::{RefusalCounts, RefusalSummary};

/// The log of the requests that a process refuses.
#[derive(Debug, Default)]
pub struct RefusalLog(RefusalCounts);

impl RefusalLog {
    /// Records a refused request. `has_token`: the request had a valid token, or needed none. `text` says what the
    /// client asked for, and why this is refused. Any part of the text that comes from outside is an
    /// [`Excerpt`](model::excerpt::Excerpt).
    pub fn record(&mut self, source: ClientSource, has_token: bool, text: impl Fn() -> String) {
        match self.0.count(source, has_token, Instant::now(), &text) {
            Some(text) => log::info!(target: "request", "refused a request from {source}: {text}"),
            None => log::debug!(target: "request", "refused a request from {source}: {}", text()),
        }
    }

    /// Returns when [`RefusalLog::log_due`] has something to log. None: nothing was refused recently.
    pub fn due(&self) -> Option<Instant> {
        self.0.due()
    }

    /// Logs the counts of the sources that were counted for a minute.
    pub fn log_due(&mut self, now: Instant) {
        log_all(self.0.summaries(now));
    }

    /// Logs all counts. Call it when the process ends.
    pub fn log_rest(&mut self) {
        log_all(self.0.last_summaries(Instant::now()));
    }
}

fn log_all(summaries: Vec<RefusalSummary>) {
    for summary in summaries {
        // Requests without a valid token may mean that somebody is guessing tokens.
        let level = if summary.without_token > 0 { log::Level::Warn } else { log::Level::Info };
        log::log!(target: "request", level, "{summary}");
    }
}

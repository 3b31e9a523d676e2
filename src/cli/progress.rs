//! Shows the progress of long work on stderr: a bar at a terminal, otherwise a line every few seconds.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The time between two lines.
const PAUSE: Duration = Duration::from_secs(5);

/// The display of the progress of a piece of work.
pub(super) enum Progress {
    /// At a terminal.
    Bar(ProgressBar),
    /// Without a terminal.
    Lines {
        /// How many jobs (or bytes) are done.
        done: u64,
        /// How many jobs (or bytes) there are.
        total: u64,
        /// What is counted, such as `jobs`.
        what: &'static str,
        /// When the last line was written, or when the work began.
        last_line: Instant,
    },
}

impl Progress {
    /// Begins the display, with 0 of `total` done. `what` says what is counted, such as `jobs`.
    pub(super) fn begin(total: u64, what: &'static str) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress::Lines { done: 0, total, what, last_line: Instant::now() };
        }
        let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} {msg}, {eta} left");
        let style = style.expect("the template is a constant");
        Progress::Bar(ProgressBar::new(total).with_style(style).with_message(what))
    }

    /// Adds `jobs` to the number that is done.
    pub(super) fn step(&mut self, jobs: u64) {
        match self {
            Progress::Bar(bar) => bar.inc(jobs),
            Progress::Lines { done, total, what, last_line } => {
                *done += jobs;
                if last_line.elapsed() >= PAUSE {
                    *last_line = Instant::now();
                    eprintln!("{done} of {total} {what}");
                }
            }
        }
    }

    /// Prints another line to stderr, without disturbing the bar.
    pub(super) fn print_line(&self, line: &str) {
        match self {
            Progress::Bar(bar) => bar.suspend(|| eprintln!("{line}")),
            Progress::Lines { .. } => eprintln!("{line}"),
        }
    }

    /// Ends the display.
    pub(super) fn end(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

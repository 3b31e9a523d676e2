//! How far a long piece of work is, on stderr: a bar on a terminal, elsewhere a line every few seconds.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a line is written.
const PAUSE: Duration = Duration::from_secs(5);

/// How far it is.
pub(super) enum Progress {
    /// On a terminal.
    Bar(ProgressBar),
    /// Elsewhere.
    Lines {
        /// Jobs seen.
        done: u64,
        /// Of so many.
        total: u64,
        /// Of what.
        what: &'static str,
        /// When the last line was written, or it began.
        told: Instant,
    },
}

impl Progress {
    /// None of `total` yet: `jobs`, or something else.
    pub(super) fn begin(total: u64, what: &'static str) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress::Lines { done: 0, total, what, told: Instant::now() };
        }
        let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} {msg}, {eta} left");
        let style = style.expect("the template is a constant");
        Progress::Bar(ProgressBar::new(total).with_style(style).with_message(what))
    }

    /// So many more.
    pub(super) fn step(&mut self, jobs: u64) {
        match self {
            Progress::Bar(bar) => bar.inc(jobs),
            Progress::Lines { done, total, what, told } => {
                *done += jobs;
                if told.elapsed() >= PAUSE {
                    *told = Instant::now();
                    eprintln!("{done} of {total} {what}");
                }
            }
        }
    }

    /// A line beside it, on stderr.
    pub(super) fn aside(&self, line: &str) {
        match self {
            Progress::Bar(bar) => bar.suspend(|| eprintln!("{line}")),
            Progress::Lines { .. } => eprintln!("{line}"),
        }
    }

    /// That was all.
    pub(super) fn end(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

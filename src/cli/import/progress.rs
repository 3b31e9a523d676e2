//! How far an import is, on stderr: a bar on a terminal, elsewhere a line every few seconds.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a line is written.
const PAUSE: Duration = Duration::from_secs(5);

/// How far it is.
pub enum Progress {
    /// On a terminal.
    Bar(ProgressBar),
    /// Elsewhere.
    Lines {
        /// Jobs seen.
        done: u64,
        /// Of so many.
        total: u64,
        /// When the last line was written, or it began.
        told: Instant,
    },
}

impl Progress {
    /// None of `total` yet.
    pub fn begin(total: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress::Lines { done: 0, total, told: Instant::now() };
        }
        let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} jobs, {eta} left");
        Progress::Bar(ProgressBar::new(total).with_style(style.expect("the template is a constant")))
    }

    /// So many more.
    pub fn step(&mut self, jobs: u64) {
        match self {
            Progress::Bar(bar) => bar.inc(jobs),
            Progress::Lines { done, total, told } => {
                *done += jobs;
                if told.elapsed() >= PAUSE {
                    *told = Instant::now();
                    eprintln!("{done} of {total} jobs");
                }
            }
        }
    }

    /// That was all.
    pub fn end(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

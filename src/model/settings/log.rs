//! The settings of the log.

use serde::{Deserialize, Serialize};

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSettings {
    /// The form of each line.
    pub format: LogFormat,
    /// If a file has reached this number of bytes, a further file of the same day is begun.
    pub max_size: u64,
    /// How many files of each kind are kept. 0: all files.
    pub keep: usize,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings { format: LogFormat::Text, max_size: 100 << 20, keep: 60 }
    }
}

/// The form of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// Fields as `name=value`, separated by spaces.
    Logfmt,
    /// A JSON object.
    Json,
}

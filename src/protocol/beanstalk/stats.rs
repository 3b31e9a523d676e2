//! The statistics of jobs, tubes and the server. Each entry is declared once: its key, and the field that has its
//! value. The entries have the same order as in beanstalkd.

use std::borrow::Cow;
use std::time::Duration;

use super::tube::TubeName;
use super::yaml::YamlDocument;

/// A value of a dictionary.
trait StatisticsValue: Sized {
    fn to_entry(&self) -> String;

    /// None: the text is not a value of this type.
    fn from_entry(text: &str) -> Option<Self>;
}

/// Declares a dictionary: its documentation, and for each entry the key, the field and its type.
macro_rules! dictionary {
    ($(#[$about:meta])* $name:ident { $($key:literal => $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $(#[doc = concat!("`", $key, "`")] pub $field: $type,)*
        }

        impl $name {
            /// Returns the dictionary for a response.
            pub fn to_document(&self) -> YamlDocument {
                YamlDocument::Dictionary(vec![$((Cow::Borrowed($key), self.$field.to_entry()),)*])
            }

            /// Reads the dictionary of a response. None: an entry is missing, or its value is wrong.
            pub fn from_document(document: &YamlDocument) -> Option<$name> {
                let YamlDocument::Dictionary(entries) = document else { return None };
                let entry = |key: &str| entries.iter().find(|(k, _)| k == key).map(|(_, text)| text);
                Some($name { $($field: StatisticsValue::from_entry(entry($key)?)?,)* })
            }
        }
    };
}

dictionary! {
    /// What `stats-job` shows. Times are in seconds.
    JobStats {
        "id" => id: u64,
        "tube" => tube: TubeName,
        "state" => state: JobState,
        "pri" => priority: u32,
        "age" => age_s: u64,
        "delay" => delay_s: u64,
        "ttr" => ttr_s: u64,
        "time-left" => time_left_s: u64,
        "file" => file: u64,
        "reserves" => reserves: u64,
        "timeouts" => timeouts: u64,
        "releases" => releases: u64,
        "buries" => buries: u64,
        "kicks" => kicks: u64,
    }
}

dictionary! {
    /// What `stats-tube` shows. Times are in seconds. A job is urgent if its priority is below 1024.
    TubeStats {
        "name" => name: TubeName,
        "current-jobs-urgent" => current_jobs_urgent: u64,
        "current-jobs-ready" => current_jobs_ready: u64,
        "current-jobs-reserved" => current_jobs_reserved: u64,
        "current-jobs-delayed" => current_jobs_delayed: u64,
        "current-jobs-buried" => current_jobs_buried: u64,
        "total-jobs" => total_jobs: u64,
        "current-using" => current_using: u64,
        "current-watching" => current_watching: u64,
        "current-waiting" => current_waiting: u64,
        "cmd-delete" => cmd_delete: u64,
        "cmd-pause-tube" => cmd_pause_tube: u64,
        "pause" => pause_s: u64,
        "pause-time-left" => pause_time_left_s: u64,
    }
}

dictionary! {
    /// What `stats` shows. Sizes are in bytes, and times are in seconds.
    #[derive(Default)]
    ServerStats {
        "current-jobs-urgent" => current_jobs_urgent: u64,
        "current-jobs-ready" => current_jobs_ready: u64,
        "current-jobs-reserved" => current_jobs_reserved: u64,
        "current-jobs-delayed" => current_jobs_delayed: u64,
        "current-jobs-buried" => current_jobs_buried: u64,
        "cmd-put" => cmd_put: u64,
        "cmd-peek" => cmd_peek: u64,
        "cmd-peek-ready" => cmd_peek_ready: u64,
        "cmd-peek-delayed" => cmd_peek_delayed: u64,
        "cmd-peek-buried" => cmd_peek_buried: u64,
        "cmd-reserve" => cmd_reserve: u64,
        "cmd-reserve-with-timeout" => cmd_reserve_with_timeout: u64,
        "cmd-delete" => cmd_delete: u64,
        "cmd-release" => cmd_release: u64,
        "cmd-use" => cmd_use: u64,
        "cmd-watch" => cmd_watch: u64,
        "cmd-ignore" => cmd_ignore: u64,
        "cmd-bury" => cmd_bury: u64,
        "cmd-kick" => cmd_kick: u64,
        "cmd-touch" => cmd_touch: u64,
        "cmd-stats" => cmd_stats: u64,
        "cmd-stats-job" => cmd_stats_job: u64,
        "cmd-stats-tube" => cmd_stats_tube: u64,
        "cmd-list-tubes" => cmd_list_tubes: u64,
        "cmd-list-tube-used" => cmd_list_tube_used: u64,
        "cmd-list-tubes-watched" => cmd_list_tubes_watched: u64,
        "cmd-pause-tube" => cmd_pause_tube: u64,
        "job-timeouts" => job_timeouts: u64,
        "total-jobs" => total_jobs: u64,
        "max-job-size" => max_job_size: u64,
        "current-tubes" => current_tubes: u64,
        "current-connections" => current_connections: u64,
        "current-producers" => current_producers: u64,
        "current-workers" => current_workers: u64,
        "current-waiting" => current_waiting: u64,
        "total-connections" => total_connections: u64,
        "pid" => pid: u64,
        "version" => version: QuotedStat,
        "rusage-utime" => rusage_utime: ProcessorTime,
        "rusage-stime" => rusage_stime: ProcessorTime,
        "uptime" => uptime_s: u64,
        "binlog-oldest-index" => binlog_oldest_index: u64,
        "binlog-current-index" => binlog_current_index: u64,
        "binlog-records-migrated" => binlog_records_migrated: u64,
        "binlog-records-written" => binlog_records_written: u64,
        "binlog-max-size" => binlog_max_size: u64,
        "draining" => draining: bool,
        "id" => id: String,
        "hostname" => hostname: String,
        "os" => os: String,
        "platform" => platform: String,
    }
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// The job may be leased.
    Ready,
    /// The job waits for its due time.
    Delayed,
    /// The job is leased.
    Reserved,
    /// The job was put aside.
    Buried,
}

/// A text in quotation marks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotedStat(pub String);

/// How long processors have worked. The text gives the seconds with six decimals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessorTime(pub Duration);

impl StatisticsValue for JobState {
    fn to_entry(&self) -> String {
        let word = match self {
            JobState::Ready => "ready",
            JobState::Delayed => "delayed",
            JobState::Reserved => "reserved",
            JobState::Buried => "buried",
        };
        word.to_owned()
    }

    fn from_entry(text: &str) -> Option<JobState> {
        let states = [JobState::Ready, JobState::Delayed, JobState::Reserved, JobState::Buried];
        states.into_iter().find(|state| state.to_entry() == text)
    }
}

impl StatisticsValue for TubeName {
    fn to_entry(&self) -> String {
        self.to_string()
    }

    fn from_entry(text: &str) -> Option<TubeName> {
        TubeName::new(text.as_bytes())
    }
}

/// Numbers and booleans are written as Rust writes them.
macro_rules! plain_entry {
    ($($type:ty),*) => {
        $(impl StatisticsValue for $type {
            fn to_entry(&self) -> String {
                self.to_string()
            }

            fn from_entry(text: &str) -> Option<$type> {
                text.parse().ok()
            }
        })*
    };
}

plain_entry!(u32, u64, bool);

/// A control character would end the entry, so it becomes a blank.
impl StatisticsValue for String {
    fn to_entry(&self) -> String {
        self.replace(char::is_control, " ")
    }

    fn from_entry(text: &str) -> Option<String> {
        Some(text.to_owned())
    }
}

impl StatisticsValue for QuotedStat {
    fn to_entry(&self) -> String {
        format!("\"{}\"", self.0.replace(|c: char| c.is_control() || c == '"' || c == '\\', " "))
    }

    fn from_entry(text: &str) -> Option<QuotedStat> {
        Some(QuotedStat(text.strip_prefix('"')?.strip_suffix('"')?.to_owned()))
    }
}

impl StatisticsValue for ProcessorTime {
    fn to_entry(&self) -> String {
        format!("{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }

    fn from_entry(text: &str) -> Option<ProcessorTime> {
        let (seconds, micros) = text.split_once('.').filter(|(_, micros)| micros.len() == 6)?;
        let whole = Duration::from_secs(seconds.parse().ok()?);
        whole.checked_add(Duration::from_micros(micros.parse().ok()?)).map(ProcessorTime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_add_entries() {
        let stats = ServerStats {
            version: QuotedStat("1\"\n2".to_owned()),
            hostname: "a\nid: 7\r\n".to_owned(),
            rusage_utime: ProcessorTime(Duration::from_micros(1_000_020)),
            ..ServerStats::default()
        };
        let document = stats.to_document();
        assert_eq!(YamlDocument::parse(document.to_yaml().as_bytes()).unwrap(), document);
        let read = ServerStats::from_document(&document).unwrap();
        assert_eq!((read.hostname.as_str(), read.version.0.as_str()), ("a id: 7  ", "1  2"));
        assert_eq!(read.rusage_utime, stats.rusage_utime);
        assert!(document.to_yaml().contains("rusage-utime: 1.000020\n"));
    }
}

//! The settings of a topic that are written as one text: `"100/s"`, `"spread 10m"`, `"5xx"`, `"{status} == 200"`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which answers of a receiver accept a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Success {
    /// `status`: any status from 200 to 299.
    Status,
    /// `non_empty`: any answer whose body is neither empty nor `0`, with any status. This is the rule of the PHP
    /// daemon.
    NonEmpty,
    /// Any answer for which this expression is true. The expression may use `{status}` and `{res.…}`.
    When(String),
}

impl From<String> for Success {
    fn from(text: String) -> Success {
        match text.trim() {
            "status" => Success::Status,
            "non_empty" => Success::NonEmpty,
            _ => Success::When(text),
        }
    }
}

impl From<Success> for String {
    fn from(success: Success) -> String {
        match success {
            Success::Status => "status".to_owned(),
            Success::NonEmpty => "non_empty".to_owned(),
            Success::When(expression) => expression,
        }
    }
}

/// A rate limit: a number of jobs in a span. It is written `"100/s"`, `"30/m"`, `"500/h"`, or as a number, which means
/// jobs per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RateText", into = "RateText")]
pub struct Rate {
    /// The number of jobs.
    pub jobs: u32,
    /// The span: a second, a minute or an hour.
    pub per: Duration,
}

/// The written form of a rate. A rate per second is written as a number, because every release can read a number.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a rate such as \"100/s\", \"30/m\", \"500/h\"")]
enum RateText {
    Number(u32),
    Text(String),
}

const UNITS: [(&str, u64); 3] = [("s", 1), ("m", 60), ("h", 3600)];

impl Rate {
    /// Makes a rate of `jobs` jobs per second.
    pub const fn per_second(jobs: u32) -> Rate {
        Rate { jobs, per: Duration::from_secs(1) }
    }
}

impl FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Rate, String> {
        let refused = || format!("{text:?} is not a rate, such as \"100/s\", \"30/m\" or \"500/h\"");
        let (jobs, unit) = text.split_once('/').unwrap_or((text, "s"));
        let jobs = jobs.trim().parse().map_err(|_| refused())?;
        let unit = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(refused)?;
        Ok(Rate { jobs, per: Duration::from_secs(unit.1) })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit =
            UNITS.iter().find(|(_, seconds)| self.per.as_secs() == *seconds).map_or("s", |unit| unit.0);
        write!(f, "{}/{unit}", self.jobs)
    }
}

impl TryFrom<RateText> for Rate {
    type Error = String;
    fn try_from(text: RateText) -> Result<Rate, String> {
        match text {
            RateText::Number(jobs) => Ok(Rate::per_second(jobs)),
            RateText::Text(text) => text.parse(),
        }
    }
}

impl From<Rate> for RateText {
    fn from(rate: Rate) -> RateText {
        if rate.per.as_secs() == 1 { RateText::Number(rate.jobs) } else { RateText::Text(rate.to_string()) }
    }
}

/// A number of bytes. It is written `"10MiB"`, `"64kB"`, or as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "SizeText", into = "String")]
pub struct Size(pub u64);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a size such as \"10MiB\", or a number of bytes")]
enum SizeText {
    Number(u64),
    Text(String),
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Size {
    /// Returns the size for people, rounded: `18.5 KiB`.
    pub fn in_words(self) -> String {
        let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => {
                let text = format!("{:.1}", self.0 as f64 / unit as f64);
                format!("{} {name}", text.trim_end_matches(".0"))
            }
            None => format!("{} bytes", self.0),
        }
    }
}

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Size, String> {
        let size: Result<bytesize::ByteSize, String> = text.parse();
        size.map(|size| Size(size.as_u64())).map_err(|_| format!("{text:?} is not a size, such as \"10MiB\""))
    }
}

impl TryFrom<SizeText> for Size {
    type Error = String;
    fn try_from(text: SizeText) -> Result<Size, String> {
        match text {
            SizeText::Number(bytes) => Ok(Size(bytes)),
            SizeText::Text(text) => text.parse(),
        }
    }
}

impl From<Size> for String {
    fn from(size: Size) -> String {
        size.to_string()
    }
}

/// How dq delivers a backlog that became due while nobody could deliver it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CatchUp {
    /// `all`: all jobs at once.
    #[default]
    All,
    /// `spread 10m`: the jobs are spread over this span.
    Spread(Duration),
    /// `skip older than 1h`: a job that has been due for longer than this span becomes a dead letter without an
    /// attempt.
    Skip(Duration),
}

impl FromStr for CatchUp {
    type Err = String;
    fn from_str(text: &str) -> Result<CatchUp, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let span = |words: &[&str]| humantime::parse_duration(&words.join(" ")).ok();
        let read = match words.as_slice() {
            ["all"] => Some(CatchUp::All),
            ["spread", rest @ ..] => span(rest).map(CatchUp::Spread),
            ["skip", "older", "than", rest @ ..] => span(rest).map(CatchUp::Skip),
            _ => None,
        };
        read.ok_or_else(|| format!("{text:?} is none of \"all\", \"spread 10m\", \"skip older than 1h\""))
    }
}

impl TryFrom<String> for CatchUp {
    type Error = String;
    fn try_from(text: String) -> Result<CatchUp, String> {
        text.parse()
    }
}

impl fmt::Display for CatchUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CatchUp::All => f.write_str("all"),
            CatchUp::Spread(span) => write!(f, "spread {}", humantime::format_duration(*span)),
            CatchUp::Skip(span) => write!(f, "skip older than {}", humantime::format_duration(*span)),
        }
    }
}

impl From<CatchUp> for String {
    fn from(catch_up: CatchUp) -> String {
        catch_up.to_string()
    }
}

/// A way in which a delivery fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Failure {
    /// `connect`: dq could not open a connection, or may not use the connection.
    Connect,
    /// `timeout`: the whole answer did not come in time.
    Timeout,
    /// `broken`: the connection ended before the answer was complete, or the bytes are not a valid answer.
    Broken,
    /// `answer`: the status is 2xx, but the setting `success` of the topic does not accept the answer. Or the answer is
    /// too long to be judged.
    Answer,
    /// `503`: this status.
    Status(u16),
    /// `5xx`: any status with the same first digit. Holds the first digit.
    Class(u16),
}

impl Failure {
    /// Returns whether this failure is equal to the other failure, or includes the other failure.
    pub fn covers(self, other: Failure) -> bool {
        match (self, other) {
            (Failure::Class(class), Failure::Status(status)) => status / 100 == class,
            _ => self == other,
        }
    }
}

impl FromStr for Failure {
    type Err = String;
    fn from_str(text: &str) -> Result<Failure, String> {
        let class = || text.strip_suffix("xx")?.parse().ok().filter(|n| (1..=5).contains(n));
        let status = || text.parse().ok().filter(|n| (100..=599).contains(n));
        match text {
            "connect" => Ok(Failure::Connect),
            "timeout" => Ok(Failure::Timeout),
            "broken" => Ok(Failure::Broken),
            "answer" => Ok(Failure::Answer),
            _ => class().map(Failure::Class).or_else(|| status().map(Failure::Status)).ok_or_else(|| {
                let known = "\"connect\", \"timeout\", \"broken\", \"answer\", \"5xx\", \"404\"";
                format!("{text:?} is not a kind of failure, such as {known}")
            }),
        }
    }
}

impl TryFrom<String> for Failure {
    type Error = String;
    fn try_from(text: String) -> Result<Failure, String> {
        text.parse()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connect => f.write_str("connect"),
            Failure::Timeout => f.write_str("timeout"),
            Failure::Broken => f.write_str("broken"),
            Failure::Answer => f.write_str("answer"),
            Failure::Status(status) => write!(f, "{status}"),
            Failure::Class(class) => write!(f, "{class}xx"),
        }
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.to_string()
    }
}

/// A moment, in Unix milliseconds. It is written as RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_as_it_is_written() {
        for text in ["100/s", "30/m", "500/h"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("7".parse(), Ok(Rate::per_second(7)));
        assert_eq!(serde_json::to_string(&Rate::per_second(7)).unwrap(), "7");
        assert_eq!(serde_json::from_str::<Rate>("\"7/m\"").unwrap().per, Duration::from_secs(60));
        for text in ["all", "spread 10m", "skip older than 1h 30m"] {
            assert_eq!(text.parse::<CatchUp>().unwrap().to_string(), text);
        }
        for text in ["connect", "timeout", "broken", "answer", "404", "5xx"] {
            assert_eq!(text.parse::<Failure>().unwrap().to_string(), text);
        }
        for text in ["status", "non_empty", "{status} == 200"] {
            assert_eq!(String::from(Success::from(text.to_owned())), text);
        }
    }

    #[test]
    fn what_is_none_of_them_is_refused_with_what_would_do() {
        for text in ["", "s", "7/d", "x/s", "-1/s", "1/s/s"] {
            assert!(text.parse::<Rate>().unwrap_err().contains("100/s"), "{text}");
        }
        for text in ["", "some", "spread", "spread 10", "skip 1h", "skip older than"] {
            assert!(text.parse::<CatchUp>().unwrap_err().contains("spread 10m"), "{text}");
        }
        for text in ["", "6xx", "0xx", "99", "600", "xx", "refused"] {
            assert!(text.parse::<Failure>().unwrap_err().contains("5xx"), "{text}");
        }
    }

    #[test]
    fn a_class_covers_its_statuses() {
        assert!(Failure::Class(5).covers(Failure::Status(503)));
        assert!(!Failure::Class(5).covers(Failure::Status(429)));
        assert!(Failure::Timeout.covers(Failure::Timeout) && !Failure::Timeout.covers(Failure::Connect));
    }
}

//! The due time of a job, as people write it.

use anyhow::Result;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::{Number, Value};

use super::failure::Failure;

/// The options for the due time of a job.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct DueOptions {
    /// The time from now until the job is due: "90s", "1h30m", or a number of seconds
    #[arg(long, value_name = "SPAN", conflicts_with = "at")]
    delay: Option<String>,

    /// When the job is due: "2026-12-01 23:50:50" in this host's time zone, RFC 3339 for another zone, or Unix
    /// milliseconds
    #[arg(long, visible_alias = "run-at", value_name = "MOMENT")]
    at: Option<String>,
}

impl DueOptions {
    /// Returns the field of a request that holds the due time. `None`: no option was given.
    pub(super) fn field(&self) -> Result<Option<(&'static str, Value)>> {
        Ok(match (&self.delay, &self.at) {
            (Some(delay), _) => Some(("delay", span(delay)?)),
            (None, Some(at)) => Some(("run_at", moment(at, TimeZone::system())?)),
            (None, None) => None,
        })
    }
}

/// Returns a span as the API takes it.
fn span(text: &str) -> Result<Value> {
    let number = text.parse().ok().and_then(Number::from_f64).filter(|n| n.as_f64() >= Some(0.0));
    if let Some(number) = number {
        return Ok(Value::Number(text.parse::<u64>().map_or(number, Number::from)));
    }
    let message =
        || format!("--delay {text:?} is no span, such as \"90s\", \"1h30m\" or a number of seconds");
    match humantime::parse_duration(text) {
        Ok(_) => Ok(text.into()),
        Err(_) => Err(Failure::Usage(message()).into()),
    }
}

/// Returns a moment as the API takes it.
pub(super) fn moment(text: &str, zone: TimeZone) -> Result<Value> {
    if let Ok(ms) = text.parse::<u64>() {
        return Ok(ms.into());
    }
    if text.parse::<jiff::Timestamp>().is_ok() {
        return Ok(text.into());
    }
    let here = text.parse::<DateTime>().ok().and_then(|at| at.to_zoned(zone).ok());
    let message = || {
        format!(
            "--at {text:?} is no moment, such as \"2026-12-01 23:50:50\" or \"2026-12-01T23:50:50+08:00\""
        )
    };
    here.map(|at| at.timestamp().to_string().into()).ok_or_else(|| Failure::Usage(message()).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spans_and_moments_are_taken_as_people_say_them() {
        for (text, sent) in
            [("90", json!(90)), ("1.5", json!(1.5)), ("1h30m", json!("1h30m")), ("0", json!(0))]
        {
            assert_eq!(span(text).unwrap(), sent, "{text}");
        }
        for bad in ["soon", "-1", "inf", ""] {
            assert!(span(bad).is_err(), "{bad}");
        }
        let zone = || TimeZone::fixed(jiff::tz::offset(8));
        for (text, sent) in [
            ("1796140250000", json!(1_796_140_250_000_u64)),
            ("2026-12-01T23:50:50+08:00", json!("2026-12-01T23:50:50+08:00")),
            ("2026-12-01 23:50:50", json!("2026-12-01T15:50:50Z")),
            ("2026-12-01T23:50", json!("2026-12-01T15:50:00Z")),
            ("2026-12-01", json!("2026-11-30T16:00:00Z")),
        ] {
            assert_eq!(moment(text, zone()).unwrap(), sent, "{text}");
        }
        assert!(moment("tomorrow", zone()).is_err());
    }
}

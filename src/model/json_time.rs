//! Reads durations and moments from JSON, in the same forms over HTTP and TCP. Pure: no I/O, no clock.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::value::RawValue;

use crate::job::LATEST_MS;

/// The forms of a duration, for messages.
pub const DURATION: &str =
    "a duration such as \"90s\" or \"1h30m\", or a number of seconds without quotation marks";

/// The forms of a moment, for messages.
pub const MOMENT: &str = "a moment such as \"2026-12-01T23:50:50+08:00\" (up to the year 9999), or Unix milliseconds without quotation marks";

/// Reads a duration: a number of seconds, or a text such as `"90s"`. None: the value does not have one of these forms,
/// or is longer than dq can wait.
pub fn duration(raw: &RawValue) -> Option<Duration> {
    let text = raw.get();
    let duration = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) if text.starts_with('"') => {
            humantime::parse_duration(&serde_json::from_str::<String>(text).ok()?).ok()?
        }
        Err(_) => Duration::try_from_secs_f64(text.parse().ok()?).ok()?,
    };
    (duration <= Duration::from_millis(LATEST_MS as u64)).then_some(duration)
}

/// Reads a moment: a number of Unix milliseconds, or a text in RFC 3339 with an offset. Returns Unix milliseconds. A
/// part of a millisecond counts as a whole millisecond, so that no job is early. None: the value does not have one of
/// these forms, or is later than the year 9999, or is in [Unix seconds](is_seconds).
pub fn moment_ms(raw: &RawValue) -> Option<i64> {
    let json = raw.get();
    let at = match whole(json) {
        Some(at) if is_seconds(at) => return None,
        Some(at) => at,
        None => {
            let text: String = serde_json::from_str(json).ok()?;
            let at: jiff::Timestamp = text.parse().ok()?;
            // jiff reads a leap second as the second before it.
            let leap_ms = if text.get(16..19) == Some(":60") { 1000 } else { 0 };
            i64::try_from((at.as_nanosecond() + 999_999).div_euclid(1_000_000)).ok()? + leap_ms
        }
    };
    (0..=LATEST_MS).contains(&at).then_some(at)
}

/// Writes a moment, given in Unix milliseconds, as RFC 3339 in UTC, such as `2026-12-01T15:50:50.000Z`.
pub fn rfc3339(ms: i64) -> String {
    format!("{:.3}Z", on_wall_clock(ms, &TimeZone::UTC))
}

/// Returns what the clocks of a zone show at a moment in Unix milliseconds. If the moment is after the year 9999,
/// returns the end of the year 9999.
pub fn on_wall_clock(ms: i64, zone: &TimeZone) -> DateTime {
    // A `jiff::Timestamp` cannot hold the end of the year 9999, because that moment has no local time in some zones. So
    // only the offset of the zone is taken from the timestamp.
    let at = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX);
    let offset_ms = i64::from(zone.to_offset(at).seconds()) * 1000;
    let epoch = jiff::civil::date(1970, 1, 1).to_datetime(jiff::civil::Time::midnight());
    epoch.saturating_add(jiff::SignedDuration::from_millis(ms.saturating_add(offset_ms)))
}

/// Reads a whole number from JSON. The number may also have a form that encoders of floating-point numbers write:
/// `1800000.0`, `1.8E6`.
pub fn whole(json: &str) -> Option<i64> {
    const EXACT: f64 = (1_i64 << 53) as f64;
    json.parse().ok().or_else(|| {
        let number: f64 = json.parse().ok()?;
        (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
    })
}

/// The earliest moment that filters accept, in Unix milliseconds: 1973-03-03. In a filter, a smaller number is a
/// mistake, for example a number of Unix seconds.
pub const FIRST_MS: i64 = 100_000_000_000;

/// Returns whether a number that is given as Unix milliseconds must be a number of Unix seconds. As milliseconds, the
/// number is between 1970-01-02 and 1973-03-03, so the job would be due at once. As seconds, it is between 1973 and
/// 5138.
pub fn is_seconds(ms: i64) -> bool {
    (100_000_000..FIRST_MS).contains(&ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_duration_is_a_text_or_a_number_of_seconds() {
        for (text, ms) in
            [("90", 90_000), ("1.5", 1500), ("\"90s\"", 90_000), ("\"1h30m\"", 5_400_000), ("0", 0)]
        {
            assert_eq!(duration(&raw(text)), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["-1", "\"\"", "true", "[]", "1e300", "\"-1s\"", "\"90\"", "99999999999999"] {
            assert_eq!(duration(&raw(text)), None, "{text}");
        }
    }

    #[test]
    fn a_moment_is_written_in_utc() {
        assert_eq!(rfc3339(1_796_140_250_007), "2026-12-01T15:50:50.007Z");
        assert_eq!(rfc3339(LATEST_MS), "9999-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        let shanghai = TimeZone::get("Asia/Shanghai").unwrap();
        assert_eq!(on_wall_clock(1_796_140_250_007, &shanghai).to_string(), "2026-12-01T23:50:50.007");
        assert_eq!(on_wall_clock(253_402_271_999_000, &shanghai).to_string(), "9999-12-31T23:59:59");
    }

    #[test]
    fn a_moment_is_rounded_up_and_is_never_seconds() {
        for (text, ms) in [
            ("0", 0),
            ("1.796140250E12", 1_796_140_250_000),
            ("\"1970-01-01T00:00:01.0001Z\"", 1001),
            ("\"1970-01-01T08:00:00+08:00\"", 0),
            ("\"2016-12-31T23:59:60Z\"", 1_483_228_800_000),
        ] {
            assert_eq!(moment_ms(&raw(text)), Some(ms), "{text}");
        }
        for text in [
            "-1",
            "1.5",
            "\"1\"",
            "\"2026-12-01\"",
            "null",
            "\"1969-12-31T00:00:00Z\"",
            "253402300800000",
            "1796140250",
        ] {
            assert_eq!(moment_ms(&raw(text)), None, "{text}");
        }
    }
}

//! Parses `fix_time`, the due time as clients of the PHP daemon write it.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use model::job::LATEST_MS;

/// Returns the moment of a `fix_time`, in Unix milliseconds. Accepted are `2026-12-01 23:50:50` and its shorter and
/// slashed forms in `zone`, RFC 3339 with its own offset, and `@` with Unix seconds. Returns none for any other text,
/// and for a moment before 1970 or after [`LATEST_MS`].
pub(super) fn moment(text: &str, zone: &TimeZone) -> Option<i64> {
    let text = text.trim();
    let local = |format| DateTime::strptime(format, text).ok();
    let found = || -> Option<i64> {
        if let Some(seconds) = text.strip_prefix('@') {
            return seconds.parse::<i64>().ok()?.checked_mul(1000);
        }
        if let Ok(at) = text.parse::<jiff::Timestamp>() {
            return Some(at.as_millisecond());
        }
        let formats = [
            "%Y-%m-%d %H:%M:%S",
            "%Y-%m-%dT%H:%M:%S",
            "%Y-%m-%d %H:%M",
            "%Y/%m/%d %H:%M:%S",
            "%Y/%m/%d %H:%M",
        ];
        let days = ["%Y-%m-%d", "%Y/%m/%d"];
        let day = |format| {
            Some(jiff::civil::Date::strptime(format, text).ok()?.to_datetime(jiff::civil::Time::midnight()))
        };
        let at = formats.into_iter().find_map(local).or_else(|| days.into_iter().find_map(day))?;
        Some(at.to_zoned(zone.clone()).ok()?.timestamp().as_millisecond())
    };
    found().filter(|at_ms| (0..=LATEST_MS).contains(at_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_forms_of_fix_time_are_understood() {
        for (text, at_ms) in [
            ("2026-12-01 23:50:50", 1_796_169_050_000),
            ("2026-12-01 23:50", 1_796_169_000_000),
            ("2026/12/01 23:50:50", 1_796_169_050_000),
            ("2026-12-01", 1_796_083_200_000),
            ("2026-12-01T23:50:50", 1_796_169_050_000),
            ("2026-12-01T23:50:50+08:00", 1_796_140_250_000),
            ("@1796140250", 1_796_140_250_000),
        ] {
            assert_eq!(moment(text, &TimeZone::UTC), Some(at_ms), "{text}");
        }
        assert!(moment("@99999999999999999", &TimeZone::UTC).is_none());
    }
}

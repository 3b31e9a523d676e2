//! Parses `fix_time`. This is the due time as clients of the PHP daemon write it, in the forms that PHP's `strtotime`
//! reads.
//!
//! A text is a series of words, such as a date, a time of day and `+1 day`. `rules` has the forms of a `word`.
//! `written` collects the meanings of the words. `moment` computes the moment from them. `tests/it/as_php.rs` compares
//! the results with those of PHP.
//!
//! Forms that `strtotime` reads in a surprising way, such as a number of ten digits, are refused. This parser exists
//! because no crate reads all forms of `strtotime` correctly. Crates that claim to read all forms misread common ones
//! (`2026-12-01 12.30`). PHP's own library is written in C.

mod dates;
mod moment;
mod names;
mod rules;
mod scanner;
mod word;
mod written;

use jiff::tz::TimeZone;

use self::written::ParsedTime;
use model::job::{Due, LATEST_MS};

/// The forms of a `fix_time`, for messages.
pub(super) const FORMS: &str =
    "a date such as \"2026-12-01 23:50:50\", \"tomorrow 11:50 PM\" or \"+30 minutes\"";

/// The longest text, in bytes.
const LENGTH_MAX: usize = 100;

/// The clock and the time zone of the server.
#[derive(Clone, Copy)]
pub struct LocalClock<'a> {
    /// The zone of dates for which the text gives no zone.
    pub zone: &'a TimeZone,
    /// Returns the time in Unix milliseconds. It is called only if there is a `fix_time`.
    pub now_ms: fn() -> i64,
}

/// Returns when a job with this `fix_time` is due. None: the text has no known form, or names a moment before 1970. (If
/// the text is only a shift into the past, the job is due at once.)
///
/// A text that only says how far the moment is from now (`+30 minutes`) gives a relative due time, so that the store's
/// clock decides. For other texts, a moment after [`LATEST_MS`] becomes `LATEST_MS`. If a relative text means a moment
/// after `LATEST_MS`, the result is None.
pub(super) fn due(text: &str, clock: LocalClock<'_>) -> Option<Due> {
    let text = text.trim();
    if text.len() > LENGTH_MAX {
        return None;
    }
    let written = ParsedTime::read(&text.to_ascii_lowercase())?;
    match written.unix_ms {
        Some(ms) => (ms >= 0).then_some(Due::At(ms.min(LATEST_MS))),
        None => moment::due(&written, clock),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// Tuesday, 2025-11-25 10:20:30.250 in UTC.
    const NOW_MS: i64 = 1_764_066_030_250;

    fn due_in(text: &str, zone: &TimeZone) -> Option<Due> {
        due(text, LocalClock { zone, now_ms: || NOW_MS })
    }

    #[test]
    fn a_shift_alone_counts_from_the_clock_of_the_store() {
        let minutes = |n: u64| Some(Due::In(Duration::from_secs(60 * n)));
        assert_eq!(due_in("+30 minutes", &TimeZone::UTC), minutes(30));
        assert_eq!(due_in("now", &TimeZone::UTC), minutes(0));
        assert_eq!(due_in("+1 week 2 days", &TimeZone::UTC), minutes(9 * 24 * 60));
        assert_eq!(due_in("-1 day", &TimeZone::UTC), minutes(0), "a past moment means now");
        // In some zones, a day may have 23 hours.
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let before_change = LocalClock { zone: &berlin, now_ms: || 1_774_710_000_000 };
        assert_eq!(due("+1 day", before_change), minutes(23 * 60));
        assert_eq!(due("+24 hours", before_change), minutes(24 * 60));
    }

    #[test]
    fn the_end_of_the_year_9999_is_a_moment_in_all_zones() {
        for (zone, at_ms) in [
            ("UTC", 253_402_300_799_000),
            ("Asia/Shanghai", 253_402_271_999_000),
            ("America/New_York", LATEST_MS),
        ] {
            let zone = TimeZone::get(zone).unwrap();
            assert_eq!(due_in("9999-12-31 23:59:59", &zone), Some(Due::At(at_ms)));
        }
    }

    #[test]
    fn what_php_reads_in_a_surprising_way_is_refused() {
        for text in [
            "",
            "never",
            "1796140250",
            "2147483648",
            "12345",
            "+1 foo",
            "+1.5 days",
            "z",
            "utc",
            "a.m.",
            "2026-13-01",
            "2026-12-01 25:00",
            "2026-12-01 23:60",
            "0000-00-00 00:00:00",
            "1969-12-31",
            "@-5",
            "@99999999999999999999",
            "2026-12-01 2026-12-02",
            "10:00 11:00",
            "0:30 am",
            "13:00 pm",
            "two days",
            "+99999999999 days",
            "10000-01-01",
            "2026年12月1日",
        ] {
            assert_eq!(due_in(text, &TimeZone::UTC), None, "{text}");
        }
        assert_eq!(due_in(&"+1 day ".repeat(20), &TimeZone::UTC), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(words in proptest::collection::vec("[0-9]{1,4}|[-+:./@, ]|st|of|am|T|W|next|last|this|monday|sat|day|month|ago|noon|tomorrow|first|dec|utc|europe/berlin|.", 0..12)) {
            let berlin = TimeZone::get("Europe/Berlin").unwrap();
            if let Some(Due::At(ms)) = due_in(&words.concat(), &berlin) {
                prop_assert!((0..=LATEST_MS).contains(&ms));
            }
        }
    }
}

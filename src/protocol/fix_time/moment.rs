//! Computes the moment that a text means, from the meanings of its words.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::LocalClock;
use super::word::{Date, DayOfMonth, Time, WeekdayRule, ZoneOrOffset};
use super::written::{ParsedTime, TimeOfDay};
use model::job::{Due, LATEST_MS};

const DAY_MS: i64 = 24 * 3600 * 1000;

/// The number of days in 400 years. The calendar repeats itself after this time. So dq moves dates after the last year
/// of the crate jiff by a multiple of 400 years.
const CYCLE_DAYS: i64 = 146_097;

const EPOCH: jiff::civil::Date = jiff::civil::date(1970, 1, 1);

/// A moment of a wall clock: days since 1970-01-01, and milliseconds of the day (a day or more is possible).
#[derive(Debug, Clone, Copy)]
struct WallTime {
    days: i64,
    ms: i64,
}

/// Returns when a job with this text is due. None: the moment is beyond the years that dq calculates with. Also None: a
/// date before 1970, and a shift from now to a moment after [`LATEST_MS`].
pub(super) fn due(written: &ParsedTime, clock: LocalClock<'_>) -> Option<Due> {
    let zone = match &written.zone {
        None => clock.zone.clone(),
        Some(ZoneOrOffset::Named(zone)) => zone.clone(),
        Some(ZoneOrOffset::Offset(seconds)) => {
            TimeZone::fixed(jiff::tz::Offset::from_seconds(*seconds as i32).ok()?)
        }
    };
    let now_ms = (clock.now_ms)();
    // If the text gives no date, the current date in the server's zone is used, as in PHP. The server's zone is used
    // for this even if the text names another zone.
    let now = Timestamp::from_millisecond(now_ms).ok()?.to_zoned(clock.zone.clone()).datetime();
    let at_ms = to_unix_ms(wall_time(written, now)?, &zone)?.checked_add(written.seconds * 1000)?;
    if is_shift_alone(written) {
        let wait = u64::try_from(at_ms.saturating_sub(now_ms)).unwrap_or(0);
        return (at_ms <= LATEST_MS).then_some(Due::In(Duration::from_millis(wait)));
    }
    (at_ms >= 0).then_some(Due::At(at_ms.min(LATEST_MS)))
}

/// Returns whether a text says only how far the moment is from now.
fn is_shift_alone(written: &ParsedTime) -> bool {
    let at_present = written.date.is_none() && written.time == TimeOfDay::Unknown;
    at_present && written.weekday.is_none() && written.day_of_month.is_none()
}

/// Returns the moment on the wall clock of the zone, without the shift by seconds. This shift is added to the final
/// moment, because an hour has the same length even on a day when the clock changes.
fn wall_time(written: &ParsedTime, now: DateTime) -> Option<WallTime> {
    let Date { year, month, day } = written.date.unwrap_or_default();
    let year = year.unwrap_or(i64::from(now.year()));
    let month = month.unwrap_or(i64::from(now.month()));
    let day = day.unwrap_or(i64::from(now.day()));
    let mut ms = match written.time {
        TimeOfDay::Given(Time { hour, minute, second }) => (hour * 3600 + minute * 60 + second) * 1000,
        TimeOfDay::Unknown if written.date.is_none() => ms_of_day(now),
        TimeOfDay::Unknown | TimeOfDay::Midnight => 0,
    };
    // `24:00` is 0:00 of the next day. A day that the month does not have is a day of the next month. These values are
    // corrected before anything is counted from them.
    let day = first_of_month(year, month)? + day - 1 + ms / DAY_MS;
    ms %= DAY_MS;
    let (year, month, day) = civil(day + weekday_shift(written, day))?;
    let first = |more| first_of_month(year, month + written.months + more);
    let days = match written.day_of_month {
        None => first(0)? + day - 1,
        Some(DayOfMonth::First) => first(0)?,
        Some(DayOfMonth::Last) => first(1)? - 1,
        Some(DayOfMonth::Nth(weekday, nth)) => first(0)? + until_weekday(first(0)?, weekday) + 7 * (nth - 1),
        Some(DayOfMonth::LastWeekday(weekday)) => first(1)? + until_weekday(first(1)?, weekday) - 7,
    };
    Some(WallTime { days: days + written.days, ms })
}

fn ms_of_day(now: DateTime) -> i64 {
    let seconds = i64::from(now.hour()) * 3600 + i64::from(now.minute()) * 60 + i64::from(now.second());
    seconds * 1000 + i64::from(now.millisecond())
}

/// Returns the number of days from this day to the wanted day of the week. Negative: the wanted day is before this day.
fn weekday_shift(written: &ParsedTime, day: i64) -> i64 {
    let Some((weekday, rule)) = written.weekday else { return 0 };
    let present = weekday_of(day);
    // Sunday is the last day of a week here.
    let of_week = |weekday: i64| if weekday == 0 { 7 } else { weekday };
    match rule {
        WeekdayRule::OfThisWeek => of_week(weekday) - of_week(present),
        // With a shift into the past, today counts too, because the shift then leads to an earlier day.
        _ if written.days < 0 => (weekday - present).rem_euclid(7),
        WeekdayRule::FromToday => (weekday - present).rem_euclid(7),
        WeekdayRule::AfterToday => (weekday - present - 1).rem_euclid(7) + 1,
    }
}

/// Returns the number of days from this day to the next day of the week `weekday`. 0: this day itself is such a day.
fn until_weekday(day: i64, weekday: i64) -> i64 {
    (weekday - weekday_of(day)).rem_euclid(7)
}

/// Returns the day of the week of a day. Sunday is 0.
fn weekday_of(day: i64) -> i64 {
    // 1970-01-01 was a Thursday.
    (day + 4).rem_euclid(7)
}

/// Returns the day on which a month begins. The month may be any number: 13 is January of the next year.
fn first_of_month(year: i64, month: i64) -> Option<i64> {
    let months = year.checked_mul(12)?.checked_add(month - 1)?;
    let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
    if !(-9000..=12_000).contains(&year) {
        return None;
    }
    let cycles = (year - 2000).div_euclid(400);
    let date = jiff::civil::Date::new((year - 400 * cycles) as i16, month as i8, 1).ok()?;
    let since = date.since(EPOCH).ok()?;
    Some(i64::from(since.get_days()) + cycles * CYCLE_DAYS)
}

/// Returns the year, the month and the day of the month of a day.
fn civil(days: i64) -> Option<(i64, i64, i64)> {
    let cycles = days.div_euclid(CYCLE_DAYS);
    let date = EPOCH.checked_add(jiff::Span::new().days(days.rem_euclid(CYCLE_DAYS))).ok()?;
    Some((i64::from(date.year()) + 400 * cycles, date.month().into(), date.day().into()))
}

/// Returns the moment in Unix milliseconds at which the zone's clock shows a time. If the clock skips the time, the
/// result is later by the time that the clock skips. If the clock shows the time twice, the result is the later moment,
/// so that no job is early. (PHP takes the earlier or the later moment, depending on the zone.)
fn to_unix_ms(wall: WallTime, zone: &TimeZone) -> Option<i64> {
    let ms = wall.days.checked_mul(DAY_MS)?.checked_add(wall.ms)?;
    let local =
        EPOCH.to_datetime(jiff::civil::Time::midnight()).checked_add(jiff::SignedDuration::from_millis(ms));
    match local.ok().and_then(|local| zone.to_ambiguous_zoned(local).later().ok()) {
        Some(found) => Some(found.timestamp().as_millisecond()),
        // This is one of the last days that jiff knows, or a later day. The offset does not change any more.
        None if ms > 0 => Some(ms - i64::from(zone.to_offset(Timestamp::MAX).seconds()) * 1000),
        None => None,
    }
}

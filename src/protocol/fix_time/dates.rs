//! The forms of a date.

use super::names::MONTHS;
use super::scanner::Scanner;
use super::word::{Date, Time, Word};

fn date(year: impl Into<Option<i64>>, month: i64, day: i64) -> Word {
    Word::Date(Date { year: year.into(), month: Some(month), day: Some(day) })
}

/// `2026-12-01`, `2026/12/1`. A `t` and a time may follow.
pub(super) fn date_iso(s: &mut Scanner<'_>) -> Option<Word> {
    let year = s.digits(4, 4)?;
    let separator = s.one_of("-/")?;
    let month = s.small(0..=12)?;
    s.one_of("-/").filter(|c| *c == separator)?;
    let day = s.small(0..=31)?;
    Some(date(year, month, day))
}

/// `2026-12`: the first of the month.
pub(super) fn date_year_month(s: &mut Scanner<'_>) -> Option<Word> {
    let year = s.digits(4, 4)?;
    s.text("-")?;
    let month = s.small(0..=12)?;
    s.is_word_over().then(|| date(year, month, 1))
}

/// `12/25/2026`, `12/25`: the month first.
pub(super) fn date_american(s: &mut Scanner<'_>) -> Option<Word> {
    let month = s.small(0..=12)?;
    s.text("/")?;
    let day = s.small(0..=31)?;
    let year = match s.text("/") {
        Some(()) => Some(s.digits(4, 4)?),
        None => None,
    };
    s.is_word_over().then(|| date(year, month, day))
}

/// `25.12.2026`, `25-12-2026`: the day first.
pub(super) fn date_day_first(s: &mut Scanner<'_>) -> Option<Word> {
    let day = s.small(0..=31)?;
    s.one_of(".-")?;
    let month = s.small(0..=12)?;
    s.one_of(".-")?;
    let year = s.digits(4, 4)?;
    Some(date(year, month, day))
}

/// `26-12-01`: the year first, from 1970 to 2069.
pub(super) fn date_two_digit_year(s: &mut Scanner<'_>) -> Option<Word> {
    let year = s.digits(2, 2)?;
    s.text("-")?;
    let month = s.small(0..=12)?;
    s.text("-")?;
    let day = s.small(0..=31)?;
    Some(date(year + if year < 70 { 2000 } else { 1900 }, month, day))
}

/// `20261201`
pub(super) fn date_compact(s: &mut Scanner<'_>) -> Option<Word> {
    let (year, month, day) = (s.fixed(4)?, s.two(0..=12)?, s.two(0..=31)?);
    let over = s.is_word_over() || s.rest.starts_with('t');
    over.then(|| date(year, month, day))
}

/// `20261201235050`
pub(super) fn date_time_compact(s: &mut Scanner<'_>) -> Option<Word> {
    let (year, month, day) = (s.fixed(4)?, s.two(0..=12)?, s.two(0..=31)?);
    let (hour, minute, second) = (s.two(0..=24)?, s.two(0..=59)?, s.two(0..=59)?);
    let date = Date { year: Some(year), month: Some(month), day: Some(day) };
    s.is_word_over().then_some(Word::DateTime(date, Time { hour, minute, second }))
}

/// The day of a month, which `st`, `nd`, `rd` or `th` may follow.
fn day(s: &mut Scanner<'_>) -> Option<i64> {
    let day = s.small(0..=31)?;
    let mut more = *s;
    if more.word(&[("st", ()), ("nd", ()), ("rd", ()), ("th", ())]).is_some() {
        *s = more;
    }
    Some(day)
}

/// The name of a month, which a dot may follow.
fn month(s: &mut Scanner<'_>) -> Option<i64> {
    s.word(&MONTHS)
}

/// `1 December 2026`, `1-Dec-2026`, `3rd Jan 2027`
pub(super) fn date_day_month_year(s: &mut Scanner<'_>) -> Option<Word> {
    let day = day(s)?;
    s.while_in(" \t.-");
    let month = month(s)?;
    s.while_in(" \t.-");
    let year = s.digits(4, 4)?;
    Some(date(year, month, day))
}

/// `December 1, 2026`, `Jan 3rd 2027`
pub(super) fn date_month_day_year(s: &mut Scanner<'_>) -> Option<Word> {
    let month = month(s)?;
    s.while_in(" \t.-");
    let day = day(s)?;
    (!s.while_in(" \t,.-").is_empty()).then_some(())?;
    let year = s.digits(4, 4)?;
    s.is_word_over().then_some(()).filter(|()| !s.rest.starts_with(':'))?;
    Some(date(year, month, day))
}

/// `2026-Dec-01`
pub(super) fn date_year_month_name_day(s: &mut Scanner<'_>) -> Option<Word> {
    let year = s.digits(4, 4)?;
    s.text("-")?;
    let month = month(s)?;
    s.text("-")?;
    let day = s.small(0..=31)?;
    Some(date(year, month, day))
}

/// `December 2026`: the first of the month.
pub(super) fn date_month_year(s: &mut Scanner<'_>) -> Option<Word> {
    let month = month(s)?;
    s.while_in(" \t.-");
    let year = s.digits(4, 4)?;
    Some(date(year, month, 1))
}

/// `2026 December`: the first of the month.
pub(super) fn date_year_month_name(s: &mut Scanner<'_>) -> Option<Word> {
    let year = s.digits(4, 4)?;
    s.while_in(" \t.-");
    month(s).map(|month| date(year, month, 1))
}

/// `3 Jan`
pub(super) fn date_day_month(s: &mut Scanner<'_>) -> Option<Word> {
    let day = day(s)?;
    s.while_in(" \t.-");
    month(s).map(|month| date(None, month, day))
}

/// `Jan 3`
pub(super) fn date_month_day(s: &mut Scanner<'_>) -> Option<Word> {
    let month = month(s)?;
    s.while_in(" \t.-");
    let day = day(s)?;
    s.is_word_over().then(|| date(None, month, day))
}

pub(super) fn date_month(s: &mut Scanner<'_>) -> Option<Word> {
    let month = month(s)?;
    Some(Word::Date(Date { month: Some(month), ..Date::default() }))
}

/// `2026-W50`, `2026W503`, `2026-W50-3`: a week, from Monday, and a day of it.
pub(super) fn week_of_year(s: &mut Scanner<'_>) -> Option<Word> {
    let year = s.digits(4, 4)?;
    s.text("-");
    s.text("w")?;
    let week = s.two(1..=53)?;
    s.text("-");
    let day = s.digits(1, 1).unwrap_or(1);
    if day > 7 || !s.is_word_over() {
        return None;
    }
    // The fourth of January is always in the first week of its year.
    let fourth = jiff::civil::Date::new(i16::try_from(year).ok()?, 1, 4).ok()?;
    let monday = 3 - i64::from(fourth.weekday().to_monday_zero_offset());
    Some(Word::DayOfYear(year, monday + 7 * (week - 1) + day - 1))
}

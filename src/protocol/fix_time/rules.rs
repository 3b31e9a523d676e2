//! The forms of a word. At each place, the form that reads the most characters counts. If several forms read the same
//! number of characters, the first form in the list counts.

use jiff::tz::TimeZone;

use super::dates;
use super::names::{ORDINALS, UNITS, WEEKDAYS, WEEKS, WHICH, ZONES};
use super::scanner::Scanner;
use super::word::{COUNT_MAX, DayOfMonth, Time, Unit, Word, ZoneOrOffset};

/// Reads one form. None: the text does not begin with this form.
type Rule = fn(&mut Scanner<'_>) -> Option<Word>;

const RULES: [Rule; 29] = [
    keyword,
    time_24,
    time_12,
    time_compact,
    four_digits,
    dates::date_iso,
    dates::date_year_month,
    dates::date_american,
    dates::date_day_first,
    dates::date_two_digit_year,
    dates::date_compact,
    dates::date_time_compact,
    dates::date_day_month_year,
    dates::date_month_day_year,
    dates::date_year_month_name_day,
    dates::date_month_year,
    dates::date_year_month_name,
    dates::date_day_month,
    dates::date_month_day,
    dates::date_month,
    dates::week_of_year,
    shift,
    named_shift,
    week,
    named_weekday,
    weekday,
    day_of_month,
    zone,
    unix,
];

/// Reads the next word. Also returns what follows it.
pub(super) fn longest(scanner: Scanner<'_>) -> Option<(Word, Scanner<'_>)> {
    let mut best: Option<(Word, Scanner<'_>)> = None;
    for rule in RULES {
        let mut rest = scanner;
        if let Some(word) = rule(&mut rest)
            && best.as_ref().is_none_or(|(_, other)| rest.rest.len() < other.rest.len())
        {
            best = Some((word, rest));
        }
    }
    best
}

fn keyword(s: &mut Scanner<'_>) -> Option<Word> {
    let words = [
        ("now", Word::Now),
        ("today", Word::Today(0)),
        ("midnight", Word::Today(0)),
        ("tomorrow", Word::Today(1)),
        ("yesterday", Word::Today(-1)),
        ("noon", Word::Noon),
        ("ago", Word::Ago),
    ];
    let place = words.each_ref().map(|(name, word)| (*name, word));
    s.word(&place).cloned().filter(|_| s.is_word_over())
}

/// `23:50`, `23:50:50`, `23.50`, `t23:50:50.123`
fn time_24(s: &mut Scanner<'_>) -> Option<Word> {
    s.text("t");
    let hour = s.small(0..=24)?;
    s.one_of(":.")?;
    let minute = s.small(0..=59)?;
    let mut more = *s;
    let mut second = 0;
    if more.one_of(":.").is_some()
        && let Some(found) = more.small(0..=60)
    {
        (*s, second) = (more, found);
        let mut fraction = *s;
        if fraction.one_of(".,").is_some() && !fraction.while_in("0123456789").is_empty() {
            *s = fraction;
        }
    }
    Some(Word::Time(Time { hour, minute, second }))
}

/// `11 PM`, `11:50pm`, `11:50:50 a.m.`
fn time_12(s: &mut Scanner<'_>) -> Option<Word> {
    let hour = s.small(1..=12)?;
    let mut parts = [0, 0];
    for part in &mut parts {
        let mut more = *s;
        let Some(()) = more.one_of(":.").map(drop) else { break };
        *part = more.small(0..=59)?;
        *s = more;
    }
    s.while_in(" \t");
    let is_afternoon = s.one_of("ap")? == 'p';
    s.text(".");
    s.text("m")?;
    s.text(".");
    let hour = hour % 12 + if is_afternoon { 12 } else { 0 };
    s.is_word_over().then_some(Word::Time(Time { hour, minute: parts[0], second: parts[1] }))
}

/// `235050`, `t2350`, `t235050`
fn time_compact(s: &mut Scanner<'_>) -> Option<Word> {
    let has_t = s.text("t").is_some();
    let (hour, minute) = (s.two(0..=24)?, s.two(0..=59)?);
    let second = s.two(0..=60);
    (has_t || second.is_some()).then_some(())?;
    s.is_word_over().then_some(Word::Time(Time { hour, minute, second: second.unwrap_or(0) }))
}

fn four_digits(s: &mut Scanner<'_>) -> Option<Word> {
    s.digits(4, 4).filter(|_| s.is_word_over()).map(Word::FourDigits)
}

/// A number. Signs may come before it. Spaces may follow the signs and the number.
fn count(s: &mut Scanner<'_>) -> Option<i64> {
    let signs = s.while_in("+-");
    s.while_in(" \t");
    let count = s.digits(1, 12)?;
    s.while_in(" \t");
    let is_negative = signs.bytes().filter(|sign| *sign == b'-').count() % 2 == 1;
    (count <= COUNT_MAX).then_some(if is_negative { -count } else { count })
}

fn unit(s: &mut Scanner<'_>, count: i64) -> Option<Word> {
    let (unit, size) = s.word(&UNITS)?;
    s.is_word_over().then_some(Word::Shift(count.checked_mul(size)?, unit))
}

/// `+1 day`, `-2 weeks`, `3 hours`, `+2 sat`
fn shift(s: &mut Scanner<'_>) -> Option<Word> {
    let count = count(s)?;
    let mut weeks = *s;
    if let Some(days) = weeks.word(&WEEKS) {
        *s = weeks;
        return Some(Word::Shift(count * days, Unit::Day));
    }
    let mut days = *s;
    if let Some(weekday) = days.word(&WEEKDAYS) {
        *s = days;
        return Some(Word::NumberedWeekday { count, weekday });
    }
    unit(s, count)
}

/// Reads a number in words. Also returns whether the word is an ordinal number.
fn which(s: &mut Scanner<'_>) -> Option<(i64, bool)> {
    let mut ordinal = *s;
    let found = match ordinal.word(&ORDINALS) {
        Some(count) => {
            *s = ordinal;
            (count, true)
        }
        None => (s.word(&WHICH)?, false),
    };
    s.spaces().map(|()| found)
}

/// `next month`, `last year`, `eighth day`
fn named_shift(s: &mut Scanner<'_>) -> Option<Word> {
    let (count, _) = which(s)?;
    unit(s, count)
}

/// `this week`, `next week`, `third week`. (`third week` is a shift by three weeks.)
fn week(s: &mut Scanner<'_>) -> Option<Word> {
    let (count, is_ordinal) = which(s)?;
    let days = s.word(&WEEKS)?;
    Some(if is_ordinal { Word::Shift(count * days, Unit::Day) } else { Word::Week(count) })
}

/// `next monday`, `last fri`, `third friday`
fn named_weekday(s: &mut Scanner<'_>) -> Option<Word> {
    let (count, _) = which(s)?;
    let weekday = s.word(&WEEKDAYS)?;
    Some(Word::NamedWeekday { count, weekday })
}

fn weekday(s: &mut Scanner<'_>) -> Option<Word> {
    let weekday = s.word(&WEEKDAYS)?;
    s.text(".");
    Some(Word::Weekday(weekday))
}

/// `first day of`, `last day of`, `third friday of`, `last monday of`
fn day_of_month(s: &mut Scanner<'_>) -> Option<Word> {
    let (count, _) = which(s)?;
    let mut day = *s;
    let found = if day.word(&[("day", ())]).is_some() {
        *s = day;
        match count {
            1 => DayOfMonth::First,
            -1 => DayOfMonth::Last,
            _ => return None,
        }
    } else {
        let weekday = s.word(&WEEKDAYS)?;
        match count {
            1.. => DayOfMonth::Nth(weekday, count),
            -1 => DayOfMonth::LastWeekday(weekday),
            _ => return None,
        }
    };
    s.spaces()?;
    s.text("of")?;
    s.is_word_over().then_some(Word::DayOfMonth(found))
}

/// `+08:00`, `+0800`, `-5`, `GMT+8`, `UTC`, `EST`, `Asia/Shanghai`
fn zone(s: &mut Scanner<'_>) -> Option<Word> {
    let mut offset = *s;
    offset.text("gmt").or_else(|| offset.text("utc"));
    if let Some(sign) = offset.one_of("+-") {
        *s = offset;
        return offset_of(s, if sign == '-' { -1 } else { 1 });
    }
    let end =
        s.rest.find(|c: char| !c.is_ascii_alphanumeric() && !"/_-+".contains(c)).unwrap_or(s.rest.len());
    let name = &s.rest[..end];
    let named = match name.contains('/') {
        true => TimeZone::get(name).ok().map(ZoneOrOffset::Named),
        false => {
            ZONES.iter().find(|(zone, _)| *zone == name).map(|(_, offset)| ZoneOrOffset::Offset(*offset))
        }
    };
    s.rest = &s.rest[end..];
    named.map(Word::ZoneOrOffset)
}

fn offset_of(s: &mut Scanner<'_>, sign: i64) -> Option<Word> {
    let end = s.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.rest.len());
    let (hours, minutes) = match end {
        1 | 2 => {
            let hours = s.digits(1, 2)?;
            let minutes = match s.text(":") {
                Some(()) => s.digits(2, 2)?,
                None => 0,
            };
            (hours, minutes)
        }
        3 => (s.fixed(1)?, s.fixed(2)?),
        4 => (s.fixed(2)?, s.fixed(2)?),
        _ => return None,
    };
    let is_offset = hours <= 14 && minutes < 60 && s.is_word_over();
    is_offset.then_some(Word::ZoneOrOffset(ZoneOrOffset::Offset(sign * (hours * 3600 + minutes * 60))))
}

/// `@1796140250`, `@1796140250.5`: Unix seconds. A part of a millisecond counts as a whole millisecond, so that no job
/// is early.
fn unix(s: &mut Scanner<'_>) -> Option<Word> {
    s.text("@")?;
    let sign = if s.text("-").is_some() { -1 } else { 1 };
    let seconds = s.digits(1, 15)?;
    let mut ms = 0;
    if s.text(".").is_some() {
        let fraction = s.while_in("0123456789");
        (!fraction.is_empty()).then_some(())?;
        ms = (format!("0.{fraction}").parse::<f64>().ok()? * 1000.0).ceil() as i64;
    }
    s.is_word_over().then_some(Word::Unix(sign * (seconds * 1000 + ms)))
}

//! Collects the meanings of the words of a text. Later, `moment` computes the moment from them.

use super::rules;
use super::scanner::Scanner;
use super::word::{COUNT_MAX, Date, DayOfMonth, Time, Unit, WeekdayRule, Word, ZoneOrOffset};

/// The time of day of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TimeOfDay {
    /// The text gives no time of day. With a date, the time is midnight. Without a date, it is the present time.
    #[default]
    Unknown,
    /// A word such as `today` means midnight, unless a time follows.
    Midnight,
    Given(Time),
}

/// What a text says.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct ParsedTime {
    pub date: Option<Date>,
    pub time: TimeOfDay,
    pub zone: Option<ZoneOrOffset>,
    pub months: i64,
    pub days: i64,
    pub seconds: i64,
    /// A day of the week. Sunday is 0.
    pub weekday: Option<(i64, WeekdayRule)>,
    pub day_of_month: Option<DayOfMonth>,
    pub unix_ms: Option<i64>,
}

impl ParsedTime {
    /// Reads a text in lower case. None: the text has no known form, or says something twice.
    pub(super) fn read(text: &str) -> Option<ParsedTime> {
        let (mut written, mut scanner, mut words) = (ParsedTime::default(), Scanner { rest: text }, 0);
        while !scanner.rest.is_empty() {
            let (word, rest) = rules::longest(scanner)?;
            written.add(word)?;
            scanner = rest;
            scanner.while_in(" \t,");
            words += 1;
        }
        // If a text gives only a zone, PHP takes what a clock in its own zone shows now, and reads this as a time of
        // the given zone. For example, if it is 12:00 in PHP's own zone, the text `utc` means 12:00 UTC. dq refuses
        // such a text.
        let is_zone_of_nothing =
            written.zone.is_some() && written.date.is_none() && written.time == TimeOfDay::Unknown;
        let fits = written.unix_ms.is_none() || words == 1;
        // With a day such as `first day of` or `third friday of`, only shifts by seconds, minutes, hours and months are
        // accepted. dq refuses shifts by days and names of days of the week: PHP adds them in ways that nobody expects.
        let is_one_day = written.day_of_month.is_none() || {
            // A shift by months (`next month`) is accepted only if the text names no month. Otherwise the shift would
            // be added to the named month.
            let months_once = written.months == 0 || written.date.is_none_or(|date| date.month.is_none());
            written.weekday.is_none() && written.days == 0 && months_once
        };
        let counts = [written.months, written.days, written.seconds];
        let is_small = counts.iter().all(|count| count.abs() <= COUNT_MAX);
        (words > 0 && !is_zone_of_nothing && fits && is_one_day && is_small).then_some(written)
    }

    fn add(&mut self, word: Word) -> Option<()> {
        match word {
            Word::Now => {}
            Word::Today(days) => {
                self.time = TimeOfDay::Midnight;
                if days != 0 {
                    self.days = days;
                }
            }
            Word::Noon => self.time = TimeOfDay::Given(Time { hour: 12, minute: 0, second: 0 }),
            Word::Date(date) => self.set_date(date)?,
            Word::Time(time) => self.set_time(time)?,
            Word::DateTime(date, time) => {
                self.set_date(date)?;
                self.set_time(time)?;
            }
            Word::DayOfYear(year, days) => {
                self.set_date(Date { year: Some(year), month: Some(1), day: Some(1) })?;
                self.days = days;
            }
            Word::FourDigits(digits) => self.set_four_digits(digits)?,
            Word::ZoneOrOffset(zone) => match self.zone {
                Some(_) => return None,
                None => self.zone = Some(zone),
            },
            Word::Shift(count, unit) => {
                let sum = match unit {
                    Unit::Second => &mut self.seconds,
                    Unit::Day => &mut self.days,
                    Unit::Month => &mut self.months,
                };
                *sum = sum.checked_add(count)?;
            }
            Word::Week(weeks) => {
                self.days += 7 * weeks;
                let weekday = self.weekday.map_or(1, |(weekday, _)| weekday);
                self.weekday = Some((weekday, WeekdayRule::OfThisWeek));
            }
            Word::Weekday(weekday) => {
                self.time = TimeOfDay::Midnight;
                let rule = match self.weekday {
                    Some((_, WeekdayRule::OfThisWeek)) => WeekdayRule::OfThisWeek,
                    _ => WeekdayRule::FromToday,
                };
                self.weekday = Some((weekday, rule));
            }
            Word::NamedWeekday { count, weekday } => {
                self.time = TimeOfDay::Midnight;
                let rule = if count == 0 { WeekdayRule::FromToday } else { WeekdayRule::AfterToday };
                self.count_weekday(count, weekday, rule);
            }
            Word::NumberedWeekday { count, weekday } => {
                self.count_weekday(count, weekday, WeekdayRule::FromToday);
            }
            Word::DayOfMonth(day) => {
                if matches!(day, DayOfMonth::Nth(..) | DayOfMonth::LastWeekday(_)) {
                    self.time = TimeOfDay::Midnight;
                }
                self.day_of_month = Some(day);
            }
            Word::Ago => {
                let is_shift = [self.months, self.days, self.seconds] != [0; 3];
                if !is_shift || self.weekday.is_some() || self.day_of_month.is_some() {
                    return None;
                }
                (self.months, self.days, self.seconds) = (-self.months, -self.days, -self.seconds);
            }
            Word::Unix(ms) => self.unix_ms = Some(ms),
        }
        Some(())
    }

    fn count_weekday(&mut self, count: i64, weekday: i64, rule: WeekdayRule) {
        self.days += 7 * if count > 0 { count - 1 } else { count };
        self.weekday = Some((weekday, rule));
    }

    fn set_date(&mut self, date: Date) -> Option<()> {
        self.date.replace(date).is_none().then_some(())
    }

    fn set_time(&mut self, time: Time) -> Option<()> {
        let is_first = !matches!(self.time, TimeOfDay::Given(_));
        self.time = TimeOfDay::Given(time);
        is_first.then_some(())
    }

    fn set_four_digits(&mut self, digits: i64) -> Option<()> {
        let (hour, minute) = (digits / 100, digits % 100);
        let is_time = hour <= 24 && minute < 60;
        match (&mut self.date, self.time) {
            (_, TimeOfDay::Unknown | TimeOfDay::Midnight) if is_time => {
                self.set_time(Time { hour, minute, second: 0 })
            }
            // The year follows the time: `Dec 1 23:50:50 2026`.
            (Some(date @ Date { year: None, .. }), _) => {
                date.year = Some(digits);
                Some(())
            }
            _ => None,
        }
    }
}

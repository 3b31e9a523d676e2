//! The possible meanings of one word of a text.

use jiff::tz::TimeZone;

/// A date. If the text does not give a part, the current year, month or day is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Date {
    pub year: Option<i64>,
    /// 1 to 12.
    pub month: Option<i64>,
    /// The day, 0 to 31. A day after the end of the month is a day of the next month. 0 is the last day of the month
    /// before.
    pub day: Option<i64>,
}

/// A time of day. The hour may be 24 and the second 60.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time {
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
}

/// The units that a moment is shifted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Second,
    Day,
    Month,
}

/// How dq chooses the day that the name of a day of the week means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeekdayRule {
    /// The first such day that is today or later.
    FromToday,
    /// The first such day after today.
    AfterToday,
    /// The day in the present week, which begins on Monday.
    OfThisWeek,
}

/// The first or last day of a month, or a day of the week that is counted within the month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DayOfMonth {
    First,
    Last,
    /// The day of the week that occurs in the month for the nth time. Holds the day of the week (Sunday is 0) and n,
    /// from 1.
    Nth(i64, i64),
    /// The last occurrence of a day of the week in the month.
    LastWeekday(i64),
}

/// A zone.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ZoneOrOffset {
    /// Seconds east of UTC.
    Offset(i64),
    Named(TimeZone),
}

/// One word of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Word {
    Now,
    /// A number of days from today, at midnight.
    Today(i64),
    Noon,
    Date(Date),
    Time(Time),
    DateTime(Date, Time),
    /// A year, and a number of days after its first of January.
    DayOfYear(i64, i64),
    /// Four digits: a time of day or, if they follow a time, a year.
    FourDigits(i64),
    ZoneOrOffset(ZoneOrOffset),
    /// A shift by a number of units.
    Shift(i64, Unit),
    /// A number of weeks from this week, as in `next week`.
    Week(i64),
    /// Only a day of the week.
    Weekday(i64),
    /// A day of the week, counted in words: `next monday`, `third friday`.
    NamedWeekday {
        count: i64,
        weekday: i64,
    },
    /// A day of the week, counted by a number: `+2 sat`. The time of day stays.
    NumberedWeekday {
        count: i64,
        weekday: i64,
    },
    DayOfMonth(DayOfMonth),
    /// All shifts before this word are shifts into the past.
    Ago,
    /// Unix milliseconds.
    Unix(i64),
}

/// The greatest number of one unit that a text may give. Up to this number, no calculation overflows.
pub(super) const COUNT_MAX: i64 = 1_000_000_000;

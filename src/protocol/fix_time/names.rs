//! The names in a `fix_time`: months, days of the week, units, zones.

use super::word::Unit;

/// The months, from 1.
pub(super) const MONTHS: [(&str, i64); 24] = [
    ("jan", 1),
    ("january", 1),
    ("feb", 2),
    ("february", 2),
    ("mar", 3),
    ("march", 3),
    ("apr", 4),
    ("april", 4),
    ("may", 5),
    ("jun", 6),
    ("june", 6),
    ("jul", 7),
    ("july", 7),
    ("aug", 8),
    ("august", 8),
    ("sep", 9),
    ("sept", 9),
    ("september", 9),
    ("oct", 10),
    ("october", 10),
    ("nov", 11),
    ("november", 11),
    ("dec", 12),
    ("december", 12),
];

/// The days of the week. Sunday is 0.
pub(super) const WEEKDAYS: [(&str, i64); 18] = [
    ("sun", 0),
    ("sunday", 0),
    ("mon", 1),
    ("monday", 1),
    ("tue", 2),
    ("tues", 2),
    ("tuesday", 2),
    ("wed", 3),
    ("wednesday", 3),
    ("thu", 4),
    ("thur", 4),
    ("thurs", 4),
    ("thursday", 4),
    ("fri", 5),
    ("friday", 5),
    ("sat", 6),
    ("saturday", 6),
    ("weds", 3),
];

/// The units of a shift, each as a number of seconds, days or months.
pub(super) const UNITS: [(&str, (Unit, i64)); 17] = [
    ("sec", (Unit::Second, 1)),
    ("secs", (Unit::Second, 1)),
    ("second", (Unit::Second, 1)),
    ("seconds", (Unit::Second, 1)),
    ("min", (Unit::Second, 60)),
    ("mins", (Unit::Second, 60)),
    ("minute", (Unit::Second, 60)),
    ("minutes", (Unit::Second, 60)),
    ("hour", (Unit::Second, 3600)),
    ("hours", (Unit::Second, 3600)),
    ("day", (Unit::Day, 1)),
    ("days", (Unit::Day, 1)),
    ("fortnight", (Unit::Day, 14)),
    ("month", (Unit::Month, 1)),
    ("months", (Unit::Month, 1)),
    ("year", (Unit::Month, 12)),
    ("years", (Unit::Month, 12)),
];

/// The unit whose meaning depends on the word before it: `+1 week` is seven days, `next week` begins on Monday.
pub(super) const WEEKS: [(&str, i64); 2] = [("week", 7), ("weeks", 7)];

/// Numbers in words.
pub(super) const ORDINALS: [(&str, i64); 12] = [
    ("first", 1),
    ("second", 2),
    ("third", 3),
    ("fourth", 4),
    ("fifth", 5),
    ("sixth", 6),
    ("seventh", 7),
    ("eighth", 8),
    ("ninth", 9),
    ("tenth", 10),
    ("eleventh", 11),
    ("twelfth", 12),
];

/// Words that choose a unit: -1 is the unit before the present one, 0 is the present one, 1 is the unit after it.
pub(super) const WHICH: [(&str, i64); 4] = [("last", -1), ("previous", -1), ("this", 0), ("next", 1)];

/// Abbreviations of zones, with their seconds east of UTC. As in PHP, `cst` is Central Standard Time (UTC-6), and not
/// China's.
pub(super) const ZONES: [(&str, i64); 30] = [
    ("utc", 0),
    ("gmt", 0),
    ("z", 0),
    ("wet", 0),
    ("west", 3600),
    ("bst", 3600),
    ("cet", 3600),
    ("cest", 7200),
    ("eet", 7200),
    ("eest", 10800),
    ("msk", 10800),
    ("pkt", 18000),
    ("wib", 25200),
    ("hkt", 28800),
    ("awst", 28800),
    ("jst", 32400),
    ("kst", 32400),
    ("acst", 34200),
    ("aest", 36000),
    ("aedt", 39600),
    ("nzst", 43200),
    ("nzdt", 46800),
    ("est", -18000),
    ("edt", -14400),
    ("cst", -21600),
    ("cdt", -18000),
    ("mst", -25200),
    ("mdt", -21600),
    ("pst", -28800),
    ("pdt", -25200),
];

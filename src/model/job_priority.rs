//! The priority of a job among the ready jobs of its topic: a number, or one of three levels. Pure.
//!
//! docs/internals/PRIORITY.md says why the levels are consecutive numbers.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use crate::job_parts::Priority;

/// Decides which of a topic's jobs are leased first: a job with a lower number comes earlier. Each level is one of the
/// numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobPriority(u32);

/// The number of a priority, minus this difference, gives the number that a store keeps for the priority. In a store,
/// the levels are 1, 2 and 3, as in earlier releases.
const STORED_LESS: i64 = (1 << 31) - 2;

impl JobPriority {
    /// What a priority may be, for messages.
    pub const FORMS: &str = "\"high\", \"normal\", \"low\" or a whole number from 0 to 4294967295";

    /// Makes a priority from its number. A job with a lower number comes earlier.
    pub fn from_number(number: u32) -> JobPriority {
        JobPriority(number)
    }

    /// Returns the number of the priority.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the level with this number. None: the priority comes before all levels, or after them.
    pub fn level(self) -> Option<Priority> {
        Priority::from_number(self.stored())
    }

    /// Returns the number that stands for the priority in a store.
    pub fn stored(self) -> i64 {
        i64::from(self.0) - STORED_LESS
    }

    /// Returns the priority that a number in a store stands for. None: the number stands for no priority.
    pub fn from_stored(stored: i64) -> Option<JobPriority> {
        u32::try_from(stored.checked_add(STORED_LESS)?).ok().map(JobPriority)
    }

    /// Reads a priority as it is shown: the word of a level, or a number.
    pub fn parse(text: &str) -> Option<JobPriority> {
        let level = LEVELS.iter().find(|(word, _)| *word == text).map(|(_, level)| (*level).into());
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        level.or_else(|| Some(JobPriority(text.parse().ok().filter(|_| is_number)?)))
    }
}

/// The levels, and their words.
const LEVELS: [(&str, Priority); 3] =
    [("high", Priority::High), ("normal", Priority::Normal), ("low", Priority::Low)];

impl From<Priority> for JobPriority {
    fn from(level: Priority) -> JobPriority {
        JobPriority((level as i64 + STORED_LESS) as u32)
    }
}

impl Default for JobPriority {
    fn default() -> JobPriority {
        Priority::default().into()
    }
}

impl fmt::Display for JobPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match LEVELS.iter().find(|(_, level)| Some(*level) == self.level()) {
            Some((word, _)) => f.write_str(word),
            None => self.0.fmt(f),
        }
    }
}

impl Serialize for JobPriority {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.level() {
            Some(_) => to.collect_str(self),
            None => to.serialize_u32(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for JobPriority {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JobPriority, D::Error> {
        struct JobPriorityVisitor;
        impl Visitor<'_> for JobPriorityVisitor {
            type Value = JobPriority;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(JobPriority::FORMS)
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<JobPriority, E> {
                let wrong = |_| E::invalid_value(de::Unexpected::Unsigned(number), &self);
                u32::try_from(number).map(JobPriority).map_err(wrong)
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<JobPriority, E> {
                let level = LEVELS.iter().find(|(known, _)| *known == word);
                let wrong = || E::invalid_value(de::Unexpected::Str(word), &self);
                level.map(|(_, level)| (*level).into()).ok_or_else(wrong)
            }
        }
        from.deserialize_any(JobPriorityVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_neighbours_in_the_middle_of_the_numbers() {
        let of = |level: Priority| JobPriority::from(level);
        let (high, normal, low) = (of(Priority::High), of(Priority::Normal), of(Priority::Low));
        assert_eq!((high.number(), normal.number(), low.number()), (2_147_483_647, 1 << 31, 2_147_483_649));
        assert_eq!((high.stored(), normal.stored(), low.stored()), (1, 2, 3));
        assert_eq!(JobPriority::default(), normal);
        let all = [0, 1, high.number() - 1, high.number(), normal.number(), low.number() + 1, u32::MAX];
        let all = all.map(JobPriority::from_number);
        assert!(all.is_sorted() && all.is_sorted_by_key(|one| one.stored()));
        let levels: Vec<_> = all.iter().filter_map(|one| one.level()).collect();
        assert_eq!(levels, [Priority::High, Priority::Normal]);
        for one in all {
            assert_eq!(JobPriority::from_stored(one.stored()), Some(one));
            assert_eq!(JobPriority::parse(&one.to_string()), Some(one));
            let json = serde_json::to_string(&one).unwrap();
            assert_eq!(serde_json::from_str::<JobPriority>(&json).unwrap(), one);
        }
        for bad in [i64::MIN, i64::MAX, JobPriority::from_number(0).stored() - 1, 1 << 32] {
            assert_eq!(JobPriority::from_stored(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_priority_is_a_word_or_a_whole_number() {
        let read = |json: &str| serde_json::from_str::<JobPriority>(json);
        assert_eq!(read("7").unwrap().to_string(), "7");
        assert_eq!(read("2147483648").unwrap().to_string(), "normal");
        for bad in ["-1", "1.0", "4294967296", "\"5\"", "\"urgent\"", "null", "true", "[1]"] {
            let why = read(bad).expect_err(bad).to_string();
            assert!(why.contains("a whole number from 0 to 4294967295"), "{bad}: {why}");
        }
        for bad in ["", "-1", "+1", "1.0", "4294967296", "High", "urgent"] {
            assert_eq!(JobPriority::parse(bad), None, "{bad}");
        }
    }
}

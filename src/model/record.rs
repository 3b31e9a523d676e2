//! What is kept of a job after it has ended. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::headers::Headers;
use crate::job::{Attempt, Body, JobKey};
use crate::tags::Tag;
pub use crate::topic::RecordKeeping;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// The receiver accepted the job.
    Delivered = 1,
    /// The job became a dead letter. A dead letter may be redriven, and then the job ends once more.
    Dead = 2,
    /// A client or an operator removed the job.
    Deleted = 3,
    /// Another job with the same id replaced the job.
    Replaced = 4,
}

impl Ending {
    /// All endings.
    pub const ALL: [Ending; 4] = [Ending::Delivered, Ending::Dead, Ending::Deleted, Ending::Replaced];

    /// Returns the ending that has this number in a store.
    pub fn from_number(n: i64) -> Option<Ending> {
        Ending::ALL.into_iter().find(|ending| *ending as i64 == n)
    }

    /// Returns the word for the ending in the API.
    pub fn word(self) -> &'static str {
        match self {
            Ending::Delivered => "delivered",
            Ending::Dead => "dead",
            Ending::Deleted => "deleted",
            Ending::Replaced => "replaced",
        }
    }

    /// Returns the ending with that word.
    pub fn from_word(word: &str) -> Option<Ending> {
        Ending::ALL.into_iter().find(|ending| ending.word() == word)
    }
}

/// What is kept of a job that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Topic and id.
    pub key: JobKey,
    /// How the job ended.
    pub ending: Ending,
    /// When the job ended, Unix milliseconds, by the shard's clock.
    pub ended_ms: i64,
    /// The time by which records are listed: `ended_ms`, or the time of an earlier record if the clock was set back
    /// after that record.
    pub order_ms: i64,
    /// When the job was added, Unix microseconds, by the shard's clock. None: the store does not know this time.
    pub stamp_us: Option<i64>,
    /// When its last attempt was due, Unix milliseconds. If the job ended while it waited for its next attempt, this is
    /// the due time of the next attempt.
    pub due_ms: i64,
    /// How many attempts were begun. Attempts that do not count are left out.
    pub attempts: u32,
    /// The first and the last attempts, the oldest first. If there is a note, the note is the last entry.
    pub attempts_log: Vec<Attempt>,
    /// The body of the job, if its topic keeps bodies.
    pub body: Option<Body>,
    /// The tags of the job. If its topic keeps bodies, also the headers and the destination of the job.
    pub headers: Headers,
}

/// The number of a log entry that is a note and not an attempt. The error of such an entry says why the job was
/// removed. Earlier releases show the note among the attempts.
pub const NOTE_NUMBER: u32 = 0;

impl JobRecord {
    /// Removes what receivers answered.
    pub fn remove_answers(&mut self) {
        self.attempts_log.iter_mut().for_each(|attempt| attempt.answer.clear());
    }

    /// Returns why the job was removed, if there is a note about it.
    pub fn note(&self) -> Option<&str> {
        let last = self.attempts_log.last().filter(|last| last.number == NOTE_NUMBER)?;
        Some(&last.error)
    }

    /// Returns the first and the last attempts, the oldest first.
    pub fn made_attempts(&self) -> &[Attempt] {
        let notes = usize::from(self.note().is_some());
        &self.attempts_log[..self.attempts_log.len() - notes]
    }

    /// Returns the time from the due time of the last attempt to its beginning. None: there was no attempt.
    pub fn late(&self) -> Option<Duration> {
        let last = self.made_attempts().last()?;
        Some(Duration::from_millis(u64::try_from(last.at_ms.saturating_sub(self.due_ms)).unwrap_or(0)))
    }
}

/// At least this number of records of one id is kept, if the other limits allow it.
pub const RECORDS_OF_AN_ID: usize = 10;

/// A body with more bytes than this number is not kept in a record.
pub const RECORD_BODY_MAX: usize = 65_536;

/// The maximum size of the records of all topics together, in bytes, if the configuration does not set this size.
pub const RECORDS_MAX: u64 = 512 << 20;

/// Which records a listing shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordFilter {
    /// The id begins with this text.
    pub id_prefix: Option<String>,
    /// How the job ended.
    pub ending: Option<Ending>,
    /// The job ended at this moment or later, Unix milliseconds.
    pub since_ms: Option<i64>,
    /// The job ended before this moment, Unix milliseconds.
    pub until_ms: Option<i64>,
    /// The status of the last answer.
    pub status: Option<u16>,
    /// The last answer, or the error of the last attempt, contains this text. If the record has a note, the text is
    /// searched only in the note. Upper and lower case make no difference.
    pub text: Option<String>,
    /// A tag of the job.
    pub tag: Option<Tag>,
}

impl RecordFilter {
    /// Returns whether the listing shows a record.
    pub fn admits(&self, record: &JobRecord) -> bool {
        let last = record.attempts_log.last();
        let has = |text: &String| {
            let text = folded(text);
            last.is_some_and(|a| folded(&a.answer).contains(&text) || folded(&a.error).contains(&text))
        };
        self.id_prefix.as_ref().is_none_or(|prefix| record.key.id.as_str().starts_with(prefix))
            && self.ending.is_none_or(|ending| record.ending == ending)
            && self.since_ms.is_none_or(|since| record.ended_ms >= since)
            && self.until_ms.is_none_or(|until| record.ended_ms < until)
            && self.status.is_none_or(|status| last.is_some_and(|a| a.status == Some(status)))
            && self.text.as_ref().is_none_or(has)
            && self.tag.as_ref().is_none_or(|tag| record.headers.tags().has(tag))
    }
}

/// Returns a text in lower case. Σ has two lower-case forms, one for the end of a word and one for other places. This
/// function makes the two forms equal, because the text of a search may be a part of a word.
fn folded(text: &str) -> String {
    text.to_lowercase().replace('ς', "σ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobId, TopicName};
    use crate::tags::Tags;

    fn record() -> JobRecord {
        let attempt = Attempt {
            number: 1,
            at_ms: 1_250,
            took_ms: 30,
            status: Some(503),
            answer: "Try LATER".into(),
            error: String::new(),
            late: None,
        };
        JobRecord {
            key: JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("order-42").unwrap() },
            ending: Ending::Dead,
            ended_ms: 2_000,
            order_ms: 2_000,
            stamp_us: Some(1_000_000),
            due_ms: 1_200,
            attempts: 1,
            attempts_log: vec![attempt],
            body: None,
            headers: Headers::default().with_tags(Tags::new(["shop:7"]).unwrap()),
        }
    }

    #[test]
    fn a_note_is_no_attempt_and_is_found_by_its_text() {
        let mut record = record();
        assert_eq!((record.note(), record.made_attempts().len()), (None, 1));
        let late = record.late();
        let made = Attempt {
            number: NOTE_NUMBER,
            at_ms: 9_000,
            error: "exported".into(),
            ..record.attempts_log[0].clone()
        };
        record.attempts_log.push(made);
        assert_eq!((record.note(), record.made_attempts().len(), record.late()), (Some("exported"), 1, late));
        let with_text = RecordFilter { text: Some("export".into()), ..RecordFilter::default() };
        assert!(with_text.admits(&record));
    }

    #[test]
    fn a_filter_admits_what_has_all_that_it_asks_for() {
        let all = RecordFilter {
            id_prefix: Some("order-".into()),
            ending: Some(Ending::Dead),
            since_ms: Some(2_000),
            until_ms: Some(2_001),
            status: Some(503),
            text: Some("later".into()),
            tag: Some(Tag::new("shop:7").unwrap()),
        };
        assert!(all.admits(&record()) && RecordFilter::default().admits(&record()));
        let others = [
            RecordFilter { id_prefix: Some("rder".into()), ..all.clone() },
            RecordFilter { ending: Some(Ending::Delivered), ..all.clone() },
            RecordFilter { since_ms: Some(2_001), ..all.clone() },
            RecordFilter { until_ms: Some(2_000), ..all.clone() },
            RecordFilter { status: Some(200), ..all.clone() },
            RecordFilter { text: Some("never".into()), ..all.clone() },
            RecordFilter { tag: Some(Tag::new("shop").unwrap()), ..all.clone() },
        ];
        assert!(others.iter().all(|filter| !filter.admits(&record())));
    }

    #[test]
    fn the_lateness_is_that_of_the_last_attempt() {
        let mut record = record();
        assert_eq!(record.late(), Some(Duration::from_millis(50)));
        record.due_ms = 9_000;
        assert_eq!(record.late(), Some(Duration::ZERO));
        record.attempts_log.clear();
        assert_eq!(record.late(), None);
    }

    #[test]
    fn each_ending_has_a_number_and_a_word() {
        for ending in Ending::ALL {
            assert_eq!(Ending::from_number(ending as i64), Some(ending));
            assert_eq!(Ending::from_word(ending.word()), Some(ending));
        }
        assert_eq!((Ending::from_number(5), Ending::from_word("done")), (None, None));
    }

    #[test]
    fn a_text_is_found_whatever_the_case_of_its_letters() {
        for (answer, text) in [
            ("ΟΔΟΣ ΑΘΗΝΑΣ", "οδος"),
            ("ΟΔΟΣ ΑΘΗΝΑΣ", "οδοσ"),
            ("οδος", "ΟΔΟΣ"),
            ("ΣΙΣΥΦΟΣ", "σισ"),
            ("Σίσυφος", "ΣΊΣΥΦΟΣ"),
            ("ÄRGER", "ärger"),
        ] {
            let mut record = record();
            record.attempts_log[0].answer = answer.to_owned();
            let filter = RecordFilter { text: Some(text.to_owned()), ..RecordFilter::default() };
            assert!(filter.admits(&record), "{text} in {answer}");
        }
    }
}

//! The last lease of each id that was popped. An ack of gmq-redis names only an id. It names no topic and no lease.
//! Pure.
//!
//! A process that ends passes the leases on as text (`succession`).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use model::job::{JobId, JobKey, TopicName};
use store::{LeasedJob, Token};

/// How many leases are known. If there are more, the leases that end first are forgotten. An ack for such a lease is
/// refused, so the job comes back at the end of the lease.
const KEPT_MAX: usize = 50_000;

/// A lease is known for this time after its end. The clock of the store decides whether a lease has ended, and this
/// clock may differ from the clock of the host.
const KEPT_BEYOND: Duration = Duration::from_secs(10);

/// The lease that an ack settles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoppedLease {
    pub key: JobKey,
    pub token: Token,
    pub attempt: u32,
    /// When the job was popped, in Unix milliseconds.
    pub began_ms: i64,
    /// The end of the time in which the lease is known, in Unix milliseconds.
    known_until_ms: i64,
}

impl PoppedLease {
    /// `hold`: how long the lease lasts.
    pub(super) fn new(leased: &LeasedJob, began_ms: i64, hold: Duration) -> PoppedLease {
        PoppedLease {
            key: leased.key.clone(),
            token: leased.token.clone(),
            attempt: leased.attempt,
            began_ms,
            known_until_ms: began_ms.saturating_add((hold + KEPT_BEYOND).as_millis() as i64),
        }
    }
}

/// A lease as text: topic, id, token, attempt, `began_ms`, `known_until_ms`.
type LeaseRow<'a> = (&'a str, String, Box<[u8]>, u32, i64, i64);

/// The last lease of each id.
#[derive(Debug, Default)]
pub(super) struct LastLeases {
    by_id: HashMap<JobId, PoppedLease>,
    ends: BTreeSet<(i64, JobId)>,
    /// How many leases were noted.
    noted: u64,
}

impl LastLeases {
    /// Notes that a job was popped.
    pub(super) fn note(&mut self, last: PoppedLease, now_ms: i64) {
        let id = last.key.id.clone();
        self.remove(&id);
        while let Some((ends, first)) = self.ends.first().cloned()
            && (ends <= now_ms || self.by_id.len() >= KEPT_MAX)
        {
            self.remove(&first);
        }
        self.noted += 1;
        self.ends.insert((last.known_until_ms, id.clone()));
        self.by_id.insert(id, last);
    }

    /// Returns how many leases were noted.
    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    /// Returns the last lease of an id.
    pub(super) fn find(&self, id: &JobId) -> Option<PoppedLease> {
        self.by_id.get(id).cloned()
    }

    /// Forgets a lease that was settled or has ended. A later lease of the same id stays.
    pub(super) fn forget(&mut self, over: &PoppedLease) {
        if self.by_id.get(&over.key.id).is_some_and(|known| known.token == over.token) {
            self.remove(&over.key.id);
        }
    }

    fn remove(&mut self, id: &JobId) {
        if let Some(known) = self.by_id.remove(id) {
            self.ends.remove(&(known.known_until_ms, id.clone()));
        }
    }

    /// Returns the leases as lines of JSON.
    pub(super) fn to_text(&self) -> String {
        let line = |PoppedLease { key, token, attempt, began_ms, known_until_ms }: &PoppedLease| {
            let all = (key.topic.as_str(), key.id.as_str(), &token.0, attempt, began_ms, known_until_ms);
            serde_json::to_string(&all).expect("texts and numbers are plain values") + "\n"
        };
        self.by_id.values().map(line).collect()
    }

    /// Notes the leases of another process, which [`LastLeases::to_text`] wrote. If an id is already known here, the
    /// lease in the text is older and is skipped. Lines that cannot be read are skipped too.
    pub(super) fn note_text(&mut self, text: &str, now_ms: i64) {
        for line in text.lines() {
            let row = serde_json::from_str::<LeaseRow>(line);
            let Ok((topic, id, token, attempt, began_ms, known_until_ms)) = row else { continue };
            let (Ok(topic), Ok(id)) = (TopicName::new(topic), JobId::new(id)) else { continue };
            if known_until_ms > now_ms && !self.by_id.contains_key(&id) {
                let (key, token) = (JobKey { topic, id }, Token(token));
                self.note(PoppedLease { key, token, attempt, began_ms, known_until_ms }, now_ms);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(topic: &str, id: &str, token: u8, known_until_ms: i64) -> PoppedLease {
        let key = JobKey { topic: TopicName::new(topic).unwrap(), id: JobId::new(id).unwrap() };
        PoppedLease { key, token: Token(Box::from([token])), attempt: 1, began_ms: 0, known_until_ms }
    }

    #[test]
    fn the_last_lease_of_an_id_counts() {
        let mut reserves = LastLeases::default();
        let id = JobId::new("1").unwrap();
        let (first, second) = (last("a", "1", 1, 9), last("b", "1", 2, 9));
        reserves.note(first.clone(), 0);
        reserves.note(second.clone(), 0);
        reserves.forget(&first);
        assert_eq!(reserves.find(&id).unwrap().key.topic.as_str(), "b");
        reserves.forget(&second);
        assert!(reserves.find(&id).is_none() && reserves.ends.is_empty());
    }

    #[test]
    fn what_has_ended_and_what_is_too_much_is_forgotten() {
        let mut reserves = LastLeases::default();
        reserves.note(last("a", "old", 0, 9), 0);
        for n in 0..=KEPT_MAX {
            reserves.note(last("a", &n.to_string(), 0, 100 + n as i64), 10);
        }
        assert_eq!((reserves.by_id.len(), reserves.ends.len()), (KEPT_MAX, KEPT_MAX));
        let knows = |id: &str| reserves.find(&JobId::new(id).unwrap()).is_some();
        assert!(!knows("old") && !knows("0") && knows("1"));
    }

    #[test]
    fn the_next_process_knows_the_leases_that_still_hold() {
        let mut before = LastLeases::default();
        let kept = last("a", "é\n\"1", 7, 100);
        for one in [kept.clone(), last("a", "over", 1, 50), last("a", "again", 1, 100)] {
            before.note(one, 0);
        }
        let mut next = LastLeases::default();
        next.note(last("b", "again", 2, 100), 60);
        next.note_text(&(before.to_text() + "no JSON\n"), 60);
        assert_eq!(next.find(&kept.key.id), Some(kept));
        assert_eq!(next.find(&JobId::new("again").unwrap()).unwrap().key.topic.as_str(), "b");
        assert!(next.find(&JobId::new("over").unwrap()).is_none());
    }
}

//! The jobs that a connection has reserved, and the numbers of jobs that were not added on this port. Pure.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::Owner;
use model::job::JobKey;
use store::Token;

/// How many jobs a connection may have reserved at the same time.
pub(super) const HELD_MAX: usize = 1_000;

/// A client is warned this long before the end of its lease: one second, as in beanstalkd.
const MARGIN: Duration = Duration::from_secs(1);

/// When a lease has ended by the clock of this process, the lease stays known for this time. The store decides when a
/// lease ends, and its clock may be behind.
const KNOWN_BEYOND: Duration = Duration::from_secs(10);

/// A job that a connection has reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldJob {
    pub key: JobKey,
    pub token: Token,
    pub attempt: u32,
    /// When the job was reserved, in Unix milliseconds.
    pub began_ms: i64,
    pub ttr: Duration,
    pub ends: Instant,
    /// The owner of the job's lease: this process, or an earlier process that has passed the connection on.
    pub owner: Option<Arc<Owner>>,
}

/// The jobs that a connection has reserved, by their numbers.
#[derive(Debug, Default)]
pub(super) struct HeldJobs {
    by_number: HashMap<u64, HeldJob>,
    ends: BTreeSet<(Instant, u64)>,
}

impl HeldJobs {
    pub(super) fn insert(&mut self, number: u64, job: HeldJob) {
        self.remove(number);
        self.ends.insert((job.ends, number));
        self.by_number.insert(number, job);
    }

    pub(super) fn get(&self, number: u64) -> Option<&HeldJob> {
        self.by_number.get(&number)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<HeldJob> {
        let job = self.by_number.remove(&number)?;
        self.ends.remove(&(job.ends, number));
        Some(job)
    }

    /// Forgets the leases that ended a while ago.
    pub(super) fn forget_ended(&mut self, now: Instant) {
        while let Some((ends, number)) =
            self.ends.first().copied().filter(|(at, _)| *at + KNOWN_BEYOND <= now)
        {
            self.ends.remove(&(ends, number));
            self.by_number.remove(&number);
        }
    }

    /// Returns when [`HeldJobs::forget_ended`] next forgets a lease.
    pub(super) fn forgets_at(&self) -> Option<Instant> {
        self.ends.first().map(|(ends, _)| *ends + KNOWN_BEYOND)
    }

    /// Returns the time from which the client is warned that a lease ends. Leases that have ended do not count.
    pub(super) fn warns_from(&self, now: Instant) -> Option<Instant> {
        let (ends, _) = self.ends.iter().find(|(ends, _)| *ends > now)?;
        Some(ends.checked_sub(MARGIN).unwrap_or(now))
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn take_all(&mut self) -> Vec<HeldJob> {
        self.ends.clear();
        self.by_number.drain().map(|(_, job)| job).collect()
    }

    /// Returns all jobs with their numbers.
    pub(super) fn all(&self) -> Vec<(u64, HeldJob)> {
        self.by_number.iter().map(|(number, job)| (*number, job.clone())).collect()
    }
}

/// How many jobs that were not added on this port may have a number. The oldest numbers are forgotten first.
const ALIASES_MAX: usize = 10_000;

/// The numbers that this process has given to jobs that were not added on this port.
#[derive(Debug, Default)]
pub(super) struct JobNumberTable {
    by_number: HashMap<u64, JobKey>,
    by_key: HashMap<JobKey, u64>,
    order: VecDeque<u64>,
}

impl JobNumberTable {
    /// Returns the number of a job, if it has one.
    pub(super) fn number(&self, key: &JobKey) -> Option<u64> {
        self.by_key.get(key).copied()
    }

    /// Gives a job a number that is free.
    pub(super) fn insert(&mut self, number: u64, key: &JobKey) {
        if self.order.len() >= ALIASES_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(key) = self.by_number.remove(&oldest)
        {
            self.by_key.remove(&key);
        }
        self.order.push_back(number);
        self.by_number.insert(number, key.clone());
        self.by_key.insert(key.clone(), number);
    }

    pub(super) fn find(&self, number: u64) -> Option<&JobKey> {
        self.by_number.get(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::{JobId, TopicName};

    const SECOND: Duration = Duration::from_secs(1);

    fn key(id: &str) -> JobKey {
        JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new(id).unwrap() }
    }

    fn job(ends: Instant) -> HeldJob {
        let token = Token(Box::from([1]));
        HeldJob { key: key("a"), token, attempt: 1, began_ms: 0, ttr: SECOND, ends, owner: None }
    }

    #[test]
    fn a_client_is_warned_of_the_first_lease_that_ends() {
        let now = Instant::now() + 100 * SECOND;
        let mut held = HeldJobs::default();
        assert_eq!(held.warns_from(now), None);
        held.insert(1, job(now + 9 * SECOND));
        held.insert(2, job(now + 5 * SECOND));
        assert_eq!(held.warns_from(now), Some(now + 4 * SECOND));
        held.insert(2, job(now + 20 * SECOND));
        assert_eq!(held.warns_from(now), Some(now + 8 * SECOND), "a touch extends it");
        assert_eq!(held.warns_from(now + 9 * SECOND), Some(now + 19 * SECOND), "an ended one does not count");
        held.forget_ended(now + 18 * SECOND);
        assert_eq!(held.len(), 2);
        held.forget_ended(now + 19 * SECOND);
        assert_eq!((held.len(), held.get(1)), (1, None));
        assert_eq!((held.take_all().len(), held.warns_from(now)), (1, None));
    }

    #[test]
    fn a_foreign_job_keeps_its_number_until_many_others_came() {
        let mut aliases = JobNumberTable::default();
        aliases.insert(7, &key("a"));
        aliases.insert(8, &key("b"));
        assert_eq!((aliases.number(&key("a")), aliases.number(&key("c"))), (Some(7), None));
        for n in 0..ALIASES_MAX as u64 - 1 {
            aliases.insert(100 + n, &key(&format!("c{n}")));
        }
        assert_eq!((aliases.find(7), aliases.find(8)), (None, Some(&key("b"))));
        assert_eq!((aliases.number(&key("a")), aliases.by_key.len()), (None, ALIASES_MAX));
    }
}

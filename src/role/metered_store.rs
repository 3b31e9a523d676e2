//! A store that counts its calls: what happened to jobs, by topic, and how long calls took, by node. It counts after
//! the store has done the work, and before anybody gets the answer. So each acknowledged change is counted, and each
//! counted change was done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::job::{Due, JobId, JobKey, NewJob, State, TopicName};
use model::letters::RedrivePace;
use model::metrics::{AddOutcome, DeathCause, DeleteOutcome, NodeCounters, PurgeCause, StoreOperation};
use store::{
    Added, Change, Changed, CircuitOpening, CircuitView, Counts, DeadLetterKey, DeadLetterOperation,
    DeadLetterSelection, DeadLetters, Deleted, FlowControl, Forecast, Jobs, JobsPage, Lanes, LeaseRequest,
    LeaseResult, LeasedJob, Leases, LimitQuery, LimitUse, Outcome, OwnerTag, Pauses, Permit, PermitRequest,
    PromotionResult, Result, Settled, Settlement, Settlements, SpreadCounts, Store, StoreError, StoredJob,
    TimerWork, Views,
};
use telemetry::counters::Counters;

/// The name of the embedded store in the counters.
pub const EMBEDDED: &str = "embedded";

/// The name of all nodes together in the counters, if there are several.
pub const ALL: &str = "(all)";

/// A handle to the store that counts its calls.
pub(super) struct MeteredStore {
    pub(super) store: Box<dyn Store>,
    pub(super) counters: Counters,
    lanes: Lanes,
    /// The lane of the handle. None: all lanes.
    lane: Option<usize>,
    /// The names of the lanes.
    names: Arc<[String]>,
}

impl MeteredStore {
    pub(super) fn new(store: Box<dyn Store>, counters: Counters, lanes: Lanes, lane: Option<usize>) -> Self {
        let names = (0..lanes.count()).map(|lane| lanes.name(lane).unwrap_or(EMBEDDED).to_owned()).collect();
        // With only one lane, a handle to the whole store is a handle to this lane.
        let lane = lane.or((lanes.count() == 1).then_some(0));
        MeteredStore { store, counters, lanes, lane, names }
    }

    /// Returns the counters of the job's home. The handle of one lane always uses the counters of this lane.
    pub(super) fn node_of(&self, key: &JobKey) -> NodeCounters<'_> {
        self.counters.node(&self.names[self.lane.unwrap_or_else(|| self.lanes.lane_of(key))])
    }

    /// Returns the counters for a call: those of the handle's lane, of the home of `key`, or of all nodes together.
    fn node(&self, key: Option<&JobKey>) -> NodeCounters<'_> {
        match (self.lane, key) {
            (None, None) => self.counters.node(ALL),
            (Some(lane), _) => self.counters.node(&self.names[lane]),
            (None, Some(key)) => self.node_of(key),
        }
    }

    /// Notes how long a call took.
    pub(super) fn took(&self, operation: StoreOperation, key: Option<&JobKey>, begun: Instant, failed: bool) {
        self.node(key).answered(operation, begun.elapsed().as_micros() as u64, failed);
    }

    /// Makes a call, and notes how long it took.
    pub(super) fn timed<T>(
        &mut self,
        operation: StoreOperation,
        key: Option<&JobKey>,
        call: impl FnOnce(&mut dyn Store) -> Result<T>,
    ) -> Result<T> {
        let begun = Instant::now();
        let out = call(self.store.as_mut());
        // A call that must wait until jobs have been moved has not failed.
        let failed = matches!(&out, Err(e) if !matches!(e, StoreError::Moving(_)));
        self.took(operation, key, begun, failed);
        out
    }

    fn count_purged(&self, topic: &TopicName, cause: PurgeCause, gone: &Result<usize>) {
        if let Ok(gone @ 1..) = gone {
            self.counters.topic(topic.as_str()).purged(cause, *gone as u64);
        }
    }

    fn count_settled(&self, settlements: &[Settlement], all: &[Result<Settled>]) {
        for (settlement, settled) in settlements.iter().zip(all) {
            // If the lease had already ended, nothing was settled.
            if !matches!(settled, Ok(Settled::Done)) {
                continue;
            }
            let topic = self.counters.topic(settlement.key.topic.as_str());
            match settlement.outcome {
                Outcome::Ack => {
                    topic.delivered();
                    self.node(Some(&settlement.key)).delivered(1);
                }
                Outcome::Retry(_) | Outcome::RetryAs(..) => topic.retried(),
                Outcome::DeadLetter | Outcome::DeadLetterAs(_) => topic.died(DeathCause::Callback),
                Outcome::Extend(_)
                | Outcome::Later(_)
                | Outcome::Name(_)
                | Outcome::HandBack
                | Outcome::Postpone(_) => {}
            }
        }
    }

    /// Counts the dead letters that the last call has made.
    fn count_dead(&mut self) {
        for topic in self.store.take_dead_letter_topics() {
            self.counters.topic(topic.as_str()).died(DeathCause::Lease);
        }
    }
}

/// Returns whether the store failed. (The refusal of a client that is over its quota is not a failure.)
fn is_failure<T>(result: &Result<T>) -> bool {
    matches!(result, Err(e) if !matches!(e, StoreError::OverQuota(_)))
}

/// Returns the outcome of an add. None: the add waits in the spool, which has its own count.
fn add_outcome(added: &Result<Added>) -> Option<AddOutcome> {
    Some(match added {
        Ok(Added::Spooled { .. }) => return None,
        Ok(Added::New { .. }) => AddOutcome::New,
        Ok(Added::Replaced { .. }) => AddOutcome::Replaced,
        Ok(Added::Kept { .. }) => AddOutcome::Kept,
        Ok(Added::Rejected) => AddOutcome::Exists,
        Err(StoreError::Unknown(_)) => AddOutcome::Unknown,
        Err(StoreError::OverQuota(_)) => AddOutcome::Refused,
        Err(_) => AddOutcome::Failed,
    })
}

impl MeteredStore {
    /// Counts jobs that were deleted. Returns the answers.
    fn count_deleted(
        &self,
        keys: &[JobKey],
        begun: Instant,
        all: Vec<Result<Deleted>>,
    ) -> Vec<Result<Deleted>> {
        self.took(StoreOperation::Delete, keys.first(), begun, all.iter().any(Result::is_err));
        for (key, there) in keys.iter().zip(&all) {
            match there {
                Ok(Deleted::Spooled) => {
                    self.counters.topic(key.topic.as_str()).deleted(DeleteOutcome::Deleted);
                }
                Ok(Deleted::Done) => {
                    self.counters.topic(key.topic.as_str()).deleted(DeleteOutcome::Deleted);
                    self.node_of(key).deleted(1);
                }
                // A client may name any topic here, so only known topics get a count of their own.
                Ok(Deleted::NotFound) => {
                    self.counters.known_topic(key.topic.as_str()).deleted(DeleteOutcome::NotFound);
                }
                Err(_) => self.counters.known_topic(key.topic.as_str()).deleted(DeleteOutcome::Failed),
            }
        }
        all
    }
}

impl Jobs for MeteredStore {
    fn add(&mut self, jobs: &[NewJob]) -> Vec<Result<Added>> {
        let begun = Instant::now();
        let all = self.store.add(jobs);
        let first = jobs.first().map(|job| &job.key);
        self.took(StoreOperation::Add, first, begun, all.iter().any(is_failure));
        for (job, added) in jobs.iter().zip(&all) {
            let counters = self.counters.topic(job.key.topic.as_str());
            match add_outcome(added) {
                Some(outcome) => counters.added(outcome, 1),
                None => counters.spooled(1),
            }
            if matches!(added, Ok(Added::New { .. } | Added::Replaced { .. })) {
                self.node_of(&job.key).written(1);
            }
        }
        all
    }

    fn get(&mut self, key: &JobKey) -> Result<Option<StoredJob>> {
        self.timed(StoreOperation::Read, Some(key), |store| store.get(key))
    }

    fn delete(&mut self, keys: &[JobKey]) -> Vec<Result<Deleted>> {
        let begun = Instant::now();
        let all = self.store.delete(keys);
        self.count_deleted(keys, begun, all)
    }

    fn delete_with_note(&mut self, keys: &[JobKey], note: &str) -> Vec<Result<Deleted>> {
        let begun = Instant::now();
        let all = self.store.delete_with_note(keys, note);
        self.count_deleted(keys, begun, all)
    }

    fn change(&mut self, key: &JobKey, change: &Change) -> Result<Changed> {
        self.timed(StoreOperation::Change, Some(key), |store| store.change(key, change))
    }

    fn release(&mut self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>> {
        let begun = Instant::now();
        let all = self.store.release(jobs);
        let first = jobs.first().map(|(key, _)| key);
        self.took(StoreOperation::Change, first, begun, all.iter().any(Result::is_err));
        all
    }

    fn purge(&mut self, topic: &TopicName, state: State, limit: usize) -> Result<usize> {
        let gone = self.timed(StoreOperation::Change, None, |store| store.purge(topic, state, limit));
        if state == State::Dead {
            self.count_purged(topic, PurgeCause::Asked, &gone);
        }
        gone
    }
}

impl Leases for MeteredStore {
    fn lease(
        &mut self,
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> Result<LeaseResult> {
        self.timed(StoreOperation::Lease, None, |store| store.lease(wanted, limit, owner))
    }

    fn lease_job(
        &mut self,
        key: &JobKey,
        hold: Duration,
        max_attempts: u32,
        owner: Option<&OwnerTag>,
    ) -> Result<Option<LeasedJob>> {
        self.timed(StoreOperation::Lease, Some(key), |store| store.lease_job(key, hold, max_attempts, owner))
    }

    fn take_back_unanswered(&mut self) -> Result<()> {
        self.store.take_back_unanswered()
    }
}

impl Settlements for MeteredStore {
    fn settle(&mut self, settlements: &[Settlement]) -> Vec<Result<Settled>> {
        let begun = Instant::now();
        let all = self.store.settle(settlements);
        if !settlements.is_empty() {
            self.took(StoreOperation::Settle, None, begun, all.iter().any(Result::is_err));
        }
        self.count_settled(settlements, &all);
        all
    }

    fn exchange(
        &mut self,
        settlements: &[Settlement],
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> (Vec<Result<Settled>>, Result<LeaseResult>) {
        let begun = Instant::now();
        let (settled, leased) = self.store.exchange(settlements, wanted, limit, owner);
        let waits = matches!(leased, Err(StoreError::Moving(_)));
        let failed = leased.is_err() && !waits || settled.iter().any(Result::is_err);
        self.took(StoreOperation::Lease, None, begun, failed);
        self.count_settled(settlements, &settled);
        (settled, leased)
    }
}

impl TimerWork for MeteredStore {
    fn promote_or_spread(
        &mut self,
        limit: usize,
        spread: &[(TopicName, Duration)],
    ) -> Result<(PromotionResult, SpreadCounts)> {
        self.timed(StoreOperation::Promote, None, |store| store.promote_or_spread(limit, spread))
    }

    fn hand_back(&mut self, owner: &OwnerTag) -> Result<usize> {
        let handed_back = self.timed(StoreOperation::Expire, None, |store| store.hand_back(owner));
        self.count_dead();
        handed_back
    }

    fn expire(&mut self, limit: usize) -> Result<PromotionResult> {
        let expired = self.timed(StoreOperation::Expire, None, |store| store.expire(limit));
        self.count_dead();
        expired
    }

    fn take_dead_letter_topics(&mut self) -> Vec<TopicName> {
        self.store.take_dead_letter_topics()
    }
}

impl DeadLetters for MeteredStore {
    fn redrive(
        &mut self,
        topic: &TopicName,
        which: &DeadLetterSelection,
        limit: usize,
        pace: RedrivePace,
    ) -> Result<usize> {
        self.timed(StoreOperation::Change, None, |store| store.redrive(topic, which, limit, pace))
    }

    fn letters(&mut self, topic: &TopicName, ids: &[JobId], what: DeadLetterOperation) -> Result<usize> {
        let operation = match what {
            DeadLetterOperation::Count => StoreOperation::Read,
            DeadLetterOperation::Remove => StoreOperation::Change,
        };
        let letters = self.timed(operation, None, |store| store.letters(topic, ids, what));
        if what == DeadLetterOperation::Remove {
            self.count_purged(topic, PurgeCause::Asked, &letters);
        }
        letters
    }

    fn purge_letters(&mut self, topic: &TopicName, letters: &[DeadLetterKey]) -> Result<usize> {
        let gone = self.timed(StoreOperation::Change, None, |store| store.purge_letters(topic, letters));
        self.count_purged(topic, PurgeCause::Asked, &gone);
        gone
    }

    fn retire(&mut self, topic: &TopicName, age: Duration, limit: usize) -> Result<usize> {
        let gone = self.timed(StoreOperation::Expire, None, |store| store.retire(topic, age, limit));
        self.count_purged(topic, PurgeCause::Retention, &gone);
        gone
    }
}

impl Views for MeteredStore {
    fn list(
        &mut self,
        topic: &TopicName,
        state: State,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<JobsPage> {
        self.timed(StoreOperation::Read, None, |store| store.list(topic, state, cursor, limit))
    }

    fn delayed_from(&mut self, topic: &TopicName, due_ms: i64) -> Result<String> {
        self.store.delayed_from(topic, due_ms)
    }

    fn dead_since(&mut self, topic: &TopicName, since_ms: i64, limit: usize) -> Result<Vec<StoredJob>> {
        self.timed(StoreOperation::Read, None, |store| store.dead_since(topic, since_ms, limit))
    }

    fn counts(&mut self) -> Result<Vec<Counts>> {
        self.timed(StoreOperation::Read, None, |store| store.counts())
    }

    fn forecast(&mut self, topics: &[TopicName], edges_ms: &[i64]) -> Result<Forecast> {
        self.timed(StoreOperation::Read, None, |store| store.forecast(topics, edges_ms))
    }
}

impl Pauses for MeteredStore {
    fn pause(&mut self, topic: &TopicName, paused: bool) -> Result<()> {
        self.timed(StoreOperation::Change, None, |store| store.pause(topic, paused))
    }

    fn paused(&mut self) -> Result<Vec<TopicName>> {
        self.timed(StoreOperation::Read, None, |store| store.paused())
    }
}

impl FlowControl for MeteredStore {
    fn permits(&mut self, owner: &OwnerTag, asks: &[PermitRequest]) -> Vec<Result<Permit>> {
        let begun = Instant::now();
        let all = self.store.permits(owner, asks);
        self.took(StoreOperation::Lease, None, begun, all.iter().any(Result::is_err));
        all
    }

    fn limit_use(&mut self, queries: &[LimitQuery]) -> Vec<Result<LimitUse>> {
        let begun = Instant::now();
        let all = self.store.limit_use(queries);
        self.took(StoreOperation::Read, None, begun, all.iter().any(Result::is_err));
        all
    }

    fn open_circuit(&mut self, opening: &CircuitOpening) -> Result<bool> {
        self.timed(StoreOperation::Change, None, |store| store.open_circuit(opening))
    }

    fn close_circuit(&mut self, topic: &TopicName) -> Result<bool> {
        self.timed(StoreOperation::Change, None, |store| store.close_circuit(topic))
    }

    fn circuits(&mut self) -> Result<Vec<CircuitView>> {
        self.timed(StoreOperation::Read, None, |store| store.circuits())
    }
}

//! The calls of a [`MeteredStore`] for records of ended jobs, for many jobs at once, and for maintenance.

use std::time::{Duration, Instant};

use super::metered_store::MeteredStore;
use model::job::{JobId, JobKey, State, TopicName};
use model::metrics::{AddOutcome, DeleteOutcome, StoreOperation};
use model::record::{JobRecord, RecordKeeping};
use model::ticket::TicketSecret;
use store::{
    Bulk, Direction, FollowerMaker, FollowerSendResult, ListedChangeGoal, ListedChangeResult,
    ListedJobChange, ListedPage, Maintenance, Outbox, OutboxState, RecordPage, Records, Result, TopicRing,
};

impl Records for MeteredStore {
    fn keep_records(&mut self, topics: &[(TopicName, RecordKeeping)], bytes_max: u64) -> Result<()> {
        self.timed(StoreOperation::Change, None, |store| store.keep_records(topics, bytes_max))
    }

    fn records(&mut self, key: &JobKey) -> Result<Vec<JobRecord>> {
        self.timed(StoreOperation::Read, Some(key), |store| store.records(key))
    }

    fn list_records(&mut self, topic: &TopicName, cursor: Option<&str>, limit: usize) -> Result<RecordPage> {
        self.timed(StoreOperation::Read, None, |store| store.list_records(topic, cursor, limit))
    }

    fn records_after(
        &mut self,
        topic: &TopicName,
        order_ms: i64,
        id: Option<&JobId>,
    ) -> Result<Option<String>> {
        self.timed(StoreOperation::Read, None, |store| store.records_after(topic, order_ms, id))
    }

    fn forget(&mut self, key: &JobKey) -> Result<usize> {
        self.timed(StoreOperation::Change, Some(key), |store| store.forget(key))
    }

    fn purge_records(&mut self, topic: &TopicName, limit: usize) -> Result<usize> {
        self.timed(StoreOperation::Change, None, |store| store.purge_records(topic, limit))
    }

    fn trim_records(&mut self) -> Result<(usize, Duration)> {
        self.store.trim_records()
    }
}

impl Outbox for MeteredStore {
    fn has_followers(&mut self) -> Result<bool> {
        self.store.has_followers()
    }

    fn send_followers(&mut self, make: FollowerMaker<'_>) -> Result<FollowerSendResult> {
        let sent = self.store.send_followers(make)?;
        for topic in &sent.added {
            self.counters.topic(topic.as_str()).added(AddOutcome::New, 1);
        }
        Ok(sent)
    }

    fn outbox(&mut self) -> Result<OutboxState> {
        self.timed(StoreOperation::Read, None, |store| store.outbox())
    }
}

impl Bulk for MeteredStore {
    fn list_in_order(
        &mut self,
        topic: &TopicName,
        state: State,
        direction: Direction,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ListedPage> {
        self.timed(StoreOperation::Read, None, |store| {
            store.list_in_order(topic, state, direction, cursor, limit)
        })
    }

    fn change_listed(
        &mut self,
        topic: &TopicName,
        changes: &[ListedJobChange],
    ) -> Vec<Result<ListedChangeResult>> {
        let begun = Instant::now();
        let all = self.store.change_listed(topic, changes);
        self.took(StoreOperation::Change, None, begun, all.iter().any(Result::is_err));
        for (change, done) in changes.iter().zip(&all) {
            if change.aim == ListedChangeGoal::Gone && matches!(done, Ok(ListedChangeResult::Done)) {
                self.counters.topic(topic.as_str()).deleted(DeleteOutcome::Deleted);
                self.node_of(&JobKey { topic: topic.clone(), id: change.id.clone() }).deleted(1);
            }
        }
        all
    }
}

impl Maintenance for MeteredStore {
    fn secret(&mut self, lane: usize) -> Result<TicketSecret> {
        self.timed(StoreOperation::Read, None, |store| store.secret(lane))
    }

    fn health(&mut self) -> Result<()> {
        self.store.health()
    }

    fn inspect(&mut self) -> Result<()> {
        self.store.inspect()
    }

    fn pass_on(&mut self, topics: &[TopicName]) {
        self.store.pass_on(topics);
    }

    fn ring_pull(&mut self, topics: &[TopicName]) -> Result<()> {
        self.store.ring_pull(topics)
    }

    fn give_back(&mut self, rings: &[TopicRing]) -> Result<()> {
        self.store.give_back(rings)
    }

    fn announce(&mut self) {
        self.store.announce();
    }

    fn maintain(&mut self) -> Result<Option<Duration>> {
        self.store.maintain()
    }
}

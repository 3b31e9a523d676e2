//! The calls of a [`MeteredStore`] about records of ended jobs, and its maintenance.

use std::time::Duration;

use super::metered_store::MeteredStore;
use model::job::{JobId, JobKey, TopicName};
use model::metrics::Operation;
use model::record::{JobRecord, RecordKeeping};
use model::ticket::TicketSecret;
use store::{Maintenance, RecordPage, Records, Result, TopicRing};

impl Records for MeteredStore {
    fn keep_records(&mut self, topics: &[(TopicName, RecordKeeping)], bytes_max: u64) -> Result<()> {
        self.timed(Operation::Change, None, |store| store.keep_records(topics, bytes_max))
    }

    fn records(&mut self, key: &JobKey) -> Result<Vec<JobRecord>> {
        self.timed(Operation::Read, Some(key), |store| store.records(key))
    }

    fn list_records(&mut self, topic: &TopicName, cursor: Option<&str>, limit: usize) -> Result<RecordPage> {
        self.timed(Operation::Read, None, |store| store.list_records(topic, cursor, limit))
    }

    fn records_after(
        &mut self,
        topic: &TopicName,
        ended_ms: i64,
        id: Option<&JobId>,
    ) -> Result<Option<String>> {
        self.timed(Operation::Read, None, |store| store.records_after(topic, ended_ms, id))
    }

    fn forget(&mut self, key: &JobKey) -> Result<usize> {
        self.timed(Operation::Change, Some(key), |store| store.forget(key))
    }

    fn purge_records(&mut self, topic: &TopicName, limit: usize) -> Result<usize> {
        self.timed(Operation::Change, None, |store| store.purge_records(topic, limit))
    }

    fn trim_records(&mut self) -> Result<(usize, Duration)> {
        self.store.trim_records()
    }
}

impl Maintenance for MeteredStore {
    fn secret(&mut self, lane: usize) -> Result<TicketSecret> {
        self.timed(Operation::Read, None, |store| store.secret(lane))
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

//! The traits for leases, settlements and promotion. Each method runs transactions of `deliver` or `lease_rows`.

use super::chunks::More;
use super::commit::CommitDurability;
use super::connect::refused;
use super::flow::ReadyTopics;
use super::{CHUNK, SqliteStore, browse, deliver, flow, lease_rows, write};
use crate::lease::exchange_apart;
use crate::{
    LeaseRequest, LeaseResult, LeasedJob, Leases, Result, Settled, Settlement, Settlements, StoreError,
    TimerWork,
};
use crate::{OwnerTag, PromotionResult, SpreadCounts};
use model::job::{JobKey, TopicName};
use std::time::Duration;
impl Leases for SqliteStore {
    fn lease(
        &mut self,
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> Result<LeaseResult> {
        self.check_file()?;
        let now_ms = write::now_ms();
        let ready = ReadyTopics::now(&self.db, now_ms).map_err(refused)?;
        let is_set_back =
            !ready.waiting.is_empty() && flow::is_set_back(&self.db, now_ms).map_err(refused)?;
        let is_ready = |want: &LeaseRequest| ready.topics.iter().any(|(topic, ..)| *topic == want.topic);
        if limit == 0 || !is_set_back && !wanted.iter().any(is_ready) {
            let (left, waiting) = ready.left();
            return Ok(LeaseResult { jobs: Vec::new(), left, waiting });
        }
        self.write(CommitDurability::Normal, |w| lease_rows::lease(w, wanted, limit, owner))
    }

    fn lease_job(
        &mut self,
        key: &JobKey,
        hold: Duration,
        max_attempts: u32,
        owner: Option<&OwnerTag>,
    ) -> Result<Option<LeasedJob>> {
        self.check_file()?;
        self.write(CommitDurability::Normal, |w| lease_rows::lease_job(w, key, hold, max_attempts, owner))
    }
}

impl Settlements for SqliteStore {
    fn settle(&mut self, settlements: &[Settlement]) -> Vec<Result<Settled>> {
        self.in_chunks(CommitDurability::Normal, settlements, deliver::settle)
    }

    fn exchange(
        &mut self,
        settlements: &[Settlement],
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> (Vec<Result<Settled>>, Result<LeaseResult>) {
        if settlements.is_empty() || settlements.len() > CHUNK {
            return exchange_apart(self, settlements, wanted, limit, owner);
        }
        let exchanged = self.write(CommitDurability::Normal, |w| {
            let settled: Vec<Settled> =
                settlements.iter().map(|one| deliver::settle(w, one)).collect::<rusqlite::Result<_>>()?;
            w.write_counts()?;
            Ok((settled, lease_rows::lease(w, wanted, limit, owner)?))
        });
        match exchanged {
            Ok((settled, leased)) => (settled.into_iter().map(Ok).collect(), Ok(leased)),
            // Nothing was changed. An error that prevents leases must not prevent settlements. So settlements and
            // leases are now tried in two separate transactions.
            Err(StoreError::Unavailable(_) | StoreError::Damaged(_)) => {
                exchange_apart(self, settlements, wanted, limit, owner)
            }
            Err(e) => (settlements.iter().map(|_| Err(e.clone())).collect(), Err(e)),
        }
    }
}

impl TimerWork for SqliteStore {
    fn promote_or_spread(
        &mut self,
        limit: usize,
        spread: &[(TopicName, Duration)],
    ) -> Result<(PromotionResult, SpreadCounts)> {
        self.check_file()?;
        // If nothing is due yet, no turn is taken.
        let next_ms = browse::next_due(&self.db).map_err(refused)?;
        if next_ms.is_none_or(|at| at > write::now_ms()) {
            return Ok((PromotionResult { jobs: 0, next_ms }, SpreadCounts::new()));
        }
        self.write(CommitDurability::Normal, |w| deliver::promote(w, limit, spread))
    }

    fn hand_back(&mut self, owner: &OwnerTag) -> Result<usize> {
        self.until_done(|w| {
            let jobs = deliver::hand_back(w, owner, CHUNK)?;
            Ok((jobs, More::if_full(jobs, CHUNK)))
        })
    }

    fn expire(&mut self, limit: usize) -> Result<PromotionResult> {
        let next_ms = browse::next_deadline(&self.db).map_err(refused)?;
        if next_ms.is_none_or(|at| at > write::now_ms()) {
            return Ok(PromotionResult { jobs: 0, next_ms });
        }
        self.write(CommitDurability::Normal, |w| deliver::expire(w, limit))
    }

    fn take_dead_letter_topics(&mut self) -> Vec<TopicName> {
        std::mem::take(&mut self.dead_topics)
    }
}

//! One step of an operation on many jobs. [`BulkRun::look`] lists a page of jobs and plans what happens to them.
//! [`BulkRun::apply`] carries out the plan. Between these two calls, the caller stores the plan. A plan may be applied
//! again: a job that the plan has already changed stays as it is.

use std::time::{Duration, Instant};

use model::bulk::{
    BulkCounts, BulkDecision, BulkOperation, BulkProgress, BulkRequest, BulkWalk, PAGE_MAX, PlannedJobChange,
    RATE_MAX, RECORDS_LEG, VisitedJob, WalkLeg,
};
use model::job::{Due, JobId, JobKey, NewJob, OnConflict, TopicName};
use model::letters::RedrivePace;
use model::record::JobRecord;
use store::{
    Added, DeadLetterKey, DeadLetterSelection, Direction, HELD_MS, ListedChangeGoal, ListedChangeResult,
    ListedJob, ListedJobChange, Result, Store, StoreError,
};

/// How many records are read in one step.
const RECORDS: usize = 100;

/// An operation that reaches its rate makes this many steps in a second.
const STEPS: usize = 5;

/// After this time, a step of a count reads no further page.
const COUNTS: Duration = Duration::from_millis(100);

/// An operation on many jobs: the data that each step needs and no step changes.
#[derive(Debug)]
pub struct BulkRun {
    topic: TopicName,
    operation: BulkOperation,
    hides_answers: bool,
    walk: BulkWalk,
}

/// Where the page of records ended: the time when the job of its last record ended, and the id of this job.
type BulkRecordCursor = (i64, String);

impl BulkRun {
    /// Makes the operation with this number, which began at `started_ms`.
    pub fn new(request: &BulkRequest, number: u64, started_ms: i64) -> BulkRun {
        BulkRun {
            topic: request.topic.clone(),
            operation: request.operation,
            hides_answers: request.hides_answers,
            walk: BulkWalk::new(request, number, started_ms),
        }
    }

    /// Looks at the next page of up to `limit` jobs, and plans what happens to them. The caller has applied the plan of
    /// `before`. Returns the progress after this page. The progress contains the new plan instead of the applied plan.
    /// `now_ms` is the time of this host.
    pub fn look(
        &self,
        store: &mut dyn Store,
        before: &BulkProgress,
        limit: usize,
        now_ms: i64,
    ) -> Result<BulkProgress> {
        let mut after = BulkProgress { plan: Vec::new(), waits_for: None, ..before.clone() };
        if before.is_looked {
            return Ok(after);
        }
        match (self.operation, self.walk.leg(before.leg, before.planned_in)) {
            (BulkOperation::Replay, _) => self.look_at_records(store, &mut after, limit)?,
            (_, Some(leg)) => self.look_at_jobs(store, leg, &mut after, limit, now_ms)?,
            (_, None) => after.is_looked = true,
        }
        Ok(after)
    }

    fn look_at_jobs(
        &self,
        store: &mut dyn Store,
        leg: WalkLeg,
        progress: &mut BulkProgress,
        limit: usize,
        now_ms: i64,
    ) -> Result<()> {
        let direction = if leg.is_backward { Direction::Backward } else { Direction::Forward };
        let cursor = progress.cursor.take();
        let page = store.list_in_order(&self.topic, leg.state, direction, cursor.as_deref(), limit)?;
        let mut is_over = page.next.is_none();
        for job in &page.jobs {
            let verdict = match self.walk.job(leg, &seen(job), now_ms) {
                // An import has not released this job yet. If the operation changed the due time, the import could not
                // release the job any more.
                BulkDecision::Due(_) if job.due_ms == HELD_MS => BulkDecision::Skip,
                verdict => verdict,
            };
            if verdict == BulkDecision::EndOfLeg {
                is_over = true;
                break;
            }
            progress.counts.looked_at += 1;
            let plan = |to_ms| {
                let at_ms = job.until_ms.filter(|_| self.operation == BulkOperation::Redrive);
                PlannedJobChange(job.id.as_str().to_owned(), job.stamp_us, at_ms.unwrap_or(job.due_ms), to_ms)
            };
            match verdict {
                BulkDecision::Due(to_ms) => progress.plan.push(plan(Some(to_ms))),
                BulkDecision::Take => progress.plan.push(plan(None)),
                BulkDecision::Skip => progress.counts.skipped += 1,
                BulkDecision::Ignore | BulkDecision::EndOfLeg => {}
            }
        }
        progress.cursor = page.next;
        if !progress.plan.is_empty() {
            progress.planned_in = progress.leg;
        }
        if is_over {
            (progress.leg, progress.cursor) = (progress.leg + 1, None);
            progress.is_looked = self.walk.leg(progress.leg, progress.planned_in).is_none();
        }
        Ok(())
    }

    fn look_at_records(
        &self,
        store: &mut dyn Store,
        progress: &mut BulkProgress,
        limit: usize,
    ) -> Result<()> {
        let place: Option<BulkRecordCursor> =
            progress.cursor.as_deref().and_then(|text| serde_json::from_str(text).ok());
        // The store's cursor names a place on each node. `place` is a time and an id, so it stays valid when jobs are
        // moved.
        let cursor = match &place {
            None => match self.walk.records_before() {
                Some(until_ms) => store.records_after(&self.topic, until_ms, None)?,
                None => None,
            },
            Some((order_ms, id)) => {
                store.records_after(&self.topic, *order_ms, JobId::new(id.clone()).ok().as_ref())?
            }
        };
        let mut page = store.list_records(&self.topic, cursor.as_deref(), limit)?;
        if !page.away.is_empty() {
            return Err(StoreError::NodeDown(page.away.join(", ")));
        }
        if self.hides_answers {
            page.records.iter_mut().for_each(JobRecord::remove_answers);
        }
        let mut is_over = page.next.is_none() || page.records.is_empty();
        for record in &page.records {
            let id = record.key.id.as_str();
            let verdict = self.walk.record(record);
            if verdict == BulkDecision::EndOfLeg {
                is_over = true;
                break;
            }
            progress.counts.looked_at += 1;
            match verdict {
                BulkDecision::Take => {
                    let stamp_us = record.stamp_us.unwrap_or(0);
                    progress.plan.push(PlannedJobChange(id.to_owned(), stamp_us, record.ended_ms, None));
                }
                BulkDecision::Skip => progress.counts.skipped += 1,
                _ => {}
            }
        }
        let last = page.records.last().map(|record| (record.order_ms, record.key.id.as_str()));
        progress.cursor = last.map(|last| serde_json::to_string(&last)).transpose().unwrap_or_default();
        progress.leg = RECORDS_LEG;
        progress.is_looked = is_over;
        Ok(())
    }

    /// Looks at pages for a limited time, and counts the jobs that would be changed. Returns the progress after these
    /// pages, and this count.
    pub fn count(
        &self,
        store: &mut dyn Store,
        mut progress: BulkProgress,
        now_ms: i64,
    ) -> Result<(BulkProgress, u64)> {
        let (begun, mut matched) = (Instant::now(), 0);
        while !progress.is_looked && begun.elapsed() < COUNTS {
            progress = self.look(store, &progress, self.page(RATE_MAX), now_ms)?;
            matched += progress.plan.len() as u64;
            // A count changes no jobs, so the repeated legs would find the same jobs again.
            progress.is_looked |= self.walk.is_repeated(progress.leg);
        }
        progress.plan.clear();
        Ok((progress, matched))
    }

    /// Returns how many jobs one step should look at. With this number, the operation reaches its rate in small steps.
    pub fn page(&self, rate: u32) -> usize {
        // Records contain the bodies of their jobs, so fewer of them are read.
        let most = if self.operation == BulkOperation::Replay { RECORDS } else { PAGE_MAX };
        (rate as usize / STEPS).clamp(1, most)
    }

    /// Carries out a plan. `is_again`: the plan may have been carried out already, wholly or in part.
    pub fn apply(
        &self,
        store: &mut dyn Store,
        plan: &[PlannedJobChange],
        is_again: bool,
    ) -> Result<BulkCounts> {
        if plan.is_empty() {
            return Ok(BulkCounts::default());
        }
        match self.operation {
            BulkOperation::Redrive => self.redrive(store, plan, is_again),
            BulkOperation::Replay => self.replay(store, plan, is_again),
            _ => self.change(store, plan, is_again),
        }
    }

    fn change(&self, store: &mut dyn Store, plan: &[PlannedJobChange], is_again: bool) -> Result<BulkCounts> {
        let change = |PlannedJobChange(id, stamp_us, due_ms, to_ms): &PlannedJobChange| {
            let aim = to_ms.map_or(ListedChangeGoal::Gone, ListedChangeGoal::Due);
            Ok(ListedJobChange { id: job_id(id)?, stamp_us: *stamp_us, due_ms: *due_ms, aim })
        };
        let changes: Vec<ListedJobChange> = plan.iter().map(change).collect::<Result<_>>()?;
        let mut counts = BulkCounts::default();
        for changed in store.change_listed(&self.topic, &changes) {
            match changed? {
                ListedChangeResult::Done | ListedChangeResult::Already => counts.changed += 1,
                // A later round of the cancel visits the job again, if the job was not replaced.
                ListedChangeResult::Differs if self.walk.has_rounds() => {}
                ListedChangeResult::NotFound | ListedChangeResult::Differs if is_again => counts.unclear += 1,
                ListedChangeResult::NotFound | ListedChangeResult::Differs => counts.skipped += 1,
            }
        }
        Ok(counts)
    }

    fn redrive(
        &self,
        store: &mut dyn Store,
        plan: &[PlannedJobChange],
        is_again: bool,
    ) -> Result<BulkCounts> {
        let letter = |PlannedJobChange(id, _, died_ms, _): &PlannedJobChange| {
            Ok(DeadLetterKey { id: job_id(id)?, died_ms: *died_ms })
        };
        let letters: Vec<DeadLetterKey> = plan.iter().map(letter).collect::<Result<_>>()?;
        let all = letters.len();
        let done = store.redrive(
            &self.topic,
            &DeadLetterSelection::Letters(letters),
            all,
            RedrivePace::default(),
        )?;
        let (changed, left) = (done as u64, all.saturating_sub(done) as u64);
        let (skipped, unclear) = if is_again { (0, left) } else { (left, 0) };
        Ok(BulkCounts { changed, skipped, unclear, looked_at: 0 })
    }

    /// Adds the jobs of records again. If a job with the same id exists, it stays as it is. An id that has a newer
    /// record is left out: its job may have been added again, and may have ended since.
    fn replay(&self, store: &mut dyn Store, plan: &[PlannedJobChange], is_again: bool) -> Result<BulkCounts> {
        let (mut counts, mut jobs, mut left) = (BulkCounts::default(), Vec::new(), 0);
        for PlannedJobChange(id, _, ended_ms, _) in plan {
            let key = JobKey { topic: self.topic.clone(), id: job_id(id)? };
            let last = store.records(&key)?.into_iter().next().filter(|record| record.ended_ms == *ended_ms);
            match last.and_then(|record| Some((record.body?, record.headers))) {
                None => left += 1,
                Some((body, headers)) => jobs.push(NewJob {
                    on_conflict: OnConflict::Keep,
                    // The expiry of the ended job does not apply to the new job.
                    headers: headers.with_expires_ms(None),
                    ..NewJob::new(key, body, Due::In(Duration::ZERO))
                }),
            }
        }
        for added in store.add(&jobs) {
            match added? {
                Added::New { .. } | Added::Replaced { .. } | Added::Spooled { .. } => counts.changed += 1,
                Added::Kept { .. } | Added::Rejected => left += 1,
            }
        }
        *(if is_again { &mut counts.unclear } else { &mut counts.skipped }) += left;
        Ok(counts)
    }
}

fn seen(job: &ListedJob) -> VisitedJob<'_> {
    VisitedJob {
        id: job.id.as_str(),
        state: job.state,
        due_ms: job.due_ms,
        until_ms: job.until_ms,
        stamp_us: job.stamp_us,
        tried_ms: job.tried_ms,
        headers: &job.headers,
    }
}

fn job_id(id: &str) -> Result<JobId> {
    JobId::new(id).map_err(|e| StoreError::Damaged(e.to_string()))
}

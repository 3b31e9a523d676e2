//! The order in which an operation visits jobs, and what it does with each job.
//!
//! Because of this order, a changed job is in the part that was visited already, or the operation recognizes the job by
//! its new due time. So each job is changed only once, although the operation writes nothing to a job except its due
//! time. docs/internals/BULK.md has the proof.

use super::request::{BulkOperation, BulkRequest};
use crate::headers::Headers;
use crate::job::{LATEST_MS, State};
use crate::job_filter::JobFilter;
use crate::record::{JobRecord, RecordFilter};
use crate::rendezvous;

/// How many legs each round of a cancel has: one for the delayed jobs, one for the ready jobs, one for the leased jobs.
const ROUND: usize = 3;

/// How many rounds a cancel makes at most.
const ROUNDS: usize = 10;

/// How much the clocks of hosts and nodes may differ. (dq-redis-checker alerts at 50 ms.)
const CLOCKS_MS: i64 = 1_000;

/// One part of a walk: it visits the jobs of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkLeg {
    /// The state.
    pub state: State,
    /// Whether the jobs are visited from the last to the first.
    pub is_backward: bool,
}

/// A job that an operation visits.
#[derive(Debug, Clone, Copy)]
pub struct VisitedJob<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its state.
    pub state: State,
    /// Its due time, Unix milliseconds.
    pub due_ms: i64,
    /// For a dead letter: when it became a dead letter.
    pub until_ms: Option<i64>,
    /// When it was added, Unix microseconds.
    pub stamp_us: i64,
    /// When its last attempt began.
    pub tried_ms: Option<i64>,
    /// Its headers, with its tags.
    pub headers: &'a Headers,
}

/// What an operation does with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkDecision {
    /// The job gets this due time.
    Due(i64),
    /// The job is deleted, redriven or replayed.
    Take,
    /// The filter selects the job, but the job stays unchanged.
    Skip,
    /// The operation does not concern this job, or the job was counted before.
    Ignore,
    /// The operation does not concern this job or the jobs after it in this leg.
    EndOfLeg,
}

/// The walk of an operation through the jobs.
#[derive(Debug, Clone)]
pub struct BulkWalk {
    operation: BulkOperation,
    number: u64,
    started_ms: i64,
    jobs: JobFilter,
    records: RecordFilter,
    legs: Vec<WalkLeg>,
    /// How many legs the first round has. The later legs repeat these legs (see [`BulkWalk::leg`]).
    first_legs: usize,
}

impl BulkWalk {
    /// Begins the walk of an operation. `number` and `started_ms` are the same in all steps of the operation.
    ///
    /// A cancel visits the delayed jobs first and the leased jobs last. If a leased job fails between these two visits,
    /// it becomes delayed, and neither visit finds it. So a cancel of jobs in all states visits the jobs in several
    /// rounds, until it finds no job.
    pub fn new(request: &BulkRequest, number: u64, started_ms: i64) -> BulkWalk {
        let jobs = request.filter.jobs();
        let mut legs = Vec::new();
        let mut leg = |state, is_backward| legs.push(WalkLeg { state, is_backward });
        match request.operation {
            BulkOperation::Cancel => State::ALL[..ROUND].iter().for_each(|state| leg(*state, false)),
            BulkOperation::At { .. } => {
                leg(State::Delayed, true);
                leg(State::Delayed, false);
                leg(State::Ready, true);
            }
            BulkOperation::Spread { .. } => {
                leg(State::Delayed, true);
                leg(State::Ready, true);
            }
            BulkOperation::Shift { by_ms } if by_ms > 0 => {
                leg(State::Delayed, true);
                leg(State::Ready, true);
            }
            BulkOperation::Shift { .. } | BulkOperation::Run => leg(State::Delayed, false),
            BulkOperation::Redrive => leg(State::Dead, false),
            BulkOperation::Replay => {}
        }
        legs.retain(|leg| jobs.states.is_empty() || jobs.states.contains(&leg.state));
        let first_legs = legs.len();
        if request.operation == BulkOperation::Cancel && first_legs == ROUND {
            // The last leg visits delayed jobs.
            legs = legs.iter().cycle().take(ROUND * ROUNDS + 1).copied().collect();
        }
        BulkWalk {
            operation: request.operation,
            number,
            started_ms,
            records: request.filter.records(),
            jobs,
            legs,
            first_legs,
        }
    }

    /// Returns whether the walk visits the jobs in several rounds, until it finds no job.
    pub fn has_rounds(&self) -> bool {
        self.legs.len() > self.first_legs
    }

    /// Returns whether an earlier leg has visited the jobs of this leg. (For leg 0, the result is always false, also in
    /// a replay.)
    pub fn is_repeated(&self, leg: usize) -> bool {
        leg > 0 && leg >= self.first_legs
    }

    /// Returns a leg. `planned_in` is the last leg in which a change was planned. None: there are no more legs. A
    /// cancel ends after a leg of delayed jobs if the last three legs, which are a whole round, have planned no change.
    /// (The walk of a replay has no legs. The one leg of a replay is `RECORDS_LEG`.)
    pub fn leg(&self, number: usize, planned_in: usize) -> Option<WalkLeg> {
        let is_over = number > self.first_legs && number % ROUND == 1 && number > planned_in + ROUND;
        self.legs.get(number).copied().filter(|_| !is_over)
    }

    /// Decides what happens to a job. `now_ms` is the time of this host.
    pub fn job(&self, leg: WalkLeg, job: &VisitedJob<'_>, now_ms: i64) -> BulkDecision {
        if leg.state == State::Delayed && self.is_behind(leg, job.due_ms) {
            return BulkDecision::EndOfLeg;
        }
        let died_ms = job.until_ms.unwrap_or(0);
        if leg.state == State::Dead && died_ms > self.started_ms {
            return BulkDecision::EndOfLeg;
        }
        // The operation does not concern a job that was added after the operation began.
        if job.stamp_us > self.started_ms.saturating_mul(1000)
            || !self.jobs.selects(job.state, job.id, job.due_ms, job.headers)
        {
            return BulkDecision::Ignore;
        }
        let to_ms = match self.operation {
            BulkOperation::Cancel | BulkOperation::Redrive => return BulkDecision::Take,
            BulkOperation::Replay => return BulkDecision::Ignore,
            BulkOperation::At { at_ms } => at_ms,
            BulkOperation::Spread { from_ms, over_ms } => self.spread(job.id, from_ms, over_ms),
            BulkOperation::Shift { by_ms } if by_ms > 0 => {
                // The due time of a ready job may be later than the start of the operation plus `by_ms`. The operation
                // may have changed such a job already, and the job may have become ready since then.
                if leg.state == State::Ready && job.due_ms > self.started_ms.saturating_add(by_ms) {
                    return BulkDecision::Ignore;
                }
                job.due_ms.saturating_add(by_ms).min(LATEST_MS)
            }
            BulkOperation::Shift { by_ms } => job.due_ms.saturating_add(by_ms).max(now_ms).min(job.due_ms),
            BulkOperation::Run => now_ms.min(job.due_ms),
        };
        if to_ms == job.due_ms {
            let is_recognized =
                matches!(self.operation, BulkOperation::At { .. } | BulkOperation::Spread { .. });
            return if is_recognized { BulkDecision::Ignore } else { BulkDecision::Skip };
        }
        // If an attempt began after the operation began, the operation may have changed the job before that attempt.
        // The due time of the retry does not show that change. So the job is skipped.
        if job.tried_ms.is_some_and(|at| at >= self.started_ms - CLOCKS_MS) {
            return BulkDecision::Skip;
        }
        BulkDecision::Due(to_ms)
    }

    /// Returns whether the operation has nothing more to do in this leg when the leg comes to this due time. If so, the
    /// operation does not concern the delayed jobs with this due time or the jobs after them.
    fn is_behind(&self, leg: WalkLeg, due_ms: i64) -> bool {
        let is_over = match self.operation {
            BulkOperation::At { at_ms } if leg.is_backward => due_ms <= at_ms,
            BulkOperation::At { at_ms } => due_ms >= at_ms,
            // Jobs that were due when the operation began are visited among the ready jobs.
            BulkOperation::Shift { by_ms } if by_ms > 0 => due_ms <= self.started_ms,
            _ => false,
        };
        let is_out = match leg.is_backward {
            true => self.jobs.due_since_ms.is_some_and(|since| due_ms < since),
            false => self.jobs.due_until_ms.is_some_and(|until| due_ms >= until),
        };
        is_over || is_out
    }

    /// Returns the due time of a job in a span. Each call for the same job returns the same time.
    fn spread(&self, id: &str, from_ms: i64, over_ms: i64) -> i64 {
        let hash = rendezvous::hash(&[&self.number.to_le_bytes(), id.as_bytes()]);
        let within = hash % u64::try_from(over_ms.max(1)).unwrap_or(1);
        from_ms.saturating_add(i64::try_from(within).unwrap_or(0)).min(LATEST_MS)
    }

    /// Returns a moment in Unix milliseconds: the walk visits only records of jobs that ended before this moment. None:
    /// the walk begins with the last record.
    pub fn records_before(&self) -> Option<i64> {
        self.records.until_ms
    }

    /// Decides whether the job of a record is added again.
    pub fn record(&self, record: &JobRecord) -> BulkDecision {
        if self.records.since_ms.is_some_and(|since| record.ended_ms < since) {
            return BulkDecision::EndOfLeg;
        }
        // A job that ended after the operation began may be a job that the operation has added.
        if record.ended_ms > self.started_ms || !self.records.admits(record) {
            return BulkDecision::Ignore;
        }
        // Without a body there is nothing to add.
        if record.body.is_some() { BulkDecision::Take } else { BulkDecision::Skip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulk::BulkFilter;
    use crate::job::TopicName;

    #[test]
    fn a_spread_gives_each_job_the_same_time_again() {
        let operation = BulkOperation::Spread { from_ms: 1_000_000, over_ms: 1_000 };
        let topic = TopicName::new("t").unwrap();
        let request =
            BulkRequest { topic, operation, filter: BulkFilter::default(), rate: 1, hides_answers: false };
        let walk = BulkWalk::new(&request, 7, 0);
        let mut early = 0;
        for n in 0..1_000 {
            let at_ms = walk.spread(&format!("j{n}"), 1_000_000, 1_000);
            assert_eq!(at_ms, walk.spread(&format!("j{n}"), 1_000_000, 1_000));
            assert!((1_000_000..1_001_000).contains(&at_ms));
            early += i64::from(at_ms < 1_000_500);
        }
        assert!((400..600).contains(&early), "{early}");
        let other = BulkWalk::new(&request, 8, 0);
        assert_ne!(walk.spread("j1", 0, 1 << 40), other.spread("j1", 0, 1 << 40));
    }

    #[test]
    fn dead_letters_and_new_jobs_of_later_are_not_meant() {
        let topic = TopicName::new("t").unwrap();
        let filter = BulkFilter::default();
        let request =
            BulkRequest { topic, operation: BulkOperation::Redrive, filter, rate: 1, hides_answers: false };
        let walk = BulkWalk::new(&request, 1, 5_000);
        let leg = walk.leg(0, 0).unwrap();
        let headers = Headers::default();
        let dead = |died_ms, stamp_us| VisitedJob {
            id: "i",
            state: State::Dead,
            due_ms: 1,
            until_ms: Some(died_ms),
            stamp_us,
            tried_ms: Some(died_ms),
            headers: &headers,
        };
        assert_eq!(walk.job(leg, &dead(5_000, 1), 6_000), BulkDecision::Take);
        assert_eq!(walk.job(leg, &dead(5_001, 1), 6_000), BulkDecision::EndOfLeg);
        assert_eq!(walk.job(leg, &dead(5_000, 5_000_001), 6_000), BulkDecision::Ignore);
    }
}

//! Plays operations over a store in memory, together with everything that may happen at the same time. Jobs become due,
//! are delivered, fail and are retried, are deleted and replaced. The process of the operation dies between any two
//! steps. The tests check that each job that was there when the operation began is changed at most once. If nothing
//! else happens to the job, it is changed exactly once.

use super::*;
use crate::headers::Headers;
use crate::job::{State, TopicName};

/// A source of random numbers. The same seed always gives the same numbers.
struct SeededRandom(u64);

impl SeededRandom {
    fn roll(&mut self, sides: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as i64) % sides
    }
}

struct SimulatedJob {
    id: String,
    state: State,
    due_ms: i64,
    stamp_us: i64,
    tried_ms: Option<i64>,
    /// How often the operation has changed the job.
    changes: usize,
    /// Whether something else has happened to the job since the operation began.
    is_touched: bool,
    was_due_ms: i64,
}

const START: i64 = 1_000_000;

/// The place of a job in the order of the jobs that have its state. (All jobs have the same priority.)
type JobPosition = (i64, String);

struct SimulatedStore {
    jobs: Vec<SimulatedJob>,
    now_ms: i64,
    dice: SeededRandom,
}

impl SimulatedStore {
    fn new(seed: u64) -> SimulatedStore {
        let mut dice = SeededRandom(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
        let job = |n: i64, dice: &mut SeededRandom| {
            let due_ms = START - 5_000 + dice.roll(40) * 500;
            SimulatedJob {
                id: format!("j{n}"),
                state: if due_ms <= START { State::Ready } else { State::Delayed },
                due_ms,
                stamp_us: (START - 9_000) * 1000 + n,
                tried_ms: None,
                changes: 0,
                is_touched: false,
                was_due_ms: due_ms,
            }
        };
        let jobs = (0..60).map(|n| job(n, &mut dice)).collect();
        SimulatedStore { jobs, now_ms: START, dice }
    }

    /// Plays one event that is not a part of the operation.
    fn run_other_event(&mut self) {
        self.now_ms += self.dice.roll(400);
        for job in &mut self.jobs {
            if job.state == State::Delayed && job.due_ms <= self.now_ms {
                job.state = State::Ready;
            }
        }
        if self.jobs.is_empty() {
            return;
        }
        let n = self.dice.roll(self.jobs.len() as i64) as usize;
        let (kind, now_ms) = (self.dice.roll(8), self.now_ms);
        let retry_ms = now_ms + 1 + self.dice.roll(9_000);
        let job = &mut self.jobs[n];
        match (kind, job.state) {
            (0, State::Ready) => job.state = State::Leased,
            // A lease ends: with a retry, or with the end of the job.
            (1, State::Leased) => {
                (job.state, job.due_ms, job.tried_ms) = (State::Delayed, retry_ms, Some(now_ms))
            }
            (2, State::Leased) => drop(self.jobs.remove(n)),
            (3, State::Delayed | State::Ready) if retry_ms % 4 == 0 => {
                // The job is replaced.
                job.stamp_us = now_ms * 1000;
                (job.due_ms, job.state, job.changes, job.tried_ms) = (retry_ms, State::Delayed, 0, None);
            }
            _ => return,
        }
        if let Some(job) = self.jobs.get_mut(n) {
            job.is_touched = true;
        }
    }

    fn place(job: &SimulatedJob) -> JobPosition {
        (job.due_ms, job.id.clone())
    }

    /// Returns the page of jobs after a place, and the place where the page ends. None: this page is the last page.
    fn list(
        &self,
        leg: WalkLeg,
        cursor: Option<&JobPosition>,
        limit: usize,
    ) -> (Vec<usize>, Option<JobPosition>) {
        let mut found: Vec<usize> = (0..self.jobs.len())
            .filter(|n| self.jobs[*n].state == leg.state)
            .filter(|n| {
                let place = SimulatedStore::place(&self.jobs[*n]);
                cursor.is_none_or(|at| if leg.is_backward { place < *at } else { place > *at })
            })
            .collect();
        found.sort_by_key(|n| SimulatedStore::place(&self.jobs[*n]));
        if leg.is_backward {
            found.reverse();
        }
        let has_more = found.len() > limit;
        found.truncate(limit);
        let end = found.last().filter(|_| has_more).map(|n| SimulatedStore::place(&self.jobs[*n]));
        (found, end)
    }

    /// Changes a job if its stamp and due time are still as they were listed. The stores do the same.
    fn apply(&mut self, PlannedJobChange(id, stamp_us, due_ms, to_ms): &PlannedJobChange) {
        let now_ms = self.now_ms;
        let Some(n) = self.jobs.iter().position(|job| job.id == *id) else { return };
        let job = &mut self.jobs[n];
        if job.stamp_us != *stamp_us || job.due_ms != *due_ms {
            return;
        }
        match to_ms {
            None => drop(self.jobs.remove(n)),
            Some(_) if job.state == State::Leased => {}
            Some(to_ms) => {
                job.state = if *to_ms <= now_ms { State::Ready } else { State::Delayed };
                job.due_ms = *to_ms;
                job.changes += 1;
            }
        }
    }
}

/// Plays an operation to its end. If the process dies, everything that it has not written is lost.
fn play(operation: BulkOperation, seed: u64, calm: bool) -> SimulatedStore {
    let topic = TopicName::new("t").unwrap();
    let request =
        BulkRequest { topic, operation, filter: BulkFilter::default(), rate: 1, hides_answers: false };
    let walk = BulkWalk::new(&request, seed, START);
    let (mut world, none) = (SimulatedStore::new(seed), Headers::default());
    // What is saved in the registry: the leg, the end of the page from which the plan was made, and the plan.
    let mut saved: (usize, Option<JobPosition>, Vec<PlannedJobChange>) = (0, None, Vec::new());
    let mut planned_in = 0;
    loop {
        let (mut leg, mut cursor, plan) = saved.clone();
        // A process may die while it applies the plan. It may also die later, before it writes the next plan.
        let dies_at = if world.dice.roll(4) == 0 {
            world.dice.roll(plan.len() as i64 + 2) as usize
        } else {
            usize::MAX
        };
        for one in plan.iter().take(dies_at) {
            if !calm {
                world.run_other_event();
            }
            world.apply(one);
        }
        if dies_at != usize::MAX {
            continue;
        }
        let Some(way) = walk.leg(leg, planned_in) else { return world };
        let (page, end) = world.list(way, cursor.as_ref(), 7);
        let (mut next, mut is_over) = (Vec::new(), end.is_none());
        for job in page.into_iter().map(|n| &world.jobs[n]) {
            let seen = VisitedJob {
                id: &job.id,
                state: job.state,
                due_ms: job.due_ms,
                until_ms: None,
                stamp_us: job.stamp_us,
                tried_ms: job.tried_ms,
                headers: &none,
            };
            let plan = |to_ms| PlannedJobChange(job.id.clone(), job.stamp_us, job.due_ms, to_ms);
            match walk.job(way, &seen, world.now_ms) {
                BulkDecision::Due(to_ms) => next.push(plan(Some(to_ms))),
                BulkDecision::Take => next.push(plan(None)),
                BulkDecision::Skip | BulkDecision::Ignore => {}
                BulkDecision::EndOfLeg => {
                    is_over = true;
                    break;
                }
            }
        }
        cursor = end;
        if !next.is_empty() {
            planned_in = leg;
        }
        if is_over {
            (leg, cursor) = (leg + 1, None);
        }
        saved = (leg, cursor, next);
        if !calm {
            world.run_other_event();
        }
    }
}

const OPERATIONS: [BulkOperation; 8] = [
    BulkOperation::Shift { by_ms: 60_000 },
    BulkOperation::Shift { by_ms: 700 },
    BulkOperation::Shift { by_ms: -700 },
    BulkOperation::Shift { by_ms: -60_000 },
    BulkOperation::At { at_ms: START + 7_000 },
    BulkOperation::Spread { from_ms: START, over_ms: 9_000 },
    BulkOperation::Run,
    BulkOperation::Cancel,
];

#[test]
fn no_job_is_changed_twice_whatever_happens() {
    for operation in OPERATIONS {
        for seed in 0..400 {
            for job in play(operation, seed, false).jobs {
                let is_new = job.stamp_us > START * 1000;
                assert!(
                    job.changes <= usize::from(!is_new),
                    "{operation:?}, seed {seed}: {} changed",
                    job.id
                );
            }
        }
    }
}

#[test]
fn a_cancel_leaves_no_job_although_jobs_are_delivered_and_fail() {
    for seed in 0..2_000 {
        let left: Vec<String> = play(BulkOperation::Cancel, seed, false)
            .jobs
            .into_iter()
            .filter(|job| job.stamp_us <= START * 1000)
            .map(|job| format!("{} {:?} {}", job.id, job.state, job.due_ms))
            .collect();
        assert!(left.is_empty(), "seed {seed}: {left:?}");
    }
}

#[test]
fn each_job_is_changed_once_if_nothing_else_happens() {
    for operation in OPERATIONS {
        for seed in 0..100 {
            let world = play(operation, seed, true);
            let due = |was_ms: i64, id: &str| match operation {
                BulkOperation::At { at_ms } => at_ms,
                BulkOperation::Shift { by_ms } if by_ms > 0 => was_ms + by_ms,
                BulkOperation::Shift { by_ms } if was_ms > START => (was_ms + by_ms).max(START),
                BulkOperation::Run => was_ms.min(START),
                BulkOperation::Spread { .. } => world.jobs.iter().find(|job| job.id == id).unwrap().due_ms,
                _ => was_ms,
            };
            for job in &world.jobs {
                assert_eq!(
                    job.due_ms,
                    due(job.was_due_ms, &job.id),
                    "{operation:?}, seed {seed}: {}",
                    job.id
                );
                let is_same = job.due_ms == job.was_due_ms;
                assert_eq!(job.changes, usize::from(!is_same), "{operation:?}, seed {seed}: {}", job.id);
                assert!(!job.is_touched);
            }
            assert_eq!(world.jobs.is_empty(), operation == BulkOperation::Cancel);
        }
    }
}

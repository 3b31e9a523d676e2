//! Numbers as priorities of jobs: what every store promises.

use std::collections::BTreeMap;
use std::time::Duration;

use model::headers::Headers;
use model::job::{Due, NewJob, OnConflict, Priority, State};
use model::job_priority::JobPriority;
use model::letters::RedrivePace;
use store::{
    Change, Changed, DeadLetterSelection, Direction, HELD_MS, LeaseRequest, ListedChangeGoal, ListedJob,
    ListedJobChange, Outcome, Settled, Store, StoredJob,
};

use super::{
    Fixture, LONG, NOW, add, counts, job, key, lease, lease_one, now_ms, owner, settle, topic, want,
};

const LEVELS: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

fn number(n: u32) -> JobPriority {
    JobPriority::from_number(n)
}

fn with(id: &str, priority: JobPriority, due: Due) -> NewJob {
    NewJob { priority, ..job("t", id, due) }
}

fn leased_ids(s: &mut dyn Store, max: u32) -> Vec<String> {
    lease(s, "t", max).into_iter().map(|one| one.key.id.as_str().to_owned()).collect()
}

/// Returns the ready jobs in the order of the list, in pages of `limit` jobs.
fn listed(s: &mut dyn Store, limit: usize) -> Vec<StoredJob> {
    let (mut jobs, mut cursor) = (Vec::new(), None);
    loop {
        let page = s.list(&topic("t"), State::Ready, cursor.as_deref(), limit).unwrap();
        jobs.extend(page.jobs);
        cursor = page.next;
        if cursor.is_none() {
            return jobs;
        }
    }
}

/// Numbers that come before all levels, then the levels, then numbers that come after all levels.
fn scale() -> Vec<JobPriority> {
    let before = [0, 1, 1023, 2_147_483_646].map(number);
    let after = [2_147_483_650, 4_000_000_000, u32::MAX].map(number);
    before.into_iter().chain(LEVELS.map(JobPriority::from)).chain(after).collect()
}

pub(super) fn numbers_and_levels_have_one_order<F: Fixture>(f: &F) {
    let mut s = f.open();
    let scale = scale();
    // Each of the two batches has one job for each priority, the last priority first.
    for half in 0..2 {
        let jobs = scale.iter().enumerate().rev();
        let jobs: Vec<NewJob> = jobs.map(|(n, one)| with(&format!("{n:02}.{half}"), *one, NOW)).collect();
        add(&mut *s, &jobs);
    }
    assert_eq!(counts(&mut *s, "t"), [0, 20, 0, 0]);
    for limit in [1, 3, 7, 100] {
        let jobs = listed(&mut *s, limit);
        assert_eq!(jobs.len(), 20, "{limit} at a time");
        assert!(jobs.is_sorted_by_key(|one| (one.priority, one.due_ms)), "{limit} at a time: {jobs:?}");
    }
    for (n, one) in scale.iter().enumerate() {
        let view = s.get(&key("t", &format!("{n:02}.0"))).unwrap().unwrap();
        assert_eq!((view.priority, view.headers), (*one, Headers::default()));
    }
    if F::SHARDS == 1 {
        let taken: Vec<String> = [7, 1, 9, 3].into_iter().flat_map(|max| leased_ids(&mut *s, max)).collect();
        let expected: Vec<String> = (0..20).map(|n| format!("{:02}.{}", n / 2, n % 2)).collect();
        assert_eq!(taken, expected);
    } else {
        let mut taken = leased_ids(&mut *s, 100);
        assert!(taken.is_sorted_by_key(|id| id[..2].to_owned()), "one answer is sorted: {taken:?}");
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), 20);
    }
    assert_eq!(counts(&mut *s, "t"), [0, 0, 20, 0]);
}

pub(super) fn jobs_of_one_number_come_by_due_time_and_arrival<F: Fixture>(f: &F) {
    let mut s = f.open();
    // Half of the jobs are added in one call, and the other half one by one. The ids are in no order.
    let ids: Vec<String> = (0..40).map(|n| format!("{:02}", n * 23 % 40)).collect();
    let jobs: Vec<NewJob> = ids.iter().map(|id| with(id, number(7), NOW)).collect();
    add(&mut *s, &jobs[..20]);
    jobs[20..].iter().for_each(|one| drop(add(&mut *s, std::slice::from_ref(one))));
    if F::SHARDS == 1 {
        assert_eq!(leased_ids(&mut *s, 15), ids[..15]);
        // Jobs that fail keep their place among the jobs with the same due time. Jobs with earlier due times come
        // first.
        let rest = lease(&mut *s, "t", 25);
        for (n, one) in rest.iter().enumerate().rev() {
            settle(&mut *s, one, Outcome::Retry(Due::At(1000 + n as i64 % 2)));
        }
        let of = |parity| (0..25).filter(move |n| n % 2 == parity).map(|n| ids[15 + n].clone());
        assert_eq!(leased_ids(&mut *s, 25), of(0).chain(of(1)).collect::<Vec<_>>());
    } else {
        assert_eq!(leased_ids(&mut *s, 40).len(), 40);
    }
}

pub(super) fn the_number_of_a_job_stays_in_all_states<F: Fixture>(f: &F) {
    let mut s = f.open();
    let headers = Headers::parse(r#"{"a": "1"}"#).unwrap();
    let view = |s: &mut dyn Store, id: &str| s.get(&key("t", id)).unwrap().unwrap();
    let shows = |s: &mut dyn Store, id: &str, state, n| {
        let view = view(s, id);
        assert_eq!((view.state, view.priority, &view.headers), (state, number(n), &headers), "{id}");
    };
    let own = |id: &str, n, due| NewJob { headers: headers.clone(), ..with(id, number(n), due) };
    add(&mut *s, &[own("i", 5, LONG), own("held", 6, Due::At(HELD_MS))]);
    shows(&mut *s, "i", State::Delayed, 5);
    let to = |priority| Change { priority: Some(priority), ..Change::default() };
    assert_eq!(s.change(&key("t", "i"), &to(number(4))), Ok(Changed::Done));
    assert_eq!(s.run(&key("t", "i")), Ok(Changed::Done));
    shows(&mut *s, "i", State::Ready, 4);
    let body =
        Change { body: Some(job("t", "other", NOW).body), max_attempts: Some(Some(9)), ..Change::default() };
    assert_eq!(s.change(&key("t", "i"), &body), Ok(Changed::Done));
    shows(&mut *s, "i", State::Ready, 4);
    assert_eq!(s.release(&[(key("t", "held"), NOW)]), [Ok(true)]);
    shows(&mut *s, "held", State::Ready, 6);
    let held = lease(&mut *s, "t", 9).into_iter().find(|one| one.key.id.as_str() == "i").unwrap();
    assert_eq!(held.headers, headers);
    shows(&mut *s, "i", State::Leased, 4);
    settle(&mut *s, &held, Outcome::DeadLetter);
    shows(&mut *s, "i", State::Dead, 4);
    assert_eq!(s.redrive(&topic("t"), &DeadLetterSelection::All, 9, RedrivePace::default()), Ok(1));
    shows(&mut *s, "i", State::Ready, 4);
    // The priority becomes a level, and then a number again. The second change also removes the headers.
    assert_eq!(s.change(&key("t", "i"), &to(Priority::Low.into())), Ok(Changed::Done));
    let low = view(&mut *s, "i");
    assert_eq!((low.priority, &low.headers), (Priority::Low.into(), &headers));
    let none = Change { headers: Some(Headers::default()), ..to(number(u32::MAX)) };
    assert_eq!(s.change(&key("t", "i"), &none), Ok(Changed::Done));
    let last = view(&mut *s, "i");
    assert_eq!(
        (last.priority, last.headers.is_empty(), counts(&mut *s, "t")),
        (number(u32::MAX), true, [0, 1, 1, 0])
    );
    // A job that is replaced while it is leased has the number of the replacement.
    let leased = lease_one(&mut *s, "t");
    add(&mut *s, &[own("i", 3, NOW)]);
    settle(&mut *s, &leased, Outcome::Ack);
    shows(&mut *s, "i", State::Ready, 3);
    assert_eq!(lease_one(&mut *s, "t").key.id.as_str(), "i");
}

pub(super) fn a_settlement_may_change_the_priority<F: Fixture>(f: &F) {
    let mut s = f.open();
    let headers = Headers::parse(r#"{"a": "1"}"#).unwrap();
    let all = scale();
    for (n, (from, to)) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))).enumerate() {
        // Some of the jobs have headers, and some have a limit of attempts.
        let id = format!("i{n}");
        let own = if n % 2 == 0 { headers.clone() } else { Headers::default() };
        let max_attempts = Some(9).filter(|_| n % 3 == 0);
        let added = NewJob { headers: own.clone(), max_attempts, ..with(&id, *from, NOW) };
        let body = added.body.clone();
        add(&mut *s, &[added]);
        let check = |s: &mut dyn Store, state, priority| {
            let view = s.get(&key("t", &id)).unwrap().unwrap();
            assert_eq!((view.state, view.priority), (state, priority), "{n}: {from} {to}");
            assert_eq!((&view.headers, &view.body), (&own, &body), "{n}: {from} {to}");
            if state != State::Dead {
                assert_eq!(view.max_attempts, max_attempts, "{n}: {from} {to}");
            }
        };
        let held = lease_one(&mut *s, "t");
        settle(&mut *s, &held, Outcome::RetryAs(LONG, *to));
        check(&mut *s, State::Delayed, *to);
        assert_eq!(s.run(&key("t", &id)), Ok(Changed::Done));
        let held = lease_one(&mut *s, "t");
        settle(&mut *s, &held, Outcome::DeadLetterAs(*from));
        check(&mut *s, State::Dead, *from);
        assert_eq!(s.redrive(&topic("t"), &DeadLetterSelection::All, 9, RedrivePace::default()), Ok(1));
        check(&mut *s, State::Ready, *from);
        // If a leased job was replaced, the outcome of its lease changes nothing of the replacement.
        let held = lease_one(&mut *s, "t");
        add(&mut *s, &[NewJob { headers: own.clone(), max_attempts, ..with(&id, *from, NOW) }]);
        assert_eq!(settle(&mut *s, &held, Outcome::RetryAs(LONG, *to)), Settled::Stale);
        check(&mut *s, State::Ready, *from);
        let held = lease_one(&mut *s, "t");
        settle(&mut *s, &held, Outcome::Ack);
    }
    // The jobs come in the order of their new priorities.
    if F::SHARDS == 1 {
        let jobs: Vec<NewJob> = (0..all.len()).map(|n| with(&format!("{n:02}"), number(5), NOW)).collect();
        add(&mut *s, &jobs);
        for one in lease(&mut *s, "t", all.len() as u32) {
            let place: usize = one.key.id.as_str().parse().unwrap();
            settle(&mut *s, &one, Outcome::RetryAs(NOW, all[all.len() - 1 - place]));
        }
        let expected: Vec<String> = (0..all.len()).rev().map(|n| format!("{n:02}")).collect();
        assert_eq!(leased_ids(&mut *s, 99), expected);
    }
}

/// What a random test knows about a job.
#[derive(Debug, Clone, Copy)]
struct Known {
    arrival: u64,
    /// Whether the job's place among jobs with the same priority and due time is known.
    has_place: bool,
}

/// The jobs that a random test has added, and the checks.
struct Expected {
    jobs: BTreeMap<String, Known>,
    arrivals: u64,
}

impl Expected {
    fn came(&mut self, id: &str, priority: JobPriority) {
        self.arrivals += 1;
        let is_new = !self.jobs.contains_key(id);
        let has_place = is_new && priority.level().is_none();
        self.jobs.insert(id.to_owned(), Known { arrival: self.arrivals, has_place });
    }

    /// Returns the ready jobs in the order in which they must come.
    fn ready(&self, s: &mut dyn Store) -> Vec<(JobPriority, i64, u64, String)> {
        let mut ready = Vec::new();
        for (id, known) in &self.jobs {
            if let Some(view) = s.get(&key("t", id)).unwrap().filter(|view| view.state == State::Ready) {
                ready.push((view.priority, view.due_ms, known.arrival, id.clone()));
            }
        }
        ready.sort();
        ready
    }

    /// Checks that the jobs `came` are the first jobs of `ready`.
    fn check(&self, ready: &[(JobPriority, i64, u64, String)], came: &[String], what: &str) {
        let found: Vec<_> = came
            .iter()
            .map(|id| ready.iter().find(|one| one.3 == *id).unwrap_or_else(|| panic!("{what}: {id}")))
            .collect();
        let keys = |some: &mut dyn Iterator<Item = (JobPriority, i64)>| some.collect::<Vec<_>>();
        let of = |one: &(JobPriority, i64, u64, String)| (one.0, one.1);
        let expected = keys(&mut ready[..came.len()].iter().map(of));
        assert_eq!(keys(&mut found.iter().map(|one| of(one))), expected, "{what}: {came:?}");
        for two in found.windows(2).filter(|two| of(two[0]) == of(two[1])) {
            if [&two[0].3, &two[1].3].iter().all(|id| self.jobs[*id].has_place) {
                assert!(two[0].2 < two[1].2, "{what}: {:?} before {:?}", two[0], two[1]);
            }
        }
    }
}

pub(super) fn random_changes_keep_the_order_of_ready_jobs<F: Fixture>(f: &F) {
    let steps = if F::SHARDS == 1 { 600 } else { 150 };
    change_at_random(&mut *f.open(), F::SHARDS == 1, steps, |_| {});
}

/// Makes random changes of jobs of the topic `t`, and checks the order of leases and lists. `is_exact`: the store has
/// one shard. `check` is called after each step.
pub(crate) fn change_at_random(s: &mut dyn Store, is_exact: bool, steps: u32, mut check: impl FnMut(&str)) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut expected = Expected { jobs: BTreeMap::new(), arrivals: 0 };
    let (mut leases, scale) = (Vec::new(), scale());
    for step in 0..steps {
        let id = format!("{}", random.u32(..30));
        let priority = scale[random.usize(..scale.len())];
        let due = [LONG, NOW, NOW, Due::In(Duration::from_millis(2))][random.usize(..4)];
        let past = Due::At(random.i64(1000..1003));
        let what = format!("seed {seed}, step {step}");
        let is_live = |s: &mut dyn Store, id: &str| {
            s.get(&key("t", id)).unwrap().is_some_and(|view| view.state != State::Dead)
        };
        match random.u32(..12) {
            0..=3 => {
                let on_conflict = if random.bool() { OnConflict::Keep } else { OnConflict::Replace };
                let is_there = is_live(s, &id);
                add(s, &[NewJob { on_conflict, ..with(&id, priority, due) }]);
                if !is_there {
                    expected.jobs.remove(&id);
                }
                if !is_there || on_conflict == OnConflict::Replace {
                    expected.came(&id, priority);
                }
            }
            4 => {
                let change = Change { priority: Some(priority), ..Change::default() };
                if s.change(&key("t", &id), &change) == Ok(Changed::Done) {
                    expected.jobs.get_mut(&id).unwrap().has_place = false;
                }
            }
            5 => drop(s.change(&key("t", &id), &Change { due: Some(due), ..Change::default() })),
            6 if random.bool() => drop(s.delete(&[key("t", &id)])),
            6 => {
                // The redrive may take an older letter of the id, so the place of the job is unknown.
                for (id, known) in &mut expected.jobs {
                    known.has_place &= is_live(s, id);
                }
                s.redrive(&topic("t"), &DeadLetterSelection::All, 3, RedrivePace::default()).unwrap();
            }
            7 => {
                let max = random.u32(1..6);
                s.promote(100).unwrap();
                let ready = expected.ready(s);
                let jobs = lease(s, "t", max);
                let came: Vec<String> = jobs.iter().map(|one| one.key.id.as_str().to_owned()).collect();
                assert_eq!(came.len(), ready.len().min(max as usize), "{what}");
                if is_exact {
                    expected.check(&ready, &came, &what);
                }
                leases.extend(jobs);
            }
            8 if random.u32(..4) == 0 => drop(s.hand_back(&owner("me")).unwrap()),
            8 => {
                let wanted = LeaseRequest { hold: Duration::ZERO, ..want("t", 2) };
                s.lease(&[wanted], 2, None).unwrap();
                s.expire(9).unwrap();
            }
            9 => {
                let state = [State::Delayed, State::Ready][random.usize(..2)];
                let page = s.list_in_order(&topic("t"), state, Direction::Forward, None, 3).unwrap();
                let aim = if random.bool() {
                    ListedChangeGoal::Gone
                } else {
                    ListedChangeGoal::Due(now_ms() + random.i64(-2..3))
                };
                let change = |one: &ListedJob| ListedJobChange {
                    id: one.id.clone(),
                    stamp_us: one.stamp_us,
                    due_ms: one.due_ms,
                    aim,
                };
                let changes: Vec<ListedJobChange> = page.jobs.iter().map(change).collect();
                assert!(s.change_listed(&topic("t"), &changes).iter().all(Result::is_ok), "{what}");
            }
            _ if !leases.is_empty() => {
                let one = leases.swap_remove(random.usize(..leases.len()));
                let outcome = match random.u32(..6) {
                    0 => Outcome::Ack,
                    1 => Outcome::DeadLetter,
                    2 => Outcome::HandBack,
                    3 => Outcome::Postpone(past),
                    4 => Outcome::Retry(due),
                    _ => Outcome::Retry(past),
                };
                let outcome = match outcome {
                    Outcome::Retry(due) if random.bool() => Outcome::RetryAs(due, priority),
                    Outcome::DeadLetter if random.bool() => Outcome::DeadLetterAs(priority),
                    as_before => as_before,
                };
                if matches!(outcome, Outcome::RetryAs(..) | Outcome::DeadLetterAs(_))
                    && let Some(known) = expected.jobs.get_mut(one.key.id.as_str())
                {
                    known.has_place = false;
                }
                settle(s, &one, outcome);
            }
            _ => {}
        }
        check(&what);
        if step % 10 == 0 {
            s.promote(100).unwrap();
            let ready = expected.ready(s);
            let limit = random.usize(1..40);
            let listed = listed(s, limit).into_iter();
            let jobs: Vec<String> = listed.map(|one| one.key.id.as_str().to_owned()).collect();
            assert_eq!(jobs.len(), ready.len(), "{what}");
            if is_exact {
                expected.check(&ready, &jobs, &what);
            }
            counts(s, "t");
        }
    }
    let ready = counts(s, "t")[1];
    assert_eq!(s.purge(&topic("t"), State::Ready, 1000), Ok(ready as usize));
    check("after the purge");
    assert_eq!(leased_ids(s, 9), Vec::<String>::new());
}

//! Operations on many jobs: lists in both directions, and changes of jobs that are still as they were listed.

use super::*;
use model::record::Ending;
use store::{Direction, ListedChangeGoal, ListedChangeResult, ListedJob, ListedJobChange};

/// Returns all jobs of a state, page by page.
fn listed(store: &mut dyn Store, state: State, direction: Direction, page: usize) -> Vec<ListedJob> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let found = store.list_in_order(&topic("t"), state, direction, cursor.as_deref(), page).unwrap();
        assert!(found.jobs.len() <= page && (found.next.is_none() || !found.jobs.is_empty()), "{found:?}");
        all.extend(found.jobs);
        cursor = found.next;
        if cursor.is_none() {
            return all;
        }
    }
}

fn planned(job: &ListedJob, aim: ListedChangeGoal) -> ListedJobChange {
    ListedJobChange { id: job.id.clone(), stamp_us: job.stamp_us, due_ms: job.due_ms, aim }
}

fn change(store: &mut dyn Store, changes: &[ListedJobChange]) -> Vec<ListedChangeResult> {
    all(store.change_listed(&topic("t"), changes))
}

/// Returns a job as it is listed.
fn found(store: &mut dyn Store, state: State, id: &str) -> ListedJob {
    let all = listed(store, state, Direction::Forward, 100);
    all.into_iter().find(|job| job.id.as_str() == id).unwrap()
}

pub(super) fn jobs_are_listed_forward_and_backward_without_a_gap<F: Fixture>(f: &F) {
    let mut s = f.open();
    let base = now_ms() + 3_600_000;
    // Several jobs have the same due time.
    let due = |n: i64| base + n / 7 * 1000;
    let jobs: Vec<NewJob> = (0..200).map(|n| job("t", &format!("j{n}"), Due::At(due(n)))).collect();
    add(&mut *s, &jobs);
    for page in [1, 7, 1000] {
        let forward = listed(&mut *s, State::Delayed, Direction::Forward, page);
        assert!(forward.len() == 200 && forward.is_sorted_by_key(|job| job.due_ms), "pages of {page}");
        let ids: BTreeSet<&str> = forward.iter().map(|job| job.id.as_str()).collect();
        assert_eq!(ids.len(), 200);
        let mut backward = listed(&mut *s, State::Delayed, Direction::Backward, page);
        backward.reverse();
        assert_eq!(backward, forward);
    }
    let one = found(&mut *s, State::Delayed, "j199");
    let view = s.get(&key("t", "j199")).unwrap().unwrap();
    assert_eq!((one.due_ms, one.stamp_us, one.tried_ms), (view.due_ms, view.stamp_us, None));
    // A list that goes backward has already passed the place of a job that gets a later due time.
    let mut page = s.list_in_order(&topic("t"), State::Delayed, Direction::Backward, None, 20).unwrap();
    let mut seen = page.jobs.len();
    while let Some(next) = page.next {
        let later = |job: &ListedJob| planned(job, ListedChangeGoal::Due(job.due_ms + 600_000));
        let changes: Vec<ListedJobChange> = page.jobs.iter().map(later).collect();
        assert!(change(&mut *s, &changes).iter().all(|one| *one == ListedChangeResult::Done));
        page = s.list_in_order(&topic("t"), State::Delayed, Direction::Backward, Some(&next), 20).unwrap();
        seen += page.jobs.len();
    }
    assert_eq!(seen, 200);
    let none = s.list_in_order(&topic("none"), State::Dead, Direction::Forward, None, 5).unwrap();
    assert!(none.jobs.is_empty() && none.next.is_none());
}

pub(super) fn each_state_is_listed_without_bodies<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "dead", NOW)]);
    let dying = lease_one(&mut *s, "t");
    let attempt = Attempt {
        number: 1,
        at_ms: 123,
        took_ms: 3,
        status: Some(500),
        answer: String::new(),
        error: "no".into(),
        late: None,
    };
    let bury = Settlement { attempt: Some(attempt), ..settlement(&dying, Outcome::DeadLetter) };
    assert_eq!(all(s.settle(&[bury])), [Settled::Done]);
    add(&mut *s, &[job("t", "leased", NOW)]);
    let leased = lease_one(&mut *s, "t");
    add(&mut *s, &[job("t", "ready", NOW), job("t", "late", later())]);
    let dead = found(&mut *s, State::Dead, "dead");
    assert_eq!((dead.due_ms, dead.tried_ms), (dying.due_ms, Some(123)));
    let view = s.list(&topic("t"), State::Dead, None, 9).unwrap().jobs.remove(0);
    assert_eq!((dead.until_ms, dead.stamp_us), (view.until_ms, view.stamp_us));
    assert_eq!(found(&mut *s, State::Leased, "leased").due_ms, leased.due_ms);
    for (state, id) in [(State::Ready, "ready"), (State::Delayed, "late")] {
        let both = [Direction::Forward, Direction::Backward].map(|way| listed(&mut *s, state, way, 9));
        assert_eq!(both[0], both[1]);
        assert_eq!((both[0].len(), both[0][0].id.as_str(), both[0][0].state), (1, id, state));
    }
}

pub(super) fn a_listed_job_is_changed_only_as_it_was_listed<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", later()), job("t", "r", NOW), job("t", "l", later())]);
    let job_i = found(&mut *s, State::Delayed, "i");
    let (to, then) = (job_i.due_ms + 5_000, job_i.due_ms + 9_000);
    assert_eq!(change(&mut *s, &[planned(&job_i, ListedChangeGoal::Due(to))]), [ListedChangeResult::Done]);
    // If the same change comes again, it changes nothing. Another change that was planned from the same list changes
    // nothing, too.
    let again = [planned(&job_i, ListedChangeGoal::Due(to)), planned(&job_i, ListedChangeGoal::Due(then))];
    assert_eq!(change(&mut *s, &again[..1]), [ListedChangeResult::Already]);
    assert_eq!(change(&mut *s, &again[1..]), [ListedChangeResult::Differs]);
    let view = s.get(&key("t", "i")).unwrap().unwrap();
    assert_eq!((view.due_ms, view.stamp_us, view.state), (to, job_i.stamp_us, State::Delayed));
    // A replacement has another stamp. A change that was planned for the old job does not change the replacement.
    add(&mut *s, &[job("t", "i", Due::At(job_i.due_ms))]);
    let changes = [planned(&job_i, ListedChangeGoal::Due(to))];
    assert_eq!(change(&mut *s, &changes), [ListedChangeResult::Differs]);
    assert_eq!(change(&mut *s, &[planned(&job_i, ListedChangeGoal::Gone)]), [ListedChangeResult::Differs]);
    // With a later due time, a ready job waits again. With a due time that has come, a delayed job is ready at once.
    let ready = found(&mut *s, State::Ready, "r");
    let late = found(&mut *s, State::Delayed, "l");
    let now = now_ms();
    let changes = [planned(&ready, ListedChangeGoal::Due(then)), planned(&late, ListedChangeGoal::Due(now))];
    assert_eq!(change(&mut *s, &changes), [ListedChangeResult::Done; 2]);
    assert_eq!(
        (state(&mut *s, "t", "r"), state(&mut *s, "t", "l")),
        (Some(State::Delayed), Some(State::Ready))
    );
    let leased = lease_one(&mut *s, "t");
    assert_eq!((leased.key.id.as_str(), leased.due_ms), ("l", now));
    // A leased job that has the new due time counts as changed. Any other leased job is not changed.
    let listed = found(&mut *s, State::Leased, "l");
    let changes = [planned(&late, ListedChangeGoal::Due(now))];
    assert_eq!(change(&mut *s, &changes), [ListedChangeResult::Already]);
    assert_eq!(
        change(&mut *s, &[planned(&listed, ListedChangeGoal::Due(then))]),
        [ListedChangeResult::Differs]
    );
    assert_eq!(settle(&mut *s, &leased, Outcome::Ack), Settled::Done);
    assert_eq!(change(&mut *s, &changes), [ListedChangeResult::NotFound]);
    assert_eq!(counts(&mut *s, "t"), [2, 0, 0, 0]);
}

pub(super) fn a_listed_job_is_deleted_and_leaves_a_record<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "l", NOW)]);
    let leased = lease_one(&mut *s, "t");
    add(&mut *s, &[job("t", "d", later()), job("t", "r", NOW), job("t", "x", later())]);
    let moved = found(&mut *s, State::Delayed, "x");
    assert_eq!(s.reschedule(&key("t", "x"), Due::At(moved.due_ms + 1)).unwrap(), store::Changed::Done);
    let changes = [
        planned(&found(&mut *s, State::Delayed, "d"), ListedChangeGoal::Gone),
        planned(&found(&mut *s, State::Ready, "r"), ListedChangeGoal::Gone),
        planned(&found(&mut *s, State::Leased, "l"), ListedChangeGoal::Gone),
        planned(&moved, ListedChangeGoal::Gone),
    ];
    let [done, other] = [ListedChangeResult::Done, ListedChangeResult::Differs];
    assert_eq!(change(&mut *s, &changes), [done, done, done, other]);
    assert_eq!(change(&mut *s, &changes[..1]), [ListedChangeResult::NotFound]);
    assert_eq!((counts(&mut *s, "t"), state(&mut *s, "t", "x")), ([1, 0, 0, 0], Some(State::Delayed)));
    for id in ["d", "r", "l"] {
        let records = s.records(&key("t", id)).unwrap();
        assert_eq!(records.iter().map(|r| r.ending).collect::<Vec<_>>(), [Ending::Deleted], "{id}");
    }
    assert_eq!(settle(&mut *s, &leased, Outcome::Ack), Settled::Stale);
}

pub(super) fn many_listed_jobs_are_changed_at_once<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &(0..700).map(|n| job("t", &format!("j{n}"), later())).collect::<Vec<_>>());
    let bell = f.bell(BellKind::Timer);
    quiet(&bell);
    let all = listed(&mut *s, State::Delayed, Direction::Forward, 1000);
    let due = now_ms() + 1_000;
    let sooner: Vec<ListedJobChange> =
        all.iter().map(|job| planned(job, ListedChangeGoal::Due(due))).collect();
    assert_eq!(change(&mut *s, &sooner), [ListedChangeResult::Done; 700]);
    assert!(rings(&bell), "the timer must learn that jobs are due sooner");
    sleep_past(due);
    let mut ready = 0;
    while ready < 700 {
        ready += s.promote(256).unwrap().jobs;
    }
    assert_eq!(counts(&mut *s, "t"), [0, 700, 0, 0]);
}

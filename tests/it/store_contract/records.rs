//! Records of jobs that have ended.

use super::*;
use model::destination::Destination;
use model::headers::Headers;
use model::record::{Ending, JobRecord, RECORDS_MAX, RECORDS_OF_AN_ID, RecordKeeping};
use model::tags::Tags;

/// Returns how the jobs of an id ended, the last one first.
fn endings(store: &mut dyn Store, t: &str, id: &str) -> Vec<Ending> {
    store.records(&key(t, id)).unwrap().iter().map(|record| record.ending).collect()
}

/// Adds a job that is due now, and leases it.
fn added_and_leased(store: &mut dyn Store, t: &str, id: &str) -> LeasedJob {
    add(store, &[job(t, id, Due::In(Duration::ZERO))]);
    lease_one(store, t)
}

fn with_attempt(job: &LeasedJob, outcome: Outcome, status: u16) -> Settlement {
    let attempt = Attempt {
        number: job.attempt,
        at_ms: job.leased_ms,
        took_ms: 3,
        status: Some(status),
        answer: format!("answer {}", job.attempt),
        error: String::new(),
        late: None,
    };
    Settlement { attempt: Some(attempt), ..settlement(job, outcome) }
}

/// Returns all records of a topic, page by page.
fn listed(store: &mut dyn Store, t: &str, page: usize) -> Vec<JobRecord> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let found = store.list_records(&topic(t), cursor.as_deref(), page).unwrap();
        assert!(found.records.len() <= page && found.away.is_empty());
        all.extend(found.records);
        cursor = found.next;
        if cursor.is_none() {
            return all;
        }
    }
}

fn keeping(age: Duration, jobs: u32, with_body: bool) -> RecordKeeping {
    RecordKeeping { age, jobs, with_body, with_event: false }
}

const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn a_delivered_job_leaves_a_record_with_all_its_attempts<F: Fixture>(f: &F) {
    let mut s = f.open();
    let before = now_ms();
    let first = added_and_leased(&mut *s, "t", "i");
    let again = with_attempt(&first, Outcome::Retry(Due::In(Duration::ZERO)), 503);
    assert_eq!(all(s.settle(&[again])), [Settled::Done]);
    assert_eq!(endings(&mut *s, "t", "i"), [], "it has not ended");
    let second = lease_one(&mut *s, "t");
    assert_eq!(all(s.settle(&[with_attempt(&second, Outcome::Ack, 200)])), [Settled::Done]);
    let found = f.open().records(&key("t", "i")).unwrap();
    let [record] = &found[..] else { panic!("{found:?}") };
    assert_eq!((record.ending, record.attempts, record.key.clone()), (Ending::Delivered, 2, key("t", "i")));
    let statuses: Vec<_> = record.attempts_log.iter().map(|a| (a.number, a.status)).collect();
    assert_eq!(statuses, [(1, Some(503)), (2, Some(200))]);
    assert_eq!(record.attempts_log[1].answer, "answer 2");
    assert_eq!((record.stamp_us, record.due_ms), (Some(second.stamp_us), second.due_ms));
    assert!((before..=now_ms()).contains(&record.ended_ms) && record.late().is_some());
    assert_eq!((record.body.as_ref(), record.headers.is_empty()), (None, true), "no body is kept");
    // A settlement that has no effect writes no record.
    assert_eq!(all(s.settle(&[with_attempt(&second, Outcome::Ack, 200)])), [Settled::Stale]);
    assert_eq!(endings(&mut *s, "t", "i"), [Ending::Delivered]);
    assert_eq!(endings(&mut *s, "t", "other"), []);
    assert_eq!(endings(&mut *s, "never", "i"), []);
}

pub(super) fn each_way_to_end_leaves_one_record<F: Fixture>(f: &F) {
    let mut s = f.open();
    let bury = added_and_leased(&mut *s, "t", "buried");
    assert_eq!(all(s.settle(&[with_attempt(&bury, Outcome::DeadLetter, 410)])), [Settled::Done]);
    let held = added_and_leased(&mut *s, "t", "leased");
    add(&mut *s, &[job("t", "delayed", later()), job("u", "ready", Due::In(Duration::ZERO))]);
    let keys = [key("t", "leased"), key("t", "delayed"), key("u", "ready"), key("t", "none")];
    let [done, none] = [Deleted::Done, Deleted::NotFound];
    assert_eq!(all(s.delete(&keys)), [done, done, done, none]);
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Stale);
    for (t, id) in [("t", "leased"), ("t", "delayed"), ("u", "ready")] {
        assert_eq!(endings(&mut *s, t, id), [Ending::Deleted], "{id}");
    }
    let leased = &s.records(&key("t", "leased")).unwrap()[0];
    assert_eq!((leased.attempts, leased.stamp_us, leased.due_ms), (1, Some(held.stamp_us), held.due_ms));
    let dead = s.records(&key("t", "buried")).unwrap();
    let members: Vec<_> = dead.iter().map(|r| (r.ending, r.attempts, r.attempts_log[0].status)).collect();
    assert_eq!(members, [(Ending::Dead, 1, Some(410))]);
    // A dead letter that is redriven may end again, and then gets a second record. When a dead letter is removed, no
    // further record is written.
    assert_eq!(s.redrive(&topic("t"), &DeadLetterSelection::All, 9, RedrivePace::default()), Ok(1));
    assert_eq!(endings(&mut *s, "t", "buried"), [Ending::Dead]);
    let again = lease_one(&mut *s, "t");
    assert_eq!(all(s.settle(&[with_attempt(&again, Outcome::DeadLetter, 410)])), [Settled::Done]);
    assert_eq!(all(s.delete(&[key("t", "buried")])), [done]);
    assert_eq!(endings(&mut *s, "t", "buried"), [Ending::Dead, Ending::Dead]);
    // A lease that expires may be the last attempt.
    let want = LeaseRequest { hold: Duration::from_millis(20), max_attempts: 1, ..want("v", 1) };
    add(&mut *s, &[job("v", "lost", Due::In(Duration::ZERO))]);
    let lost = s.lease(&[want], 1, None).unwrap().jobs.remove(0);
    sleep_past(lost.deadline_ms + 1);
    assert_eq!(s.expire(9).unwrap().jobs, 1);
    let lost = s.records(&key("v", "lost")).unwrap();
    assert_eq!((lost[0].ending, lost[0].attempts_log[0].error.as_str()), (Ending::Dead, "the lease ran out"));
    // Jobs that are purged have the ending `Deleted`.
    add(&mut *s, &[job("w", "a", later()), job("w", "b", later())]);
    assert_eq!(s.purge(&topic("w"), State::Delayed, 9), Ok(2));
    assert_eq!([endings(&mut *s, "w", "a"), endings(&mut *s, "w", "b")], [[Ending::Deleted]; 2]);
}

pub(super) fn a_job_that_is_replaced_leaves_a_record<F: Fixture>(f: &F) {
    let mut s = f.open();
    let stamp = |s: &mut dyn Store, id: &str| s.get(&key("t", id)).unwrap().unwrap().stamp_us;
    let jobs: Vec<NewJob> = (0..8).map(|n| job("t", &format!("{n}"), later())).collect();
    add(&mut *s, &jobs);
    let stamps: Vec<i64> = (0..8).map(|n| stamp(&mut *s, &n.to_string())).collect();
    // Jobs are replaced alone, and in a batch with other jobs that are new, kept or rejected.
    add(&mut *s, &jobs[..1]);
    add(&mut *s, &[jobs[1].clone(), job("t", "new", later()), jobs[2].clone()]);
    let keep = NewJob { on_conflict: OnConflict::Keep, ..jobs[3].clone() };
    let reject = NewJob { on_conflict: OnConflict::Reject, ..jobs[4].clone() };
    let added = add(&mut *s, &[keep, reject, jobs[5].clone()]);
    assert_eq!(outcomes(&added), ["kept", "rejected", "replaced"]);
    for n in [0, 1, 2, 5] {
        let found = s.records(&key("t", &n.to_string())).unwrap();
        let members: Vec<_> = found.iter().map(|r| (r.ending, r.stamp_us, r.attempts)).collect();
        assert_eq!(members, [(Ending::Replaced, Some(stamps[n]), 0)], "{n}");
    }
    for id in ["3", "4", "6", "7", "new"] {
        assert_eq!(endings(&mut *s, "t", id), [], "{id}");
    }
    // A leased job is replaced as well. The outcome of its attempt then has no effect, and writes no record.
    let held = added_and_leased(&mut *s, "u", "i");
    add(&mut *s, &[job("u", "i", Due::In(Duration::ZERO))]);
    assert_eq!(all(s.settle(&[with_attempt(&held, Outcome::Ack, 200)])), [Settled::Stale]);
    let found = s.records(&key("u", "i")).unwrap();
    let members: Vec<_> = found.iter().map(|r| (r.ending, r.attempts, r.stamp_us)).collect();
    assert_eq!(members, [(Ending::Replaced, 1, Some(held.stamp_us))]);
    let next = lease_one(&mut *s, "u");
    assert_eq!(settle(&mut *s, &next, Outcome::Ack), Settled::Done);
    assert_eq!(endings(&mut *s, "u", "i"), [Ending::Delivered, Ending::Replaced]);
}

pub(super) fn records_are_listed_the_last_first<F: Fixture>(f: &F) {
    let mut s = f.open();
    for n in 0..30 {
        let held = added_and_leased(&mut *s, "t", &n.to_string());
        assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
        sleep_past(now_ms());
    }
    // An id with several records is listed once, at the time of its last record.
    let held = added_and_leased(&mut *s, "t", "7");
    assert_eq!(settle(&mut *s, &held, Outcome::DeadLetter), Settled::Done);
    let expected: Vec<String> =
        std::iter::once(7).chain((0..30).rev().filter(|n| *n != 7)).map(|n| n.to_string()).collect();
    for page in [1, 4, 29, 30, 100] {
        let ids: Vec<String> = listed(&mut *s, "t", page).iter().map(|r| r.key.id.to_string()).collect();
        assert_eq!(ids, expected, "{page} on a page");
    }
    let there = listed(&mut *s, "t", 100);
    assert_eq!(there[0].ending, Ending::Dead);
    // A listing may continue after any record, and before any time.
    let mut after = |ended_ms: i64, id: Option<&JobId>| {
        let cursor = s.records_after(&topic("t"), ended_ms, id).unwrap();
        s.list_records(&topic("t"), cursor.as_deref(), 100).unwrap().records
    };
    for (n, record) in there.iter().enumerate() {
        assert_eq!(after(record.ended_ms, Some(&record.key.id)), there[n + 1..], "after {n}");
        let before = there.iter().position(|r| r.ended_ms < record.ended_ms).unwrap_or(there.len());
        assert_eq!(after(record.ended_ms, None), there[before..], "before {n}");
    }
    assert_eq!((after(i64::MAX >> 12, None), after(0, None)), (there, vec![]));
    assert_eq!(s.records_after(&topic("none"), 1, None).map(drop), Ok(()));
    assert_eq!(listed(&mut *s, "none", 9), []);
    assert_eq!(s.list_records(&topic("t"), Some("no cursor"), 9).unwrap(), store::RecordPage::default());
}

pub(super) fn a_topic_keeps_as_many_records_as_it_says<F: Fixture>(f: &F) {
    let mut s = f.open();
    let most = 3;
    s.keep_records(
        &[(topic("t"), keeping(HOUR, most, true)), (topic("off"), keeping(HOUR, 0, false))],
        RECORDS_MAX,
    )
    .unwrap();
    let headers = model::headers::Headers::parse(r#"{"X-Shop": "7"}"#).unwrap();
    let ends = |s: &mut dyn Store, t: &str, ids: std::ops::Range<u32>| {
        for n in ids {
            let new = NewJob { headers: headers.clone(), ..job(t, &n.to_string(), Due::In(Duration::ZERO)) };
            add(s, &[new]);
            let held = lease_one(s, t);
            assert_eq!(all(s.settle(&[with_attempt(&held, Outcome::Ack, 200)])), [Settled::Done]);
        }
    };
    let many = 40 * F::SHARDS.min(4) as u32;
    ends(&mut *s, "t", 0..many);
    ends(&mut *s, "off", 0..3);
    ends(&mut *s, "default", 0..3);
    let there = listed(&mut *s, "t", 100);
    assert!(there.len() >= most as usize && there.len() <= most as usize * F::SHARDS, "{}", there.len());
    let last = (many - 1).to_string();
    assert_eq!(there[0].key.id.as_str(), last, "the last ones stay");
    let body = job("t", &last, later()).body;
    assert_eq!((there[0].body.as_ref().unwrap().as_str(), &there[0].headers), (body.as_str(), &headers));
    assert_eq!(listed(&mut *s, "off", 9), []);
    // If the body is too large, the record keeps neither the body nor the headers of the job.
    let large = format!("\"{}\"", "x".repeat(model::record::RECORD_BODY_MAX));
    let new = NewJob { headers: headers.clone(), ..new_job("t", "large", &large, Due::In(Duration::ZERO)) };
    add(&mut *s, &[new]);
    let held = lease_one(&mut *s, "t");
    assert_eq!(all(s.settle(&[with_attempt(&held, Outcome::Ack, 200)])), [Settled::Done]);
    let found = s.records(&key("t", "large")).unwrap();
    let members: Vec<_> =
        found.iter().map(|r| (r.body.as_ref(), r.headers.is_empty(), r.attempts_log.len())).collect();
    assert_eq!(members, [(None, true, 1)]);
    let there = listed(&mut *s, "t", 100);
    let plain = listed(&mut *s, "default", 9);
    assert_eq!((plain.len(), plain[0].body.as_ref(), plain[0].headers.is_empty()), (3, None, true));
    assert_eq!(plain[0].attempts_log.len(), 1);
    // If the settings change, the new settings decide which existing records are kept.
    let changed = [("default", keeping(Duration::ZERO, 9, false)), ("off", RecordKeeping::DEFAULT)];
    s.keep_records(&changed.map(|(name, keeping)| (topic(name), keeping)), RECORDS_MAX).unwrap();
    while s.trim_records().unwrap().0 > 0 {}
    assert_eq!((listed(&mut *s, "default", 9), listed(&mut *s, "t", 100).len()), (vec![], there.len()));
    ends(&mut *s, "off", 0..3);
    assert_eq!(listed(&mut *s, "off", 9).len(), 3, "it has the default again");
}

pub(super) fn records_keep_tags_with_a_body_and_without_one<F: Fixture>(f: &F) {
    let mut s = f.open();
    s.keep_records(&[(topic("kept"), keeping(HOUR, 100, true))], RECORDS_MAX).unwrap();
    let tags = Tags::new(["shop:7", "春"]).unwrap();
    let alone = Headers::default().with_tags(tags.clone());
    let headers = Headers::parse(r#"{"x-a": ":tags\":\"z\""}"#).unwrap();
    let path = Destination::from_path("/7").ok();
    let whole = headers.clone().with_destination(path.clone()).with_tags(tags.clone());
    let untagged = headers.with_destination(path);
    let large = format!("\"{}\"", "x".repeat(model::record::RECORD_BODY_MAX));
    let none = Headers::default();
    for (t, body, given, expected) in [
        ("plain", "1", &alone, &alone),
        ("plain", "1", &whole, &alone),
        ("plain", "1", &untagged, &none),
        ("plain", "1", &none, &none),
        ("kept", "1", &alone, &alone),
        ("kept", "1", &whole, &whole),
        ("kept", "1", &untagged, &untagged),
        ("kept", &large, &whole, &alone),
        ("kept", &large, &untagged, &none),
    ] {
        let now = Due::In(Duration::ZERO);
        let new = |due| NewJob { headers: given.clone(), ..new_job(t, "i", body, due) };
        // The jobs end in each way: accepted at once, accepted later, dead, replaced, deleted.
        add(&mut *s, &[new(now)]);
        let held = lease_one(&mut *s, t);
        assert_eq!(all(s.settle(&[with_attempt(&held, Outcome::Ack, 200)])), [Settled::Done]);
        for last in [Outcome::Ack, Outcome::DeadLetter] {
            add(&mut *s, &[new(now)]);
            let held = lease_one(&mut *s, t);
            assert_eq!(all(s.settle(&[with_attempt(&held, Outcome::Retry(now), 503)])), [Settled::Done]);
            let held = lease_one(&mut *s, t);
            assert_eq!(all(s.settle(&[with_attempt(&held, last, 200)])), [Settled::Done]);
        }
        add(&mut *s, &[new(later())]);
        add(&mut *s, &[new(later())]);
        assert_eq!(all(s.delete(&[key(t, "i")])), [Deleted::Done]);
        let found = s.records(&key(t, "i")).unwrap();
        let logs: Vec<usize> = found.iter().map(|record| record.attempts_log.len()).collect();
        assert_eq!(logs, [0, 0, 2, 2, 1]);
        for record in &found {
            assert_eq!(&record.headers, expected, "{t} {} bytes, {:?}", body.len(), record.ending);
        }
        assert_eq!(&listed(&mut *s, t, 9)[0].headers, expected);
        assert_eq!(s.forget(&key(t, "i")), Ok(5));
        assert_eq!(s.letters(&topic(t), &[key(t, "i").id], DeadLetterOperation::Remove), Ok(1));
    }
}

pub(super) fn a_record_goes_when_it_is_too_old<F: Fixture>(f: &F) {
    let mut s = f.open();
    let age = Duration::from_millis(400);
    s.keep_records(&[(topic("t"), keeping(age, 100, false))], RECORDS_MAX).unwrap();
    let held = added_and_leased(&mut *s, "t", "old");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    let ended = s.records(&key("t", "old")).unwrap()[0].ended_ms;
    let held = added_and_leased(&mut *s, "u", "young");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    sleep_past(ended + age.as_millis() as i64 + 1);
    let (mut sum, mut again) = (0, Duration::ZERO);
    for _ in 0..3 {
        let (gone, next) = s.trim_records().unwrap();
        (sum, again) = (sum + gone, next);
    }
    assert_eq!((sum, listed(&mut *s, "t", 9)), (1, vec![]));
    assert_eq!(endings(&mut *s, "u", "young"), [Ending::Delivered]);
    assert!(again <= Duration::from_secs(60) && again >= Duration::from_secs(1), "{again:?}");
}

pub(super) fn all_records_together_have_a_bound_and_the_largest_topic_gives<F: Fixture>(f: &F) {
    let mut s = f.open();
    let bytes_max = 20_000 * F::SHARDS as u64;
    s.keep_records(&[], bytes_max).unwrap();
    let held = added_and_leased(&mut *s, "quiet", "i");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    let many = 400 * F::SHARDS;
    let answer = "a".repeat(200);
    for n in (0..many).step_by(200) {
        let jobs: Vec<NewJob> =
            (n..n + 200).map(|n| job("busy", &n.to_string(), Due::In(Duration::ZERO))).collect();
        add(&mut *s, &jobs);
        let mut left = 200;
        while left > 0 {
            let held = lease(&mut *s, "busy", 200);
            let outcome = |job: &LeasedJob| {
                let mut one = with_attempt(job, Outcome::Ack, 200);
                one.attempt.as_mut().unwrap().answer.clone_from(&answer);
                one
            };
            let settled = all(s.settle(&held.iter().map(outcome).collect::<Vec<_>>()));
            assert!(settled.iter().all(|one| *one == Settled::Done));
            left -= held.len();
        }
    }
    let there = listed(&mut *s, "busy", 1000).len();
    assert!(there * 250 <= bytes_max as usize + 256 * 400 * F::SHARDS, "{there} records");
    assert!(there > 0 && there < many, "{there} of {many}");
    assert_eq!(endings(&mut *s, "quiet", "i"), [Ending::Delivered]);
}

pub(super) fn records_of_an_id_are_erased_when_it_is_asked_for<F: Fixture>(f: &F) {
    let mut s = f.open();
    let rounds = RECORDS_OF_AN_ID + 2;
    for _ in 0..rounds {
        let held = added_and_leased(&mut *s, "t", "i");
        assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    }
    let held = added_and_leased(&mut *s, "t", "other");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    let there = endings(&mut *s, "t", "i").len();
    assert!((RECORDS_OF_AN_ID..=rounds).contains(&there), "{there}");
    assert_eq!(s.forget(&key("t", "i")), Ok(there));
    assert_eq!((s.forget(&key("t", "i")), s.forget(&key("none", "i"))), (Ok(0), Ok(0)));
    assert_eq!((endings(&mut *s, "t", "i"), listed(&mut *s, "t", 9).len()), (vec![], 1));
    assert_eq!(s.purge_records(&topic("t"), 9), Ok(1));
    assert_eq!(listed(&mut *s, "t", 9), []);
    // After all of this, new records are written.
    let held = added_and_leased(&mut *s, "t", "i");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    assert_eq!(endings(&mut *s, "t", "i"), [Ending::Delivered]);
}

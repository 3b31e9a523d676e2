//! The outbox, from which followers and events are added: what every store promises.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::*;
use model::follow::{DoneEvent, PredecessorJob, Then, job_of};
use model::headers::Headers;
use model::record::{Ending, RecordKeeping};
use store::{OutboxCause, OutboxEntry, OutboxState};

fn with_then(id: &str, then: &str) -> NewJob {
    let headers = Headers::parse(r#"{"x-a": "1"}"#).unwrap().with_then(Then::parse(then).unwrap());
    NewJob { headers, ..job("t", id, Due::In(Duration::ZERO)) }
}

/// Makes the job of an entry, as a timer does.
fn make(entry: &OutboxEntry) -> Option<NewJob> {
    match &entry.what {
        OutboxCause::Then { place, text } => {
            let source = PredecessorJob { key: &entry.key, stamp_us: entry.stamp_us };
            job_of(text, source, *place, entry.ago, |_| None)
        }
        OutboxCause::Done(record) => DoneEvent::new(record, false)?.job(),
    }
}

/// Sends until the outbox is empty. Returns the topic of each job that was added.
fn send_topics(store: &mut dyn Store) -> Vec<TopicName> {
    let mut added = Vec::new();
    eventually(Duration::from_secs(10), "an empty outbox", || {
        added.extend(store.send_followers(&make).unwrap().added);
        (store.outbox().unwrap().entries == 0).then(|| added.clone())
    })
}

/// Sends until the outbox is empty. Returns how many jobs were added.
fn send_all(store: &mut dyn Store) -> usize {
    send_topics(store).len()
}

fn endings(store: &mut dyn Store, key: &JobKey) -> Vec<Ending> {
    store.records(key).unwrap().iter().map(|record| record.ending).collect()
}

pub(super) fn what_follows_is_added_once_and_when_its_job_is_accepted<F: Fixture>(f: &F) {
    let mut s = f.open();
    assert!(!s.has_followers().unwrap());
    let then = r#"[{"topic": "u", "id": "own", "body": {"n": 1}, "delay": "1h", "tags": ["x"]},
                   {"topic": "v", "body": 2, "then": {"topic": "w", "body": 3}}]"#;
    add(&mut *s, &[with_then("a", then)]);
    let view = s.get(&key("t", "a")).unwrap().unwrap();
    let keys = view.headers.then().keys(PredecessorJob { key: &view.key, stamp_us: view.stamp_us });
    let held = lease_one(&mut *s, "t");
    assert_eq!(settle(&mut *s, &held, Outcome::Retry(Due::In(Duration::ZERO))), Settled::Done);
    s.promote(9).unwrap();
    assert!(!s.has_followers().unwrap() && s.outbox() == Ok(OutboxState::default()));
    let held = lease_one(&mut *s, "t");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    s.promote(9).unwrap();
    assert!(s.has_followers().unwrap());
    assert_eq!(s.outbox().unwrap().entries, 2);
    assert_eq!(send_all(&mut *s), 2);
    assert_eq!(send_all(&mut *s), 0);
    let own = s.get(&keys[0]).unwrap().unwrap();
    assert_eq!(
        (own.key.to_string(), own.body.as_str(), own.state),
        ("u:own".into(), r#"{"n": 1}"#, State::Delayed)
    );
    let wait = own.due_ms - now_ms();
    assert!((3_590_000..=3_600_001).contains(&wait), "{wait}");
    assert_eq!((own.headers.tags().to_text(), own.headers.after()), ("x".into(), Some(&key("t", "a"))));
    assert!(own.headers.by_name().is_empty(), "the headers are those of the job before");
    // The second follower has its own follower. When the second follower has ended, it is not added again.
    let held = lease_one(&mut *s, "v");
    assert_eq!(held.key, keys[1]);
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    assert_eq!(send_all(&mut *s), 1);
    assert_eq!(lease_one(&mut *s, "w").body.as_str(), "3");
    assert!(s.get(&keys[1]).unwrap().is_none());
    assert_eq!(endings(&mut *s, &keys[1]), [Ending::Delivered]);
    // If the same job is added again, its follower is a new job. If a job with the id of a follower exists, the
    // follower does not replace this job.
    add(&mut *s, &[with_then("a", then)]);
    let held = lease_one(&mut *s, "t");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    assert_eq!(send_topics(&mut *s), [topic("v")]);
    assert_ne!(lease_one(&mut *s, "v").key, keys[1]);
}

pub(super) fn a_job_that_ends_otherwise_is_followed_by_nothing<F: Fixture>(f: &F) {
    let mut s = f.open();
    let then = r#"{"topic": "u", "body": 1}"#;
    add(&mut *s, &[with_then("dead", then)]);
    let held = lease_one(&mut *s, "t");
    assert_eq!(settle(&mut *s, &held, Outcome::DeadLetter), Settled::Done);
    add(&mut *s, &[with_then("deleted", then), with_then("replaced", then)]);
    assert_eq!(s.delete(&[key("t", "deleted")]), [Ok(Deleted::Done)]);
    add(&mut *s, &[job("t", "replaced", later())]);
    add(&mut *s, &[with_then("purged", then)]);
    assert_eq!(s.purge(&topic("t"), State::Ready, 9), Ok(1));
    assert_eq!(s.outbox().unwrap().entries, 0);
    // A dead letter that is redriven and accepted is followed.
    assert_eq!(s.redrive(&topic("t"), &DeadLetterSelection::All, 9, RedrivePace::default()), Ok(1));
    let held = lease_one(&mut *s, "t");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    assert_eq!(send_all(&mut *s), 1);
}

pub(super) fn each_end_makes_an_event_where_it_is_asked_for<F: Fixture>(f: &F) {
    let mut s = f.open();
    let with_event = RecordKeeping { with_event: true, ..RecordKeeping::DEFAULT };
    let without_records = RecordKeeping { jobs: 0, ..with_event };
    let with_body = RecordKeeping { with_body: true, ..with_event };
    let all = [("t", with_event), ("n", without_records), ("b", with_body)];
    let all: Vec<_> = all.into_iter().map(|(name, keeping)| (topic(name), keeping)).collect();
    s.keep_records(&all, model::record::RECORDS_MAX).unwrap();
    for name in ["t", "n", "b", "other"] {
        for (id, outcome) in [("a", Outcome::Ack), ("d", Outcome::DeadLetter)] {
            add(&mut *s, &[NewJob { key: key(name, id), ..job("t", id, Due::In(Duration::ZERO)) }]);
            let held = lease_one(&mut *s, name);
            assert_eq!(settle(&mut *s, &held, outcome), Settled::Done);
        }
        add(&mut *s, &[NewJob { key: key(name, "x"), ..job("t", "x", later()) }]);
        assert_eq!(s.delete(&[key(name, "x")]), [Ok(Deleted::Done)]);
    }
    // The lease of this job's last attempt expires.
    add(&mut *s, &[NewJob { max_attempts: Some(1), ..job("t", "late", Due::In(Duration::ZERO)) }]);
    let wanted = LeaseRequest {
        topic: topic("t"),
        max: 1,
        hold: Duration::from_millis(1),
        max_attempts: 1,
        max_leased: None,
        is_own_ttr: false,
    };
    assert_eq!(s.lease(&[wanted], 1, None).unwrap().jobs.len(), 1);
    eventually(Duration::from_secs(5), "the end of the lease", || {
        (s.expire(9).unwrap().jobs == 1).then_some(())
    });
    let seen = Mutex::new(BTreeMap::new());
    let note = |entry: &OutboxEntry| {
        let OutboxCause::Done(record) = &entry.what else { panic!("{entry:?}") };
        assert_eq!((record.key.clone(), record.stamp_us), (entry.key.clone(), Some(entry.stamp_us)));
        seen.lock().unwrap().insert(entry.key.to_string(), (record.ending, record.body.is_some()));
        make(entry)
    };
    eventually(Duration::from_secs(10), "an empty outbox", || {
        s.send_followers(&note).unwrap();
        (s.outbox().unwrap().entries == 0).then_some(())
    });
    let seen = seen.into_inner().unwrap();
    let expected = ["t:a", "t:d", "t:late", "n:a", "n:d", "b:a", "b:d"].map(|name| {
        let ending = if name.ends_with('a') { Ending::Delivered } else { Ending::Dead };
        (name.to_owned(), (ending, name.starts_with('b')))
    });
    assert_eq!(seen, BTreeMap::from(expected));
    let listed = s.list(&topic("t.on_done"), State::Ready, None, 9).unwrap().jobs;
    let kinds: BTreeSet<String> = listed.iter().map(|view| view.body.as_str()[..20].to_owned()).collect();
    assert_eq!(listed.len(), 3);
    assert_eq!(kinds.len(), 2, "{kinds:?}");
    assert_eq!(endings(&mut *s, &key("n", "a")), []);
    // When `on_done` is no longer set, no more events are written.
    s.keep_records(&[(topic("t"), RecordKeeping::DEFAULT)], model::record::RECORDS_MAX).unwrap();
    add(&mut *s, &[job("t", "a", Due::In(Duration::ZERO))]);
    let held = lease_one(&mut *s, "t");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    assert_eq!(s.outbox().unwrap().entries, 0);
}

pub(super) fn several_senders_add_each_follower_once<F: Fixture>(f: &F) {
    let mut s = f.open();
    let then = r#"[{"topic": "u", "body": 1}, {"topic": "u", "body": 2}, {"topic": "v", "body": 3}]"#;
    let jobs: Vec<NewJob> = (0..100).map(|n| with_then(&n.to_string(), then)).collect();
    add(&mut *s, &jobs);
    let wanted = LeaseRequest {
        topic: topic("t"),
        max: 256,
        hold: Duration::from_secs(60),
        max_attempts: 9,
        max_leased: None,
        is_own_ttr: false,
    };
    let mut left = 100;
    while left > 0 {
        let held = s.lease(std::slice::from_ref(&wanted), 256, None).unwrap().jobs;
        let all: Vec<Settlement> = held.iter().map(|job| settlement(job, Outcome::Ack)).collect();
        assert!(s.settle(&all).iter().all(|one| *one == Ok(Settled::Done)));
        left -= held.len();
    }
    assert_eq!(s.outbox().unwrap().entries, 300);
    let sum: usize = std::thread::scope(|scope| {
        let handles: Vec<Box<dyn Store>> = (0..3).map(|_| f.open()).collect();
        let send = |mut handle: Box<dyn Store>| scope.spawn(move || send_all(&mut *handle));
        let senders: Vec<_> = handles.into_iter().map(send).collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).sum()
    });
    assert_eq!(sum, 300);
    assert_eq!((counts(&mut *s, "u")[1], counts(&mut *s, "v")[1]), (200, 100));
}

pub(super) fn what_follows_stays_with_a_job_and_leaves_its_links<F: Fixture>(f: &F) {
    let mut s = f.open();
    let then = r#"{"topic": "u", "id": "7", "body": "secret"}"#;
    add(&mut *s, &[NewJob { due: later(), ..with_then("a", then) }]);
    let full = s.get(&key("t", "a")).unwrap().unwrap().headers;
    let change = Change { headers: Some(Headers::default()), ..Change::default() };
    assert_eq!(s.change(&key("t", "a"), &change), Ok(Changed::Done));
    let change = Change { tags: Some(model::tags::Tags::new(["x"]).unwrap()), ..Change::default() };
    assert_eq!(s.change(&key("t", "a"), &change), Ok(Changed::Done));
    let headers = s.get(&key("t", "a")).unwrap().unwrap().headers;
    assert_eq!((headers.then(), headers.tags().to_text()), (full.then(), "x".into()));
    assert_eq!(s.run(&key("t", "a")), Ok(Changed::Done));
    let held = lease_one(&mut *s, "t");
    assert_eq!(held.headers, headers);
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    assert_eq!(send_all(&mut *s), 1);
    let record = s.records(&key("t", "a")).unwrap().remove(0);
    assert_eq!(record.headers, headers.only_tags_and_links());
    let held = lease_one(&mut *s, "u");
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    let record = s.records(&key("u", "7")).unwrap().remove(0);
    assert_eq!(record.headers.after(), Some(&key("t", "a")));
}

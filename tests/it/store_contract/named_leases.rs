//! Leases to which a client has given its name: what every store promises.

use std::time::Duration;

use super::*;

fn lease_named(s: &mut dyn Store, id: &str) -> Option<LeasedJob> {
    s.lease_job(&key("t", id), HOLD, 3, Some(&owner("me"))).unwrap()
}

pub fn a_named_job_is_leased_although_others_come_first<F: Fixture>(f: &F) {
    let mut s = f.open();
    let headers = model::headers::Headers::parse("{\"x-a\": \"1\"}").unwrap();
    let limited = NewJob { max_attempts: Some(7), headers, ..job("t", "c", NOW) };
    add(&mut *s, &[job("t", "a", NOW), job("t", "b", LONG), limited, job("t", "held", Due::At(HELD_MS))]);
    s.pause(&topic("t"), true).unwrap();
    let begun = now_ms();
    let c = lease_named(&mut *s, "c").unwrap();
    assert_eq!((c.key.id.as_str(), c.attempt, c.max_attempts), ("c", 1, Some(7)));
    assert_eq!((c.body.as_str(), c.headers.by_name()["x-a"].as_str()), ("{\"id\": \"1\"}", "1"));
    assert!(c.deadline_ms >= begun + HOLD.as_millis() as i64 - 1000);
    let b = lease_named(&mut *s, "b").unwrap();
    assert!(b.due_ms <= now_ms() + 1000, "it is due from now on");
    for nothing in ["b", "c", "none", "held"] {
        assert_eq!(lease_named(&mut *s, nothing), None, "{nothing}");
    }
    assert_eq!(counts(&mut *s, "t"), [1, 1, 2, 0]);
    assert_eq!(settle(&mut *s, &c, Outcome::Ack), Settled::Done);
    assert_eq!(settle(&mut *s, &c, Outcome::Ack), Settled::Stale);
    assert_eq!(settle(&mut *s, &b, Outcome::HandBack), Settled::Done);
    assert_eq!(counts(&mut *s, "t"), [1, 2, 0, 0]);
    let again = lease_named(&mut *s, "b").unwrap();
    assert_eq!(again.attempt, 1, "the attempt that was handed back does not count");
    assert_ne!(again.token, b.token);
}

pub fn a_named_lease_ends_with_its_owner_or_at_its_deadline<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "a", LONG), job("t", "b", NOW)]);
    lease_named(&mut *s, "a").unwrap();
    assert_eq!(s.hand_back(&owner("me")).unwrap(), 1);
    assert_eq!(counts(&mut *s, "t"), [0, 2, 0, 0]);
    let short = s.lease_job(&key("t", "b"), Duration::from_millis(100), 3, None).unwrap().unwrap();
    sleep_past(short.deadline_ms + 1);
    assert_eq!(s.expire(10).unwrap().jobs, 1);
    assert_eq!(settle(&mut *s, &short, Outcome::Ack), Settled::Stale);
    let view = s.get(&key("t", "b")).unwrap().unwrap();
    assert_eq!((view.state, view.attempts), (State::Ready, 1));
}

pub fn a_lease_shows_the_client_that_has_it<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &["a", "b", "c"].map(|id| job("t", id, NOW)));
    let free = s.lease(&[want("t", 3)], 3, None).unwrap().jobs;
    let of = |id: &str| free.iter().find(|job| job.key.id.as_str() == id).unwrap();
    let client = |name: &str| Reserver { name: name.to_owned(), address: "::1".to_owned(), since_ms: 7 };
    let shown = |s: &mut dyn Store, id: &str| s.get(&key("t", id)).unwrap().unwrap().reserver;
    assert_eq!(shown(&mut *s, "a"), None);
    for (id, name) in [("a", "w 1 中"), ("b", "w2")] {
        assert_eq!(settle(&mut *s, of(id), Outcome::Name(client(name))), Settled::Done);
    }
    let listed = s.list(&topic("t"), State::Leased, None, 10).unwrap().jobs;
    let mut names: Vec<_> = listed.into_iter().map(|view| view.reserver.map(|one| one.name)).collect();
    names.sort();
    assert_eq!(names, [None, Some("w 1 中".to_owned()), Some("w2".to_owned())]);
    // The client's name is shown as long as the lease holds, also after the lease is extended or the job is replaced.
    assert_eq!(settle(&mut *s, of("a"), Outcome::Extend(HOLD)), Settled::Done);
    assert_eq!(shown(&mut *s, "a"), Some(client("w 1 中")));
    add(&mut *s, &[job("t", "b", NOW)]);
    assert_eq!(settle(&mut *s, of("b"), Outcome::Name(client("w3"))), Settled::Stale);
    assert_eq!((shown(&mut *s, "b"), counts(&mut *s, "t")), (Some(client("w2")), [0, 0, 3, 0]));
    for id in ["a", "b", "c"] {
        settle(&mut *s, of(id), Outcome::HandBack);
        assert_eq!(shown(&mut *s, id), None, "{id}");
        assert_eq!(settle(&mut *s, of(id), Outcome::Name(client("late"))), Settled::Stale);
    }
    // A lease with an owner gets no name, and still belongs to its owner.
    let owned = lease(&mut *s, "t", 3);
    assert!(owned.iter().all(|job| settle(&mut *s, job, Outcome::Name(client("x"))) == Settled::Done));
    assert_eq!(["a", "b", "c"].map(|id| shown(&mut *s, id)), [const { None }; 3]);
    assert_eq!(s.hand_back(&owner("me")).unwrap(), 3);
    // An ack and an expiry also remove the name.
    let short = LeaseRequest { hold: Duration::from_millis(100), ..want("t", 1) };
    let first = s.lease(&[want("t", 1)], 1, None).unwrap().jobs.remove(0);
    let second = s.lease(&[short], 1, None).unwrap().jobs.remove(0);
    for job in [&first, &second] {
        settle(&mut *s, job, Outcome::Name(client("w")));
    }
    assert_eq!(settle(&mut *s, &first, Outcome::Ack), Settled::Done);
    sleep_past(second.deadline_ms + 1);
    assert_eq!(s.expire(10).unwrap().jobs, 1);
    assert_eq!((shown(&mut *s, second.key.id.as_str()), counts(&mut *s, "t")), (None, [0, 2, 0, 0]));
}

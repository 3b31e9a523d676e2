//! Leases of jobs that the caller names.

use std::time::Duration;

use super::*;

fn lease_named(s: &mut dyn Store, id: &str) -> Option<Leased> {
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

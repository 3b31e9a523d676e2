//! The time to run and the expiry of jobs, and ids that are kept: what every store promises.

use std::time::Duration;

use model::headers::Headers;
use model::job::{NewJob, OnConflict, State};
use model::letters::RedrivePace;
use model::tags::Tags;
use store::{Change, Changed, DeadLetterSelection, Outcome, Settled};

use super::{Fixture, LONG, NOW, add, counts, job, key, lease, lease_one, outcomes, settle, topic};

pub(super) fn the_time_to_run_changes_and_the_expiry_stays<F: Fixture>(f: &F) {
    let mut s = f.open();
    let (one, two) = (Some(Duration::from_millis(1500)), Some(Duration::from_secs(7200)));
    let to_ttr = |ttr| Change { ttr: Some(ttr), ..Change::default() };
    let own = Headers::parse(r#"{"x-a": "1"}"#).unwrap().with_tags(Tags::new(["a"]).unwrap());
    let own = own.with_expires_ms(Some(9_000_000_000_000));
    add(&mut *s, &[NewJob { headers: own.clone(), ..job("t", "full", LONG) }, job("t", "bare", LONG)]);
    let none = Headers::default();
    for (change, ttr) in [
        (to_ttr(one), one),
        (to_ttr(two), two),
        (Change { max_attempts: Some(Some(4)), ..Change::default() }, two),
        (to_ttr(None), None),
        (to_ttr(None), None),
        (Change { due: Some(NOW), ..to_ttr(one) }, one),
    ] {
        for (id, headers) in [("full", &own), ("bare", &none)] {
            assert_eq!(s.change(&key("t", id), &change), Ok(Changed::Done));
            let shown = s.get(&key("t", id)).unwrap().unwrap().headers;
            assert_eq!(shown, headers.clone().with_ttr(ttr), "{id}: {change:?}");
        }
    }
    // The leased job has its time to run and its expiry. A retried job, a dead letter and a redriven job have them,
    // too.
    for outcome in [Outcome::Retry(NOW), Outcome::DeadLetter] {
        let leased = lease(&mut *s, "t", 2);
        for job in &leased {
            let headers = if job.key.id.as_str() == "full" { &own } else { &none };
            assert_eq!(job.headers, headers.clone().with_ttr(one), "{}", job.key);
            assert_eq!(s.change(&job.key, &to_ttr(two)), Ok(Changed::Conflict));
            assert_eq!(settle(&mut *s, job, outcome.clone()), Settled::Done);
        }
        assert_eq!(leased.len(), 2);
    }
    let ids = ["full", "bare"].map(|id| key("t", id).id).to_vec();
    assert_eq!(s.redrive(&topic("t"), &DeadLetterSelection::Ids(ids), 9, RedrivePace::default()), Ok(2));
    let redriven = lease(&mut *s, "t", 2);
    assert_eq!(redriven.iter().filter(|job| job.headers.expires_ms().is_some()).count(), 1);
}

pub(super) fn a_kept_id_is_unique_also_while_its_job_is_leased<F: Fixture>(f: &F) {
    let mut s = f.open();
    let kept = |body: &str| NewJob {
        on_conflict: OnConflict::Keep,
        body: model::job::Body::parse(body).unwrap(),
        ..job("t", "i", NOW)
    };
    assert_eq!(outcomes(&add(&mut *s, &[kept("1"), kept("2")])), ["new", "kept"]);
    let running = lease_one(&mut *s, "t");
    assert_eq!(outcomes(&add(&mut *s, &[kept("3")])), ["kept"]);
    assert_eq!(counts(&mut *s, "t"), [0, 0, 1, 0]);
    assert!(lease(&mut *s, "t", 9).is_empty());
    // After a retry, the job is the same, so its id is still taken. After the end of the job, the id is free.
    assert_eq!(settle(&mut *s, &running, Outcome::Retry(NOW)), Settled::Done);
    assert_eq!(outcomes(&add(&mut *s, &[kept("4")])), ["kept"]);
    let again = lease_one(&mut *s, "t");
    assert_eq!((again.attempt, again.body.as_str()), (2, "1"));
    assert_eq!(settle(&mut *s, &again, Outcome::Ack), Settled::Done, "what was kept has not ended the lease");
    assert_eq!(counts(&mut *s, "t"), [0; 4]);
    assert_eq!(outcomes(&add(&mut *s, &[kept("5")])), ["new"]);
    assert_eq!(s.get(&key("t", "i")).unwrap().unwrap().state, State::Ready);
}

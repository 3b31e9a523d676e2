//! Tags of jobs: what every store promises.

use model::destination::Destination;
use model::headers::Headers;
use model::job::{NewJob, OnConflict, Priority, State};
use model::letters::RedrivePace;
use model::tags::Tags;
use store::{Change, Changed, DeadLetterSelection, Outcome, Settled, Store};

use super::{Fixture, LONG, NOW, add, job, key, lease_one, settle, topic};

fn tags(texts: &[&str]) -> Tags {
    Tags::new(texts).unwrap()
}

fn headers_of(s: &mut dyn Store, id: &str) -> Headers {
    s.get(&key("t", id)).unwrap().unwrap().headers
}

pub(super) fn tags_change_without_headers_and_path_and_back<F: Fixture>(f: &F) {
    let mut s = f.open();
    let headers = |json: &str| Headers::parse(json).unwrap();
    let (a, none) = (headers(r##"{"#a": "1", "x-b": ":tags\":\"z\""}"##), Headers::default());
    let path = Destination::from_path("/1").ok();
    let to_headers = |to: &Headers| Change { headers: Some(to.clone()), ..Change::default() };
    let to_path = |to: &Option<Destination>| Change { destination: Some(to.clone()), ..Change::default() };
    let to_tags = |to: &[&str]| Change { tags: Some(tags(to)), ..Change::default() };
    let (ab, c) = (tags(&["a:1", "b-春"]), tags(&["c'%"]));
    let ttr = Some(std::time::Duration::from_millis(1500));
    let with_ttr = NewJob { headers: none.clone().with_ttr(ttr), ..job("t", "with-ttr", LONG) };
    add(&mut *s, &[job("t", "i", LONG), with_ttr]);
    for (change, expected) in [
        (to_tags(&["b-春", "a:1"]), none.clone().with_tags(ab.clone())),
        (to_headers(&a), a.clone().with_tags(ab.clone())),
        (to_path(&path), a.clone().with_destination(path.clone()).with_tags(ab.clone())),
        (to_tags(&["c'%"]), a.clone().with_destination(path.clone()).with_tags(c.clone())),
        (to_headers(&none), none.clone().with_destination(path.clone()).with_tags(c.clone())),
        (to_path(&None), none.clone().with_tags(c.clone())),
        (to_path(&path), none.clone().with_destination(path.clone()).with_tags(c.clone())),
        (to_tags(&[]), none.clone().with_destination(path.clone())),
        (to_tags(&[]), none.clone().with_destination(path.clone())),
        (to_headers(&a), a.clone().with_destination(path.clone())),
        (to_path(&None), a.clone()),
        (to_tags(&["c'%"]), a.clone().with_tags(c.clone())),
        (
            Change { destination: Some(path.clone()), ..to_headers(&none) },
            none.clone().with_destination(path.clone()).with_tags(c.clone()),
        ),
        (Change { tags: Some(ab.clone()), ..to_path(&None) }, none.clone().with_tags(ab.clone())),
        (Change { priority: Some(Priority::High.into()), ..Change::default() }, none.clone().with_tags(ab)),
        (Change { due: Some(NOW), ..to_tags(&[]) }, none),
    ] {
        assert_eq!(s.change(&key("t", "i"), &change), Ok(Changed::Done));
        assert_eq!(headers_of(&mut *s, "i"), expected, "{change:?}");
        assert_eq!(s.change(&key("t", "with-ttr"), &change), Ok(Changed::Done));
        assert_eq!(headers_of(&mut *s, "with-ttr"), expected.with_ttr(ttr), "{change:?}");
    }
}

pub(super) fn tags_stay_with_a_job_in_all_states<F: Fixture>(f: &F) {
    let mut s = f.open();
    let with = |id: &str, due, texts: &[&str]| NewJob {
        headers: Headers::default().with_tags(tags(texts)),
        ..job("t", id, due)
    };
    add(&mut *s, &[with("a", LONG, &["x"]), job("t", "b", LONG), with("c", LONG, &["x", "y"])]);
    let listed = s.list(&topic("t"), State::Delayed, None, 9).unwrap().jobs;
    let mut found: Vec<_> =
        listed.iter().map(|view| (view.key.id.as_str(), view.headers.tags().to_text())).collect();
    found.sort();
    assert_eq!(found, [("a", "x".to_owned()), ("b", String::new()), ("c", "x y".to_owned())]);
    // A replacement has its own tags or none. A job that is kept keeps its tags.
    add(&mut *s, &[with("a", LONG, &["z"]), with("b", LONG, &["b"]), job("t", "c", LONG)]);
    add(&mut *s, &[NewJob { on_conflict: OnConflict::Keep, ..with("a", LONG, &["kept"]) }]);
    let texts: Vec<String> =
        ["a", "b", "c"].iter().map(|id| headers_of(&mut *s, id).tags().to_text()).collect();
    assert_eq!(texts, ["z", "b", ""]);
    // A job keeps its tags in each attempt, as a dead letter, and after a redrive.
    add(&mut *s, &[with("d", NOW, &["x", "y"])]);
    let expected = Headers::default().with_tags(tags(&["x", "y"]));
    for outcome in [Outcome::Retry(NOW), Outcome::HandBack, Outcome::Postpone(NOW), Outcome::DeadLetter] {
        let held = lease_one(&mut *s, "t");
        assert_eq!((&held.headers, headers_of(&mut *s, "d")), (&expected, expected.clone()));
        assert_eq!(settle(&mut *s, &held, outcome), Settled::Done);
    }
    let dead = s.list(&topic("t"), State::Dead, None, 9).unwrap().jobs;
    assert_eq!((dead.len(), &dead[0].headers), (1, &expected));
    assert_eq!(s.redrive(&topic("t"), &DeadLetterSelection::All, 9, RedrivePace::default()), Ok(1));
    assert_eq!(lease_one(&mut *s, "t").headers, expected);
}

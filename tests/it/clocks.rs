//! Clocks that differ from the host's clock, and clocks that are set back while something waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, eventually, stats, topic};
use cli::HandlerAnswer;
use model::job::TopicName;
use model::settings;
use serde_json::Value;
use store::{OwnerTag, PermitRequest, Store};

const HOUR_MS: i64 = 3_600_000;

fn node(server: &RedisServer) -> String {
    format!(
        "[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n[[store.node]]\nname = \"a\"\nurl = \"{}\"\n",
        server.url()
    )
}

#[test]
fn a_job_is_too_old_by_its_nodes_clock_and_not_by_the_hosts() {
    let server = RedisServer::start_with_clock(-90_000);
    let sink = Sink::start();
    let skip = topic("t", &sink, "catch_up = \"skip older than 1m\"");
    let daemon = Daemon::start(&(node(&server) + &skip));
    let mut client = daemon.client();
    for n in 0..20 {
        assert_eq!(client.ask(&add("t", &n.to_string(), 1000)).unwrap()["code"], 1);
    }
    eventually(10 * SECOND, "an end of all jobs", || {
        let stats = stats(&mut client, "t");
        (stats.values().sum::<u64>() == stats.get("dead").copied().unwrap_or(0)).then_some(())
    });
    let dead = stats(&mut client, "t").get("dead").copied().unwrap_or(0);
    assert_eq!((sink.deliveries().len(), dead), (20, 0), "all of them were due a moment ago");
}

/// Returns a receiver that fails until the flag is set.
fn failing() -> (Sink, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let is_working = Arc::clone(&works);
    let answer =
        move |_: &_| HandlerAnswer::new(if is_working.load(Ordering::Relaxed) { 200 } else { 503 }, "");
    (Sink::answering(answer), works)
}

const BREAKER: &str = "breaker_failures = 2\nbreaker_pause = \"2s\"\nretry = [\"10ms\"]\nmax_attempts = 1000";

/// Adds a job for the failing receiver, and waits until the circuit is open.
fn open_circuit(daemon: &Daemon) {
    assert_eq!(daemon.client().ask(&add("t", "1", 0)).unwrap()["code"], 1);
    eventually(10 * SECOND, "an open circuit", || daemon.log().contains("its receiver fails").then_some(()));
}

#[test]
fn a_circuit_does_not_wait_an_hour_if_its_node_clock_goes_back() {
    let mut server = RedisServer::start();
    let (sink, works) = failing();
    let daemon = Daemon::start(&(node(&server) + &topic("t", &sink, BREAKER)));
    daemon.wait_all_up(SLOTS);
    open_circuit(&daemon);
    server.set_clock(-HOUR_MS);
    works.store(true, Ordering::Relaxed);
    // This job is ready by the present clock. Jobs that wait for a time of the earlier clock continue to wait.
    eventually(10 * SECOND, "an add", || {
        (daemon.client().ask(&add("t", "2", 0)).ok()?["code"] == 1).then_some(())
    });
    eventually(20 * SECOND, &format!("a call; log:\n{}", daemon.log()), || {
        sink.deliveries().contains_key("2").then_some(())
    });
}

#[test]
fn a_circuit_does_not_wait_an_hour_if_the_host_clock_goes_back() {
    let (sink, works) = failing();
    let store = "[store]\nbackend = \"embedded\"\n";
    let mut daemon = Daemon::start(&(store.to_owned() + &topic("t", &sink, BREAKER)));
    daemon.wait_all_up(SLOTS);
    open_circuit(&daemon);
    daemon.stop();
    works.store(true, Ordering::Relaxed);
    let again = Daemon::again_with_clock(&daemon, -HOUR_MS);
    again.wait_ready();
    assert_eq!(again.client().ask(&add("t", "2", 0)).unwrap()["code"], 1);
    eventually(20 * SECOND, &format!("a call; log:\n{}", again.log()), || {
        sink.deliveries().contains_key("2").then_some(())
    });
}

#[test]
fn records_are_listed_once_after_the_clock_went_back() {
    let sink = Sink::start();
    let topics = ["a", "b", "c"].map(|name| topic(name, &sink, "")).concat();
    let mut daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{topics}"));
    let mut all = Vec::new();
    let mut deliver = |daemon: &Daemon, round: usize| {
        for n in 0..5 {
            for name in ["a", "b", "c"] {
                let id = format!("{name}-{round}-{n}");
                assert_eq!(daemon.client().ask(&add(name, &id, 0)).unwrap()["code"], 1);
                all.push((name.to_owned(), id));
            }
        }
        sink.wait_for(all.len(), 20 * SECOND);
    };
    deliver(&daemon, 0);
    daemon.stop();
    // The clock goes back by an hour, and then forward by half an hour.
    for (round, ahead_ms) in [(1, -HOUR_MS), (2, -HOUR_MS / 2)] {
        daemon = Daemon::again_with_clock(&daemon, ahead_ms);
        daemon.wait_ready();
        deliver(&daemon, round);
        if round == 1 {
            daemon.stop();
        }
    }
    all.sort();
    let mut http = Http::tcp(&daemon);
    for limit in [1, 4, 7, 100] {
        let mut listed = eventually(10 * SECOND, "all records", || {
            let (mut listed, mut cursor) = (Vec::new(), String::new());
            // The number of pages is limited, so that the test ends even if the list begins again.
            for _ in 0..=2 * all.len() {
                let page = http.get(&format!("/v1/records?limit={limit}{cursor}")).is(200);
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let records = page["records"].as_array().unwrap();
                listed.extend(records.iter().map(|r| (text(&r["topic"]), text(&r["id"]))));
                match page["next"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            (listed.len() >= all.len()).then_some(listed)
        });
        listed.sort();
        assert_eq!(listed, all, "{limit} on a page");
    }
}

/// Opens a store on one node.
fn store_on(server: &RedisServer) -> Box<dyn Store> {
    let node = settings::NodeSettings::server("a".to_owned(), server.url(), 1);
    let redis = settings::RedisSettings::of_nodes("dq", SECOND, 2, vec![node]);
    store::open(&settings::StoreSettings::Redis(redis), std::path::Path::new("/nowhere")).unwrap()
}

fn permits(store: &mut dyn Store, owner: &str, held: u32) -> u32 {
    let ask = PermitRequest {
        name: model::flow::LimitName::from(&TopicName::new("t").unwrap()),
        held,
        want: 3 - held,
        max_in_flight: Some(3),
        rate: None,
        unused: 0,
    };
    eventually(20 * SECOND, "an answer", || {
        store.permits(&OwnerTag(owner.to_owned()), std::slice::from_ref(&ask)).remove(0).ok()
    })
    .granted
}

#[test]
fn permits_of_a_dead_host_end_soon_if_a_node_clock_goes_back() {
    let mut server = RedisServer::start();
    let mut store = store_on(&server);
    assert_eq!(permits(store.as_mut(), "dead", 0), 3);
    server.set_clock(-HOUR_MS);
    assert_eq!(permits(store.as_mut(), "other", 0), 0, "it may be alive, and hold them");
    // Permits are forgotten half a minute after their holder last reported them.
    server.set_clock(-HOUR_MS + 31_000);
    assert_eq!(permits(store.as_mut(), "other", 0), 3);
}

#[test]
fn permits_of_a_dead_host_end_soon_if_its_clock_goes_back() {
    // (This process's clock cannot be set back. Instead, the moment up to which the permits are held is moved far
    // ahead.)
    let dir = tempfile::tempdir().unwrap();
    let settings = settings::StoreSettings::Embedded { path: dir.path().join("dq.db"), min_free: 0 };
    let mut store = store::open(&settings, dir.path()).unwrap();
    assert_eq!(permits(store.as_mut(), "dead", 0), 3);
    let db = rusqlite::Connection::open(dir.path().join("dq.db")).unwrap();
    db.execute("UPDATE permit SET until_ms = until_ms + 3600000", []).unwrap();
    assert_eq!(permits(store.as_mut(), "other", 0), 0, "it may be alive, and hold them");
    let left_ms: i64 = db.query_row("SELECT max(until_ms) FROM permit", [], |r| r.get(0)).unwrap();
    let left_ms = left_ms - crate::support::now_ms();
    assert!(left_ms <= 30_000, "{left_ms} ms are left");
}

//! Dead letters are selected by filters, redriven at a rate, and kept for a while. On the embedded store and on Redis
//! nodes.

use std::process::Command;
use std::time::SystemTime;

use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, SLOTS, Sink, eventually, now_ms, topic};
use cli::HandlerAnswer;
use serde_json::{Value, json};

/// Returns a sink that refuses with the status in the job's body. A job with the body 200 is accepted.
fn refusing() -> Sink {
    Sink::answering(|call| HandlerAnswer::new(call.body.parse().unwrap_or(500), "no"))
}

const ONCE: &str = "breaker_failures = 0\nmax_attempts = 1";

fn store(nodes: &[RedisServer]) -> String {
    let node = |(n, server): (usize, &RedisServer)| {
        format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", server.url())
    };
    let nodes: String = nodes.iter().enumerate().map(node).collect();
    format!("[store]\nbackend = \"redis\"\n{nodes}")
}

fn die(http: &mut Http, jobs: &[(&str, u16)]) {
    let before = dead(http, "").len();
    for (id, status) in jobs {
        let tag = format!("status:{status}");
        http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id, "body": status, "tags": [tag]})).is(201);
        let url = format!("/v1/topics/t/jobs/{id}");
        eventually(10 * SECOND, "a dead letter", || {
            (http.get(&url).is(200)["state"] == "dead").then_some(())
        });
    }
    assert_eq!(dead(http, "").len(), before + jobs.len());
}

/// Returns the ids of the dead letters that a query shows, over all pages. An id is returned once for each of its dead
/// letters.
fn dead(http: &mut Http, query: &str) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = http.get(&format!("/v1/topics/t/dead?limit=3{query}{cursor}")).is(200);
        ids.extend(page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

#[test]
fn dead_letters_are_picked_by_what_is_known_of_them() {
    let sink = refusing();
    picks(&Daemon::start(&topic("t", &sink, ONCE)), &sink);
}

#[test]
fn dead_letters_are_picked_on_redis_as_well() {
    let sink = refusing();
    let nodes = [RedisServer::start(), RedisServer::start()];
    picks(&Daemon::start(&format!("{}{}", topic("t", &sink, ONCE), store(&nodes))), &sink);
}

fn picks(daemon: &Daemon, sink: &Sink) {
    let mut http = Http::tcp(daemon);
    // An id may have several dead letters, and only some of them match a filter.
    die(
        &mut http,
        &[("order-1", 500), ("order-2", 503), ("x-order-3", 503), ("order-1", 503), ("order-1", 500)],
    );
    let between = now_ms() + 2;
    eventually(SECOND, "a later moment", || (now_ms() > between).then_some(()));
    die(&mut http, &[("order-4", 503), ("y", 404)]);
    let all = ["order-1", "order-2", "x-order-3", "order-1", "order-1", "order-4", "y"];
    for (query, expected) in [
        (String::new(), &all[..]),
        ("&id_prefix=order-".into(), &["order-1", "order-2", "order-1", "order-1", "order-4"]),
        ("&id_contains=order-3".into(), &["x-order-3"]),
        ("&status=503".into(), &["order-2", "x-order-3", "order-1", "order-4"]),
        ("&tag=status:503&id_prefix=x".into(), &["x-order-3"]),
        ("&tag=status:50".into(), &[]),
        ("&reason=status%20404".into(), &["y"]),
        (format!("&died_after={between}"), &["order-4", "y"]),
        (format!("&died_before={between}&status=500"), &["order-1", "order-1"]),
        ("&died_after=1h&id_prefix=y".into(), &["y"]),
        ("&died_before=1h".into(), &[]),
        ("&reason=nothing".into(), &[]),
    ] {
        assert_eq!(dead(&mut http, &query), expected, "{query}");
    }
    http.get("/v1/topics/t/dead?status=x").is_problem(422, "bad_field", Some("status"));
    http.get("/v1/topics/t/dead?died_after=yesterday").is_problem(422, "bad_field", Some("died_after"));
    http.get("/v1/topics/t/dead?colour=x").is_problem(422, "unknown_field", Some("colour"));
    http.get("/v1/topics/nobody/dead?status=503").is_problem(404, "unknown_topic", None);
    let redrive = "/v1/topics/t/dead/redrive";
    for (body, code, field) in [
        (json!({"filter": {}}), "bad_field", "filter"),
        (json!({"filter": null}), "bad_field", "filter"),
        (json!({"filter": "x"}), "bad_field", "filter"),
        (json!({"filter": {"colour": 1}}), "unknown_field", "colour"),
        (json!({"filter": {"status": "503"}}), "bad_field", "status"),
        (json!({"filter": {"reason": 7}}), "bad_field", "reason"),
        (json!({"filter": {"tag": "a b"}}), "bad_field", "tag"),
        (json!({"filter": {"status": 503}, "ids": ["a"]}), "bad_field", "filter"),
        (json!({"rate": "often"}), "bad_field", "rate"),
        (json!({"rate": 0}), "bad_field", "rate"),
    ] {
        http.ask("POST", redrive, &body).is_problem(422, code, Some(field));
    }
    http.ask("POST", "/v1/topics/t/dead/purge", &json!({"rate": "1/s"})).is_problem(
        422,
        "unknown_field",
        Some("rate"),
    );
    assert_eq!(dead(&mut http, "").len(), 7);

    // A dry run only counts. It changes nothing.
    let some = json!({"filter": {"status": 503, "id_prefix": "order-"}});
    let mut dry = some.clone();
    dry["dry_run"] = json!(true);
    assert_eq!(http.ask("POST", redrive, &dry).is(200), json!({"matched": 3, "redriven": 0}));
    // Of the letters of order-1, only the matching letter is redriven. It is not the latest letter. The redriven job
    // keeps its log of attempts.
    let calls = sink.count();
    let mut later = some.clone();
    later["delay"] = json!("1h");
    assert_eq!(http.ask("POST", redrive, &later).is(200), json!({"matched": 3, "redriven": 3}));
    assert_eq!(dead(&mut http, ""), ["order-1", "x-order-3", "order-1", "y"]);
    let job = http.get("/v1/topics/t/jobs/order-1").is(200);
    assert_eq!([&job["body"], &job["state"], &job["attempts"]], [&json!(503), &json!("delayed"), &json!(0)]);
    assert_eq!((&job["log"][0]["status"], job["log"].as_array().unwrap().len()), (&json!(503), 1));
    assert_eq!(sink.count(), calls);
    // While an id has a live job, its letters cannot be redriven, but they can be removed.
    let purge = "/v1/topics/t/dead/purge";
    let other = json!({"filter": {"status": 500}});
    assert_eq!(http.ask("POST", redrive, &other).is(200), json!({"matched": 2, "redriven": 0}));
    let one = json!({"filter": {"status": 500}, "limit": 1});
    assert_eq!(http.ask("POST", purge, &one).is(200), json!({"matched": 2, "purged": 1}));
    assert_eq!(http.ask("POST", purge, &other).is(200), json!({"matched": 1, "purged": 1}));
    assert_eq!(dead(&mut http, ""), ["x-order-3", "y"]);
    assert_eq!(http.get("/v1/topics/t/jobs/order-1").is(200)["state"], "delayed");
    let text = http.get("/metrics").is(200).as_str().unwrap().to_owned();
    assert!(text.contains("dq_dead_purged_total{topic=\"t\",cause=\"asked\"} 2"), "{text}");

    // Dead letters can also be listed, removed and redriven with the command line.
    let dq = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        command.arg("dead").args(arguments).arg("--run-dir").arg(daemon.dir.path().join("var/run"));
        let out = command.output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let listed = dq(&["list", "t", "--reason", "status 404"]);
    assert!(listed.contains("\ny ") && !listed.contains("x-order"), "{listed}");
    assert!(dq(&["purge", "t", "--id-contains", "order-3", "--yes"]).contains("1 of 1"));
    assert!(dq(&["redrive", "t", "--tag", "status:404", "--rate", "1/h", "--yes"]).contains("1 of 1"));
    // The first redriven job is due at once.
    let again = || sink.deliveries()["y"] == 2;
    eventually(10 * SECOND, "another try", || again().then_some(()));
}

#[test]
fn a_redrive_keeps_its_rate_whichever_process_is_killed() {
    let sink = refusing();
    let daemon = Daemon::start(&topic("t", &sink, ONCE));
    let mut http = Http::tcp(&daemon);
    let jobs: Vec<Value> = (0..60).map(|n| json!({"id": n.to_string(), "body": 500})).collect();
    http.ask("POST", "/v1/topics/t/jobs/batch", &json!({"jobs": jobs})).is(200);
    eventually(20 * SECOND, "sixty dead letters", || (dead(&mut http, "").len() == 60).then_some(()));
    let (calls, begun) = (sink.count(), now_ms());
    let answer = http.ask("POST", "/v1/topics/t/dead/redrive", &json!({"rate": "20/s"})).is(200);
    assert_eq!(answer, json!({"matched": 60, "redriven": 60}));
    for name in ["dq-http-server", "dq-timer-0", "dq-timer-1"] {
        daemon.kill_child(name);
    }
    eventually(20 * SECOND, "sixty calls", || (sink.count() == calls + 60).then_some(()));
    // No job comes before its turn.
    let mut at: Vec<i64> = sink.calls()[calls..].iter().map(|call| call.at_ms - begun).collect();
    at.sort_unstable();
    for (n, at) in at.iter().enumerate() {
        assert!(*at >= n as i64 * 50, "the {n}th after {at} ms");
    }
    let due: Vec<i64> =
        sink.calls()[calls..].iter().map(|call| call.header("dq-due-at").parse().unwrap()).collect();
    let span = due.iter().max().unwrap() - due.iter().min().unwrap();
    assert!((2900..3000).contains(&span), "{span}");
}

#[test]
fn dead_letters_are_removed_after_the_retention_of_their_topic() {
    let sink = refusing();
    let with = |keep: &str| {
        let kept = topic("t", &sink, &format!("{ONCE}\nkeep_dead = \"{keep}\""));
        format!("{kept}{}", topic("u", &sink, ONCE))
    };
    let daemon = Daemon::start(&with("1h"));
    let mut http = Http::tcp(&daemon);
    die(&mut http, &[("a", 500), ("b", 500), ("a", 500)]);
    http.ask("POST", "/v1/topics/u/jobs", &json!({"id": "kept", "body": 500})).is(201);
    eventually(10 * SECOND, "a dead letter", || {
        (http.get("/v1/topics/u/jobs/kept").is(200)["state"] == "dead").then_some(())
    });
    Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &with("1ms"));
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    let mut http = eventually(20 * SECOND, "their end", || {
        let mut http = Http::unix(&daemon);
        let list = http.get("/v1/topics/t/dead").json;
        (list["jobs"] == json!([])).then_some(http)
    });
    assert_eq!(
        http.get("/v1/topics/u/jobs/kept").is(200)["state"],
        "dead",
        "for ever, where nothing is said"
    );
    let text = http.get("/metrics").is(200).as_str().unwrap().to_owned();
    assert!(text.contains("dq_dead_purged_total{topic=\"t\",cause=\"retention\"} 3"), "{text}");
}

#[test]
fn a_missing_node_is_named_and_letters_of_the_others_are_listed() {
    let sink = refusing();
    let mut nodes = [RedisServer::start(), RedisServer::start()];
    let daemon = Daemon::start(&format!("{}{}", topic("t", &sink, ONCE), store(&nodes)));
    let mut http = Http::tcp(&daemon);
    let jobs: Vec<Value> = (0..40).map(|n| json!({"id": n.to_string(), "body": 500})).collect();
    http.ask("POST", "/v1/topics/t/jobs/batch", &json!({"jobs": jobs})).is(200);
    eventually(20 * SECOND, "forty dead letters", || (dead(&mut http, "").len() == 40).then_some(()));
    assert_eq!(http.get("/v1/topics/t/dead").is(200).get("away"), None);
    nodes[1].kill();
    let some = dead(&mut http, "");
    assert!((1..40).contains(&some.len()), "{}", some.len());
    assert_eq!(http.get("/v1/topics/t/dead?status=500").is(200)["away"], json!(["r1"]));
    let filter = json!({"filter": {"status": 500}});
    let answer = http.ask("POST", "/v1/topics/t/dead/purge", &filter).is(200);
    assert_eq!(answer, json!({"matched": some.len(), "purged": some.len(), "away": ["r1"]}));
    nodes[1].start_again();
    let left = eventually(20 * SECOND, "the others", || {
        let page = http.get("/v1/topics/t/dead?limit=100").json;
        page.get("away").is_none().then(|| page["jobs"].as_array().map_or(0, Vec::len))
    });
    assert_eq!(left, 40 - some.len());
}

#[test]
fn old_topics_remove_no_dead_letters_until_they_are_confirmed() {
    let sink = refusing();
    let daemon = Daemon::start("");
    let mut http = Http::unix(&daemon);
    let kept = json!({"name": "t", "callback": sink.url(), "max_attempts": 1, "keep_dead": "1h"});
    http.ask("POST", "/v1/topics", &kept).is(201);
    die(&mut http, &[("a", 500)]);
    let file = daemon.dir.path().join("var/registry.db");
    let aside = daemon.dir.path().join("aside.db");
    std::fs::rename(&file, &aside).unwrap();
    http.wait_for_alert("registry_away");
    // The snapshot is now as if it came from the time before this host was stopped. Since then, `keep_dead` was
    // lengthened.
    let snapshot = daemon.dir.path().join("var/run/registry/topics.json");
    let text = std::fs::read_to_string(&snapshot).unwrap();
    let old = text.replace("\"keep_dead_ms\":3600000", "\"keep_dead_ms\":1");
    assert_ne!(old, text);
    let set_back = || {
        let hour_ago = SystemTime::now() - 3600 * SECOND;
        std::fs::File::options().append(true).open(&snapshot).unwrap().set_modified(hour_ago).unwrap();
    };
    std::fs::write(&snapshot, old).unwrap();
    set_back();
    let upkeep_begins = || {
        for timer in ["dq-timer-0", "dq-timer-1"] {
            daemon.kill_child(timer);
        }
        daemon.wait_all_up(SLOTS);
    };
    upkeep_begins();
    std::thread::sleep(8 * SECOND);
    assert_eq!(dead(&mut http, ""), ["a"]);
    // The registry is back, and so is the longer time.
    std::fs::rename(&aside, &file).unwrap();
    // A snapshot that does not change is confirmed again and again.
    let written = || std::fs::metadata(&snapshot).unwrap().modified().unwrap();
    eventually(20 * SECOND, "the snapshot of the registry", || {
        (std::fs::read_to_string(&snapshot).unwrap() == text).then_some(())
    });
    set_back();
    let first = eventually(20 * SECOND, "a confirmation", || {
        (written().elapsed().is_ok_and(|age| age < 60 * SECOND)).then(written)
    });
    eventually(60 * SECOND, "another confirmation", || (written() > first).then_some(()));
    assert_eq!(dead(&mut http, ""), ["a"]);
    http.ask("PATCH", "/v1/topics/t", &json!({"keep_dead": "1ms"})).is(200);
    upkeep_begins();
    eventually(20 * SECOND, "its end", || dead(&mut http, "").is_empty().then_some(()));
}

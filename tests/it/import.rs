//! `dq import php-dq`: the real command, a real Redis with the data of the PHP daemon, real stores.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::mariadb::MariaDb;
use crate::support::php::{Php, Target, YEAR_2033, all, bucket, bucket_of, import, topics_of_all_buckets};
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, eventually, free_port, new_job, now_ms, stats, topic};
use cli::HandlerAnswer;
use model::job::{Due, JobId, JobKey, NewJob, OnConflict, Priority, State, TopicName};
use mysql::prelude::Queryable;
use serde_json::json;

fn takes_over_all(target: &Target) {
    let php = Php::start();
    let body = r#"{"id":"nest-1","fl":1.0,"big":9007199254740993123,"zh":"\u4e2d 文","n":{"x":[1,{"notify_time":2}]}"#;
    let marks = r#""notify_time":"2033-05-18 11:33:20","dq_set_time":"2026-11-20 23:58:20""#;
    php.waits("orders:a: b:1", &format!("{body},{marks},\"exp_notify_nums\":3}}"), YEAR_2033);
    php.waits("orders:late", &format!("{{{marks}}}"), 1_000_000_000);
    php.waits("orders:text", r#""{\"a\":1}""#, YEAR_2033 + 1);
    php.waits("else:1", &format!("{{\"a\":1,{marks}}}"), YEAR_2033);
    for list in 1..=3 {
        php.is_ready(&format!("orders:ready-{list}"), r#"{"exp_notify_nums":1,"a":[]}"#, list);
    }
    php.run::<()>(&["HSET", "dq_job_info", "orders:stranded", r#"{"a":1}"#]);
    let before = php.all();
    let began = now_ms();
    let output = target.import(&php, &[]);
    assert_eq!(output.code, 0, "{}{}", output.out, output.err);
    output.counts(&[("jobs", 8), ("waiting", 4), ("ready", 3), ("stranded", 1), ("taken", 8)]);
    assert_eq!(output.json()["unregistered"], serde_json::json!({"else": 1}));
    assert_eq!(php.all(), before, "nothing is changed there");

    let jobs = target.jobs("orders");
    assert_eq!(jobs.len(), 7);
    let is = |id: &str, body: &str, state, due_ms: Option<i64>, priority: Priority, attempts| {
        let job = &jobs[id];
        assert_eq!((job.body.as_str(), job.state), (body, state), "{id}");
        assert_eq!((job.priority, job.attempts, job.max_attempts), (priority.into(), attempts, None), "{id}");
        match due_ms {
            Some(due_ms) => assert_eq!(job.due_ms, due_ms, "{id}"),
            None => assert!((began..=now_ms()).contains(&job.due_ms), "{id}"),
        }
    };
    let (delayed, ready, normal) = (State::Delayed, State::Ready, Priority::Normal);
    is("a: b:1", &format!("{body}}}"), delayed, Some(YEAR_2033 * 1000), normal, 3);
    is("late", "{}", delayed, Some(1_000_000_000_000), normal, 0);
    is("text", r#""{\"a\":1}""#, delayed, Some(YEAR_2033 * 1000 + 1000), normal, 0);
    is("stranded", r#"{"a":1}"#, ready, None, normal, 0);
    is("ready-1", r#"{"a":[]}"#, ready, None, Priority::High, 1);
    is("ready-2", r#"{"a":[]}"#, ready, None, normal, 1);
    is("ready-3", r#"{"a":[]}"#, ready, None, Priority::Low, 1);
    assert_eq!(target.jobs("else")["1"].body.as_str(), r#"{"a":1}"#);

    let output = target.import(&php, &[]);
    assert_eq!(output.code, 0);
    output.counts(&[("jobs", 8), ("waiting", 4), ("ready", 3), ("stranded", 1), ("already", 8)]);
    assert_eq!(target.jobs("orders"), jobs, "twice is once");
}

#[test]
fn an_imported_job_keeps_all_its_data_in_the_embedded_store() {
    takes_over_all(&Target::embedded());
}

#[test]
fn an_imported_job_keeps_all_its_data_on_redis_nodes() {
    takes_over_all(&Target::redis());
}

#[test]
fn imported_jobs_are_stored_as_safely_as_their_topic_says() {
    let (php, target) = (Php::start(), Target::with(vec![RedisServer::start()]));
    let text = std::fs::read_to_string(target.config()).unwrap();
    std::fs::write(target.config(), text + "durability = \"replicas:1\"\n").unwrap();
    php.many(3);
    // The server has no replica, so no job can be stored.
    let output = target.import(&php, &[]);
    assert_eq!(
        (output.code, output.json()["failed"].as_u64(), php.noted()),
        (1, Some(3), 0),
        "{}",
        output.out
    );
    assert!(output.out.contains("not_durable"), "{}", output.out);
}

#[test]
fn a_store_that_takes_nothing_is_not_asked_for_ever() {
    let (php, mut target) = (Php::start(), Target::redis());
    php.many(5_000);
    target.nodes.iter_mut().for_each(RedisServer::kill);
    let output = target.import(&php, &[]);
    let json = output.json();
    assert!(output.code == 1 && json["stopped"].as_str().unwrap().contains("is down"), "{}", output.out);
    assert!((256..=5 * 256).contains(&json["failed"].as_u64().unwrap()), "{}", output.out);
    assert_eq!(php.noted(), 0);
    target.nodes.iter_mut().for_each(RedisServer::start_again);
    target.import(&php, &[]).counts(&[("jobs", 5_000), ("waiting", 5_000), ("taken", 5_000)]);
}

#[test]
fn long_lists_are_read_to_their_end() {
    let (php, target) = (Php::start(), Target::embedded());
    let names: Vec<String> = (0..2500).map(|n| format!("orders:{n}")).collect();
    let gone: Vec<String> = (0..2500).map(|n| format!("orders:gone-{n}")).collect();
    let mut pipe = redis::pipe();
    for (name, gone) in names.iter().zip(&gone) {
        pipe.hset("dq_job_info", name, "1").rpush("dq_3ready_queue", name).zadd("dq_bucket_1", gone, 5);
    }
    php.run_all(&pipe);
    let output = target.import(&php, &[]);
    output.counts(&[("jobs", 2500), ("ready", 2500), ("taken", 2500), ("orphaned", 2500)]);
    assert!(target.jobs("orders").values().all(|job| job.priority == Priority::Low.into()));
    let output = import(&target.config(), &["--from", &php.url()]);
    assert!(output.out.contains("and 2490 more"), "{}", output.out);
}

fn key(id: &str) -> JobKey {
    JobKey { topic: TopicName::new("orders").unwrap(), id: JobId::new(id).unwrap() }
}

fn job(id: &str, body: &str) -> NewJob {
    NewJob { on_conflict: OnConflict::Reject, ..new_job("orders", id, body, Due::In(60 * SECOND)) }
}

#[test]
fn a_job_delivered_since_does_not_come_again_and_a_new_one_does() {
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:done", "1", YEAR_2033);
    php.waits("orders:waits", "1", YEAR_2033);
    target.import(&php, &[]).counts(&[("jobs", 2), ("waiting", 2), ("taken", 2)]);
    assert_eq!(target.store().delete(&[key("done")]), [Ok(store::Deleted::Done)]);
    php.waits("orders:new", "1", YEAR_2033);
    let output = target.import(&php, &[]);
    output.counts(&[("jobs", 3), ("waiting", 3), ("taken", 1), ("already", 2)]);
    assert_eq!(target.jobs("orders").into_keys().collect::<Vec<_>>(), ["new", "waits"]);
}

#[test]
fn a_newer_job_in_dq_wins_and_a_later_php_change_is_reported() {
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:both", "\"php\"", YEAR_2033);
    target.store().add(&[job("both", "\"dq\"")]);
    let output = target.import(&php, &[]);
    output.counts(&[("jobs", 1), ("waiting", 1), ("kept", 1)]);
    assert_eq!((output.code, target.jobs("orders")["both"].body.as_str()), (0, "\"dq\""));
    // The job of dq was delivered. The older job of the PHP daemon is not reported as missing.
    target.store().delete(&[key("both")]);
    target.import(&php, &[]).counts(&[("jobs", 1), ("waiting", 1), ("already", 1)]);

    // The PHP daemon has run again, and has been stopped again.
    php.waits("orders:both", "\"newer\"", YEAR_2033);
    target.import(&php, &[]).counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
    php.waits("orders:both", "\"newer\"", YEAR_2033 + 1);
    let output = target.import(&php, &[]);
    output.counts(&[("jobs", 1), ("waiting", 1), ("changed", 1)]);
    assert_eq!(output.code, 1);
    assert!(output.json()["left"][0]["reason"].as_str().unwrap().contains("delete"), "{}", output.out);
    target.store().delete(&[key("both")]);
    assert_eq!(target.import(&php, &[]).code, 0);
    assert_eq!(target.jobs("orders")["both"].due_ms, (YEAR_2033 + 1) * 1000);
}

#[test]
fn a_dry_run_changes_neither_side() {
    let (php, target) = (Php::start(), Target::redis());
    php.waits("orders:1", "1", YEAR_2033);
    php.is_ready("orders:2", "2", 1);
    php.is_ready("no topic:1", "1", 1);
    drop(target.store());
    let both = || std::iter::once(&php.server).chain(&target.nodes).map(all).collect::<Vec<_>>();
    let before = both();
    assert!(before.iter().all(|server| !server.is_empty()));
    let output = target.import(&php, &["--dry-run"]);
    output.counts(&[("jobs", 3), ("waiting", 1), ("ready", 2), ("taken", 2), ("cannot", 1)]);
    assert_eq!(output.code, 1);
    assert_eq!(both(), before);

    let target = Target::embedded();
    target.import(&php, &["--dry-run"]).counts(&[
        ("jobs", 3),
        ("waiting", 1),
        ("ready", 2),
        ("taken", 2),
        ("cannot", 1),
    ]);
    assert_eq!(all(&php.server), before[0]);
    let files: Vec<_> =
        std::fs::read_dir(target.dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(files, ["dq.toml"]);
}

#[test]
fn due_times_are_kept_in_any_number_of_buckets() {
    let (php, target) = (Php::start(), Target::embedded());
    let due = now_ms() / 1000 + 3600;
    let topics = topics_of_all_buckets(4);
    for n in 0..120 {
        let name = format!("{}:{n}", topics[n % 4]);
        php.run::<()>(&["HSET", "dq_job_info", &name, "1"]);
        php.run::<()>(&["ZADD", &bucket_of(&name, 4), &due.to_string(), &name]);
    }
    php.run::<()>(&["ZADD", "dq_bucket_3", "1", "orders:gone"]);
    // This key has the name of a bucket, but is not a bucket.
    php.run::<()>(&["SET", "dq_bucket_note", "1"]);
    let output = target.import(&php, &[]);
    assert_eq!(output.code, 0, "{}{}", output.out, output.err);
    output.counts(&[("jobs", 120), ("waiting", 120), ("taken", 120), ("orphaned", 1)]);
    for topic in &topics {
        let jobs = target.jobs(topic);
        assert_eq!(jobs.len(), 30, "{topic}");
        assert!(jobs.values().all(|job| job.due_ms == due * 1000 && job.state == State::Delayed), "{topic}");
    }
}

#[test]
fn a_prefix_with_signs_of_a_pattern_means_itself() {
    let (php, target) = (Php::start(), Target::embedded());
    for (prefix, due) in [("d[q]*?", YEAR_2033), ("dq-and-more?", 5)] {
        php.run::<()>(&["HSET", &format!("{prefix}job_info"), "orders:1", "1"]);
        php.run::<()>(&["ZADD", &format!("{prefix}bucket_7"), &due.to_string(), "orders:1"]);
    }
    let output = target.import(&php, &["--prefix", "d[q]*?"]);
    output.counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
    assert_eq!(target.jobs("orders")["1"].due_ms, YEAR_2033 * 1000);
}

#[test]
fn a_job_in_no_bucket_keeps_the_time_of_its_body() {
    let (php, target) = (Php::start(), Target::embedded());
    target.configure("timezone = \"Asia/Shanghai\"");
    let body = |time: &str| format!("{{\"a\":1,\"notify_time\":\"{time}\",\"dq_set_time\":\"x\"}}");
    for (id, time) in [("ahead", "2033-05-18 11:33:20"), ("past", "2020-01-01 00:00:00"), ("odd", "soon")] {
        php.run::<()>(&["HSET", "dq_job_info", &format!("orders:{id}"), &body(time)]);
    }
    php.is_ready("orders:ready", &body("2033-05-18 11:33:20"), 2);
    let began = now_ms();
    let output = target.import(&php, &[]);
    output.counts(&[("jobs", 4), ("stranded", 3), ("ready", 1), ("taken", 4)]);
    let jobs = target.jobs("orders");
    assert_eq!((jobs["ahead"].due_ms, jobs["ahead"].state), (YEAR_2033 * 1000, State::Delayed));
    assert_eq!((jobs["past"].due_ms, jobs["past"].state), (1_577_808_000_000, State::Delayed));
    for id in ["odd", "ready"] {
        assert!((began..=now_ms()).contains(&jobs[id].due_ms) && jobs[id].state == State::Ready, "{id}");
    }
    // For a job that is due now, the import does not compare the due time.
    target.import(&php, &[]).counts(&[("jobs", 4), ("stranded", 3), ("ready", 1), ("already", 4)]);
    assert_eq!(output.json()["notes"], serde_json::json!([]), "{}", output.out);

    // The bodies of the waiting jobs show that the PHP daemon had another time zone.
    php.waits("orders:waits", &body("2033-05-18 03:33:20"), YEAR_2033);
    let note = target.import(&php, &[]).json()["notes"].to_string();
    assert!(note.contains("notify_time of 1 jobs is read 480 minutes earlier"), "{note}");
}

#[test]
fn a_job_moved_to_a_list_since_does_not_come_again() {
    let (php, target) = (Php::start(), Target::embedded());
    target.configure("timezone = \"Asia/Shanghai\"");
    let body = "{\"notify_time\":\"2033-05-18 11:33:20\"}";
    php.waits("orders:1", body, YEAR_2033);
    target.import(&php, &[]).counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
    assert_eq!(target.store().delete(&[key("1")]), [Ok(store::Deleted::Done)], "it was delivered");
    php.run::<()>(&["ZREM", &bucket("orders:1"), "orders:1"]);
    php.is_ready("orders:1", body, 2);
    target.import(&php, &[]).counts(&[("jobs", 1), ("ready", 1), ("already", 1)]);
    assert_eq!(target.jobs("orders").len(), 0);
}

#[test]
fn unusable_jobs_are_left_and_named_and_orphans_are_counted() {
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:good", "1", YEAR_2033);
    for (name, body) in [("no colon", "1"), ("bad topic:1", "1"), ("orders:", "1"), ("orders:broken", "{")] {
        php.waits(name, body, YEAR_2033);
    }
    php.waits("orders:never", "1", i64::MAX);
    php.run::<()>(&["ZADD", "dq_bucket_0", "1", "orders:gone-0"]);
    php.run::<()>(&["ZADD", "dq_bucket_1", "1", "orders:gone-1"]);
    php.run::<()>(&["RPUSH", "dq_2ready_queue", "orders:gone-2", "orders:gone-1"]);
    let output = target.import(&php, &[]);
    output.counts(&[("jobs", 6), ("waiting", 6), ("taken", 1), ("cannot", 5), ("orphaned", 3)]);
    assert_eq!(output.code, 1);
    let json = output.json();
    let mut left: Vec<_> =
        json["left"].as_array().unwrap().iter().map(|l| l["job"].as_str().unwrap()).collect();
    left.sort_unstable();
    assert_eq!(left, ["bad topic:1", "no colon", "orders:", "orders:broken", "orders:never"]);
    assert!(json["left"].as_array().unwrap().iter().all(|l| l["at"] == php.url()), "{json}");
    // The output for people.
    let output = import(&target.config(), &["--from", &php.url()]);
    for part in [
        "orders:broken: the body is not JSON",
        "bad topic:1: topic \"bad topic\" is not",
        "taken over before                                  1",
        "no job of this name: orders:gone-1",
    ] {
        assert!(output.out.contains(part), "{part}\n{}", output.out);
    }
    assert_eq!(target.jobs("orders").len(), 1);
}

#[test]
fn only_the_topics_that_are_asked_for_are_looked_at() {
    let (php, target) = (Php::start(), Target::embedded());
    for name in ["orders:1", "orders.eu:1", "mail:1", "bad topic:1"] {
        php.waits(name, "1", YEAR_2033);
    }
    php.run::<()>(&["RPUSH", "dq_1ready_queue", "sms:gone"]);
    let output = target.import(&php, &["--topic", "orders", "--topic", "mail"]);
    output.counts(&[("jobs", 2), ("waiting", 2), ("taken", 2)]);
    assert_eq!(output.code, 0);
    assert_eq!((target.jobs("orders.eu").len(), target.jobs("mail").len()), (0, 1));
}

#[test]
fn several_nodes_are_taken_over_by_what_the_table_says_of_them() {
    let (first, second, empty, target) = (Php::start(), Php::start(), Php::start(), Target::embedded());
    first.waits("orders:1", "1", YEAR_2033);
    second.waits("orders:2", "2", YEAR_2033);
    let port = free_port().to_string();
    first.run::<()>(&["CONFIG", "SET", "port", &port]);
    first.run::<()>(&["CONFIG", "SET", "requirepass", "se:cret"]);
    let row = format!("127.0.0.1:{port}:se:cret,127.0.0.1:1:other");
    let output = import(
        &target.config(),
        &["--from", &row, "--from", &second.url(), "--from", &empty.url(), "--json"],
    );
    output.counts(&[("jobs", 2), ("waiting", 2), ("taken", 2)]);
    assert!(all(&empty.server).is_empty(), "nothing is left behind");
    assert_eq!(target.jobs("orders").len(), 2);
    let output = import(&target.config(), &["--from", &format!("127.0.0.1:{port}:wrong-one")]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains(&format!("cannot reach redis://127.0.0.1:{port}")), "{}", output.err);
    assert!(!output.err.contains("wrong-one"), "{}", output.err);
}

#[test]
fn bad_input_is_refused_by_name_and_without_passwords() {
    let (php, target) = (Php::start(), Target::embedded());
    let config = target.config();
    let url = php.url();
    let port = free_port();
    let away = format!("redis://u:secret@127.0.0.1:{port}/0");
    for (arguments, named) in [
        (&["--from", &*away] as &[&str], &*format!("redis://127.0.0.1:{port}/0")),
        (&["--from", "127.0.0.1:secret"], "--from 127.0.0.1…"),
        (&["--from", "http://x:secret@h"], "http://h"),
        (&["--from", &url, "--from", &url], "twice"),
        (&["--from", &url, "--topic", "a b"], "\"a b\""),
    ] {
        let output = import(&config, arguments);
        assert_eq!((output.code, output.out.as_str()), (1, ""), "{arguments:?}");
        assert!(
            output.err.contains(named) && !output.err.contains("secret"),
            "{arguments:?}: {}",
            output.err
        );
    }
    assert_eq!(import(&config, &[]).code, 2, "a source must be named");
    let output = import(&config, &["--from", &url, "--prefix", "other_", "--dry-run"]);
    assert!(output.code == 0 && output.err.contains("no key other_job_info"), "{}", output.err);
    let output = import(Path::new("/nowhere/dq.toml"), &["--from", &url]);
    assert!(output.code == 1 && output.err.contains("/nowhere/dq.toml"), "{}", output.err);
    assert!(!target.dir.path().join("var").exists(), "nothing was begun");
}

#[test]
fn a_different_store_is_refused_and_a_replaced_store_is_noticed() {
    let (php, first, second) = (Php::start(), Target::embedded(), Target::embedded());
    php.waits("orders:1", "1", YEAR_2033);
    first.import(&php, &[]).counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
    let printed = second.import(&php, &[]);
    assert!(printed.code == 1 && printed.err.contains("another store: embedded in"), "{}", printed.err);
    assert!(printed.err.contains("redis-cli DEL dq_imported"), "{}", printed.err);

    std::fs::remove_dir_all(first.dir.path().join("var")).unwrap();
    let printed = first.import(&php, &[]);
    let stopped = printed.json()["stopped"].to_string();
    assert!(printed.code == 1 && stopped.contains("never had a job of topic orders"), "{}", printed.out);
    let mut dq = std::process::Command::new(env!("CARGO_BIN_EXE_dq"));
    dq.args(["import", "php-dq", "--config"]).arg(first.config()).args(["--redis", &php.url()]);
    let out = String::from_utf8(dq.output().unwrap().stdout).unwrap();
    assert!(out.trim_end().ends_with("is refused again until you correct that"), "{out}");
    assert!(!out.contains("goes on where it was"), "{out}");
    php.run::<()>(&["DEL", "dq_imported"]);
    first.import(&php, &[]).counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
}

#[test]
fn a_full_node_refuses_its_own_jobs_and_the_next_run_takes_them() {
    const JOBS: u64 = 300;
    let (php, target) = (Php::start(), Target::redis());
    for n in 0..JOBS {
        php.waits(&format!("orders:{n}"), "1", YEAR_2033);
    }
    target.nodes[1].cli(&["config", "set", "maxmemory", "1mb"]);
    let output = target.import(&php, &[]);
    let json = output.json();
    let (taken, failed) = (json["taken"].as_u64().unwrap(), json["failed"].as_u64().unwrap());
    assert!(output.code == 1 && taken > 0 && failed > 0 && taken + failed == JOBS, "{}", output.out);
    assert!(json["left"][0]["reason"].as_str().unwrap().starts_with("store_full: "), "{json}");
    target.nodes[1].cli(&["config", "set", "maxmemory", "0"]);
    let output = target.import(&php, &[]);
    assert_eq!(output.code, 0, "{}", output.out);
    output.counts(&[("jobs", JOBS), ("waiting", JOBS), ("taken", failed), ("already", taken)]);
    assert_eq!(target.jobs("orders").len(), JOBS as usize);
}

#[test]
fn what_a_client_has_added_is_kept_also_while_its_node_is_down() {
    const JOBS: u64 = 300;
    let (php, mut target) = (Php::start(), Target::redis());
    for n in 0..JOBS {
        php.waits(&format!("orders:{n}"), "1", YEAR_2033);
    }
    target.nodes[1].kill();
    let output = target.import(&php, &[]);
    let json = output.json();
    let (taken, failed) = (json["taken"].as_u64().unwrap(), json["failed"].as_u64().unwrap());
    assert!(output.code == 1 && taken > 0 && failed > 0 && taken + failed == JOBS, "{}", output.out);
    assert!(json["left"][0]["reason"].as_str().unwrap().starts_with("node_down: "), "{json}");
    target.nodes[1].start_again();
    let output = target.import(&php, &[]);
    assert_eq!(output.code, 0, "{}", output.out);
    assert_eq!(target.jobs("orders").len(), JOBS as usize);
}

#[test]
fn a_running_daemon_delivers_imported_jobs_and_counts_failures() {
    let php = Php::start();
    let refused = Arc::new(AtomicU32::new(0));
    let times = Arc::clone(&refused);
    let sink = Sink::answering(move |_| match times.fetch_add(1, Ordering::Relaxed) {
        0 => HandlerAnswer::new(500, "no"),
        _ => HandlerAnswer::new(200, "ok"),
    });
    let form = topic("orders", &sink, "payload = \"form\"\nretry = [\"10ms\"]\nmax_attempts = 4");
    let mut daemon = Daemon::start(&form);
    let due = now_ms() / 1000 + 2;
    php.waits("orders:1", r#"{"a":1,"notify_time":"x","dq_set_time":"y","exp_notify_nums":2}"#, due);
    let output = import(&daemon.dir.path().join("dq.toml"), &["--from", &php.url(), "--json"]);
    output.counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
    eventually(20 * SECOND, "two calls", || (sink.count() == 2).then_some(()));
    let calls = sink.calls();
    for (call, attempt, failures) in [(&calls[0], "3", "2"), (&calls[1], "4", "3")] {
        assert_eq!(call.header("dq-attempt"), attempt);
        assert!(call.body.starts_with("a=1&notify_time=20"), "{}", call.body);
        assert!(call.body.ends_with(&format!("&exp_notify_nums={failures}")), "{}", call.body);
    }
    assert_eq!(calls[0].header("dq-due-at"), (due * 1000).to_string());
    assert!(calls[0].late_ms().is_some_and(|late| (0..5000).contains(&late)), "{:?}", calls[0].late_ms());
    let output = import(&daemon.dir.path().join("dq.toml"), &["--from", &php.url(), "--json"]);
    output.counts(&[("jobs", 1), ("waiting", 1), ("already", 1)]);
    assert_eq!(sink.deliveries().into_keys().collect::<HashSet<_>>(), HashSet::from(["1".to_owned()]));
    assert_eq!(sink.count(), 2, "it did not come again");
    daemon.stop();
}

#[test]
fn imported_failures_count_as_in_the_php_daemon() {
    let database = MariaDb::shared().database_of("CHARACTER SET utf8");
    let php = Php::start();
    let sink = Sink::answering(|call| match call.header("dq-job-id") {
        id if id.starts_with("flag") => HandlerAnswer::new(200, "{\"code\":1}"),
        _ => HandlerAnswer::new(200, ""),
    });
    let registry = format!("[registry]\nurl = \"{}\"\n", database.url());
    let mut daemon = Daemon::start(&registry);
    let insert = "INSERT INTO dq_topic (t_name, delay, callback, timeout, email, topic, re_notify_flag, createor, status, \
                  method) VALUES ('t', 0, ?, 3000, '', 'orders', '{res.code} != 0', '', 1, 'POST')";
    database.console().exec_drop(insert, (sink.url(),)).unwrap();
    let due = now_ms() / 1000 + 2;
    for (id, failures) in [("empty-9", 9), ("empty-11", 11), ("empty-15", 15), ("flag-15", 15)] {
        php.waits(&format!("orders:{id}"), &format!("{{\"exp_notify_nums\":{failures}}}"), due);
    }
    let output = import(&daemon.dir.path().join("dq.toml"), &["--from", &php.url(), "--json"]);
    output.counts(&[("jobs", 4), ("waiting", 4), ("taken", 4)]);
    let mut client = daemon.client();
    eventually(20 * SECOND, "a call of each job", || (sink.count() == 4).then_some(()));
    let mut state = |id: &str| {
        let job = client.ask(&json!({"cmd": "get", "topic": "orders", "id": id})).unwrap();
        (job["job"]["state"].as_str().unwrap_or_default().to_owned(), job["job"]["attempts"].clone())
    };
    // If the answer is empty, the job is tried 12 times in all. If the flag is true, the job is tried again without a
    // limit.
    for (id, expected, attempts) in [
        ("empty-9", "delayed", 10),
        ("empty-11", "dead", 12),
        ("empty-15", "dead", 16),
        ("flag-15", "delayed", 16),
    ] {
        eventually(5 * SECOND, id, || (state(id) == (expected.to_owned(), json!(attempts))).then_some(()));
    }
    daemon.stop();
}

#[test]
fn imported_overdue_jobs_follow_the_catch_up_of_their_topic() {
    let (php, spread, skip) = (Php::start(), Sink::start(), Sink::start());
    let sections = topic("spread", &spread, "catch_up = \"spread 4s\"")
        + &topic("skip", &skip, "catch_up = \"skip older than 1h\"");
    let daemon = Daemon::start(&sections);
    let old = (now_ms() - 86_400_000) / 1000;
    // This machine may have any time zone.
    let zoned = jiff::Timestamp::from_second(old).unwrap().to_zoned(jiff::tz::TimeZone::system());
    let body = format!("{{\"notify_time\":\"{}\"}}", zoned.strftime("%Y-%m-%d %H:%M:%S"));
    for n in 0..40 {
        php.waits(&format!("spread:waits-{n}"), &body, old);
        php.is_ready(&format!("spread:ready-{n}"), &body, 2);
    }
    php.waits("skip:waits", &body, old);
    php.is_ready("skip:ready", &body, 2);
    php.run::<()>(&["HSET", "dq_job_info", "skip:stranded", &body]);
    let output = import(&daemon.dir.path().join("dq.toml"), &["--from", &php.url(), "--json"]);
    output.counts(&[("jobs", 83), ("waiting", 41), ("ready", 41), ("stranded", 1), ("taken", 83)]);
    spread.wait_for(80, 10 * SECOND);
    let at: Vec<i64> = spread.calls().iter().map(|call| call.at_ms).collect();
    let span = at.iter().max().unwrap() - at.iter().min().unwrap();
    assert!(span > 2500, "80 jobs within {span} ms");
    let mut client = daemon.client();
    eventually(5 * SECOND, "dead letters", || (stats(&mut client, "skip")["dead"] == 3).then_some(()));
    assert_eq!(skip.count(), 0, "they are too old");
}

//! `dq export php-dq`: back to the PHP daemon, over real Redis servers.

use std::process::{Command, Stdio};

use crate::support::php::{CommandOutput, Php, Target, YEAR_2033, bucket_of, crc32};
use crate::support::{Daemon, SECOND, eventually};
use model::job::{Body, Due, JobId, JobKey, NewJob, OnConflict, TopicName};
use model::job_priority::JobPriority;
use serde_json::{Value, json};

fn command(target: &Target, nodes: &[&Php], more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(["export", "php-dq", "--json", "--config"]).arg(target.config());
    for php in nodes {
        command.args(["--to", &php.url()]);
    }
    command.args(more);
    command
}

fn export(target: &Target, nodes: &[&Php], more: &[&str]) -> CommandOutput {
    CommandOutput::of(command(target, nodes, more).output().unwrap())
}

fn job(id: &str, body: &str, due_ms: i64) -> NewJob {
    NewJob {
        key: JobKey { topic: TopicName::new("orders").unwrap(), id: JobId::new(id).unwrap() },
        body: Body::parse(body).unwrap(),
        due: Due::At(due_ms),
        priority: JobPriority::default(),
        on_conflict: OnConflict::Replace,
        max_attempts: None,
        attempts: 0,
        headers: Default::default(),
        quota: None,
    }
}

/// Returns body and due time of a job in the PHP daemon's Redis.
fn entry(php: &Php, id: &str) -> Option<(Value, i64)> {
    let name = format!("orders:{id}");
    let body: Option<String> = php.run(&["HGET", "dq_job_info", &name]);
    let score: Option<i64> = php.run(&["ZSCORE", &bucket_of(&name, 2), &name]);
    Some((serde_json::from_str(&body?).unwrap(), score?))
}

fn goes_back(target: &Target) {
    let nodes = [Php::start(), Php::start()];
    let both = [&nodes[0], &nodes[1]];
    let home = |id: &str| &nodes[crc32(&format!("orders:{id}")) as usize % 2];
    for id in ["stays", "delivered", "deleted", "later", "again"] {
        home(id).waits(&format!("orders:{id}"), r#"{"a":1,"exp_notify_nums":3}"#, YEAR_2033);
    }
    home("ready").is_ready("orders:ready", r#"{"a":2}"#, 1);
    // The PHP daemon had its nodes in another order.
    let other = |id: &str| &nodes[(crc32(&format!("orders:{id}")) as usize + 1) % 2];
    other("swapped").waits("orders:swapped", r#"{"a":3}"#, YEAR_2033);
    let froms: Vec<String> = nodes.iter().flat_map(|php| ["--from".to_owned(), php.url()]).collect();
    let mut import = Command::new(env!("CARGO_BIN_EXE_dq"));
    import.args(["import", "php-dq", "--config"]).arg(target.config()).args(&froms);
    assert!(import.output().unwrap().status.success());

    // What dq does meanwhile.
    let mut store = target.store();
    let key = |id: &str| job(id, "1", 0).key;
    store.delete(&[key("delivered"), key("deleted"), key("again")]);
    store.reschedule(&key("later"), Due::At((YEAR_2033 + 60) * 1000 + 1)).unwrap();
    store.reschedule(&key("ready"), Due::At(YEAR_2033 * 1000)).unwrap();
    let mut own = job("new", r#"{"zh":"中文","big":1.00}"#, YEAR_2033 * 1000 - 500);
    own.max_attempts = Some(2);
    let taken = store.add(&[own, job("text", r#""plain""#, YEAR_2033 * 1000)]);
    assert!(taken.iter().all(Result::is_ok), "{taken:?}");
    drop(store);
    // The PHP daemon was started in between, and got a job under an old id.
    home("again").waits("orders:again", r#"{"a":9}"#, YEAR_2033 + 9);

    let before: Vec<_> = nodes.iter().map(Php::all).collect();
    let printed = export(target, &both, &["--dry-run"]);
    printed.counts(&[("moved", 5), ("reduced", 1), ("removed", 3), ("left", 1)]);
    assert_eq!((printed.code, nodes.iter().map(Php::all).collect::<Vec<_>>()), (1, before));
    assert_eq!(target.jobs("orders").len(), 6);

    let printed = export(target, &both, &[]);
    printed.counts(&[("moved", 5), ("reduced", 1), ("removed", 3), ("left", 1)]);
    assert!(printed.code == 1 && printed.out.contains("orders:text"), "{}", printed.out);
    assert_eq!(target.jobs("orders").keys().collect::<Vec<_>>(), ["text"]);
    let found = |id: &str| entry(home(id), id);
    let (stays, at) = found("stays").unwrap();
    assert_eq!((&stays["a"], &stays["exp_notify_nums"], at), (&json!(1), &json!(3), YEAR_2033));
    assert!(stays["notify_time"].is_string() && stays["dq_set_time"].is_string(), "{stays}");
    assert_eq!(found("later").unwrap().1, YEAR_2033 + 61, "not early");
    assert_eq!(found("new").map(|(body, at)| (body["zh"].clone(), at)), Some((json!("中文"), YEAR_2033)));
    assert_eq!((found("delivered"), found("deleted")), (None, None));
    assert_eq!(found("again"), Some((json!({"a": 9}), YEAR_2033 + 9)), "it is another job");
    assert_eq!(found("swapped").map(|(body, at)| (body["a"].clone(), at)), Some((json!(3), YEAR_2033)));
    assert_eq!(entry(other("swapped"), "swapped"), None, "it is in one Redis only");
    let records = target.store().records(&key("stays")).unwrap();
    assert_eq!((records.len(), records[0].ending.word(), records[0].attempts), (1, "deleted", 3));
    assert!(records[0].note().unwrap().starts_with("exported") && records[0].made_attempts().is_empty());
    let records = target.store().records(&key("deleted")).unwrap();
    assert_eq!(records[0].note(), None, "a client has deleted it");
    // It waits in a bucket now, and no more in the list.
    assert_eq!(found("ready").unwrap().1, YEAR_2033);
    assert_eq!(home("ready").run::<usize>(&["LLEN", "dq_1ready_queue"]), 0);

    // Once nothing is left, the notes go, and all can be taken over again.
    target.store().delete(&[key("text")]);
    export(target, &both, &[]).counts(&[]);
    assert!(nodes.iter().all(|php| php.run::<usize>(&["EXISTS", "dq_imported"]) == 0));
    assert!(import.output().unwrap().status.success());
    assert_eq!(target.jobs("orders").len(), 6);
}

#[test]
fn jobs_go_back_from_the_embedded_store() {
    goes_back(&Target::embedded());
}

#[test]
fn jobs_go_back_from_redis_nodes() {
    goes_back(&Target::redis());
}

#[test]
fn an_export_that_is_killed_loses_no_job() {
    const JOBS: u64 = 20_000;
    let (php, target) = (Php::start(), Target::embedded());
    php.many(JOBS);
    assert_eq!(target.import(&php, &[]).code, 0);
    let done: Vec<JobKey> = (0..500).map(|n| job(&(n * 7).to_string(), "1", 0).key).collect();
    assert!(target.store().delete(&done).iter().all(Result::is_ok));
    // Each time a little further. An entry that goes back loses its note.
    for noted in [19_000, 15_000, 9_000] {
        let mut running = command(&target, &[&php], &["--anyway"]);
        let mut running = running.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually(30 * SECOND, "some jobs", || (php.noted() <= noted).then_some(()));
        running.kill().unwrap();
        assert!(!running.wait().unwrap().success(), "it was killed");
        let there: usize = php.run(&["HLEN", "dq_job_info"]);
        assert_eq!(there as u64, JOBS, "nothing is removed before all jobs are moved");
    }
    let output = export(&target, &[&php], &[]);
    assert_eq!(
        (output.code, output.json()["removed"].as_u64()),
        (0, Some(500)),
        "{}{}",
        output.out,
        output.err
    );
    assert_eq!(target.jobs("orders").len(), 0);
    for n in 0..JOBS {
        let there = entry(&php, &n.to_string());
        assert_eq!(there.is_some(), n % 7 != 0 || n >= 3500, "{n}");
        assert!(there.is_none_or(|(body, at)| body["n"] == json!(n) && at == YEAR_2033 + n as i64));
    }
}

#[test]
fn a_newer_job_of_the_php_daemon_is_not_replaced() {
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:1", r#"{"v":"old"}"#, YEAR_2033);
    php.waits("orders:2", r#"{"v":"old"}"#, YEAR_2033);
    assert_eq!(target.import(&php, &[]).code, 0);
    php.waits("orders:1", r#"{"v":"newer"}"#, YEAR_2033 + 5);
    let output = export(&target, &[&php], &[]);
    output.counts(&[("moved", 1), ("left", 1)]);
    assert!(output.code == 1 && output.out.contains("another job of this name"), "{}", output.out);
    assert_eq!(entry(&php, "1"), Some((json!({"v": "newer"}), YEAR_2033 + 5)));
    assert_eq!(target.jobs("orders").keys().collect::<Vec<_>>(), ["1"]);
}

#[test]
fn an_export_from_another_store_removes_nothing() {
    let (php, first, second) = (Php::start(), Target::embedded(), Target::embedded());
    php.waits("orders:1", r#"{"a":1}"#, YEAR_2033);
    assert_eq!(first.import(&php, &[]).code, 0);
    let before = php.all();
    for more in [&["--dry-run"][..], &[]] {
        let output = export(&second, &[&php], more);
        assert!(
            output.code == 1 && output.err.contains("another store: embedded in"),
            "{}{}",
            output.out,
            output.err
        );
        let output = second.import(&php, &["--dry-run"]);
        assert!(output.code == 1 && output.err.contains("another store"), "{}{}", output.out, output.err);
    }
    // A new store in the place of the old one.
    std::fs::remove_dir_all(first.dir.path().join("var")).unwrap();
    let output = export(&first, &[&php], &[]);
    assert!(
        output.code == 1 && output.err.contains("never had a job of topic orders"),
        "{}{}",
        output.out,
        output.err
    );
    assert_eq!(php.all(), before);
}

#[test]
fn a_store_restored_from_before_the_import_is_another() {
    let (php, target) = (Php::start(), Target::embedded());
    assert!(target.store().add(&[job("own", "{}", YEAR_2033 * 1000)])[0].is_ok());
    let backup = target.dir.path().join("backup");
    let dq = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        command.args(words).arg("--config").arg(target.config()).arg(&backup);
        CommandOutput::of(command.output().unwrap())
    };
    let printed = dq(&["backup"]);
    assert_eq!(printed.code, 0, "{}{}", printed.out, printed.err);
    php.waits("orders:1", r#"{"a":1}"#, YEAR_2033);
    assert_eq!(target.import(&php, &[]).code, 0);
    let printed = dq(&["restore", "--replace"]);
    assert_eq!(printed.code, 0, "{}{}", printed.out, printed.err);
    let before = php.all();
    for printed in [target.import(&php, &[]), export(&target, &[&php], &[])] {
        assert!(printed.code == 1 && printed.err.contains("restored as"), "{}{}", printed.out, printed.err);
    }
    assert_eq!(php.all(), before);
    php.run::<()>(&["DEL", "dq_imported"]);
    assert_eq!(target.import(&php, &[]).code, 0);
    assert_eq!(target.jobs("orders").keys().collect::<Vec<_>>(), ["1", "own"]);
}

#[test]
fn an_export_beside_a_daemon_is_refused() {
    let (php, daemon) = (Php::start(), Daemon::start(""));
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(["export", "php-dq", "--config"]).arg(daemon.dir.path().join("dq.toml"));
    let printed = CommandOutput::of(command.args(["--to", &php.url()]).output().unwrap());
    assert!(printed.code == 1 && printed.err.contains("a daemon runs in"), "{}", printed.err);
    let refused = |to: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        let target = Target::embedded();
        command.args(["export", "php-dq", "--config"]).arg(target.config()).args(["--to", to]);
        CommandOutput::of(command.output().unwrap()).err
    };
    assert!(refused("http://h:1").contains("--to http://h:1"));
}

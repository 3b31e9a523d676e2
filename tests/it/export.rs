//! `dq export php-dq`: jobs go back to the PHP daemon, over real Redis servers.

use std::process::{Command, Stdio};

use crate::import_checks::php_database;
use crate::support::php::{CommandOutput, Php, Target, YEAR_2033, bucket_of, crc32};
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, eventually};
use model::destination::Destination;
use model::follow::Then;
use model::headers::Headers;
use model::job::{Body, Due, JobId, JobKey, NewJob, OnConflict, TopicName};
use model::job_priority::JobPriority;
use mysql::prelude::Queryable;
use serde_json::{Value, json};
use store::{LeaseRequest, LeasedJob, Outcome, Settlement};

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

/// Returns the body and the due time of a job in the PHP daemon's Redis.
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

    // These are the changes that dq makes between the import and the export.
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
    // The job `ready` now waits in a bucket, and is no longer in the list.
    assert_eq!(found("ready").unwrap().1, YEAR_2033);
    assert_eq!(home("ready").run::<usize>(&["LLEN", "dq_1ready_queue"]), 0);

    // When the store has no job left, the export removes the notes in Redis. Then the jobs can be imported again.
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
    // Each export is killed a little later than the export before. When a job is exported, its note in the PHP daemon's
    // Redis is removed.
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
    // The folder of the old store is removed, so a new store takes its place.
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

#[test]
fn an_export_is_refused_while_followers_wait_in_the_outbox() {
    let (php, target) = (Php::start(), Target::embedded());
    let mut store = target.store();
    let then = Then::parse(r#"{"topic": "orders", "id": "next", "body": {}}"#).unwrap();
    store.add(&[NewJob { headers: Headers::default().with_then(then), ..job("first", "{}", 1) }]);
    let wanted = LeaseRequest {
        topic: TopicName::new("orders").unwrap(),
        max: 1,
        hold: SECOND,
        max_attempts: 9,
        max_leased: None,
        is_own_ttr: false,
    };
    let LeasedJob { key, token, .. } = store.lease(&[wanted], 1, None).unwrap().jobs.remove(0);
    store.settle(&[Settlement { key, token, outcome: Outcome::Ack, attempt: None }]).remove(0).unwrap();
    let refused = export(&target, &[&php], &[]);
    assert!(refused.code == 1 && refused.err.contains("another process uses"), "{}", refused.err);
    drop(store);
    let refused = export(&target, &[&php], &[]);
    assert!(refused.code == 1 && refused.err.contains("still has 1 entries"), "{}", refused.err);
    let dry = export(&target, &[&php], &["--dry-run"]);
    assert!(dry.code == 0 && dry.err.contains("would be refused now"), "{}", dry.err);
}

#[test]
fn jobs_that_php_cannot_deliver_stay_in_dq() {
    let (php, target) = (Php::start(), Target::embedded());
    target.add_section("[[topic]]\nname = \"workers\"\nmode = \"pull\"\n");
    let headers = |headers: Value| Headers::parse(&headers.to_string()).unwrap();
    let path = Destination::from_path("/own").unwrap();
    let at = YEAR_2033 * 1000;
    let pull = JobKey { topic: TopicName::new("workers").unwrap(), ..job("pull", "1", 0).key };
    let jobs = [
        job("plain", "{}", at),
        NewJob { key: pull.clone(), ..job("pull", "{}", at) },
        NewJob { headers: headers(json!({})).with_destination(Some(path)), ..job("path", "{}", at) },
        NewJob { headers: headers(json!({"x-a": "1"})), ..job("headers", "{}", at) },
        NewJob { priority: JobPriority::from_number(5), ..job("number", "{}", at) },
    ];
    assert!(target.store().add(&jobs).iter().all(Result::is_ok));
    let output = export(&target, &[&php], &[]);
    output.counts(&[("moved", 1), ("left", 4)]);
    assert_eq!(output.code, 1);
    assert_eq!(target.jobs("orders").into_keys().collect::<Vec<_>>(), ["headers", "number", "path"]);
    assert_eq!(output.json()["reasons"].as_object().unwrap().len(), 4, "{}", output.out);
    let mut people = Command::new(env!("CARGO_BIN_EXE_dq"));
    people.args(["export", "php-dq", "--to", &php.url(), "--dry-run", "--config"]).arg(target.config());
    let people = CommandOutput::of(people.output().unwrap()).out;
    assert!(people.contains("left in dq: workers:pull: its topic is a pull topic"), "{people}");

    let output = export(&target, &[&php], &["--reduce"]);
    output.counts(&[("moved", 2), ("reduced", 2), ("left", 2)]);
    assert_eq!(target.jobs("orders").into_keys().collect::<Vec<_>>(), ["path"]);
    assert_eq!(target.jobs("workers").into_keys().collect::<Vec<_>>(), ["pull"]);
    assert!(entry(&php, "headers").is_some() && entry(&php, "path").is_none());
}

#[test]
fn an_export_to_a_redis_that_php_does_not_read_is_refused() {
    let (first, second, target) = (Php::start(), Php::start(), Target::with(vec![RedisServer::start()]));
    let [at_first, at_second] = [&first, &second].map(|php| format!("127.0.0.1:{}", php.listen()));
    let (database, url) = php_database();
    let mut db = database.console();
    db.query_drop("DELETE FROM dq_redis").unwrap();
    db.query_drop(format!("INSERT INTO dq_redis VALUES (7, '二', '{at_second}:'), (3, '一', '{at_first}:')"))
        .unwrap();
    target.add_section(&format!("[registry]\nurl = \"{url}\"\n"));
    let known = |id: &str| JobKey { topic: TopicName::new("order_close").unwrap(), ..job(id, "1", 0).key };
    let jobs: Vec<NewJob> =
        (0..8).map(|n| NewJob { key: known(&n.to_string()), ..job("x", "{}", YEAR_2033 * 1000) }).collect();
    let mut store = target.store();
    assert!(
        store
            .add(&jobs)
            .iter()
            .chain(&store.add(&[job("only dq has it", "{}", YEAR_2033 * 1000)]))
            .all(Result::is_ok)
    );
    drop(store);
    let run = |to: &[&String], more: &[&str]| {
        let mut command = command(&target, &[], more);
        to.iter().for_each(|to| _ = command.args(["--to", to]));
        CommandOutput::of(command.output().unwrap())
    };
    let before = [first.all(), second.all()];
    for to in [&[&at_first][..], &[&at_second, &at_first]] {
        let output = run(to, &[]);
        assert!(
            output.code == 1 && output.err.contains("dq_redis row 7 (二)"),
            "{}{}",
            output.out,
            output.err
        );
        let output = run(to, &["--dry-run"]);
        assert!(output.code == 1 && output.out.contains("dq_redis row 7"), "{}{}", output.out, output.err);
    }
    assert_eq!([first.all(), second.all()], before);
    let output = run(&[&at_first, &at_second], &[]);
    output.counts(&[("moved", 8), ("left", 1)]);
    assert!(output.out.contains("no row of dq_topic"), "{}", output.out);
    let there: [usize; 2] = [&first, &second].map(|php| php.run(&["HLEN", "dq_job_info"]));
    assert!(there.iter().sum::<usize>() == 8 && there.iter().all(|n| *n > 0), "{there:?}");
}

#[test]
fn an_import_as_root_beside_files_of_another_user_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("only root can be refused: nothing is tested");
        return;
    }
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:1", "{}", YEAR_2033);
    let var = target.dir.path().join("var");
    std::fs::create_dir(&var).unwrap();
    std::os::unix::fs::chown(&var, Some(65534), Some(65534)).unwrap();
    for output in [target.import(&php, &[]), export(&target, &[&php], &[])] {
        assert_eq!(output.code, 1, "{}", output.out);
        assert!(
            output.err.contains("sudo -u nobody dq ") && output.err.contains("/var belongs to"),
            "{}",
            output.err
        );
    }
    assert_eq!(std::fs::read_dir(&var).unwrap().count(), 0, "nothing was made");
    // The folder for the store is missing, and the folder above it belongs to another user. Then the import makes
    // nothing, either.
    std::fs::remove_dir(&var).unwrap();
    std::os::unix::fs::chown(target.dir.path(), Some(65534), Some(65534)).unwrap();
    let output = target.import(&php, &[]);
    assert!(output.code == 1 && output.err.contains("sudo -u nobody dq import"), "{}", output.err);
    assert!(!target.has_begun());
    std::os::unix::fs::chown(target.dir.path(), Some(0), Some(0)).unwrap();
    target.import(&php, &[]).counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
}

#[test]
fn a_file_in_the_way_of_the_store_is_named() {
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:1", "{}", YEAR_2033);
    std::fs::create_dir_all(target.dir.path().join("var/dq.db-turn")).unwrap();
    let output = target.import(&php, &[]);
    assert!(output.code == 1 && output.err.contains("var/dq.db-turn: Is a directory"), "{}", output.err);
}

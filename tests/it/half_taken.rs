//! Topics that another program has written, with a setting that dq does not support. They are held until somebody
//! corrects them, and every view of topics names them with the reason.

use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::support::http::Http;
use crate::support::mariadb::MariaDb;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, Sink, add, eventually, free_port};
use mysql::prelude::Queryable;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SOON: std::time::Duration = std::time::Duration::from_secs(10);

/// Returns a row as the PHP daemon's console writes it.
fn row(name: &str, sink: &Sink, flag: &str, method: &str) -> String {
    format!(
        "INSERT INTO dq_topic (t_name, delay, callback, timeout, email, topic, re_notify_flag, createor, status, method) \
         VALUES ('', 0, '{}', 3000, '', '{name}', '{flag}', '', 1, '{method}')",
        sink.url()
    )
}

fn dq(daemon: &Daemon, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(words).stdin(Stdio::null());
    if !words.contains(&"--config") {
        command.arg("--run-dir").arg(daemon.dir.path().join("var/run"));
    }
    let out = command.output().unwrap();
    String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
}

/// Waits until an add gets this answer.
fn answers(daemon: &Daemon, topic: &str, id: &str, err: Option<&str>) -> String {
    let mut client = daemon.client();
    eventually(SOON, &format!("{err:?} of {topic}; log:\n{}", daemon.log()), || {
        // If the test expects a refusal, the job may be accepted at first. It must not be delivered in this test, so it
        // has a long delay.
        let delay_ms = if err.is_some() { 3_600_000 } else { 0 };
        let answer = client.ask(&add(topic, id, delay_ms)).unwrap();
        (answer["err"].as_str() == err).then(|| answer["msg"].as_str().unwrap_or_default().to_owned())
    })
}

#[test]
fn an_unsupported_flag_or_method_keeps_its_topic_offline() {
    let (sink, database) = (Sink::start(), MariaDb::shared().database());
    let config = format!("[registry]\nurl = \"{}\"\n", database.url());
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let daemon = Daemon::spawn(Arc::clone(&dir), free_port(), &config, &[]);
    daemon.wait_ready();
    let mut console = database.console();
    // The tables exist when the registry has been opened.
    eventually(SOON, "the tables", || console.query_drop("SELECT 1 FROM dq_topic").ok());
    for (name, flag, method) in [("fine", "", "POST"), ("flag", "", "POST"), ("method", "", "PUT")] {
        console.query_drop(row(name, &sink, flag, method)).unwrap();
    }
    answers(&daemon, "fine", "1", None);
    // The topic gets a job that still waits when the topic is changed.
    let mut client = daemon.client();
    eventually(SOON, "a job that waits", || {
        (client.ask(&add("flag", "waits", 3000)).unwrap()["code"] == 1).then_some(())
    });
    console
        .query_drop("UPDATE dq_topic SET re_notify_flag = 'system({res.code})' WHERE topic = 'flag'")
        .unwrap();
    let why = answers(&daemon, "flag", "x", Some("topic_offline"));
    assert!(why.contains("\"system({res.code})\" is no expression") && why.contains("clears it"), "{why}");
    let why = answers(&daemon, "method", "x", Some("topic_offline"));
    assert!(why.contains("method: \"PUT\""), "{why}");

    let mut http = Http::unix(&daemon);
    let adds = http.ask("POST", "/v1/topics/flag/jobs", &json!({"body": 1}));
    adds.is_problem(409, "topic_offline", None);
    http.ask("POST", "/v1/topics/flag/jobs/batch", &json!({"jobs": [{"body": 1}]})).is_problem(
        409,
        "topic_offline",
        None,
    );
    http.ask("POST", "/v1/topics/method/test", &Value::Null).is_problem(409, "topic_offline", None);
    // The due job of the topic stays.
    eventually(SOON, "that it is due", || {
        let stats = http.get("/v1/stats").is(200);
        let of = stats["topics"].as_array()?.iter().find(|t| t["topic"] == "flag")?.clone();
        (of["ready"] == 1).then_some(())
    });

    // Each topic is named with the reason, everywhere.
    let shown = http.get("/v1/topics/flag").is(200);
    assert!(shown["problem"].as_str().unwrap().starts_with("held: re_notify_flag: \"system("), "{shown}");
    assert_eq!(http.get("/v1/topics/fine").is(200)["problem"], Value::Null);
    let all = http.get("/v1/topics").is(200);
    let problems = all["topics"].as_array().unwrap().iter().filter(|t| t["problem"].is_string());
    assert_eq!(problems.count(), 2, "{all}");
    let list = dq(&daemon, &["topics", "list"]);
    for line in ["\nflag: held: re_notify_flag: \"system({res.code})\"", "\nmethod: held: method: \"PUT\""] {
        assert!(list.contains(line), "{line}: {list}");
    }
    let config_file = dir.path().join("dq.toml").display().to_string();
    let named = "topic flag has a setting that dq cannot do: held: re_notify_flag";
    eventually(SOON, "a finding", || {
        dq(&daemon, &["status"]).lines().any(|l| l.contains("topic flag")).then_some(())
    });
    let doctor = dq(&daemon, &["doctor", "--config", &config_file]);
    assert!(doctor.contains(named) && doctor.contains("method: \"PUT\""), "{doctor}");
    assert_eq!(doctor.matches("system({res.code})").count(), 1, "the daemon's word is enough: {doctor}");
    let ready = http.get("/readyz").is(200);
    assert!(ready["parts"]["topics"].as_str().unwrap().contains("2 with a setting"), "{ready}");
    eventually(3 * SOON, "an alert about its due job", || {
        let alerts = http.get("/v1/alerts").is(200);
        let all = alerts["alerts"].as_array()?.clone();
        let is_it = |a: &Value| a["name"] == "jobs_stranded" && a["topic"] == "flag";
        all.iter().find(|a| is_it(a))?["detail"].as_str()?.contains("re_notify_flag").then_some(())
    });

    // After a rolling restart, the new processes know from the snapshot that the topic is held.
    let before = daemon.children();
    daemon.signal(Signal::SIGHUP);
    crate::support::all_new(&daemon, &before);
    answers(&daemon, "flag", "x", Some("topic_offline"));
    assert_eq!(sink.deliveries().keys().collect::<Vec<_>>(), ["1"], "nothing of them was delivered");

    // A change of another field is refused. A change of the flag itself takes effect, over the API and in the database.
    let mut http = Http::unix(&daemon);
    http.ask("PATCH", "/v1/topics/flag", &json!({"title": "x"})).is_problem(
        422,
        "bad_field",
        Some("re_notify_flag"),
    );
    http.ask("PATCH", "/v1/topics/method", &json!({"title": "x"})).is_problem(
        422,
        "bad_field",
        Some("method"),
    );
    let shown = http.ask("PATCH", "/v1/topics/flag", &json!({"re_notify_flag": "{res.code} == 7"})).is(200);
    assert_eq!(shown["problem"], Value::Null);
    eventually(SOON, "the job that stayed", || sink.deliveries().contains_key("waits").then_some(()));
    console.query_drop("UPDATE dq_topic SET method = 'POST' WHERE topic = 'method'").unwrap();
    answers(&daemon, "method", "2", None);
    eventually(SOON, "its job", || sink.deliveries().contains_key("2").then_some(()));
    eventually(3 * SOON, "that no alert is open any more", || {
        (http.get("/readyz").is(200)["parts"]["topics"] == "ok").then_some(())
    });
    assert!(!dq(&daemon, &["topics", "list"]).contains("held:"));
}

#[test]
fn an_import_names_the_topics_that_are_taken_over_half() {
    let (sink, database, php) = (Sink::start(), MariaDb::shared().database(), RedisServer::start());
    drop(registry::open(&database.settings()).unwrap());
    let mut console = database.console();
    for (name, flag, method) in [("orders", "", "POST"), ("flag", "{res.a} =", "POST"), ("method", "", "PUT")]
    {
        console.query_drop(row(name, &sink, flag, method)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("dq.toml");
    std::fs::write(&config, format!("[registry]\nurl = \"{}\"\n", database.url())).unwrap();
    let import = |json: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        command.args(["import", "php-dq", "--config"]).arg(&config).args(["--from", &php.url()]);
        let out = command.args(json.then_some("--json")).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let text = import(false);
    for line in [
        "topic flag is held: dq cannot use one of its settings, and its jobs wait: re_notify_flag: \"{res.a} =\" is no expression",
        "topic method is held: dq cannot use one of its settings, and its jobs wait: method: \"PUT\"",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let summary: Value = serde_json::from_str(&import(true)).unwrap();
    assert_eq!(summary["half_taken"].as_object().unwrap().len(), 2, "{summary}");
    assert_eq!(sink.count(), 0);
}

#[test]
fn a_reload_gives_php_topics_the_limit_of_the_file() {
    let (sink, database) = (Sink::start(), MariaDb::shared().database());
    let config = format!("[registry]\nurl = \"{}\"\n", database.url());
    let daemon = Daemon::start(&config);
    let mut console = database.console();
    console.query_drop(row("php", &sink, "", "POST")).unwrap();
    let has_limit = |limit: u32| {
        eventually(3 * SOON, &format!("a limit of {limit}"), || {
            let shown = Http::tcp(&daemon).get("/v1/topics/php");
            (shown.json["max_attempts"] == limit).then_some(())
        });
        let file = daemon.dir.path().join("var/run/registry/topics.json");
        eventually(SOON, "the limit in the snapshot", || {
            let snapshot: Value = serde_json::from_slice(&std::fs::read(&file).ok()?).ok()?;
            (snapshot["topics"][0]["max_attempts"] == limit).then_some(())
        });
    };
    has_limit(12);
    // If another setting is changed, the limit still comes from the configuration file.
    let changed = Http::tcp(&daemon).ask("PATCH", "/v1/topics/php", &json!({"title": "x"})).is(200);
    assert_eq!((&changed["title"], &changed["max_attempts"]), (&json!("x"), &json!(12)));
    let file = daemon.dir.path().join("dq.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + "[callback]\nmax_attempts = 5\n").unwrap();
    daemon.signal(Signal::SIGHUP);
    has_limit(5);
}

#[test]
fn a_snapshot_of_another_registry_does_not_stay() {
    let (sink, daemon) = (Sink::start(), Daemon::start(""));
    let wanted = json!({"name": "t", "callback": sink.url()});
    Http::unix(&daemon).ask("POST", "/v1/topics", &wanted).is(201);
    let file = daemon.dir.path().join("var/run/registry/topics.json");
    let read = || -> Option<Value> { serde_json::from_slice(&std::fs::read(&file).ok()?).ok() };
    let has_topic = |snapshot: &Value| snapshot["topics"].as_array().is_some_and(|topics| topics.len() == 1);
    let own = eventually(SOON, "the topic in the snapshot", || read().filter(has_topic));
    // A generation with another registry wrote the snapshot, and was given up.
    for foreign in ["{}".to_owned(), {
        let mut foreign = own.clone();
        (foreign["source"], foreign["topics"]) = (json!("mysql://other/dq"), json!([]));
        foreign.to_string()
    }] {
        let draft = file.with_extension("foreign");
        std::fs::write(&draft, foreign).unwrap();
        std::fs::rename(&draft, &file).unwrap();
        eventually(SOON, "the own snapshot", || read().filter(|snapshot| *snapshot == own));
    }
    std::fs::remove_file(&file).unwrap();
    eventually(SOON, "the snapshot again", || read().filter(|snapshot| *snapshot == own));
}

#[test]
fn a_reload_with_a_registry_that_is_away_is_given_up() {
    let (sink, daemon) = (Sink::start(), Daemon::start("start_timeout = \"6s\"\n"));
    Http::unix(&daemon).ask("POST", "/v1/topics", &json!({"name": "t", "callback": sink.url()})).is(201);
    let file = daemon.dir.path().join("dq.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    let away = format!("[registry]\nurl = \"mysql://dq:secret@127.0.0.1:{}/dq\"\n", free_port());
    std::fs::write(&file, before.clone() + &away).unwrap();
    daemon.signal(Signal::SIGHUP);
    // Both generations could accept clients meanwhile. A new process without topics would refuse the add.
    eventually(2 * SOON, "the end of the reload", || {
        let is_over = daemon.log().contains("is given up");
        assert_eq!(daemon.client().ask(&add("t", "1", 0)).unwrap()["code"], 1);
        is_over.then_some(())
    });
    let log = daemon.log();
    assert!(
        log.contains("waiting until the registry mysql://") && !log.contains("older ones drain"),
        "{log}"
    );
    sink.wait_for(1, SOON);
    // A registry that answers takes over. It has no topic yet.
    std::fs::write(&file, before + "[registry]\nurl = \"sqlite:other.db\"\n").unwrap();
    daemon.signal(Signal::SIGHUP);
    answers(&daemon, "t", "2", Some("unknown_topic"));
}

#[test]
fn topics_stay_known_without_the_registry_and_its_snapshot() {
    let (sink, node) = (Sink::start(), RedisServer::start());
    let store =
        format!("[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n", node.url());
    let daemon = Daemon::start(&format!("start_timeout = \"6s\"\n{store}"));
    Http::unix(&daemon).ask("POST", "/v1/topics", &json!({"name": "t", "callback": sink.url()})).is(201);
    let snapshot = daemon.dir.path().join("var/run/registry/topics.json");
    answers(&daemon, "t", "first", None);
    node.hang(true);
    eventually(SOON, "the registry is away", || daemon.log().contains("the registry: ").then_some(()));
    // dq-redis-checker knows the contents, and writes them again.
    for damage in [None, Some("{\"topics\": [}")] {
        std::fs::remove_file(&snapshot).unwrap();
        if let Some(text) = damage {
            std::fs::write(&snapshot, text).unwrap();
        }
        eventually(SOON, "the snapshot again", || {
            std::fs::read_to_string(&snapshot).ok()?.contains("\"source\"").then_some(())
        });
    }
    // The next dq-redis-checker does not know the topics. The other processes still know them, so a reload must not
    // replace these processes.
    daemon.kill_child("dq-redis-checke");
    std::fs::write(&snapshot, "{").unwrap();
    daemon.signal(Signal::SIGHUP);
    eventually(2 * SOON, "the end of the reload", || {
        let is_over = daemon.log().contains("is given up");
        assert_eq!(daemon.client().ask(&add("t", "1", 0)).unwrap()["code"], 1);
        is_over.then_some(())
    });
    node.hang(false);
    eventually(2 * SOON, "the snapshot of the registry", || {
        std::fs::read_to_string(&snapshot).ok()?.contains("\"source\"").then_some(())
    });
    daemon.signal(Signal::SIGHUP);
    eventually(2 * SOON, "a reload", || daemon.log().contains("older ones drain").then_some(()));
    answers(&daemon, "t", "2", None);
}

#[test]
fn topics_change_although_the_table_of_php_alerts_is_gone() {
    let (sink, database) = (Sink::start(), MariaDb::shared().database());
    let daemon = Daemon::start(&format!("[registry]\nurl = \"{}\"\n", database.url()));
    database.console().query_drop("DROP TABLE dq_alert").unwrap();
    // The new process reads the table when it starts.
    daemon.kill_child("dq-redis-checke");
    let wanted = json!({"name": "t", "callback": sink.url()});
    Http::unix(&daemon).ask("POST", "/v1/topics", &wanted).is(201);
    eventually(2 * SOON, "an add to the topic", || {
        (daemon.client().ask(&add("t", "1", 0)).ok()?["code"] == 1).then_some(())
    });
    sink.wait_for(1, SOON);
    assert!(daemon.log().contains("cannot read the mail server in dq_alert"), "{}", daemon.log());
}

//! People get one message about each problem, and one message when the problem is over. This also holds if a process is
//! killed in between, and if a mail server fails or hangs.

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support;
use crate::support::certificates::certificates;
use crate::support::http::Http;
use crate::support::mariadb;
use crate::support::redis::{RedisServer, own_host};
use crate::support::smtp::Smtp;
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, all_new, eventually, free_port, topic};
use model::topic::Topic;
use mysql::prelude::Queryable;
use nix::sys::signal::Signal;
use registry::{Expected, open};
use serde_json::{Value, json};

/// The name of the process as `ps` shows it: only its first 15 bytes.
const CHECKER: &str = "dq-redis-checke";

const OPS: &str = "ops@example.com";

/// Returns a section that sends every alert at once through the mail server at this port. `more` and `smtp` are further
/// keys of `[alert]` and of `[alert.smtp]`.
fn alert(port: u16, more: &str, smtp: &str) -> String {
    format!(
        "[alert]\nto = [\"{OPS}\"]\ngather = \"1s\"\ninterval = \"1s\"\n{more}\n[alert.smtp]\nhost = \"127.0.0.1\"\n\
         port = {port}\ntls = \"none\"\nfrom = \"dq <dq@example.com>\"\n{smtp}\n"
    )
}

/// A receiver that refuses every job.
fn refusing() -> Sink {
    Sink::answering(|_| cli::HandlerAnswer::new(500, "out of \"stock\"\n"))
}

/// Adds up the dead letters of a topic that are reported in the mails to this recipient. Returns the sum.
fn counted(smtp: &Smtp, to: &str, topic: &str) -> u64 {
    let mut sum = 0;
    for mail in smtp.of(to, &format!(" of topic {topic}\n")) {
        for line in mail["text"].as_str().unwrap().lines() {
            if let Some(count) = line.strip_suffix(&format!(" of topic {topic}")) {
                let number = count.split(' ').next().unwrap();
                sum += if number == "a" { 1 } else { number.parse::<u64>().unwrap() };
            }
        }
    }
    sum
}

/// Waits until alerts.json says that everything was sent. If a checker dies earlier, the next checker sends the alerts
/// again.
fn all_is_written(daemon: &Daemon) {
    fn waits(value: &Value) -> bool {
        match value {
            Value::Object(members) => members.iter().any(|(name, value)| match value {
                Value::Array(list) if name == "notices" => !list.is_empty(),
                value => waits(value),
            }),
            Value::Array(list) => list.iter().any(waits),
            _ => false,
        }
    }
    let kept = daemon.dir.path().join("var/run/alerts.json");
    eventually(10 * SECOND, "the alert is saved", || {
        let kept: Value = serde_json::from_slice(&std::fs::read(&kept).ok()?).ok()?;
        (!waits(&kept)).then_some(())
    });
}

/// Returns the documents that the webhook received.
fn documents(sink: &Sink) -> Vec<Value> {
    sink.calls().iter().map(|call| serde_json::from_str(&call.body).unwrap()).collect()
}

/// Checks that the alert with this title was sent once when it opened, and once when it was over.
fn is_told_once(smtp: &Smtp, title: &str) {
    let lines = |wanted: &str| {
        let of = |mail: &Value| mail["text"].as_str().unwrap().lines().filter(|l| *l == wanted).count();
        smtp.of(OPS, title).iter().map(of).sum::<usize>()
    };
    assert_eq!((lines(title), lines(&format!("over: {title}"))), (1, 1), "{:#?}", smtp.mails());
}

#[test]
fn no_mail_goes_out_where_starttls_is_not_offered() {
    let smtp = Smtp::start(free_port());
    let topics = topic("orders", &refusing(), "max_attempts = 1");
    let config = alert(smtp.port, "", "").replace("\"none\"", "\"starttls\"") + &topics;
    let daemon = Daemon::start(&config);
    assert_eq!(daemon.client().ask(&add("orders", "42", 0)).unwrap()["code"], 1);
    eventually(20 * SECOND, "a mail that is refused", || daemon.log().contains("STARTTLS").then_some(()));
    assert_eq!(smtp.mails(), Vec::<serde_json::Value>::new());
}

#[test]
fn dead_letters_are_reported_once_with_details_over_starttls() {
    let tls = tempfile::tempdir().unwrap();
    certificates(tls.path());
    let smtp = Smtp::strict(free_port(), tls.path(), "dq", "s3cret");
    let (sink, hook) = (refusing(), Sink::start());
    let folder = tls.path().display();
    let secure =
        format!("user = \"dq\"\npassword_file = \"{folder}/password\"\nca_file = \"{folder}/ca.pem\"");
    std::fs::write(tls.path().join("password"), "s3cret\n").unwrap();
    let webhooks = format!(
        "[[alert.webhook]]\nname = \"all\"\nurl = \"{}\"\nheaders = {{ x-key = \"k\" }}\n[[alert.webhook]]\nname = \"nodes\"\nurl = \"{}/nodes\"\nkinds = [\"node_down\"]\n",
        hook.url(),
        hook.url()
    );
    let topics =
        topic("orders", &sink, "max_attempts = 1\nbreaker_failures = 0\nalert = [\"shop@example.com\"]")
            + &topic("u", &sink, "max_attempts = 1");
    let config = alert(smtp.port, "", &secure)
        .replace("\"none\"", "\"starttls\"")
        .replace("127.0.0.1\"", &format!("{}\"", own_host()))
        + &webhooks
        + &topics;
    let daemon = Daemon::start(&config);
    let log = || daemon.log();
    let mut client = daemon.client();
    assert_eq!(client.ask(&add("orders", "42\n中", 0)).unwrap()["code"], 1);
    for to in [OPS, "shop@example.com"] {
        let mail = smtp.wait_for(to, "a dead letter of topic orders", log);
        let text = mail["text"].as_str().unwrap();
        assert!(text.contains("job 42 中, attempt 1: status 500\n"), "{text}");
        assert!(!text.contains("stock"), "what the receiver answered is not for all who get alerts: {text}");
        assert_eq!(
            (&mail["tls"], &mail["user"], &mail["from"]),
            (&json!(true), &json!("dq"), &json!("dq@example.com"))
        );
    }
    let document = eventually(10 * SECOND, "a call of the webhook", || documents(&hook).pop());
    let message = &document["alerts"][0];
    assert_eq!(
        (&message["kind"], &message["topic"], &message["count"]),
        (&json!("dead_letter"), &json!("orders"), &json!(1))
    );
    assert_eq!((&message["jobs"][0]["id"], &message["jobs"][0]["attempts"]), (&json!("42\n中"), &json!(1)));
    assert_eq!(hook.calls()[0].header("x-key"), "k");

    // Many dead letters at once lead to few messages.
    let burst: Vec<_> = (0..100).map(|n| add("orders", &format!("b{n}"), 0)).collect();
    client.send(&burst).unwrap();
    burst.iter().for_each(|_| assert_eq!(client.receive().unwrap()["code"], 1));
    eventually(30 * SECOND, "a hundred more", || (counted(&smtp, OPS, "orders") >= 101).then_some(()));
    assert!(smtp.of(OPS, "of topic orders").len() <= 8, "{:#?}", smtp.mails());

    all_is_written(&daemon);
    // When a new checker takes over, it repeats no alert, and it reports everything that happened in the meantime.
    daemon.kill_child(CHECKER);
    client.ask(&add("u", "1", 0)).unwrap();
    smtp.wait_for(OPS, "of topic u", log);
    let before = daemon.wait_all_up(SLOTS);
    client.ask(&add("u", "2", 0)).unwrap();
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &before);
    let mut client = daemon.client();
    client.ask(&add("u", "3", 0)).unwrap();
    eventually(30 * SECOND, "what came later", || (counted(&smtp, OPS, "u") >= 3).then_some(()));
    assert_eq!((counted(&smtp, OPS, "orders"), counted(&smtp, OPS, "u")), (101, 3), "{:#?}", smtp.mails());
    assert_eq!(counted(&smtp, "shop@example.com", "orders"), 101);
    assert_eq!(smtp.of("shop@example.com", "of topic u").len(), 0);
    assert!(hook.calls().iter().all(|call| call.path == "/hook"));
}

#[test]
fn a_down_node_is_reported_and_resolved_once_despite_kills() {
    let smtp = Smtp::start(free_port());
    let (sink, mut nodes) = (Sink::start(), [RedisServer::start(), RedisServer::start()]);
    let node = |n: usize| format!("[[store.node]]\nname = \"n{n}\"\nurl = \"{}\"\n", nodes[n].url());
    let store = format!("[store]\nbackend = \"redis\"\n{}{}[registry]\nurl = \"none\"\n", node(0), node(1));
    let daemon = Daemon::start(&(store + &alert(smtp.port, "", "") + &topic("t", &sink, "")));
    let log = || daemon.log();
    nodes[1].kill();
    let mail = smtp.wait_for(OPS, "node n1 is down", log);
    assert!(mail["subject"].as_str().unwrap().starts_with("[dq "), "{mail}");
    all_is_written(&daemon);
    daemon.kill_child(CHECKER);
    let before = daemon.wait_all_up(SLOTS);
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &before);
    nodes[1].start_again();
    smtp.wait_for(OPS, "over: node n1 is down", log);
    is_told_once(&smtp, "node n1 is down");
}

#[test]
fn a_node_short_of_memory_is_reported_once_and_resolved_once() {
    let smtp = Smtp::start(free_port());
    let (sink, node) = (Sink::start(), RedisServer::start());
    let store = format!(
        "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"n0\"\nurl = \"{}\"\n[registry]\nurl = \"none\"\n",
        node.url()
    );
    let daemon = Daemon::start(&(store + &alert(smtp.port, "", "") + &topic("t", &sink, "")));
    // This value is so large that the memory of connections, which come and go, does not matter.
    node.cli(&["eval", "redis.call('SET', 'ballast', string.rep('x', 50000000))", "0"]);
    let info = node.cli(&["info", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim();
    let used: u64 = used.parse().unwrap();
    node.cli(&["config", "set", "maxmemory", &(used + used / 50).to_string()]);
    let title = "node n0 is short of memory";
    let mail = smtp.wait_for(OPS, title, || daemon.log());
    assert!(mail["text"].as_str().unwrap().contains("are used (maxmemory)"), "{mail}");
    node.cli(&["config", "set", "maxmemory", "0"]);
    smtp.wait_for(OPS, &format!("over: {title}"), || daemon.log());
    is_told_once(&smtp, title);
}

#[test]
fn a_late_topic_and_a_lost_registry_are_reported_and_resolved() {
    let smtp = Smtp::start(free_port());
    let sink = Sink::start();
    let consume = "[consume]\nprocesses = 0\n";
    let daemon = Daemon::start(
        &(alert(smtp.port, "late_after = \"1s\"", "")
            + consume
            + &topic("slow", &sink, "")
            + &topic("paused", &sink, "")),
    );
    let log = || daemon.log();
    let mut http = Http::unix(&daemon);
    http.ask("POST", "/v1/topics/paused/pause", &Value::Null).is(204);
    let mut client = daemon.client();
    for topic in ["slow", "paused"] {
        assert_eq!(client.ask(&add(topic, "1", 0)).unwrap()["code"], 1);
    }
    let mail = smtp.wait_for(OPS, "topic slow is late", log);
    assert!(
        mail["text"].as_str().unwrap().contains("1 ready jobs are not delivered, the oldest for "),
        "{mail}"
    );
    let alerts = http.get("/v1/alerts").is(200);
    assert_eq!(
        (&alerts["alerts"][0]["name"], &alerts["alerts"][0]["topic"]),
        (&json!("topic_late"), &json!("slow"))
    );
    client.ask(&json!({"cmd": "del", "topic": "slow", "id": "1"})).unwrap();
    smtp.wait_for(OPS, "over: topic slow is late", log);
    is_told_once(&smtp, "topic slow is late");
    assert_eq!(smtp.of(OPS, "topic paused").len(), 0);

    if !support::on_redis() {
        let new = json!({"name": "registered", "callback": sink.url()});
        http.ask("POST", "/v1/topics", &new).is(201);
        let file = daemon.dir.path().join("var/registry.db");
        let aside = daemon.dir.path().join("aside.db");
        std::fs::rename(&file, &aside).unwrap();
        smtp.wait_for(OPS, "the registry does not answer", log);
        std::fs::rename(&aside, &file).unwrap();
        smtp.wait_for(OPS, "over: the registry does not answer", log);
        is_told_once(&smtp, "the registry does not answer");
    }
}

#[test]
fn an_open_circuit_is_reported_and_so_is_its_recovery() {
    let smtp = Smtp::start(free_port());
    let works = Arc::new(AtomicBool::new(false));
    let sink = Sink::answering({
        let works = Arc::clone(&works);
        move |_| cli::HandlerAnswer::new(if works.load(Ordering::Relaxed) { 200 } else { 503 }, "")
    });
    let breaker = "breaker_failures = 2\nbreaker_pause = \"2s\"\nretry = [\"100ms\"]";
    let daemon = Daemon::start(&(alert(smtp.port, "late_after = \"2s\"", "") + &topic("t", &sink, breaker)));
    let log = || daemon.log();
    daemon.client().ask(&add("t", "1", 0)).unwrap();
    let title = "the circuit of topic t is open";
    let mail = smtp.wait_for(OPS, title, log);
    assert!(mail["text"].as_str().unwrap().contains("503"), "{mail}");
    works.store(true, Ordering::Relaxed);
    smtp.wait_for(OPS, &format!("over: {title}"), log);
    is_told_once(&smtp, title);
    eventually(20 * SECOND, "the job is accepted", || {
        sink.calls().last().filter(|c| c.header("dq-job-id") == "1").map(|_| ())
    });
}

#[test]
fn a_process_that_is_started_again_and_again_is_told_once() {
    let smtp = Smtp::start(free_port());
    let sink = refusing();
    let daemon = Daemon::start(
        &(alert(smtp.port, "restarts_within = \"25s\"", "") + &topic("t", &sink, "max_attempts = 1")),
    );
    for _ in 0..3 {
        daemon.kill_child("dq-timer-1");
    }
    let mail = smtp.wait_for(OPS, "dq-timer-1 is started again and again", || daemon.log());
    assert!(mail["text"].as_str().unwrap().contains("3 times within 25s, at last: "), "{mail}");
    all_is_written(&daemon);
    daemon.kill_child(CHECKER);
    daemon.kill_child("dq-timer-1");
    // When the mail about this later problem has come, a repeated mail about the restarts would have come, too.
    daemon.client().ask(&add("t", "1", 0)).unwrap();
    smtp.wait_for(OPS, "of topic t", || daemon.log());
    assert_eq!(smtp.of(OPS, "is started again").len(), 1, "{:#?}", smtp.mails());
    // The finding ends after 25 s (`restarts_within`) without a restart.
    smtp.wait_for(OPS, "over: dq-timer-1 is started again and again", || daemon.log());
    is_told_once(&smtp, "dq-timer-1 is started again and again");
}

#[test]
fn a_hanging_mail_server_delays_nothing_and_gets_its_mail_later() {
    // Connections wait in the backlog of this socket and are never answered.
    let hanging = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let port = hanging.local_addr().unwrap().port();
    let (sink, hook) = (refusing(), Sink::start());
    let fine = Sink::start();
    let webhook = format!("[[alert.webhook]]\nname = \"chat\"\nurl = \"{}\"\n", hook.url());
    let topics = topic("t", &sink, "max_attempts = 1") + &topic("fine", &fine, "");
    let daemon =
        Daemon::start(&(alert(port, "late_after = \"1s\"", "timeout = \"2s\"") + &webhook + &topics));
    let mut client = daemon.client();
    client.ask(&add("t", "1", 0)).unwrap();
    let said = |what: &str| hook.calls().iter().any(|call| call.body.contains(what));
    eventually(15 * SECOND, "the webhook", || said("a dead letter of topic t").then_some(()));
    // Jobs are still delivered, and problems are still found.
    client.ask(&add("fine", "1", 0)).unwrap();
    fine.wait_for(1, 2 * SECOND);
    let found = eventually(45 * SECOND, &format!("a finding; log:\n{}", daemon.log()), || {
        let status = daemon.status()?;
        status["findings"].as_array()?.iter().find(|f| f["name"] == "alerts_not_sent").cloned()
    });
    assert!(found["detail"].as_str().unwrap().contains("ops@example.com: 1 wait"), "{found}");
    eventually(15 * SECOND, "a finding about the failed alert", || {
        said("alerts cannot be sent").then_some(())
    });
    drop(hanging);
    let smtp = Smtp::start(port);
    smtp.wait_for(OPS, "a dead letter of topic t", || daemon.log());
    eventually(15 * SECOND, "its end", || said("over: alerts cannot be sent").then_some(()));
    assert_eq!(counted(&smtp, OPS, "t"), 1);
    assert_eq!(smtp.of(OPS, "alerts cannot be sent").len(), 0, "who was not reached need not hear of it");
}

#[test]
fn a_channel_can_be_tested_and_webhooks_obey_the_callback_guard() {
    let smtp = Smtp::start(free_port());
    let hook =
        Sink::answering(|_| cli::HandlerAnswer::new(200, r#"{"errcode":310000,"errmsg":"no keyword"}"#));
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/alerts/dingtalk.json");
    let webhook = |name: &str, url: String| {
        format!("[[alert.webhook]]\nname = \"{name}\"\nurl = \"{url}\"\ntemplate_file = \"{template}\"\n")
    };
    let both = webhook("ding", hook.url()) + &webhook("cloud", "http://169.254.169.254/latest".into());
    let daemon = Daemon::start(&(alert(smtp.port, "", "") + &both));
    let mut http = Http::unix(&daemon);
    let answer = http.ask("POST", "/v1/alerts/test", &Value::Null).is(200);
    let of = |n: usize| {
        let came = &answer["results"][n];
        (
            came["to"].as_str().unwrap(),
            came["sent"].as_bool().unwrap(),
            came["error"].as_str().unwrap_or_default(),
        )
    };
    assert_eq!(of(0), (OPS, true, ""));
    assert_eq!(of(1), ("ding", false, "it answers: {\"errcode\":310000,\"errmsg\":\"no keyword\"}"));
    assert!(of(2).2.contains("169.254.169.254 is not called: link-local"), "{answer}");
    assert_eq!(documents(&hook)[0]["msgtype"], "text");
    smtp.wait_for(OPS, "a test: alerts of dq arrive here", || daemon.log());
    http.ask("POST", "/v1/alerts/test", &json!({"webhook": "nobody"})).is_problem(
        422,
        "bad_field",
        Some("webhook"),
    );
    http.ask("POST", "/v1/alerts/test", &json!({"to": "nobody"})).is_problem(422, "bad_field", Some("to"));
    http.ask("POST", "/v1/alerts/test", &json!({"who": 1})).is_problem(422, "unknown_field", Some("who"));
    let run = |arguments: &[&str]| {
        let run_dir = daemon.dir.path().join("var/run");
        Command::new(env!("CARGO_BIN_EXE_dq"))
            .arg("alerts")
            .args(arguments)
            .arg("--run-dir")
            .arg(run_dir)
            .output()
            .unwrap()
    };
    assert!(run(&["test", "--to", "one@example.com"]).status.success());
    smtp.wait_for("one@example.com", "a test", || daemon.log());
    assert_eq!(run(&["test"]).status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&run(&["list"]).stdout), "nothing is wrong\n");
}

#[test]
fn where_nobody_is_told_a_test_says_so() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut http = Http::unix(&daemon);
    for body in [json!({}), json!({"to": OPS})] {
        http.ask("POST", "/v1/alerts/test", &body).is_problem(409, "no_channel", None);
    }
}

#[test]
fn the_php_database_supplies_the_mail_server_and_node_contacts() {
    let (smtp, database) = (Smtp::start(free_port()), mariadb::MariaDb::shared().database());
    let (sink, mut nodes) = (refusing(), [RedisServer::start(), RedisServer::start()]);
    let mut registry = open(&database.settings()).unwrap();
    let name = model::job::TopicName::new("t").unwrap();
    let shop = vec!["shop@example.com".to_owned()];
    let topic = Topic { alert: shop, max_attempts: 1, ..Topic::new(name, sink.url()) };
    registry.put(&topic, Expected::Absent).unwrap();
    let ext = "{\"redis\":\"r1@example.com, r2@example.com\"}";
    let row = format!(
        "INSERT INTO dq_alert (host, port, user, pwd, ext) VALUES ('127.0.0.1', {}, 'dq@example.com', '', '{ext}')",
        smtp.port
    );
    database.console().query_drop(row).unwrap();
    let node = |n: usize| format!("[[store.node]]\nname = \"n{n}\"\nurl = \"{}\"\n", nodes[n].url());
    let daemon = Daemon::start(&format!(
        "[store]\nbackend = \"redis\"\n{}{}[registry]\nurl = \"{}\"\n[alert]\ngather = \"1s\"\ninterval = \"1s\"\n",
        node(0),
        node(1),
        database.url()
    ));
    let log = || daemon.log();
    // dq knows the topics of the database when dq-redis-checker has read them.
    let mut client = daemon.client();
    let is_taken = || (client.ask(&add("t", "1", 0)).unwrap()["code"] == 1).then_some(());
    eventually(5 * SECOND, "the topic is known", is_taken);
    assert_eq!(smtp.wait_for("shop@example.com", "a dead letter of topic t", log)["from"], "dq@example.com");
    nodes[0].kill();
    for to in ["r1@example.com", "r2@example.com"] {
        smtp.wait_for(to, "node n0 is down", log);
    }
    assert_eq!(smtp.of("shop@example.com", "node n0").len(), 0);
    let to = json!({"to": "one@example.com"});
    assert_eq!(Http::unix(&daemon).ask("POST", "/v1/alerts/test", &to).is(200)["results"][0]["sent"], true);
}

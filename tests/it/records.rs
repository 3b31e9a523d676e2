//! Records of jobs that have ended, as the API and the command line show them, on both stores.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, SLOTS, Sink, eventually, now_ms, on_redis, topic};
use cli::HandlerAnswer;
use serde_json::{Value, json};

const ONCE: &str = "breaker_failures = 0\nmax_attempts = 1";

/// Returns a sink that answers with the status in the job's body.
fn answering() -> Sink {
    Sink::answering(|call| HandlerAnswer::new(call.body.parse().unwrap_or(200), "Closed for Today"))
}

/// Adds a job that is due now, and waits until its id has one more record.
fn end(http: &mut Http, topic: &str, id: &str, status: u16) {
    let at = format!("/v1/topics/{topic}/jobs/{id}/records");
    let count = |http: &mut Http| http.get(&at).is(200)["records"].as_array().unwrap().len();
    let before = count(http);
    let job = json!({"id": id, "body": status, "delay": 0});
    assert!(http.ask("POST", &format!("/v1/topics/{topic}/jobs"), &job).status < 300);
    eventually(10 * SECOND, "a record", || (count(http) > before).then_some(()));
}

/// Returns the topic and the id of all records that a query shows, page by page.
fn listed(http: &mut Http, path: &str) -> Vec<(String, String)> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    let and = if path.contains('?') { '&' } else { '?' };
    loop {
        let page = http.get(&format!("{path}{and}limit=4{cursor}")).is(200);
        let records = page["records"].as_array().unwrap();
        assert!(records.len() <= 4 && page["looked_at"].as_u64().unwrap() >= records.len() as u64, "{page}");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        all.extend(records.iter().map(|r| (text(&r["topic"]), text(&r["id"]))));
        assert_eq!(page["complete"], page["next"].is_null());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

fn ids(http: &mut Http, path: &str) -> Vec<String> {
    listed(http, path).into_iter().map(|(_, id)| id).collect()
}

#[test]
fn an_attempt_that_began_late_says_why() {
    let sink = answering();
    let daemon = Daemon::start(&[topic("fast", &sink, ""), topic("slow", &sink, "rate = \"1/s\"")].concat());
    let mut http = Http::tcp(&daemon);
    end(&mut http, "fast", "a", 200);
    let jobs: Vec<Value> = (0..4).map(|id| json!({"id": id.to_string(), "body": 200, "delay": 0})).collect();
    http.ask("POST", "/v1/topics/slow/jobs/batch", &json!({"jobs": jobs})).is(200);
    sink.wait_for(5, 20 * SECOND);
    let late = |http: &mut Http, topic: &str| -> Vec<Value> {
        let records = http.get(&format!("/v1/topics/{topic}/records")).is(200)["records"].clone();
        records.as_array().unwrap().iter().filter_map(|r| r["log"][0].get("late").cloned()).collect()
    };
    let slow = eventually(10 * SECOND, "late attempts of the slow topic", || {
        Some(late(&mut http, "slow")).filter(|late| late.len() >= 2)
    });
    for late in slow {
        assert!(late["ms"].as_u64().unwrap() >= 1000 && late["reason"] == "topic_limit", "{late}");
    }
    assert_eq!(late(&mut http, "fast"), [] as [Value; 0]);
}

#[test]
fn a_job_that_a_pause_held_back_says_so() {
    let sink = answering();
    let daemon = Daemon::start(&topic("t", &sink, ONCE));
    let mut http = Http::unix(&daemon);
    http.ask("POST", "/v1/topics/t/pause", &Value::Null).is(204);
    for (id, body) in [("accepted", 200), ("dead", 500)] {
        http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id, "body": body})).is(201);
    }
    let due_ms = http.get("/v1/topics/t/jobs/dead").is(200)["due_ms"].as_i64().unwrap();
    eventually(10 * SECOND, "a second of lateness", || (now_ms() > due_ms + 1_100).then_some(()));
    http.ask("POST", "/v1/topics/t/resume", &Value::Null).is(204);
    let ended = eventually(10 * SECOND, "the record", || {
        http.get("/v1/topics/t/jobs/accepted").json.get("ended").cloned()
    });
    assert_eq!(ended["log"][0]["late"]["reason"], "topic_paused", "{ended}");
    let story = http.get("/v1/topics/t/jobs/accepted/records").is(200);
    assert_eq!(story["records"][0]["log"][0]["late"]["reason"], "topic_paused", "{story}");
    let dead = eventually(10 * SECOND, "the dead letter", || {
        Some(http.get("/v1/topics/t/jobs/dead").is(200)).filter(|job| job["state"] == "dead")
    });
    assert_eq!(dead["log"][0]["late"]["reason"], "topic_paused", "{dead}");
    let shown = Command::new(env!("CARGO_BIN_EXE_dq"))
        .args(["get", "t", "accepted", "--config"])
        .arg(daemon.dir.path().join("dq.toml"))
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("after it was due: its topic was paused"), "{shown}");
}

#[test]
fn a_delivered_job_leaves_a_record_that_the_api_shows() {
    let sink = answering();
    let kept = format!("{ONCE}\nkeep_done_body = true");
    let off = "keep_done = \"0s\"";
    let daemon =
        Daemon::start(&[topic("t", &sink, ""), topic("k", &sink, &kept), topic("off", &sink, off)].concat());
    let before = now_ms();
    for mut http in Http::doors(&daemon) {
        http.get("/v1/topics/t/jobs/none").is_problem(404, "not_found", None);
        assert_eq!(http.get("/v1/topics/t/jobs/none").json.get("ended"), None);
    }
    let mut http = Http::tcp(&daemon);
    end(&mut http, "t", "a", 200);
    let answer = http.get("/v1/topics/t/jobs/a");
    answer.is_problem(404, "not_found", None);
    let record = answer.json["ended"].clone();
    assert!(answer.json["detail"].as_str().unwrap().contains("has ended"), "{answer:?}");
    let members = ["topic", "id", "outcome", "attempts", "headers", "body"].map(|name| record[name].clone());
    assert_eq!(members, [json!("t"), json!("a"), json!("delivered"), json!(1), Value::Null, Value::Null]);
    let times = ["added_ms", "due_ms", "first_attempt_ms", "last_attempt_ms", "ended_ms"];
    let times = times.map(|name| record[name].as_i64().unwrap());
    assert!(times.iter().all(|ms| (before - 1000..=now_ms() + 1000).contains(ms)), "{record}");
    assert_eq!(record["late_ms"], times[3] - times[1]);
    assert_eq!(
        (&record["log"][0]["status"], &record["log"][0]["answer"]),
        (&json!(200), &json!("Closed for Today"))
    );
    assert_eq!(http.get("/v1/topics/t/jobs/a/records").is(200), json!({"records": [record]}));

    // The jobs of one id may end several times. A topic may keep bodies, or nothing.
    http.ask("POST", "/v1/topics/k/jobs", &json!({"id": "b", "body": 1, "delay": "5h"})).is(201);
    http.ask("DELETE", "/v1/topics/k/jobs/b", &Value::Null).is(204);
    end(&mut http, "k", "b", 500);
    let story = http.get("/v1/topics/k/jobs/b/records").is(200);
    let members: Vec<_> =
        story["records"].as_array().unwrap().iter().map(|r| (&r["outcome"], &r["body"])).collect();
    assert_eq!(members, [(&json!("dead"), &json!(500)), (&json!("deleted"), &json!(1))]);
    assert_eq!(http.get("/v1/topics/k/jobs/b").is(200)["state"], "dead", "a dead letter is there");
    http.ask("POST", "/v1/topics/off/jobs", &json!({"id": "c", "body": 200, "delay": 0})).is(201);
    eventually(10 * SECOND, "a delivery", || (http.get("/v1/topics/off/jobs/c").status == 404).then_some(()));
    assert_eq!(http.get("/v1/topics/off/jobs/c/records").is(200), json!({"records": []}));

    // One request finds an id in all topics.
    end(&mut http, "k", "a", 200);
    let found = http.get("/v1/find?id=a").is(200);
    assert_eq!((&found["looked_at"], &found["next"]), (&json!(3), &Value::Null), "{found}");
    let members: Vec<_> =
        found["found"].as_array().unwrap().iter().map(|one| (&one["topic"], &one["job"])).collect();
    assert_eq!(members, [(&json!("k"), &Value::Null), (&json!("t"), &Value::Null)]);
    assert_eq!(found["found"][1]["records"], json!([record]));
    let found = http.get("/v1/find?id=b").is(200);
    assert_eq!(found["found"][0]["job"]["state"], "dead", "{found}");
    assert_eq!(http.get("/v1/find?id=nobody").is(200)["found"], json!([]));
    http.get("/v1/find").is_problem(422, "missing_field", Some("id"));
    http.get("/v1/find?id=a&cursor=zz").is_problem(422, "bad_field", Some("cursor"));

    // The records of an id are erased. The records of other ids stay, and a dead letter of the id stays, too.
    for (topic, id, erased) in [("t", "a", 1), ("t", "a", 0), ("k", "b", 2), ("never", "a", 0)] {
        let at = format!("/v1/topics/{topic}/jobs/{id}/records");
        assert_eq!(http.ask("DELETE", &at, &Value::Null).is(200), json!({"erased": erased}), "{at}");
        assert_eq!(http.get(&at).is(200), json!({"records": []}));
    }
    assert_eq!(http.get("/v1/topics/t/jobs/a").json.get("ended"), None);
    assert_eq!(http.get("/v1/topics/k/jobs/b").is(200)["state"], "dead");
    assert_eq!(listed(&mut http, "/v1/records"), [("k".to_owned(), "a".to_owned())]);
    if !on_redis() {
        let audit = http.get("/v1/audit").is(200);
        let of = |entry: &Value| (entry["action"].clone(), entry["target"].clone(), entry["jobs"].clone());
        let entries: Vec<_> = audit["entries"].as_array().unwrap().iter().map(of).collect();
        assert!(entries.contains(&(json!("record.forget"), json!("k/b"), json!(2))), "{entries:?}");
    }
}

#[test]
fn records_are_filtered_and_listed_page_by_page() {
    let sink = answering();
    let daemon = Daemon::start(&[topic("t", &sink, ONCE), topic("u", &sink, ONCE)].concat());
    let mut http = Http::tcp(&daemon);
    let mut expected = Vec::new();
    for n in 0..24 {
        let (topic, status) = (["t", "u"][n % 2], [200, 503, 410][n % 3]);
        let id = format!("{}-{n}", ["order", "mail"][n % 4 / 2]);
        if n == 12 {
            http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "gone", "body": 1, "delay": "5h"})).is(201);
            http.ask("DELETE", "/v1/topics/t/jobs/gone", &Value::Null).is(204);
            expected.insert(0, ("t".to_owned(), "gone".to_owned()));
        }
        end(&mut http, topic, &id, status);
        expected.insert(0, (topic.to_owned(), id));
    }
    let of = |picks: &dyn Fn(&str, &str) -> bool| -> Vec<(String, String)> {
        expected.iter().filter(|(topic, id)| picks(topic, id)).cloned().collect()
    };
    let number = |id: &str| id.rsplit('-').next().unwrap().parse::<usize>().unwrap_or(99);
    // On Redis, the order is not checked: each node has its own clock, and jobs may end in the same millisecond on both
    // nodes.
    let sorted = |mut all: Vec<(String, String)>| {
        if on_redis() {
            all.sort();
        }
        all
    };
    for (query, wanted) in [
        ("", of(&|_, _| true)),
        ("outcome=delivered", of(&|_, id| number(id) != 99 && number(id) % 3 == 0)),
        ("outcome=dead", of(&|_, id| number(id) != 99 && number(id) % 3 != 0)),
        ("outcome=deleted", of(&|_, id| id == "gone")),
        ("outcome=replaced", vec![]),
        ("status=410", of(&|_, id| number(id) % 3 == 2)),
        ("text=closed%20for", of(&|_, id| id != "gone")),
        ("text=STATUS%20503&status=503", of(&|_, id| number(id) % 3 == 1)),
        ("text=nowhere", vec![]),
        ("id_prefix=mail-", of(&|_, id| id.starts_with("mail-"))),
        ("since=1h", of(&|_, _| true)),
        ("until=1h", vec![]),
        ("id_prefix=&text=", of(&|_, _| true)),
    ] {
        let all = listed(&mut http, &format!("/v1/records?{query}"));
        assert_eq!(sorted(all), sorted(wanted.clone()), "{query}");
        for name in ["t", "u"] {
            let own: Vec<_> = wanted.iter().filter(|(topic, _)| topic == name).cloned().collect();
            let all = listed(&mut http, &format!("/v1/topics/{name}/records?{query}"));
            assert_eq!(sorted(all), sorted(own), "{name} {query}");
        }
    }
    // For each moment, `since` and `until` together list each record once.
    let all = http.get("/v1/topics/t/records?limit=1000").is(200);
    for record in all["records"].as_array().unwrap() {
        let at = &record["ended_ms"];
        let since: BTreeSet<String> =
            ids(&mut http, &format!("/v1/topics/t/records?since={at}")).into_iter().collect();
        let until: BTreeSet<String> =
            ids(&mut http, &format!("/v1/topics/t/records?until={at}")).into_iter().collect();
        assert_eq!(since.len() + until.len(), all["records"].as_array().unwrap().len());
        assert!(since.is_disjoint(&until) && since.contains(record["id"].as_str().unwrap()));
    }
    for (query, field) in [
        ("outcome=done", "outcome"),
        ("status=7", "status"),
        ("since=soon", "since"),
        ("format=xml", "format"),
        ("limit=0", "limit"),
        ("cursor=zz", "cursor"),
    ] {
        http.get(&format!("/v1/records?{query}")).is_problem(422, "bad_field", Some(field));
    }
    http.get("/v1/records?topic=t").is_problem(422, "unknown_field", Some("topic"));
    http.get("/v1/topics/never/records").is_problem(404, "unknown_topic", None);
}

#[test]
fn a_search_through_many_records_goes_on_where_it_ended() {
    let sink = answering();
    let daemon = Daemon::start(&topic("t", &sink, "delay = \"5h\""));
    let mut http = Http::tcp(&daemon);
    let many = 6_000;
    let jobs: Vec<Value> = (0..many).map(|n| json!({"id": format!("{n}"), "body": n})).collect();
    for _ in 0..2 {
        http.ask("POST", "/v1/topics/t/jobs/batch", &json!({"jobs": jobs})).is(200);
    }
    for path in ["/v1/topics/t/records", "/v1/records"] {
        let (mut found, mut looked, mut requests, mut cursor) = (Vec::new(), 0, 0, String::new());
        loop {
            let page = http.get(&format!("{path}?id_prefix=59&limit=1000{cursor}")).is(200);
            looked += page["looked_at"].as_u64().unwrap();
            assert!((1..=5_000).contains(&page["looked_at"].as_u64().unwrap()));
            let records = page["records"].as_array().unwrap();
            found.extend(records.iter().map(|r| r["id"].as_str().unwrap().to_owned()));
            requests += 1;
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let unequal: BTreeSet<&String> = found.iter().collect();
        assert_eq!((found.len(), unequal.len(), looked), (111, 111, many), "{path}");
        assert!(requests >= 2, "{requests}");
    }
}

#[test]
fn records_as_csv_hold_no_formulas() {
    let sink = answering();
    let daemon = Daemon::start(&topic("t", &sink, "delay = \"5h\"\nkeep_done_body = true"));
    let mut http = Http::tcp(&daemon);
    for (id, path) in [
        ("=1+1", "%3D1%2B1"),
        ("+1", "%2B1"),
        ("-1", "-1"),
        ("@SUM(A1)", "%40SUM(A1)"),
        ("a,\"b\"\nc", "a%2C%22b%22%0Ac"),
    ] {
        let at = format!("/v1/topics/t/jobs/{path}");
        http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id, "body": -5})).is(201);
        http.ask("DELETE", &at, &Value::Null).is(204);
    }
    let by_header = http.send("GET", "/v1/topics/t/records?limit=9", "Accept: text/csv\r\n", b"");
    let answer = http.get("/v1/topics/t/records?format=csv&limit=9");
    assert_eq!(by_header.json, answer.json);
    assert_eq!(answer.headers["content-type"], "text/csv; charset=utf-8");
    assert_eq!((answer.headers["dq-looked-at"].as_str(), answer.headers.get("dq-next")), ("5", None));
    let text = answer.json.as_str().unwrap();
    assert!(text.starts_with("topic,id,outcome,added,"), "{text}");
    for cell in ["\"'=1+1\"", "\"'+1\"", "\"'-1\"", "\"'@SUM(A1)\"", "\"a,\"\"b\"\"\nc\""] {
        assert!(text.contains(&format!("\r\nt,{cell},deleted,20")), "{cell} {text}");
    }
    assert_eq!(text.matches(",\"'-5\",\r\n").count(), 5, "{text}");
    let lines = http.get("/v1/records?format=ndjson&limit=2");
    assert_eq!(lines.headers["content-type"], "application/x-ndjson");
    assert!(lines.headers.contains_key("dq-next"));
    let read = http.send("GET", "/v1/records?limit=2", "Accept: application/x-ndjson\r\n", b"");
    assert_eq!(read.headers["dq-next"], lines.headers["dq-next"]);
}

/// After a reboot, `run_dir` is empty, so the timer knows the topics of the registry later than the topics of the file.
#[test]
fn a_reboot_leaves_the_records_of_a_registered_topic() {
    if on_redis() {
        // On Redis, the test would have to shift the clock of the server.
        return;
    }
    const TWO_DAYS_MS: i64 = 2 * 24 * 3600 * 1000;
    let sink = answering();
    let mut daemon = Daemon::start("");
    let mut http = Http::unix(&daemon);
    for (name, keep_done) in [("long", "3650d"), ("short", "1d")] {
        let topic = json!({"name": name, "callback": sink.url(), "keep_done": keep_done});
        http.ask("POST", "/v1/topics", &topic).is(201);
        end(&mut http, name, "a", 200);
    }
    daemon.stop();
    std::fs::remove_dir_all(daemon.dir.path().join("var/run")).unwrap();
    let daemon = Daemon::again_with_clock(&daemon, TWO_DAYS_MS);
    daemon.wait_all_up(SLOTS);
    let mut http = Http::unix(&daemon);
    let mut records = |topic: &str| {
        let story = http.get(&format!("/v1/topics/{topic}/jobs/a/records")).is(200);
        story["records"].as_array().unwrap().len()
    };
    // When the record of `short` is gone, the timer has looked at the records of both topics.
    eventually(10 * SECOND, "the record of `short` goes", || (records("short") == 0).then_some(()));
    assert_eq!(records("long"), 1);
}

#[test]
fn a_removed_topic_leaves_no_records() {
    if on_redis() {
        // On Redis, the topics are in the configuration file and cannot be removed.
        return;
    }
    let sink = answering();
    let daemon = Daemon::start("");
    let mut http = Http::unix(&daemon);
    let register = |http: &mut Http| {
        let topic = json!({"name": "t", "callback": sink.url()});
        http.ask("POST", "/v1/topics", &topic).is(201);
    };
    for (removal, status) in
        [("/v1/topics/t", 204), ("/v1/topics/t?jobs=purge", 200), ("/v1/topics/t?jobs=keep", 204)]
    {
        register(&mut http);
        end(&mut http, "t", "a", 200);
        if status == 200 {
            http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "b", "body": 1, "delay": "5h"})).is(201);
        }
        let removed = http.ask("DELETE", removal, &Value::Null).is(status);
        assert!(status == 204 || removed == json!({"purged": 1, "records": 2}), "{removed}");
        let left = usize::from(removal.ends_with("keep"));
        for id in ["a", "b"] {
            let story = http.get(&format!("/v1/topics/t/jobs/{id}/records")).is(200);
            let left = if id == "a" { left } else { 0 };
            assert_eq!(story["records"].as_array().unwrap().len(), left, "{removal} {story}");
        }
    }
    // Records of a topic that no longer exists can be erased.
    let purge = "/v1/topics/t?jobs=purge";
    assert_eq!(http.ask("DELETE", purge, &Value::Null).is(200), json!({"purged": 0, "records": 1}));
    http.ask("DELETE", purge, &Value::Null).is_problem(404, "unknown_topic", None);
}

#[test]
fn a_token_sees_the_records_of_its_own_topics_only() {
    if on_redis() {
        // Tokens need a registry.
        return;
    }
    let sink = answering();
    let topics = ["shop.a", "shop.b", "bank.a"].map(|name| topic(name, &sink, ONCE)).concat();
    let daemon = Daemon::start(&format!("[http]\nauth = \"token\"\n{topics}"));
    let mut root = Http::unix(&daemon);
    for name in ["shop.a", "bank.a", "shop.b"] {
        end(&mut root, name, "42", 503);
    }
    let mut token = |name: &str, scope: &str| {
        let made = root.ask("POST", "/v1/tokens", &json!({"name": name, "scopes": [scope]})).is(201);
        format!("Authorization: Bearer {}\r\n", made["token"].as_str().unwrap())
    };
    let (shop, bank) = (token("shop", "produce:shop.*"), token("bank", "read:bank.a"));
    let manager = token("manager", "manage:shop.a");
    let mut http = Http::tcp(&daemon);
    let mut get = |token: &str, path: &str| http.send("GET", path, token, b"");
    for (token, own) in [(&shop, &["shop.b", "shop.a"][..]), (&bank, &["bank.a"])] {
        let page = get(token, "/v1/records").is(200);
        let seen = |list: &Value| -> Vec<String> {
            list.as_array().unwrap().iter().map(|r| r["topic"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            (seen(&page["records"]), &page["looked_at"]),
            (own.iter().map(ToString::to_string).collect(), &json!(own.len()))
        );
        let found = get(token, "/v1/find?id=42").is(200);
        let mut topics = seen(&found["found"]);
        topics.reverse();
        assert_eq!((topics, &found["looked_at"]), (seen(&page["records"]), &json!(own.len())));
        assert_eq!(page["next"], Value::Null);
    }
    // A cursor gives no access to other topics.
    let all = root.get("/v1/records?limit=1").is(200);
    let path = format!("/v1/records?cursor={}", all["next"].as_str().unwrap());
    let page = get(&bank, &path).is(200);
    assert!(page["records"].as_array().unwrap().iter().all(|r| r["topic"] == "bank.a"), "{page}");
    for path in ["/v1/topics/bank.a/records", "/v1/topics/bank.a/jobs/42/records"] {
        get(&shop, path).is_problem(403, "forbidden", None);
        get(&bank, path).is(200);
    }
    // The answers of receivers are shown and searched only with the scope `read`.
    for (token, path, answer, found) in [
        (&bank, "/v1/topics/bank.a", json!("Closed for Today"), 1),
        (&shop, "/v1/topics/shop.a", Value::Null, 0),
    ] {
        let story = get(token, &format!("{path}/jobs/42/records")).is(200);
        assert_eq!(story["records"][0]["log"][0]["answer"], answer);
        let page = get(token, &format!("{path}/records?text=closed")).is(200);
        assert_eq!(page["records"].as_array().unwrap().len(), found, "{page}");
        let page = get(token, &format!("{path}/records?text=status")).is(200);
        assert_eq!(page["records"].as_array().unwrap().len(), 1, "{page}");
        let csv = get(token, &format!("{path}/records?format=csv"));
        assert_eq!(csv.json.as_str().unwrap().contains("Closed"), found == 1);
    }
    // A bulk operation with a `text` also does not search in the answers that the caller must not see.
    let replay = |text: &str| {
        let filter = json!({"text": text});
        json!({"topic": "shop.a", "operation": "replay", "dry_run": true, "filter": filter}).to_string()
    };
    let json_type = "Content-Type: application/json\r\n";
    for (text, expected) in [("closed", 0), ("status", 1)] {
        let headers = format!("{manager}{json_type}");
        let counted = http.send("POST", "/v1/jobs/bulk", &headers, replay(text).as_bytes()).is(200);
        let found = counted["matched"].as_u64().unwrap() + counted["skipped"].as_u64().unwrap();
        assert_eq!(found, expected, "{text}: {counted}");
    }
    let counted = root.send("POST", "/v1/jobs/bulk", json_type, replay("closed").as_bytes()).is(200);
    assert_eq!(counted["matched"].as_u64().unwrap() + counted["skipped"].as_u64().unwrap(), 1, "{counted}");
    // A client that may add jobs may not erase their records.
    let forget = "/v1/topics/shop.a/jobs/42/records";
    http.send("DELETE", forget, &shop, b"").is_problem(403, "forbidden", None);
}

/// Runs a `dq` command. Returns its exit code, its output, and its errors.
fn dq(daemon: &Daemon, words: &[&str]) -> (i32, String, String) {
    let run_dir = daemon.dir.path().join("var/run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    let out = command.args(words).arg("--run-dir").arg(run_dir).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

#[test]
fn the_command_line_shows_finds_and_erases_records() {
    let sink = answering();
    let daemon = Daemon::start(&[topic("t", &sink, ONCE), topic("u", &sink, ONCE)].concat());
    let mut http = Http::tcp(&daemon);
    end(&mut http, "t", "a", 200);
    end(&mut http, "u", "a", 503);
    end(&mut http, "u", "=b", 200);

    // The job is no longer there, but its record is shown.
    let (code, out, err) = dq(&daemon, &["get", "t", "a"]);
    assert!(out.contains("delivered ") && out.contains(" after 1 attempt\n"), "{out}");
    assert!(code == 3 && out.contains("Closed for Today") && err.contains("has ended"), "{code} {out} {err}");
    let (code, out, err) = dq(&daemon, &["get", "t", "a", "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    let error: Value = serde_json::from_str(&err).unwrap();
    assert_eq!((code, &error["error"]["exit"]), (3, &json!(3)));
    assert_eq!(answer["records"][0]["outcome"], "delivered");
    let (code, out, _) = dq(&daemon, &["get", "t", "none"]);
    assert_eq!((code, out.as_str()), (3, ""));

    let (code, out, _) = dq(&daemon, &["records"]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(code == 0 && lines.len() == 4 && lines[0].starts_with("TOPIC  ID  OUTCOME"), "{out}");
    for (words, ids) in [
        (&["t"][..], &["a"][..]),
        (&["u", "--outcome", "dead"], &["a"]),
        (&["u", "--status", "200", "--since", "1h"], &["=b"]),
        (&["u", "--text", "STATUS 503"], &["a"]),
        (&["u", "--id-prefix", "="], &["=b"]),
        (&["u", "--until", "1h"], &[]),
        (&["--all", "--limit"], &[]),
    ] {
        let (code, out, err) = dq(&daemon, &[&["records", "--json"], words].concat());
        if words[0] == "--all" {
            assert_eq!(code, 2, "{err}");
            continue;
        }
        let read =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
        let shown: Vec<String> = out.lines().map(read).collect();
        assert_eq!((code, shown), (0, ids.iter().map(ToString::to_string).collect()), "{words:?} {err}");
    }
    let (code, _, err) = dq(&daemon, &["records", "t", "--since", "soon"]);
    assert!(code == 2 && err.contains("\"soon\""), "{err}");
    let (code, out, _) = dq(&daemon, &["records", "--csv", "--all"]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(code == 0 && lines.len() == 4 && lines[0].starts_with("topic,id,outcome"), "{out}");
    assert!(out.contains("\nu,\"'=b\",delivered,"), "{out}");
    let (_, out, err) = dq(&daemon, &["records", "--csv", "--limit", "2"]);
    assert!(out.lines().count() == 3 && err.contains("there are more"), "{out} {err}");

    let (code, out, _) = dq(&daemon, &["find", "a"]);
    let has = |what: &str| out.lines().any(|line| line.contains(what));
    assert!(
        code == 0 && has("t      ended: delivered") && has("u      dead") && has("u      ended: dead"),
        "{out}"
    );
    let (code, _, err) = dq(&daemon, &["find", "nobody"]);
    assert!(code == 3 && err.contains("keep_done"), "{err}");

    let (code, out, _) = dq(&daemon, &["forget", "t", "a", "--yes"]);
    assert_eq!((code, out.as_str()), (0, "forgotten: t:a (1 record)\n"));
    let (code, out, _) = dq(&daemon, &["get", "t", "a"]);
    assert_eq!((code, out.as_str()), (3, ""));
    let (code, out, _) = dq(&daemon, &["forget", "t", "a", "--json"]);
    assert_eq!((code, out.as_str()), (0, "{\"erased\":0}\n"));
}

#[test]
fn jobs_of_a_removed_topic_are_found_without_records() {
    let daemon = Daemon::start("");
    for words in [
        &["topics", "set", "gone", "--callback", "http://127.0.0.1:9/"][..],
        &["add", "gone", "--id", "a", "--delay", "5h", "1"],
        &["topics", "delete", "gone", "--keep"],
    ] {
        let (code, _, err) = dq(&daemon, words);
        assert_eq!(code, 0, "{err}");
    }
    let (code, out, err) = dq(&daemon, &["find", "--topic", "gone"]);
    assert!(code == 0 && out.contains("gone   a ") && err.is_empty(), "{code} {out} {err}");
    let (code, _, err) = dq(&daemon, &["find", "--topic", "never"]);
    assert!(code == 3 && err.contains("never"), "{code} {err}");
}

#[test]
fn records_of_more_topics_than_one_request_searches_are_found() {
    let sink = answering();
    let topics: String = (0..230).map(|n| topic(&format!("t{n:03}"), &sink, "delay = \"5h\"")).collect();
    let daemon = Daemon::start(&topics);
    let mut http = Http::tcp(&daemon);
    let mut expected = BTreeSet::new();
    for n in (0..230).step_by(3) {
        let name = format!("t{n:03}");
        let jobs: Vec<Value> = (0..3).map(|id| json!({"id": format!("{id}"), "body": 1})).collect();
        for _ in 0..2 {
            http.ask("POST", &format!("/v1/topics/{name}/jobs/batch"), &json!({"jobs": jobs})).is(200);
        }
        expected.extend((0..3).map(|id| (name.clone(), id.to_string())));
    }
    let all = listed(&mut http, "/v1/records");
    assert_eq!((all.len(), all.into_iter().collect::<BTreeSet<_>>()), (expected.len(), expected));
    // On a busy host, one request may not reach all topics.
    let (mut found, mut looked, mut path) = (0, 0, "/v1/find?id=2".to_owned());
    loop {
        let page = http.get(&path).is(200);
        found += page["found"].as_array().unwrap().len();
        looked += page["looked_at"].as_u64().unwrap();
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/find?id=2&cursor={next}");
    }
    assert_eq!((found, looked), (77, 230));
}

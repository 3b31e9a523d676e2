//! Tags of jobs, and the search for jobs by them: over HTTP and TCP, and with the command line.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, now_ms, on_redis, topic};
use cli::HandlerAnswer;
use serde_json::{Value, json};

/// Runs `dq` with `input` on stdin. Returns its exit code, and what it wrote to stdout and stderr.
fn dq_with(daemon: &Daemon, words: &[&str], input: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(words).arg("--run-dir").arg(daemon.dir.path().join("var/run"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn dq(daemon: &Daemon, words: &[&str]) -> (i32, String, String) {
    dq_with(daemon, words, "")
}

fn job(http: &mut Http, topic: &str, id: &str) -> Value {
    http.get(&format!("/v1/topics/{topic}/jobs/{id}")).is(200)
}

#[test]
fn a_job_has_its_tags_from_the_add_to_the_record() {
    let sink = Sink::answering(|call| match call.header("dq-job-id") {
        "dies" => HandlerAnswer::new(410, "gone"),
        _ => HandlerAnswer::new(200, "ok"),
    });
    let daemon = Daemon::start(&topic("t", &sink, "max_attempts = 1"));
    let mut http = Http::tcp(&daemon);
    // Jobs with tags are added over TCP, over HTTP and with the command line, alone and in batches.
    let one = |id: &str| json!({"id": id, "body": 1, "delay": "1h", "tags": ["shop:7", "a", "shop:7"]});
    let mut add = one("tcp");
    (add["cmd"], add["topic"]) = (json!("add"), json!("t"));
    assert_eq!(daemon.client().ask(&add).unwrap()["code"], 1);
    let many =
        json!({"cmd": "madd", "topic": "t", "jobs": [one("tcp-many"), {"id": "x", "body": 1, "tags": "a"}]});
    let answer = daemon.client().ask(&many).unwrap();
    assert_eq!((&answer["data"][0]["code"], &answer["data"][1]["err"]), (&json!(1), &json!("bad_field")));
    http.ask("POST", "/v1/topics/t/jobs", &one("http")).is(201);
    let jobs = json!({"jobs": [one("http-many"), {"body": 1, "tags": ["a b"]}]});
    let answer = http.ask("POST", "/v1/topics/t/jobs/batch", &jobs).is(200);
    assert_eq!(
        (&answer["results"][0]["status"], &answer["results"][1]["field"]),
        (&json!(201), &json!("tags"))
    );
    let cli = ["add", "t", "1", "--id", "cli", "--delay", "1h", "--tag", "shop:7", "--tag", "a"];
    assert_eq!(dq(&daemon, &cli).0, 0);
    let lines =
        "{\"id\": \"cli-many\", \"body\": 1}\n{\"id\": \"cli-own\", \"body\": 1, \"tags\": [\"own\"]}\n";
    let batch = ["add", "t", "--batch", "-", "--delay", "1h", "--tag", "shop:7", "--tag", "a"];
    assert_eq!(dq_with(&daemon, &batch, lines).0, 0);
    for id in ["tcp", "tcp-many", "http", "http-many", "cli", "cli-many"] {
        assert_eq!(job(&mut http, "t", id)["tags"], json!(["a", "shop:7"]), "{id}");
    }
    assert_eq!(job(&mut http, "t", "cli-own")["tags"], json!(["own"]));
    let shown = daemon.client().ask(&json!({"cmd": "get", "topic": "t", "id": "tcp"})).unwrap();
    assert_eq!(shown["job"]["tags"], json!(["a", "shop:7"]));
    assert!(dq(&daemon, &["get", "t", "tcp"]).1.contains("tags      a, shop:7\n"));
    let listed = http.get("/v1/topics/t/jobs?state=delayed").is(200);
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 7);
    assert!(listed["jobs"].as_array().unwrap().iter().all(|job| job["tags"].is_array()), "{listed}");
    // A change of the tags alone is possible, and the tags stay when another field is changed.
    let at = "/v1/topics/t/jobs/http";
    http.ask("PATCH", at, &json!({"tags": ["b"]})).is(204);
    http.ask("PATCH", at, &json!({"headers": {"x-a": "1"}, "path": "/7"})).is(204);
    let shown = job(&mut http, "t", "http");
    assert_eq!(
        [&shown["tags"], &shown["path"], &shown["headers"]],
        [&json!(["b"]), &json!("/7"), &json!({"x-a": "1"})]
    );
    http.ask("PATCH", at, &json!({"tags": null})).is(204);
    let shown = job(&mut http, "t", "http");
    assert_eq!((shown.get("tags"), &shown["path"]), (None, &json!("/7")));
    // No receiver gets the tags. Records keep them, although the topic keeps no bodies.
    for id in ["tcp", "dies"] {
        http.ask(
            "POST",
            "/v1/topics/t/jobs",
            &json!({"id": id, "body": 1, "tags": ["shop:7"], "path": "/7"}),
        );
        let records = format!("/v1/topics/t/jobs/{id}/records");
        let record = eventually(10 * SECOND, id, || {
            let records = http.get(&records).is(200);
            records["records"].as_array().unwrap().iter().find(|r| r["attempts"] == 1).cloned()
        });
        assert_eq!((&record["tags"], record.get("headers")), (&json!(["shop:7"]), None), "{record}");
    }
    for call in sink.calls() {
        assert!(call.headers.iter().all(|(name, value)| !name.contains("tag") && !value.contains("shop:7")));
    }
    assert_eq!(job(&mut http, "t", "dies")["tags"], json!(["shop:7"]), "a dead letter");
    assert!(dq(&daemon, &["get", "t", "tcp"]).1.contains("tags      shop:7\n"));
    for (query, count) in [("tag=shop:7", 2), ("tag=shop%3A7&outcome=dead", 1), ("tag=shop", 0)] {
        for path in ["/v1/records", "/v1/topics/t/records"] {
            let found = http.get(&format!("{path}?{query}")).is(200);
            assert_eq!(found["records"].as_array().unwrap().len(), count, "{path} {query}: {found}");
        }
    }
    let (code, out, _) = dq(&daemon, &["records", "--tag", "shop:7", "--outcome", "dead", "--json"]);
    assert_eq!((code, out.lines().count()), (0, 1), "{out}");
    let csv = http.get("/v1/records?format=csv&outcome=dead").json;
    assert!(csv.as_str().unwrap().ends_with(",shop:7\r\n"), "{csv}");
}

#[test]
fn bad_tags_are_refused_with_what_would_do() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let (mut http, mut client) = (Http::tcp(&daemon), daemon.client());
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "a", "body": 1, "delay": "1h"})).is(201);
    let nine: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    for (tags, hint) in [
        (json!("shop:7"), "list"),
        (json!([7]), "texts"),
        (json!([""]), "1 to 64 bytes"),
        (json!(["x".repeat(65)]), "1 to 64 bytes"),
        (json!(["a b"]), "\"a b\" has ' '"),
        (json!(["a,b"]), "comma"),
        (json!(["a\u{85}"]), "control"),
        (json!(nine), "at most 8"),
    ] {
        let mut add = json!({"id": "b", "body": 1, "tags": tags});
        let answers = [
            http.ask("POST", "/v1/topics/t/jobs", &add),
            http.ask("PATCH", "/v1/topics/t/jobs/a", &json!({"tags": tags})),
        ];
        for answer in answers {
            answer.is_problem(422, "bad_field", Some("tags"));
            let detail = answer.json["detail"].as_str().unwrap();
            assert!(detail.contains("tags") && detail.contains(hint), "{detail}");
        }
        (add["cmd"], add["topic"]) = (json!("add"), json!("t"));
        let answer = client.ask(&add).unwrap();
        let message = answer["msg"].as_str().unwrap();
        assert!(
            answer["err"] == "bad_field" && message.contains("tags") && message.contains(hint),
            "{answer}"
        );
    }
    assert_eq!(job(&mut http, "t", "a").get("tags"), None);
    http.get("/v1/topics/t/jobs/b").is_problem(404, "not_found", None);
    http.get("/v1/records?tag=a%2Cb").is_problem(422, "bad_field", Some("tag"));
    let (code, _, err) = dq(&daemon, &["add", "t", "1", "--tag", "a b"]);
    assert!(code != 0 && err.contains("white space"), "{code} {err}");
}

/// Returns the topic, the state and the id of all jobs that a search shows, page by page, and how many jobs the search
/// has looked at.
fn searched(http: &mut Http, query: &str, limit: usize) -> (Vec<[String; 3]>, u64) {
    let (mut all, mut looked, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let page = http.get(&format!("/v1/jobs?{query}&limit={limit}{cursor}")).is(200);
        let jobs = page["jobs"].as_array().unwrap();
        assert!(jobs.len() <= limit && page["looked_at"].as_u64().unwrap() <= 5_400, "{page}");
        all.extend(
            jobs.iter()
                .map(|job| ["topic", "state", "id"].map(|name| job[name].as_str().unwrap().to_owned())),
        );
        looked += page["looked_at"].as_u64().unwrap();
        assert_eq!(page["complete"], page["next"].is_null());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (all, looked),
        }
    }
}

fn ids(found: &[[String; 3]]) -> Vec<&str> {
    found.iter().map(|[_, _, id]| id.as_str()).collect()
}

#[test]
fn pending_jobs_and_dead_letters_are_searched_in_all_topics() {
    let sink = Sink::answering(|_| HandlerAnswer::new(410, "gone"));
    let names = ["a", "b", "c", "d", "e", "f"];
    let daemon = Daemon::start(&names.map(|name| topic(name, &sink, "max_attempts = 1")).concat());
    let mut http = Http::tcp(&daemon);
    // The topics c and e have no jobs. The topic f has ready jobs, because it is paused.
    let begun = now_ms();
    let hours = |n: i64| begun + n * 3_600_000;
    for (n, name) in [(0, "a"), (1, "b"), (2, "d")] {
        let jobs: Vec<Value> = (0..5)
            .map(|i| json!({"id": format!("{name}-{i}"), "body": i, "run_at": hours(1 + n + i), "tags": [format!("n:{i}"), "all"]}))
            .collect();
        http.ask("POST", &format!("/v1/topics/{name}/jobs/batch"), &json!({ "jobs": jobs })).is(200);
    }
    http.ask("POST", "/v1/topics/f/pause", &Value::Null);
    for (name, id) in [("f", "f-0"), ("f", "f-1"), ("b", "dead")] {
        let job = json!({"id": id, "body": 1, "tags": ["n:0"]});
        http.ask("POST", &format!("/v1/topics/{name}/jobs"), &job).is(201);
    }
    eventually(10 * SECOND, "a dead letter", || {
        (job(&mut http, "b", "dead")["state"] == "dead").then_some(())
    });
    let delayed = |name: &'static str| (0..5).map(move |i| format!("{name}-{i}"));
    let (a, b, d): (Vec<_>, Vec<_>, Vec<_>) =
        (delayed("a").collect(), delayed("b").collect(), delayed("d").collect());
    let dead = vec!["dead".to_owned()];
    let f = vec!["f-0".to_owned(), "f-1".to_owned()];
    let first = |many: &[String]| many[..1].to_vec();
    for (query, expected, looks) in [
        ("format=json".to_owned(), [&a[..], &b, &dead, &d, &f].concat(), 18),
        ("state=delayed".to_owned(), [&a[..], &b, &d].concat(), 15),
        ("state=dead,ready".to_owned(), [&dead[..], &f].concat(), 3),
        ("state=leased".to_owned(), vec![], 0),
        ("tag=n:0".to_owned(), [first(&a), first(&b), dead.clone(), first(&d), f.clone()].concat(), 18),
        ("tag=all&state=ready".to_owned(), vec![], 2),
        ("tag=none".to_owned(), vec![], 18),
        ("id_prefix=b-&state=delayed".to_owned(), b.clone(), 15),
        ("id_prefix=b-3".to_owned(), vec![b[3].clone()], 18),
        ("topic=d".to_owned(), d.clone(), 5),
        ("topic=c".to_owned(), vec![], 0),
        // With `due_since`, the search begins at the first job that is due at this time or later. With `due_until`, it
        // ends at the last job that is due before this time.
        (format!("topic=a&due_since={}", hours(4)), a[3..].to_vec(), 2),
        (format!("topic=a&due_since={}", hours(4) + 1), a[4..].to_vec(), 1),
        (format!("state=delayed&due_since={0}&due_until={0}", hours(4)), vec![], 9),
        (format!("state=delayed&due_until={}", hours(2)), a[..1].to_vec(), 15),
        (format!("due_until={}", hours(1)), [&dead[..], &f].concat(), 18),
    ] {
        for limit in [1, 2, 3, 100] {
            let (found, looked) = searched(&mut http, &query, limit);
            let mut shown: Vec<&str> = ids(&found);
            if on_redis() {
                shown.sort_by_key(|id| expected.iter().position(|one| one == id));
            }
            assert_eq!(shown, expected, "{query}, {limit} on a page");
            assert!(looked == looks || limit < 100 || on_redis(), "{query}: looked at {looked}");
        }
    }
    let (found, _) = searched(&mut http, "tag=n:0", 100);
    assert!(
        found.contains(&["b", "dead", "dead"].map(str::to_owned))
            && found.contains(&["f", "ready", "f-0"].map(str::to_owned))
    );
    for (query, field) in [
        ("state=gone", "state"),
        ("tag=a%20b", "tag"),
        ("due_since=2h", "due_since"),
        ("limit=0", "limit"),
        ("cursor=zz", "cursor"),
    ] {
        http.get(&format!("/v1/jobs?{query}")).is_problem(422, "bad_field", Some(field));
    }
    http.get("/v1/jobs?topic=never").is_problem(404, "unknown_topic", None);
    // The search also answers with lines of JSON, and with CSV.
    let lines = http.get("/v1/jobs?format=ndjson&limit=2");
    assert!(lines.headers.contains_key("dq-next") && lines.headers["dq-count"] == "2", "{lines:?}");
    let csv = http.send("GET", "/v1/jobs?topic=b&state=dead", "Accept: text/csv\r\n", b"");
    let text = csv.json.as_str().unwrap().to_owned();
    assert!(text.starts_with("topic,id,state,added,") && text.contains("\r\nb,dead,dead,20"), "{text}");
    assert!(text.ends_with(",410,410: the receiver is gone,gone,1,n:0\r\n"), "{text}");

    // `dq find` makes such searches, too.
    let lines = |words: &[&str]| {
        let (code, out, err) = dq(&daemon, &[&["find", "--json"], words].concat());
        let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().map(str::to_owned);
        (code, out.lines().filter_map(id).collect::<BTreeSet<String>>(), err)
    };
    for (code_expected, words, expected) in [
        (0, &["--state", "delayed", "--tag", "n:0"][..], vec!["a-0", "b-0", "d-0"]),
        (0, &["b-", "--state", "delayed"], vec!["b-0", "b-1", "b-2", "b-3", "b-4"]),
        // The dead letter has a record, too.
        (0, &["--tag", "n:0", "--topic", "b"], vec!["b-0", "dead"]),
        // No job has this id, but the ids of some jobs begin with it.
        (3, &["f-"], vec!["f-0", "f-1"]),
        (3, &["dea"], vec!["dead"]),
    ] {
        let (code, found, err) = lines(words);
        assert_eq!(
            (code, found),
            (code_expected, expected.iter().map(ToString::to_string).collect()),
            "{words:?} {err}"
        );
    }
    let (code, out, _) = dq(&daemon, &["find", "--tag", "n:0", "--limit", "2"]);
    assert!(code == 0 && out.contains("TAGS") && out.contains("all n:0"), "{out}");
    let (code, _, err) = dq(&daemon, &["find", "--tag", "none"]);
    assert!(code == 3 && err.contains("no job meets"), "{err}");
    let (code, _, err) = dq(&daemon, &["find"]);
    assert!(code == 2 && err.contains("--tag"), "{err}");
    let (code, _, err) = dq(&daemon, &["find", "--state", "gone"]);
    assert!(code != 0 && err.contains("\"gone\""), "{code} {err}");
}

#[test]
fn a_search_through_many_jobs_goes_on_where_it_ended() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut http = Http::tcp(&daemon);
    let (many, begun) = (12_000_usize, now_ms() + 3_600_000);
    let job = |n: usize| {
        let tags: &[&str] = if n % 100 == 99 { &["rare"] } else { &[] };
        json!({"id": format!("{n:05}"), "body": n, "run_at": begun + n as i64, "tags": tags})
    };
    for n in (0..many).step_by(3_000) {
        let jobs: Vec<Value> = (n..n + 3_000).map(job).collect();
        http.ask("POST", "/v1/topics/t/jobs/batch", &json!({ "jobs": jobs })).is(200);
    }
    let expected: Vec<String> = (99..many).step_by(100).map(|n| format!("{n:05}")).collect();
    for limit in [7, 1000] {
        let (found, looked) = searched(&mut http, "tag=rare", limit);
        assert_eq!((ids(&found), looked), (expected.iter().map(String::as_str).collect(), many as u64));
    }
    let first = http.get("/v1/jobs?tag=rare&limit=1000").is(200);
    assert_eq!(first["complete"], false, "one request does not look at all jobs");
    // With limits for the due time, the search is short.
    let between = format!("due_since={}&due_until={}", begun + 11_000, begun + 11_100);
    let (found, looked) = searched(&mut http, &between, 1000);
    assert_eq!((found.len(), ids(&found)[0], ids(&found)[99]), (100, "11000", "11099"));
    assert!(looked < 300, "{looked}");
}

#[test]
fn a_token_finds_the_jobs_of_its_own_topics_only() {
    if on_redis() {
        // Tokens need a registry.
        return;
    }
    let sink = Sink::answering(|_| HandlerAnswer::new(410, "a secret answer"));
    let topics = ["shop.a", "shop.b", "bank.a"].map(|name| topic(name, &sink, "max_attempts = 1")).concat();
    let daemon = Daemon::start(&format!("[http]\nauth = \"token\"\n{topics}"));
    let mut root = Http::unix(&daemon);
    for name in ["shop.a", "shop.b", "bank.a"] {
        let job = json!({"id": name, "body": 1, "tags": ["x"]});
        root.ask("POST", &format!("/v1/topics/{name}/jobs"), &job).is(201);
        eventually(10 * SECOND, name, || (self::job(&mut root, name, name)["state"] == "dead").then_some(()));
    }
    let mut token = |name: &str, scope: &str| {
        let made = root.ask("POST", "/v1/tokens", &json!({"name": name, "scopes": [scope]})).is(201);
        format!("Authorization: Bearer {}\r\n", made["token"].as_str().unwrap())
    };
    let (shop, bank) = (token("shop", "produce:shop.*"), token("bank", "read:bank.a"));
    let mut http = Http::tcp(&daemon);
    let mut get = |token: &str, path: &str| http.send("GET", path, token, b"");
    for (token, own, answer) in
        [(&shop, &["shop.a", "shop.b"][..], None), (&bank, &["bank.a"], Some("a secret answer"))]
    {
        let page = get(token, "/v1/jobs?tag=x").is(200);
        let jobs = page["jobs"].as_array().unwrap();
        let seen: Vec<&str> = jobs.iter().map(|job| job["topic"].as_str().unwrap()).collect();
        assert_eq!((seen, &page["looked_at"]), (own.to_vec(), &json!(own.len())));
        assert!(jobs.iter().all(|job| job["log"][0]["answer"].as_str() == answer), "{page}");
    }
    get(&shop, "/v1/jobs?topic=bank.a").is_problem(403, "forbidden", Some("topic"));
    get(&shop, "/v1/jobs?topic=never").is_problem(403, "forbidden", Some("topic"));
    get(&shop, "/v1/jobs?topic=shop.b").is(200);
    // A cursor gives no access to other topics.
    let all = get(&bank, "/v1/jobs?limit=1").is(200);
    assert_eq!(all["next"], Value::Null);
    let first = root.get("/v1/jobs?limit=1").is(200);
    let page = get(&shop, &format!("/v1/jobs?cursor={}", first["next"].as_str().unwrap())).is(200);
    assert!(page["jobs"].as_array().unwrap().iter().all(|job| job["topic"] != "bank.a"), "{page}");
}

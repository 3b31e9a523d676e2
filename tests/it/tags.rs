//! Tags of jobs, and the search for jobs by them: over HTTP and TCP, and with the command line.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, topic};
use cli::Answer;
use serde_json::{Value, json};

/// Runs `dq`. Returns its exit code, and what it wrote.
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
        "dies" => Answer::new(410, "gone"),
        _ => Answer::new(200, "ok"),
    });
    let daemon = Daemon::start(&topic("t", &sink, "max_attempts = 1"));
    let mut http = Http::tcp(&daemon);
    // By TCP, HTTP and the command line, alone and in batches.
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
    // They are changed alone, and stay when something else is changed.
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
    // No receiver gets them, and records keep them, although the topic keeps no bodies.
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

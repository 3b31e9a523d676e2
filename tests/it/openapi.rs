//! The document of the API and the API itself must agree. Independent tools check this. They do not know dq.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, free_port, topic};
use serde_json::{Value, json};

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// Paths with their methods.
type Routes = BTreeMap<String, BTreeSet<String>>;

fn documented(document: &Value) -> Routes {
    let paths = document["paths"].as_object().unwrap();
    let methods = |item: &Value| item.as_object().unwrap().keys().map(|m| m.to_ascii_uppercase()).collect();
    paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()
}

/// Returns a tool that `make tools` installs.
fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin").join(name);
    assert!(path.exists(), "{} is not there: make tools", path.display());
    path
}

#[test]
fn the_document_and_the_routes_are_the_same() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, "delay = \"5h\""));
    let mut http = Http::tcp(&daemon);
    let document = http.get("/openapi.json").is(200);
    let routes = documented(&document);
    assert!(routes.len() >= 17, "{routes:?}");
    for (path, methods) in &routes {
        let at = path
            .replace("{topic}", "t")
            .replace("{id}", "1")
            .replace("{name}", "n")
            .replace("{ticket}", "x")
            .replace("{number}", "1");
        for method in METHODS {
            // These requests may be refused for their content, but not for their path.
            let answer = http.send(method, &at, "Content-Type: text/plain\r\n", b"x");
            let missing = answer.status == 405 || answer.json["code"] == "no_route";
            // The path of batches is also the path of a job.
            if path.ends_with("/jobs/batch") && method != "POST" {
                continue;
            }
            assert_eq!(!missing, methods.contains(method), "{method} {at}: {answer:?}");
        }
        for (_, operation) in document["paths"][path].as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(operation["summary"].as_str().is_some_and(|s| !s.is_empty()), "{id} says what it does");
            let responses = operation["responses"].as_object().unwrap();
            let done = responses.keys().any(|status| status.starts_with('2'));
            let problems = responses.values().any(|r| r["content"].get("application/problem+json").is_some());
            assert!(done && (problems || id.ends_with("z")), "{id}: {responses:?}");
        }
    }
    // The checks above do not notice a route that is missing in the document. (Routes that only the console uses are no
    // part of the API, and the stream `/v1/events` never ends.)
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/roles/http_server");
    let past: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| std::fs::read_to_string(path).unwrap())
        .flat_map(|text| {
            text.lines().filter(|l| l.contains(".route(")).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    assert!(
        past.iter().all(|line| line.contains("/jobs/batch\"") || line.contains("/v1/events\"")),
        "{past:?}"
    );
}

#[test]
fn every_post_takes_an_idempotency_key_and_examples_are_valid() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("orders", &sink, "delay = \"5h\""));
    let mut http = Http::tcp(&daemon);
    let document = http.get("/openapi.json").is(200);
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    for (path, item) in document["paths"].as_object().unwrap() {
        if let Some(parameters) = item["post"]["parameters"].as_array() {
            assert!(parameters.iter().any(|p| p["name"] == "Idempotency-Key"), "{path}");
        }
    }
    let example = |schema: &str| {
        let schema = &document["components"]["schemas"][schema];
        schema.get("example").unwrap_or(&schema["examples"][0]).clone()
    };
    http.ask("POST", "/v1/topics/orders/jobs", &example("NewJob")).is(201);
    http.ask("PATCH", "/v1/topics/orders/jobs/42", &example("JobChange")).is(204);
    http.ask("POST", "/v1/topics/orders/dead/purge", &example("DeadSelection")).is(200);
    http.ask("POST", "/v1/topics/orders/dead/redrive", &example("Redrive")).is(200);
    http.ask("POST", "/v1/topics/orders/test", &example("TestCall")).is(200);
    let mut new = example("NewTopic");
    new["name"] = json!("others");
    http.ask("POST", "/v1/topics", &new).is(201);
}

#[test]
fn the_document_is_valid() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let document = Http::tcp(&daemon).get("/openapi.json").is(200);
    let file = daemon.dir.path().join("openapi.json");
    std::fs::write(&file, document.to_string()).unwrap();
    let checked = Command::new(tool("openapi-spec-validator")).arg(&file).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

/// The configuration of Schemathesis: which checks are switched off, and why.
const SCHEMATHESIS: &str = r#"
# Some requests are refused although their schema allows them: only one of delay and run_at may be given, a duration
# must be a duration, a range of durations is not a range of texts, an id has at most 256 bytes and not 256 letters, and
# a PATCH must change something.
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "412", "422", "503"]
negative_data_rejection.expected-statuses = ["4xx"]
# An added job is delivered when it is due. After that it is gone, or a dead letter.
ensure_resource_availability.enabled = false
# After a job was deleted, a dead letter of an earlier job with its id may be there.
use_after_free.enabled = false

# Jobs and dead letters belong to an existing topic.
[parameters]
"path.topic" = "orders"

# Topics are created and removed. None of them is the topic of the jobs.
[[operations]]
include-tag = "topics"
parameters = { "path.topic" = "fuzzed" }

# This operation reports what is wrong, and does not refuse it.
[[operations]]
include-operation-id = "check_topic"
checks = { negative_data_rejection = { enabled = false } }

# Each job of a batch is answered by itself: a wrong job does not make the batch a wrong request.
# The path is also that of a job with the id "batch", which the document describes elsewhere.
[[operations]]
include-operation-id = "add_jobs"
parameters = { "path.topic" = "orders" }
checks = { negative_data_rejection = { enabled = false }, allow_header_conformance = { enabled = false }, unsupported_method = { enabled = false } }
"#;

/// The test runs in its own network, so that no invented callback reaches anybody.
#[test]
fn generated_requests_are_answered_as_the_document_says() {
    let schemathesis = tool("schemathesis");
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (port, http) = (free_port(), free_port());
    let jobs = "[[topic]]\nname = \"orders\"\ncallback = \"http://127.0.0.1:9/\"\nmax_attempts = 1\n";
    Daemon::write_config(dir.path(), port, http, jobs);
    let mut command = Command::new("unshare");
    let up = "ip link set lo up && exec \"$0\" --config \"$1\"";
    let is_root = nix::unistd::geteuid().is_root();
    command.args(if is_root { &["--net"][..] } else { &["--net", "--map-root-user"] });
    command.args(["sh", "-c", up, env!("CARGO_BIN_EXE_dq-master")]);
    command.arg(dir.path().join("dq.toml"));
    let mut daemon = Daemon::run(Arc::clone(&dir), port, http, command);
    eventually(20 * SECOND, &format!("all processes; log:\n{}", daemon.log()), || {
        (daemon.status()?["phase"] == "steady").then_some(())
    });
    let mut door = Http::unix(&daemon);
    let topic = json!({"name": "fuzzed", "callback": "http://127.0.0.1:9/", "max_attempts": 1});
    door.ask("POST", "/v1/topics", &topic).is(201);
    let config = dir.path().join("schemathesis.toml");
    std::fs::write(&config, SCHEMATHESIS).unwrap();

    let mut run = Command::new("nsenter");
    run.args(["--net", "--target", &daemon.pid().to_string()]);
    run.args(if is_root { &[][..] } else { &["--user", "--preserve-credentials"] });
    run.args(["timeout", "300"]);
    run.arg(schemathesis).arg("--config-file").arg(&config);
    run.args(["run", &format!("http://127.0.0.1:{http}/openapi.json"), "--seed", "1"]);
    run.args(["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "40", "--no-color"]);
    run.args(["--continue-on-failure", "--generation-database", "none", "--warnings", "off"]);
    let done = run.current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    println!("{said}");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("No issues found"), "it has looked at something");
    // The earlier connection may have been closed, because it was idle for too long.
    Http::unix(&daemon).get("/readyz").is(200);
    daemon.stop();
}

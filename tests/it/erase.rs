//! Data that `dq forget` has erased is in no file of the embedded store any more.

use std::path::Path;

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, on_redis, topic};
use serde_json::{Value, json};

const JOBS: usize = 400;

/// Returns a body that is easy to find, and so long that it takes a part of a page, or several pages.
fn body(topic: &str, n: usize) -> String {
    format!("{}{}", secret(topic, n), "x".repeat([20, 900, 6_000, 40_000][n % 4]))
}

fn secret(topic: &str, n: usize) -> String {
    format!("secret-{topic}-{n}-")
}

/// Returns the files of a folder that have one of these texts.
fn files_with(folder: &Path, texts: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_file() {
            continue;
        }
        let content = std::fs::read(&path).unwrap();
        for text in texts.iter().filter(|text| content.windows(text.len()).any(|w| w == text.as_bytes())) {
            found.push(format!("{} in {}", text, path.display()));
        }
    }
    found
}

#[test]
fn what_is_forgotten_is_in_no_file_any_more() {
    if on_redis() {
        return;
    }
    let sink = Sink::start();
    let daemon =
        Daemon::start(&[topic("t", &sink, ""), topic("kept", &sink, "keep_done_body = true")].concat());
    let mut http = Http::tcp(&daemon);
    for name in ["t", "kept"] {
        let job = |n: usize| json!({"id": n.to_string(), "body": body(name, n), "delay": 0});
        for first in (0..JOBS).step_by(40) {
            let jobs: Vec<Value> = (first..first + 40).map(job).collect();
            http.ask("POST", &format!("/v1/topics/{name}/jobs/batch"), &json!({"jobs": jobs})).is(200);
        }
    }
    eventually(30 * SECOND, "all records", || {
        let topics = http.get("/v1/stats").is(200)["topics"].clone();
        let pending =
            |t: &Value| ["delayed", "ready", "leased"].map(|s| t[s].as_u64().unwrap()).iter().sum::<u64>();
        topics.as_array().unwrap().iter().all(|t| pending(t) == 0).then_some(())
    });
    let folder = daemon.dir.path().join("var");
    let some: Vec<usize> = (0..JOBS).step_by(13).collect();
    let secrets: Vec<String> =
        ["t", "kept"].iter().flat_map(|t| some.iter().map(|n| secret(t, *n))).collect();
    assert!(!files_with(&folder, &secrets).is_empty(), "the test would find nothing");
    for (name, n) in ["t", "kept"].iter().flat_map(|t| some.iter().map(move |n| (t, n))) {
        let path = format!("/v1/topics/{name}/jobs/{n}/records");
        assert_eq!(http.ask("DELETE", &path, &Value::Null).is(200)["erased"], 1);
    }
    eventually(20 * SECOND, &format!("no secret in any file; log:\n{}", daemon.log()), || {
        files_with(&folder, &secrets).is_empty().then_some(())
    });
    // The records of the other jobs are still there.
    let story = http.get("/v1/topics/kept/jobs/1/records").is(200);
    assert_eq!(story["records"][0]["body"], body("kept", 1));
}

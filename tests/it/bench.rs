//! `dq bench`: a short run of each of its measurements, which must measure what they claim and end well. The figures of
//! a debug build do not matter.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::in_memory;
use crate::support::mariadb::MariaDb;

/// Runs a measurement and returns its figures by name. Its files are in memory: if a disk stalls, a Redis node does not
/// answer in time, and a measurement with refused adds is worthless.
fn bench(arguments: &[&str]) -> BTreeMap<String, f64> {
    let folder = in_memory();
    // `make tools` gets a beanstalkd.
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/beanstalkd/usr/bin");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let out = Command::new(env!("CARGO_BIN_EXE_dq"))
        .env("PATH", path)
        .arg("bench")
        .args(arguments)
        .arg("--json")
        .arg("--folder")
        .arg(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{arguments:?}: {said}");
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(report["work"], arguments[0]);
    let figures = report["figures"].as_array().unwrap().iter();
    figures.map(|f| (f["name"].as_str().unwrap().to_owned(), f["value"].as_f64().unwrap())).collect()
}

#[test]
fn adds_are_measured_on_both_ports_beside_the_cost_without_dq() {
    let is_beside = |figures: &BTreeMap<String, f64>, floor: &str| {
        assert!(figures["adds"] > 10.0 && figures[floor] > 10.0 && figures["ratio"] > 0.0, "{figures:?}");
    };
    let add = ["add", "--time", "300ms", "--connections", "3", "--depth", "4"];
    let figures = bench(&add);
    assert!(figures["answer p50"] > 0.0, "{figures:?}");
    is_beside(&figures, "bare inserts, 12 a commit");
    is_beside(&bench(&[add.as_slice(), &["--over", "http"]].concat()), "a handler that does nothing");
    let redis = ["--store", "redis", "--nodes", "2", "--pending", "500", "--topics", "3"];
    let figures = bench(&[add.as_slice(), &redis].concat());
    is_beside(&figures, "HSET and ZADD straight to Redis");
    assert!(figures["memory of Redis, a pending job"] > 125.0, "{figures:?}");
}

#[test]
fn a_backlog_is_delivered_once_and_beside_the_receiver_alone() {
    let figures = bench(&["deliver", "--jobs", "300", "--concurrency", "8"]);
    assert_eq!((figures["missing"], figures["repeated"]), (0.0, 0.0));
    assert!(figures["delivered"] > 1.0 && figures["ratio"] > 0.0, "{figures:?}");
}

#[test]
fn the_cost_of_records_is_measured_and_each_is_found() {
    for store in ["embedded", "redis"] {
        let figures = bench(&["records", "--jobs", "300", "--rounds", "1", "--store", store]);
        assert!(figures["missing"] == 0.0 && figures["ratio"] > 0.0, "{figures:?}");
        let figures = bench(&["find", "--records", "300", "--requests", "50", "--store", store]);
        assert_eq!((figures["records found"], figures["not found"]), (50.0, 0.0));
        assert!(figures["answer p50"] > 0.0, "{figures:?}");
    }
}

#[test]
fn a_shift_of_many_jobs_is_measured_and_each_is_shifted_once() {
    let registry = MariaDb::shared().database().url().to_owned();
    for more in [&[][..], &["--store", "redis", "--registry", &registry]] {
        let small = ["bulk", "--jobs", "3000", "--rate", "1000", "--beside", "20"];
        let figures = bench(&[&small[..], more].concat());
        assert_eq!((figures["shifted once"], figures["not shifted, or twice"]), (3000.0, 0.0), "{figures:?}");
        assert_eq!((figures["counted as changed"], figures["missing"]), (3000.0, 0.0), "{figures:?}");
        assert!(figures["beside it, late p50"] > 0.0, "{figures:?}");
    }
}

#[test]
fn lateness_is_measured_and_nothing_is_early() {
    let figures = bench(&["lateness", "--rate", "50", "--time", "1s"]);
    assert_eq!((figures["missing"], figures["early"]), (0.0, 0.0));
    assert!(figures["late p50"] <= figures["late p99"] && figures["late p99"] <= figures["late max"]);
    let figures = bench(&["mixed", "--time", "500ms", "--connections", "2", "--depth", "2"]);
    assert_eq!((figures["missing"], figures["early"]), (0.0, 0.0));
    let figures = bench(&["isolation", "--slow", "20", "--rate", "20", "--time", "1s"]);
    assert!(figures["missing"] == 0.0 && figures["slow ones begun meanwhile"] >= 20.0, "{figures:?}");
}

#[test]
fn what_waits_is_measured_and_a_soak_loses_nothing() {
    let idle = std::thread::spawn(|| bench(&["idle", "--pending", "100", "--time", "1s"]));
    let soak = ["soak", "--rate", "50", "--time", "3s"];
    let figures = bench(&[soak.as_slice(), &["--kill", "500ms"]].concat());
    assert_eq!((figures["missing"], figures["early"], figures["refused"]), (0.0, 0.0, 0.0), "{figures:?}");
    assert!(figures["killed"] >= 2.0 && figures["acknowledged"] >= 100.0, "{figures:?}");
    let figures = bench(&[soak.as_slice(), &["--restart", "1s"]].concat());
    let nothing = ["missing", "early", "refused", "connection broke before the answer"];
    assert!(nothing.iter().all(|name| figures[*name] == 0.0), "{figures:?}");
    assert!(figures["restarted"] >= 1.0 && figures["acknowledged"] >= 100.0, "{figures:?}");
    let figures = idle.join().unwrap();
    assert!(figures["processor"] < 50.0 && figures["wake-ups"] < 500.0, "{figures:?}");
    assert!(figures["memory (PSS), all processes"] > 1.0, "{figures:?}");
}

#[test]
fn clients_that_reserve_are_measured_beside_beanstalkd() {
    for more in [
        &["--waiting", "300"][..],
        &["--over", "http", "--batch", "3"],
        &["--over", "beanstalk"],
        &["--store", "redis", "--nodes", "2"],
    ] {
        let small = ["pull", "--jobs", "700", "--rate", "50", "--time", "1s", "--waiting", "20"];
        let (small, waiting) = if more[0] == "--waiting" { (&small[..7], 300.0) } else { (&small[..], 20.0) };
        let figures = bench(&[small, more].concat());
        assert_eq!(
            (figures["missing"], figures["repeated"], figures["early"]),
            (0.0, 0.0, 0.0),
            "{figures:?}"
        );
        assert!(figures["reserved and acked"] > 10.0 && figures["ratio"] > 0.0, "{figures:?}");
        assert!(figures["beanstalkd, on the disk"] > 10.0 && figures["beanstalkd, in memory"] > 10.0);
        assert!(figures["late p50"] > 0.0 && figures["late p50"] <= figures["late p99"], "{figures:?}");
        assert!(figures["clients that wait"] == waiting && figures["processor while they wait"] < 50.0);
    }
}

#[test]
fn a_measurement_without_a_beanstalkd_says_what_to_install() {
    let out = Command::new(env!("CARGO_BIN_EXE_dq")).args(["bench", "pull"]).env("PATH", "/nowhere").output();
    let out = out.unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains("install the package beanstalkd"), "{said}");
}

#[test]
fn adds_to_a_node_are_measured_while_another_one_is_away() {
    for absence in ["killed", "hung"] {
        let outage = ["outage", "--store", "redis", "--nodes", "2", "--time", "500ms", "--absence", absence];
        let figures = bench(&outage);
        assert!(figures["adds with all nodes"] > 10.0 && figures["adds without one"] > 10.0, "{figures:?}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_what_would_do() {
    for (arguments, word) in [
        (vec!["add", "--connections", "0"], "1..=10000"),
        (vec!["lateness", "--rate", "0"], "0.1"),
        (vec!["add", "--time", "soon"], "--time"),
        (vec!["juggle"], "juggle"),
        (vec!["outage", "--absence", "early"], "killed"),
        (vec!["pull", "--batch", "101"], "1..=100"),
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_dq")).arg("bench").args(&arguments).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(2) && said.contains(word), "{arguments:?}: {said}");
    }
}

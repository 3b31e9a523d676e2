//! `dq import php-dq`, killed between any two of its steps, and run again.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::php::{
    CommandOutput, Php, Target, YEAR_2033, bucket_of, command, crc32, import, topics_of_all_buckets,
};
use crate::support::{Daemon, SECOND, Sink, eventually, now_ms, stats, topic};

#[test]
fn a_run_that_is_killed_and_repeated_ends_with_each_job_once() {
    const JOBS: usize = 20_000;
    let php = Php::start();
    php.many(JOBS as u64);
    let target = Target::embedded();
    // Each import is killed a little later than the import before.
    let mut least = 0;
    for more in [1, 2000, 3000] {
        least += more;
        let mut running = command(&target.config(), &["--from", &php.url()]);
        let mut running = running.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually(30 * SECOND, "some jobs", || (php.noted() >= least).then_some(()));
        running.kill().unwrap();
        assert!(!running.wait().unwrap().success(), "it was killed");
        let (there, noted) = (target.jobs("orders").len(), php.noted());
        assert!(noted <= there && there < JOBS, "{noted} are noted, {there} are there");
        least = noted;
    }
    let output = target.import(&php, &[]);
    assert_eq!(output.code, 0, "{}", output.out);
    let json = output.json();
    let [jobs, taken, already, kept] =
        ["jobs", "taken", "already", "kept"].map(|name| json[name].as_u64().unwrap());
    assert_eq!((jobs, taken + already, kept), (JOBS as u64, JOBS as u64, 0), "{}", output.out);
    assert!((least as u64 - 256..=least as u64).contains(&already), "{least} were noted: {}", output.out);
    let jobs = target.jobs("orders");
    assert_eq!(jobs.len(), JOBS);
    for (id, job) in jobs {
        let n: i64 = id.parse().unwrap();
        assert_eq!(job.due_ms, (YEAR_2033 + n) * 1000);
        assert_eq!(job.body.as_str(), format!("{{\"n\":{n}}}"));
    }
    assert_eq!(php.noted(), JOBS);
    let log = std::fs::metadata(target.dir.path().join("var/dq.db-wal")).unwrap().len();
    assert!(log < 24 << 20, "without a daemon, the store's log of {log} bytes is carried over all the same");
}

#[test]
fn a_lost_source_is_named_and_the_next_run_takes_the_rest() {
    const JOBS: u64 = 20_000;
    let mut php = Php::start();
    php.many(JOBS);
    let target = Target::embedded();
    let mut running = command(&target.config(), &["--from", &php.url(), "--json"]);
    let running = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually(30 * SECOND, "some jobs", || (php.noted() >= 1000).then_some(()));
    php.server.kill();
    let output = CommandOutput::of(running.wait_with_output().unwrap());
    let json = output.json();
    let (stopped, taken) = (json["stopped"].as_str().unwrap(), json["taken"].as_u64().unwrap());
    assert!(output.code == 1 && stopped.contains(&php.url()), "{}", output.out);
    assert!((1000..JOBS).contains(&taken) && json["failed"] == 0, "{}", output.out);
    php.start_again();
    let output = target.import(&php, &[]);
    let json = output.json();
    let [jobs, taken_now, already, kept] =
        ["jobs", "taken", "already", "kept"].map(|name| json[name].as_u64().unwrap());
    assert!(output.code == 0 && kept == 0, "{}", output.out);
    assert_eq!((jobs, taken + taken_now, taken_now + already + kept), (JOBS, JOBS, JOBS));
    assert_eq!(target.jobs("orders").len() as u64, JOBS);
}

fn config(daemon: &Daemon) -> std::path::PathBuf {
    daemon.dir.path().join("dq.toml")
}

/// This Redis user may not write notes. So the import ends like an import that was killed right after the add.
#[test]
fn a_job_added_and_not_noted_is_delivered_once() {
    let (php, sink) = (Php::start(), Sink::start());
    let mut daemon = Daemon::start(&topic("orders", &sink, ""));
    for n in 0..20 {
        php.waits(&format!("orders:{n}"), "1", 1_000_000_000);
    }
    let port = php.listen();
    php.run::<()>(&["ACL", "SETUSER", "importer", "on", ">secret", "~*", "&*", "+@all", "-hset", "-hmset"]);
    let url = format!("redis://importer:secret@127.0.0.1:{port}");
    let output = import(&config(&daemon), &["--from", &url, "--json"]);
    let stopped = output.json()["stopped"].to_string();
    assert!(
        output.code == 1 && stopped.contains("cannot note in dq_imported"),
        "{}{}",
        output.out,
        output.err
    );
    let mut client = daemon.client();
    eventually(10 * SECOND, "the jobs in the store", || {
        (stats(&mut client, "orders")["delayed"] == 20).then_some(())
    });
    assert_eq!(sink.count(), 0, "what is not noted is not delivered");

    php.run::<()>(&["ACL", "SETUSER", "importer", "+hset", "+hmset"]);
    let output = import(&config(&daemon), &["--from", &url, "--json"]);
    output.counts(&[("jobs", 20), ("waiting", 20), ("taken", 20)]);
    sink.wait_for(20, 20 * SECOND);
    let output = import(&config(&daemon), &["--from", &url, "--json"]);
    output.counts(&[("jobs", 20), ("waiting", 20), ("already", 20)]);
    assert_eq!((output.code, sink.count()), (0, 20));
    daemon.stop();
}

/// Returns the system calls of an import that others can notice, by name. `inject` makes one of these calls kill the
/// import.
fn traced(config: &Path, url: &str, inject: Option<&str>) -> Vec<String> {
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-q", "-e", "trace=sendto,flock,fdatasync"]).arg("-o").arg(out.path());
    if let Some(inject) = inject {
        strace.args(["-e", inject]);
    }
    strace.arg(env!("CARGO_BIN_EXE_dq")).args(["import", "php-dq", "--config"]).arg(config);
    strace.args(["--from", url]).stdout(Stdio::null()).stderr(Stdio::null());
    strace.status().expect("strace; make tools installs it");
    let text = std::fs::read_to_string(out.path()).unwrap();
    let call = |line: &str| Some(line.split_once(' ')?.1.trim_start().split_once('(')?.0.to_owned());
    text.lines().filter_map(call).collect()
}

/// Returns the last calls of an import, each with its name and number. At these calls, the import has already checked
/// whether a PHP daemon runs.
fn last_calls(calls: &[String]) -> Vec<(&str, usize)> {
    let last = |name: &'static str, last: usize| {
        let all = calls.iter().filter(|call| *call == name).count();
        (all.saturating_sub(last) + 1..=all).map(move |n| (name, n))
    };
    // `flock`: the turns of the store, with four calls each. `fdatasync`: the commits. `sendto`: the messages to Redis
    // and to the daemon.
    last("flock", 12).chain(last("fdatasync", 3)).chain(last("sendto", 10)).collect()
}

#[test]
fn a_kill_at_any_step_delivers_each_job_once() {
    const JOBS: usize = 5;
    const TOPICS: usize = 30;
    let sink = Sink::start();
    let sections =
        (0..TOPICS).map(|n| topic(&format!("t{n}"), &sink, "timeout = \"30s\"")).collect::<String>();
    let mut daemon = Daemon::start(&sections);
    let (config, daemon_of_all) = (config(&daemon), &daemon);
    let start = |n: usize| {
        let php = Php::start();
        for job in 0..JOBS {
            php.waits(&format!("t{n}:{n}-{job}"), "1", 1_000_000_000);
        }
        php
    };
    // Before the next run, all jobs in the store that may be delivered are delivered.
    let until_quiet = |n: usize| {
        let mut client = daemon_of_all.client();
        eventually(30 * SECOND, "no job that may be delivered", || {
            let stats = stats(&mut client, &format!("t{n}"));
            let is_none = |state| stats.get(state).is_none_or(|jobs| *jobs == 0);
            (is_none("ready") && is_none("leased")).then_some(stats)
        })
    };
    let calls = traced(&config, &start(0).url(), None);
    until_quiet(0);
    let points = last_calls(&calls);
    assert!((20..TOPICS).contains(&points.len()), "{points:?} of {calls:?}");
    std::thread::scope(|scope| {
        for (n, (call, when)) in (1..).zip(&points) {
            let (start, config, until_quiet) = (&start, &config, &until_quiet);
            scope.spawn(move || {
                let php = start(n);
                traced(config, &php.url(), Some(&format!("inject={call}:signal=KILL:when={when}")));
                until_quiet(n);
                let output = import(config, &["--from", &php.url(), "--json"]);
                assert_eq!(output.code, 0, "{call} {when}: {}{}", output.out, output.err);
                assert_eq!(until_quiet(n).get("delayed"), Some(&0), "{call} {when}: {}", output.out);
            });
        }
    });
    let came = sink.deliveries();
    let not_once: HashMap<_, _> = came.iter().filter(|(_, times)| **times != 1).collect();
    assert!(not_once.is_empty(), "{not_once:?} of {points:?}");
    assert_eq!(came.len(), JOBS * (points.len() + 1), "each round has ids of its own");
    daemon.stop();
}

/// Three servers, four buckets. The daemon delivers all the time.
#[test]
fn six_kills_leave_no_job_early_lost_or_twice() {
    const JOBS: usize = 20_000;
    let (sink, servers) = (Sink::start(), [Php::start(), Php::start(), Php::start()]);
    let topics = topics_of_all_buckets(4);
    let sections: String = topics.iter().map(|name| topic(name, &sink, "timeout = \"30s\"")).collect();
    let mut daemon = Daemon::start(&sections);
    let begun = now_ms() / 1000;
    let mut pipes = [redis::pipe(), redis::pipe(), redis::pipe()];
    for n in 0..JOBS {
        let name = format!("{}:{n}", topics[n % 4]);
        let pipe = &mut pipes[crc32(&name) as usize % 3];
        // A fifth of the jobs is already due. The other jobs become due during the import.
        let due = begun + if n % 5 == 0 { -60 } else { (n % 25) as i64 + 10 };
        pipe.hset("dq_job_info", &name, format!("{{\"due\":{due}}}")).ignore();
        pipe.zadd(bucket_of(&name, 4), &name, due).ignore();
    }
    servers.iter().zip(&pipes).for_each(|(php, pipe)| php.run_all(pipe));
    let urls: Vec<String> = servers.iter().map(Php::url).collect();
    let from: Vec<&str> = urls.iter().flat_map(|url| ["--from", url]).collect();
    let noted = || servers.iter().map(Php::noted).sum::<usize>();
    let mut least = 0;
    for _ in 0..6 {
        least += 2500;
        let mut running = command(&config(&daemon), &from);
        let mut running = running.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually(30 * SECOND, "some jobs", || (noted() >= least).then_some(()));
        running.kill().unwrap();
        assert!(!running.wait().unwrap().success(), "it was killed");
        least = noted();
    }
    let output = import(&config(&daemon), &[&from[..], &["--json"]].concat());
    assert_eq!(output.code, 0, "{}{}", output.out, output.err);
    let json = output.json();
    let [jobs, taken, already] =
        ["jobs", "taken", "already"].map(|name| json[name].as_u64().unwrap() as usize);
    assert_eq!((jobs, taken + already), (JOBS, JOBS), "{}", output.out);
    sink.wait_for(JOBS, 120 * SECOND);
    let output = import(&config(&daemon), &[&from[..], &["--json"]].concat());
    output.counts(&[("jobs", JOBS as u64), ("waiting", JOBS as u64), ("already", JOBS as u64)]);
    let mut client = daemon.client();
    eventually(20 * SECOND, "nothing left", || {
        topics.iter().all(|name| stats(&mut client, name).values().all(|n| *n == 0)).then_some(())
    });
    assert_eq!((sink.deliveries().len(), sink.count()), (JOBS, JOBS), "none is lost, none comes twice");
    for call in sink.calls() {
        let due = serde_json::from_str::<serde_json::Value>(&call.body).unwrap()["due"].as_i64().unwrap();
        assert!(
            call.at_ms >= due * 1000,
            "{} ms early: {}",
            due * 1000 - call.at_ms,
            call.header("dq-job-id")
        );
    }
    daemon.stop();
}

//! `dq status`: the state of the daemon's processes, from its control socket, and of its jobs, from the HTTP API.

use std::fmt::Write as _;

use anyhow::Result;

use super::daemon_snapshot::{DaemonSnapshot, TopicSnapshot};
use super::show::{NOTHING, Table, TerminalColour, counted, paint, plain, short_span, span};
use super::target::TargetOptions;
use host::now_ms;
use model::status::{DaemonStatus, MasterPhase, Process, ProcessState};

/// Show the state of the daemon: its processes, topics and nodes, and what is wrong now
///
/// For each process: its state, how long it has been up, how often and why it was restarted, its memory and processor
/// time. For each topic: how many jobs are in each state. The exit code is 0 if all processes are up. It is 1 if some
/// are not, or if no daemon answers on this host.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq status\n  dq status --config /etc/dq/dq.toml\n  dq status --run-dir /run/dq --json"
)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    at: TargetOptions,
}

/// Runs `dq status`. Returns whether all is well.
pub(super) fn run(arguments: &StatusArguments) -> Result<bool> {
    let snapshot = DaemonSnapshot::take(&arguments.at.target()?)?;
    if arguments.at.json {
        println!("{}", serde_json::to_string_pretty(&snapshot)?);
    } else {
        print!("{}{}", table(&snapshot.status, now_ms()), stored(&snapshot));
    }
    let status = &snapshot.status;
    Ok(status.phase != MasterPhase::Stopping && status.processes.iter().all(|p| is_well(p, status)))
}

/// Returns whether a process is as it should be: up or draining, and not stuck. A process that does not belong to the
/// current generation may also be in any other state.
fn is_well(process: &Process, status: &DaemonStatus) -> bool {
    match process.state {
        ProcessState::Up | ProcessState::Draining => process.overdue_ms == 0,
        _ => process.generation != status.generation,
    }
}

fn table(status: &DaemonStatus, now_ms: i64) -> String {
    let mut text = String::new();
    let phase = word(&status.phase);
    let DaemonStatus { version, instance, pid, generation, .. } = status;
    let up = span(now_ms - status.started_ms);
    let _ =
        writeln!(text, "dq {version} on {instance}, pid {pid}, up {up}, generation {generation}, {phase}");
    for (name, address) in &status.listening {
        let _ = writeln!(text, "  {name} listens on {address}");
    }
    if !status.store.is_empty() {
        let _ = writeln!(text, "  store: {}", plain(&status.store));
    }
    if let Some(renewal) = &status.renewal {
        let what = if renewal.kind == "executable" { "USR2" } else { "HUP" };
        let ago = span(now_ms - renewal.at_ms);
        let line = |outcome: &str| format!("last restart ({what}), {ago} ago: {outcome}");
        let line = match &renewal.refused {
            None => line("done"),
            Some(why) => paint(&plain(&line(&format!("refused: {why}"))), TerminalColour::Yellow),
        };
        let _ = writeln!(text, "  {line}");
    }
    for finding in &status.findings {
        let risk = if finding.loses_jobs { ", and jobs may be lost" } else { "" };
        let since = span(now_ms - finding.since_ms);
        let message = plain(&format!("{}{risk}, for {since}: {}", finding.what, finding.detail));
        let colour = if finding.loses_jobs { TerminalColour::Red } else { TerminalColour::Yellow };
        let _ = writeln!(text, "  {}", paint(&message, colour));
    }
    let dash = || NOTHING.to_owned();
    let mut table = Table::new(&["process", "pid", "gen", "state", "up", "restarts", "memory", "cpu"]);
    for p in &status.processes {
        table.row([
            p.name.clone(),
            p.pid.map_or_else(dash, |pid| pid.to_string()),
            p.generation.to_string(),
            if p.overdue_ms > 0 { format!("{}, stuck", word(&p.state)) } else { word(&p.state) },
            p.started_ms.map_or_else(dash, |since| span(now_ms - since)),
            p.restarts.to_string(),
            p.memory_bytes.map_or_else(dash, |b| format!("{:.1} MiB", b as f64 / 1048576.0)),
            p.cpu_ms.map_or_else(dash, |ms| format!("{:.2} s", ms as f64 / 1000.0)),
        ]);
    }
    text.push('\n');
    text += &table.text();
    let ends = status.processes.iter().filter(|p| p.generation == status.generation);
    for (process, end) in ends.filter_map(|p| Some((p, p.last_end.as_ref()?))) {
        let _ = writeln!(text, "\n{}, {} ago: {}", process.name, span(now_ms - end.at_ms), end.reason);
    }
    text
}

/// Returns the tables of the topics and of the nodes.
fn stored(snapshot: &DaemonSnapshot) -> String {
    let mut text = String::new();
    let is_used = |t: &&TopicSnapshot| t.delayed + t.ready + t.leased + t.dead > 0 || t.late_p50_ms.is_some();
    if let Some(topics) = &snapshot.topics {
        let used: Vec<&TopicSnapshot> = topics.iter().filter(is_used).collect();
        let mut table = Table::new(&["topic", ">delayed", ">ready", ">leased", ">dead", ">late p50", ">p99"]);
        for topic in &used {
            let late = |ms: Option<f64>| ms.map_or(NOTHING.to_owned(), short_span);
            let counts = [topic.delayed, topic.ready, topic.leased, topic.dead].map(|n| n.to_string());
            let [delayed, ready, leased, dead] = counts;
            let [p50, p99] = [late(topic.late_p50_ms), late(topic.late_p99_ms)];
            table.row([topic.topic.clone(), delayed, ready, leased, dead, p50, p99]);
        }
        if used.is_empty() {
            let _ = writeln!(text, "\nno jobs; {}", counted(topics.len(), "topic"));
        } else {
            let _ = write!(text, "\n{}", table.text());
        }
        if !used.is_empty() && used.len() < topics.len() {
            let _ = writeln!(text, "and {} without jobs", counted(topics.len() - used.len(), "topic"));
        }
        for pause in topics.iter().filter_map(TopicSnapshot::pause) {
            let _ =
                writeln!(text, "{}", paint(&plain(&format!("paused topic {pause}")), TerminalColour::Yellow));
        }
    }
    if let Some(nodes) = snapshot.nodes.as_ref().filter(|nodes| nodes.iter().any(|n| n.name != "embedded")) {
        let _ = write!(text, "\n{}", super::node_table::table_with_spool(nodes, snapshot.spool));
    }
    // If the topics are known and only the nodes are missing, the daemon may be of an older release. The API of such a
    // release does not have the route for the nodes. This is no problem, and nothing is shown.
    if let Some(missing) = snapshot.missing.as_ref().filter(|_| snapshot.topics.is_none()) {
        let _ = writeln!(
            text,
            "\n{}",
            paint(&format!("cannot read the jobs: {}", plain(missing)), TerminalColour::Yellow)
        );
    }
    text
}

/// Returns the word that stands for this value of a status in JSON.
pub(super) fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::daemon_snapshot::Node;
    use super::super::spool::SpoolUsage;
    use super::*;
    use model::status::{Finding, Renewal, UnexpectedExit};

    #[test]
    fn the_table_tells_what_an_operator_looks_for() {
        let process = |name: &str, state, generation| Process {
            name: name.into(),
            generation,
            state,
            pid: Some(12),
            started_ms: Some(4_000),
            overdue_ms: 0,
            restarts: 2,
            last_end: Some(UnexpectedExit { at_ms: 5_000, reason: "was ended by SIGKILL".into() }),
            memory_bytes: Some(3 << 20),
            cpu_ms: Some(120),
        };
        let mut status = DaemonStatus {
            version: "1.2.3".into(),
            instance: "host-a".into(),
            pid: 7,
            started_ms: 0,
            phase: MasterPhase::Steady,
            generation: 3,
            renewal: Some(Renewal {
                at_ms: 9_000,
                kind: "executable".into(),
                refused: Some("no such file".into()),
            }),
            listening: vec![("server".into(), "127.0.0.1:6789".into())],
            store: "embedded in /var/lib/dq/dq.db".into(),
            processes: vec![
                process("dq-server", ProcessState::Draining, 2),
                process("dq-server", ProcessState::Up, 3),
            ],
            findings: vec![Finding {
                name: "node_evicts".into(),
                what: "node r1 may evict jobs".into(),
                node: Some("r1".into()),
                topic: None,
                process: None,
                loses_jobs: true,
                detail: "maxmemory-policy is allkeys-lru".into(),
                since_ms: 3_600_000,
            }],
        };
        let text = table(&status, 3_600_000 + 65_000);
        for part in [
            "dq 1.2.3 on host-a, pid 7, up 1h 1m, generation 3, steady",
            "server listens on 127.0.0.1:6789",
            "store: embedded in /var/lib/dq/dq.db",
            "last restart (USR2), 1h 56s ago: refused: no such file",
            "dq-server  12   2    draining  1h 1m  2         3.0 MiB  0.12 s",
            "node r1 may evict jobs, and jobs may be lost, for 1m 5s: maxmemory-policy is allkeys-lru",
            "dq-server, 1h 1m ago: was ended by SIGKILL",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(status.processes.iter().all(|p| is_well(p, &status)));
        status.processes[1].state = ProcessState::Waiting;
        assert!(!is_well(&status.processes[1], &status));
    }

    #[test]
    fn jobs_are_shown_by_topic_and_what_is_missing_is_said() {
        let status = r#"{"version":"1","instance":"h","pid":1,"started_ms":0,"phase":"steady","generation":1,
            "renewal":null,"listening":[],"processes":[]}"#;
        let topic =
            |topic: &str, ready| TopicSnapshot { topic: topic.into(), ready, ..TopicSnapshot::default() };
        let late = TopicSnapshot { late_p50_ms: Some(3_435_000.0), ..topic("orders", 12) };
        let mut snapshot = DaemonSnapshot {
            status: serde_json::from_str(status).unwrap(),
            topics: Some(vec![topic("idle", 0), late]),
            nodes: Some(vec![Node { name: "embedded".into(), answers: true, ..Node::default() }]),
            spool: None,
            missing: Some("no such route".into()),
            lateness: std::collections::BTreeMap::new(),
            samples: Vec::new(),
        };
        let text = stored(&snapshot);
        assert!(text.contains("orders        0     12       0     0    57 min    -\n"), "{text}");
        assert!(text.ends_with("and 1 topic without jobs\n") && !text.contains("embedded"), "{text}");
        snapshot.nodes =
            Some(vec![Node { name: "r1".into(), detail: Some("refused".into()), ..Node::default() }]);
        assert!(stored(&snapshot).contains("r1    down"), "{}", stored(&snapshot));
        let (entries, oldest_ms) = (7, Some(0));
        snapshot.spool = Some(SpoolUsage { entries, oldest_ms, ..SpoolUsage::default() });
        assert!(stored(&snapshot).contains("spool: 7 changes wait"), "{}", stored(&snapshot));
        // In JSON, the fields of the status stay at the top level.
        let json = serde_json::to_value(&snapshot).unwrap();
        assert_eq!((&json["phase"], &json["topics"][1]["ready"]), (&"steady".into(), &12.into()));
        snapshot.topics = None;
        assert!(stored(&snapshot).contains("cannot read the jobs: no such route"));
    }
}

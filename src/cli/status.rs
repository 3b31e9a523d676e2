//! `dq status`: what the daemon's processes do, by its control socket.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};

use crate::process::{now_ms, whole_status};
use crate::status::{Phase, Process, ProcessState, Status, control_socket};

/// How long the master may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show the daemon's processes: their state, how long they are up, how often and why they were started again, their memory
/// and processor time.
///
/// And what is wrong with what the jobs are stored in. Ends with 0 when all processes are up, and with 1 when some are not, or
/// no daemon answers.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq status\n  dq status --config /etc/dq/dq.toml\n  dq status --run-dir /run/dq --json"
)]
pub struct Arguments {
    /// The daemon's configuration file: its run_dir is asked
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The daemon's run_dir; default: that of a daemon in the working directory, or else /run/dq
    #[arg(long, value_name = "DIR", env = "DQ_RUN_DIR")]
    run_dir: Option<PathBuf>,

    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs `dq status`. Tells whether all is well.
pub fn run(arguments: &Arguments) -> Result<bool> {
    let status = whole_status(&run_dir(arguments)?, PATIENCE)
        .map_err(|e| anyhow!("{e} (--run-dir or --config say where it runs)"))?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", table(&status, now_ms()));
    }
    Ok(status.phase != Phase::Stopping && status.processes.iter().all(|p| is_well(p, &status)))
}

/// An older process may drain.
fn is_well(process: &Process, status: &Status) -> bool {
    match process.state {
        ProcessState::Up | ProcessState::Draining => process.overdue_ms == 0,
        _ => process.generation != status.generation,
    }
}

fn run_dir(arguments: &Arguments) -> Result<PathBuf> {
    match (&arguments.config, &arguments.run_dir) {
        (Some(file), _) => Ok(super::settings(file)?.run_dir),
        (None, Some(run_dir)) => Ok(run_dir.clone()),
        (None, None) => {
            let here = std::env::current_dir().context("cannot find the working directory")?.join("var/run");
            Ok(if control_socket(&here).exists() { here } else { PathBuf::from("/run/dq") })
        }
    }
}

fn table(status: &Status, now_ms: i64) -> String {
    let mut text = String::new();
    let phase = word(&status.phase);
    let Status { version, instance, pid, generation, .. } = status;
    let up = span(now_ms - status.started_ms);
    let _ =
        writeln!(text, "dq {version} on {instance}, pid {pid}, up {up}, generation {generation}, {phase}");
    for (name, address) in &status.listening {
        let _ = writeln!(text, "  {name} listens on {address}");
    }
    if let Some(renewal) = &status.renewal {
        let what = if renewal.kind == "executable" { "USR2" } else { "HUP" };
        let ago = span(now_ms - renewal.at_ms);
        let outcome = renewal.refused.as_ref().map_or("done".to_owned(), |why| format!("refused: {why}"));
        let _ = writeln!(text, "  last restart ({what}), {ago} ago: {outcome}");
    }
    for finding in &status.findings {
        let risk = if finding.loses_jobs { ", and jobs may be lost" } else { "" };
        let since = span(now_ms - finding.since_ms);
        let _ = writeln!(text, "  {}{risk}, for {since}: {}", finding.what, finding.detail);
    }
    let dash = || "-".to_owned();
    let mut rows =
        vec![["process", "pid", "gen", "state", "up", "restarts", "memory", "cpu"].map(str::to_owned)];
    for p in &status.processes {
        rows.push([
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
    let widths: Vec<usize> = (0..8).map(|c| rows.iter().map(|r| r[c].len()).max().unwrap_or(0)).collect();
    text.push('\n');
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    let ends = status.processes.iter().filter(|p| p.generation == status.generation);
    for (process, end) in ends.filter_map(|p| Some((p, p.last_end.as_ref()?))) {
        let _ = writeln!(text, "\n{}, {} ago: {}", process.name, span(now_ms - end.at_ms), end.reason);
    }
    text
}

/// A word of a status, as it is in JSON.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A span of time in its two largest units.
fn span(ms: i64) -> String {
    let seconds = Duration::from_secs(ms.max(0) as u64 / 1000);
    let text = humantime::format_duration(seconds).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{End, Finding, Renewal};

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
            last_end: Some(End { at_ms: 5_000, reason: "was ended by SIGKILL".into() }),
            memory_bytes: Some(3 << 20),
            cpu_ms: Some(120),
        };
        let mut status = Status {
            version: "1.2.3".into(),
            instance: "host-a".into(),
            pid: 7,
            started_ms: 0,
            phase: Phase::Steady,
            generation: 3,
            renewal: Some(Renewal {
                at_ms: 9_000,
                kind: "executable".into(),
                refused: Some("no such file".into()),
            }),
            listening: vec![("server".into(), "127.0.0.1:6789".into())],
            processes: vec![
                process("dq-server", ProcessState::Draining, 2),
                process("dq-server", ProcessState::Up, 3),
            ],
            findings: vec![Finding {
                name: "node_evicts".into(),
                what: "node r1 may evict jobs".into(),
                node: Some("r1".into()),
                loses_jobs: true,
                detail: "maxmemory-policy is allkeys-lru".into(),
                since_ms: 3_600_000,
            }],
        };
        let text = table(&status, 3_600_000 + 65_000);
        for part in [
            "dq 1.2.3 on host-a, pid 7, up 1h 1m, generation 3, steady",
            "server listens on 127.0.0.1:6789",
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
        assert_eq!(span(-5), "0s");
    }
}

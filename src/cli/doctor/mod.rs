//! `dq doctor`: looks for what keeps a daemon from working, now or later. This file and the functions `check` gather
//! facts. `judge` and `judge_node` decide what the facts mean. These two modules are pure.

mod access;
mod callbacks;
mod database;
mod judge;
mod judge_node;
mod nodes;
mod ports;
mod spool;
mod system;
mod topics;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use self::judge::{CheckResult, Verdict};
use super::api::Api;
use super::daemon_snapshot;
use super::show::{Table, TerminalColour, paint};
use super::target::TargetOptions;
use model::settings::{Settings, StoreSettings};
use model::status::DaemonStatus;

/// Where the configuration is looked for if `--config` is not given.
const FILES: [&str; 2] = ["dq.toml", "/etc/dq/dq.toml"];

/// Look for what keeps the daemon from working, now or later
///
/// Checks the configuration, whether the daemon answers, its ports, whether it may write its files, the nodes of its
/// store, clocks, the registry's database, the spool's disk, topics with settings that dq cannot serve, whether the
/// hosts of callbacks accept a connection (nothing is sent), descriptors, and room on the disks. Changes nothing. Run
/// it as root or as the daemon's user, because other users can see less. Without --config, the command looks for
/// dq.toml and /etc/dq/dq.toml. The exit code is 0 if no check has failed, and 1 otherwise.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq doctor\n  sudo dq doctor --config /etc/dq/dq.toml\n  dq doctor --json | jq '.checks[] | select(.verdict != \"ok\")'"
)]
pub(super) struct DoctorArguments {
    #[command(flatten)]
    at: TargetOptions,
}

/// Runs `dq doctor`. Returns whether no check has failed.
pub(super) fn run(arguments: &DoctorArguments) -> Result<bool> {
    let lines = check(&arguments.at);
    let is_well = lines.iter().all(|line| line.verdict != Verdict::Fail);
    if arguments.at.json {
        println!("{}", json!({"ok": is_well, "checks": lines}));
    } else {
        print!("{}", page(&lines));
    }
    Ok(is_well)
}

fn check(at: &TargetOptions) -> Vec<CheckResult> {
    let mut lines = Vec::new();
    let file = at.config.clone().or_else(|| found(at));
    let settings = match file.as_deref().map(|file| (file, super::settings(file))) {
        None => {
            let none = "no configuration was found, so only the daemon is checked";
            lines.push(CheckResult::warn("configuration", none).advise("--config FILE names it"));
            None
        }
        Some((file, Ok(settings))) => {
            lines.push(CheckResult::ok("configuration", format!("{} is good", file.display())));
            Some(settings)
        }
        Some((_, Err(e))) => {
            // The message names the file and the line.
            lines.push(
                CheckResult::fail("configuration", format!("{e:#}"))
                    .advise("dq-master does not start with it, and refuses it at HUP"),
            );
            None
        }
    };
    let status = daemon(at, settings.as_ref(), &mut lines);
    if let Some(settings) = &settings {
        lines.extend(ports::check(settings, status.as_ref()));
        lines.extend(access::check(settings, status.as_ref()));
        if let StoreSettings::Redis(_) = settings.store {
            lines.extend(nodes::check(settings));
        }
        lines.extend(spool::check(settings));
        lines.extend(database::check(settings));
        lines.extend(topics::check(settings, status.as_ref()));
        lines.extend(callbacks::check(settings));
    }
    lines.extend(system::check(settings.as_ref(), status.as_ref()));
    lines
}

/// Returns the configuration file that is used if none is given. `None`: there is no such file, or `--url` or
/// `--run-dir` chooses the daemon.
fn found(at: &TargetOptions) -> Option<PathBuf> {
    let is_elsewhere = at.url.is_some() || at.run_dir.is_some();
    FILES.iter().map(Path::new).find(|file| !is_elsewhere && file.is_file()).map(Path::to_owned)
}

/// Checks whether the daemon runs and answers. Returns its status.
fn daemon(
    at: &TargetOptions,
    settings: Option<&Settings>,
    lines: &mut Vec<CheckResult>,
) -> Option<DaemonStatus> {
    let target = match (settings, &at.url) {
        (Some(settings), None) => {
            TargetOptions { config: None, run_dir: Some(settings.run_dir.clone()), ..at.clone() }
        }
        // Without a valid configuration, only the options say where the daemon is.
        _ => TargetOptions { config: None, ..at.clone() },
    };
    let target = match target.target() {
        Ok(target) => target,
        Err(e) => {
            lines.push(CheckResult::fail("daemon", format!("{e:#}")));
            return None;
        }
    };
    let status = match &target.run_dir {
        Some(run_dir) => {
            let status = daemon_snapshot::master(run_dir);
            lines.push(judge::daemon(&status));
            status.ok()
        }
        None => None,
    };
    let has_http = status.as_ref().is_none_or(|s| s.processes.iter().any(|p| p.name == "dq-http-server"));
    if !has_http {
        let none = "http.listen is empty: only `dq status`, `dq doctor` and `dq nodes` work";
        lines.push(CheckResult::warn("api", none).advise("set http.listen for the rest of dq"));
    } else if status.is_some() || target.run_dir.is_none() {
        match Api::new(&target, std::time::Duration::from_secs(5)) {
            Err(e) => lines.push(judge::ready(&Err(e))),
            Ok(api) => {
                lines.push(judge::ready(&api.get("/readyz").map(|_| ())));
                // If the API does not answer, the result above already says so.
                let topics = daemon_snapshot::topics(&api).unwrap_or_default();
                lines.extend(topics.iter().filter_map(judge::pause));
            }
        }
    }
    lines.extend(status.iter().flat_map(|status| status.findings.iter().map(judge::finding)));
    status
}

fn page(lines: &[CheckResult]) -> String {
    let mut table = Table::new(&["", "CHECK", "WHAT WAS FOUND"]);
    for line in lines {
        table.row([line.verdict.word().to_owned(), line.check.clone(), line.detail.clone()]);
        if let Some(advice) = &line.advice {
            table.row(["", "", &format!("  -> {advice}")]);
        }
    }
    let count = |verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    let [ok, warn, fail] = [Verdict::Ok, Verdict::Warn, Verdict::Fail].map(count);
    let painted = |line: &str| match line.split_once(' ').map(|(word, rest)| (word, rest.to_owned())) {
        Some(("ok", rest)) => paint("ok", TerminalColour::Green) + " " + &rest,
        Some(("warn", rest)) => paint("warn", TerminalColour::Yellow) + " " + &rest,
        Some(("FAIL", rest)) => paint("FAIL", TerminalColour::Red) + " " + &rest,
        _ => line.to_owned(),
    };
    let text: Vec<String> = table.text().lines().skip(1).map(painted).collect();
    format!("{}\n\n{ok} ok, {warn} to look at, {fail} failed\n", text.join("\n"))
}

/// Serializes as its word in lower case.
impl Serialize for Verdict {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.word().to_lowercase())
    }
}

//! Decides what the facts mean. Pure: each function takes what was seen, and returns a result with advice.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use super::super::daemon_snapshot::TopicSnapshot;
use super::super::failure::Failure;
use model::disk_room::nearly_full_below;
use model::status::{DaemonStatus, Finding, MasterPhase, ProcessState};
use model::topic::Topic;

/// A check warns if a disk has less free room than this, in hundredths of the disk.
const ROOM_WARN: u64 = 10;

/// How many descriptors a daemon needs besides its connections. The daemon does not start without them.
const DESCRIPTORS_BESIDE: u64 = 512;

/// What `dq doctor` checks: the first word of each check. (Further words name what was checked, as in `node r0`.)
/// docs/RUNBOOK.md says what to do about each check.
pub(super) const CHECKS: [&str; 16] = [
    "access",
    "alert",
    "api",
    "callback",
    "clock",
    "configuration",
    "daemon",
    "descriptors",
    "node",
    "nodes",
    "paused",
    "port",
    "registry",
    "room",
    "topic",
    "topics",
];

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    Warn,
    Fail,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CheckResult {
    /// What was checked.
    pub check: String,
    pub verdict: Verdict,
    pub detail: String,
    /// What to do.
    pub advice: Option<String>,
}

impl CheckResult {
    fn new(check: &str, verdict: Verdict, detail: impl Into<String>) -> CheckResult {
        debug_assert!(
            check.split(' ').next().is_some_and(|word| CHECKS.contains(&word)),
            "{check} is in CHECKS"
        );
        CheckResult { check: check.to_owned(), verdict, detail: detail.into(), advice: None }
    }

    pub(super) fn ok(check: &str, detail: impl Into<String>) -> CheckResult {
        CheckResult::new(check, Verdict::Ok, detail)
    }

    pub(super) fn warn(check: &str, detail: impl Into<String>) -> CheckResult {
        CheckResult::new(check, Verdict::Warn, detail)
    }

    pub(super) fn fail(check: &str, detail: impl Into<String>) -> CheckResult {
        CheckResult::new(check, Verdict::Fail, detail)
    }

    pub(super) fn advise(self, advice: impl Into<String>) -> CheckResult {
        CheckResult { advice: Some(advice.into()), ..self }
    }
}

/// Judges the answer of the master.
pub(super) fn daemon(status: &Result<DaemonStatus>) -> CheckResult {
    let status = match status {
        Ok(status) => status,
        Err(e) => {
            return CheckResult::fail("daemon", format!("{e:#}")).advise("start it, or say where it runs");
        }
    };
    let DaemonStatus { version, pid, phase, generation, .. } = status;
    let who = format!("dq {version}, pid {pid}");
    let is_up = |p: &&model::status::Process| p.state == ProcessState::Up && p.overdue_ms == 0;
    let of_now: Vec<_> = status.processes.iter().filter(|p| p.generation == *generation).collect();
    let not: Vec<&str> = of_now.iter().filter(|p| !is_up(p)).map(|p| p.name.as_str()).collect();
    match phase {
        MasterPhase::Stopping => CheckResult::fail("daemon", format!("{who} is ending")),
        _ if !not.is_empty() => {
            CheckResult::fail("daemon", format!("{who}: {} of its processes are not up", not.join(", ")))
                .advise("`dq status` and the log say why")
        }
        MasterPhase::Steady => match status.renewal.as_ref().and_then(|renewal| renewal.refused.as_ref()) {
            Some(why) => CheckResult::warn(
                "daemon",
                format!("{who} runs as before: the last restart was refused: {why}"),
            ),
            None => CheckResult::ok("daemon", format!("{who}, all {} processes are up", of_now.len())),
        },
        _ => CheckResult::warn("daemon", format!("{who} is in the middle of a start or restart"))
            .advise("look again soon"),
    }
}

/// Judges the answer of `/readyz`.
pub(super) fn ready(answer: &Result<()>) -> CheckResult {
    let Err(e) = answer else { return CheckResult::ok("api", "it answers, and is ready") };
    match e.downcast_ref() {
        Some(Failure::Refused(problem)) if problem.status == 503 => {
            CheckResult::fail("api", "it answers, and is not ready").advise("GET /readyz names the part that is not")
        }
        Some(Failure::Unreachable(why)) if why.contains("denied") => CheckResult::warn("api", why.clone())
            .advise("the Unix socket is the daemon's user's: run this as that user or root, or with --url and a token"),
        _ => CheckResult::fail("api", format!("{e:#}")),
    }
}

/// Warns about a paused topic. Somebody may have forgotten to resume it. None: the topic is not paused, or this is not
/// known.
pub(super) fn pause(counted: &TopicSnapshot) -> Option<CheckResult> {
    let advice = format!("if nobody needs the pause any more: dq topics resume {}", counted.topic);
    Some(CheckResult::warn("paused topic", counted.pause()?).advise(advice))
}

/// Judges a finding of dq-redis-checker.
pub(super) fn finding(finding: &Finding) -> CheckResult {
    let text = format!("{}: {}", finding.what, finding.detail);
    match finding.loses_jobs {
        true => CheckResult::fail("alert", text).advise("jobs may be lost: repair this first"),
        false => CheckResult::warn("alert", text),
    }
}

/// Which process uses a port of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PortUse {
    Free,
    /// The daemon that is checked.
    Ours,
    /// Another process has it. `None`: this user cannot see which process.
    Taken(Option<String>),
    /// This host does not have the address, or this user may not use it.
    Unusable(String),
}

/// Judges a port of the configuration. `runs`: the daemon runs.
pub(super) fn port(key: &str, address: &str, port: &PortUse, runs: bool) -> CheckResult {
    let check = format!("port {key}");
    match (port, runs) {
        (PortUse::Ours, _) => CheckResult::ok(&check, format!("{address} is held by this daemon")),
        (PortUse::Free, false) => CheckResult::ok(&check, format!("{address} is free")),
        (PortUse::Free, true) => {
            CheckResult::warn(&check, format!("the daemon does not listen on {address}"))
                .advise("it takes a changed configuration at HUP (systemctl reload dq)")
        }
        (PortUse::Taken(who), _) => {
            let who = who.as_deref().unwrap_or("somebody (root can see who)");
            CheckResult::fail(&check, format!("{address} is held by {who}"))
                .advise(format!("end that, or give {key} another address"))
        }
        (PortUse::Unusable(why), _) => {
            CheckResult::fail(&check, format!("{address} cannot be listened on: {why}"))
        }
    }
}

/// The user and the groups that a daemon runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaemonUser {
    pub uid: u32,
    pub gids: Vec<u32>,
}

/// A file or folder that the daemon writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathPermissions {
    pub path: String,
    pub uid: u32,
    pub gid: u32,
    /// The permission bits.
    pub mode: u32,
    pub is_folder: bool,
    /// The path that is missing. `path` is then the folder in which it would be made. `None`: nothing is missing.
    pub stands_for: Option<String>,
}

/// Judges whether a daemon may write to a file or folder. `secret`: other users should not read its content.
pub(super) fn access(what: &str, place: &PathPermissions, user: &DaemonUser, secret: bool) -> CheckResult {
    let PathPermissions { path, uid, gid, mode, is_folder, stands_for } = place;
    let check = format!("access {what}");
    let bits = match () {
        () if user.uid == 0 => 7,
        () if user.uid == *uid => mode >> 6,
        () if user.gids.contains(gid) => mode >> 3,
        () => *mode,
    };
    let needed = if *is_folder { 7 } else { 6 };
    let owner = format!("owner {uid}:{gid}, mode {:03o}", mode & 0o777);
    if bits & needed != needed {
        let what = stands_for.as_ref().map_or(String::new(), |wanted| format!("{wanted} cannot be made: "));
        let text = format!("{what}{path} is not writable for the daemon's user {} ({owner})", user.uid);
        return CheckResult::fail(&check, text).advise(format!("chown {} {path}", user.uid));
    }
    match stands_for {
        Some(wanted) => CheckResult::ok(&check, format!("{wanted} is made when the daemon starts")),
        None if secret && mode & 0o004 != 0 => {
            CheckResult::warn(&check, format!("{path} can be read by everybody ({owner})"))
                .advise(format!("it holds secrets: chmod o-rwx {path}"))
        }
        None => CheckResult::ok(&check, path.clone()),
    }
}

/// Judges whether the kernel's clock is synchronised. `None`: the kernel does not say.
pub(super) fn synchronised(is_so: Option<bool>) -> CheckResult {
    match is_so {
        Some(true) => CheckResult::ok("clock", "this host's clock is synchronised"),
        Some(false) => CheckResult::warn("clock", "nothing synchronises this host's clock")
            .advise("jobs are due by it: run chrony or systemd-timesyncd"),
        None => CheckResult::ok("clock", "whether it is synchronised cannot be seen here"),
    }
}

/// Judges a configuration without a registry. `has_http`: there is a console.
pub(super) fn no_registry(has_http: bool) -> CheckResult {
    match has_http {
        true => CheckResult::warn(
            "registry",
            "there is none: nobody can sign in to the console, and only the file has topics",
        )
        .advise(
            "leave out registry.url, which is \"none\", and reload dq (HUP); docs/REGISTRY.md has the other values",
        ),
        false => CheckResult::ok("registry", "there is none: only the file has topics"),
    }
}

/// Judges the migrations of a database. `run` is the newest migration that was run there. `newest` is the newest
/// migration of this release.
pub(super) fn migrations(which: &str, run: Option<i64>, newest: i64) -> CheckResult {
    match run {
        Some(run) if run == newest => {
            CheckResult::ok("registry", format!("{which} answers, and is up to date (V{run:03})"))
        }
        Some(run) if run > newest => CheckResult::ok(
            "registry",
            format!("{which} answers; a later release has been there (V{run:03})"),
        ),
        Some(run) => CheckResult::warn(
            "registry",
            format!("{which} answers; it is at V{run:03}, this release brings V{newest:03}"),
        )
        .advise(
            "the daemon runs the migrations when it starts: restart it, or see its log for why it has not",
        ),
        None => CheckResult::warn("registry", format!("{which} answers, and has none of dq's tables"))
            .advise("the daemon makes them when it starts"),
    }
}

/// Judges the topics. `topics` has the name of each topic. If dq cannot serve a topic with its settings, `topics` also
/// has the reason. `is_told` says whether the daemon itself has reported the topic.
pub(super) fn topics(
    topics: &BTreeMap<&str, Option<String>>,
    is_told: impl Fn(&str) -> bool,
) -> Vec<CheckResult> {
    let problems: Vec<(&str, &String)> =
        topics.iter().filter_map(|(name, problem)| Some((*name, problem.as_ref()?))).collect();
    if problems.is_empty() {
        return vec![CheckResult::ok("topics", format!("all {} are served as they are set", topics.len()))];
    }
    let line = |(name, problem): (&str, &String)| {
        CheckResult::warn("topic", format!("{name}: {problem}"))
            .advise(format!("edit it where it was written, or: dq topics set {name} …"))
    };
    problems.into_iter().filter(|(name, _)| !is_told(name)).map(line).collect()
}

/// Judges whether a topic checks the certificate of its receiver. None: the topic checks it, or its callback does not
/// use TLS.
pub(super) fn certificate(topic: &Topic) -> Option<CheckResult> {
    let is_secure = topic.callback.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("https://"));
    if topic.tls_verify || !is_secure {
        return None;
    }
    let name = &topic.name;
    let risk = "tls_verify is false, so others on the network may read and change its callbacks";
    let advice = format!(
        "put the receiver's certificate into callback.ca_file, then: dq topics set {name} --tls-verify true"
    );
    Some(CheckResult::warn("topic", format!("{name}: {risk}")).advise(advice))
}

/// Judges whether a process may open enough descriptors for `connections` connections.
pub(super) fn descriptors(limit: u64, connections: u64) -> CheckResult {
    let text = format!("{limit} may be open, for {connections} connections and the rest");
    match limit {
        ..DESCRIPTORS_BESIDE => {
            CheckResult::fail("descriptors", text).advise("ulimit -n, or LimitNOFILE of the service")
        }
        _ if limit < connections + DESCRIPTORS_BESIDE => CheckResult::warn("descriptors", text)
            .advise("raise it (ulimit -n, LimitNOFILE), or lower server.max_connections"),
        _ => CheckResult::ok("descriptors", text),
    }
}

/// Judges the free space under a folder, in bytes. Adds are refused if less than `min_free` is free. `min_free` is 0
/// for folders without this limit.
pub(super) fn room(what: &str, path: &str, free: u64, all: u64, min_free: u64) -> CheckResult {
    let text = format!("{} of {} MiB are free under {path}", free >> 20, all >> 20);
    let check = format!("room {what}");
    if free < min_free {
        return CheckResult::fail(&check, text)
            .advise("this is less than store.min_free, so adds are refused: make room");
    }
    if free < nearly_full_below(all, min_free) {
        return CheckResult::fail(&check, text).advise("make room, before adds are refused");
    }
    if free < all / 100 * ROOM_WARN {
        return CheckResult::warn(&check, text);
    }
    CheckResult::ok(&check, text)
}

/// The result of a try to connect to the host and port of callbacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReceiverConnectResult {
    Yes,
    NoName(String),
    Denied(String),
    No(String),
}

/// Judges the host and port that the callbacks of some topics go to.
pub(super) fn callback(place: &str, topics: &[String], reached: &ReceiverConnectResult) -> CheckResult {
    let shown = match topics {
        [one] => format!("topic {one}"),
        [one, rest @ ..] => format!("topic {one} and {} more", rest.len()),
        [] => String::new(),
    };
    let check = "callback";
    match reached {
        ReceiverConnectResult::Yes => {
            CheckResult::ok(check, format!("{place} accepts a connection ({shown})"))
        }
        ReceiverConnectResult::NoName(why) => {
            CheckResult::fail(check, format!("{place} ({shown}): its name has no address: {why}"))
                .advise("correct the topic's callback, or this host's resolver")
        }
        ReceiverConnectResult::Denied(why) => {
            CheckResult::fail(check, format!("{place} ({shown}) is not called: {why}"))
                .advise("callback.guard forbids it; callback.allow opens ranges")
        }
        ReceiverConnectResult::No(why) => {
            CheckResult::warn(check, format!("{place} ({shown}) accepts no connection: {why}"))
                .advise("deliveries fail and are tried again until it does")
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_runbook_says_what_to_do_about_each_check() {
        let runbook = include_str!("../../../docs/RUNBOOK.md");
        let (_, part) = runbook.split_once("## Findings of `dq doctor`").unwrap();
        let rows = part.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
        let words = rows.flat_map(|row| row.split(" |").next().unwrap().split(", "));
        let mut named: Vec<&str> =
            words.map(|word| word.trim_matches('`').split(' ').next().unwrap()).collect();
        named.sort_unstable();
        assert_eq!(named, CHECKS);
    }

    use crate::failure::Problem;

    fn verdicts(lines: &[CheckResult]) -> Vec<Verdict> {
        lines.iter().map(|line| line.verdict).collect()
    }

    fn status(phase: &str, state: &str, refused: Option<&str>) -> Result<DaemonStatus> {
        let process = json!({"name": "dq-timer-0", "generation": 2, "state": state, "pid": 1, "started_ms": 0,
            "overdue_ms": 0, "restarts": 0, "last_end": null});
        let mut old = process.clone();
        (old["generation"], old["state"]) = (json!(1), json!("draining"));
        let renewal = refused.map(|why| json!({"at_ms": 0, "kind": "executable", "refused": why}));
        let status = json!({"version": "1", "instance": "h", "pid": 7, "started_ms": 0, "phase": phase, "generation": 2,
            "renewal": renewal, "listening": [], "processes": [old, process]});
        Ok(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_paused_topic_is_a_warning() {
        let topic = |paused| TopicSnapshot {
            topic: "t".into(),
            ready: 7,
            delayed: 2,
            paused,
            ..TopicSnapshot::default()
        };
        let line = pause(&topic(Some(true))).unwrap();
        assert_eq!(
            (line.verdict, line.detail.as_str()),
            (Verdict::Warn, "t: 7 ready jobs wait, and 2 jobs are delayed")
        );
        assert!(line.advice.unwrap().contains("dq topics resume t"));
        assert!(pause(&topic(Some(false))).is_none() && pause(&topic(None)).is_none());
    }

    #[test]
    fn a_daemon_is_well_when_all_of_its_newest_processes_are_up() {
        for (phase, state, refused, verdict) in [
            ("steady", "up", None, Verdict::Ok),
            ("steady", "up", Some("no such file"), Verdict::Warn),
            ("steady", "waiting", None, Verdict::Fail),
            ("steady", "gone", None, Verdict::Fail),
            ("rolling", "up", None, Verdict::Warn),
            ("stopping", "up", None, Verdict::Fail),
        ] {
            assert_eq!(daemon(&status(phase, state, refused)).verdict, verdict, "{phase} {state}");
        }
        assert_eq!(daemon(&Err(anyhow!("no dq-master answers"))).verdict, Verdict::Fail);
    }

    #[test]
    fn the_check_separates_a_not_ready_api_from_a_denied_one() {
        let failure = |failure: Failure| ready(&Err(failure.into()));
        let not_ready = Problem { status: 503, ..Problem::default() };
        assert_eq!(ready(&Ok(())).verdict, Verdict::Ok);
        assert!(failure(Failure::Refused(not_ready)).detail.contains("not ready"));
        let denied = failure(Failure::Unreachable("Permission denied".into()));
        assert!(denied.verdict == Verdict::Warn && denied.advice.unwrap().contains("root"));
        assert_eq!(failure(Failure::Unreachable("refused".into())).verdict, Verdict::Fail);
    }

    #[test]
    fn a_port_is_judged_by_who_has_it() {
        let line = |which: PortUse, runs| port("server.listen", "127.0.0.1:6789", &which, runs);
        assert_eq!(line(PortUse::Free, false).verdict, Verdict::Ok);
        assert_eq!(line(PortUse::Free, true).verdict, Verdict::Warn);
        assert_eq!(line(PortUse::Ours, true).verdict, Verdict::Ok);
        let taken = line(PortUse::Taken(Some("nginx (pid 7)".into())), false);
        assert!(taken.verdict == Verdict::Fail && taken.detail.contains("nginx (pid 7)"), "{taken:?}");
        assert_eq!(line(PortUse::Unusable("no such address".into()), false).verdict, Verdict::Fail);
    }

    #[test]
    fn the_daemons_user_needs_to_write_what_it_writes() {
        let user = DaemonUser { uid: 5, gids: vec![50] };
        let place = |uid, gid, mode, is_folder| PathPermissions {
            path: "/var/lib/dq".into(),
            uid,
            gid,
            mode,
            is_folder,
            stands_for: None,
        };
        for (uid, gid, mode, is_folder, verdict) in [
            (5, 1, 0o700, true, Verdict::Ok),
            (5, 1, 0o500, true, Verdict::Fail),
            (5, 1, 0o077, true, Verdict::Fail),
            (1, 50, 0o770, true, Verdict::Ok),
            (1, 50, 0o760, true, Verdict::Fail),
            (1, 50, 0o660, false, Verdict::Ok),
            (1, 1, 0o777, true, Verdict::Ok),
            (1, 1, 0o775, true, Verdict::Fail),
        ] {
            let line = access("store", &place(uid, gid, mode, is_folder), &user, false);
            assert_eq!(line.verdict, verdict, "{uid}:{gid} {mode:o}");
        }
        let root = DaemonUser { uid: 0, gids: vec![] };
        assert_eq!(access("store", &place(1, 1, 0o700, true), &root, false).verdict, Verdict::Ok);
        assert_eq!(access("registry", &place(5, 1, 0o644, false), &user, true).verdict, Verdict::Warn);
        assert_eq!(access("registry", &place(5, 1, 0o640, false), &user, true).verdict, Verdict::Ok);
        let missing =
            PathPermissions { stands_for: Some("/var/lib/dq/run".into()), ..place(1, 1, 0o755, true) };
        assert!(
            access("run_dir", &missing, &user, false).detail.starts_with("/var/lib/dq/run cannot be made")
        );
    }

    #[test]
    fn migrations_descriptors_and_room_are_judged() {
        let of = |run| migrations("sqlite:/r.db", run, 3).verdict;
        assert_eq!(
            [of(Some(3)), of(Some(4)), of(Some(2)), of(None)],
            [Verdict::Ok, Verdict::Ok, Verdict::Warn, Verdict::Warn]
        );
        let of = |limit| descriptors(limit, 10_000).verdict;
        assert_eq!(
            [of(65_536), of(10_512), of(10_511), of(511)],
            [Verdict::Ok, Verdict::Ok, Verdict::Warn, Verdict::Fail]
        );
        let of = |free: u64, all: u64| room("store", "/x", free << 20, all << 20, 32 << 20).verdict;
        assert_eq!(
            [of(50_000, 100_000), of(9_000, 100_000), of(1_000, 100_000)],
            [Verdict::Ok, Verdict::Warn, Verdict::Fail]
        );
        assert_eq!([of(101, 1000), of(99, 1000)], [Verdict::Ok, Verdict::Fail]);
    }

    #[test]
    fn a_topic_that_was_taken_over_half_is_named_once() {
        let all = BTreeMap::from([("a", None), ("b", Some("held: method".to_owned()))]);
        let lines = topics(&all, |_| false);
        assert_eq!(verdicts(&lines), [Verdict::Warn]);
        assert_eq!(lines[0].detail, "b: held: method");
        assert_eq!(topics(&all, |name| name == "b"), [], "the daemon has a finding about it");
        assert_eq!(verdicts(&topics(&BTreeMap::from([("a", None)]), |_| false)), [Verdict::Ok]);
    }

    #[test]
    fn a_topic_that_checks_no_certificate_is_named() {
        let topic = |url: &str, tls_verify: bool| {
            certificate(&Topic { tls_verify, ..Topic::new(model::job::TopicName::new("t").unwrap(), url) })
        };
        assert_eq!([topic("https://h/", true), topic("http://h/", false)], [None, None]);
        let line = topic("HTTPS://h/", false).unwrap();
        assert!(line.verdict == Verdict::Warn && line.detail.starts_with("t: tls_verify"), "{line:?}");
    }

    #[test]
    fn an_uncallable_callback_fails_and_an_unreachable_one_warns() {
        let topics = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let of = |reached| callback("h:80", &topics, &reached);
        assert_eq!(of(ReceiverConnectResult::Yes).detail, "h:80 accepts a connection (topic a and 2 more)");
        assert_eq!(of(ReceiverConnectResult::No("refused".into())).verdict, Verdict::Warn);
        assert_eq!(of(ReceiverConnectResult::NoName("unknown".into())).verdict, Verdict::Fail);
        assert_eq!(of(ReceiverConnectResult::Denied("reserved".into())).verdict, Verdict::Fail);
    }
}

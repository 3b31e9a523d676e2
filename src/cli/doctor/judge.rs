//! What the facts mean. Pure: each judgement takes what was seen, and gives a line with what to do.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::super::failure::Failure;
use crate::status::{Finding, Phase, ProcessState, Status};

/// More than this between two clocks is told.
const CLOCK_MAX: Duration = Duration::from_millis(50);

/// Less room than this on a disk has failed: bytes, and hundredths; and so many hundredths are to be looked at.
const ROOM: (u64, u64) = (256 << 20, 3);
const ROOM_WARN: u64 = 10;

/// What a daemon needs beside its connections, and without which it does not start.
const DESCRIPTORS_BESIDE: u64 = 512;

/// How a check came out.
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

/// A check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    /// What was looked at.
    pub check: String,
    pub verdict: Verdict,
    pub detail: String,
    /// What to do.
    pub advice: Option<String>,
}

impl Line {
    fn new(check: &str, verdict: Verdict, detail: impl Into<String>) -> Line {
        Line { check: check.to_owned(), verdict, detail: detail.into(), advice: None }
    }

    pub(super) fn ok(check: &str, detail: impl Into<String>) -> Line {
        Line::new(check, Verdict::Ok, detail)
    }

    pub(super) fn warn(check: &str, detail: impl Into<String>) -> Line {
        Line::new(check, Verdict::Warn, detail)
    }

    pub(super) fn fail(check: &str, detail: impl Into<String>) -> Line {
        Line::new(check, Verdict::Fail, detail)
    }

    pub(super) fn advise(self, advice: impl Into<String>) -> Line {
        Line { advice: Some(advice.into()), ..self }
    }
}

/// What the master said.
pub(super) fn daemon(status: &Result<Status>) -> Line {
    let status = match status {
        Ok(status) => status,
        Err(e) => return Line::fail("daemon", format!("{e:#}")).advise("start it, or say where it runs"),
    };
    let Status { version, pid, phase, generation, .. } = status;
    let who = format!("dq {version}, pid {pid}");
    let is_up = |p: &&crate::status::Process| p.state == ProcessState::Up && p.overdue_ms == 0;
    let of_now: Vec<_> = status.processes.iter().filter(|p| p.generation == *generation).collect();
    let not: Vec<&str> = of_now.iter().filter(|p| !is_up(p)).map(|p| p.name.as_str()).collect();
    match phase {
        Phase::Stopping => Line::fail("daemon", format!("{who} is ending")),
        _ if !not.is_empty() => {
            Line::fail("daemon", format!("{who}: {} of its processes are not up", not.join(", ")))
                .advise("`dq status` and the log say why")
        }
        Phase::Steady => match status.renewal.as_ref().and_then(|renewal| renewal.refused.as_ref()) {
            Some(why) => {
                Line::warn("daemon", format!("{who} runs as before: the last restart was refused: {why}"))
            }
            None => Line::ok("daemon", format!("{who}, all {} processes are up", of_now.len())),
        },
        _ => Line::warn("daemon", format!("{who} is in the middle of a start or restart"))
            .advise("look again soon"),
    }
}

/// What `/readyz` said.
pub(super) fn ready(answer: &Result<()>) -> Line {
    let Err(e) = answer else { return Line::ok("api", "it answers, and is ready") };
    match e.downcast_ref() {
        Some(Failure::Refused(problem)) if problem.status == 503 => {
            Line::fail("api", "it answers, and is not ready").advise("GET /readyz names the part that is not")
        }
        Some(Failure::Unreachable(why)) if why.contains("denied") => Line::warn("api", why.clone())
            .advise("the Unix socket is the daemon's user's: run this as that user or root, or with --url and a token"),
        _ => Line::fail("api", format!("{e:#}")),
    }
}

/// What dq-redis-checker has found.
pub(super) fn finding(finding: &Finding) -> Line {
    let told = format!("{}: {}", finding.what, finding.detail);
    match finding.loses_jobs {
        true => Line::fail("alert", told).advise("jobs may be lost by it: mend it first"),
        false => Line::warn("alert", told),
    }
}

/// Who has a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Port {
    Free,
    /// The daemon that is looked at.
    Ours,
    /// Somebody else, as far as that can be seen.
    Taken(Option<String>),
    /// This host has no such address, or it is not this user's.
    Unusable(String),
}

/// A port of the configuration. `runs`: the daemon does.
pub(super) fn port(key: &str, address: &str, port: &Port, runs: bool) -> Line {
    let check = format!("port {key}");
    match (port, runs) {
        (Port::Ours, _) => Line::ok(&check, format!("{address} is held by this daemon")),
        (Port::Free, false) => Line::ok(&check, format!("{address} is free")),
        (Port::Free, true) => Line::warn(&check, format!("the daemon does not listen on {address}"))
            .advise("it takes a changed configuration at HUP (systemctl reload dq)"),
        (Port::Taken(who), _) => {
            let who = who.as_deref().unwrap_or("somebody (root can see who)");
            Line::fail(&check, format!("{address} is held by {who}"))
                .advise(format!("end that, or give {key} another address"))
        }
        (Port::Unusable(why), _) => Line::fail(&check, format!("{address} cannot be listened on: {why}")),
    }
}

/// The user whom a daemon runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub uid: u32,
    pub gids: Vec<u32>,
}

/// A file or folder that the daemon writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub path: String,
    pub uid: u32,
    pub gid: u32,
    /// The permission bits.
    pub mode: u32,
    pub is_folder: bool,
    /// It is not there: this is the folder in which it would be made.
    pub stands_for: Option<String>,
}

/// Whether a daemon may write there. `secret`: there is something in it that others should not read.
pub(super) fn access(what: &str, place: &Place, user: &User, secret: bool) -> Line {
    let Place { path, uid, gid, mode, is_folder, stands_for } = place;
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
        let told = format!("{what}{path} is not writable for the daemon's user {} ({owner})", user.uid);
        return Line::fail(&check, told).advise(format!("chown {} {path}", user.uid));
    }
    match stands_for {
        Some(wanted) => Line::ok(&check, format!("{wanted} is made when the daemon starts")),
        None if secret && mode & 0o004 != 0 => {
            Line::warn(&check, format!("{path} can be read by everybody ({owner})"))
                .advise(format!("secrets lie in it: chmod o-rwx {path}"))
        }
        None => Line::ok(&check, path.clone()),
    }
}

/// What a server of a node has told.
#[derive(Debug, Default, Clone)]
pub(super) struct Server {
    /// Why it does not answer.
    pub down: Option<String>,
    pub info: BTreeMap<String, String>,
    pub config: BTreeMap<String, String>,
    /// By how many milliseconds its clock is ahead of this host's, beyond what the way explains.
    pub ahead_ms: i64,
}

/// A node's server.
pub(super) fn node(name: &str, server: &Server) -> Vec<Line> {
    let check = format!("node {name}");
    if let Some(why) = &server.down {
        let advice = "its jobs wait until it is back; new ones go to the other nodes";
        return vec![Line::fail(&check, format!("it does not answer: {why}")).advise(advice)];
    }
    let mut lines = Vec::new();
    let info = |key: &str| server.info.get(key).map_or("", String::as_str);
    let config = |key: &str| server.config.get(key).map_or("", String::as_str);
    let version = info("redis_version");
    let major = version.split('.').next().and_then(|n| n.parse::<u32>().ok());
    if major.is_some_and(|major| major < 7) {
        lines.push(Line::fail(&check, format!("it is Redis {version}")).advise("dq needs Redis 7 or later"));
    }
    let policy = config("maxmemory-policy");
    if !policy.is_empty() && policy != "noeviction" {
        let line = Line::fail(&check, format!("maxmemory-policy is {policy}: jobs may be evicted"));
        lines.push(line.advise("CONFIG SET maxmemory-policy noeviction, and the same in its file"));
    }
    match (config("appendonly"), config("save")) {
        ("yes", _) => {}
        ("no", "") => lines.push(
            Line::fail(&check, "it keeps nothing on its disk: a restart loses all jobs")
                .advise("CONFIG SET appendonly yes, and the same in its file"),
        ),
        ("no", _) => lines.push(
            Line::warn(&check, "it keeps snapshots only: a crash loses the jobs since the last")
                .advise("appendonly yes"),
        ),
        // It does not let itself be asked.
        _ => lines.push(Line::warn(&check, "it does not tell how it is set (CONFIG is forbidden?)")),
    }
    if info("role") == "slave" {
        lines.push(Line::fail(&check, "it is a replica").advise("name its master in the configuration"));
    }
    lines.extend(clock(&check, server.ahead_ms));
    if lines.is_empty() {
        let kept = "it answers, keeps its jobs, evicts none";
        lines.push(Line::ok(
            &check,
            format!("{kept}{}{version}", if version.is_empty() { "" } else { "; Redis " }),
        ));
    }
    lines
}

fn clock(check: &str, ahead_ms: i64) -> Option<Line> {
    let word = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let off = ahead_ms.unsigned_abs();
    (u128::from(off) > CLOCK_MAX.as_millis()).then(|| {
        Line::warn(check, format!("its clock is {off} ms {word} this host's"))
            .advise("jobs are due by the node's clock: synchronise both (chrony, systemd-timesyncd)")
    })
}

/// Whether the kernel's clock is synchronised; none: it does not say.
pub(super) fn synchronised(is_so: Option<bool>) -> Line {
    match is_so {
        Some(true) => Line::ok("clock", "this host's clock is synchronised"),
        Some(false) => Line::warn("clock", "nothing synchronises this host's clock")
            .advise("jobs are due by it: run chrony or systemd-timesyncd"),
        None => Line::ok("clock", "whether it is synchronised cannot be seen here"),
    }
}

/// There is no registry. `has_http`: there is a console.
pub(super) fn no_registry(has_http: bool) -> Line {
    match has_http {
        true => Line::warn(
            "registry",
            "there is none: nobody can sign in to the console, and only the file has topics",
        )
        .advise(
            "name a database as registry.url (with Redis one of MySQL or MariaDB), then dq takes it at HUP",
        ),
        false => Line::ok("registry", "there is none: only the file has topics"),
    }
}

/// A database's migrations: the newest that was run there, and the newest of this release.
pub(super) fn migrations(which: &str, run: Option<i64>, newest: i64) -> Line {
    match run {
        Some(run) if run == newest => {
            Line::ok("registry", format!("{which} answers, and is up to date (V{run:03})"))
        }
        Some(run) if run > newest => {
            Line::ok("registry", format!("{which} answers; a later release has been there (V{run:03})"))
        }
        Some(run) => Line::warn(
            "registry",
            format!("{which} answers; it is at V{run:03}, this release brings V{newest:03}"),
        )
        .advise(
            "the daemon runs the migrations when it starts: restart it, or see its log for why it has not",
        ),
        None => Line::warn("registry", format!("{which} answers, and has none of dq's tables"))
            .advise("the daemon makes them when it starts"),
    }
}

/// The topics by name, each with what dq cannot do of it; and which of these the daemon has told of.
pub(super) fn topics(topics: &BTreeMap<&str, Option<String>>, is_told: impl Fn(&str) -> bool) -> Vec<Line> {
    let problems: Vec<(&str, &String)> =
        topics.iter().filter_map(|(name, problem)| Some((*name, problem.as_ref()?))).collect();
    if problems.is_empty() {
        return vec![Line::ok("topics", format!("all {} are served as they are set", topics.len()))];
    }
    let line = |(name, problem): (&str, &String)| {
        Line::warn("topic", format!("{name}: {problem}"))
            .advise(format!("edit it where it was written, or: dq topics set {name} …"))
    };
    problems.into_iter().filter(|(name, _)| !is_told(name)).map(line).collect()
}

/// How many descriptors a process may open, for so many connections.
pub(super) fn descriptors(limit: u64, connections: u64) -> Line {
    let told = format!("{limit} may be open, for {connections} connections and the rest");
    match limit {
        ..DESCRIPTORS_BESIDE => {
            Line::fail("descriptors", told).advise("ulimit -n, or LimitNOFILE of the service")
        }
        _ if limit < connections + DESCRIPTORS_BESIDE => Line::warn("descriptors", told)
            .advise("raise it (ulimit -n, LimitNOFILE), or lower server.max_connections"),
        _ => Line::ok("descriptors", told),
    }
}

/// The room under a folder, in bytes.
pub(super) fn room(what: &str, path: &str, free: u64, all: u64) -> Line {
    let (bytes, hundredths) = ROOM;
    let told = format!("{} of {} MiB are free under {path}", free >> 20, all >> 20);
    let check = format!("room {what}");
    // A small disk is not near its end only because it is small.
    if free < bytes.min(all / 10).max(all / 100 * hundredths) {
        return Line::fail(&check, told).advise("adds are refused when it is full: make room");
    }
    if free < all / 100 * ROOM_WARN {
        return Line::warn(&check, told);
    }
    Line::ok(&check, told)
}

/// What became of a try to connect to where callbacks go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reached {
    Yes,
    NoName(String),
    Denied(String),
    No(String),
}

/// Where the callbacks of some topics go.
pub(super) fn callback(place: &str, topics: &[String], reached: &Reached) -> Line {
    let shown = match topics {
        [one] => format!("topic {one}"),
        [one, rest @ ..] => format!("topic {one} and {} more", rest.len()),
        [] => String::new(),
    };
    let check = "callback";
    match reached {
        Reached::Yes => Line::ok(check, format!("{place} accepts a connection ({shown})")),
        Reached::NoName(why) => {
            Line::fail(check, format!("{place} ({shown}): its name has no address: {why}"))
                .advise("mend the topic's callback, or this host's resolver")
        }
        Reached::Denied(why) => Line::fail(check, format!("{place} ({shown}) is not called: {why}"))
            .advise("callback.guard forbids it; callback.allow opens ranges"),
        Reached::No(why) => Line::warn(check, format!("{place} ({shown}) accepts no connection: {why}"))
            .advise("deliveries fail and are tried again until it does"),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::*;
    use crate::cli::failure::Problem;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn verdicts(lines: &[Line]) -> Vec<Verdict> {
        lines.iter().map(|line| line.verdict).collect()
    }

    fn status(phase: &str, state: &str, refused: Option<&str>) -> Result<Status> {
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
    fn an_api_that_is_not_ready_is_told_from_one_that_may_not_be_asked() {
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
        let line = |which: Port, runs| port("server.listen", "127.0.0.1:6789", &which, runs);
        assert_eq!(line(Port::Free, false).verdict, Verdict::Ok);
        assert_eq!(line(Port::Free, true).verdict, Verdict::Warn);
        assert_eq!(line(Port::Ours, true).verdict, Verdict::Ok);
        let taken = line(Port::Taken(Some("nginx (pid 7)".into())), false);
        assert!(taken.verdict == Verdict::Fail && taken.detail.contains("nginx (pid 7)"), "{taken:?}");
        assert_eq!(line(Port::Unusable("no such address".into()), false).verdict, Verdict::Fail);
    }

    #[test]
    fn the_daemons_user_needs_to_write_what_it_writes() {
        let user = User { uid: 5, gids: vec![50] };
        let place = |uid, gid, mode, is_folder| Place {
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
        let root = User { uid: 0, gids: vec![] };
        assert_eq!(access("store", &place(1, 1, 0o700, true), &root, false).verdict, Verdict::Ok);
        assert_eq!(access("registry", &place(5, 1, 0o644, false), &user, true).verdict, Verdict::Warn);
        assert_eq!(access("registry", &place(5, 1, 0o640, false), &user, true).verdict, Verdict::Ok);
        let missing = Place { stands_for: Some("/var/lib/dq/run".into()), ..place(1, 1, 0o755, true) };
        assert!(
            access("run_dir", &missing, &user, false).detail.starts_with("/var/lib/dq/run cannot be made")
        );
    }

    #[test]
    fn a_node_has_to_keep_its_jobs() {
        let info = [("redis_version", "7.0.15"), ("role", "master")];
        let config = [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("save", "")];
        let good = Server { info: map(&info), config: map(&config), ..Server::default() };
        assert_eq!(verdicts(&node("r1", &good)), [Verdict::Ok]);
        let with = |key: &str, value: &str| {
            let mut server = good.clone();
            let told =
                if info.iter().any(|(k, _)| *k == key) { &mut server.info } else { &mut server.config };
            told.insert(key.into(), value.into());
            node("r1", &server)
        };
        assert_eq!(verdicts(&with("redis_version", "6.2.1")), [Verdict::Fail]);
        assert_eq!(verdicts(&with("role", "slave")), [Verdict::Fail]);
        assert_eq!(verdicts(&with("maxmemory-policy", "allkeys-lru")), [Verdict::Fail]);
        assert_eq!(verdicts(&with("appendonly", "no")), [Verdict::Fail]);
        let snapshots = [("maxmemory-policy", "noeviction"), ("appendonly", "no"), ("save", "3600 1")];
        assert_eq!(
            verdicts(&node("r1", &Server { config: map(&snapshots), ..good.clone() })),
            [Verdict::Warn]
        );
        assert_eq!(verdicts(&node("r1", &Server { config: map(&[]), ..good.clone() })), [Verdict::Warn]);
        let down = Server { down: Some("refused".into()), ..Server::default() };
        assert!(node("r1", &down)[0].detail.contains("refused"));
    }

    #[test]
    fn clocks_that_differ_are_told() {
        let of = |ahead_ms| clock("node r1", ahead_ms).map(|line| line.detail);
        assert_eq!((of(50), of(-50), of(0)), (None, None, None));
        assert_eq!(of(51).unwrap(), "its clock is 51 ms ahead of this host's");
        assert_eq!(of(-700).unwrap(), "its clock is 700 ms behind this host's");
        let all = [Some(true), Some(false), None].map(|is_so| synchronised(is_so).verdict);
        assert_eq!(all, [Verdict::Ok, Verdict::Warn, Verdict::Ok]);
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
        let of = |free: u64, all: u64| room("store", "/x", free << 20, all << 20).verdict;
        assert_eq!(
            [of(50_000, 100_000), of(9_000, 100_000), of(2_900, 100_000)],
            [Verdict::Ok, Verdict::Warn, Verdict::Fail]
        );
        assert_eq!([of(101, 1000), of(99, 1000)], [Verdict::Ok, Verdict::Fail]);
    }

    #[test]
    fn a_topic_that_was_taken_over_half_is_named_once() {
        let all = BTreeMap::from([("a", None), ("b", Some("offline: method".to_owned()))]);
        let lines = topics(&all, |_| false);
        assert_eq!(verdicts(&lines), [Verdict::Warn]);
        assert_eq!(lines[0].detail, "b: offline: method");
        assert_eq!(topics(&all, |name| name == "b"), [], "the daemon has told of it");
        assert_eq!(verdicts(&topics(&BTreeMap::from([("a", None)]), |_| false)), [Verdict::Ok]);
    }

    #[test]
    fn a_callback_that_is_never_called_has_failed_and_one_that_is_away_is_to_be_looked_at() {
        let topics = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let of = |reached| callback("h:80", &topics, &reached);
        assert_eq!(of(Reached::Yes).detail, "h:80 accepts a connection (topic a and 2 more)");
        assert_eq!(of(Reached::No("refused".into())).verdict, Verdict::Warn);
        assert_eq!(of(Reached::NoName("unknown".into())).verdict, Verdict::Fail);
        assert_eq!(of(Reached::Denied("reserved".into())).verdict, Verdict::Fail);
    }
}

//! The judgements of `dq doctor`, one by one.

use anyhow::anyhow;
use serde_json::json;

use super::super::super::failure::Problem;
use super::*;

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
    assert!(access("run_dir", &missing, &user, false).detail.starts_with("/var/lib/dq/run cannot be made"));
}

#[test]
fn a_node_has_to_keep_its_jobs() {
    let info = [("redis_version", "7.0.15"), ("role", "master")];
    let config = [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("save", "")];
    let good = Server { info: map(&info), config: map(&config), ..Server::default() };
    assert_eq!(verdicts(&node("r1", &good)), [Verdict::Ok]);
    let with = |key: &str, value: &str| {
        let mut server = good.clone();
        let told = if info.iter().any(|(k, _)| *k == key) { &mut server.info } else { &mut server.config };
        told.insert(key.into(), value.into());
        node("r1", &server)
    };
    assert_eq!(verdicts(&with("redis_version", "6.2.1")), [Verdict::Fail]);
    assert_eq!(verdicts(&with("role", "slave")), [Verdict::Fail]);
    assert_eq!(verdicts(&with("maxmemory-policy", "allkeys-lru")), [Verdict::Fail]);
    assert_eq!(verdicts(&with("appendonly", "no")), [Verdict::Fail]);
    let snapshots = [("maxmemory-policy", "noeviction"), ("appendonly", "no"), ("save", "3600 1")];
    assert_eq!(verdicts(&node("r1", &Server { config: map(&snapshots), ..good.clone() })), [Verdict::Warn]);
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
fn a_callback_that_is_never_called_has_failed_and_one_that_is_away_is_to_be_looked_at() {
    let topics = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
    let of = |reached| callback("h:80", &topics, &reached);
    assert_eq!(of(Reached::Yes).detail, "h:80 accepts a connection (topic a and 2 more)");
    assert_eq!(of(Reached::No("refused".into())).verdict, Verdict::Warn);
    assert_eq!(of(Reached::NoName("unknown".into())).verdict, Verdict::Fail);
    assert_eq!(of(Reached::Denied("reserved".into())).verdict, Verdict::Fail);
}

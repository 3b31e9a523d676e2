//! Judges the reported facts of a node's server: does the server keep its jobs, and is it as safe as the settings
//! require? Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::judge::CheckResult;
use model::topic::Durability;
use store::ServerDurability;

/// A larger difference between two clocks is reported.
const CLOCK_MAX: Duration = Duration::from_millis(50);

/// What a server of a node has answered.
#[derive(Debug, Default, Clone)]
pub(super) struct RedisServerReport {
    /// Why the server does not answer.
    pub down: Option<String>,
    pub info: BTreeMap<String, String>,
    pub config: BTreeMap<String, String>,
    /// The difference between the clock of the server and the clock of this host, in milliseconds. Positive: the
    /// server's clock is ahead. A difference that the time of the request can explain is left out.
    pub ahead_ms: i64,
}

/// What the configuration and the topics require of nodes.
#[derive(Debug, Default, Clone)]
pub(super) struct DurabilityRequirements {
    pub levels: Vec<Durability>,
    pub allows_snapshots: bool,
}

/// Judges a server of a node.
pub(super) fn node(
    name: &str,
    server: &RedisServerReport,
    asked: &DurabilityRequirements,
) -> Vec<CheckResult> {
    let check = format!("node {name}");
    if let Some(why) = &server.down {
        let advice = "its jobs wait until it is back; adds for it wait in the spool, or are refused if store.spool is 0";
        return vec![CheckResult::fail(&check, format!("it does not answer: {why}")).advise(advice)];
    }
    let mut lines = Vec::new();
    let info = |key: &str| server.info.get(key).map_or("", String::as_str);
    let config = |key: &str| server.config.get(key).map_or("", String::as_str);
    let version = info("redis_version");
    let major = version.split('.').next().and_then(|n| n.parse::<u32>().ok());
    if major.is_some_and(|major| major < 7) {
        lines.push(
            CheckResult::fail(&check, format!("it is Redis {version}")).advise("dq needs Redis 7 or later"),
        );
    }
    let policy = config("maxmemory-policy");
    if !policy.is_empty() && policy != "noeviction" {
        let line = CheckResult::fail(&check, format!("maxmemory-policy is {policy}: jobs may be evicted"));
        lines.push(line.advise("CONFIG SET maxmemory-policy noeviction, and the same in its file"));
    }
    match (config("appendonly"), config("save")) {
        ("yes", _) => {}
        ("no", "") => lines.push(
            CheckResult::fail(&check, "it keeps nothing on its disk: a restart loses all jobs")
                .advise("CONFIG SET appendonly yes, and the same in its file"),
        ),
        ("no", _) if asked.allows_snapshots => lines.push(
            CheckResult::warn(&check, "it keeps snapshots only: a crash loses the jobs since the last")
                .advise("appendonly yes"),
        ),
        ("no", _) => lines.push(
            CheckResult::fail(
                &check,
                "it keeps snapshots only, and dq does not use it: a crash loses the jobs since the last",
            )
            .advise("CONFIG SET appendonly yes, and the same in its file; or store.allow_snapshots = true"),
        ),
        // The server refuses to show its configuration.
        _ => lines.push(CheckResult::warn(&check, "its settings cannot be read (is CONFIG forbidden?)")),
    }
    let capability = ServerDurability::new(&server.info, &server.config);
    let lacks = asked.levels.iter().filter_map(|level| Some((level, capability.lacks(*level)?)));
    lines.extend(lacks.map(|(level, why)| {
        CheckResult::fail(&check, format!("durability \"{level}\" cannot be had there, as {why}"))
            .advise("adds that ask for it are refused: change the server, store.durability, or the topic's durability")
    }));
    if info("role") == "slave" {
        lines.push(
            CheckResult::fail(&check, "it is a replica").advise("name its master in the configuration"),
        );
    }
    lines.extend(clock(&check, server.ahead_ms));
    if lines.is_empty() {
        let kept = "it answers, keeps its jobs, evicts none";
        let (level, replicas) = (capability.alone(), capability.replicas.unwrap_or(0));
        let release = if version.is_empty() { String::new() } else { format!("; Redis {version}") };
        lines.push(CheckResult::ok(
            &check,
            format!("{kept}{release}; durability up to {level}, replicas: {replicas}"),
        ));
    }
    lines
}

fn clock(check: &str, ahead_ms: i64) -> Option<CheckResult> {
    let word = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let off = ahead_ms.unsigned_abs();
    (u128::from(off) > CLOCK_MAX.as_millis()).then(|| {
        CheckResult::warn(check, format!("its clock is {off} ms {word} this host's"))
            .advise("jobs are due by the node's clock: synchronise both (chrony, systemd-timesyncd)")
    })
}

#[cfg(test)]
mod tests {
    use super::super::judge::{Verdict, synchronised};
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn verdicts(lines: &[CheckResult]) -> Vec<Verdict> {
        lines.iter().map(|line| line.verdict).collect()
    }

    #[test]
    fn a_node_has_to_keep_its_jobs() {
        let info = [("redis_version", "7.0.15"), ("role", "master")];
        let config = [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("save", "")];
        let good =
            RedisServerReport { info: map(&info), config: map(&config), ..RedisServerReport::default() };
        let asked = DurabilityRequirements::default();
        assert_eq!(verdicts(&node("r1", &good, &asked)), [Verdict::Ok]);
        let with = |key: &str, value: &str| {
            let mut server = good.clone();
            let values =
                if info.iter().any(|(k, _)| *k == key) { &mut server.info } else { &mut server.config };
            values.insert(key.into(), value.into());
            node("r1", &server, &asked)
        };
        assert_eq!(verdicts(&with("redis_version", "6.2.1")), [Verdict::Fail]);
        assert_eq!(verdicts(&with("role", "slave")), [Verdict::Fail]);
        assert_eq!(verdicts(&with("maxmemory-policy", "allkeys-lru")), [Verdict::Fail]);
        assert_eq!(verdicts(&with("appendonly", "no")), [Verdict::Fail]);
        let snapshots = [("maxmemory-policy", "noeviction"), ("appendonly", "no"), ("save", "3600 1")];
        let snapshots = RedisServerReport { config: map(&snapshots), ..good.clone() };
        let allowed = DurabilityRequirements { allows_snapshots: true, ..DurabilityRequirements::default() };
        assert_eq!(verdicts(&node("r1", &snapshots, &allowed)), [Verdict::Warn]);
        assert_eq!(verdicts(&node("r1", &snapshots, &asked)), [Verdict::Fail]);
        let silent = RedisServerReport { config: map(&[]), ..good.clone() };
        assert_eq!(verdicts(&node("r1", &silent, &asked)), [Verdict::Warn]);
        let wants =
            |level| DurabilityRequirements { levels: vec![level], ..DurabilityRequirements::default() };
        let lines = node("r1", &good, &wants(Durability::Fsync));
        assert_eq!(verdicts(&lines), [Verdict::Fail]);
        assert!(lines[0].detail.contains("Redis 7.0"), "{}", lines[0].detail);
        assert_eq!(verdicts(&node("r1", &good, &wants(Durability::Replicas(1)))), [Verdict::Fail]);
        let down = RedisServerReport { down: Some("refused".into()), ..RedisServerReport::default() };
        assert!(node("r1", &down, &asked)[0].detail.contains("refused"));
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
}

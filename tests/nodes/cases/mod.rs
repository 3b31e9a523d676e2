//! Cases that were found by review. The name of each case says what should happen. The history of a case is judged like
//! that of a campaign, and figures are printed.

mod moves;
mod order;
mod returns;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::judge::{Finding, Kind, judge};
use crate::ledger::{History, Id, Micros, OperationKind, Outcome, Rule};
use crate::requests::{Ask, Fate};
use crate::stage::{SETTLE, Stage};

/// Returns a request about the id with the number `n`.
fn ask(n: u32, operation_kind: OperationKind) -> Ask {
    Ask { id: Id::Single(n), operation_kind, fate: Fate::Accepted }
}

/// Returns adds of these ids. A version is the number of the id, and then one digit that counts the versions of
/// this id.
fn adds(ids: Range<u32>, nth: u64, rule: Rule, delay: Micros) -> Vec<Ask> {
    ids.map(|n| ask(n, OperationKind::Add { version: version(n, nth), rule, delay })).collect()
}

fn version(n: u32, nth: u64) -> u64 {
    u64::from(n) * 10 + nth
}

/// Returns how many outcomes are equal to `like`.
fn count(outcomes: &[Outcome], like: &Outcome) -> usize {
    outcomes.iter().filter(|outcome| *outcome == like).count()
}

/// Lists the jobs that are left, delivers the jobs that wait, and fails if something is wrong.
fn end(mut stage: Stage, name: &str) {
    stage.look("when all was quiet", SETTLE);
    stage.release(Duration::from_secs(60));
    // The test runner shows the log if the case fails.
    println!("the daemon's log:\n{}", stage.daemon.log());
    judged(&stage.end(), name);
}

/// Fails if something is wrong, and prints how often each kind of fault occurs.
fn judged(history: &History, name: &str) {
    let findings = judge(history);
    let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
    findings.iter().for_each(|finding| *counts.entry(finding.kind).or_default() += 1);
    println!(
        "{name}: {} requests, {} deliveries, findings: {counts:?}",
        history.operations.len(),
        history.deliveries.len()
    );
    let text = |finding: &Finding| {
        let story = finding.id.map_or(String::new(), |id| history.story(id, finding.at));
        format!("{finding}\n{story}")
    };
    let first: String = findings.iter().take(3).map(text).collect();
    assert!(findings.is_empty(), "{name}: {counts:?}\n{first}");
}

/// Waits for `duration` by the clock of the stage.
fn wait(stage: &Stage, duration: Duration) {
    let until = stage.clients.now() + duration.as_micros() as u64;
    crate::support::eventually(duration + Duration::from_secs(5), "a moment", || {
        (stage.clients.now() >= until).then_some(())
    });
}

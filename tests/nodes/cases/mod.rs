//! Cases that were found by review, each by its name. They run on demand alone (`make nodes-cases`), since dq does not stand
//! them. Each name says what ought to be; what did come of it is printed, with figures, and judged as a campaign is.

mod moves;
mod order;
mod returns;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::judge::{Finding, Kind, judge};
use crate::ledger::{Deed, History, Id, Micros, Outcome, Rule};
use crate::requests::{Ask, Fate};
use crate::stage::{SETTLE, Stage};

/// An ask about an id that is told by a number.
fn ask(n: u32, deed: Deed) -> Ask {
    Ask { id: Id::Single(n), deed, fate: Fate::Accepted }
}

/// Adds of these ids. Each id's versions are its number and, in the last digit, which of its versions it is.
fn adds(ids: Range<u32>, nth: u64, rule: Rule, delay: Micros) -> Vec<Ask> {
    ids.map(|n| ask(n, Deed::Add { version: version(n, nth), rule, delay })).collect()
}

fn version(n: u32, nth: u64) -> u64 {
    u64::from(n) * 10 + nth
}

/// How many were answered so.
fn count(outcomes: &[Outcome], like: &Outcome) -> usize {
    outcomes.iter().filter(|outcome| *outcome == like).count()
}

/// Looks at all that is there, delivers all that waits, and tells what is wrong.
fn end(mut stage: Stage, name: &str) {
    stage.look("when all was quiet", SETTLE);
    stage.release(Duration::from_secs(15));
    judged(&stage.end(), name);
}

/// Fails when something is wrong, and says how much of what.
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

/// Waits until a moment of the stage's clock.
fn wait(stage: &Stage, duration: Duration) {
    let until = stage.clients.now() + duration.as_micros() as u64;
    crate::support::eventually(duration + Duration::from_secs(5), "a moment", || {
        (stage.clients.now() >= until).then_some(())
    });
}

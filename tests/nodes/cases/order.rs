//! Requests that one connection sends at once.

use super::{ask, judged, version};
use crate::clients::Line;
use crate::ledger::{OperationKind, Rule};
use crate::requests::{Ask, PARKED};
use crate::servers::{Node, Server};
use crate::stage::Stage;

/// Each round has its own id. The last job of a large `madd` has this id, and the next request is about this id.
fn follows_a_large_madd(name: &str, next: fn(u32) -> Ask) {
    let nodes = vec![Node::Single(Server::start(0)), Node::Single(Server::start(0))];
    let mut stage = Stage::start(nodes, &[], "");
    let add =
        |n: u32, nth| OperationKind::Add { version: version(n, nth), rule: Rule::Replace, delay: PARKED };
    for round in 0..60 {
        let mut jobs: Vec<Ask> =
            (0..1499).map(|n| ask(1000 + n, add(1_000_000 + round * 2000 + n, 1))).collect();
        jobs.push(ask(round, add(round, 1)));
        let mut line = Line::new(&stage.clients);
        line.play(&[jobs, vec![next(round)]]);
        line.play(&[vec![ask(round, OperationKind::Get)]]);
        // Only the requests about the id of this round are judged.
        stage
            .history
            .operations
            .extend(line.noted.into_iter().filter(|o| o.id == ask(round, OperationKind::Get).id));
    }
    stage.history.left = stage.find(std::time::Instant::now() + crate::support::SECOND * 10);
    stage.release(crate::support::SECOND * 15);
    let mut history = stage.end();
    history.deliveries.retain(|d| history.operations.iter().any(|o| o.id == d.id));
    history.censuses.clear();
    judged(&history, name);
}

#[test]
fn an_add_behind_a_large_madd_is_the_last() {
    follows_a_large_madd("an add behind a large madd", |round| {
        ask(round, OperationKind::Add { version: version(round, 2), rule: Rule::Replace, delay: PARKED })
    });
}

#[test]
fn a_delete_behind_a_large_madd_is_the_last() {
    follows_a_large_madd("a delete behind a large madd", |round| ask(round, OperationKind::Delete));
}

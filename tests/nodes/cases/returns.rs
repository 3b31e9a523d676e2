//! Nodes that die and come back with the data that they had.

use super::{adds, ask, count, end};
use crate::ledger::{OperationKind, Outcome, Rule, SECOND as S};
use crate::requests::PARKED;
use crate::servers::{Node, Server};
use crate::stage::Stage;
use crate::support::{SECOND, eventually};

#[test]
fn a_dead_node_cannot_be_removed_by_config_and_revives_nothing() {
    let nodes = vec![Node::Single(Server::start(0)), Node::Single(Server::start(0))];
    let mut stage = Stage::start(nodes, &[], "");
    stage.nodes[1].kill();
    stage.set.is_taken_out(1);
    stage.set.write(&stage.daemon);
    stage.daemon.signal(nix::sys::signal::Signal::SIGHUP);
    eventually(30 * SECOND, "a refusal", || {
        stage
            .daemon
            .log()
            .contains("r1 is one of the nodes that have jobs, and the configuration does not name it")
            .then_some(())
    });
    stage.daemon.wait_ready();
    let outcomes = stage.ask(&adds(0..400, 1, Rule::Replace, 15 * S));
    println!("{} of 400 are added while one node is away", count(&outcomes, &Outcome::Done));
    stage.nodes[1].start();
    stage.set.name(1);
    stage.set.change(&stage.daemon, &[0, 1]);
    let mut asks = adds(0..100, 2, Rule::Replace, S);
    asks.extend(adds(100..200, 2, Rule::Keep, S));
    asks.extend((200..300).map(|n| ask(n, OperationKind::Delete)));
    asks.extend((300..400).map(|n| ask(n, OperationKind::Run)));
    stage.ask(&asks);
    super::wait(&stage, 16 * SECOND);
    end(stage, "a node that is dead and comes back");
}

#[test]
fn a_node_whose_clock_is_ahead_takes_missed_replacements() {
    let nodes = vec![Node::Single(Server::start(0)), Node::Single(Server::start(6000))];
    let mut stage = Stage::start(nodes, &[], "");
    let outcomes = stage.ask(&adds(0..400, 1, Rule::Replace, PARKED));
    assert_eq!(count(&outcomes, &Outcome::Done), 400);
    stage.nodes[1].kill();
    let mut taken = 0;
    eventually(20 * SECOND, "replacements that are answered", || {
        let outcomes = stage
            .ask(&[ask(9999, OperationKind::Add { version: 99_990 + taken, rule: Rule::Replace, delay: 0 })]);
        taken += 1;
        (outcomes == [Outcome::Done] || taken > 5).then_some(())
    });
    let outcomes = stage.ask(&adds(0..400, 2, Rule::Replace, PARKED));
    let replaced = count(&outcomes, &Outcome::Done) + count(&outcomes, &Outcome::Spooled);
    println!("{replaced} of 400 replacements are acknowledged while a node is down");
    stage.nodes[1].start();
    end(stage, "a node whose clock is ahead");
}

#[test]
fn a_node_whose_clock_is_behind_delivers_what_is_due_now() {
    let nodes = vec![Node::Single(Server::start(-90_000))];
    let mut stage = Stage::start(nodes, &[], "catch_up = \"skip older than 1m\"\n");
    let outcomes = stage.ask(&adds(0..100, 1, Rule::Replace, S));
    assert_eq!(count(&outcomes, &Outcome::Done), 100);
    eventually(20 * SECOND, "deliveries, or dead letters", || {
        (stage.reported_count()?.0.dead as usize + stage.sink.deliveries().len() >= 100).then_some(())
    });
    println!("{} of 100 came", stage.sink.deliveries().len());
    end(stage, "a node whose clock is behind");
}

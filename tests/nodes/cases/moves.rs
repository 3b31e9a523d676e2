//! Jobs that move between nodes while something breaks.

use std::time::Duration;

use super::{adds, ask, count, end, judged, version};
use crate::change::Running;
use crate::ledger::{Deed, Id, Outcome, Rule, SECOND as S};
use crate::requests::{Ask, Fate, PARKED};
use crate::servers::{Node, Server};
use crate::stage::Stage;
use crate::support::{Daemon, SECOND, SLOTS, eventually};

/// So many bytes are more than a question or a script has, and fewer than a batch of jobs.
const A_BATCH: u64 = 20_000;

/// Waits until jobs are on their way to a node behind a line.
fn jobs_move(stage: &Stage, node: usize, before: u64) {
    eventually(60 * SECOND, "jobs that move", || {
        (stage.nodes[node].line().sent() > before + A_BATCH).then_some(())
    });
}

#[test]
#[ignore = "found by review"]
fn a_drain_that_is_broken_off_undone_and_begun_again_loses_nothing() {
    let nodes = vec![Node::Single(Server::start(0)), Node::behind_a_line()];
    let mut stage = Stage::start(nodes, &[], "");
    stage.daemon.wait_all_up(SLOTS);
    let jobs = 3000;
    let outcomes = stage.ask(&adds(0..jobs, 1, Rule::Replace, PARKED));
    assert_eq!(count(&outcomes, &Outcome::Done), jobs as usize);
    let mut random = fastrand::Rng::with_seed(1);
    let config = stage.config.clone();
    for round in 1..=8 {
        // No daemon runs: the command alone moves jobs.
        stage.daemon.stop();
        let before = stage.nodes[1].line().sent();
        stage.nodes[1].line().slow(Duration::from_millis(30));
        let drain = Running::start(stage.set.take_out(0, &config));
        jobs_move(&stage, 1, before);
        std::thread::sleep(Duration::from_millis(random.u64(0..120)));
        drop(drain);
        stage.nodes[1].line().cut();
        stage.nodes[1].line().slow(Duration::ZERO);
        assert!(Running::start(stage.set.bring_back(0, &config)).wait_or_kill(20 * SECOND));
        stage.daemon = Daemon::again(&stage.daemon);
        stage.daemon.wait_ready();
        // All go home again, and out once more.
        eventually(60 * SECOND, "all at home", || stage.set.is_settled(&config).then_some(()));
        assert!(Running::start(stage.set.take_out(0, &config)).wait_or_kill(60 * SECOND));
        let outcomes = stage.ask(&(0..jobs).map(|n| ask(n, Deed::Get)).collect::<Vec<_>>());
        let lost = count(&outcomes, &Outcome::NotFound);
        println!("round {round}: {lost} of {jobs} jobs are not found");
        if lost > 0 {
            break;
        }
        assert!(Running::start(stage.set.bring_back(0, &config)).wait_or_kill(20 * SECOND));
        eventually(60 * SECOND, "all at home", || stage.set.is_settled(&config).then_some(()));
    }
    end(stage, "a drain that is broken off");
}

#[test]
#[ignore = "found by review"]
fn a_home_that_dies_while_jobs_move_to_it_hides_none_of_them() {
    let nodes = vec![Node::Single(Server::start(0)), Node::behind_a_line()];
    // The other node alone at first: it knows dq's scripts then, so that nothing else that it is sent is large.
    let mut stage = Stage::start(nodes, &[0], "");
    stage.set.change(&stage.daemon, &[0]);
    let jobs = 3000;
    let outcomes = stage.ask(&adds(0..jobs, 1, Rule::Replace, PARKED));
    assert_eq!(count(&outcomes, &Outcome::Done), jobs as usize);
    // Whoever moves has taken jobs when it sends them, and waits for the answer then.
    stage.nodes[1].line().hold_from(A_BATCH);
    stage.set.change(&stage.daemon, &[0, 1]);
    eventually(60 * SECOND, "jobs that are on their way", || stage.nodes[1].line().holds().then_some(()));
    stage.nodes[1].kill();
    stage.nodes[1].line().cut();
    stage.set.change(&stage.daemon, &[0]);
    let told = crate::support::stats(&mut stage.daemon.client(), "t");
    println!("once the node is taken out, the store counts {told:?}");
    // All are added anew, and are due at once.
    let again = adds(0..jobs, 2, Rule::Replace, 0);
    let mut left: Vec<Ask> = again.clone();
    eventually(30 * SECOND, "adds that are taken", || {
        let outcomes = stage.ask(&left);
        left = left.iter().zip(outcomes).filter(|(_, o)| *o != Outcome::Done).map(|(a, _)| *a).collect();
        left.is_empty().then_some(())
    });
    end(stage, "a home that dies while jobs move to it");
}

#[test]
#[ignore = "found by review"]
fn a_move_to_a_master_whose_replica_lags_survives_its_promotion() {
    let nodes = vec![Node::Single(Server::start(0)), Node::group()];
    let mut stage = Stage::start(nodes, &[1], "");
    let jobs = 6000;
    let outcomes = stage.ask(&adds(0..jobs, 1, Rule::Replace, PARKED));
    assert_eq!(count(&outcomes, &Outcome::Done), jobs as usize);
    let lag = stage.nodes[1].lag().expect("a group has a master");
    let config = stage.config.clone();
    stage.set.change(&stage.daemon, &[0, 1]);
    eventually(60 * SECOND, "jobs that have moved", || stage.set.is_settled(&config).then_some(()));
    stage.nodes[1].promote(lag);
    eventually(30 * SECOND, "a promoted replica", || stage.nodes[1].is_promoted(lag).then_some(()));
    stage.nodes[1].rejoin(lag);
    stage.daemon.wait_ready();
    end(stage, "a move to a master whose replica lags");
}

#[test]
#[ignore = "found by review"]
fn a_redrive_after_a_node_was_added_leaves_no_second_copy() {
    let nodes = vec![Node::Single(Server::start(0)), Node::Single(Server::start(0))];
    let mut stage = Stage::start(nodes, &[1], "");
    let failing = |n: u32, deed| Ask { id: Id::Failing(n), deed, fate: Fate::Refused };
    let add = |n: u32, nth, delay| Deed::Add { version: version(n, nth), rule: Rule::Replace, delay };
    stage.ask(&(0..400).map(|n| failing(n, add(n, 1, 0))).collect::<Vec<_>>());
    eventually(60 * SECOND, "dead letters", || (stage.told()?.0.dead == 400).then_some(()));
    stage.sink.accept_all();
    stage.set.change(&stage.daemon, &[0, 1]);
    let config = stage.config.clone();
    eventually(60 * SECOND, "nodes that are settled", || stage.set.is_settled(&config).then_some(()));
    let redriven = stage.redrive_all("failing", "6s");
    println!("{redriven} of 400 are redriven");
    // Some are replaced, some replaced and deleted, some replaced by jobs that are due later.
    let mut asks: Vec<Ask> = (0..300).map(|n| failing(n, add(n, 2, S))).collect();
    asks.extend((200..300).map(|n| failing(n, Deed::Delete)));
    asks.extend((300..400).map(|n| failing(n, add(n, 2, 12 * S))));
    let outcomes = stage.ask(&asks);
    println!("{} of 500 replacements and deletions are done", count(&outcomes, &Outcome::Done));
    // Until all that was redriven has become due.
    super::wait(&stage, 16 * SECOND);
    stage.look("in the end", 20 * SECOND);
    let history = stage.end();
    for (what, ids) in [("replaced", 0..200), ("deleted", 200..300), ("put off", 300..400)] {
        let came = |n: &u32| {
            let is_old = |version| version == super::version(*n, 1);
            // All were refused before they were dead letters.
            history.deliveries.iter().any(|d| d.id == Id::Failing(*n) && d.is_accepted && is_old(d.version))
        };
        println!("of {} that were {what}, the old version came of {}", ids.len(), ids.filter(came).count());
    }
    judged(&history, "a redrive after a node was added");
}

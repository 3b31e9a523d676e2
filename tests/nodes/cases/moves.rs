//! Jobs that move between nodes while something breaks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{adds, ask, count, end, judged, version};
use crate::change::Running;
use crate::clients::exchange;
use crate::ledger::{Id, OperationKind, Outcome, Rule, SECOND as S};
use crate::requests::{Ask, Fate, PARKED};
use crate::servers::{Lag, Node, Server};
use crate::stage::Stage;
use crate::support::{SECOND, SLOTS, eventually};

/// A number of bytes. A batch of jobs has more bytes. A request without jobs or a script has fewer bytes.
const A_BATCH: u64 = 20_000;

/// Waits until jobs are being sent to a node. `before`: how many bytes its line had sent earlier.
fn jobs_move(stage: &Stage, node: usize, before: u64) {
    eventually(60 * SECOND, "jobs that move", || {
        (stage.nodes[node].line().sent() > before + A_BATCH).then_some(())
    });
}

#[test]
fn a_move_that_is_broken_off_and_begun_again_loses_nothing() {
    let nodes = vec![Node::Single(Server::start(0)), Node::behind_a_line()];
    let mut stage = Stage::start(nodes, &[], "");
    stage.daemon.wait_all_up(SLOTS);
    let jobs = 3000;
    let outcomes = stage.ask(&adds(0..jobs, 1, Rule::Replace, PARKED));
    assert_eq!(count(&outcomes, &Outcome::Done), jobs as usize);
    let mut random = fastrand::Rng::with_seed(1);
    let config = stage.config.clone();
    for round in 1..=5 {
        let before = stage.nodes[1].line().sent();
        stage.nodes[1].line().slow(Duration::from_millis(30));
        let mover = Running::start(stage.set.take_out(0, &config));
        jobs_move(&stage, 1, before);
        std::thread::sleep(Duration::from_millis(random.u64(0..120)));
        drop(mover);
        stage.nodes[1].line().cut();
        stage.nodes[1].line().slow(Duration::ZERO);
        // The next command finishes the interrupted move, and moves the jobs back. Then node 0 is emptied in one move.
        assert!(Running::start(stage.set.bring_back(0, &config)).wait_or_kill(60 * SECOND));
        eventually(60 * SECOND, "all at home", || stage.set.is_settled(&config).then_some(()));
        assert!(Running::start(stage.set.take_out(0, &config)).wait_or_kill(60 * SECOND));
        let lost = eventually(10 * SECOND, "answers", || {
            let outcomes = stage.ask(&(0..jobs).map(|n| ask(n, OperationKind::Get)).collect::<Vec<_>>());
            let answered = |o: &&Outcome| matches!(o, Outcome::NotFound | Outcome::Shown(_));
            (outcomes.iter().filter(answered).count() == jobs as usize)
                .then(|| count(&outcomes, &Outcome::NotFound))
        });
        println!("round {round}: {lost} of {jobs} jobs are not found");
        if lost > 0 {
            break;
        }
        assert!(Running::start(stage.set.bring_back(0, &config)).wait_or_kill(60 * SECOND));
    }
    end(stage, "a move that is broken off");
}

#[test]
fn a_home_that_dies_while_jobs_move_to_it_hides_none_of_them() {
    let nodes = vec![Node::Single(Server::start(0)), Node::behind_a_line()];
    let mut stage = Stage::start(nodes, &[1], "");
    let jobs = 3000;
    let outcomes = stage.ask(&adds(0..jobs, 1, Rule::Replace, PARKED));
    assert_eq!(count(&outcomes, &Outcome::Done), jobs as usize);
    stage.set.change(&stage.daemon, &[0, 1]);
    let config = stage.config.clone();
    // The line holds the first batch of jobs, so the mover has sent jobs and waits for the answer.
    stage.nodes[1].line().hold_from(A_BATCH);
    let mover = Running::start(stage.set.bring_back(1, &config));
    eventually(60 * SECOND, "jobs that are on their way", || stage.nodes[1].line().holds().then_some(()));
    stage.nodes[1].kill();
    stage.nodes[1].line().cut();
    drop(mover);
    assert!(Running::start(stage.set.forget(1, &config)).wait_or_kill(60 * SECOND));
    stage.set.change(&stage.daemon, &[0]);
    let counts = crate::support::stats(&mut stage.daemon.client(), "t");
    println!("once the node is given up, the store counts {counts:?}");
    // All jobs are added again, and are due at once.
    let again = adds(0..jobs, 2, Rule::Replace, 0);
    let mut left: Vec<Ask> = again.clone();
    eventually(30 * SECOND, "adds that are taken", || {
        let outcomes = stage.ask(&left);
        left = left.iter().zip(outcomes).filter(|(_, o)| *o != Outcome::Done).map(|(a, _)| *a).collect();
        left.is_empty().then_some(())
    });
    end(stage, "a home that dies while jobs move to it");
}

/// Waits for a state of a group. Looks only five times a second, because each look starts several processes.
fn wait_for_group(group: &Node, what: &str, holds: impl Fn() -> bool) {
    // A Sentinel that got no processor time for two seconds does nothing for the next thirty seconds (its TILT mode).
    let end = Instant::now() + 150 * SECOND;
    while !holds() {
        if Instant::now() > end {
            group.print();
            panic!("not within 150 s: {what}");
        }
        std::thread::sleep(SECOND / 5);
    }
}

/// Makes the replica the master, and the old master its replica.
fn fail_over(stage: &Stage, lag: Lag) {
    let group = &stage.nodes[1];
    group.promote(lag);
    wait_for_group(group, "a promoted replica", || group.is_promoted(lag));
    group.rejoin(lag);
    wait_for_group(group, "a group that is whole", || group.is_whole());
}

#[test]
fn a_move_to_a_master_whose_replica_lags_is_refused() {
    let nodes = vec![Node::Single(Server::start(0)), Node::group()];
    let mut stage = Stage::start(nodes, &[1], "");
    let jobs = 3000;
    let outcomes = stage.ask(&adds(0..jobs, 1, Rule::Replace, PARKED));
    assert_eq!(count(&outcomes, &Outcome::Done), jobs as usize);
    let lag = stage.nodes[1].lag().expect("a group has a master");
    let config = stage.config.clone();
    stage.set.change(&stage.daemon, &[0, 1]);
    let refused = stage.set.bring_back(1, &config).stderr(std::process::Stdio::piped()).output().unwrap();
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && printed.contains("sentinels know 1 replicas, of which 0 follow"),
        "{printed}"
    );
    fail_over(&stage, lag);
    stage.daemon.wait_ready();
    let outcomes = stage.ask(&(0..jobs).map(|n| ask(n, OperationKind::Get)).collect::<Vec<_>>());
    assert_eq!(count(&outcomes, &Outcome::NotFound), 0, "nothing was done");
    // When the replica is back, the move succeeds, and the replica gets the jobs.
    eventually(60 * SECOND, "a move", || {
        Running::start(stage.set.bring_back(1, &config)).wait_or_kill(20 * SECOND).then_some(())
    });
    let lag = eventually(20 * SECOND, "a group", || stage.nodes[1].lag());
    fail_over(&stage, lag);
    stage.daemon.wait_ready();
    end(stage, "a move to a master whose replica lags");
}

#[test]
fn a_redrive_after_a_node_was_added_leaves_no_second_copy() {
    let nodes = vec![Node::Single(Server::start(0)), Node::Single(Server::start(0))];
    let mut stage = Stage::start(nodes, &[1], "");
    let failing = |n: u32, operation_kind| Ask { id: Id::Failing(n), operation_kind, fate: Fate::Refused };
    let add =
        |n: u32, nth, delay| OperationKind::Add { version: version(n, nth), rule: Rule::Replace, delay };
    stage.ask(&(0..400).map(|n| failing(n, add(n, 1, 0))).collect::<Vec<_>>());
    eventually(60 * SECOND, "dead letters", || (stage.reported_count()?.0.dead == 400).then_some(()));
    stage.sink.accept_all();
    stage.set.change(&stage.daemon, &[0, 1]);
    let config = stage.config.clone();
    assert!(Running::start(stage.set.bring_back(1, &config)).wait_or_kill(60 * SECOND));
    stage.daemon.wait_ready();
    let redriven = stage.redrive_all("failing", "6s");
    println!("{redriven} of 400 are redriven");
    // 200 jobs are replaced. 100 jobs are replaced and deleted. 100 jobs are replaced by jobs that are due later.
    let mut asks: Vec<Ask> = (0..300).map(|n| failing(n, add(n, 2, S))).collect();
    asks.extend((200..300).map(|n| failing(n, OperationKind::Delete)));
    asks.extend((300..400).map(|n| failing(n, add(n, 2, 12 * S))));
    let outcomes = stage.ask(&asks);
    println!("{} of 500 replacements and deletions are done", count(&outcomes, &Outcome::Done));
    // Waits until all redriven jobs have become due.
    super::wait(&stage, 16 * SECOND);
    stage.look("in the end", 20 * SECOND);
    let history = stage.end();
    for (what, ids) in [("replaced", 0..200), ("deleted", 200..300), ("put off", 300..400)] {
        let came = |n: &u32| {
            let is_old = |version| version == super::version(*n, 1);
            // Until the jobs became dead letters, all their deliveries were refused. So an accepted delivery is from
            // the time after the redrive.
            history.deliveries.iter().any(|d| d.id == Id::Failing(*n) && d.is_accepted && is_old(d.version))
        };
        println!("of {} that were {what}, the old version came of {}", ids.len(), ids.filter(came).count());
    }
    judged(&history, "a redrive after a node was added");
}

/// Reserves up to 100 jobs. Returns their ids.
fn reserve(stage: &Stage, lease: &str) -> BTreeSet<String> {
    let path = format!("/v1/topics/{}/reserve", Id::Pulled(0).topic());
    let wanted = json!({"max": 100, "lease": lease});
    let Ok((200, answer)) = exchange(stage.clients.http, "POST", &path, &wanted) else {
        return BTreeSet::new();
    };
    answer["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

/// Clients reserve jobs with leases of three seconds and of a minute. Then the jobs move to a node with another clock.
fn leases_move(offset_ms: i64, name: &str) {
    let nodes = vec![Node::Single(Server::start(0)), Node::Single(Server::start(offset_ms))];
    let mut stage = Stage::start(nodes, &[], "");
    stage.daemon.wait_all_up(SLOTS);
    let mut held = Vec::new();
    for (nth, lease) in [(1, "3s"), (2, "1m")] {
        let jobs =
            |n| Ask { id: Id::Pulled(nth * 100 + n), ..adds(n..n + 1, nth.into(), Rule::Replace, 0)[0] };
        let outcomes = stage.ask(&(0..20).map(jobs).collect::<Vec<_>>());
        assert_eq!(count(&outcomes, &Outcome::Done), 20);
        let mut ids = BTreeSet::new();
        eventually(10 * SECOND, "jobs to reserve", || {
            ids.extend(reserve(&stage, lease));
            (ids.len() == 20).then_some(())
        });
        held.push(ids);
    }
    let config = stage.config.clone();
    assert!(Running::start(stage.set.take_out(0, &config)).wait_or_kill(60 * SECOND));
    // No lease ends in the first ten seconds after a move.
    let mut again = BTreeSet::new();
    eventually(30 * SECOND, "the jobs with short leases", || {
        again.extend(reserve(&stage, "1m"));
        (again.len() >= held[0].len()).then_some(())
    });
    assert_eq!(again, held[0], "{name}");
    assert!(reserve(&stage, "1m").is_empty(), "{name}: a lease of a minute has ended");
}

#[test]
fn leases_that_move_to_a_clock_that_is_behind_end_in_time() {
    leases_move(-3_600_000, "a clock that is behind");
}

#[test]
fn leases_that_move_to_a_clock_that_is_ahead_last() {
    leases_move(3_600_000, "a clock that is ahead");
}

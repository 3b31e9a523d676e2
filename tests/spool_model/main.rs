//! A pure model of the spool: how a host sends the changes on its disk, so that each is taken once and in order. There
//! are two shards A and B, one host with a spool and its sender, another host without a spool, and a set of nodes that
//! may change. The sender can die between any two steps, a shard can go down, an answer can be lost, and a message can
//! arrive at any later time. docs/internals/NODES.md has the rules of the model.
//!
//! The model explores all orders of the events that the budgets of a scenario allow. Each state is judged. For each
//! state, the model also judges the end state that follows when all servers answer. A rule can be left out ([`Rules`]),
//! to show that the model finds the faults that the rule prevents.

mod explore;
mod model;
mod scenario;
mod sender;
mod tidy;

use explore::{explore, walk};
use scenario::{Budgets, Change, Rules, Scenario};

const A: u8 = 0;
const B: u8 = 1;
const BOTH: u8 = 3;
const ONLY_A: u8 = 1;
const ONLY_B: u8 = 2;

/// One job at A. The set does not change.
fn one_job() -> Scenario {
    Scenario { ids: 1, homes: [[A, A]; 3], names: [BOTH; 3], change: Change::None, ..Scenario::default() }
}

/// Two jobs at A. The set does not change.
fn two_jobs() -> Scenario {
    Scenario { ids: 2, ..one_job() }
}

/// One job at A and one at B. The set does not change.
fn two_homes() -> Scenario {
    Scenario { ids: 2, homes: [[A, B]; 3], ..one_job() }
}

/// A node is added, and becomes the home of all jobs.
fn moved_away() -> Scenario {
    let homes = [[A, A], [B, B], [B, B]];
    Scenario { homes, names: [ONLY_A, BOTH, BOTH], change: Change::Move, ..one_job() }
}

/// A node is added, and the jobs stay.
fn moved_and_stays() -> Scenario {
    Scenario { homes: [[A, A]; 3], names: [ONLY_A, BOTH, BOTH], ..moved_away() }
}

/// A node is emptied.
fn emptied() -> Scenario {
    Scenario { names: [BOTH, ONLY_B, ONLY_B], ..moved_away() }
}

/// A is given up while it does not answer. Later it comes back, and is adopted.
fn forgotten() -> Scenario {
    Scenario { change: Change::Forget, ..emptied() }
}

fn with(scenario: Scenario, budgets: Budgets) -> Scenario {
    Scenario { budgets, ..scenario }
}

fn is_thorough() -> bool {
    std::env::var_os("SPOOL_MODEL").is_some()
}

/// Returns the scenarios that are explored, with their names.
fn scenarios() -> Vec<(&'static str, Scenario)> {
    let none = Budgets { changes: 2, flying: 1, ..Budgets::default() };
    let (crash, outage) = (Budgets { crashes: 1, ..none }, Budgets { outages: 1, ..none });
    let both = Budgets { crashes: 1, ..outage };
    let mut all = vec![
        ("one job", with(one_job(), Budgets { changes: 3, ..both })),
        ("one job, and another host", with(one_job(), Budgets { others: 1, ..both })),
        ("a job that dies", with(one_job(), Budgets { changes: 3, deaths: 1, ..both })),
        ("two jobs of one home", with(two_jobs(), both)),
        ("two jobs, page by page", Scenario { page: 1, ..with(two_jobs(), outage) }),
        ("two jobs, and a disk that fails", with(two_jobs(), Budgets { disk: 1, ..outage })),
        ("two homes", with(two_homes(), outage)),
        ("a job moves away", with(moved_away(), crash)),
        ("a job stays", with(moved_and_stays(), crash)),
        ("a node is emptied", with(emptied(), outage)),
        ("a node is forgotten", with(forgotten(), outage)),
    ];
    // These scenarios take some minutes.
    if is_thorough() {
        let more = Budgets { others: 1, ..both };
        all.extend([
            ("a job that dies, more", with(one_job(), Budgets { changes: 4, deaths: 2, others: 1, ..both })),
            ("a job dies and moves", with(moved_away(), Budgets { deaths: 1, ..both })),
            ("one job, more", with(one_job(), Budgets { changes: 3, crashes: 2, disk: 1, ..both })),
            ("one job, two messages", with(one_job(), Budgets { flying: 2, crashes: 2, ..both })),
            ("two jobs, more", with(two_jobs(), Budgets { changes: 3, ..both })),
            ("two pages, more", Scenario { page: 1, ..with(two_jobs(), Budgets { disk: 1, ..both }) }),
            ("two homes, more", with(two_homes(), Budgets { changes: 3, disk: 1, ..outage })),
            ("away, more", with(moved_away(), more)),
            ("two jobs move away", Scenario { ids: 2, ..with(moved_away(), outage) }),
            ("stays, more", with(moved_and_stays(), more)),
            ("emptied, more", with(emptied(), both)),
            ("forgotten, more", with(forgotten(), both)),
        ]);
    }
    all
}

#[test]
fn no_order_of_events_loses_or_repeats_a_change() {
    let mut sum = 0;
    for (name, scenario) in scenarios() {
        let begun = std::time::Instant::now();
        match explore(&scenario) {
            Ok(states) => {
                println!("{name}: {states} states in {:.1?}", begun.elapsed());
                assert!(states > 1000, "{name}: only {states} states are reached");
                sum += states;
            }
            Err(fault) => panic!("{name}: {fault}"),
        }
    }
    println!("{sum} states");
}

#[test]
fn seeded_walks_with_larger_budgets_find_no_fault() {
    let budgets = Budgets { changes: 12, others: 4, deaths: 4, outages: 6, crashes: 6, disk: 3, flying: 4 };
    let walks = if is_thorough() { 20_000 } else { 300 };
    for (name, scenario) in [
        ("two jobs of one home", two_jobs()),
        ("two homes", two_homes()),
        ("moved away", Scenario { ids: 2, ..moved_away() }),
        ("moves and stays", Scenario { ids: 2, ..moved_and_stays() }),
        ("emptied", Scenario { ids: 2, ..emptied() }),
        ("forgotten", Scenario { ids: 2, ..forgotten() }),
    ] {
        for seed in 0..walks {
            let mut scenario = Scenario { page: 1 + seed as usize % 2, ..with(scenario, budgets) };
            // In scenarios in which a node is forgotten and adopted, the model has no dead letters.
            scenario.budgets.deaths *= u8::from(scenario.change != Change::Forget);
            if let Err(fault) = walk(&scenario, seed) {
                panic!("{name}, seed {seed}: {fault}");
            }
        }
    }
}

#[test]
fn every_rule_is_needed() {
    let few = Budgets { changes: 2, outages: 1, crashes: 1, flying: 1, ..Budgets::default() };
    let all = Rules::ALL;
    for (rule, rules, scenario) in [
        ("a shard remembers the last batch", Rules { memory: false, ..all }, with(one_job(), few)),
        ("a batch is noted before it is sent", Rules { note_first: false, ..all }, with(one_job(), few)),
        ("one batch at a time", Rules { one_at_a_time: false, ..all }, with(two_jobs(), few)),
        ("the old shard is asked", Rules { ask_old: false, ..all }, with(moved_away(), few)),
        ("it has the new set", Rules { old_has_set: false, ..all }, with(forgotten(), few)),
        ("operations queue behind an entry", Rules { queue_behind: false, ..all }, with(one_job(), few)),
        ("a batch has what is still there", Rules { still_there: false, ..all }, with(one_job(), few)),
        ("an empty batch is sent too", Rules { send_empty: false, ..all }, with(one_job(), few)),
        (
            "a shard is held up until its entries are noted",
            Rules { held_until_noted: false, ..all },
            with(one_job(), Budgets { outages: 1, disk: 1, ..few }),
        ),
        (
            "an entry removes the dead letters that came while it waited",
            Rules { late_letters: false, ..all },
            with(one_job(), Budgets { deaths: 1, ..few }),
        ),
        (
            "an entry waits since the first entry that it has replaced",
            Rules { since_first: false, ..all },
            with(one_job(), Budgets { deaths: 1, changes: 3, ..few }),
        ),
    ] {
        let found = explore(&Scenario { rules, ..scenario });
        let Err(fault) = found else { panic!("nothing is found without the rule: {rule}") };
        println!("without the rule: {rule}\n{fault}\n");
    }
}

//! A pure model of the set of nodes: the fence and `dq nodes move`, with one job, two hosts, and nodes that go down,
//! come back, or fall back to the data of their replica. The model explores all orders of the events that the budgets
//! of a scenario allow. docs/internals/NODES.md has the rules of the model, with the same names.
//!
//! The model heals each reached state: all nodes are up, and the change of the set runs to its end. Then it judges the
//! state: the job must be where the last acknowledged operation left it, and only at its home. A rule can be left out
//! ([`Rules`]), to show that the model finds the faults that the rule prevents.

mod explore;
mod model;
mod mover;

use explore::{explore, walk};
use model::{Budgets, Rules, Scenario};

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 4;

/// Returns the scenarios. Each scenario has a change of the set, and the order in which the job's id prefers the nodes.
/// This order decides the home of the job before and after the change.
fn scenarios() -> Vec<(&'static str, Scenario)> {
    let of = |preference: [usize; 3], names: u8, goal: u8| Scenario {
        preference,
        names,
        goal,
        ..Scenario::default()
    };
    vec![
        ("a node is added, and the job moves to it", of([2, 0, 1], A | B, A | B | C)),
        ("a node is added, and the job stays", of([0, 1, 2], A | B, A | B | C)),
        ("a node is emptied, and the job moves away", of([0, 1, 2], A | B, B)),
        ("a node takes the place of another", of([0, 2, 1], A | B, B | C)),
    ]
}

fn with(scenario: &Scenario, rules: Rules, budgets: Budgets) -> Scenario {
    Scenario { rules, budgets, ..*scenario }
}

/// Explores all scenarios. Returns the first fault.
fn first_fault(rules: Rules, budgets: Budgets) -> Option<String> {
    scenarios().into_iter().find_map(|(name, scenario)| {
        let found = explore(&with(&scenario, rules, budgets));
        found.err().map(|fault| format!("{name}: {fault}"))
    })
}

#[test]
fn no_order_of_events_loses_or_revives_the_job() {
    let one = Budgets { adds: 1, ..Budgets::default() };
    let mut all = vec![
        Budgets { crashes: 1, outages: 1, ..one },
        Budgets { fallbacks: 1, deletes: 0, ..one },
        Budgets { returns: 1, deletes: 0, ..one },
    ];
    // These budgets take some minutes.
    if std::env::var_os("NODE_SET_MODEL").is_some() {
        all.extend([
            Budgets { crashes: 2, adds: 2, ..one },
            Budgets { fallbacks: 1, crashes: 1, ..one },
            Budgets { fallbacks: 2, ..one },
            Budgets { returns: 1, ..one },
            Budgets { returns: 1, crashes: 1, deletes: 0, ..one },
        ]);
    }
    for budgets in all {
        for (name, scenario) in scenarios() {
            match explore(&with(&scenario, Rules::ALL, budgets)) {
                Ok(states) => assert!(states > 1000, "{name}: only {states} states are reached"),
                Err(fault) => panic!("{name}, {budgets:?}: {fault}"),
            }
        }
    }
}

#[test]
fn seeded_walks_with_larger_budgets_find_no_fault() {
    let budgets =
        Budgets { adds: 6, deletes: 3, leases: 6, crashes: 4, outages: 4, fallbacks: 3, returns: 2 };
    for seed in 0..300 {
        for (name, scenario) in scenarios() {
            if let Err(fault) = walk(&with(&scenario, Rules::ALL, budgets), seed) {
                panic!("{name}, seed {seed}: {fault}");
            }
        }
    }
}

#[test]
fn every_rule_is_needed() {
    let outages = Budgets { crashes: 1, outages: 1, ..Budgets::default() };
    let returns = Budgets { returns: 1, adds: 1, ..Budgets::default() };
    let crashes = Budgets { crashes: 2, ..Budgets::default() };
    let fallbacks = Budgets { fallbacks: 1, crashes: 1, ..Budgets::default() };
    for (rule, rules, budgets) in [
        ("scripts carry the set", Rules { fence: false, ..Rules::ALL }, outages),
        ("deliveries pause while jobs are moved", Rules { pause: false, ..Rules::ALL }, outages),
        ("settlements wait while jobs are moved", Rules { settle_waits: false, ..Rules::ALL }, crashes),
        (
            "copies are on the replicas before the old ones go",
            Rules { copies_safe: false, ..Rules::ALL },
            fallbacks,
        ),
        (
            "a server that was replaced meanwhile is not believed",
            Rules { same_server: false, ..Rules::ALL },
            fallbacks,
        ),
        (
            "an unknown settlement is tried at the home",
            Rules { settle_at_home: false, ..Rules::ALL },
            outages,
        ),
        ("a new server is met before it is used", Rules { meet: false, ..Rules::ALL }, returns),
        ("an older node is cleared of what has moved", Rules { clear_older: false, ..Rules::ALL }, returns),
    ] {
        assert!(first_fault(rules, budgets).is_some(), "nothing is found without the rule: {rule}");
    }
}

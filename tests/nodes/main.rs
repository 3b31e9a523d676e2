//! Redis nodes fail in every way while clients use the same ids at the same time. A job that was acknowledged must not
//! be lost, and must not be delivered after it was deleted, replaced or acked. Some ids belong to a pull topic: clients
//! reserve their jobs (`workers`).
//!
//! The schedule, the ledger and the judgement are pure (`schedule`, `ledger`, `judge`); the other modules act. They see
//! the daemon and its servers only from outside: through the ports, the `dq` command and signals.
//!
//! `make nodes SEEDS=1..40` plays whole campaigns. `make nodes SEED=7` plays one campaign again, with the same faults
//! and requests, but not with the same timing. `NODES=1` sets the number of nodes. `cargo test --test nodes` plays a
//! short form. `make nodes-cases` plays the cases of `cases`.

#![allow(missing_docs)]

#[path = "../it/support/mod.rs"]
mod support;

mod campaign;
mod cases;
mod change;
mod clients;
mod judge;
mod latency;
mod ledger;
mod requests;
mod schedule;
mod servers;
mod sink;
mod stage;
mod workers;

use std::ops::RangeInclusive;

use schedule::Extent;

/// Plays the campaigns of these seeds, one after the other. Fails if a campaign has findings.
fn play(seeds: RangeInclusive<u64>, extent: Extent, nodes: Option<usize>) {
    let mut failed = Vec::new();
    for seed in seeds {
        println!("seed {seed} begins");
        let report = campaign::play(seed, extent, nodes);
        println!("{}", report.line());
        if !report.findings.is_empty() {
            println!("{}", report.full());
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "seeds with findings: {failed:?}");
}

/// Returns the seeds. `SEEDS=1..40` includes seed 40.
fn seeds() -> RangeInclusive<u64> {
    let of = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is no seed"));
    match (of("SEED"), of("SEEDS")) {
        (Some(seed), _) => number(&seed)..=number(&seed),
        (None, Some(seeds)) => {
            let (first, last) = seeds.split_once("..").unwrap_or(("1", &seeds));
            number(first)..=number(last.trim_start_matches('='))
        }
        (None, None) => 1..=4,
    }
}

#[test]
fn a_short_campaign_finds_nothing_wrong() {
    play(1..=2, Extent::Short, None);
}

#[test]
#[ignore = "takes up to 45 s a seed: make nodes"]
fn a_whole_campaign_finds_nothing_wrong() {
    let nodes = std::env::var("NODES").ok().filter(|n| !n.is_empty());
    play(seeds(), Extent::Full, nodes.map(|n| n.parse().expect("NODES is a number")));
}

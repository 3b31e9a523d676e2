//! Nodes of Redis that fail in every way, under clients that use the same ids at the same time: what was acknowledged is neither
//! lost nor delivered after it was deleted or replaced.
//!
//! The schedule, the ledger and the judgement are pure (`schedule`, `ledger`, `judge`); the others act. The daemon and its
//! servers are seen from outside alone: by the ports, the `dq` command and signals.
//!
//! `make nodes SEEDS=1..40` plays whole campaigns, `make nodes SEED=7` one of them again (its faults and requests are the same;
//! when exactly each of them meets the other is not), and `NODES=1` says how many nodes there are. `cargo test --test nodes` plays a short form.
//! `make nodes-cases` plays the cases of `cases`.

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

use std::ops::RangeInclusive;

use schedule::Extent;

/// Plays these seeds, one after the other, and tells what is wrong with any of them.
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

/// `SEEDS=1..40` are all of them, the last one too.
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

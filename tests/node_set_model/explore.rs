//! Plays all orders of events, or random orders. Heals and judges each reached state.

use std::collections::HashSet;

use crate::model::{Event, HOSTS, NODES, Scenario, State};
use crate::mover::Mover;

/// The maximum number of steps that heal a state.
const HEALED_WITHIN: usize = 400;

/// How many events a random walk has.
const WALK: usize = 60;

/// Returns the number of states, or the first fault with the events that led to it.
pub fn explore(scenario: &Scenario) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut path: Vec<(State, Vec<Event>)> = Vec::new();
    let mut taken: Vec<Event> = Vec::new();
    let first = State::new(scenario);
    seen.insert(first);
    path.push((first, first.events()));
    while let Some((state, events)) = path.last_mut() {
        let state = *state;
        let Some(event) = events.pop() else {
            path.pop();
            taken.pop();
            continue;
        };
        let describe = |fault: String| format!("{fault}\nafter {taken:?} and then {event:?}\n{state:?}");
        if let Some(next) = state.after(event, scenario).map_err(describe)?
            && seen.insert(next)
        {
            judge(&next, scenario).map_err(describe)?;
            taken.push(event);
            path.push((next, next.events()));
        }
    }
    Ok(seen.len())
}

/// Plays one random walk.
pub fn walk(scenario: &Scenario, seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut state = State::new(scenario);
    let mut taken = Vec::new();
    for _ in 0..WALK {
        let mut events = state.events();
        random.shuffle(&mut events);
        for event in events {
            let describe = |fault: String| format!("{fault}\nafter {taken:?} and then {event:?}\n{state:?}");
            if let Some(next) = state.after(event, scenario).map_err(describe)? {
                judge(&next, scenario).map_err(describe)?;
                state = next;
                taken.push(event);
                break;
            }
        }
    }
    Ok(())
}

/// Heals a state. Then the job must be where the last acknowledged operation left it, and nowhere else.
fn judge(state: &State, scenario: &Scenario) -> Result<(), String> {
    let healed = heal(state, scenario)?;
    let newest = healed.nodes.iter().map(|node| node.main.set).max_by_key(|set| set.number);
    let newest = newest.expect("there are nodes");
    let home = scenario.home(newest.names);
    // All processes refuse a node outside the set, so its data does not matter.
    for node in (0..NODES).filter(|node| newest.names & 1 << node != 0) {
        let copy = healed.nodes[node].main.copy;
        let expected = if node == home { healed.truth } else { None };
        if copy.map(|copy| copy.version) == expected {
            if let Some(copy) = copy.filter(|copy| copy.lease != 0) {
                return Err(format!("the job is held by lease {} of nobody", copy.lease));
            }
            continue;
        }
        let is_duplicate =
            node == home && healed.truth.is_none() && copy.map(|c| c.version) == healed.finished;
        if !is_duplicate {
            return Err(format!(
                "node {node} has {copy:?}, the home is {home}, the truth {:?}",
                healed.truth
            ));
        }
    }
    Ok(())
}

/// Heals a state: all nodes are up, the change of the set runs to its end, and a delivered job is settled.
fn heal(state: &State, scenario: &Scenario) -> Result<State, String> {
    let mut healed = *state;
    healed.nodes.iter_mut().for_each(|node| node.is_up = true);
    let on_nodes = healed.nodes.iter().map(|node| node.main.set.number);
    let newest = on_nodes.chain(healed.hosts.iter().map(|host| host.known.number)).max();
    // The sets that hosts know count, too. If a host knows a newer set than all nodes, it reports this to the operator,
    // and the operator starts the command.
    let is_begun = newest != Some(1) || healed.mover != Mover::Idle;
    if is_begun {
        healed.mover = Mover::Idle;
        for step in 0.. {
            if step == HEALED_WITHIN {
                return Err(format!("the command does not come to an end: {:?}", healed.mover));
            }
            for node in 0..NODES {
                healed.replicate(node);
            }
            if !healed.step(scenario)? && healed.mover == Mover::Done {
                healed.mover = Mover::Idle;
                if !healed.step(scenario)? || healed.mover == Mover::Done {
                    break;
                }
            }
        }
    }
    for host in 0..HOSTS {
        for node in 0..NODES {
            healed.adopt(host, node);
        }
        healed.settle(host, scenario);
    }
    Ok(healed)
}

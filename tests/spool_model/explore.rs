//! Plays all orders of events, or random orders. Judges each reached state, and also the state that follows from it
//! when everything is healed.

use std::hash::{BuildHasherDefault, Hasher};

use crate::model::{Event, State};
use crate::scenario::Scenario;

/// After this many healing events, nothing may still wait.
const HEALED_WITHIN: usize = 200;

/// How many events a random walk tries.
const WALK: usize = 120;

/// A set of states.
type HashSet = std::collections::HashSet<State, BuildHasherDefault<StateHasher>>;

/// A hasher. In a build without optimisation, it is faster than the usual hasher.
#[derive(Default)]
struct StateHasher(u64);

impl Hasher for StateHasher {
    fn write(&mut self, bytes: &[u8]) {
        for eight in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Returns the number of states, or the first fault with the shortest sequence of events that leads to it.
pub fn explore(scenario: &Scenario) -> Result<usize, String> {
    let first = State::new(scenario);
    let mut seen = HashSet::from_iter([first]);
    let mut healed = HashSet::default();
    // Each state, the state before it, and the event between them.
    let mut queue: Vec<(State, usize, Option<Event>)> = vec![(first, 0, None)];
    let mut at = 0;
    while let Some((state, ..)) = queue.get(at).copied() {
        for event in state.events(scenario) {
            let describe = |fault: String| format!("{fault}\n{}{event:?}\n{state:?}", way_to(&queue, at));
            let Some(next) = state.after(event, scenario).map_err(describe)? else { continue };
            if seen.insert(next) {
                next.judge().map_err(describe)?;
                heal(next, scenario, &mut healed).map_err(describe)?;
                queue.push((next, at, Some(event)));
            }
        }
        at += 1;
    }
    Ok(queue.len())
}

fn way_to(queue: &[(State, usize, Option<Event>)], mut at: usize) -> String {
    let mut events = Vec::new();
    while let (_, from, Some(event)) = queue[at] {
        events.push(event);
        at = from;
    }
    events.iter().rev().map(|event| format!("{event:?}, ")).collect()
}

/// Plays one random walk.
pub fn walk(scenario: &Scenario, seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut state = State::new(scenario);
    let mut taken = Vec::new();
    for _ in 0..WALK {
        let events = state.events(scenario);
        let Some(event) = random.choice(events) else { break };
        let describe = |fault: String| format!("{fault}\nafter {taken:?} and then {event:?}\n{state:?}");
        if let Some(next) = state.after(event, scenario).map_err(describe)? {
            next.judge().map_err(describe)?;
            heal(next, scenario, &mut HashSet::default()).map_err(describe)?;
            state = next;
            taken.push(event);
        }
    }
    Ok(())
}

/// Heals a state: all servers answer, the change of the set runs to its end, and the sender sends until nothing waits.
/// `healed` has the states that are known to end well.
fn heal(state: State, scenario: &Scenario, healed: &mut HashSet) -> Result<(), String> {
    let mut way = vec![state];
    let mut events = Vec::new();
    while let Some(on_way) = way.last().copied().filter(|on_way| !healed.contains(on_way)) {
        let Some(event) = on_way.healing_event(scenario) else {
            on_way.judge_at_rest(scenario)?;
            break;
        };
        events.push(event);
        let describe = |fault| format!("{fault}\nwhile it heals by {events:?} after");
        let next = on_way.after(event, scenario).map_err(describe)?;
        way.push(next.ok_or_else(|| format!("the sender is stuck: {on_way:?}\nby {events:?} after"))?);
        if events.len() > HEALED_WITHIN {
            return Err(format!("what waits is never sent: {on_way:?}\nby {events:?} after"));
        }
    }
    healed.extend(way);
    Ok(())
}

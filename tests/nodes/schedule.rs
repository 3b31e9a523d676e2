//! Draws from one seed, before a campaign begins, what will happen in it: which faults occur and when, and what each
//! client asks for.

use std::fmt;

use fastrand::Rng;

use crate::ledger::{MILLISECOND, Micros, SECOND};
use crate::requests::{Batch, Requests};

/// How much happens in a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The extent that is played for each change of the code: processes and one node fail.
    Short,
    /// All faults.
    Full,
}

/// The servers of a campaign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    pub nodes: usize,
    /// Whether the last node is a master with a replica and sentinels.
    pub sentinel: bool,
    /// How far the clock of each server is ahead, in ms.
    pub offsets_ms: Vec<i64>,
}

/// The names of the children of a master. The system cuts a name after 15 bytes.
const ROLES: [&str; 7] = [
    "dq-server",
    "dq-timer-0",
    "dq-timer-1",
    "dq-consume-0",
    "dq-consume-1",
    "dq-redis-checke",
    "dq-http-server",
];

/// A fault of the servers or of the daemon. A number is the index of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Kill(usize),
    Start(usize),
    Stop(usize),
    Continue(usize),
    KillProcess(&'static str),
    StopProcess(&'static str),
    ContinueProcess(&'static str),
    KillMaster,
    Hup,
    Usr2,
    /// The replica no longer gets any changes.
    Lag(usize),
    /// The master is lost, and the lagging replica takes its place.
    Promote(usize),
    /// The old master is back, as a replica.
    Rejoin(usize),
    /// The command that takes a node out of the set is started.
    TakeOut(usize),
    /// The command is killed, if it still runs.
    BreakOff,
    BringBack(usize),
}

/// A drawn campaign.
#[derive(Debug, PartialEq, Eq)]
pub struct Schedule {
    pub seed: u64,
    pub shape: Shape,
    /// How long clients send requests and faults occur.
    pub length: Micros,
    pub faults: Vec<(Micros, Fault)>,
    /// The batches of each client of the TCP port.
    pub lines: Vec<Vec<Batch>>,
    /// The batches of each client of the HTTP API.
    pub http: Vec<Vec<Batch>>,
}

impl Schedule {
    /// Draws a campaign. `nodes`: the number of nodes. `None`: the seed decides.
    pub fn new(seed: u64, extent: Extent, nodes: Option<usize>) -> Schedule {
        let mut random = Rng::with_seed(seed);
        let is_short = extent == Extent::Short;
        let length = if is_short { 6 * SECOND } else { 11 * SECOND };
        // Four shapes alternate (two in the short form), so that a few seeds play all of them.
        let nodes = nodes.unwrap_or(if is_short { 1 + (seed % 2) as usize } else { 2 + (seed % 2) as usize });
        let sentinel = !is_short && seed / 2 % 2 == 1;
        let differ = random.bool();
        let offset = |random: &mut Rng| if differ { random.i64(-3_600_000..=3_600_000) } else { 0 };
        let offsets_ms = (0..nodes).map(|n| if sentinel && n + 1 == nodes { 0 } else { offset(&mut random) });
        let shape = Shape { nodes, sentinel, offsets_ms: offsets_ms.collect() };
        let faults = Faults { random: &mut random, shape: &shape, length, list: Vec::new() }.draw();
        let mut clients = Requests::new(&mut random, length);
        let lines = (0..5).map(|_| clients.tcp()).collect();
        let http = (0..2).map(|_| clients.http()).collect();
        Schedule { seed, shape, length, faults, lines, http }
    }

    /// Returns how much too early a job may come when it moves between servers.
    pub fn clocks_differ_by(&self) -> Micros {
        let moves = self.faults.iter().any(|(_, fault)| matches!(fault, Fault::TakeOut(_)));
        let offsets = &self.shape.offsets_ms;
        let differ = offsets.iter().max().unwrap_or(&0) - offsets.iter().min().unwrap_or(&0);
        if moves { differ as u64 * MILLISECOND } else { 0 }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "seed {}: {:?}", self.seed, self.shape)?;
        for (at, fault) in &self.faults {
            writeln!(f, "  {:>7.3} s  {fault:?}", *at as f64 / SECOND as f64)?;
        }
        Ok(())
    }
}

/// Draws the faults.
struct Faults<'a> {
    random: &'a mut Rng,
    shape: &'a Shape,
    length: Micros,
    list: Vec<(Micros, Fault)>,
}

impl Faults<'_> {
    fn draw(mut self) -> Vec<(Micros, Fault)> {
        // For each node, the time at which its present fault is over.
        let mut busy = vec![0; self.shape.nodes];
        let (mut set_busy, mut has_lagged, mut at) = (0, false, 400 * MILLISECOND);
        while at < self.length {
            let node = self.random.usize(0..self.shape.nodes);
            let is_group = self.shape.sentinel && node + 1 == self.shape.nodes;
            let is_free = busy[node] <= at;
            match self.random.u8(0..100) {
                0..22 if is_free && is_group && !has_lagged => {
                    has_lagged = true;
                    busy[node] = self.lag(node, at);
                }
                0..22 if is_free && !is_group => {
                    busy[node] = self.pair(at, 300..3500, Fault::Kill(node), Fault::Start(node));
                }
                22..36 if is_free && !is_group => {
                    busy[node] = self.pair(at, 100..2500, Fault::Stop(node), Fault::Continue(node));
                }
                36..60 => {
                    let role = *self.random.choice(&ROLES).expect("there are some");
                    self.list.push((at, Fault::KillProcess(role)));
                }
                60..72 => {
                    let role = *self.random.choice(&ROLES).expect("there are some");
                    self.pair(at, 100..2000, Fault::StopProcess(role), Fault::ContinueProcess(role));
                }
                72..76 => self.list.push((at, Fault::KillMaster)),
                76..82 => self.list.push((at, Fault::Hup)),
                82..86 => self.list.push((at, Fault::Usr2)),
                _ if node > 0 && set_busy <= at => set_busy = self.change(node, at),
                _ => {}
            }
            at += self.random.u64(200..900) * MILLISECOND;
        }
        self.list.sort_by_key(|(at, _)| *at);
        self.list
    }

    /// Adds a fault and, some milliseconds later, its end. Returns the time at which the fault is over.
    fn pair(&mut self, at: Micros, ms: std::ops::Range<u64>, begin: Fault, end: Fault) -> Micros {
        let until = (at + self.random.u64(ms) * MILLISECOND).min(self.length);
        self.list.extend([(at, begin), (until, end)]);
        until + 1
    }

    fn lag(&mut self, node: usize, at: Micros) -> Micros {
        let promoted = at + self.random.u64(500..2000) * MILLISECOND;
        let until = promoted + 5 * SECOND;
        self.list.extend([
            (at, Fault::Lag(node)),
            (promoted, Fault::Promote(node)),
            (until, Fault::Rejoin(node)),
        ]);
        until + 1
    }

    fn change(&mut self, node: usize, at: Micros) -> Micros {
        if self.random.bool() {
            let broken = at + self.random.u64(20..2500) * MILLISECOND;
            self.list.push((broken, Fault::BreakOff));
            if self.random.bool() {
                self.list.push((broken + 300 * MILLISECOND, Fault::TakeOut(node)));
            }
        }
        self.pair(at, 2500..7000, Fault::TakeOut(node), Fault::BringBack(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::OperationKind;
    use std::collections::HashSet;

    #[test]
    fn a_seed_gives_one_schedule() {
        for extent in [Extent::Short, Extent::Full] {
            assert_eq!(Schedule::new(5, extent, None), Schedule::new(5, extent, None));
            assert_ne!(Schedule::new(5, extent, None).faults, Schedule::new(6, extent, None).faults);
        }
    }

    #[test]
    fn each_fault_that_begins_ends_within_the_schedule() {
        let end_of = |fault: &Fault| match *fault {
            Fault::Kill(n) => Some(Fault::Start(n)),
            Fault::Stop(n) => Some(Fault::Continue(n)),
            Fault::StopProcess(role) => Some(Fault::ContinueProcess(role)),
            Fault::Lag(n) => Some(Fault::Promote(n)),
            Fault::Promote(n) => Some(Fault::Rejoin(n)),
            Fault::TakeOut(n) => Some(Fault::BringBack(n)),
            _ => None,
        };
        for seed in 0..100 {
            let faults = Schedule::new(seed, Extent::Full, None).faults;
            for (n, (at, fault)) in faults.iter().enumerate() {
                let Some(end) = end_of(fault) else { continue };
                let ends = faults[n + 1..].iter().any(|(later, other)| *other == end && later >= at);
                assert!(ends || matches!(fault, Fault::TakeOut(_)), "seed {seed}: {fault:?}");
            }
        }
    }

    #[test]
    fn forty_seeds_play_every_kind_of_fault_and_every_form() {
        let (mut kinds, mut forms) = (HashSet::new(), HashSet::new());
        for seed in 1..=40 {
            let schedule = Schedule::new(seed, Extent::Full, None);
            kinds.extend(schedule.faults.iter().map(|(_, fault)| std::mem::discriminant(fault)));
            forms.insert((schedule.shape.nodes, schedule.shape.sentinel));
        }
        assert_eq!((kinds.len(), forms.len()), (16, 4));
    }

    #[test]
    fn each_version_is_sent_once() {
        let schedule = Schedule::new(3, Extent::Full, None);
        let (mut versions, mut adds) = (HashSet::new(), 0);
        for batch in schedule.lines.iter().chain(&schedule.http).flatten() {
            for ask in batch.requests.iter().flatten() {
                if let OperationKind::Add { version, .. } | OperationKind::Patch { version, .. } =
                    ask.operation_kind
                {
                    assert!(versions.insert(version), "{version}");
                    adds += 1;
                }
            }
        }
        assert!(adds > 1000, "{adds}");
    }
}

//! The state, and every event that can happen to it.

use crate::mover::Mover;

/// A set of nodes: one bit for each node.
pub type Names = u8;

pub const NODES: usize = 3;
pub const HOSTS: usize = 2;

/// The set as a shard has it. `names`: the nodes that are homes of jobs. `goal`: while jobs are moved, the nodes that
/// will be homes after the move. Otherwise 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Set {
    pub number: u8,
    pub names: Names,
    pub goal: Names,
    /// While jobs are moved: the number of the open set before the move.
    pub from: u8,
}

impl Set {
    pub fn is_open(self) -> bool {
        self.goal == 0
    }
}

/// The job on a node: its version, the lease that holds it (0: none), and the version that was leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Copy {
    pub version: u8,
    pub lease: u8,
    pub leased: u8,
}

/// The data of a node. A node that has never been in a set has the set number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Disk {
    pub set: Set,
    /// The step `Fence` found here a set that is older than the last open set. The cause is a lagging replica that was
    /// promoted.
    pub is_older: bool,
    pub copy: Option<Copy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node {
    pub is_up: bool,
    pub main: Disk,
    pub replica: Disk,
    /// A client or a consumer has changed something that the replica does not have yet. The loss of such a change is
    /// the fault of Redis, not of dq.
    pub is_ahead: bool,
    /// The data of a replica or a backup that stopped following at some moment. `is_ahead_of_old`: whether the node has
    /// changed since this moment.
    pub old: Option<Disk>,
    pub is_ahead_of_old: bool,
    /// The number of the server that answers. A promoted replica is another server.
    pub server: u8,
}

/// A host: the set that it knows, and the lease that it holds (its number, the version, and the node that gave it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Host {
    pub known: Set,
    /// For each node, the server that the host has met.
    pub servers: [u8; NODES],
    pub lease: Option<(u8, u8, usize)>,
}

/// How often each thing may happen in one sequence of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budgets {
    pub adds: u8,
    pub deletes: u8,
    pub leases: u8,
    /// Crashes of the command that changes the set.
    pub crashes: u8,
    pub outages: u8,
    /// Promotions of replicas.
    pub fallbacks: u8,
    /// Replicas that stop following, and are promoted later.
    pub returns: u8,
}

impl Default for Budgets {
    fn default() -> Budgets {
        Budgets { adds: 2, deletes: 1, leases: 1, crashes: 0, outages: 0, fallbacks: 0, returns: 0 }
    }
}

/// The rules of docs/internals/NODES.md. `false` leaves a rule out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub fence: bool,
    pub pause: bool,
    pub settle_waits: bool,
    pub settle_carries: bool,
    pub fence_safe: bool,
    pub copies_safe: bool,
    pub drops_safe: bool,
    pub same_server: bool,
    pub meet: bool,
    pub settle_at_home: bool,
    pub clear_older: bool,
}

impl Rules {
    pub const ALL: Rules = Rules {
        fence: true,
        pause: true,
        settle_waits: true,
        settle_carries: true,
        fence_safe: true,
        copies_safe: true,
        drops_safe: true,
        same_server: true,
        meet: true,
        settle_at_home: true,
        clear_older: true,
    };
}

#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// The order in which the job's id prefers the nodes.
    pub preference: [usize; NODES],
    pub names: Names,
    pub goal: Names,
    pub rules: Rules,
    pub budgets: Budgets,
}

impl Default for Scenario {
    fn default() -> Scenario {
        let budgets = Budgets::default();
        Scenario { preference: [0, 1, 2], names: 1, goal: 1, rules: Rules::ALL, budgets }
    }
}

impl Scenario {
    /// Returns the home of the job among these nodes.
    pub fn home(&self, names: Names) -> usize {
        self.preference.into_iter().find(|node| names & 1 << node != 0).expect("a set has a node")
    }
}

/// What the last acknowledged operation has left: nothing, or a version.
pub type Truth = Option<u8>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    pub nodes: [Node; NODES],
    pub hosts: [Host; HOSTS],
    pub mover: Mover,
    /// The number of the last set that was ever made. (In dq, the number of a set is the time at which the set was
    /// made. So a process can make a set without the previous number.)
    pub last_number: u8,
    pub truth: Truth,
    /// The version that was last delivered and settled. If it is delivered again, this is a duplicate, and not a fault.
    pub finished: Truth,
    pub left: Budgets,
    pub next_version: u8,
    pub next_lease: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Add(usize),
    Delete(usize),
    Lease(usize, usize),
    Settle(usize),
    Adopt(usize, usize),
    Meet(usize, usize),
    Down(usize),
    Up(usize),
    Replicate(usize),
    Fallback(usize),
    Forsake(usize),
    Return(usize),
    Mover,
    MoverDies,
}

impl State {
    pub fn new(scenario: &Scenario) -> State {
        let first = Set { number: 1, names: scenario.names, goal: 0, from: 0 };
        let none = Set { number: 0, names: 0, goal: 0, from: 0 };
        let node = |i: usize| {
            let set = if scenario.names & 1 << i != 0 { first } else { none };
            let disk = Disk { set, is_older: false, copy: None };
            Node {
                is_up: true,
                main: disk,
                replica: disk,
                is_ahead: false,
                old: None,
                is_ahead_of_old: false,
                server: 0,
            }
        };
        State {
            nodes: [0, 1, 2].map(node),
            hosts: [Host { known: first, servers: [0; NODES], lease: None }; HOSTS],
            mover: Mover::Idle,
            last_number: 1,
            truth: None,
            finished: None,
            left: scenario.budgets,
            next_version: 1,
            next_lease: 1,
        }
    }

    pub fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::Mover, Event::MoverDies];
        for host in 0..HOSTS {
            events.extend([Event::Add(host), Event::Delete(host), Event::Settle(host)]);
            for node in 0..NODES {
                events.extend([Event::Lease(host, node), Event::Adopt(host, node), Event::Meet(host, node)]);
            }
        }
        for node in 0..NODES {
            events.extend([
                Event::Down(node),
                Event::Up(node),
                Event::Replicate(node),
                Event::Fallback(node),
                Event::Forsake(node),
                Event::Return(node),
            ]);
        }
        events
    }

    /// Returns the state after an event. `None`: the event cannot happen now, has no effect, or leads to a loss that is
    /// the fault of Redis. An error describes a fault of dq.
    pub fn after(&self, event: Event, scenario: &Scenario) -> Result<Option<State>, String> {
        let mut next = *self;
        let happens = match event {
            Event::Add(host) => next.add(host, scenario),
            Event::Delete(host) => next.delete(host, scenario),
            Event::Lease(host, node) => next.lease(host, node, scenario)?,
            Event::Settle(host) => next.settle(host, scenario),
            Event::Adopt(host, node) => next.adopt(host, node),
            Event::Meet(host, node) => next.meet(host, node),
            Event::Down(node) => spend(&mut next.left.outages) && std::mem::take(&mut next.nodes[node].is_up),
            Event::Up(node) => !std::mem::replace(&mut next.nodes[node].is_up, true),
            Event::Replicate(node) => next.replicate(node),
            Event::Fallback(node) => {
                let node = &mut next.nodes[node];
                let is_engines = node.is_ahead || node.main == node.replica;
                node.main = node.replica;
                node.server += 1;
                !is_engines && spend(&mut next.left.fallbacks)
            }
            Event::Forsake(node) => {
                let node = &mut next.nodes[node];
                (node.old, node.is_ahead_of_old) = (Some(node.main), false);
                spend(&mut next.left.returns)
            }
            Event::Return(node) => {
                let node = &mut next.nodes[node];
                let old = node.old.take();
                (node.main, node.replica) = (old.unwrap_or(node.main), old.unwrap_or(node.main));
                node.server += 1;
                old.is_some() && !node.is_ahead_of_old
            }
            Event::Mover => next.step(scenario)?,
            Event::MoverDies => {
                let was = std::mem::replace(&mut next.mover, Mover::Idle);
                was != Mover::Idle && was != Mover::Done && spend(&mut next.left.crashes)
            }
        };
        if scenario.budgets.fallbacks == 0 {
            // If no node can fall back to its replica, it does not matter what a replica lacks.
            next.nodes.iter_mut().for_each(|node| (node.replica, node.is_ahead) = (node.main, false));
        }
        Ok((happens && next != *self).then_some(next))
    }

    /// Whether a host's script runs on a node.
    fn runs(&self, host: usize, node: usize, rules: Rules) -> bool {
        let there = &self.nodes[node];
        let has_met = there.server == self.hosts[host].servers[node] || !rules.meet;
        there.is_up && has_met && (!rules.fence || there.main.set == self.hosts[host].known)
    }

    /// Returns the home to which a host's change goes. `None`: the host can make no change now.
    fn home_for(&self, host: usize, scenario: &Scenario) -> Option<usize> {
        let known = self.hosts[host].known;
        if !known.is_open() && scenario.rules.pause {
            return None;
        }
        let home = scenario.home(if known.is_open() { known.names } else { known.goal });
        self.runs(host, home, scenario.rules).then_some(home)
    }

    fn add(&mut self, host: usize, scenario: &Scenario) -> bool {
        let Some(home) = self.home_for(host, scenario) else { return false };
        let version = self.next_version;
        self.next_version += 1;
        let node = &mut self.nodes[home];
        let (lease, leased) = node.main.copy.map_or((0, 0), |copy| (copy.lease, copy.leased));
        node.main.copy = Some(Copy { version, lease, leased });
        (node.is_ahead, node.is_ahead_of_old) = (true, true);
        (self.truth, self.finished) = (Some(version), None);
        spend(&mut self.left.adds)
    }

    fn delete(&mut self, host: usize, scenario: &Scenario) -> bool {
        let Some(home) = self.home_for(host, scenario) else { return false };
        let node = &mut self.nodes[home];
        let had = node.main.copy.take().is_some();
        (node.is_ahead, node.is_ahead_of_old) = (node.is_ahead | had, node.is_ahead_of_old | had);
        (self.truth, self.finished) = (None, None);
        spend(&mut self.left.deletes)
    }

    fn lease(&mut self, host: usize, node: usize, scenario: &Scenario) -> Result<bool, String> {
        let may = self.hosts[host].known.is_open() || !scenario.rules.pause;
        let ready = self.nodes[node].main.copy.filter(|copy| copy.lease == 0);
        let (true, true, None, Some(copy)) =
            (may, self.runs(host, node, scenario.rules), self.hosts[host].lease, ready)
        else {
            return Ok(false);
        };
        if !spend(&mut self.left.leases) {
            return Ok(false);
        }
        if self.truth != Some(copy.version) && self.finished != Some(copy.version) {
            return Err(format!(
                "version {} is delivered; what was acknowledged is {:?}",
                copy.version, self.truth
            ));
        }
        let lease = self.next_lease;
        self.next_lease += 1;
        self.nodes[node].main.copy = Some(Copy { version: copy.version, lease, leased: copy.version });
        (self.nodes[node].is_ahead, self.nodes[node].is_ahead_of_old) = (true, true);
        self.hosts[host].lease = Some((lease, copy.version, node));
        Ok(true)
    }

    /// Settles a delivered job on the node that the token names. While jobs are moved, the host waits. If this node
    /// does not know the lease, the job may have moved. Then the host reads the set of the node, and tries the home of
    /// the id.
    pub fn settle(&mut self, host: usize, scenario: &Scenario) -> bool {
        let Some((lease, version, at)) = self.hosts[host].lease else { return false };
        let mut place = at;
        loop {
            // A settlement carries the set that the host knows, as other requests do. If a shard has a newer set, the
            // host adopts this set. A shard with an older set counts as down.
            if scenario.rules.settle_carries {
                self.adopt(host, place);
            }
            let known = self.hosts[host].known;
            let node = &mut self.nodes[place];
            let set = node.main.set;
            let is_frozen = !set.is_open() && set.number >= known.number;
            let is_outside = known.is_open() && known.names & 1 << place == 0;
            let is_refused = scenario.rules.settle_carries && set != known;
            if is_refused && is_outside && place == at {
                // The node is no longer a home. Its jobs have moved.
                place = scenario.home(known.names);
                continue;
            }
            if !node.is_up || is_refused || (is_frozen && scenario.rules.settle_waits) {
                return false;
            }
            if let Some(copy) = node.main.copy.filter(|copy| copy.lease == lease) {
                let replaced = copy.version != copy.leased;
                node.main.copy = replaced.then_some(Copy { version: copy.version, lease: 0, leased: 0 });
                (node.is_ahead, node.is_ahead_of_old) = (true, true);
                if self.truth == Some(version) {
                    (self.truth, self.finished) = (None, Some(version));
                }
                break;
            }
            let known = self.hosts[host].known;
            let home = scenario.home(if known.is_open() { known.names } else { known.goal });
            if home == place || place != at || !scenario.rules.settle_at_home {
                break;
            }
            place = home;
        }
        self.hosts[host].lease = None;
        true
    }

    /// Reads the set of a node, and adopts this set if it is newer than the set that the host knows.
    pub fn adopt(&mut self, host: usize, node: usize) -> bool {
        let there = &self.nodes[node];
        let is_news = there.is_up && there.main.set.number > self.hosts[host].known.number;
        if is_news {
            self.hosts[host].known = there.main.set;
        }
        is_news
    }

    /// A server answers for a node, and the host has not met this server. Before the host uses the server, it reads the
    /// sets of all nodes that answer. (A lagging replica has the previous set.)
    fn meet(&mut self, host: usize, node: usize) -> bool {
        for other in 0..NODES {
            self.adopt(host, other);
        }
        self.hosts[host].servers[node] = self.nodes[node].server;
        self.nodes[node].is_up
    }

    /// Brings the replica up to date.
    pub fn replicate(&mut self, node: usize) -> bool {
        let node = &mut self.nodes[node];
        (node.replica, node.is_ahead) = (node.main, false);
        node.is_up
    }
}

fn spend(budget: &mut u8) -> bool {
    let has = *budget > 0;
    *budget = budget.saturating_sub(1);
    has
}

//! The command that changes the set, one step at a time. The command may die between any two steps. When it is started
//! again, it reads everything that it needs from the nodes.

use crate::model::{Copy, NODES, Names, Rules, Scenario, Set, State};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mover {
    Idle,
    /// Writes the goal to this node, and to the nodes after it.
    Fence {
        set: Set,
        node: usize,
    },
    /// Waits until the goal is on all replicas. `servers`: for each node, the server that has answered.
    FenceSafe {
        set: Set,
        servers: Servers,
    },
    /// Removes old copies of the job from nodes that fell back, if the job had already been moved away.
    Clear {
        set: Set,
        node: usize,
        servers: Servers,
    },
    /// Reads the copy of the job on the node.
    Look {
        set: Set,
        node: usize,
        servers: Servers,
    },
    Put {
        set: Set,
        node: usize,
        copy: Copy,
        servers: Servers,
    },
    /// Waits until the copy is on the replica of its new home.
    CopySafe {
        set: Set,
        node: usize,
        copy: Copy,
        servers: Servers,
    },
    Drop {
        set: Set,
        node: usize,
        copy: Copy,
        servers: Servers,
    },
    /// Waits until the dropped copies are gone from the replicas, too.
    DropsSafe {
        set: Set,
        servers: Servers,
    },
    Open {
        set: Set,
        node: usize,
        servers: Servers,
    },
    Done,
}

/// The server of each node that the command talks to.
type Servers = [u8; NODES];

fn has(names: Names, node: usize) -> bool {
    names & 1 << node != 0
}

impl State {
    /// Makes the command's next step. Returns false if the command must wait.
    pub fn step(&mut self, scenario: &Scenario) -> Result<bool, String> {
        let before = self.mover;
        self.mover = match before {
            Mover::Idle => self.begin(scenario),
            Mover::Fence { set, node } => self.fence(set, node),
            Mover::FenceSafe { set, servers } => {
                let next = Mover::Clear { set, node: 0, servers };
                self.once_safe(set, servers, scenario.rules.fence_safe, next, scenario)
            }
            Mover::Clear { set, node, servers } => self.clear(set, node, servers, scenario),
            Mover::Look { set, node, servers } => self.look(set, node, servers, scenario),
            Mover::Put { set, node, copy, servers } => self.put(set, node, copy, servers, scenario),
            Mover::CopySafe { set, node, copy, servers } => {
                let home = scenario.home(set.goal);
                let there = &self.nodes[home];
                let is_safe = there.is_up && (there.main == there.replica || !scenario.rules.copies_safe);
                let is_same = there.server == servers[home] || !scenario.rules.same_server;
                match (is_same, is_safe) {
                    (false, _) => Mover::Fence { set, node: 0 },
                    (true, true) => Mover::Drop { set, node, copy, servers },
                    (true, false) => before,
                }
            }
            Mover::Drop { set, node, copy, servers } => self.drop_copy(set, node, copy, servers, scenario)?,
            Mover::DropsSafe { set, servers } => {
                let next = Mover::Open { set, node: 0, servers };
                let after = self.once_safe(set, servers, scenario.rules.drops_safe, next, scenario);
                self.last_number += u8::from(after == next);
                after
            }
            Mover::Open { set, node, servers } => self.open(set, node, servers, scenario),
            Mover::Done => Mover::Done,
        };
        Ok(self.mover != before)
    }

    /// Reads the set of all nodes. If a change is under way, continues this change. Otherwise begins a change if the
    /// nodes do not have the goal yet. Also begins a change if a node does not have the newest set, so that the command
    /// looks at this node again.
    fn begin(&mut self, scenario: &Scenario) -> Mover {
        if self.nodes.iter().any(|node| !node.is_up) {
            return Mover::Idle;
        }
        let newest = self.nodes.iter().map(|node| node.main.set).max_by_key(|set| set.number);
        let newest = newest.expect("there are nodes");
        if !newest.is_open() {
            return Mover::Fence { set: newest, node: 0 };
        }
        // A node without the newest set has fallen back, or the command died before it had opened the set there. In
        // both cases the command looks at this node again.
        let names = newest.names;
        let fell_back = (0..NODES).any(|node| has(names, node) && self.nodes[node].main.set != newest);
        if names == scenario.goal && newest.number > 1 && !fell_back {
            return Mover::Done;
        }
        self.last_number += 1;
        let set = Set { number: self.last_number, names, goal: scenario.goal, from: newest.number };
        Mover::Fence { set, node: 0 }
    }

    fn fence(&mut self, set: Set, node: usize) -> Mover {
        if node == NODES {
            return Mover::FenceSafe { set, servers: self.servers() };
        }
        let there = &mut self.nodes[node];
        if has(set.names | set.goal, node) {
            if !there.is_up {
                return self.mover;
            }
            let disk = &mut there.main;
            if disk.set != set {
                disk.is_older |= has(set.names, node) && disk.set.number != set.from;
                disk.set = set;
            }
        }
        Mover::Fence { set, node: node + 1 }
    }

    fn clear(&mut self, set: Set, node: usize, servers: Servers, scenario: &Scenario) -> Mover {
        if node == NODES {
            return Mover::Look { set, node: 0, servers };
        }
        let there = &mut self.nodes[node];
        if there.main.is_older {
            if !there.is_up || there.main.set != set {
                return self.refused(node);
            }
            there.main.is_older = false;
            if scenario.rules.clear_older && scenario.home(set.names) != node {
                there.main.copy = None;
            }
        }
        Mover::Clear { set, node: node + 1, servers }
    }

    fn look(&mut self, set: Set, node: usize, servers: Servers, scenario: &Scenario) -> Mover {
        if node == NODES {
            return Mover::DropsSafe { set, servers };
        }
        if !has(set.names | set.goal, node) {
            return Mover::Look { set, node: node + 1, servers };
        }
        if !self.runs_there(set, node) {
            return self.refused(node);
        }
        match self.nodes[node].main.copy {
            Some(copy) if scenario.home(set.goal) != node => Mover::Put { set, node, copy, servers },
            _ => Mover::Look { set, node: node + 1, servers },
        }
    }

    fn put(&mut self, set: Set, node: usize, copy: Copy, servers: Servers, scenario: &Scenario) -> Mover {
        let home = scenario.home(set.goal);
        if !self.runs_there(set, home) {
            return self.refused(home);
        }
        // A replica that does not follow lacks this copy, just as it lacks the jobs that clients add. If that replica
        // is promoted, the loss is the fault of Redis.
        (self.nodes[home].main.copy, self.nodes[home].is_ahead_of_old) = (Some(copy), true);
        Mover::CopySafe { set, node, copy, servers }
    }

    fn drop_copy(
        &mut self,
        set: Set,
        node: usize,
        copy: Copy,
        servers: Servers,
        scenario: &Scenario,
    ) -> Result<Mover, String> {
        if !self.runs_there(set, node) {
            return Ok(self.refused(node));
        }
        // The copy cannot have changed, because all nodes are fenced.
        if self.nodes[node].main.copy.take() != Some(copy) && scenario.rules == Rules::ALL {
            return Err(format!("node {node} has another copy than was put at the home"));
        }
        Ok(Mover::Look { set, node: node + 1, servers })
    }

    fn open(&mut self, set: Set, node: usize, servers: Servers, scenario: &Scenario) -> Mover {
        if node == NODES {
            return Mover::Done;
        }
        let there = &mut self.nodes[node];
        let opened = Set { number: self.last_number, names: set.goal, goal: 0, from: 0 };
        if has(set.names | set.goal, node) {
            if !there.is_up {
                return self.mover;
            }
            // A node that has fallen back in the meantime counts as down until the next change has looked at it.
            let is_same = there.server == servers[node] || !scenario.rules.same_server;
            if there.main.set == set && is_same {
                there.main.set = opened;
            }
        }
        Mover::Open { set, node: node + 1, servers }
    }

    fn servers(&self) -> Servers {
        self.nodes.map(|node| node.server)
    }

    /// Returns the next step when all replicas have the data of their nodes. A server that took over in the meantime
    /// may lack some of this data. Then the command begins again with `Fence`.
    fn once_safe(&self, set: Set, servers: Servers, waits: bool, next: Mover, scenario: &Scenario) -> Mover {
        let concerned = (0..NODES).filter(|node| has(set.names | set.goal, *node));
        let mut concerned = concerned.map(|node| &self.nodes[node]);
        let is_safe = concerned.all(|node| node.is_up && node.main == node.replica);
        match (self.servers() == servers || !scenario.rules.same_server, is_safe || !waits) {
            (false, _) => Mover::Fence { set, node: 0 },
            (true, true) => next,
            (true, false) => self.mover,
        }
    }

    fn runs_there(&self, set: Set, node: usize) -> bool {
        self.nodes[node].is_up && self.nodes[node].main.set == set
    }

    /// Handles a step that a node did not make: waits for a node that is down, and begins again if the node fell back.
    fn refused(&self, node: usize) -> Mover {
        if self.nodes[node].is_up { Mover::Idle } else { self.mover }
    }
}

//! Roles, slots and generations: what the children of dq-master are called. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a child does. The order is that in which they are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Moves due jobs to ready, takes back leases.
    Timer,
    /// Calls the callbacks.
    Consume,
    /// The TCP port.
    Server,
    /// The HTTP API.
    HttpServer,
    /// Watches what the jobs are stored in.
    RedisChecker,
}

impl Role {
    /// All of them, in their order.
    pub const ALL: [Role; 5] =
        [Role::Timer, Role::Consume, Role::Server, Role::HttpServer, Role::RedisChecker];

    /// Its name without `dq-` and index, as `--only` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Timer => "timer",
            Role::Consume => "consume",
            Role::RedisChecker => "redis-checker",
            Role::HttpServer => "http-server",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|r| r.name() == name)
    }

    /// Whether there may be several, told apart by an index.
    fn is_indexed(self) -> bool {
        matches!(self, Role::Timer | Role::Consume)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A role with an index: a place that one process fills at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// What the process does.
    pub role: Role,
    /// Which one, from 0; always 0 for a role that has one process.
    pub index: u32,
}

impl Slot {
    /// The slot of that name, as [`fmt::Display`] writes it.
    pub fn from_name(name: &str) -> Option<Slot> {
        let name = name.strip_prefix("dq-")?;
        if let Some(role) = Role::from_name(name) {
            return (!role.is_indexed()).then_some(Slot { role, index: 0 });
        }
        let (role, index) = name.rsplit_once('-')?;
        let role = Role::from_name(role).filter(|r| r.is_indexed())?;
        Some(Slot { role, index: index.parse().ok()? })
    }
}

/// `dq-server`, `dq-timer-0`: the process's name.
impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.role.is_indexed() {
            write!(f, "dq-{}-{}", self.role, self.index)
        } else {
            write!(f, "dq-{}", self.role)
        }
    }
}

/// Counts the sets of children that a master has started, from 1.
pub type Generation = u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_slot() {
        for role in Role::ALL {
            for index in [0, 12] {
                let slot = Slot { role, index: if role.is_indexed() { index } else { 0 } };
                assert_eq!(Slot::from_name(&slot.to_string()), Some(slot));
            }
        }
        assert_eq!(Slot { role: Role::RedisChecker, index: 0 }.to_string(), "dq-redis-checker");
        for bad in ["dq-timer", "dq-server-0", "dq-master", "timer-0", "dq-timer-x"] {
            assert_eq!(Slot::from_name(bad), None, "{bad}");
        }
    }
}

//! Roles, slots and generations: the names of the child processes of dq-master. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of the master. An executable that is started under this name runs as the daemon.
pub const MASTER: &str = "dq-master";

/// What a child process does. The variants are in the order in which the roles are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Promotes due jobs, expires leases, and hands back leases of dead owners.
    Timer,
    /// Leases jobs and calls the callbacks.
    Consume,
    /// Serves the TCP port.
    Server,
    /// Serves the HTTP API and the console.
    HttpServer,
    /// Watches the store, and sends alerts.
    RedisChecker,
}

impl Role {
    /// All roles, in their order.
    pub const ALL: [Role; 5] =
        [Role::Timer, Role::Consume, Role::Server, Role::HttpServer, Role::RedisChecker];

    /// Returns the name of the role, without `dq-` and without an index. The option `--only` takes this name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Timer => "timer",
            Role::Consume => "consume",
            Role::RedisChecker => "redis-checker",
            Role::HttpServer => "http-server",
        }
    }

    /// Returns the role with this name.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|r| r.name() == name)
    }

    /// Returns whether there may be several processes of the role, each with an index.
    fn is_indexed(self) -> bool {
        matches!(self, Role::Timer | Role::Consume)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A role with an index. One process of each generation fills the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// What the process does.
    pub role: Role,
    /// The index, from 0. Always 0 for a role that has one process.
    pub index: u32,
}

impl Slot {
    /// Returns the slot with this name, as [`fmt::Display`] writes it.
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

/// Writes the name of the process, such as `dq-server` or `dq-timer-0`.
impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.role.is_indexed() {
            write!(f, "dq-{}-{}", self.role, self.index)
        } else {
            write!(f, "dq-{}", self.role)
        }
    }
}

/// The number of a generation: counts the sets of child processes that a master has started, from 1.
pub type GenerationNumber = u32;

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

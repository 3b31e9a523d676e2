//! How safe jobs are on Redis: what dq waits for before it answers a change, and which servers dq may use.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::StoreSettings;
use crate::topic::Durability;

/// How safe jobs are on Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurabilitySettings {
    /// How safe a change must be before it is answered, if its topic sets no level.
    pub durability: Durability,
    /// How long dq waits at most until a change is safe at its level.
    pub timeout: Duration,
    /// Whether dq may use servers that save only snapshots to the disk, or save nothing to the disk.
    pub allow_snapshots: bool,
}

impl Default for DurabilitySettings {
    fn default() -> DurabilitySettings {
        DurabilitySettings {
            durability: Durability::Memory,
            timeout: Duration::from_secs(3),
            allow_snapshots: false,
        }
    }
}

impl StoreSettings {
    /// Returns why this kind of store never offers a durability level. None: the store offers the level if its servers
    /// offer it.
    pub fn lacks(&self, level: Durability) -> Option<String> {
        match self {
            StoreSettings::Embedded { .. } => StoreSettings::embedded_lacks(level),
            StoreSettings::Redis(_) => None,
        }
    }

    /// Returns why the embedded store never offers a durability level. None: the embedded store offers the level.
    pub fn embedded_lacks(level: Durability) -> Option<String> {
        (level != Durability::Fsync).then(|| {
            format!(
                "\"{level}\" is not possible with store.backend = \"embedded\", which always has \"fsync\": leave it out, or use \
                 \"redis\""
            )
        })
    }
}

//! How safe jobs are on Redis: what a change waits for, and which servers dq uses at all.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::StoreSettings;
use crate::topic::Durability;

/// How safe jobs are on Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurabilitySettings {
    /// How safe a change must be before it is answered, if its topic sets no level.
    pub durability: Durability,
    /// How long a change waits until it is safe at its level.
    pub timeout: Duration,
    /// Whether dq may use servers that save only snapshots, or nothing at all.
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
    /// Returns why this kind of store never offers a durability level. `None`: it offers the level if its servers do.
    pub fn lacks(&self, level: Durability) -> Option<String> {
        match self {
            StoreSettings::Embedded { .. } => StoreSettings::embedded_lacks(level),
            StoreSettings::Redis(_) => None,
        }
    }

    /// Returns why the embedded store never offers a durability level. None: it offers the level.
    pub fn embedded_lacks(level: Durability) -> Option<String> {
        (level != Durability::Fsync).then(|| {
            format!(
                "\"{level}\" is not possible with store.backend = \"embedded\", which always has \"fsync\": leave it out, or use \
                 \"redis\""
            )
        })
    }
}

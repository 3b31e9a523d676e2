//! Durability levels: how safe a change of a job is before it is answered.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The maximum number of replicas that a level can name.
const REPLICAS_MAX: u32 = 100;

/// How safe a change of a job is before it is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Durability {
    /// `memory`: the server has the change in its memory.
    #[default]
    Memory,
    /// `fsync`: the server has the change on its disk.
    Fsync,
    /// `replicas:2`: this number of replicas also have the change in their memory.
    Replicas(u32),
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> Result<Durability, String> {
        let replicas =
            || text.strip_prefix("replicas:")?.parse().ok().filter(|n| (1..=REPLICAS_MAX).contains(n));
        match text {
            "memory" => Ok(Durability::Memory),
            "fsync" => Ok(Durability::Fsync),
            _ => replicas().map(Durability::Replicas).ok_or_else(|| {
                format!("{text:?} is none of \"memory\", \"fsync\", \"replicas:1\" (up to {REPLICAS_MAX})")
            }),
        }
    }
}

impl TryFrom<String> for Durability {
    type Error = String;
    fn try_from(text: String) -> Result<Durability, String> {
        text.parse()
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Memory => f.write_str("memory"),
            Durability::Fsync => f.write_str("fsync"),
            Durability::Replicas(n) => write!(f, "replicas:{n}"),
        }
    }
}

impl From<Durability> for String {
    fn from(durability: Durability) -> String {
        durability.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_read_as_it_is_written() {
        for text in ["memory", "fsync", "replicas:1", "replicas:100"] {
            assert_eq!(text.parse::<Durability>().unwrap().to_string(), text);
        }
        for text in ["", "disk", "replicas", "replicas:", "replicas:0", "replicas:101", "replicas:-1"] {
            assert!(text.parse::<Durability>().unwrap_err().contains("replicas:1"), "{text}");
        }
    }
}

//! The settings of the registry.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::RedisSettings;

/// The database of the registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegistrySettings {
    /// A SQLite file.
    Sqlite {
        /// The file.
        path: PathBuf,
    },
    /// MySQL or MariaDB.
    Mysql(MysqlServer),
    /// The registry is in the store itself, on its nodes of Redis.
    Store(RedisSettings),
}

impl RegistrySettings {
    /// Returns the file of a registry in SQLite. None: the registry is not in SQLite.
    pub fn file(&self) -> Option<&Path> {
        match self {
            RegistrySettings::Sqlite { path } => Some(path),
            RegistrySettings::Mysql(_) | RegistrySettings::Store(_) => None,
        }
    }
}

/// Writes which database the registry is in, without the password.
impl fmt::Display for RegistrySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistrySettings::Sqlite { path } => write!(f, "sqlite:{}", path.display()),
            RegistrySettings::Mysql(server) => f.write_str(&server.name),
            // The nodes are left out, because the registry stays the same when a node is added.
            RegistrySettings::Store(nodes) => write!(f, "store:{}", nodes.prefix),
        }
    }
}

/// A database of a MySQL server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MysqlServer {
    /// The name of the database, for people. It contains no password.
    pub name: String,
    /// The URL, with user, password and database.
    pub url: String,
    /// The limit of attempts for topics that the PHP daemon's console has written. None: the limit of the PHP daemon.
    #[serde(default)]
    pub max_attempts: Option<u32>,
}

impl fmt::Debug for MysqlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

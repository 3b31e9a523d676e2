//! The files of the embedded store and of a registry in SQLite.

use std::path::Path;

use super::{RegistrySettings, StoreSettings};

impl StoreSettings {
    /// The file of the embedded store.
    pub fn file(&self) -> Option<&Path> {
        match self {
            StoreSettings::Embedded { path, .. } => Some(path),
            StoreSettings::Redis(_) => None,
        }
    }
}

impl RegistrySettings {
    /// The file of a registry in SQLite.
    pub fn file(&self) -> Option<&Path> {
        match self {
            RegistrySettings::Sqlite { path } => Some(path),
            RegistrySettings::Mysql(_) => None,
        }
    }
}

//! Opens the registry that the settings name.

use std::collections::HashSet;
use std::path::Path;

use super::{
    InvalidRow, MysqlRegistry, RedisRegistry, Registered, Registry, RegistryError, Result, Snapshot,
    SqliteRegistry,
};
use model::php_node::PhpNode;
use model::settings::{RegistrySettings, SmtpSettings};

/// Returns the nodes that are listed in the PHP daemon's tables, in the registry's database. Changes nothing.
pub fn php_nodes(settings: &RegistrySettings) -> Result<Vec<PhpNode>> {
    match settings {
        // This call only reads, so the tables are not brought up to date.
        RegistrySettings::Mysql(server) => MysqlRegistry::connect(server)?.php_nodes(),
        RegistrySettings::Sqlite { .. } | RegistrySettings::Store(_) => Ok(Vec::new()),
    }
}

/// The topics of a registry in MySQL, and the nodes of a PHP daemon that used its database. The tables were read, and
/// not brought up to date.
#[derive(Debug, Default)]
pub struct UnmigratedTables {
    /// The topics, even if their table was never brought up to date.
    pub topics: Vec<Registered>,
    /// The rows that dq cannot use as topics.
    pub unusable: Vec<InvalidRow>,
    /// The names of all rows of `dq_topic`, also of the rows that dq cannot use.
    pub names: HashSet<String>,
    /// The rows of `dq_redis`.
    pub nodes: Vec<PhpNode>,
}

/// Reads a registry in MySQL, and changes nothing there, not even the form of its tables. None: the registry is not in
/// MySQL.
pub fn read_as_it_is(settings: &RegistrySettings) -> Result<Option<UnmigratedTables>> {
    match settings {
        RegistrySettings::Mysql(server) => Ok(Some(MysqlRegistry::connect(server)?.read_as_it_is()?)),
        RegistrySettings::Sqlite { .. } | RegistrySettings::Store(_) => Ok(None),
    }
}

/// Returns the mail server of a PHP daemon that used the database of a registry. Changes nothing there.
pub fn php_smtp(settings: &RegistrySettings) -> Result<Option<SmtpSettings>> {
    match settings {
        RegistrySettings::Mysql(server) => {
            Ok(MysqlRegistry::connect(server)?.php_alert()?.and_then(|row| row.smtp()))
        }
        RegistrySettings::Sqlite { .. } | RegistrySettings::Store(_) => Ok(None),
    }
}

/// Opens the registry of the daemon with that `run_dir`, and brings its tables up to date. If the registry is gone, and
/// the snapshot says that it had topics or tokens, no new registry is made: with an empty registry, dq would treat all
/// topics and tokens as removed.
pub fn open_known(settings: &RegistrySettings, run_dir: &Path) -> Result<Box<dyn Registry>> {
    if let Some(registry) = open_existing(settings)? {
        return Ok(registry);
    }
    match settings {
        RegistrySettings::Sqlite { path } => {
            refuse_new(settings, run_dir, &path.display().to_string(), "put it back or restore a backup")?
        }
        RegistrySettings::Store(_) => {
            let advice = "bring back the data of its node, or write it again from what this host knows (dq registry rebuild)";
            refuse_new(settings, run_dir, "the registry on the nodes of the store", advice)?;
        }
        RegistrySettings::Mysql(_) => {}
    }
    open(settings)
}

/// Opens a registry that exists, and brings its tables up to date. None: there is no such file, or no registry on the
/// nodes of the store. A MySQL database always counts as a registry: dq makes the tables that are missing.
pub fn open_existing(settings: &RegistrySettings) -> Result<Option<Box<dyn Registry>>> {
    match settings {
        RegistrySettings::Sqlite { path } if !path.exists() => Ok(None),
        RegistrySettings::Store(nodes) => {
            Ok(RedisRegistry::find(nodes)?.map(|registry| Box::new(registry) as Box<dyn Registry>))
        }
        RegistrySettings::Sqlite { .. } | RegistrySettings::Mysql(_) => open(settings).map(Some),
    }
}

/// Refuses to make a new registry if the snapshot says that there was one with topics or tokens.
fn refuse_new(settings: &RegistrySettings, run_dir: &Path, what: &str, advice: &str) -> Result<()> {
    let Ok(Some((known, _))) = Snapshot::read(run_dir) else { return Ok(()) };
    let held = known.tokens.as_deref().unwrap_or_default();
    if known.source != settings.to_string() || known.topics.len() + held.len() == 0 {
        return Ok(());
    }
    let accounts = held.iter().filter(|token| token.is_account()).count();
    Err(RegistryError::Away(format!(
        "{what} is gone; it held {} topics, {} tokens and {accounts} accounts of the console: {advice}, or stop dq and remove {} to begin \
         anew",
        known.topics.len(),
        held.len() - accounts,
        Snapshot::file(run_dir).display()
    )))
}

/// Opens a registry, and brings its tables up to date.
pub fn open(settings: &RegistrySettings) -> Result<Box<dyn Registry>> {
    Ok(match settings {
        RegistrySettings::Sqlite { path } => Box::new(SqliteRegistry::open(path)?),
        RegistrySettings::Mysql(server) => Box::new(MysqlRegistry::open(server)?),
        RegistrySettings::Store(nodes) => Box::new(RedisRegistry::open(nodes)?),
    })
}

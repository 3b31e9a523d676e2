//! Checks the registry's database: whether it answers, and which migrations were run there. These checks make no tables
//! and run no migrations.

use std::path::Path;
use std::time::Duration;

use ::mysql::prelude::Queryable as _;
use ::mysql::{Conn, Opts, OptsBuilder};
use anyhow::{Context as _, Result};
use rusqlite::{Connection, OpenFlags};

use super::judge::{self, CheckResult};
use model::settings::{RegistrySettings, Settings};

/// How long a database may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Selects the newest migration that was run. The table belongs to the registry.
const NEWEST: &str = "SELECT MAX(version) FROM dq_schema_history";

/// Checks the registry's database.
pub(super) fn check(settings: &Settings) -> Vec<CheckResult> {
    let Some(registry) = &settings.registry else {
        return vec![judge::no_registry(settings.http.listen.is_some())];
    };
    let (run, newest) = match registry {
        RegistrySettings::Sqlite { path } if !path.exists() => {
            let text = format!("{} is made when the daemon starts", path.display());
            return vec![CheckResult::ok("registry", text)];
        }
        RegistrySettings::Sqlite { path } => (of_sqlite(path), registry::newest_sqlite_migration()),
        RegistrySettings::Mysql(server) => (of_mysql(&server.url), registry::newest_mysql_migration()),
        RegistrySettings::Store(nodes) => {
            return vec![match registry::RedisRegistry::find(nodes) {
                Ok(Some(found)) => CheckResult::ok("registry", format!("it is on node {}", found.node())),
                Ok(None) => {
                    CheckResult::ok("registry", "it is made on a node of the store when the daemon starts")
                }
                Err(e) => away(&registry.to_string(), &e),
            }];
        }
    };
    let which = registry.to_string();
    vec![match run {
        Ok(run) => judge::migrations(&which, run, newest),
        Err(e) => away(&which, &e),
    }]
}

fn away(which: &str, why: &dyn std::fmt::Display) -> CheckResult {
    CheckResult::fail("registry", format!("{which}: {why:#}"))
        .advise("the daemon goes on with the topics that it knows, and nobody can change them")
}

fn of_sqlite(path: &Path) -> Result<Option<i64>> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    db.busy_timeout(PATIENCE)?;
    let known = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'dq_schema_history'";
    if db.query_row(known, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(None);
    }
    Ok(db.query_row(NEWEST, [], |row| row.get(0))?)
}

fn of_mysql(url: &str) -> Result<Option<i64>> {
    let opts = Opts::from_url(url).map_err(|_| anyhow::anyhow!("its url cannot be understood"))?;
    let opts = OptsBuilder::from_opts(opts)
        .prefer_socket(false)
        .tcp_connect_timeout(Some(PATIENCE))
        .read_timeout(Some(PATIENCE))
        .write_timeout(Some(PATIENCE));
    let mut connection = Conn::new(opts).context("it does not answer")?;
    let known = "SELECT COUNT(*) FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_name = 'dq_schema_history'";
    match connection.query_first::<i64, _>(known)? {
        Some(1..) => Ok(connection.query_first::<Option<i64>, _>(NEWEST)?.flatten()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_reads_the_migration_version_and_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("registry.db");
        std::fs::write(&path, "").unwrap();
        assert_eq!(of_sqlite(&path).unwrap(), None);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        drop(registry::open(&RegistrySettings::Sqlite { path: path.clone() }).unwrap());
        assert_eq!(of_sqlite(&path).unwrap(), Some(registry::newest_sqlite_migration()));
        std::fs::write(&path, "no database, and long enough to be seen as none by whoever reads its head")
            .unwrap();
        assert!(of_sqlite(&path).is_err());
    }
}

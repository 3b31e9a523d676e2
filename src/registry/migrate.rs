//! Runs migrations over a connection that has locked out all others. refinery keeps the history and says what is to be run; its own
//! drivers begin transactions of their own, and the one for MySQL passes over errors behind the first statement of a file.

use refinery_core::error::WrapMigrationError;
use refinery_core::traits::sync::{Migrate, Query, Transaction};
use refinery_core::{Migration, Runner};
use time::OffsetDateTime;

use super::{RegistryError, Result};

/// The table that holds the history.
const HISTORY: &str = "dq_schema_history";

/// A connection that nobody else migrates over meanwhile.
pub(super) trait Session {
    /// Runs all statements of a text, up to the first that fails.
    fn run(&mut self, sql: &str) -> Result<()>;

    /// Version, name and checksum of each migration that was run: columns 0, 1 and 3 of what the query gives.
    fn history(&mut self, query: &str) -> Result<Vec<(i64, String, String)>>;
}

/// Runs those that have not been run.
pub(super) fn migrate(session: impl Session, migrations: &[Migration]) -> Result<()> {
    // The release before this one may come after it: a migration that it does not know is no error.
    let mut runner = Runner::new(migrations).set_abort_missing(false);
    runner.set_migration_table_name(HISTORY);
    let migrated = runner.run(&mut Migrating(session));
    migrated.map(drop).map_err(|e| RegistryError::Away(format!("cannot migrate the registry: {e}")))
}

struct Migrating<S>(S);

impl<S: Session> Transaction for Migrating<S> {
    type Error = RegistryError;

    fn execute<'a, T: Iterator<Item = &'a str>>(&mut self, queries: T) -> Result<usize> {
        let mut count = 0;
        for sql in queries {
            self.0.run(sql)?;
            count += 1;
        }
        Ok(count)
    }
}

impl<S: Session> Query<Vec<Migration>> for Migrating<S> {
    fn query(&mut self, query: &str) -> Result<Vec<Migration>> {
        let migration = |(version, name, checksum): (i64, String, String)| {
            let damaged = || RegistryError::Away(format!("{HISTORY} is damaged at version {version}"));
            let number = version.try_into().map_err(|_| damaged())?;
            let checksum = checksum.parse().map_err(|_| damaged())?;
            // When it was run is of no use here.
            Ok(Migration::applied(number, name, OffsetDateTime::UNIX_EPOCH, checksum))
        };
        self.0.history(query)?.into_iter().map(migration).collect()
    }
}

impl<S: Session> Migrate for Migrating<S> {
    /// To make a table that is there already needs a right as well, which a daemon does not have everywhere.
    fn assert_migrations_table(&mut self, table: &str) -> std::result::Result<usize, refinery_core::Error> {
        if self.0.history(&Self::get_applied_migrations_query(table)).is_ok() {
            return Ok(0);
        }
        let create = Self::assert_migrations_table_query(table);
        self.execute([create.as_str()].into_iter()).migration_err("cannot make its history", None)
    }
}

//! Runs migrations on a connection that keeps all other processes from migrating. The crate refinery keeps the history
//! of the migrations, and decides which migrations to run. Its own drivers are not used: they begin transactions of
//! their own, and the driver for MySQL ignores errors after the first statement of a file.

use refinery_core::error::WrapMigrationError;
use refinery_core::traits::sync::{Migrate, Query, Transaction};
use refinery_core::{Migration, Runner};
use time::OffsetDateTime;

use super::{RegistryError, Result};

/// The table that holds the history.
const HISTORY: &str = "dq_schema_history";

/// A connection that keeps all other processes from migrating at the same time.
pub(super) trait MigrationSession {
    /// Runs all statements of a text, up to the first that fails.
    fn run(&mut self, sql: &str) -> Result<()>;

    /// Returns version, name and checksum of each migration that was run: columns 0, 1 and 3 of the result of `query`.
    fn history(&mut self, query: &str) -> Result<Vec<(i64, String, String)>>;
}

/// Runs the migrations that were not run yet.
pub(super) fn migrate(session: impl MigrationSession, migrations: &[Migration]) -> Result<()> {
    // An older release may run after a newer release. So it is not an error if the table has a migration that this
    // release does not know.
    let mut runner = Runner::new(migrations).set_abort_missing(false);
    runner.set_migration_table_name(HISTORY);
    let migrated = runner.run(&mut Migrating(session));
    migrated.map(drop).map_err(|e| RegistryError::Away(format!("cannot migrate the registry: {e}")))
}

/// Returns the number of the newest migration of a folder.
pub(super) fn newest<F: rust_embed::Embed>() -> i64 {
    store::migrations::<F>().last().map_or(0, |newest| i64::from(newest.version()))
}

struct Migrating<S>(S);

impl<S: MigrationSession> Transaction for Migrating<S> {
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

impl<S: MigrationSession> Query<Vec<Migration>> for Migrating<S> {
    fn query(&mut self, query: &str) -> Result<Vec<Migration>> {
        let migration = |(version, name, checksum): (i64, String, String)| {
            let damaged = || RegistryError::Away(format!("{HISTORY} is damaged at version {version}"));
            let number = version.try_into().map_err(|_| damaged())?;
            let checksum = checksum.parse().map_err(|_| damaged())?;
            // The time when the migration was run is not needed here.
            Ok(Migration::applied(number, name, OffsetDateTime::UNIX_EPOCH, checksum))
        };
        self.0.history(query)?.into_iter().map(migration).collect()
    }
}

impl<S: MigrationSession> Migrate for Migrating<S> {
    /// Makes the table only if it is missing. The statement needs the right to create tables even if the table exists,
    /// and not every daemon has that right.
    fn assert_migrations_table(&mut self, table: &str) -> std::result::Result<usize, refinery_core::Error> {
        if self.0.history(&Self::get_applied_migrations_query(table)).is_ok() {
            return Ok(0);
        }
        let create = Self::assert_migrations_table_query(table);
        self.execute([create.as_str()].into_iter()).migration_err("cannot make the history table", None)
    }
}

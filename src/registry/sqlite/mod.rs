//! The registry in a SQLite file of its own, for a single host. The file is small and seldom written. So it has no
//! write-ahead log, and its writers do not use a turn.

mod audit;
mod bulk;
mod statistics;

use std::fmt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use super::migrate::{MigrationSession, migrate, newest};
use super::record;
use super::token::{self, TokenRow};
use super::{
    BulkClaim, BulkSave, Expected, InvalidRow, Listing, Registered, Registry, RegistryError, Result, Revision,
};
use model::audit::AuditEntry;
use model::bulk::{BulkRequest, StoredBulkOperation};
use model::job::TopicName;
use model::metrics::{PageSums, Statistics};
use model::token::{Token, TokenName};
use model::topic::{Topic, TopicStatus};

/// The migrations of the file.
#[derive(rust_embed::Embed)]
#[folder = "../../migrations/registry/sqlite"]
struct SqliteMigrations;

/// Returns the number of the newest migration.
pub fn newest_migration() -> i64 {
    newest::<SqliteMigrations>()
}

/// How long to wait for another writer.
const BUSY: Duration = Duration::from_secs(5);

/// A handle to the file.
pub struct SqliteRegistry {
    db: Connection,
    path: PathBuf,
    /// Device and inode of the file when it was opened.
    file: (u64, u64),
}

impl fmt::Debug for SqliteRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteRegistry").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SqliteRegistry {
    /// Opens the file, makes it if it is not there, and brings it up to date.
    pub fn open(path: &Path) -> Result<SqliteRegistry> {
        let at = |e: &dyn fmt::Display| RegistryError::Away(format!("cannot open {}: {e}", path.display()));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| at(&e))?;
        }
        // The file holds secrets, so it is made with mode 600. dq opens the file without SQLite only here. If a process
        // closes a file, the process loses all its locks on this file, also the locks of SQLite. No lock is lost here,
        // because no process can have locks on a new file.
        match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(at(&e)),
            _ => {}
        }
        let connect = || -> rusqlite::Result<Connection> {
            let db = Connection::open(path)?;
            db.busy_timeout(BUSY)?;
            db.pragma_update(None, "synchronous", "full")?;
            Ok(db)
        };
        let mut db = connect().map_err(|e| at(&e))?;
        // Another process that migrates waits here, and then finds nothing to do.
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|e| at(&e))?;
        migrate(WriteTransaction(&tx), &store::migrations::<SqliteMigrations>()).map_err(|e| at(&e))?;
        tx.commit().map_err(|e| at(&e))?;
        let file = file_at(path).map_err(|e| at(&e))?;
        Ok(SqliteRegistry { db, path: path.to_owned(), file })
    }

    /// Checks that the file at the path is still the file that was opened. Changes to a file that was removed would be
    /// lost.
    fn check_file(&self) -> Result<()> {
        match file_at(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            Ok(_) => Err(RegistryError::Away(format!("{} was replaced", self.path.display()))),
            Err(e) => Err(RegistryError::Away(format!("{}: {e}", self.path.display()))),
        }
    }

    fn failed(&self, e: rusqlite::Error) -> RegistryError {
        RegistryError::Away(format!("{}: {e}", self.path.display()))
    }

    /// Runs `work` in one transaction, while no other process writes.
    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.check_file()?;
        let shown = self.path.display().to_string();
        let tx = self
            .db
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|e| RegistryError::Away(format!("{shown}: {e}")))?;
        let out = work(&tx)?;
        tx.commit().map_err(|e| RegistryError::Away(format!("{shown}: {e}")))?;
        Ok(out)
    }
}

fn file_at(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

impl From<rusqlite::Error> for RegistryError {
    fn from(e: rusqlite::Error) -> RegistryError {
        RegistryError::Away(e.to_string())
    }
}

/// A row of the table `topic`.
struct TopicRow {
    name: String,
    spec: String,
    revision: i64,
}

impl TopicRow {
    fn from_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<TopicRow> {
        Ok(TopicRow { name: row.get(0)?, spec: row.get(1)?, revision: row.get(2)? })
    }

    fn revision(&self) -> Revision {
        Revision(self.revision as u64)
    }

    fn into_registered(self) -> std::result::Result<Registered, InvalidRow> {
        let TopicRow { name, spec, revision } = self;
        let unusable = |why: String| InvalidRow { which: format!("topic {name:?}"), why };
        let checked = TopicName::new(&name).map_err(|e| unusable(e.to_string()))?;
        let record = serde_json::from_str(&spec).map_err(|e| unusable(format!("spec: {e}")))?;
        let topic = record::topic(checked, &record).map_err(|e| unusable(e.to_string()))?;
        Ok(Registered { topic, revision: Revision(revision as u64) })
    }
}

fn row(db: &Connection, name: &TopicName) -> rusqlite::Result<Option<TopicRow>> {
    let query = "SELECT name, spec, revision FROM topic WHERE name = ?1";
    db.prepare_cached(query)?.query_row([name.as_str()], TopicRow::from_row).optional()
}

fn revision_of(db: &Connection, name: &TopicName) -> Result<Revision> {
    match row(db, name)? {
        Some(row) => Ok(Revision(row.revision as u64)),
        None => Err(RegistryError::NotFound(name.clone())),
    }
}

fn revision(db: &Connection) -> rusqlite::Result<Revision> {
    let n: i64 = db.prepare_cached("SELECT n FROM revision")?.query_row([], |row| row.get(0))?;
    Ok(Revision(n as u64))
}

fn tokens(db: &Connection) -> rusqlite::Result<Vec<TokenRow>> {
    db.prepare("SELECT name, digest, scopes, created_ms, expires_ms, creator FROM token ORDER BY name")?
        .query_map([], |row| {
            Ok(TokenRow {
                name: row.get(0)?,
                digest: row.get(1)?,
                scopes: row.get(2)?,
                created_ms: row.get(3)?,
                expires_ms: row.get(4)?,
                creator: row.get(5)?,
            })
        })?
        .collect()
}

/// Writes a token. `insert` decides what happens if a token with the same name exists. Returns how many rows were
/// written.
fn insert_token(db: &Connection, insert: &str, token: &Token) -> rusqlite::Result<usize> {
    let TokenRow { name, digest, scopes, created_ms, expires_ms, creator } = TokenRow::new(token);
    let write = format!(
        "{insert} INTO token (name, digest, scopes, created_ms, expires_ms, creator) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
    );
    db.execute(&write, (name, digest, scopes, created_ms, expires_ms, creator))
}

impl Registry for SqliteRegistry {
    fn revision(&mut self) -> Result<Revision> {
        self.check_file()?;
        revision(&self.db).map_err(|e| self.failed(e))
    }

    fn list(&mut self) -> Result<Listing> {
        self.check_file()?;
        let shown = self.path.display().to_string();
        let mut read = || -> rusqlite::Result<(Revision, Vec<TopicRow>, Vec<TokenRow>)> {
            // One transaction reads everything, so that all rows belong to the same revision.
            let tx = self.db.transaction()?;
            let rows = tx
                .prepare("SELECT name, spec, revision FROM topic ORDER BY name")?
                .query_map([], TopicRow::from_row)?
                .collect::<rusqlite::Result<_>>()?;
            Ok((revision(&tx)?, rows, tokens(&tx)?))
        };
        let (revision, rows, tokens) = read().map_err(|e| RegistryError::Away(format!("{shown}: {e}")))?;
        let (tokens, unusable) = token::sorted(tokens);
        let mut listing = Listing { revision, topics: Vec::new(), tokens, unusable };
        for row in rows {
            match row.into_registered() {
                Ok(registered) => {
                    listing.unusable.extend(registered.left_out());
                    listing.topics.push(registered);
                }
                Err(unusable) => listing.unusable.push(unusable),
            }
        }
        Ok(listing)
    }

    fn get(&mut self, name: &TopicName) -> Result<Option<Registered>> {
        self.check_file()?;
        let found = row(&self.db, name).map_err(|e| self.failed(e))?;
        found.map(TopicRow::into_registered).transpose().map_err(RegistryError::Unusable)
    }

    fn put(&mut self, topic: &Topic, expected: Expected) -> Result<Revision> {
        topic.check()?;
        self.write(|tx| {
            let before = row(tx, &topic.name)?;
            expected.check(&topic.name, before.as_ref().map(TopicRow::revision))?;
            let spec = record::stored_over(topic, before.as_ref().map(|row| row.spec.as_str()), &[]);
            let write = "INSERT INTO topic (name, spec) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET spec = ?2";
            tx.execute(write, (topic.name.as_str(), spec))?;
            revision_of(tx, &topic.name)
        })
    }

    fn set_status(&mut self, name: &TopicName, status: TopicStatus) -> Result<Revision> {
        let status = match status {
            TopicStatus::Online => "online",
            TopicStatus::Offline => "offline",
        };
        self.write(|tx| {
            let write = "UPDATE topic SET spec = json_set(spec, '$.status', ?2) WHERE name = ?1";
            tx.execute(write, (name.as_str(), status))?;
            revision_of(tx, name)
        })
    }

    fn carry(&mut self, day: &str, pages: &[PageSums]) -> Result<usize> {
        self.write(|tx| Ok(statistics::carry(tx, day, pages)?))
    }

    fn statistics(&mut self, since: &str) -> Result<Statistics> {
        self.check_file()?;
        statistics::read(&self.db, since).map_err(|e| self.failed(e))
    }

    fn delete(&mut self, name: &TopicName, expected: Expected) -> Result<()> {
        self.write(|tx| {
            let found = row(tx, name)?;
            expected.check(name, found.as_ref().map(TopicRow::revision))?;
            match tx.execute("DELETE FROM topic WHERE name = ?1", [name.as_str()])? {
                0 => Err(RegistryError::NotFound(name.clone())),
                _ => Ok(()),
            }
        })
    }

    fn put_token(&mut self, token: &Token) -> Result<()> {
        self.write(|tx| match insert_token(tx, "INSERT OR IGNORE", token)? {
            0 => Err(RegistryError::TokenExists(token.name.clone())),
            _ => Ok(()),
        })
    }

    fn put_account(&mut self, account: &Token) -> Result<()> {
        self.write(|tx| Ok(insert_token(tx, "INSERT OR REPLACE", account).map(drop)?))
    }

    fn end_sessions(&mut self, account: &TokenName) -> Result<()> {
        let end = "UPDATE token SET created_ms = created_ms + 1 WHERE name = ?1";
        self.write(|tx| match tx.execute(end, [account.stored()])? {
            0 => Err(RegistryError::NoToken(account.clone())),
            _ => Ok(()),
        })
    }

    fn note(&mut self, entry: &AuditEntry) -> Result<()> {
        self.write(|tx| Ok(audit::note(tx, entry)?))
    }

    fn audit(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<(u64, AuditEntry)>> {
        self.check_file()?;
        audit::read(&self.db, before, limit).map_err(|e| self.failed(e))
    }

    fn begin_bulk(&mut self, request: &BulkRequest, who: &str, now_ms: i64) -> Result<Option<u64>> {
        self.write(|tx| bulk::begin(tx, request, who, now_ms))
    }

    fn bulks(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<StoredBulkOperation>> {
        self.check_file()?;
        bulk::read(&self.db, before, limit).map_err(|e| self.failed(e))
    }

    fn claim_bulk(&mut self, claim: &BulkClaim<'_>) -> Result<Option<StoredBulkOperation>> {
        self.check_file()?;
        let free = bulk::free(&self.db, claim.now_ms).map_err(|e| self.failed(e))?;
        for row in free {
            if let Some(claimed) = self.write(|tx| Ok(bulk::claim(tx, row.number, claim)?))? {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }

    fn save_bulk(&mut self, save: &BulkSave<'_>) -> Result<Option<bool>> {
        self.write(|tx| bulk::save(tx, save))
    }

    fn stop_bulk(&mut self, number: u64) -> Result<bool> {
        self.write(|tx| Ok(bulk::stop(tx, number)?))
    }

    fn delete_token(&mut self, name: &TokenName) -> Result<()> {
        self.write(|tx| match tx.execute("DELETE FROM token WHERE name = ?1", [name.stored()])? {
            0 => Err(RegistryError::NoToken(name.clone())),
            _ => Ok(()),
        })
    }
}

/// A transaction that has the right to write from its beginning.
struct WriteTransaction<'a>(&'a Transaction<'a>);

impl MigrationSession for WriteTransaction<'_> {
    fn run(&mut self, sql: &str) -> Result<()> {
        Ok(self.0.execute_batch(sql)?)
    }

    fn history(&mut self, query: &str) -> Result<Vec<(i64, String, String)>> {
        let mut statement = self.0.prepare(query)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(3)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

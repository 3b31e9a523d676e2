//! The registry in MySQL or MariaDB, in the tables of the PHP daemon. The console of the PHP daemon also reads and
//! writes these tables. Fields that the PHP daemon does not have are stored as JSON in the column `dq_spec`. This
//! column is null in rows that the PHP console made.
//!
//! The PHP console does not know revisions. So dq computes the revision of a topic from the contents of its row. dq's
//! own writers take turns with a named lock.

mod audit;
mod bulk;
mod latin1;
mod reading;
mod row;
mod statistics;
mod token;

use std::fmt;
use std::time::Duration;

use ::mysql::consts::CapabilityFlags;
use ::mysql::prelude::Queryable;
use ::mysql::{Conn, Opts, OptsBuilder};

use self::row::{FINGERPRINT, PhpTopicRow, Values};
use super::migrate::{MigrationSession, migrate, newest};
use super::{
    BulkClaim, BulkSave, Expected, InvalidRow, Listing, PhpAlert, Registered, Registry, RegistryError,
    Result, Revision,
};
use crate::token::sorted;
use model::audit::AuditEntry;
use model::bulk::{BulkRequest, StoredBulkOperation};
use model::excerpt::Excerpt;
use model::job::TopicName;
use model::metrics::{PageSums, Statistics};
use model::php_node::PhpNode;
use model::settings;
use model::token::{Token, TokenName};
use model::topic::{Topic, TopicStatus};

/// The migrations of the database.
#[derive(rust_embed::Embed)]
#[folder = "../../migrations/registry/mysql"]
struct MysqlMigrations;

/// Returns the number of the newest migration.
pub fn newest_migration() -> i64 {
    newest::<MysqlMigrations>()
}

/// How long the server may take to accept a connection, and to answer.
const CONNECT: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(10);

/// How long to wait for another dq that writes or migrates, in seconds. This time must be less than `ANSWER`.
const TURN: u32 = 8;

/// The name of the lock with which writers take turns. Each database of a server has its own lock.
const LOCK: &str = "CONCAT('dq_', MD5(DATABASE()))";

/// A handle to the database: one connection.
pub struct MysqlRegistry {
    db: Conn,
    name: String,
    /// The limit of attempts for rows that set no limit.
    max_attempts: u32,
}

impl fmt::Debug for MysqlRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlRegistry").field("name", &self.name).finish_non_exhaustive()
    }
}

impl MysqlRegistry {
    /// Connects, and brings the tables up to date.
    pub fn open(server: &settings::MysqlServer) -> Result<MysqlRegistry> {
        let mut registry = MysqlRegistry::connect(server)?;
        registry.in_turn(|db| migrate(NamedLockConnection(db), &store::migrations::<MysqlMigrations>()))?;
        Ok(registry)
    }

    /// Connects, and leaves the tables as they are.
    pub(super) fn connect(server: &settings::MysqlServer) -> Result<MysqlRegistry> {
        let away = |e: &dyn fmt::Display| RegistryError::Away(format!("{}: {e}", server.name));
        let opts = Opts::from_url(&server.url).map_err(|e| away(&e))?;
        let opts = OptsBuilder::from_opts(opts)
            .tcp_connect_timeout(Some(CONNECT))
            .read_timeout(Some(ANSWER))
            .write_timeout(Some(ANSWER))
            // A socket is used only if the URL names it.
            .prefer_socket(false)
            // The server reports rows that an update has found, even if it changed nothing in them.
            .additional_capabilities(CapabilityFlags::CLIENT_FOUND_ROWS)
            // A value that does not fit is refused, and never cut.
            .init(vec!["SET SESSION sql_mode = 'STRICT_ALL_TABLES'"]);
        let db = Conn::new(opts).map_err(|e| away(&e))?;
        let max_attempts = server.max_attempts.unwrap_or(row::PHP_ATTEMPTS);
        Ok(MysqlRegistry { db, name: server.name.clone(), max_attempts })
    }

    /// Takes the lock of the writers, and runs `work` while no other dq has this lock. (The audit log and running
    /// operations are written without it.) If the connection breaks, the server frees the lock.
    fn in_turn<T>(&mut self, work: impl FnOnce(&mut Conn) -> Result<T>) -> Result<T> {
        let taken: Option<Option<i64>> =
            self.db.query_first(format!("SELECT GET_LOCK({LOCK}, {TURN})")).map_err(|e| self.failed(e))?;
        if taken.flatten() != Some(1) {
            let problem = format!("{}: another dq has been writing for more than {TURN} s", self.name);
            return Err(RegistryError::Away(problem));
        }
        let out = work(&mut self.db);
        let released = self.db.query_drop(format!("DO RELEASE_LOCK({LOCK})"));
        let out = out?;
        // A failed release is not an error: the work is done, and the server frees the lock when the connection breaks.
        drop(released);
        Ok(out)
    }

    fn failed(&self, e: ::mysql::Error) -> RegistryError {
        RegistryError::Away(format!("{}: {}", self.name, sentence(&e)))
    }
}

impl From<::mysql::Error> for RegistryError {
    fn from(e: ::mysql::Error) -> RegistryError {
        RegistryError::Away(sentence(&e))
    }
}

/// Returns what an error says, without the name of its type.
fn sentence(error: &::mysql::Error) -> String {
    match error {
        ::mysql::Error::MySqlError(e) => Excerpt(e).to_string(),
        ::mysql::Error::DriverError(e) => Excerpt(e).to_string(),
        ::mysql::Error::IoError(e) => Excerpt(e).to_string(),
        other => Excerpt(other).to_string(),
    }
}

/// Converts the error of a change. If the server refused the change, nothing was changed. With any other error, the
/// outcome is unknown.
fn at_change(e: ::mysql::Error) -> RegistryError {
    match e {
        ::mysql::Error::MySqlError(e) => RegistryError::Away(Excerpt(e).to_string()),
        other => RegistryError::Unknown(sentence(&other)),
    }
}

/// Returns the rows with that name. Only the first row counts. (The comparison is binary. The comparison of the PHP
/// console ignores case and spaces.)
fn rows_of(db: &mut Conn, name: &TopicName) -> Result<Vec<PhpTopicRow>> {
    Ok(db.exec_map(
        row::select("WHERE CAST(topic AS BINARY) = ?"),
        (name.as_str(),),
        PhpTopicRow::from_row,
    )?)
}

fn revision_of(db: &mut Conn, name: &TopicName) -> Result<Revision> {
    let rows = rows_of(db, name).map_err(|e| RegistryError::Unknown(e.to_string()))?;
    rows.first().map(|row| row.revision).ok_or_else(|| RegistryError::NotFound(name.clone()))
}

/// Changes a row if it still has the expected revision. The check is needed because the PHP console does not take
/// turns.
fn change(db: &mut Conn, name: &TopicName, sql: &str, mut values: Values, expected: Expected) -> Result<()> {
    let sql = match expected {
        Expected::At(revision) => {
            values.push(revision.0.into());
            format!("{sql} AND {FINGERPRINT} = ?")
        }
        _ => sql.to_owned(),
    };
    db.exec_drop(sql, values).map_err(at_change)?;
    match db.affected_rows() {
        0 => Err(RegistryError::Changed(name.clone())),
        _ => Ok(()),
    }
}

impl Registry for MysqlRegistry {
    fn revision(&mut self) -> Result<Revision> {
        let topics = format!("(SELECT COALESCE(BIT_XOR({FINGERPRINT}), 0) FROM dq_topic)");
        let query = format!("SELECT {topics} ^ {}", token::of_all());
        let revision: Option<u64> = self.db.query_first(query).map_err(|e| self.failed(e))?;
        Ok(Revision(revision.unwrap_or(0)))
    }

    fn list(&mut self) -> Result<Listing> {
        let rows = self.db.query_map(row::select(""), PhpTopicRow::from_row).map_err(|e| self.failed(e))?;
        let (of_tokens, tokens) = token::rows(&mut self.db).map_err(|e| self.failed(e))?;
        let (tokens, unusable) = sorted(tokens);
        let mut listing = Listing {
            revision: Revision(rows.iter().fold(of_tokens, |all, row: &PhpTopicRow| all ^ row.revision.0)),
            topics: Vec::new(),
            tokens,
            unusable,
        };
        let mut seen = std::collections::HashMap::new();
        for row in rows {
            let (id, name) = (row.id, row.topic.clone());
            if let Some(first) = seen.get(&name) {
                let which = format!("dq_topic row {id}, topic {name:?}");
                listing
                    .unusable
                    .push(InvalidRow { which, why: format!("row {first} has that name already") });
                continue;
            }
            seen.insert(name, id);
            match row.into_registered(self.max_attempts) {
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
        let rows = rows_of(&mut self.db, name)?;
        let registered = rows.into_iter().next().map(|row| row.into_registered(self.max_attempts));
        registered.transpose().map_err(RegistryError::Unusable)
    }

    fn put(&mut self, topic: &Topic, expected: Expected) -> Result<Revision> {
        topic.check()?;
        let max_attempts = self.max_attempts;
        self.in_turn(|db| {
            let rows = rows_of(db, &topic.name)?;
            expected.check(&topic.name, rows.first().map(|row| row.revision))?;
            let values = row::values(topic, rows.first(), max_attempts)?;
            match rows.first() {
                None => db.exec_drop(row::INSERT, values).map_err(at_change)?,
                Some(before) => {
                    let mut values = values;
                    values.push(before.id.into());
                    change(db, &topic.name, row::UPDATE, values, expected)?;
                }
            }
            revision_of(db, &topic.name)
        })
    }

    fn set_status(&mut self, name: &TopicName, status: TopicStatus) -> Result<Revision> {
        self.in_turn(|db| {
            let Some(before) = rows_of(db, name)?.into_iter().next() else {
                return Err(RegistryError::NotFound(name.clone()));
            };
            let values = vec![row::status_number(status).into(), before.id.into()];
            change(db, name, "UPDATE dq_topic SET status = ? WHERE id = ?", values, Expected::Any)?;
            revision_of(db, name)
        })
    }

    /// Also deletes other rows with that name, because the first of these rows would become the topic.
    fn delete(&mut self, name: &TopicName, expected: Expected) -> Result<()> {
        self.in_turn(|db| {
            let rows = rows_of(db, name)?;
            expected.check(name, rows.first().map(|row| row.revision))?;
            let Some(first) = rows.first() else { return Err(RegistryError::NotFound(name.clone())) };
            let delete = "DELETE FROM dq_topic WHERE id = ?";
            change(db, name, delete, vec![first.id.into()], expected)?;
            // One row is gone already, so an error does not mean that nothing was changed.
            db.exec_drop("DELETE FROM dq_topic WHERE CAST(topic AS BINARY) = ?", (name.as_str(),))
                .map_err(|e| RegistryError::Unknown(sentence(&e)))
        })
    }

    fn put_token(&mut self, token: &Token) -> Result<()> {
        self.in_turn(|db| token::put(db, token))
    }

    fn put_account(&mut self, account: &Token) -> Result<()> {
        self.in_turn(|db| token::put_account(db, account))
    }

    fn end_sessions(&mut self, account: &TokenName) -> Result<()> {
        self.in_turn(|db| token::end_sessions(db, account))
    }

    fn note(&mut self, entry: &AuditEntry) -> Result<()> {
        audit::note(&mut self.db, entry)
    }

    fn audit(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<(u64, AuditEntry)>> {
        audit::read(&mut self.db, before, limit).map_err(|e| self.failed(e))
    }

    fn begin_bulk(&mut self, request: &BulkRequest, who: &str, now_ms: i64) -> Result<Option<u64>> {
        self.in_turn(|db| bulk::begin(db, request, who, now_ms))
    }

    fn bulks(&mut self, before: Option<u64>, limit: usize) -> Result<Vec<StoredBulkOperation>> {
        bulk::read(&mut self.db, before, limit).map_err(|e| self.failed(e))
    }

    fn claim_bulk(&mut self, claim: &BulkClaim<'_>) -> Result<Option<StoredBulkOperation>> {
        bulk::claim(&mut self.db, claim)
    }

    fn save_bulk(&mut self, save: &BulkSave<'_>) -> Result<Option<bool>> {
        bulk::save(&mut self.db, save)
    }

    fn stop_bulk(&mut self, number: u64) -> Result<bool> {
        bulk::stop(&mut self.db, number)
    }

    fn delete_token(&mut self, name: &TokenName) -> Result<()> {
        self.in_turn(|db| token::delete(db, name))
    }

    fn carry(&mut self, day: &str, pages: &[PageSums]) -> Result<usize> {
        self.carry_pages(day, pages)
    }

    fn statistics(&mut self, since: &str) -> Result<Statistics> {
        self.read_statistics(since)
    }

    fn php_nodes(&mut self) -> Result<Vec<PhpNode>> {
        let query = "SELECT id, t_name, t_content FROM dq_redis ORDER BY id";
        let node = |mut row: ::mysql::Row| PhpNode {
            id: row::get(&mut row, 0),
            name: row::get_text(&mut row, 1),
            content: row::get(&mut row, 2),
        };
        self.db.query_map(query, node).map_err(|e| self.failed(e))
    }

    fn php_alert(&mut self) -> Result<Option<PhpAlert>> {
        let query = "SELECT host, port, user, pwd, ext FROM dq_alert ORDER BY id LIMIT 1";
        let alert = |mut row: ::mysql::Row| PhpAlert {
            host: row::get(&mut row, 0),
            port: row::get(&mut row, 1),
            user: row::get_text(&mut row, 2),
            password: row::get(&mut row, 3),
            ext: row::get_text(&mut row, 4),
        };
        let rows = self.db.query_map(query, alert).map_err(|e| self.failed(e))?;
        Ok(rows.into_iter().next())
    }
}

/// A connection that holds the named lock.
struct NamedLockConnection<'a>(&'a mut Conn);

impl MigrationSession for NamedLockConnection<'_> {
    fn run(&mut self, sql: &str) -> Result<()> {
        let mut all = self.0.query_iter(sql)?;
        // `query_iter` reports only the error of the first statement. The error of a later statement is reported when
        // the results of that statement are read.
        while let Some(results) = all.iter() {
            for row in results {
                row?;
            }
        }
        Ok(())
    }

    fn history(&mut self, query: &str) -> Result<Vec<(i64, String, String)>> {
        let columns = |(version, name, _, checksum): (i64, String, String, String)| (version, name, checksum);
        Ok(self.0.query_map(query, columns)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_server_is_a_sentence() {
        let (state, message) = ("28000".to_owned(), "Access denied for user 'dq'@'shop'".to_owned());
        let e = ::mysql::Error::MySqlError(::mysql::error::MySqlError { state, message, code: 1045 });
        assert_eq!(sentence(&e), "ERROR 1045 (28000): Access denied for user 'dq'@'shop'");
        let e = ::mysql::Error::IoError(std::io::Error::other("connection reset"));
        assert_eq!(sentence(&e), "connection reset");
    }
}

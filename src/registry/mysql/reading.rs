//! Reads the tables as they are. This needs only the right to read. The tables may be those of a PHP daemon, so perhaps
//! dq never brought them up to date.

use ::mysql::prelude::Queryable;

use super::MysqlRegistry;
use super::row::{self, PhpTopicRow};
use crate::{InvalidRow, Registry as _, Result, UnmigratedTables};

/// The columns of `dq_topic` that a PHP daemon may not have, and the values to use instead.
const LATER: [(&str, &str); 2] = [("priority", "2"), ("dq_spec", "NULL")];

impl MysqlRegistry {
    /// Returns the topics and the nodes. A missing table counts as empty.
    pub(crate) fn read_as_it_is(&mut self) -> Result<UnmigratedTables> {
        // After this statement the server refuses changes. An old server may not know the statement. In this case, dq
        // reads without this protection.
        let _ = self.db.query_drop("SET SESSION TRANSACTION READ ONLY");
        let mut reading = UnmigratedTables::default();
        let columns = self.columns("dq_topic")?;
        if !columns.is_empty() {
            let is_missing =
                |(name, _): &&(&str, &str)| !columns.iter().any(|c| c.eq_ignore_ascii_case(name));
            let missing: String =
                LATER.iter().filter(is_missing).map(|(name, value)| format!(", {value} AS {name}")).collect();
            let table = format!("(SELECT *{missing} FROM dq_topic) AS dq_topic");
            let rows = self
                .db
                .query_map(row::select_from(&table, ""), PhpTopicRow::from_row)
                .map_err(|e| self.failed(e))?;
            for row in rows {
                if !reading.names.insert(row.topic.clone()) {
                    let which = format!("dq_topic row {}, topic {:?}", row.id, row.topic);
                    let why =
                        "a row with a lower number has that name (the PHP daemon uses the last of them)";
                    reading.unusable.push(InvalidRow { which, why: why.to_owned() });
                    continue;
                }
                match row.into_registered(self.max_attempts) {
                    Ok(registered) => reading.topics.push(registered),
                    Err(unusable) => reading.unusable.push(unusable),
                }
            }
        }
        if !self.columns("dq_redis")?.is_empty() {
            reading.nodes = self.php_nodes()?;
        }
        Ok(reading)
    }

    /// Returns the columns of a table. Empty: there is no such table.
    fn columns(&mut self, table: &str) -> Result<Vec<String>> {
        let query = "SELECT column_name FROM information_schema.columns \
                     WHERE table_schema = DATABASE() AND table_name = ?";
        self.db.exec(query, (table,)).map_err(|e| self.failed(e))
    }
}

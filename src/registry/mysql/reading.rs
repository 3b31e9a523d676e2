//! Reads the tables as they are: also those of a PHP daemon that dq never brought up to date, with no right but to read.

use ::mysql::prelude::Queryable;

use super::MysqlRegistry;
use super::row::{self, Row};
use crate::registry::{Reading, Registry as _, Result};

/// The columns of `dq_topic` that a PHP daemon may not have, and what stands in their place.
const LATER: [(&str, &str); 2] = [("priority", "2"), ("dq_spec", "NULL")];

impl MysqlRegistry {
    /// Topics and nodes. A table that is not there is empty.
    pub(in crate::registry) fn read_as_it_is(&mut self) -> Result<Reading> {
        // The server itself holds to it; one that is too old to know of it is only read all the same.
        let _ = self.db.query_drop("SET SESSION TRANSACTION READ ONLY");
        let mut reading = Reading::default();
        let columns = self.columns("dq_topic")?;
        if !columns.is_empty() {
            let is_missing =
                |(name, _): &&(&str, &str)| !columns.iter().any(|c| c.eq_ignore_ascii_case(name));
            let missing: String =
                LATER.iter().filter(is_missing).map(|(name, value)| format!(", {value} AS {name}")).collect();
            let table = format!("(SELECT *{missing} FROM dq_topic) AS dq_topic");
            let rows =
                self.db.query_map(row::select_from(&table, ""), Row::of).map_err(|e| self.failed(e))?;
            for row in rows {
                match row.into_registered() {
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

    /// The columns of a table; none: there is no such table.
    fn columns(&mut self, table: &str) -> Result<Vec<String>> {
        let query = "SELECT column_name FROM information_schema.columns \
                     WHERE table_schema = DATABASE() AND table_name = ?";
        self.db.exec(query, (table,)).map_err(|e| self.failed(e))
    }
}

//! The statistics in MySQL: dq's own statistics, and the statistics of the PHP daemon in `dq_stat`, which the PHP
//! console shows. New counts are added in pieces. Each piece is one transaction. So a piece is added once or not at
//! all.

use std::collections::{BTreeMap, HashMap};

use ::mysql::prelude::Queryable;
use ::mysql::{Conn, Params, Transaction, TxOpts, Value};

use super::{MysqlRegistry, at_change};
use crate::{RegistryError, Result};
use model::metrics::{MetricSubject, PageSums, Statistics, Sums};

/// How many topics and nodes are written in one transaction. Other writers wait for this transaction.
const PIECE: usize = 250;

const COLUMNS: &str = "written, delivered, failed, deleted, dead, late_us, attempts";

/// Returns the placeholders for this number of rows and columns: `(?, ?), (?, ?)`.
fn places(rows: usize, columns: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

/// Returns the assignments for a row that exists already. `each` gives the new value of a column.
fn on_duplicate(each: impl Fn(&str) -> String) -> String {
    COLUMNS.split(", ").map(|c| format!("{c} = {}", each(c))).collect::<Vec<_>>().join(", ")
}

fn sums(row: &mut ::mysql::Row, from: usize) -> Sums {
    Sums::new(std::array::from_fn(|i| row.take(from + i).unwrap_or(0)))
}

impl MysqlRegistry {
    pub(super) fn carry_pages(&mut self, day: &str, pages: &[PageSums]) -> Result<usize> {
        let mut changed = 0;
        for PageSums { page, sums } in pages {
            for piece in sums.chunks(PIECE) {
                changed += self.in_turn(|db| carry(db, day, *page, piece))?;
            }
        }
        Ok(changed)
    }

    pub(super) fn read_statistics(&mut self, since: &str) -> Result<Statistics> {
        let query = format!(
            "SELECT kind, name, day, {COLUMNS} FROM dq_statistics WHERE day = '' OR day >= ? ORDER BY day"
        );
        let rows: Vec<::mysql::Row> = self.db.exec(query, (since,)).map_err(|e| self.failed(e))?;
        let mut statistics = Statistics::default();
        for mut row in rows {
            let mut text = |column: usize| row.take::<String, _>(column).unwrap_or_default();
            let (kind, name, day) = (text(0), text(1), text(2));
            if let Some(subject) = MetricSubject::new(&kind, name) {
                statistics.take(subject, day, sums(&mut row, 3));
            }
        }
        Ok(statistics)
    }
}

/// Adds the new counts of these subjects. Returns how many subjects had new counts.
fn carry(db: &mut Conn, day: &str, page: u64, piece: &[(MetricSubject, Sums)]) -> Result<usize> {
    let mut tx = db.start_transaction(TxOpts::default())?;
    let mut names: Vec<Value> = vec![page.into()];
    for (subject, _) in piece {
        let (kind, name) = subject.parts();
        names.extend([kind.into(), name.into()]);
    }
    let query = format!(
        "SELECT kind, name, {COLUMNS} FROM dq_statistics_carried WHERE page = ? AND (kind, name) IN ({})",
        places(piece.len(), 2)
    );
    let mut carried: HashMap<MetricSubject, Sums> = HashMap::new();
    for mut row in tx.exec::<::mysql::Row, _, _>(query, Params::Positional(names))? {
        let mut text = |column: usize| row.take::<String, _>(column).unwrap_or_default();
        if let Some(subject) = MetricSubject::new(&text(0), text(1)) {
            carried.insert(subject, sums(&mut row, 2));
        }
    }
    let (mut news, mut standings) = (Vec::new(), Vec::new());
    for (subject, now) in piece {
        let before = carried.get(subject).copied().unwrap_or_default();
        let new = now.since(before);
        if new != Sums::default() {
            news.push((subject, new));
            standings.push((subject, now.max(before)));
        }
    }
    if news.is_empty() {
        return Ok(0);
    }
    let standing = |(subject, sums): &(&MetricSubject, Sums)| row(&[page.into()], subject, &[], *sums);
    let sql = format!(
        "INSERT INTO dq_statistics_carried (page, kind, name, {COLUMNS}) VALUES {} ON DUPLICATE KEY UPDATE {}",
        places(standings.len(), 3 + Sums::COUNT),
        on_duplicate(|column| format!("VALUES({column})"))
    );
    run(&mut tx, &sql, standings.iter().flat_map(standing).collect())?;
    let sql = format!(
        "INSERT INTO dq_statistics (kind, name, day, {COLUMNS}) VALUES {} ON DUPLICATE KEY UPDATE {}",
        places(news.len() * 2, 3 + Sums::COUNT),
        // A sum that is too large stays at its maximum. An error would stop the statistics for ever.
        on_duplicate(|c| format!("IF({c} > {MAX} - VALUES({c}), {MAX}, {c} + VALUES({c}))", MAX = i64::MAX))
    );
    let both = |(subject, sums): &(&MetricSubject, Sums)| {
        ["", day].into_iter().flat_map(|day| row(&[], subject, &[day.into()], *sums)).collect::<Vec<_>>()
    };
    run(&mut tx, &sql, news.iter().flat_map(both).collect())?;
    add_to_php(&mut tx, day, &news)?;
    tx.commit().map_err(at_change)?;
    Ok(news.len())
}

fn row(first: &[Value], subject: &MetricSubject, then: &[Value], sums: Sums) -> Vec<Value> {
    let (kind, name) = subject.parts();
    let numbers = sums.numbers().map(|n| Value::from(n.min(i64::MAX as u64)));
    [first, &[kind.into(), name.into()], then, &numbers].concat()
}

fn run(tx: &mut Transaction<'_>, sql: &str, values: Vec<Value>) -> Result<()> {
    tx.exec_drop(sql, Params::Positional(values)).map_err(RegistryError::from)
}

/// Adds the new counts to the numbers of the PHP daemon, for the topics and nodes that have an id in its tables.
fn add_to_php(tx: &mut Transaction<'_>, day: &str, news: &[(&MetricSubject, Sums)]) -> Result<()> {
    // If several rows have the same name, the row with the lowest id counts. (It is the last row here, and replaces the
    // others in the map.)
    let topics: Vec<(i64, String)> = tx.query("SELECT id, topic FROM dq_topic ORDER BY id DESC")?;
    let nodes: Vec<(i64, String)> = tx.query("SELECT id, t_name FROM dq_redis ORDER BY id DESC")?;
    let by_name = |rows: Vec<(i64, String)>| -> HashMap<String, i64> {
        rows.into_iter().map(|(id, name)| (name, id)).collect()
    };
    // With the setting `nodes_from_registry`, the name of a node is `r` and its id.
    let numbered = nodes.iter().map(|(id, _)| (*id, format!("r{id}")));
    let nodes = numbered.chain(nodes.iter().cloned()).collect();
    let (topics, nodes) = (by_name(topics), by_name(nodes));
    let day = day.replace('-', "");
    // The numbers are sorted by key, so that all writers lock the rows in the same order.
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    for (subject, sums) in news {
        let Sums { written, delivered, failed, deleted, .. } = *sums;
        match subject {
            MetricSubject::Topic(name) => {
                let Some(id) = topics.get(name) else { continue };
                for (key, n) in [
                    (format!("{id}:total_write"), written),
                    (format!("{id}:total_notfiy"), delivered),
                    (format!("{id}:total_del"), deleted),
                    (format!("{id}:tw:{day}"), written),
                    (format!("{id}:tn:{day}"), delivered),
                    (format!("{id}:te:{day}"), failed),
                    (format!("{id}:tdel:{day}"), deleted),
                ] {
                    numbers.insert(key, n);
                }
            }
            MetricSubject::Node(name) => {
                let Some(id) = nodes.get(name) else { continue };
                for (key, n) in [
                    (format!("redis:{id}:dq_write_total_nums"), written),
                    (format!("redis:{id}:dq_notify_total_nums"), delivered),
                    (format!("redis:{id}:dq_del_total_nums"), deleted),
                ] {
                    numbers.insert(key, n);
                }
            }
        }
    }
    numbers.retain(|_, n| *n > 0);
    if numbers.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO dq_stat (u_key, num, create_time) VALUES {} ON DUPLICATE KEY UPDATE num = num + VALUES(num)",
        vec!["(?, ?, CURRENT_TIMESTAMP)"; numbers.len()].join(", ")
    );
    run(tx, &sql, numbers.into_iter().flat_map(|(key, n)| [key.into(), n.into()]).collect())
}

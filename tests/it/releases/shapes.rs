//! The shapes of all stored data: tables and columns of databases, keys of Redis with the types and forms of their
//! values, and the files of a folder. A change of a format changes a shape.

use std::collections::BTreeSet;
use std::path::Path;

use mysql::prelude::Queryable;
use rusqlite::Connection;
use serde_json::Value;

use super::fixture::connection;
use super::life::{Life, TOPICS};
use crate::support::redis::RedisServer;

/// Files that exist only at some moments, and locks.
const OF_THE_MOMENT: [&str; 5] = ["-wal", "-shm", "-journal", "-gate", "-turn"];

/// The snapshot of the registry. The other files in `run` are temporary, and may be lost.
const KNOWN: &str = "run/registry/topics.json";

/// Wake-up calls in Redis: their keys come and go.
const BELLS: [&str; 3] = ["bell", "pbell", "leasable"];

/// Returns one line for each shape, in order.
pub fn of(life: &Life) -> String {
    let mut shapes = BTreeSet::new();
    let var = life.dir.path().join("var");
    for path in files(&var) {
        let name = general(path.strip_prefix(&var).unwrap().to_str().unwrap());
        if OF_THE_MOMENT.iter().any(|end| name.ends_with(end)) || (name.starts_with("run/") && name != KNOWN)
        {
            continue;
        }
        if path.extension().is_some_and(|e| e == "db") {
            shapes.extend(tables(&path).into_iter().map(|line| format!("{name}: {line}")));
        }
        if name == KNOWN {
            let text = std::fs::read_to_string(&path).unwrap();
            shapes.extend(form(text.as_bytes()).into_iter().map(|line| format!("{name}: {line}")));
        }
        shapes.insert(format!("file {name}"));
    }
    if let Some(server) = &life.servers.redis {
        shapes.extend(keys(server));
    }
    if let Some(database) = &life.servers.database {
        let mut db = database.console();
        let columns = "SELECT concat(table_name, '.', column_name, ' ', column_type) \
                       FROM information_schema.columns WHERE table_schema = database()";
        let columns: Vec<String> = db.query(columns).unwrap();
        shapes.extend(columns.into_iter().map(|line| format!("column {line}")));
    }
    shapes.into_iter().map(|line| line + "\n").collect()
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// The tables and indexes of a SQLite file.
fn tables(path: &Path) -> Vec<String> {
    let db = Connection::open(path).unwrap();
    let mut read = db.prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").unwrap();
    let all = read.query_map([], |row| row.get::<_, String>(0)).unwrap();
    // Comments are no part of a format.
    let plain = |sql: String| -> String {
        let lines = sql.lines().map(|line| line.split("--").next().unwrap());
        lines.collect::<Vec<_>>().join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    all.map(|sql| plain(sql.unwrap())).collect()
}

/// The keys of a Redis, and the forms of the values of strings and hashes. (Members of sets are ids and topics.)
fn keys(server: &RedisServer) -> BTreeSet<String> {
    let mut redis = connection(server);
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    let mut shapes = BTreeSet::new();
    for name in names {
        let key = String::from_utf8(name.clone()).unwrap();
        if BELLS.contains(&key.rsplit(':').next().unwrap()) {
            continue;
        }
        // A key of one topic ends with its name.
        let parts: Vec<&str> =
            key.split(':').map(|part| if TOPICS.contains(&part) { "<topic>" } else { part }).collect();
        let key = general(&parts.join(":"));
        let kind: String = redis::cmd("TYPE").arg(&name).query(&mut redis).unwrap();
        shapes.insert(format!("{kind} {key}"));
        let values: Vec<(Vec<u8>, Vec<u8>)> = match kind.as_str() {
            "string" => vec![(Vec::new(), redis::cmd("GET").arg(&name).query(&mut redis).unwrap())],
            "hash" => redis::cmd("HGETALL").arg(&name).query(&mut redis).unwrap(),
            _ => Vec::new(),
        };
        for (field, value) in values {
            // A field is an id, a topic or a number, or it is a name. After the name, there may be a colon and an id, a
            // topic or a number.
            let field = String::from_utf8(field).unwrap_or_default();
            let field = field.split_once(':').map_or("", |(kind, _)| kind);
            shapes.extend(form(&value).into_iter().map(|form| format!("{kind} {key} {field} {form}")));
        }
    }
    shapes
}

/// The form of a value. For JSON, it is the paths of all members. For other text, it is the words without numbers.
/// Packed bytes have no form: only the tests that open a fixture check that they are read right.
fn form(value: &[u8]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let starts = (0..value.len()).filter(|at| value[*at] == b'{');
    // A value may have JSON after a packed part.
    if let Some(json) = starts.filter_map(|at| serde_json::from_slice(&value[at..]).ok()).next() {
        paths(&json, "", &mut all);
    } else if let Ok(text) = std::str::from_utf8(value)
        && !text.contains(|c: char| c.is_control())
    {
        all.insert(general(text));
    }
    all
}

fn paths(value: &Value, at: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| paths(value, &format!("{at}.{name}"), all))
        }
        Value::Array(items) => items.iter().for_each(|item| paths(item, &format!("{at}[]"), all)),
        _ => drop(all.insert(at.to_owned())),
    }
}

/// Returns a text in which each word with a digit is replaced by 0.
fn general(text: &str) -> String {
    let mut form = String::new();
    for word in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let (word, end) = match word.char_indices().next_back() {
            Some((at, c)) if !c.is_alphanumeric() => word.split_at(at),
            _ => (word, ""),
        };
        form += if word.contains(|c: char| c.is_ascii_digit()) { "0" } else { word };
        form += end;
    }
    form
}

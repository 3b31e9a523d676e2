//! The shapes of all that is stored: tables and columns of databases, keys of Redis with the types and forms of their
//! values, and the files of a folder. A change of a format changes a shape.

use std::collections::BTreeSet;
use std::path::Path;

use mysql::prelude::Queryable;
use rusqlite::Connection;

use super::fixture::connection;
use super::life::Life;
use crate::support::redis::RedisServer;

/// Returns one line for each shape, in order.
pub fn of(life: &Life) -> String {
    let mut shapes = BTreeSet::new();
    let var = life.dir.path().join("var");
    for path in files(&var) {
        let name = general(path.strip_prefix(&var).unwrap().to_str().unwrap().as_bytes());
        // These files are there at some moments only.
        if ["-wal", "-shm", ".sock", ".pid"].iter().any(|end| name.ends_with(end))
            || name.starts_with("run/bells")
        {
            continue;
        }
        if path.extension().is_some_and(|e| e == "db") {
            shapes.extend(tables(&path).into_iter().map(|line| format!("{name}: {line}")));
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

/// The keys of a Redis, and the forms of their values.
fn keys(server: &RedisServer) -> BTreeSet<String> {
    let mut redis = connection(server);
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    let mut shapes = BTreeSet::new();
    for name in names {
        let key = general(&name);
        let kind: String = redis::cmd("TYPE").arg(&name).query(&mut redis).unwrap();
        shapes.insert(format!("{kind} {key}"));
        match kind.as_str() {
            "string" => {
                let value: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut redis).unwrap();
                shapes.insert(format!("{kind} {key} = {}", general(&value)));
            }
            "hash" => {
                let all: Vec<(Vec<u8>, Vec<u8>)> =
                    redis::cmd("HGETALL").arg(&name).query(&mut redis).unwrap();
                for (field, value) in all {
                    shapes.insert(format!("{kind} {key} [{}] = {}", general(&field), general(&value)));
                }
            }
            "zset" | "set" | "list" => {
                let read = match kind.as_str() {
                    "zset" => redis::cmd("ZRANGE").arg(&name).arg(0).arg(-1).query(&mut redis),
                    "set" => redis::cmd("SMEMBERS").arg(&name).query(&mut redis),
                    _ => redis::cmd("LRANGE").arg(&name).arg(0).arg(-1).query(&mut redis),
                };
                let all: Vec<Vec<u8>> = read.unwrap();
                shapes.extend(all.iter().map(|member| format!("{kind} {key} has {}", general(member))));
            }
            _ => {}
        }
    }
    shapes
}

/// The form of a text or of packed bytes: numbers, random parts and the like are left out. Packed bytes show how they
/// begin.
pub fn general(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return format!("bytes {:02x?}", &bytes[..1]) };
    let mut form = String::new();
    let mut digits = false;
    for c in text.chars() {
        if c.is_ascii_digit() {
            if !digits {
                form.push('0');
            }
            digits = true;
        } else {
            digits = false;
            form.extend(c.escape_default());
        }
    }
    form
}

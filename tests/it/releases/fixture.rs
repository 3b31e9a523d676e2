//! A fixture has the files of an installation, the contents of its Redis or its database, and what its API showed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use mysql::prelude::Queryable;
use serde_json::Value;

use super::life::Life;
use crate::support::mariadb::{Database, MariaDb};
use crate::support::redis::RedisServer;
use crate::support::{Daemon, free_port};

/// The store and the registry of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The embedded store, and a registry in SQLite.
    Embedded,
    /// A store and a registry on Redis, with a spool.
    Redis,
    /// The embedded store, and a registry in MySQL or MariaDB.
    Mysql,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Embedded, Kind::Redis, Kind::Mysql];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Embedded => "embedded",
            Kind::Redis => "redis",
            Kind::Mysql => "mysql",
        }
    }
}

/// The servers that an installation uses.
pub struct Servers {
    pub redis: Option<RedisServer>,
    pub database: Option<Database>,
}

impl Servers {
    pub fn start(kind: Kind) -> Servers {
        Servers {
            redis: (kind == Kind::Redis).then(RedisServer::start),
            database: (kind == Kind::Mysql).then(|| MariaDb::shared().database()),
        }
    }
}

/// An installation without a running daemon, and what its API showed before the daemon ended.
pub struct Restored {
    pub kind: Kind,
    pub dir: Arc<tempfile::TempDir>,
    pub servers: Servers,
    pub expected: Value,
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Writes the fixture of a life that has ended.
pub fn save(life: &Life, folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).unwrap();
    // Each daemon makes its own sockets and locks.
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sparse", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--exclude=*.sock", "--exclude=var/run/bells", "--exclude=*.succession"])
        .arg("--file")
        .arg(folder.join("var.tar.gz"));
    run(tar.arg("--directory").arg(life.dir.path()).arg("var"));
    let expected = serde_json::to_string_pretty(&life.expected).unwrap();
    std::fs::write(folder.join("expected.json"), expected + "\n").unwrap();
    if let Some(server) = &life.servers.redis {
        let dump: serde_json::Map<String, Value> =
            redis_keys(server).into_iter().map(|(key, bytes)| (hex(&key), hex(&bytes).into())).collect();
        let text = serde_json::to_string_pretty(&dump).unwrap();
        std::fs::write(folder.join("redis.json"), text + "\n").unwrap();
    }
    if let Some(database) = &life.servers.database {
        std::fs::write(folder.join("registry.sql"), statements(database).join(END)).unwrap();
    }
    if life.kind == Kind::Embedded {
        std::fs::copy(life.backup(), folder.join("backup.db")).unwrap();
    }
}

/// Returns a folder and servers with all that the fixture has.
pub fn restore(folder: &Path, kind: Kind) -> Restored {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    run(Command::new("tar").arg("-xzf").arg(folder.join("var.tar.gz")).arg("-C").arg(dir.path()));
    let owner = dir.path().join("var/spool.db-owner");
    if owner.exists() {
        // The spool belongs to the daemon of a folder. The folder of the test has another name.
        std::fs::write(owner, dir.path().join("var/run").to_str().unwrap()).unwrap();
    }
    let servers = Servers::start(kind);
    if let Some(server) = &servers.redis {
        let text = std::fs::read_to_string(folder.join("redis.json")).unwrap();
        let dump: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
        let mut connection = connection(server);
        for (key, bytes) in dump {
            let mut command = redis::cmd("RESTORE");
            command.arg(bytes_of(&key)).arg(0).arg(bytes_of(bytes.as_str().unwrap()));
            command.exec(&mut connection).unwrap();
        }
    }
    if let Some(database) = &servers.database {
        let mut db = database.console();
        for statement in std::fs::read_to_string(folder.join("registry.sql")).unwrap().split(END) {
            db.query_drop(statement).unwrap();
        }
    }
    Restored { kind, dir, servers, expected: expected(folder) }
}

/// Returns a folder in which `dq restore` has brought back the backup of the fixture.
pub fn restore_backup(folder: &Path) -> Restored {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    Daemon::write_config(dir.path(), free_port(), free_port(), "");
    // Only the owner may read a backup.
    let file: PathBuf = dir.path().join("backup.db");
    std::fs::copy(folder.join("backup.db"), &file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    run(command.arg("restore").arg("--config").arg(dir.path().join("dq.toml")).arg(&file));
    let servers = Servers::start(Kind::Embedded);
    Restored { kind: Kind::Embedded, dir, servers, expected: expected(folder) }
}

fn expected(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap()
}

pub fn connection(server: &RedisServer) -> redis::Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Returns all keys with their dumps.
fn redis_keys(server: &RedisServer) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let mut connection = connection(server);
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    keys.into_iter()
        .map(|key| {
            let dump = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
            (key, dump)
        })
        .collect()
}

/// The text between two statements of a dump.
const END: &str = ";\n";

/// Returns the statements that create a copy of a database.
fn statements(database: &Database) -> Vec<String> {
    let mut db = database.console();
    let mut all = Vec::new();
    for table in db.query::<String, _>("SHOW TABLES").unwrap() {
        let (_, create): (String, String) =
            db.query_first(format!("SHOW CREATE TABLE `{table}`")).unwrap().unwrap();
        all.push(create);
        for row in db.query::<mysql::Row, _>(format!("SELECT * FROM `{table}`")).unwrap() {
            let values: Vec<String> = row.unwrap().iter().map(|value| value.as_sql(false)).collect();
            all.push(format!("INSERT INTO `{table}` VALUES ({})", values.join(", ")));
        }
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

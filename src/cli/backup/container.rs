//! The file of a backup: the store's SQLite file, with two more tables. One says when and where the backup was made,
//! and the other has the registry and the key of the console's sessions. So one check by SQLite covers the whole file.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

/// The number of the format. A file with another number was made by a later release.
const FORMAT: &str = "1";

/// The row of the table `dq_backup` that says that the file has a seal.
const SEALED: &str = "sealed";

const TABLES: &str = include_str!("../../../migrations/backup/V001__backup.sql");

/// A file inside a backup is stored in pieces of this many bytes.
const PIECE: usize = 1 << 20;

/// The name of the registry's file in a backup.
pub(super) const REGISTRY: &str = "registry";

/// The name, in a backup, of the file with the key of the console's sessions.
pub(super) const SESSION_KEY: &str = "session-key";

/// When and where a backup was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The moment of the copies, Unix milliseconds.
    pub made_ms: i64,
    /// The name of the host.
    pub instance: String,
    /// The release of dq.
    pub version: String,
}

/// Adds the tables of a backup to a copy of a store.
pub(super) fn create(db: &Connection, manifest: &Manifest) -> rusqlite::Result<()> {
    db.execute_batch(TABLES)?;
    let made_ms = manifest.made_ms.to_string();
    let named = [
        ("format", FORMAT),
        ("made_ms", &made_ms),
        ("instance", &manifest.instance),
        ("version", &manifest.version),
        (SEALED, "1"),
    ];
    let mut insert = db.prepare("INSERT INTO dq_backup (name, value) VALUES (?1, ?2)")?;
    for (name, value) in named {
        insert.execute([name, value])?;
    }
    Ok(())
}

/// Removes the tables of a backup from a restored store.
pub(super) fn drop_tables(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch("DROP TABLE dq_backup_part; DROP TABLE dq_backup")?;
    // Each row of the answer means that one more page was given back to the disk.
    let mut vacuum = db.prepare("PRAGMA incremental_vacuum")?;
    let mut rows = vacuum.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}

/// Opens a backup for reading only.
pub(super) fn open(path: &Path) -> Result<(Connection, Manifest)> {
    // The file is opened here only for its error, which says why the file cannot be opened. SQLite would say only that
    // it cannot open the file.
    drop(File::open(path).with_context(|| format!("cannot open {}", path.display()))?);
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let named = |name: &str| -> rusqlite::Result<Option<String>> {
        db.query_row("SELECT value FROM dq_backup WHERE name = ?1", [name], |row| row.get(0)).optional()
    };
    let none = || {
        anyhow!(
            "{} is not a backup that `dq backup` has made, or its beginning is damaged, or it is cut off: copy it again",
            path.display()
        )
    };
    let format = named("format").ok().flatten().ok_or_else(none)?;
    if format != FORMAT {
        bail!(
            "{} has format {format}: restore it with the release of dq that made it, or a later one",
            path.display()
        );
    }
    let manifest = Manifest {
        made_ms: named("made_ms")?.and_then(|ms| ms.parse().ok()).ok_or_else(none)?,
        instance: named("instance")?.unwrap_or_default(),
        version: named("version")?.unwrap_or_default(),
    };
    Ok((db, manifest))
}

/// Returns whether a backup notes that it has a seal.
pub(super) fn is_sealed(db: &Connection) -> rusqlite::Result<bool> {
    db.query_row("SELECT EXISTS (SELECT 1 FROM dq_backup WHERE name = ?1)", [SEALED], |row| row.get(0))
}

/// Puts a file into a backup.
pub(super) fn put(db: &Connection, name: &str, path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut insert = db.prepare("INSERT INTO dq_backup_part (file, piece, bytes) VALUES (?1, ?2, ?3)")?;
    // Even an empty file has a piece.
    for piece in 0.. {
        let mut bytes = Vec::new();
        (&file).take(PIECE as u64).read_to_end(&mut bytes)?;
        if piece > 0 && bytes.is_empty() {
            break;
        }
        insert.execute(params![name, piece, bytes])?;
    }
    Ok(())
}

/// Returns whether a backup has a file of that name.
pub(super) fn has(db: &Connection, name: &str) -> rusqlite::Result<bool> {
    db.query_row("SELECT EXISTS (SELECT 1 FROM dq_backup_part WHERE file = ?1)", [name], |row| row.get(0))
}

/// Returns the first piece of a file in a backup. For a short file, this is the whole file.
pub(super) fn first_piece(db: &Connection, name: &str) -> rusqlite::Result<Vec<u8>> {
    let first = "SELECT bytes FROM dq_backup_part WHERE file = ?1 AND piece = 0";
    db.query_row(first, [name], |row| row.get(0))
}

/// Writes a file of a backup to a new file that only its owner may read.
pub(super) fn extract(db: &Connection, name: &str, path: &Path) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut pieces = db.prepare("SELECT piece, bytes FROM dq_backup_part WHERE file = ?1 ORDER BY piece")?;
    let mut rows = pieces.query([name])?;
    let mut expected = 0;
    while let Some(row) = rows.next()? {
        let piece: i64 = row.get(0)?;
        ensure!(piece == expected, "piece {expected} of {name} is missing in the backup");
        expected += 1;
        file.write_all(row.get_ref(1)?.as_blob()?)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Fails if a database is damaged.
pub(super) fn check(db: &Connection, what: &str) -> Result<()> {
    let found: String = db
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .with_context(|| format!("{what} is damaged"))?;
    ensure!(found == "ok", "{what} is damaged: {found}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_out_of_a_backup_as_they_went_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        let manifest = Manifest { made_ms: 7, instance: "h".into(), version: "1".into() };
        let db = Connection::open(&path).unwrap();
        create(&db, &manifest).unwrap();
        let bytes: Vec<u8> = (0..PIECE * 2 + 5).map(|n| n as u8).collect();
        for (name, bytes) in [("a", &bytes[..]), ("b", &[]), ("c", &bytes[..PIECE])] {
            let from = dir.path().join("from");
            std::fs::write(&from, bytes).unwrap();
            put(&db, name, &from).unwrap();
            let to = dir.path().join(name);
            extract(&db, name, &to).unwrap();
            assert!(std::fs::read(&to).unwrap() == bytes, "{name}");
        }
        assert!(has(&db, "b").unwrap() && !has(&db, "d").unwrap());
        drop(db);
        let (db, read) = open(&path).unwrap();
        assert_eq!(read, manifest);
        check(&db, "it").unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "text").unwrap();
        assert!(open(&other).unwrap_err().to_string().contains("is not a backup"));
    }
}

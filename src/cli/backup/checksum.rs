//! The checksum of a backup. It covers all rows of all tables. So it also covers the registry and the key of the
//! console's sessions. SQLite's own check finds damaged structures, but it does not find a changed byte in a value.

use anyhow::{Context as _, Result, bail};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _};
use sha2::{Digest, Sha256};

/// The row of the table `dq_backup` that has the checksum.
const NAME: &str = "checksum";

/// Writes the checksum into a backup that is otherwise complete.
pub(super) fn write(db: &Connection) -> Result<()> {
    let checksum = of_rows(db)?;
    db.execute("INSERT INTO dq_backup (name, value) VALUES (?1, ?2)", [NAME, &checksum])?;
    Ok(())
}

/// Compares a backup with its checksum. Returns false if the backup has no checksum, because an earlier release made
/// it. Fails if the checksum differs.
pub(super) fn check(db: &Connection, what: &str) -> Result<bool> {
    let damaged = || format!("{what} is damaged");
    let noted = "SELECT value FROM dq_backup WHERE name = ?1";
    let noted: Option<String> =
        db.query_row(noted, [NAME], |row| row.get(0)).optional().with_context(damaged)?;
    let Some(noted) = noted else { return Ok(false) };
    if of_rows(db).with_context(damaged)? != noted {
        bail!(
            "{what} is damaged: its content has another checksum than when it was made. Take another backup"
        );
    }
    Ok(true)
}

/// Returns the checksum: the sum of the digests of all rows, so that the order of the rows does not matter.
fn of_rows(db: &Connection) -> Result<String> {
    let mut tables = db.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name")?;
    let tables: Vec<(String, Option<String>)> =
        tables.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    let mut sum = [0_u64; 4];
    for (table, sql) in tables.iter().filter(|(table, _)| !table.starts_with("sqlite_stat")) {
        add(&mut sum, Sha256::new().chain_update(sql.as_deref().unwrap_or_default()));
        let mut rows = db.prepare(&format!("SELECT * FROM \"{}\"", table.replace('"', "\"\"")))?;
        let columns = rows.column_count();
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            if table == "dq_backup" && row.get_ref(0)?.as_str()? == NAME {
                continue;
            }
            let mut digest = Sha256::new().chain_update(table).chain_update([0]);
            for column in 0..columns {
                put(&mut digest, row.get_ref(column)?);
            }
            add(&mut sum, digest);
        }
    }
    Ok(sum.map(|part| format!("{part:016x}")).concat())
}

/// Adds a value to the digest of its row: its type, its length and its bytes.
fn put(digest: &mut Sha256, value: ValueRef<'_>) {
    let mut bytes = |kind: u8, bytes: &[u8]| {
        digest.update([kind]);
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    match value {
        ValueRef::Null => bytes(0, &[]),
        ValueRef::Integer(n) => bytes(1, &n.to_le_bytes()),
        ValueRef::Real(x) => bytes(2, &x.to_bits().to_le_bytes()),
        ValueRef::Text(text) => bytes(3, text),
        ValueRef::Blob(blob) => bytes(4, blob),
    }
}

fn add(sum: &mut [u64; 4], digest: Sha256) {
    let bytes = digest.finalize();
    for (part, bytes) in sum.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        *part = part.wrapping_add(u64::from_le_bytes(word));
    }
}

#[cfg(test)]
mod tests {
    use super::super::container::{self, Manifest};
    use super::*;

    #[test]
    fn a_changed_value_and_a_lost_row_are_found() {
        let made = || {
            let db = Connection::open_in_memory().unwrap();
            db.execute_batch(
                "CREATE TABLE job (id TEXT, body BLOB, n INTEGER, x REAL);
                 INSERT INTO job VALUES ('a', x'0102', 1, 0.5), ('b', NULL, 2, NULL)",
            )
            .unwrap();
            let manifest = Manifest { made_ms: 1, instance: "h".into(), version: "1".into() };
            container::create(&db, &manifest).unwrap();
            db
        };
        let db = made();
        assert!(!check(&db, "it").unwrap(), "it is of an earlier release");
        write(&db).unwrap();
        assert!(check(&db, "it").unwrap());
        for change in [
            "UPDATE job SET body = x'0103' WHERE id = 'a'",
            "UPDATE job SET n = '2' WHERE id = 'b'",
            "UPDATE job SET id = 'c', body = x'' WHERE id = 'b'",
            "DELETE FROM job WHERE id = 'b'",
            "INSERT INTO job SELECT * FROM job",
            "UPDATE dq_backup SET value = 'other' WHERE name = 'instance'",
            "UPDATE dq_backup SET value = 'other' WHERE name = 'checksum'",
        ] {
            let db = made();
            write(&db).unwrap();
            db.execute_batch(change).unwrap();
            let message = check(&db, "it").map_err(|e| e.to_string());
            // The column is an INTEGER, so SQLite stores this text as the same number as before.
            let is_same = change.contains("n = '2'");
            assert_eq!(message.is_ok(), is_same, "{change}: {message:?}");
        }
    }
}

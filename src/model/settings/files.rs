//! The files beside a SQLite file of dq: the files of SQLite, and the locks of the processes that write to the SQLite
//! file. This is the only list of these files. Pure.

use std::path::{Path, PathBuf};

/// SQLite's write-ahead log.
pub const LOG: &str = "-wal";

/// The memory that all processes with the SQLite file open share.
const SHARED_MEMORY: &str = "-shm";

/// SQLite's journal. Only files that are not in WAL mode have a journal.
const JOURNAL: &str = "-journal";

/// The lock at which processes wait for their turn to write.
pub const GATE: &str = "-gate";

/// The lock of the process that writes.
pub const TURN: &str = "-turn";

/// For the spool: the lock of the timer that sends the spool's changes.
pub const SENDER: &str = "-sender";

/// For the spool: the note about the daemon that uses the spool.
pub const SPOOL_OWNER: &str = "-owner";

/// The mark of a store that was moved, or is being moved.
pub const MOVED: &str = "-moved";

/// The ends of the names of the files that SQLite makes beside a database. Each of these files belongs to one database.
pub const LOGS: [&str; 3] = [LOG, SHARED_MEMORY, JOURNAL];

/// The ends of the names of the locks for processes that write to a file.
pub const TURN_FILES: [&str; 2] = [GATE, TURN];

/// Returns the path of a file beside another file, such as `spool.db-turn`.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(suffix);
    beside.into()
}

/// Returns the files of a database: the database file itself, and the files that SQLite makes beside it.
pub fn database_files(path: &Path) -> Vec<PathBuf> {
    std::iter::once("").chain(LOGS).map(|suffix| beside(path, suffix)).collect()
}

/// Returns the files of the embedded store.
pub fn store_files(path: &Path) -> Vec<PathBuf> {
    let mut files = database_files(path);
    files.extend(TURN_FILES.map(|suffix| beside(path, suffix)));
    files
}

/// Returns the files of the spool.
pub fn spool_files(path: &Path) -> Vec<PathBuf> {
    let mut files = store_files(path);
    files.extend([SENDER, SPOOL_OWNER].map(|suffix| beside(path, suffix)));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_store_lie_beside_it() {
        let names = |files: Vec<PathBuf>| -> Vec<String> {
            files
                .iter()
                .map(|file| file.to_str().unwrap().trim_start_matches("/v/dq.db").to_owned())
                .collect()
        };
        let store = ["", "-wal", "-shm", "-journal", "-gate", "-turn"];
        assert_eq!(names(store_files(Path::new("/v/dq.db"))), store);
        assert_eq!(names(spool_files(Path::new("/v/dq.db"))), [&store[..], &["-sender", "-owner"]].concat());
    }
}

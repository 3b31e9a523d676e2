//! The write-ahead log's file, and when what is in it is on the disk.
//!
//! SQLite would sync the log within the writers' turn, and all processes would wait for the disk, one after the other. So it
//! writes alone (`synchronous = NORMAL`), and who has promised durability syncs the file when the turn is over. Between, a
//! checkpoint may carry the log over, which syncs what it carries. (The log's file has no locks that a descriptor more could
//! lose.)
//!
//! A sync that fails leaves a log of which some may never reach the disk, and after a power cut all that comes behind it would
//! be lost with it. So nothing more is promised until the log has been carried over as a whole. Each process has the file open
//! from the beginning, and is told of such a failure once, whoever's sync it was (errseq in Linux).

use std::fs::File;
use std::io;
use std::path::Path;

use rusqlite::Connection;

use super::carry_over::restart;
use super::turn::Turn;
use crate::store::{Result, StoreError};

#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    /// A sync has failed since it was last carried over.
    is_torn: bool,
}

impl LogFile {
    /// That of a database that is open.
    pub(super) fn of(database: &Path) -> io::Result<LogFile> {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Ok(LogFile { file: File::open(path)?, is_torn: false })
    }

    /// Returns when all that was committed so far is on the disk.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|e| {
            self.is_torn = true;
            log::error!("the store's log cannot be written to the disk: {e}");
            StoreError::Unknown(format!("the store's log cannot be written to the disk: {e}"))
        })
    }

    /// Sees that what is promised from now on can be kept. To be called outside the turn.
    pub(super) fn mend(&mut self, db: &Connection, turn: &Turn) -> Result<()> {
        if !self.is_torn {
            return Ok(());
        }
        // SQLite's own descriptor is told of the failure as well, by its first sync.
        let _ = restart(db, turn);
        let pages = restart(db, turn)?;
        if pages.log != pages.carried {
            let why = "the store's log could not be written to the disk, and a reader keeps it from being carried over";
            return Err(StoreError::Unavailable(why.to_owned()));
        }
        log::info!("the store's log is carried over: what is stored from now on is on the disk");
        self.is_torn = false;
        Ok(())
    }
}

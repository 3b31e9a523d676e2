//! The writers' turn: processes that write to one SQLite file queue on two file locks before `BEGIN IMMEDIATE`.
//!
//! SQLite's own `busy_timeout` polls with growing pauses, so that a process that writes without a break starves the
//! others. One blocking lock starves them too: who gives it up takes it again before a waiter has woken. With a gate
//! before the lock, who waits for the lock holds the gate, and who gave the lock up stands behind it.
//! `cargo bench --bench embedded_store` shows the three side by side.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// One handle's place in the queue. The files lie beside the database and are never opened as one.
#[derive(Debug)]
pub(super) struct Turn {
    gate: File,
    lock: File,
}

/// The turn, held until dropped. The kernel gives it up for a process that dies.
#[derive(Debug)]
pub(super) struct Taken<'a>(&'a File);

impl Turn {
    pub(super) fn beside(database: &Path) -> io::Result<Turn> {
        let open = |suffix: &str| {
            let mut path = database.as_os_str().to_owned();
            path.push(suffix);
            OpenOptions::new().create(true).truncate(false).write(true).open(path)
        };
        Ok(Turn { gate: open("-gate")?, lock: open("-turn")? })
    }

    /// Blocks until it is this handle's turn.
    pub(super) fn take(&self) -> io::Result<Taken<'_>> {
        patiently(&self.gate)?;
        let taken = patiently(&self.lock);
        self.gate.unlock()?;
        taken.map(|()| Taken(&self.lock))
    }
}

fn patiently(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.0.unlock() {
            log::error!("cannot give up the store's turn: {e}");
        }
    }
}

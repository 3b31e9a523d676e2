//! The writers' turn: processes that write to one SQLite file queue on two file locks before `BEGIN IMMEDIATE`.
//!
//! SQLite's own `busy_timeout` polls with growing pauses. So a process that writes without a break keeps the other
//! processes waiting. With one blocking lock, the other processes also have to wait: the process that releases the lock
//! takes it again before a waiting process has woken. So there is a gate before the lock. The process that waits for
//! the lock holds the gate, so the process that released the lock must wait at the gate.
//! `cargo bench --bench embedded_store` compares SQLite's `busy_timeout`, one lock, and a lock with a gate.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::settings::files::{GATE, TURN, beside};

/// Two open files: the lock of one file is the gate, and the lock of the other file is the turn. The files lie beside
/// the database, and are never opened as a database.
#[derive(Debug)]
pub(crate) struct Turn {
    gate: File,
    lock: File,
}

/// What the first byte of the turn's file says about the log. See `wal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogNote {
    /// The log is complete: it has all that was written to it.
    None,
    /// The process that has the turn is writing to the log, or a process was killed while it was writing.
    Writing,
    /// The disk has failed.
    Failed,
}

/// The turn, which is held until this guard is dropped. If the process dies, the kernel releases the turn.
#[derive(Debug)]
pub(crate) struct TurnGuard<'a>(&'a Turn);

impl Turn {
    pub(crate) fn beside(database: &Path) -> io::Result<Turn> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        // Anyone who can open the files can hold the turn. So only their owner can open them.
        options.mode(0o600);
        let open = |suffix| {
            let file = beside(database, suffix);
            options.open(&file).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))
        };
        Ok(Turn { gate: open(GATE)?, lock: open(TURN)? })
    }

    /// Returns what is noted about the log. This also works while another process has the turn.
    pub(super) fn note(&self) -> io::Result<LogNote> {
        Ok(match self.byte()? {
            0 => LogNote::None,
            1 => LogNote::Writing,
            _ => LogNote::Failed,
        })
    }

    /// Returns the first byte of the turn's file. This also works while another process has the turn. 0 is the value of
    /// a byte that was never set.
    pub(crate) fn byte(&self) -> io::Result<u8> {
        let mut byte = [0];
        self.lock.read_at(&mut byte, 0)?;
        Ok(byte[0])
    }

    /// Blocks until it is this handle's turn.
    pub(crate) fn take(&self) -> io::Result<TurnGuard<'_>> {
        lock_through_signals(&self.gate)?;
        let taken = lock_through_signals(&self.lock);
        self.gate.unlock()?;
        taken.map(|()| TurnGuard(self))
    }
}

/// The turn of a store, for a process that replaces the store's file. While a process has the turn, no other process
/// opens the store or writes to it, because a process opens the store and writes to it only in its own turn. The kernel
/// releases the turn when this value is dropped.
#[derive(Debug)]
pub struct HeldTurn {
    turn: Turn,
    database: PathBuf,
}

impl HeldTurn {
    /// Blocks until it is this process's turn.
    pub fn take(database: &Path) -> io::Result<HeldTurn> {
        let turn = Turn::beside(database)?;
        std::mem::forget(turn.take()?);
        Ok(HeldTurn { turn, database: database.to_owned() })
    }

    /// Notes on the disk that the file is being replaced. If this process dies before the end, a person must repair the
    /// files. Until then, no process opens the store, and no process makes a new store at this path.
    pub fn begin_replacement(&self) -> io::Result<()> {
        let note = replacement_note(&self.database);
        let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&note);
        let is_noted = made.and_then(|file| file.sync_all()).and_then(|()| sync_folder_of(&note));
        if is_noted.is_err() {
            // The replacement does not begin. So the note is removed: with the note, the daemon cannot open the store.
            let _ = std::fs::remove_file(&note);
        }
        is_noted
    }

    /// Removes the note from the disk, because the new file is in place. Also resets the note about the log, because
    /// the old log belongs to the old file.
    pub fn end_replacement(&self) -> io::Result<()> {
        self.turn.lock.write_all_at(&[LogNote::None as u8], 0)?;
        let note = replacement_note(&self.database);
        std::fs::remove_file(&note)?;
        sync_folder_of(&note)
    }

    /// Removes the note, because the old file is in its place: it was never moved, or it was moved back.
    pub fn give_up_replacement(&self) -> io::Result<()> {
        std::fs::remove_file(replacement_note(&self.database))
    }
}

fn sync_folder_of(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn replacement_note(database: &Path) -> PathBuf {
    beside(database, "-replacing")
}

/// Returns why nobody may open a store now, if a replacement of its file has not ended. None: the store may be opened.
pub fn unfinished_replacement(database: &Path) -> Option<String> {
    let note = replacement_note(database);
    note.exists().then(|| {
        format!(
            "a restore of {} did not end: give the files that end in .before-restore their old names, then remove {}",
            database.display(),
            note.display()
        )
    })
}

fn lock_through_signals(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl TurnGuard<'_> {
    /// Returns what is noted about the log.
    pub(super) fn note(&self) -> io::Result<LogNote> {
        self.0.note()
    }

    /// Changes the note. The note is for all processes of the host. The note does not have to be on the disk: if the
    /// machine loses its memory, it also loses the log's pages in memory. Then nobody could repair the log with them.
    pub(super) fn set(&self, note: LogNote) -> io::Result<()> {
        self.set_byte(note as u8)
    }

    /// Sets the first byte of the turn's file. The byte is for all processes of the host, and stays as long as the
    /// machine runs.
    pub(crate) fn set_byte(&self, byte: u8) -> io::Result<()> {
        self.0.lock.write_all_at(&[byte], 0)
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.0.lock.unlock() {
            log::error!("cannot give up the store's turn: {e}");
        }
    }
}

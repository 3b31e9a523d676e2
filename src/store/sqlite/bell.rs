//! Bells: Unix datagrams that wake the processes of a host when there is work. They are sent after the commit that made
//! the work.
//!
//! Each process that waits hangs a bell of its own into `run_dir/bells`. The name of the bell says what the process
//! waits for, and which process it is. A process that has work to announce rings all bells of the matching kind. Each
//! process that gets the ring looks for work only if it has free workers. If the socket of a bell is full, the new ring
//! may be dropped: the earlier rings in the socket wake the process anyway. It is not an error if nobody listens: a
//! process looks for work after it has hung its bell and before it waits. The listening side of a bell is `hung_bell`.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::BellKind;

pub(super) fn prefix(kind: BellKind) -> &'static str {
    match kind {
        BellKind::Push => "push.",
        BellKind::Pull => "pull.",
        BellKind::Timer => "timer.",
    }
}

pub(super) fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("bells")
}

/// Rings the bells of one `run_dir`.
#[derive(Debug)]
pub(super) struct BellRinger {
    folder: PathBuf,
    /// The rings that failed. They are repeated with the next ring.
    owed: PendingRings,
}

/// Which bells a transaction will ring once it is committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PendingRings {
    /// There is work to lease.
    pub push: bool,
    /// There is work for the timer: see [`BellKind::Timer`].
    pub timer: bool,
}

impl BellRinger {
    pub(super) fn new(run_dir: &Path) -> BellRinger {
        BellRinger { folder: folder(run_dir), owed: PendingRings::default() }
    }

    /// Rings all bells of these kinds. A failure is logged, and the failed ring is repeated with the next ring.
    pub(super) fn ring(&mut self, rings: PendingRings) {
        let rings =
            PendingRings { push: rings.push || self.owed.push, timer: rings.timer || self.owed.timer };
        if rings == PendingRings::default() {
            return;
        }
        self.owed = match self.ring_all(rings) {
            Ok(()) => PendingRings::default(),
            Err(e) if e.kind() == ErrorKind::NotFound => PendingRings::default(),
            Err(e) => {
                log::warn!("cannot ring all bells in {}: {e}", self.folder.display());
                rings
            }
        };
    }

    fn ring_all(&self, rings: PendingRings) -> io::Result<()> {
        // Rings that wait in bells use up the buffer of the socket that sent them. With a new socket, this buffer is
        // empty. So `WouldBlock` means that the bell is full.
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let mut failed = Ok(());
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let is = |kind: BellKind| name.as_encoded_bytes().starts_with(prefix(kind).as_bytes());
            let is_push = is(BellKind::Push) || is(BellKind::Pull);
            if !(rings.push && is_push || rings.timer && is(BellKind::Timer)) {
                continue;
            }
            match socket.send_to(&[1], entry.path()) {
                // The bell's process is gone. Names are random, so no other process can have taken the name in the
                // meantime.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                    drop(std::fs::remove_file(entry.path()))
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::NotFound) => {}
                // The other bells are still rung.
                Err(e) => failed = Err(e),
                Ok(_) => {}
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bell;
    use crate::sqlite::SocketBell;

    const PUSH: PendingRings = PendingRings { push: true, timer: false };

    #[test]
    fn every_bell_of_the_kind_rings_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut ringer = BellRinger::new(dir.path());
        ringer.ring(PUSH);
        let hang = |kind, name| SocketBell::hang(dir.path(), kind, name).unwrap();
        let (a, b, timer) =
            (hang(BellKind::Push, "a"), hang(BellKind::Push, "b"), hang(BellKind::Timer, "a"));
        let pull = hang(BellKind::Pull, "a");
        assert!(!a.answer().unwrap());
        ringer.ring(PUSH);
        assert_eq!([&a, &b, &pull, &timer].map(|bell| bell.answer().unwrap()), [true, true, true, false]);
        assert!(!a.answer().unwrap());
    }

    #[test]
    fn forty_bells_that_nobody_answers_keep_none_from_ringing() {
        let dir = tempfile::tempdir().unwrap();
        let mut ringer = BellRinger::new(dir.path());
        let deaf: Vec<SocketBell> =
            (0..40).map(|i| SocketBell::hang(dir.path(), BellKind::Push, &i.to_string()).unwrap()).collect();
        (0..50).for_each(|_| ringer.ring(PUSH));
        let timer = SocketBell::hang(dir.path(), BellKind::Timer, "a").unwrap();
        let push = SocketBell::hang(dir.path(), BellKind::Push, "late").unwrap();
        ringer.ring(PendingRings { push: true, timer: true });
        assert_eq!([&timer, &push].map(|bell| bell.answer().unwrap()), [true, true]);
        drop(deaf);
    }

    #[test]
    fn what_could_not_be_rung_is_rung_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut ringer = BellRinger::new(dir.path());
        // For a while, the folder is a file.
        std::fs::write(folder(dir.path()), "").unwrap();
        ringer.ring(PUSH);
        std::fs::remove_file(folder(dir.path())).unwrap();
        let bell = SocketBell::hang(dir.path(), BellKind::Push, "a").unwrap();
        ringer.ring(PendingRings { push: false, timer: true });
        assert!(bell.answer().unwrap());
    }

    #[test]
    fn a_full_bell_still_rings() {
        let dir = tempfile::tempdir().unwrap();
        let bell = SocketBell::hang(dir.path(), BellKind::Push, "a").unwrap();
        let mut ringer = BellRinger::new(dir.path());
        (0..10_000).for_each(|_| ringer.ring(PUSH));
        assert!(bell.answer().unwrap());
    }

    #[test]
    fn a_bell_whose_process_died_is_taken_down_by_the_next_ring() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder(dir.path())).unwrap();
        let path = folder(dir.path()).join("push.a");
        drop(UnixDatagram::bind(&path).unwrap());
        assert!(path.exists());
        BellRinger::new(dir.path()).ring(PUSH);
        assert!(!path.exists());
    }
}

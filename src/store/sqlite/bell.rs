//! Bells: Unix datagrams that wake the processes of a host when there is work, sent after the commit that made it.
//!
//! Each process that waits hangs a bell of its own into `run_dir/bells`, named for what it waits for and for itself;
//! who has work to announce rings all bells of that kind, and each process decides by its own free workers whether to
//! look. A ring that finds a bell's socket full is not lost: what fills it wakes its owner as well. Nobody listening is
//! no error: a process looks for work after it has hung its bell and before it waits. Its own side of a bell is `hung_bell`.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::store::BellKind as Kind;

pub(super) fn prefix(kind: Kind) -> &'static str {
    match kind {
        Kind::Push => "push.",
        Kind::Timer => "timer.",
    }
}

pub(super) fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("bells")
}

/// Rings the bells of one `run_dir`.
#[derive(Debug)]
pub(super) struct Ringer {
    folder: PathBuf,
    /// What could not be rung, and is with the next.
    owed: Rings,
}

/// Which bells a transaction will ring once it is committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rings {
    /// There is work to lease.
    pub push: bool,
    /// Something is due earlier than the timer knows, or the log has grown.
    pub timer: bool,
}

impl Ringer {
    pub(super) fn new(run_dir: &Path) -> Ringer {
        Ringer { folder: folder(run_dir), owed: Rings::default() }
    }

    /// Rings all bells of these kinds. What fails is told in the log, and done again with the next.
    pub(super) fn ring(&mut self, rings: Rings) {
        let rings = Rings { push: rings.push || self.owed.push, timer: rings.timer || self.owed.timer };
        if rings == Rings::default() {
            return;
        }
        self.owed = match self.ring_all(rings) {
            Ok(()) => Rings::default(),
            Err(e) if e.kind() == ErrorKind::NotFound => Rings::default(),
            Err(e) => {
                log::warn!("cannot ring all bells in {}: {e}", self.folder.display());
                rings
            }
        };
    }

    fn ring_all(&self, rings: Rings) -> io::Result<()> {
        // What waits in other bells counts against the socket that sent it: with a new one, a full bell is a full bell.
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let mut failed = Ok(());
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let is = |kind: Kind| name.as_encoded_bytes().starts_with(prefix(kind).as_bytes());
            if !(rings.push && is(Kind::Push) || rings.timer && is(Kind::Timer)) {
                continue;
            }
            match socket.send_to(&[1], entry.path()) {
                // Its process is gone; names are random, so nobody else can have taken it meanwhile.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                    drop(std::fs::remove_file(entry.path()))
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::NotFound) => {}
                // The others hear it all the same.
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
    use crate::store::Bell;
    use crate::store::sqlite::HungBell;

    const PUSH: Rings = Rings { push: true, timer: false };

    #[test]
    fn every_bell_of_the_kind_rings_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut ringer = Ringer::new(dir.path());
        ringer.ring(PUSH);
        let hang = |kind, name| HungBell::hang(dir.path(), kind, name).unwrap();
        let (a, b, timer) = (hang(Kind::Push, "a"), hang(Kind::Push, "b"), hang(Kind::Timer, "a"));
        assert!(!a.answer().unwrap());
        ringer.ring(PUSH);
        assert_eq!([&a, &b, &timer].map(|bell| bell.answer().unwrap()), [true, true, false]);
        assert!(!a.answer().unwrap());
    }

    #[test]
    fn forty_bells_that_nobody_answers_keep_none_from_ringing() {
        let dir = tempfile::tempdir().unwrap();
        let mut ringer = Ringer::new(dir.path());
        let deaf: Vec<HungBell> =
            (0..40).map(|i| HungBell::hang(dir.path(), Kind::Push, &i.to_string()).unwrap()).collect();
        (0..50).for_each(|_| ringer.ring(PUSH));
        let timer = HungBell::hang(dir.path(), Kind::Timer, "a").unwrap();
        let push = HungBell::hang(dir.path(), Kind::Push, "late").unwrap();
        ringer.ring(Rings { push: true, timer: true });
        assert_eq!([&timer, &push].map(|bell| bell.answer().unwrap()), [true, true]);
        drop(deaf);
    }

    #[test]
    fn what_could_not_be_rung_is_rung_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut ringer = Ringer::new(dir.path());
        // A folder that is a file for a while.
        std::fs::write(folder(dir.path()), "").unwrap();
        ringer.ring(PUSH);
        std::fs::remove_file(folder(dir.path())).unwrap();
        let bell = HungBell::hang(dir.path(), Kind::Push, "a").unwrap();
        ringer.ring(Rings { push: false, timer: true });
        assert!(bell.answer().unwrap());
    }

    #[test]
    fn a_full_bell_still_rings() {
        let dir = tempfile::tempdir().unwrap();
        let bell = HungBell::hang(dir.path(), Kind::Push, "a").unwrap();
        let mut ringer = Ringer::new(dir.path());
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
        Ringer::new(dir.path()).ring(PUSH);
        assert!(!path.exists());
    }
}

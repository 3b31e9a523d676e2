//! What a child gets from the master: the name of its slot, and descriptors with names.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::link::Link;

/// The number of the first descriptor that a child inherits.
pub(super) const FIRST_FD: RawFd = 3;

/// The environment variable that holds the name of the slot.
pub(super) const SLOT: &str = "_DQ_SLOT";

/// The environment variable that holds the names of the descriptors, in the order of their numbers, separated by `:`.
pub(super) const FDS: &str = "_DQ_FDS";

/// The environment variable that sets [`ChildInheritance::awaits_topics`].
pub(super) const AWAITS_TOPICS: &str = "_DQ_AWAITS_TOPICS";

/// The environment variable for the hand-over of an upgrade: `<memory>:<previous executable>`, the numbers of two
/// descriptors. If the new image could not continue and has executed the previous image again, `:<reason>` follows.
pub(super) const HANDOVER: &str = "_DQ_HANDOVER";

/// The name of the sealed settings among the descriptors.
const SETTINGS: &str = "settings";

/// The name of the link to the master among the descriptors.
const LINK: &str = "link";

/// What the master handed down to this process.
#[derive(Debug)]
pub struct ChildInheritance {
    /// The slot's name.
    pub slot: String,
    /// Whether the child waits at its start until a snapshot that it cannot use has been replaced. It waits if another
    /// generation serves meanwhile.
    pub awaits_topics: bool,
    /// The settings, as the master sealed them.
    pub settings: Vec<u8>,
    /// The link to the master.
    pub link: Link,
    /// The sockets, by name.
    pub sockets: HashMap<String, OwnedFd>,
}

impl ChildInheritance {
    /// Returns what [`super::Spawn`] gives to every child: the settings and the child's end of the link, with their
    /// names.
    pub fn own<'a>(settings: BorrowedFd<'a>, link: BorrowedFd<'a>) -> [(String, BorrowedFd<'a>); 2] {
        [(SETTINGS.to_owned(), settings), (LINK.to_owned(), link)]
    }

    /// Takes what was handed down. None: this process is not a child of dq-master. Call this function once, before
    /// anything else opens a descriptor.
    pub fn take() -> io::Result<Option<ChildInheritance>> {
        let (Ok(slot), Ok(names)) = (std::env::var(SLOT), std::env::var(FDS)) else { return Ok(None) };
        let mut sockets = HashMap::new();
        for (name, number) in names.split(':').zip(FIRST_FD..) {
            // SAFETY: the master has put the descriptor there for this process, which has not opened anything yet.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
            sockets.insert(name.to_owned(), fd);
        }
        let mut own = |name: &str| {
            sockets
                .remove(name)
                .ok_or_else(|| io::Error::other(format!("no descriptor {name:?} was handed down")))
        };
        let settings = super::sealed::read_shared(&File::from(own(SETTINGS)?))?;
        let link = Link::from_fd(own(LINK)?);
        let awaits_topics = std::env::var_os(AWAITS_TOPICS).is_some();
        Ok(Some(ChildInheritance { slot, awaits_topics, settings, link, sockets }))
    }
}

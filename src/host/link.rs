//! The link between dq-master and a child: a pair of sockets that keeps message boundaries. It ends when either side
//! dies.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What the master tells a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToChild {
    /// Take no new work, finish the work in flight, exit with 0.
    Drain {
        /// How much time the drain has, in milliseconds from now. `None`: there is no limit.
        within_ms: Option<u64>,
        /// Whether a new process replaces the child, and may take over its connections. In the message, this field has
        /// an older name.
        #[serde(rename = "successor")]
        replaced: bool,
    },
    /// Reopen the log files: the old ones were moved away.
    ReopenLogs,
    /// Give a sign of life.
    Ping,
}

/// What a child tells the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMaster {
    /// The child has opened what it needs, and works.
    Ready,
    /// The answer to a ping: the main loop of the child works.
    Alive {
        /// How long one of its workers has been past its own deadline, in milliseconds. 0: no worker is past its
        /// deadline.
        overdue_ms: u64,
    },
    /// The child is about to end, because it cannot continue.
    Failed {
        /// The reason.
        reason: String,
    },
}

impl ToMaster {
    /// Returns a message that says that a child cannot continue. If `reason` is too long for a message, its end is cut
    /// off.
    pub fn failed(reason: &str) -> ToMaster {
        ToMaster::Failed { reason: reason.chars().filter(|c| !c.is_control()).take(REASON_MAX).collect() }
    }
}

/// The result of reading a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received<M> {
    /// A message.
    Message(M),
    /// There is no message yet.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// The length of the longest message, in bytes.
const LONGEST: usize = 4096;

/// The length of the longest reason, in characters of up to four bytes.
const REASON_MAX: usize = 800;

/// One end of a link.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Makes a link. Returns the master's end and the child's end.
    pub fn pair() -> io::Result<(Link, OwnedFd)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Link(ours), theirs))
    }

    /// Makes an end of a link from an inherited descriptor.
    pub fn from_fd(fd: OwnedFd) -> Link {
        Link(fd)
    }

    /// Sends a message without waiting. If the reader is so far behind that the socket is full, this is an error.
    pub fn send<M: Serialize>(&self, message: &M) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        send(self.0.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }

    /// Returns another handle to the same end.
    pub fn try_clone(&self) -> io::Result<Link> {
        Ok(Link(self.0.try_clone()?))
    }

    /// Takes the next message without waiting. A message that cannot be understood, for example from a newer release,
    /// is removed and returned as an error of the kind `InvalidData`.
    pub fn receive<M: DeserializeOwned>(&self) -> io::Result<Received<M>> {
        let mut buffer = [0; LONGEST];
        loop {
            return match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) => Ok(Received::Closed),
                Ok(n) => serde_json::from_slice(&buffer[..n])
                    .map(Received::Message)
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)),
                Err(Errno::EAGAIN) => Ok(Received::Nothing),
                // A reset means that the other side ended before it read everything. The messages of the other side can
                // still be read.
                Err(Errno::EINTR | Errno::ECONNRESET) => continue,
                Err(e) => Err(e.into()),
            };
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_apart_and_the_end_is_told() {
        let (ours, theirs) = Link::pair().unwrap();
        let theirs = Link::from_fd(theirs);
        assert_eq!(theirs.receive::<ToChild>().unwrap(), Received::Nothing);
        let drains = [Some(5), None].map(|within_ms| ToChild::Drain { within_ms, replaced: true });
        drains.iter().for_each(|d| ours.send(d).unwrap());
        assert_eq!(drains.map(|_| theirs.receive().unwrap()), drains.map(Received::Message));
        theirs.send(&ToMaster::Ready).unwrap();
        ours.send(&ToChild::Ping).unwrap();
        drop(theirs);
        assert_eq!(ours.receive().unwrap(), Received::Message(ToMaster::Ready));
        assert_eq!(ours.receive::<ToMaster>().unwrap(), Received::Closed);
    }
}

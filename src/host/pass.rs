//! Passes open descriptors, with some bytes, from one process of a host to another (SCM_RIGHTS), over a Unix socket
//! that keeps message boundaries.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    accept4, bind, connect, listen, recvmsg, sendmsg, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::sockets::bind_private;

/// The maximum number of bytes that go with a descriptor.
pub const PASSED_MAX: usize = 128 << 10;

/// How long sending may wait for the receiver, in seconds.
const PATIENCE: i64 = 1;

/// The socket where descriptors are received. The file of the socket is removed when this value is dropped, unless
/// another listener has replaced the file.
#[derive(Debug)]
pub struct PassListener {
    fd: OwnedFd,
    path: PathBuf,
    /// The inode of the socket's file. It shows whether the file is still the one that this listener made.
    inode: u64,
}

/// One end of a connection that passes descriptors.
#[derive(Debug)]
pub struct PassSocket(OwnedFd);

fn seqpacket(flags: SockFlag) -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, flags | SockFlag::SOCK_CLOEXEC, None)
}

impl PassListener {
    /// Listens at `path`. A listener that is already there is replaced.
    pub fn bind(path: &Path) -> io::Result<PassListener> {
        let fd = seqpacket(SockFlag::SOCK_NONBLOCK)?;
        let address = UnixAddr::new(path)?;
        let turn = turn_at(path)?;
        bind_private(path, || Ok(bind(fd.as_raw_fd(), &address)?))?;
        let inode = std::fs::metadata(path)?.ino();
        drop(turn);
        listen(&fd, Backlog::new(8)?)?;
        Ok(PassListener { fd, path: path.to_owned(), inode })
    }

    /// Returns the next connection from a process that wants to pass something. None: no connection waits.
    pub fn accept(&self) -> io::Result<Option<PassSocket>> {
        match accept4(self.fd.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
            // SAFETY: a new descriptor that nobody else owns.
            Ok(fd) => Ok(Some(PassSocket(unsafe { OwnedFd::from_raw_fd(fd) }))),
            Err(Errno::EAGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// Locks the path until the returned file is closed. The lock is held while the file of a listener is made or removed,
/// so that no process removes the file of another process.
fn turn_at(path: &Path) -> io::Result<File> {
    let turn = File::create(path.with_extension("lock"))?;
    turn.lock()?;
    Ok(turn)
}

impl Drop for PassListener {
    fn drop(&mut self) {
        let Ok(_turn) = turn_at(&self.path) else { return };
        if std::fs::metadata(&self.path).is_ok_and(|m| m.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl AsFd for PassListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for PassSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PassSocket {
    /// Connects to the listener at `path`.
    pub fn connect(path: &Path) -> io::Result<PassSocket> {
        let fd = seqpacket(SockFlag::empty())?;
        nix::sys::socket::setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(PATIENCE))?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(PassSocket(fd))
    }

    /// Returns the pid that the process at the other end had when it began to listen.
    pub fn listener_pid(&self) -> io::Result<u32> {
        Ok(nix::sys::socket::getsockopt(&self.0, sockopt::PeerCredentials)?.pid() as u32)
    }

    /// Passes 1 to [`PASSED_MAX`] bytes, with or without a descriptor. The sender keeps its own copy of the descriptor.
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fds: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
        let rights: Vec<ControlMessage<'_>> = fd.iter().map(|_| ControlMessage::ScmRights(&fds)).collect();
        sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(bytes)], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Sends verdicts on received messages, one byte for each message, in the order of receipt. Does not wait. An error
    /// of the kind `WouldBlock` means that nothing was sent.
    pub fn reply(&self, verdicts: &[u8]) -> io::Result<()> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        nix::sys::socket::send(self.0.as_raw_fd(), verdicts, flags)?;
        Ok(())
    }

    /// Returns the verdicts on sent messages, without waiting. None: no verdicts have arrived. If the other side has
    /// ended, the result is an error of the kind `UnexpectedEof`.
    pub fn replies(&self) -> io::Result<Option<Vec<u8>>> {
        let mut verdicts = vec![0; PASSED_MAX];
        loop {
            return match nix::sys::socket::recv(self.0.as_raw_fd(), &mut verdicts, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    verdicts.truncate(count);
                    Ok(Some(verdicts))
                }
                // The other side ended before it read everything. The kernel reports this error once. After that, the
                // verdicts that the other side sent can be read.
                Err(Errno::ECONNRESET | Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => Ok(None),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Receives the next message, and its descriptor if there is one. None: no message has arrived. If the other side
    /// has ended, the result is an error of the kind `UnexpectedEof`.
    pub fn receive(&self) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        let mut bytes = vec![0; PASSED_MAX];
        let mut space = nix::cmsg_space!([RawFd; 4]);
        let (count, mut fds) = {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let message = loop {
                match recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                    Ok(message) => break message,
                    // These errors have the same meaning as in `replies`.
                    Err(Errno::ECONNRESET | Errno::EINTR) => {}
                    Err(Errno::EAGAIN) => return Ok(None),
                    Err(e) => return Err(e.into()),
                }
            };
            let mut fds = Vec::new();
            // An error here means that a descriptor is missing, because this process has too many open descriptors.
            for control in message.cmsgs().into_iter().flatten() {
                if let ControlMessageOwned::ScmRights(numbers) = control {
                    // SAFETY: new descriptors that nobody else owns.
                    fds.extend(numbers.into_iter().map(|n| unsafe { OwnedFd::from_raw_fd(n) }));
                }
            }
            (message.bytes, fds)
        };
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(count);
        Ok(Some((bytes, fds.pop())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_and_its_bytes_arrive_and_the_end_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passage");
        let listener = PassListener::bind(&path).unwrap();
        assert_eq!(PassSocket::connect(&path).unwrap().listener_pid().unwrap(), std::process::id());
        drop(listener.accept().unwrap().unwrap());
        assert!(listener.accept().unwrap().is_none());
        let sender = PassSocket::connect(&path).unwrap();
        let receiver = listener.accept().unwrap().unwrap();
        assert!(receiver.receive().unwrap().is_none());
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let large = vec![7; PASSED_MAX];
        sender.send(&large, Some(theirs.as_fd())).unwrap();
        drop(theirs);
        let (bytes, fd) = receiver.receive().unwrap().unwrap();
        assert_eq!(bytes, large);
        UnixStream::from(fd.unwrap()).write_all(b"hello").unwrap();
        receiver.reply(&[1, 0]).unwrap();
        assert_eq!(sender.replies().unwrap(), Some(vec![1, 0]));
        assert_eq!(sender.replies().unwrap(), None);
        // Verdicts count if they were sent before the other side ended, even if that side left something unread.
        let (other, gone) = (PassSocket::connect(&path).unwrap(), listener.accept().unwrap().unwrap());
        other.send(b"unread", None).unwrap();
        gone.reply(&[1]).unwrap();
        drop(gone);
        assert_eq!(other.replies().unwrap(), Some(vec![1]));
        assert_eq!(other.replies().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        drop(sender);
        let mut text = String::new();
        ours.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        // When the older of two listeners is dropped, it does not remove the file of the newer one.
        let newer = PassListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(newer);
        assert!(!path.exists());
    }
}

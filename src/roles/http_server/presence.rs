//! Whether the client of a request still listens. hyper learns that a client has closed its connection, but only while
//! hyper reads from this connection. hyper does not read while a request is being answered and the buffer of the
//! connection has bytes of the next request. So a request that waits for long asks the kernel itself.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use role::lock;

/// The client of a connection. The value is an extension of each request. By default, nothing is known about the
/// client.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientPresence(Arc<Mutex<Option<RawFd>>>);

/// Marks a connection as open. This value must be dropped before the connection closes its descriptor.
pub(super) struct PresenceGuard(ClientPresence);

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        *lock(&self.0.0) = None;
    }
}

impl ClientPresence {
    /// Begins to look at the connection with this descriptor.
    pub(super) fn watch(&self, socket: RawFd) -> PresenceGuard {
        *lock(&self.0) = Some(socket);
        PresenceGuard(self.clone())
    }

    /// Returns whether the client still waits for the answer. A client that has closed the connection, or only its
    /// sending direction, does not wait. The kernel then says that the socket can be read. The kernel says the same if
    /// there are unread bytes. The end of the connection may follow these bytes. So in both cases, the function returns
    /// false.
    pub(super) fn listens(&self) -> bool {
        let socket = lock(&self.0);
        let Some(socket) = *socket else { return true };
        // SAFETY: the descriptor is open. It is removed from here, under this lock, before the connection closes it.
        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
        let mut polled = [PollFd::new(socket, PollFlags::POLLIN)];
        !matches!(poll(&mut polled, PollTimeout::ZERO), Ok(ready) if ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::Shutdown;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_client_listens_until_it_sends_more_or_is_gone() {
        assert!(ClientPresence::default().listens());
        let (mut server, mut client) = UnixStream::pair().unwrap();
        let presence = ClientPresence::default();
        let open = presence.watch(server.as_raw_fd());
        assert!(presence.listens());
        client.write_all(b"x").unwrap();
        assert!(!presence.listens(), "a byte lies unread");
        server.read_exact(&mut [0]).unwrap();
        assert!(presence.listens());
        client.shutdown(Shutdown::Write).unwrap();
        assert!(!presence.listens());
        drop(client);
        assert!(!presence.listens());
        drop(open);
        assert!(presence.listens(), "nothing is known any more");
    }
}

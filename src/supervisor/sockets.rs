//! The sockets that the master has bound. Generations that use the same socket share it. A socket that no generation
//! uses any more is closed.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use model::slot::Role;
use serde::{Deserialize, Serialize};

/// A socket that the master binds for children.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Socket {
    /// The TCP port (`server.listen`).
    Server(SocketAddr),
    /// The HTTP port (`http.listen`).
    Http(SocketAddr),
    /// The port for clients of gmq-redis (`gmq.listen`).
    Gmq(SocketAddr),
    /// The port for clients of beanstalkd (`beanstalk.listen`).
    Beanstalk(SocketAddr),
    /// The Unix socket of the HTTP API.
    HttpUnix(PathBuf),
}

impl Socket {
    /// Returns the name under which a child finds the socket.
    pub fn name(&self) -> &'static str {
        match self {
            Socket::Server(_) => "server",
            Socket::Http(_) => "http",
            Socket::Gmq(_) => "gmq",
            Socket::Beanstalk(_) => "beanstalk",
            Socket::HttpUnix(_) => "http.unix",
        }
    }

    fn is_tcp(&self) -> bool {
        !matches!(self, Socket::HttpUnix(_))
    }

    /// Returns the address where the socket is bound.
    pub fn address(&self) -> String {
        match self {
            Socket::Server(address)
            | Socket::Http(address)
            | Socket::Gmq(address)
            | Socket::Beanstalk(address) => address.to_string(),
            Socket::HttpUnix(path) => path.display().to_string(),
        }
    }

    fn bind(&self, patience: Duration) -> Result<OwnedFd> {
        let tcp = |key: &str, address: SocketAddr| {
            let listener = host::bind_tcp(address, patience).map_err(|e| match e.kind() {
                ErrorKind::AddrInUse => {
                    anyhow!("cannot bind {address} ({key}): address in use (is another dq-master running?)")
                }
                _ => anyhow!("cannot bind {address} ({key}): {e}"),
            })?;
            Ok(listener.into())
        };
        match self {
            Socket::Server(address) => tcp("server.listen", *address),
            Socket::Http(address) => tcp("http.listen", *address),
            Socket::Gmq(address) => tcp("gmq.listen", *address),
            Socket::Beanstalk(address) => tcp("beanstalk.listen", *address),
            Socket::HttpUnix(path) => {
                Ok(host::bind_unix(path).with_context(|| format!("cannot bind {}", path.display()))?.into())
            }
        }
    }
}

/// Returns the address of a TCP socket.
fn bound_to(fd: &OwnedFd) -> Result<SocketAddr> {
    let listener = TcpListener::from(fd.try_clone()?);
    Ok(listener.local_addr()?)
}

/// All sockets that the master has bound.
#[derive(Debug, Default)]
pub struct Sockets(BTreeMap<Socket, OwnedFd>);

impl Sockets {
    /// Binds the sockets that are not bound yet: all of them, or none. A busy port is tried again for `patience`.
    pub fn bind(&mut self, wanted: &[(Role, Socket)], patience: Duration) -> Result<()> {
        let mut new = BTreeMap::new();
        for (_, socket) in wanted.iter().filter(|(_, s)| !self.0.contains_key(s)) {
            new.insert(socket.clone(), socket.bind(patience)?);
        }
        self.0.append(&mut new);
        Ok(())
    }

    /// Takes the sockets that the service manager has bound, by their names: `server`, `http`, `gmq` and `beanstalk`. Each
    /// must be bound to the address in the configuration, because the configuration was checked with that address.
    pub fn take(&mut self, given: Vec<(String, OwnedFd)>, wanted: &[(Role, Socket)]) -> Result<()> {
        for (name, fd) in given {
            let Some((_, socket)) = wanted.iter().find(|(_, s)| s.name() == name && s.is_tcp()) else {
                log::warn!("the service manager's socket {name:?} is not needed, and is closed");
                continue;
            };
            let address =
                bound_to(&fd).with_context(|| format!("cannot use the service manager's socket {name:?}"))?;
            if address.to_string() != socket.address() {
                bail!(
                    "{name}.listen is {}, and the service manager's socket {name:?} is bound to {address}: make them equal",
                    socket.address()
                );
            }
            if self.0.insert(socket.clone(), fd).is_some() {
                bail!("the service manager has given two sockets {name:?}, and dq can use only one");
            }
            log::info!("{name} listens on the service manager's socket, {address}");
        }
        Ok(())
    }

    /// Adds a socket that is bound.
    pub fn add(&mut self, socket: Socket, fd: OwnedFd) {
        self.0.insert(socket, fd);
    }

    /// Returns all sockets.
    pub fn iter(&self) -> impl Iterator<Item = (&Socket, &OwnedFd)> {
        self.0.iter()
    }

    /// Returns one socket, if it is bound.
    pub fn get(&self, socket: &Socket) -> Option<BorrowedFd<'_>> {
        self.0.get(socket).map(AsFd::as_fd)
    }

    /// Closes the sockets that are not wanted any more.
    pub fn keep(&mut self, wanted: impl Fn(&Socket) -> bool) {
        self.0.retain(|socket, _| {
            let keep = wanted(socket);
            if let (false, Socket::HttpUnix(path)) = (keep, socket) {
                // Nobody answers there any more. If the file stays behind, the next master removes it.
                let _ = std::fs::remove_file(path);
            }
            keep
        });
    }
}

//! The sockets that the master has bound. Generations that want the same one share it; one that nobody wants any more is
//! let go.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use serde::{Deserialize, Serialize};

use crate::process;
use crate::slot::Role;

/// A socket that the master binds for children.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Socket {
    /// The TCP port.
    Server(SocketAddr),
    /// The HTTP port.
    Http(SocketAddr),
    /// The HTTP API's Unix socket.
    HttpUnix(PathBuf),
}

impl Socket {
    /// The name under which a child finds it.
    pub fn name(&self) -> &'static str {
        match self {
            Socket::Server(_) => "server",
            Socket::Http(_) => "http",
            Socket::HttpUnix(_) => "http.unix",
        }
    }

    fn is_tcp(&self) -> bool {
        !matches!(self, Socket::HttpUnix(_))
    }

    /// Where it is bound.
    pub fn address(&self) -> String {
        match self {
            Socket::Server(address) | Socket::Http(address) => address.to_string(),
            Socket::HttpUnix(path) => path.display().to_string(),
        }
    }

    fn bind(&self, patience: Duration) -> Result<OwnedFd> {
        let tcp = |key: &str, address: SocketAddr| {
            let listener = process::bind_tcp(address, patience).map_err(|e| match e.kind() {
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
            Socket::HttpUnix(path) => Ok(process::bind_unix(path)
                .with_context(|| format!("cannot bind {}", path.display()))?
                .into()),
        }
    }
}

/// The address of an internet socket.
fn bound_to(fd: &OwnedFd) -> Result<SocketAddr> {
    let listener = TcpListener::from(fd.try_clone()?);
    Ok(listener.local_addr()?)
}

/// All of them.
#[derive(Debug, Default)]
pub struct Sockets(BTreeMap<Socket, OwnedFd>);

impl Sockets {
    /// Binds those that are not bound yet: all of them, or none. A port that is busy is tried again for `patience`.
    pub fn bind(&mut self, wanted: &[(Role, Socket)], patience: Duration) -> Result<()> {
        let mut new = BTreeMap::new();
        for (_, socket) in wanted.iter().filter(|(_, s)| !self.0.contains_key(s)) {
            new.insert(socket.clone(), socket.bind(patience)?);
        }
        self.0.append(&mut new);
        Ok(())
    }

    /// Takes those that the service manager has bound, by their names: `server` and `http`. Each must be bound to what the
    /// configuration says, which is what the checks of it were about.
    pub fn take(&mut self, given: Vec<(String, OwnedFd)>, wanted: &[(Role, Socket)]) -> Result<()> {
        for (name, fd) in given {
            let Some((_, socket)) = wanted.iter().find(|(_, s)| s.name() == name && s.is_tcp()) else {
                log::warn!("the service manager's socket {name:?} is not wanted, and closed");
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
                bail!("the service manager has given two sockets {name:?}: one is what dq can use");
            }
            log::info!("{name} listens on the service manager's socket, {address}");
        }
        Ok(())
    }

    /// Takes one that is bound.
    pub fn add(&mut self, socket: Socket, fd: OwnedFd) {
        self.0.insert(socket, fd);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Socket, &OwnedFd)> {
        self.0.iter()
    }

    /// One of them.
    pub fn get(&self, socket: &Socket) -> Option<BorrowedFd<'_>> {
        self.0.get(socket).map(AsFd::as_fd)
    }

    /// Lets go of those that are not wanted any more.
    pub fn keep(&mut self, wanted: impl Fn(&Socket) -> bool) {
        self.0.retain(|socket, _| {
            let keep = wanted(socket);
            if let (false, Socket::HttpUnix(path)) = (keep, socket) {
                // Nobody answers there any more. One that stays behind is taken down by the next master.
                let _ = std::fs::remove_file(path);
            }
            keep
        });
    }
}

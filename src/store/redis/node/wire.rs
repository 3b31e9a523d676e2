//! Connections: how they are made and kept, and which server answers on each connection.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{ConnectionLike, RedisError};

use super::connector::{Connector, NewConnection};
use model::excerpt::Excerpt;

/// Makes connections for a pool.
pub(super) struct Manager {
    pub connector: Arc<Connector>,
    pub timeout: Duration,
}

/// A connection of a pool, and when it was last used.
pub(super) struct PooledConnection {
    pub connection: redis::Connection,
    pub used_at: Instant,
    /// Whether the connection must not be used again.
    pub broken: bool,
    /// The run id of the server, which changes at each start. Empty: the server does not report it.
    pub server: Arc<str>,
    /// The era in which the connection was made: see [`Connector::era`].
    era: u64,
}

/// The servers that this process has met at one address. To meet a server means: after the process saw the server, the
/// process read the sets of all nodes that answer. If a server has not answered, the process must meet it again.
#[derive(Debug, Default)]
pub(super) struct MetServers(Mutex<HashSet<String>>);

impl MetServers {
    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this process has met that server. (A server without a name cannot be distinguished from another,
    /// so it counts as met.)
    pub(super) fn has(&self, server: &str) -> bool {
        server.is_empty() || self.names().contains(server)
    }

    /// Returns whether this process has met any server at the address.
    pub(super) fn has_any(&self) -> bool {
        !self.names().is_empty()
    }

    /// Notes that this process has met the server.
    pub(super) fn note(&self, server: String) {
        self.names().insert(server);
    }

    /// Forgets all servers: they all have to be met again.
    pub(super) fn forget(&self) {
        self.names().clear();
    }
}

impl r2d2::ManageConnection for Manager {
    type Connection = PooledConnection;
    type Error = RedisError;

    fn connect(&self) -> Result<PooledConnection, RedisError> {
        let NewConnection { connection, server, era } = self.connector.connect(self.timeout, self.timeout)?;
        let (server, used_at) = (server.name.into(), Instant::now());
        Ok(PooledConnection { connection, used_at, broken: false, server, era })
    }

    fn is_valid(&self, wire: &mut PooledConnection) -> Result<(), RedisError> {
        redis::cmd("PING").query(&mut wire.connection)
    }

    fn has_broken(&self, wire: &mut PooledConnection) -> bool {
        wire.broken || !wire.connection.is_open() || wire.is_past(&self.connector)
    }
}

impl PooledConnection {
    /// Returns whether the connection was made in an earlier era, when the connector may have led to another server.
    pub(super) fn is_past(&self, connector: &Connector) -> bool {
        self.era != connector.era()
    }
}

/// How many times no connection could be made, and why the last try failed.
#[derive(Debug, Default)]
pub(super) struct FailedConnects {
    count: AtomicU64,
    last: Mutex<String>,
}

impl FailedConnects {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn last(&self) -> String {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Records the errors of a pool in [`FailedConnects`].
#[derive(Debug)]
pub(super) struct PoolErrorRecorder(pub Arc<FailedConnects>);

impl r2d2::HandleError<RedisError> for PoolErrorRecorder {
    fn handle_error(&self, error: RedisError) {
        let why = Excerpt(error).to_string();
        log::debug!("redis: {why}");
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = why;
        self.0.count.fetch_add(1, Ordering::Release);
    }
}

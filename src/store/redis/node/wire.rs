//! Connections: how one is made, kept, and what is known of who answers on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::{ConnectionLike, RedisError};

use super::door::{Door, Entered};
use crate::excerpt::Excerpt;

/// Makes connections for a pool.
pub(super) struct Manager {
    pub door: Arc<Door>,
    pub timeout: Duration,
}

/// A connection, and when it was last heard of.
pub(super) struct Wire {
    pub connection: redis::Connection,
    pub used_at: Instant,
    /// It is not to be used again.
    pub broken: bool,
    /// Who answers.
    pub server: Arc<ServerId>,
    /// Nobody has been told yet who answers.
    pub is_new: bool,
    /// Of which time it is: see [`Door::era`].
    era: u64,
}

/// Which server answers on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerId {
    /// A name that it gives itself at each start.
    pub run_id: String,
    /// Whether it is a replica.
    pub is_replica: bool,
    /// Whether it has taken over from another one at some time.
    pub took_over: bool,
    /// Since when it has been running; or, as far as that is known, in its role.
    pub since: Option<Instant>,
}

impl ServerId {
    /// Whether it has been what it is for longer than that.
    pub(super) fn is_older_than(&self, age: Duration) -> bool {
        self.since.is_none_or(|since| since.elapsed() > age)
    }
}

impl r2d2::ManageConnection for Manager {
    type Connection = Wire;
    type Error = RedisError;

    fn connect(&self) -> Result<Wire, RedisError> {
        let Entered { connection, server, era } = self.door.enter(self.timeout, self.timeout)?;
        let (server, used_at) = (Arc::new(server), Instant::now());
        Ok(Wire { connection, used_at, broken: false, server, is_new: true, era })
    }

    fn is_valid(&self, wire: &mut Wire) -> Result<(), RedisError> {
        redis::cmd("PING").query(&mut wire.connection)
    }

    fn has_broken(&self, wire: &mut Wire) -> bool {
        wire.broken || !wire.connection.is_open() || wire.is_past(&self.door)
    }
}

impl Wire {
    /// Whether it is of a time when the door led elsewhere.
    pub(super) fn is_past(&self, door: &Door) -> bool {
        self.era != door.era()
    }
}

/// Connects to a server, which may take that long for it and for each write; and so long for an answer.
pub(super) fn connect(
    client: &redis::Client,
    timeout: Duration,
    read_timeout: Duration,
) -> Result<redis::Connection, RedisError> {
    let connection = client.get_connection_with_timeout(timeout)?;
    connection.set_read_timeout(Some(read_timeout))?;
    connection.set_write_timeout(Some(timeout))?;
    Ok(connection)
}

/// Asks who answers. A server that may not be asked is taken for an old master.
pub(super) fn identify(connection: &mut redis::Connection) -> Result<ServerId, RedisError> {
    let asked = redis::cmd("INFO").arg("server").arg("replication").query(connection);
    let info: redis::InfoDict = match asked {
        Ok(info) => info,
        Err(e) if RedisError::is_io_error(&e) => return Err(e),
        Err(e) => {
            log::debug!("redis: a server does not say who it is: {}", Excerpt(e));
            return Ok(ServerId { run_id: String::new(), is_replica: false, took_over: false, since: None });
        }
    };
    let uptime = info.get("uptime_in_seconds").map(Duration::from_secs);
    let before: String = info.get("master_replid2").unwrap_or_default();
    Ok(ServerId {
        run_id: info.get("run_id").unwrap_or_default(),
        is_replica: info.get::<String>("role").is_some_and(|role| role == "slave"),
        took_over: before.bytes().any(|b| b != b'0'),
        since: uptime.and_then(|up| Instant::now().checked_sub(up)),
    })
}

/// How often no connection could be made, and why at last.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: AtomicU64,
    last: Mutex<String>,
}

impl Refusals {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn last(&self) -> String {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a pool tells its refusals to.
#[derive(Debug)]
pub(super) struct Listening(pub Arc<Refusals>);

impl r2d2::HandleError<RedisError> for Listening {
    fn handle_error(&self, error: RedisError) {
        let why = Excerpt(error).to_string();
        log::debug!("redis: {why}");
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = why;
        self.0.count.fetch_add(1, Ordering::Release);
    }
}

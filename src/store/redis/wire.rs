//! Connections to a server: how they are made, kept, and what is known of who answers on them.

use std::time::{Duration, Instant};

use redis::{ConnectionLike, RedisError};

/// Makes connections to a server.
#[derive(Debug)]
pub(super) struct Manager {
    pub client: redis::Client,
    pub timeout: Duration,
}

/// A connection, and when it was last heard of.
pub(super) struct Wire {
    pub connection: redis::Connection,
    pub used_at: Instant,
    /// It leads to a server that is not, or no longer, what it should be.
    pub stale: bool,
    /// Who answers; none: it is noted already.
    pub server: Option<ServerId>,
}

/// Which server answers on a connection.
pub(super) struct ServerId {
    /// A name that it gives itself at each start.
    pub run_id: String,
    pub uptime: Duration,
}

impl r2d2::ManageConnection for Manager {
    type Connection = Wire;
    type Error = RedisError;

    fn connect(&self) -> Result<Wire, RedisError> {
        let mut connection = connect(&self.client, self.timeout, self.timeout)?;
        let server = Some(identify(&mut connection)?);
        Ok(Wire { connection, used_at: Instant::now(), stale: false, server })
    }

    fn is_valid(&self, wire: &mut Wire) -> Result<(), RedisError> {
        redis::cmd("PING").query(&mut wire.connection)
    }

    fn has_broken(&self, wire: &mut Wire) -> bool {
        wire.stale || !wire.connection.is_open()
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

/// Asks who answers. A server that may not be asked is taken for an old one.
pub(super) fn identify(connection: &mut redis::Connection) -> Result<ServerId, RedisError> {
    let info: redis::RedisResult<redis::InfoDict> = redis::cmd("INFO").arg("server").query(connection);
    match info {
        Ok(info) => Ok(ServerId {
            run_id: info.get("run_id").unwrap_or_default(),
            uptime: Duration::from_secs(info.get("uptime_in_seconds").unwrap_or(u64::from(u32::MAX))),
        }),
        Err(e) if e.is_io_error() => Err(e),
        Err(e) => {
            log::debug!("redis: a server does not say who it is: {e}");
            Ok(ServerId { run_id: String::new(), uptime: Duration::MAX })
        }
    }
}

/// The pool's own reports: what matters is told by those who wait.
#[derive(Debug)]
pub(super) struct Quiet;

impl r2d2::HandleError<RedisError> for Quiet {
    fn handle_error(&self, error: RedisError) {
        log::debug!("redis: {error}");
    }
}

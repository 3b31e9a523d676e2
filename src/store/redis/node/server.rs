//! Connects to one server, and asks for its run id and its role.

use std::time::Duration;

use redis::RedisError;

use model::excerpt::Excerpt;

/// The server that answers on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerId {
    /// The run id of the server, which changes at each start.
    pub name: String,
    /// Whether the server is a replica.
    pub is_replica: bool,
}

/// Connects to a server. The connection, and each write, may take `timeout`; each answer may take `read_timeout`.
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

/// Asks a server for its run id and its role. A server that does not allow INFO counts as a master without a run id.
pub(super) fn identify(connection: &mut redis::Connection) -> Result<ServerId, RedisError> {
    let asked = redis::cmd("INFO").arg("server").arg("replication").query(connection);
    let info: redis::InfoDict = match asked {
        Ok(info) => info,
        Err(e) if RedisError::is_io_error(&e) => return Err(e),
        Err(e) => {
            log::debug!("redis: a server does not say who it is: {}", Excerpt(e));
            return Ok(ServerId { name: String::new(), is_replica: false });
        }
    };
    Ok(ServerId {
        name: info.get("run_id").unwrap_or_default(),
        is_replica: info.get::<String>("role").is_some_and(|role| role == "slave"),
    })
}

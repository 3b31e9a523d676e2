//! The settings of the port for clients of beanstalkd.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::scope::Scope;

/// The port for clients of beanstalkd. Their protocol has no credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeanstalkSettings {
    /// The address to listen on. None: there is no such port.
    pub listen: Option<SocketAddr>,
    /// The addresses of clients that may connect. Empty: all clients that can reach the port.
    pub allow: Vec<IpNet>,
    /// What each client may do.
    pub scopes: Vec<Scope>,
    /// Whether the first put into a tube registers the topic of the tube.
    pub create: bool,
    /// The greatest number of connections that are open at the same time.
    pub max_connections: usize,
    /// The greatest number of connections that are open at the same time from one address, or from one IPv6 network of
    /// 64 bits.
    pub max_connections_per_source: usize,
    /// A connection without any traffic for this long is closed. A connection that waits for a job or has reserved a
    /// job stays open.
    pub idle_timeout: Duration,
    /// The longest body of a job, in bytes.
    pub max_job_size: u32,
}

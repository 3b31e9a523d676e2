//! Limits the connections of a TCP port: which clients may connect, and how many connections there are at the same
//! time. Each connection takes a place.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ipnet::IpNet;

use model::failure_limiter::ClientSource;
use model::open_connections::OpenConnections;
use role::lock;

/// The places of a port. All clones share them.
#[derive(Clone)]
pub(super) struct ConnectionLimiter {
    /// The section of the configuration.
    name: &'static str,
    allow: Vec<IpNet>,
    open: Arc<Mutex<OpenConnections>>,
    turned_away: Arc<AtomicU64>,
}

impl ConnectionLimiter {
    pub(super) fn new(
        name: &'static str,
        allow: &[IpNet],
        most: usize,
        per_source: usize,
    ) -> ConnectionLimiter {
        let open = Arc::new(Mutex::new(OpenConnections::new(most, per_source)));
        ConnectionLimiter { name, allow: allow.to_vec(), open, turned_away: Arc::default() }
    }

    /// Returns the section of the configuration that describes the port.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns a place for a client. None: the client may not connect. The log says why, but not at each refusal.
    pub(super) fn admit(&mut self, ip: IpAddr) -> Option<ConnectionGuard> {
        match self.find(ip) {
            Ok(place) => Some(place),
            Err(why) => {
                let turned_away = self.turned_away.fetch_add(1, Ordering::Relaxed) + 1;
                // Only the 1st, 2nd, 4th, 8th (and so on) refusal is logged, so that a flood of connections does not
                // flood the log.
                if turned_away.is_power_of_two() {
                    log::warn!("{ip} is turned away: {why} ({turned_away} so far)");
                }
                None
            }
        }
    }

    fn find(&self, ip: IpAddr) -> Result<ConnectionGuard, String> {
        if !self.allow.is_empty() && !self.allow.iter().any(|net| net.contains(&ip)) {
            return Err(format!("{}.allow does not name it", self.name));
        }
        let source = ClientSource::address(ip);
        let mut open = lock(&self.open);
        open.check(source, 0).map_err(|no_place| no_place.to_string())?;
        open.opened(source);
        Ok(ConnectionGuard { open: Arc::clone(&self.open), source })
    }
}

/// The place of a connection of a port. The place is free again when this value is dropped.
pub(super) struct ConnectionGuard {
    open: Arc<Mutex<OpenConnections>>,
    source: ClientSource,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        lock(&self.open).closed(self.source);
    }
}

//! Opens connections to a server of a node: to a fixed address, or to the server that the Sentinels call the master.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{ErrorKind, RedisError};

use super::access::Access;
use super::wire::{ServerId, connect, identify};

/// Opens the connections of a node, or of one master of a Cluster.
pub(super) struct Connector {
    leads: Route,
    /// Counts how often the server behind this connector was found to be another one. Connections of an earlier era are
    /// not used.
    era: AtomicU64,
    /// The address of the last connection.
    address: Mutex<String>,
}

enum Route {
    To(redis::Client),
    Asking(Sentinels),
}

/// A new connection, its server, and the connector's era (the number of changes of the server) at that time.
pub(super) struct NewConnection {
    pub connection: redis::Connection,
    pub server: ServerId,
    pub era: u64,
}

impl Connector {
    /// Makes a connector to one server.
    pub(super) fn to(access: &Access) -> Result<Connector, RedisError> {
        Ok(Connector {
            leads: Route::To(access.client()?),
            era: AtomicU64::new(0),
            address: Mutex::new(access.address()),
        })
    }

    /// Makes a connector to the master that Sentinels know by a name.
    pub(super) fn by_sentinels(
        sentinels: Vec<Access>,
        name: &str,
        master: Access,
    ) -> Result<Connector, RedisError> {
        let clients = sentinels.iter().map(|s| Ok((s.address(), s.client()?)));
        let sentinels = Sentinels {
            sentinels: clients.collect::<Result<_, RedisError>>()?,
            name: name.to_owned(),
            master,
            good: AtomicUsize::new(0),
        };
        Ok(Connector { leads: Route::Asking(sentinels), era: AtomicU64::new(0), address: Mutex::default() })
    }

    pub(super) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Begins a new era, because the server is not what it should be. All connections so far are thrown away.
    pub(super) fn forget(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the address of the last connection. It is empty before the first one.
    pub(super) fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a connection. Each server that is asked on the way may take `timeout`.
    pub(super) fn connect(
        &self,
        timeout: Duration,
        read_timeout: Duration,
    ) -> Result<NewConnection, RedisError> {
        let era = self.era();
        let (connection, server, era) = match &self.leads {
            Route::To(client) => {
                let mut connection = connect(client, timeout, timeout)?;
                let server = identify(&mut connection)?;
                (connection, server, era)
            }
            Route::Asking(sentinels) => {
                let (connection, server, address) = sentinels.master(timeout)?;
                (connection, server, self.found(&sentinels.name, address, era))
            }
        };
        connection.set_read_timeout(Some(read_timeout))?;
        Ok(NewConnection { connection, server, era })
    }

    /// Returns whether this connector asks Sentinels for the address.
    pub(super) fn asks_sentinels(&self) -> bool {
        matches!(self.leads, Route::Asking(_))
    }

    /// Returns how many replicas of the master the Sentinels know, including those that are down. None: no Sentinel
    /// answers, or there are none.
    pub(super) fn known_replicas(&self, timeout: Duration) -> Option<u64> {
        match &self.leads {
            Route::To(_) => None,
            Route::Asking(sentinels) => sentinels.replicas(timeout),
        }
    }

    /// Notes the address of the master. `began` is the era in which the caller began to ask. Returns the era of the
    /// connection that was made.
    fn found(&self, master: &str, address: String, began: u64) -> u64 {
        let mut known = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = !known.is_empty() && *known != address;
        let era = began + u64::from(moved);
        // If another thread has begun a new era meanwhile, that one holds, and this address is not noted. A master that
        // hung and was replaced answers the threads that waited for it when it wakes.
        if self.era.compare_exchange(began, era, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return began;
        }
        if moved {
            log::warn!("sentinels: the master {master} is {address} now, and was {known}");
        }
        *known = address;
        era
    }
}

fn no_master(what: &'static str, why: String) -> RedisError {
    RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, what, why))
}

/// The Sentinels of a node. They know which server is the master.
struct Sentinels {
    sentinels: Vec<(String, redis::Client)>,
    name: String,
    /// How to connect to the master.
    master: Access,
    /// The index of the Sentinel that last gave the right answer.
    good: AtomicUsize,
}

impl Sentinels {
    /// Opens a connection to the master. Asks one Sentinel after the other, because one may be down, cut off, or not
    /// know the newest master yet. A server counts as the master only if it says so itself.
    fn master(&self, timeout: Duration) -> Result<(redis::Connection, ServerId, String), RedisError> {
        let count = self.sentinels.len();
        let first = self.good.load(Ordering::Relaxed);
        let mut whys = Vec::new();
        for i in (0..count).map(|i| (first + i) % count) {
            let (address, client) = &self.sentinels[i];
            match self.master_by(client, timeout) {
                Ok(found) => {
                    self.good.store(i, Ordering::Relaxed);
                    return Ok(found);
                }
                Err(e) => whys.push(format!("{address}: {e}")),
            }
        }
        Err(no_master("no sentinel knows a master", whys.join("; ")))
    }

    fn replicas(&self, timeout: Duration) -> Option<u64> {
        self.sentinels.iter().find_map(|(_, client)| {
            let mut asked = connect(client, timeout, timeout).ok()?;
            let about: HashMap<String, String> =
                redis::cmd("SENTINEL").arg("MASTER").arg(&self.name).query(&mut asked).ok()?;
            about.get("num-slaves")?.parse().ok()
        })
    }

    fn master_by(
        &self,
        sentinel: &redis::Client,
        timeout: Duration,
    ) -> Result<(redis::Connection, ServerId, String), RedisError> {
        let mut asked = connect(sentinel, timeout, timeout)?;
        let place = |asked: &mut redis::Connection| -> redis::RedisResult<(String, u16)> {
            let place: Option<(String, u16)> =
                redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name).query(asked)?;
            place.ok_or_else(|| no_master("unknown master", format!("it does not monitor {:?}", self.name)))
        };
        let (host, port) = place(&mut asked)?;
        let there = self.master.at(&host, port);
        let mut connection = connect(&there.client()?, timeout, timeout)?;
        let server = identify(&mut connection)?;
        if server.is_replica {
            return Err(no_master("no master", format!("{} is a replica", there.address())));
        }
        // A master that hung and was replaced meanwhile takes itself for the master when it wakes. So the Sentinel is
        // asked once more.
        if place(&mut asked)? != (host, port) {
            return Err(no_master("no master", format!("{} is not the master any more", there.address())));
        }
        Ok((connection, server, there.address()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asked_before_another_master_was_found_does_not_lead_back() {
        let access = Access::new("redis://127.0.0.1:1/", &Default::default()).unwrap();
        let connector = Connector::to(&access).unwrap();
        let (first, second) = (connector.era(), connector.era());
        let era = connector.found("m", "new:1".into(), first);
        assert!(era != first && era == connector.era(), "connections so far are of no use any more");
        assert_eq!(connector.found("m", "127.0.0.1:1".into(), second), second);
        assert_eq!((connector.era(), connector.address()), (era, "new:1".to_owned()));
        assert_eq!(connector.found("m", "new:1".into(), era), era);
    }
}

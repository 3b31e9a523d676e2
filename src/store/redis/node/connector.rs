//! Opens connections to a server of a node: to a fixed address, or to the server that the Sentinels call the master.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{ErrorKind, RedisError};

use super::access::ConnectionParameters;
use super::server::{ServerId, connect, identify};

/// Opens the connections of a node, or of one master of a Cluster.
pub(super) struct Connector {
    leads: ServerLookup,
    /// Grows each time that the connector finds another server than before, and each time that all connections must be
    /// given up: see `forget`. Connections of an earlier era are not used.
    era: AtomicU64,
    /// The address of the last connection.
    address: Mutex<String>,
}

enum ServerLookup {
    To(redis::Client),
    Asking(Sentinels),
}

/// A new connection, its server, and the era in which the connection was made.
pub(super) struct NewConnection {
    pub connection: redis::Connection,
    pub server: ServerId,
    pub era: u64,
}

impl Connector {
    /// Makes a connector to one server.
    pub(super) fn to(access: &ConnectionParameters) -> Result<Connector, RedisError> {
        Ok(Connector {
            leads: ServerLookup::To(access.client()?),
            era: AtomicU64::new(0),
            address: Mutex::new(access.address()),
        })
    }

    /// Makes a connector to the master that Sentinels know by a name.
    pub(super) fn by_sentinels(
        sentinels: Vec<ConnectionParameters>,
        name: &str,
        master: ConnectionParameters,
    ) -> Result<Connector, RedisError> {
        let sentinel = |access: &ConnectionParameters| {
            Ok(Sentinel {
                address: access.address(),
                client: access.client()?,
                failed: AtomicBool::new(false),
            })
        };
        let sentinels = Sentinels {
            sentinels: sentinels.iter().map(sentinel).collect::<Result<_, RedisError>>()?,
            name: name.to_owned(),
            master,
        };
        Ok(Connector {
            leads: ServerLookup::Asking(sentinels),
            era: AtomicU64::new(0),
            address: Mutex::default(),
        })
    }

    pub(super) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Begins a new era, because the server does not answer, or is not the expected server. No earlier connection is
    /// used again.
    pub(super) fn forget(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the address of the last connection. The address is empty before the first connection.
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
            ServerLookup::To(client) => {
                let mut connection = connect(client, timeout, timeout)?;
                let server = identify(&mut connection)?;
                (connection, server, era)
            }
            ServerLookup::Asking(sentinels) => {
                let (connection, server, address) = sentinels.master(timeout)?;
                (connection, server, self.found(&sentinels.name, address, era))
            }
        };
        connection.set_read_timeout(Some(read_timeout))?;
        Ok(NewConnection { connection, server, era })
    }

    /// Returns whether this connector asks Sentinels for the address.
    pub(super) fn asks_sentinels(&self) -> bool {
        matches!(self.leads, ServerLookup::Asking(_))
    }

    /// Returns how many replicas of the master the Sentinels know, including those that are down. None: no Sentinel
    /// answers, or there are no Sentinels.
    pub(super) fn known_replicas(&self, timeout: Duration) -> Option<u64> {
        match &self.leads {
            ServerLookup::To(_) => None,
            ServerLookup::Asking(sentinels) => sentinels.replicas(timeout),
        }
    }

    /// Notes the address of the master. `began` is the era in which the caller began to ask. Returns the era of the
    /// connection that was made.
    fn found(&self, master: &str, address: String, began: u64) -> u64 {
        let mut known = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = !known.is_empty() && *known != address;
        let era = began + u64::from(moved);
        // If another thread has begun a new era meanwhile, that era is the current one, and this address is not noted.
        // This address may belong to a former master. For example, a master hangs and is replaced. When the former
        // master works again, it still answers the threads that waited for it.
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
    sentinels: Vec<Sentinel>,
    name: String,
    /// How to connect to the master.
    master: ConnectionParameters,
}

struct Sentinel {
    address: String,
    client: redis::Client,
    /// Whether this Sentinel did not answer the last time. Such a Sentinel is asked after the others.
    failed: AtomicBool,
}

/// Which server is the master, in the view of one Sentinel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SentinelView {
    /// The number of the failover that made this server the master. Of two views, Sentinels use the one with the higher
    /// number (`config-epoch` of `SENTINEL MASTER`).
    epoch: u64,
    host: String,
    port: u16,
}

impl Sentinels {
    /// Opens a connection to the master.
    fn master(&self, timeout: Duration) -> Result<(redis::Connection, ServerId, String), RedisError> {
        let mut whys = Vec::new();
        for view in self.newest_views(timeout)? {
            match self.connect_to(&view, timeout) {
                Ok(connected) => return Ok(connected),
                Err(e) => whys.push(e),
            }
        }
        let why = whys.iter().map(RedisError::to_string).collect::<Vec<_>>().join("; ");
        Err(whys.pop().filter(|_| whys.is_empty()).unwrap_or_else(|| no_master("no master", why)))
    }

    /// Connects to the master of a view. Returns an error if the server is a replica, or if the Sentinels do not name
    /// this server as the master any more.
    fn connect_to(
        &self,
        view: &SentinelView,
        timeout: Duration,
    ) -> Result<(redis::Connection, ServerId, String), RedisError> {
        let there = self.master.at(&view.host, view.port);
        let mut connection = connect(&there.client()?, timeout, timeout)?;
        let server = identify(&mut connection)?;
        if server.is_replica {
            return Err(no_master("no master", format!("{} is a replica", there.address())));
        }
        // A master may hang and be replaced meanwhile. When the former master works again, it still reports that it is
        // the master. So the Sentinels are asked once more.
        if !self.newest_views(timeout)?.contains(view) {
            return Err(no_master("no master", format!("{} is not the master any more", there.address())));
        }
        Ok((connection, server, there.address()))
    }

    /// Asks Sentinels until more than half of them have answered, or all were asked. Returns the newest of their views.
    /// One answer is not enough: a Sentinel that was cut off, or does not know of the last failover, would name a
    /// server that is not the master any more.
    fn newest_views(&self, timeout: Duration) -> Result<Vec<SentinelView>, RedisError> {
        let (mut views, mut whys) = (Vec::new(), Vec::new());
        for sentinel in self.in_order() {
            match self.view_of(sentinel, timeout) {
                Ok(view) => views.push(view),
                Err(e) => whys.push(format!("{}: {e}", sentinel.address)),
            }
            if views.len() * 2 > self.sentinels.len() {
                break;
            }
        }
        match views.is_empty() {
            true => Err(no_master("no sentinel knows a master", whys.join("; "))),
            false => Ok(newest(views)),
        }
    }

    /// Returns the Sentinels in the order in which to ask them.
    fn in_order(&self) -> impl Iterator<Item = &Sentinel> {
        let by = |failed: bool| {
            self.sentinels.iter().filter(move |sentinel| sentinel.failed.load(Ordering::Relaxed) == failed)
        };
        let order: Vec<&Sentinel> = by(false).chain(by(true)).collect();
        order.into_iter()
    }

    fn view_of(&self, sentinel: &Sentinel, timeout: Duration) -> Result<SentinelView, RedisError> {
        let asked = self.ask_view(sentinel, timeout);
        sentinel.failed.store(asked.is_err(), Ordering::Relaxed);
        asked
    }

    fn ask_view(&self, sentinel: &Sentinel, timeout: Duration) -> Result<SentinelView, RedisError> {
        let mut asked = connect(&sentinel.client, timeout, timeout)?;
        // While a failover ends, only this command names the new master. SENTINEL MASTER still names the former one.
        let place: Option<(String, u16)> =
            redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name).query(&mut asked)?;
        let (host, port) = place
            .ok_or_else(|| no_master("unknown master", format!("it does not monitor {:?}", self.name)))?;
        let about = self.about(&mut asked)?;
        let epoch = about.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok(SentinelView { epoch, host, port })
    }

    fn about(&self, asked: &mut redis::Connection) -> Result<HashMap<String, String>, RedisError> {
        redis::cmd("SENTINEL").arg("MASTER").arg(&self.name).query(asked)
    }

    fn replicas(&self, timeout: Duration) -> Option<u64> {
        self.in_order().find_map(|sentinel| {
            let mut asked = connect(&sentinel.client, timeout, timeout).ok()?;
            self.about(&mut asked).ok()?.get("num-slaves")?.parse().ok()
        })
    }
}

/// Returns the views of the latest failover, each once.
fn newest(mut views: Vec<SentinelView>) -> Vec<SentinelView> {
    let last = views.iter().map(|view| view.epoch).max();
    views.retain(|view| Some(view.epoch) == last);
    views.sort();
    views.dedup();
    views
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_that_missed_the_last_failover_is_not_followed() {
        let view = |epoch, port| SentinelView { epoch, host: "h".into(), port };
        assert_eq!(newest(vec![view(3, 1), view(4, 2), view(3, 1)]), [view(4, 2)]);
        // Sentinels that do not know each other may name two masters with the same epoch. Then dq asks both servers
        // which of them is the master.
        assert_eq!(newest(vec![view(0, 2), view(0, 1), view(0, 2)]), [view(0, 1), view(0, 2)]);
    }

    #[test]
    fn who_asked_before_another_master_was_found_does_not_lead_back() {
        let access = ConnectionParameters::new("redis://127.0.0.1:1/", &Default::default()).unwrap();
        let connector = Connector::to(&access).unwrap();
        let (first, second) = (connector.era(), connector.era());
        let era = connector.found("m", "new:1".into(), first);
        assert!(era != first && era == connector.era(), "connections so far are of no use any more");
        assert_eq!(connector.found("m", "127.0.0.1:1".into(), second), second);
        assert_eq!((connector.era(), connector.address()), (era, "new:1".to_owned()));
        assert_eq!(connector.found("m", "new:1".into(), era), era);
    }
}

//! Where a connection leads: to a server, or to the one that sentinels call the master.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError};

use super::access::Access;
use super::wire::{ServerId, connect, identify};

/// What a node's, or a Cluster master's, connections go through.
pub(super) struct Door {
    leads: Leads,
    /// Counts how often what it leads to was found to be another one. Connections of an earlier time are not used.
    era: AtomicU64,
    /// Where it led at last.
    address: Mutex<String>,
}

enum Leads {
    To(redis::Client),
    Asking(Sentinels),
}

/// A connection that was made.
pub(super) struct Entered {
    pub connection: redis::Connection,
    pub server: ServerId,
    pub era: u64,
}

impl Door {
    /// To one server.
    pub(super) fn to(access: &Access) -> Result<Door, RedisError> {
        Ok(Door {
            leads: Leads::To(access.client()?),
            era: AtomicU64::new(0),
            address: Mutex::new(access.address()),
        })
    }

    /// To the master that sentinels know by a name.
    pub(super) fn asking(sentinels: Vec<Access>, name: &str, master: Access) -> Result<Door, RedisError> {
        let clients = sentinels.iter().map(|s| Ok((s.address(), s.client()?)));
        let sentinels = Sentinels {
            sentinels: clients.collect::<Result<_, RedisError>>()?,
            name: name.to_owned(),
            master,
            good: AtomicUsize::new(0),
        };
        Ok(Door { leads: Leads::Asking(sentinels), era: AtomicU64::new(0), address: Mutex::default() })
    }

    pub(super) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// What it led to is not what it should be: all connections so far are thrown away.
    pub(super) fn forget(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// Where it led at last; empty: nowhere yet.
    pub(super) fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connects. Each server that is asked on the way may take `timeout`.
    pub(super) fn enter(&self, timeout: Duration, read_timeout: Duration) -> Result<Entered, RedisError> {
        let era = self.era();
        let (connection, server, era) = match &self.leads {
            Leads::To(client) => {
                let mut connection = connect(client, timeout, timeout)?;
                let server = identify(&mut connection)?;
                (connection, server, era)
            }
            Leads::Asking(sentinels) => {
                let (connection, server, address) = sentinels.master(timeout)?;
                (connection, server, self.found(&sentinels.name, address, era))
            }
        };
        connection.set_read_timeout(Some(read_timeout))?;
        Ok(Entered { connection, server, era })
    }

    /// Notes where a master was found by who began to ask in that era. Gives the era of the connection that was made to it.
    fn found(&self, master: &str, address: String, began: u64) -> u64 {
        let mut known = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = !known.is_empty() && *known != address;
        let era = began + u64::from(moved);
        // Where somebody has found out more meanwhile, that holds: a master that hung and was replaced answers those who wait for
        // it when it wakes.
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

/// Those who know which server is the master.
struct Sentinels {
    sentinels: Vec<(String, redis::Client)>,
    name: String,
    /// How the master is spoken with.
    master: Access,
    /// Which of them was right at last.
    good: AtomicUsize,
}

impl Sentinels {
    /// A connection to the master. Asks one after the other, since one may be down, cut off, or not know the newest yet: what
    /// it calls the master counts only when it calls itself so.
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

    fn master_by(
        &self,
        sentinel: &redis::Client,
        timeout: Duration,
    ) -> Result<(redis::Connection, ServerId, String), RedisError> {
        let mut asked = connect(sentinel, timeout, timeout)?;
        let ask = |what: &str| {
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg(what).arg(&self.name);
            cmd
        };
        // The first is told at once when another one takes over, the second says since when it is the master.
        let place = |asked: &mut redis::Connection| -> redis::RedisResult<(String, u16)> {
            let place: Option<(String, u16)> = ask("GET-MASTER-ADDR-BY-NAME").query(asked)?;
            place.ok_or_else(|| no_master("unknown master", format!("it monitors no {:?}", self.name)))
        };
        let (host, port) = place(&mut asked)?;
        let about: redis::RedisResult<std::collections::HashMap<String, String>> =
            ask("MASTER").query(&mut asked);
        let is_it = |about: &std::collections::HashMap<String, String>| {
            about.get("ip") == Some(&host) && about.get("port") == Some(&port.to_string())
        };
        let in_role = about.ok().filter(is_it).and_then(|a| a.get("role-reported-time")?.parse().ok());
        let there = self.master.at(&host, port);
        let mut connection = connect(&there.client()?, timeout, timeout)?;
        let mut server = identify(&mut connection)?;
        if server.is_replica {
            return Err(no_master("no master", format!("{} is a replica", there.address())));
        }
        // One that hangs and is replaced meanwhile takes itself for the master when it wakes.
        if place(&mut asked)? != (host, port) {
            return Err(no_master("no master", format!("{} is none any more", there.address())));
        }
        // What has been running for long may have been a replica until a moment ago.
        let since = Instant::now().checked_sub(Duration::from_millis(in_role.unwrap_or(0)));
        server.since = since.max(server.since);
        Ok((connection, server, there.address()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asked_before_another_master_was_found_does_not_lead_back() {
        let access = Access::new("redis://127.0.0.1:1/", &Default::default()).unwrap();
        let door = Door::to(&access).unwrap();
        let (first, second) = (door.era(), door.era());
        let era = door.found("m", "new:1".into(), first);
        assert!(era != first && era == door.era(), "connections so far are of no use any more");
        assert_eq!(door.found("m", "127.0.0.1:1".into(), second), second);
        assert_eq!((door.era(), door.address()), (era, "new:1".to_owned()));
        assert_eq!(door.found("m", "new:1".into(), era), era);
    }
}

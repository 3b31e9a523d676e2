//! Judges how safe a Redis server can make jobs, from what the server reports about itself. Pure.

use std::collections::BTreeMap;

use model::topic::Durability;

/// From this release of Redis on, WAITAOF answers only when a change is on the disk. With `appendfsync everysec`,
/// WAITAOF of Redis 7.2 and 7.4 and of Valkey may answer earlier: <https://github.com/redis/redis/pull/13793>. Valkey
/// 8.0.1 was seen to do this. Valkey 9.1 has the same code.
const TELLS_OF_DISK: (u32, u32) = (8, 0);

/// What a server can promise about the changes that it makes. A field is `None` if the server does not report it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerDurability {
    /// The release of Redis. If the server is not Redis: the release of Redis that it claims to be compatible with.
    pub version: Option<(u32, u32)>,
    /// Its name, if it is not Redis.
    pub fork: Option<String>,
    /// Whether it writes an append-only file.
    pub aof: Option<bool>,
    /// Whether each change is on the disk before it is answered (`appendfsync always`).
    pub syncs_always: Option<bool>,
    /// The number of replicas that the server reports as `online`.
    pub replicas: Option<u64>,
}

impl ServerDurability {
    /// Reads the answers of INFO and CONFIG GET. Either of them may be empty.
    pub fn new(info: &BTreeMap<String, String>, config: &BTreeMap<String, String>) -> ServerDurability {
        let is_online = |(key, value): (&String, &String)| {
            key.strip_prefix("slave").is_some_and(|n| n.parse::<u32>().is_ok())
                && value.contains("state=online")
        };
        let version = info.get("redis_version").and_then(|text| {
            let mut parts = text.split('.').map(|part| part.parse().ok());
            Some((parts.next()??, parts.next()??))
        });
        // While a server loads its append-only file, INFO says that it writes none.
        let is_loading = info.get("loading").is_some_and(|value| value != "0");
        let aof = info.get("aof_enabled").filter(|_| !is_loading).map(|value| value != "0");
        let fork = info.get("server_name").filter(|name| name.as_str() != "redis");
        ServerDurability {
            version,
            fork: fork.cloned(),
            aof: aof.or_else(|| config.get("appendonly").map(|value| value == "yes")),
            syncs_always: config.get("appendfsync").map(|value| value == "always"),
            replicas: info
                .contains_key("role")
                .then(|| info.iter().filter(|pair| is_online(*pair)).count() as u64),
        }
    }

    /// Returns whether an answer of its WAITAOF reliably means that a change is on the disk.
    pub fn reports_disk(&self) -> bool {
        self.fork.is_none() && self.version.is_some_and(|version| version >= TELLS_OF_DISK)
    }

    /// Returns whether each change is on the disk before the server answers it.
    pub fn answers_from_disk(&self) -> bool {
        self.aof == Some(true) && self.syncs_always == Some(true)
    }

    /// Returns why the server cannot make changes as safe as `level`. None: the server can, or it does not report its
    /// replicas.
    pub fn lacks(&self, level: Durability) -> Option<String> {
        match level {
            Durability::Memory => None,
            Durability::Fsync if self.aof == Some(false) => {
                Some("it writes no append-only file (set appendonly yes)".to_owned())
            }
            Durability::Fsync if self.answers_from_disk() || self.reports_disk() => None,
            Durability::Fsync => {
                let name = self.fork.as_deref().unwrap_or("Redis");
                let release = match self.version {
                    Some((major, minor)) if self.fork.is_none() => format!("it is {name} {major}.{minor}"),
                    Some(_) => format!("it is {name}"),
                    None => "it does not say which release it is (INFO is forbidden?)".to_owned(),
                };
                let how = match self.syncs_always {
                    None => "its appendfsync is not known (CONFIG GET is forbidden?)",
                    _ => "its appendfsync is not always",
                };
                Some(format!(
                    "{release}, which cannot be relied on to tell when a change is on the disk, and {how}: set appendfsync always, or take \
                     Redis 8 or later"
                ))
            }
            Durability::Replicas(wanted) => {
                let there = self.replicas?;
                (there < u64::from(wanted))
                    .then(|| format!("{there} replicas follow it, of {wanted} that are asked for"))
            }
        }
    }

    /// Returns whether a crash loses all changes since the last snapshot, or everything if there is no snapshot.
    pub fn keeps_snapshots_only(&self) -> bool {
        self.aof == Some(false)
    }

    /// Returns the highest durability level that the server can promise without replicas.
    pub fn alone(&self) -> Durability {
        let can_sync =
            self.aof.is_some() && self.version.is_some() && self.lacks(Durability::Fsync).is_none();
        if can_sync { Durability::Fsync } else { Durability::Memory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn what_a_server_can_promise_follows_from_what_it_tells() {
        let info =
            |version, aof| map(&[("redis_version", version), ("aof_enabled", aof), ("role", "master")]);
        let fsync = |sync| map(&[("appendfsync", sync)]);
        for (version, aof, sync, alone) in [
            ("7.0.15", "1", fsync("everysec"), Durability::Memory),
            ("7.0.15", "1", fsync("always"), Durability::Fsync),
            ("7.0.15", "1", map(&[]), Durability::Memory),
            ("7.0.15", "0", fsync("always"), Durability::Memory),
            ("7.4.2", "1", fsync("everysec"), Durability::Memory),
            ("8.0.0", "1", fsync("everysec"), Durability::Fsync),
            ("8.0.0", "1", map(&[]), Durability::Fsync),
            ("8.0.0", "0", fsync("always"), Durability::Memory),
        ] {
            let capability = ServerDurability::new(&info(version, aof), &sync);
            assert_eq!(capability.alone(), alone, "{version} {aof} {sync:?}");
            assert_eq!(capability.lacks(Durability::Fsync).is_none(), alone == Durability::Fsync);
            assert_eq!(capability.keeps_snapshots_only(), aof == "0");
        }
        let mut loading = info("7.0.15", "0");
        loading.insert("loading".into(), "1".into());
        assert!(!ServerDurability::new(&loading, &map(&[])).keeps_snapshots_only());
        assert!(!ServerDurability::new(&loading, &map(&[("appendonly", "yes")])).keeps_snapshots_only());
        assert!(ServerDurability::new(&loading, &map(&[("appendonly", "no")])).keeps_snapshots_only());
        let older = ServerDurability::new(&info("7.0.15", "1"), &fsync("everysec"));
        assert!(older.lacks(Durability::Fsync).unwrap().contains("7.0"));
        let mut fork = info("8.0.0", "1");
        fork.insert("server_name".into(), "valkey".into());
        let fork = |sync| ServerDurability::new(&fork, &fsync(sync));
        assert!(fork("everysec").lacks(Durability::Fsync).unwrap().starts_with("it is valkey,"));
        assert_eq!(fork("always").alone(), Durability::Fsync);
    }

    #[test]
    fn only_replicas_that_follow_are_counted() {
        let info = map(&[
            ("role", "master"),
            ("slave0", "ip=h,port=1,state=online,offset=1,lag=0"),
            ("slave1", "ip=h,port=2,state=wait_bgsave,offset=0,lag=0"),
            ("slave_repl_offset", "9"),
        ]);
        let capability = ServerDurability::new(&info, &map(&[]));
        assert_eq!(capability.replicas, Some(1));
        assert_eq!(capability.lacks(Durability::Replicas(1)), None);
        assert!(capability.lacks(Durability::Replicas(2)).unwrap().contains("1 replicas follow it, of 2"));
    }

    #[test]
    fn a_server_that_tells_nothing_promises_no_disk() {
        let silent = ServerDurability::default();
        assert!(silent.lacks(Durability::Fsync).unwrap().contains("INFO is forbidden"));
        assert_eq!(silent.lacks(Durability::Replicas(1)), None);
        assert!(!silent.keeps_snapshots_only());
        assert_eq!(silent.alone(), Durability::Memory);
    }
}

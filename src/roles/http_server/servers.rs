//! Details of the nodes, for people: what each server reports about itself, or the size of the embedded store's file.
//! Each node is asked on a separate thread. A node that does not answer in time is left out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use serde::Serialize;
use utoipa::ToSchema;

use super::api::Api;
use model::settings;
use model::settings::files::{LOG, beside};
use store::{Lanes, ProbeAnswer, ServerQuery};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A Redis server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub(super) struct RedisServer {
    address: String,
    /// `master` or `slave`. Null if the server does not report it.
    #[schema(required = true)]
    role: Option<String>,
    #[schema(required = true)]
    version: Option<String>,
    #[schema(required = true)]
    memory_bytes: Option<u64>,
    /// Null if there is no limit.
    #[schema(required = true)]
    maxmemory_bytes: Option<u64>,
    /// What the server does when its memory is full: `maxmemory-policy`.
    #[schema(required = true)]
    policy: Option<String>,
    /// Whether the server writes an append-only file.
    #[schema(required = true)]
    aof: Option<bool>,
    /// Whether the last snapshot and the last write to the append-only file succeeded.
    #[schema(required = true)]
    last_save_ok: Option<bool>,
    replicas: u64,
    /// The average time that the command TIME took on the servers of the node, in milliseconds.
    #[schema(required = true)]
    latency_ms: Option<f64>,
    /// Why the server reports nothing. Null if it reports something.
    #[schema(required = true)]
    detail: Option<String>,
}

/// The file of the embedded store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct StoreFile {
    path: String,
    bytes: u64,
    /// The size of the write-ahead log that belongs to the file, in bytes.
    log_bytes: u64,
    disk_free_bytes: u64,
}

impl RedisServer {
    fn new(probed: ProbeAnswer, latency: Option<Duration>) -> RedisServer {
        let latency_ms = latency.map(|took| (took.as_secs_f64() * 1e5).round() / 100.0);
        let server = RedisServer { address: probed.server, ..RedisServer::default() };
        let values = match probed.values {
            Ok(values) => values,
            Err(e) => return RedisServer { detail: Some(e.to_string()), ..server },
        };
        let text = |key: &str| values.get(key).cloned();
        let number = |key: &str| values.get(key).and_then(|n| n.parse::<u64>().ok());
        let is_ok = |key: &str| values.get(key).map(|status| status == "ok");
        let saved = [is_ok("rdb_last_bgsave_status"), is_ok("aof_last_write_status")];
        RedisServer {
            role: text("role"),
            version: text("redis_version"),
            memory_bytes: number("used_memory"),
            maxmemory_bytes: number("maxmemory").filter(|most| *most > 0),
            policy: text("maxmemory_policy"),
            aof: number("aof_enabled").map(|n| n > 0),
            last_save_ok: saved.iter().any(Option::is_some).then(|| !saved.contains(&Some(false))),
            replicas: number("connected_slaves").unwrap_or(0),
            latency_ms,
            ..server
        }
    }
}

/// Returns what the servers of a lane's node report.
fn probe(lanes: &Lanes, lane: usize) -> Vec<RedisServer> {
    let begun = Instant::now();
    let timed = lanes.probe(lane, ServerQuery::Time);
    let took = begun.elapsed() / u32::try_from(timed.len().max(1)).unwrap_or(1);
    let answers: BTreeMap<&str, bool> =
        timed.iter().map(|probed| (probed.server.as_str(), probed.values.is_ok())).collect();
    let server = |probed: ProbeAnswer| {
        let answers = answers.get(probed.server.as_str()).copied().unwrap_or(false);
        RedisServer::new(probed, answers.then_some(took))
    };
    lanes.probe(lane, ServerQuery::Info).into_iter().map(server).collect()
}

/// Returns the sizes of the embedded store's file. This function reads only metadata, because a process that opens the
/// file outside SQLite would drop SQLite's locks when it closes the file.
fn find_store_file(path: &Path) -> Option<StoreFile> {
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let disk = statvfs(path.parent()?).ok()?;
    Some(StoreFile {
        path: path.display().to_string(),
        bytes: length(path),
        log_bytes: length(&beside(path, LOG)),
        disk_free_bytes: disk.blocks_available() * disk.fragment_size(),
    })
}

impl Api {
    /// Returns what the servers of each node report, by the name of the node.
    pub(super) async fn servers(&self) -> BTreeMap<String, Vec<RedisServer>> {
        let count = self.lanes.count();
        let asked = (0..count).filter_map(|lane| {
            let (lanes, name) = (self.lanes.clone(), self.lanes.name(lane)?.to_owned());
            Some((name, tokio::task::spawn_blocking(move || probe(&lanes, lane))))
        });
        let asked: Vec<_> = asked.collect();
        let until = tokio::time::Instant::now() + PATIENCE;
        let mut servers = BTreeMap::new();
        for (name, values) in asked {
            if let Ok(Ok(values)) = tokio::time::timeout_at(until, values).await {
                servers.insert(name, values);
            }
        }
        servers
    }

    /// Returns the file of the store, if the store is the embedded store.
    pub(super) async fn store_file(&self) -> Option<StoreFile> {
        let settings::StoreSettings::Embedded { path, .. } = &self.settings.store else { return None };
        let path = path.clone();
        tokio::task::spawn_blocking(move || find_store_file(&path)).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::StoreError;

    #[test]
    fn a_server_is_shown_with_its_values_or_with_its_failure() {
        let values = [
            ("role", "master"),
            ("used_memory", "1048576"),
            ("maxmemory", "0"),
            ("aof_enabled", "1"),
            ("rdb_last_bgsave_status", "ok"),
            ("aof_last_write_status", "err"),
        ];
        let values = values.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let server = RedisServer::new(
            ProbeAnswer { server: "h:1".into(), values: Ok(values) },
            Some(Duration::from_micros(1234)),
        );
        assert_eq!((server.memory_bytes, server.maxmemory_bytes), (Some(1 << 20), None));
        assert_eq!(
            (server.aof, server.last_save_ok, server.latency_ms),
            (Some(true), Some(false), Some(1.23))
        );
        let away =
            ProbeAnswer { server: "h:1".into(), values: Err(StoreError::NodeDown("r1: refused".into())) };
        let server = RedisServer::new(away, None);
        assert!(server.detail.unwrap().contains("refused") && server.last_save_ok.is_none());
    }
}

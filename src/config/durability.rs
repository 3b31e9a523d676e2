//! Checks the settings of durability. Also checks that the store offers each durability level that the configuration
//! sets.

use std::time::Duration;

use super::ConfigError;
use super::bounds::within;
use super::raw;
use model::settings::{DurabilitySettings, StoreSettings};
use model::topic::{Durability, Topic};

/// The limits of `store.durability_timeout`. dq answers a request with `unknown` when its store has not answered for
/// ten seconds. A call to Redis is made a second time if the server does not know the script yet. Each of the two calls
/// may wait for the whole timeout. So two timeouts must fit into ten seconds.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(4));

fn level(raw: &raw::Store) -> Result<Option<Durability>, ConfigError> {
    let level = (!raw.durability.is_empty()).then(|| raw.durability.parse());
    level.transpose().map_err(|problem| ConfigError::key("store.durability", problem))
}

/// Checks the settings of durability for a store on Redis.
pub(super) fn of_redis(raw: &raw::Store) -> Result<DurabilitySettings, ConfigError> {
    Ok(DurabilitySettings {
        durability: level(raw)?.unwrap_or_default(),
        timeout: within("store.durability_timeout", raw.durability_timeout, TIMEOUT.0, TIMEOUT.1)?,
        allow_snapshots: raw.allow_snapshots,
    })
}

/// Checks the settings of durability for the embedded store. This store writes each change to the disk before it
/// answers. So `fsync` is the only level that it offers, and `allow_snapshots` must not be set.
pub(super) fn check_embedded(raw: &raw::Store) -> Result<(), ConfigError> {
    if let Some(level) = level(raw)?
        && let Some(problem) = StoreSettings::embedded_lacks(level)
    {
        return Err(ConfigError::key("store.durability", problem));
    }
    if raw.allow_snapshots {
        let problem = "true is for store.backend = \"redis\"; \"embedded\" keeps every job on the disk";
        return Err(ConfigError::key("store.allow_snapshots", problem));
    }
    Ok(())
}

/// Checks that the store offers the durability level of each topic.
pub(super) fn check_topics(store: &StoreSettings, topics: &[Topic]) -> Result<(), ConfigError> {
    for (i, topic) in topics.iter().enumerate() {
        if let Some(problem) = topic.durability.and_then(|level| store.lacks(level)) {
            return Err(ConfigError::key(format!("topic[{i}].durability"), problem));
        }
    }
    Ok(())
}

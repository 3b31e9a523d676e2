//! Checks that a value of the configuration is within its bounds. Pure.

use std::time::Duration;

use super::ConfigError;
use super::units::{ByteCount, ConfigDuration};

pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// Checks a size in bytes.
pub(super) fn size(
    key: &str,
    value: ByteCount,
    (least, most): (ByteCount, ByteCount),
) -> Result<usize, ConfigError> {
    if (least.0..=most.0).contains(&value.0) {
        return Ok(value.0);
    }
    let text = |size: &ByteCount| serde_json::to_string(size).unwrap_or_default();
    let problem = format!("{} is not within {} and {}", text(&value), text(&least), text(&most));
    Err(ConfigError::key(key, problem))
}

/// Checks a number.
pub(super) fn count<N: PartialOrd + std::fmt::Display>(
    key: &str,
    value: N,
    least: N,
    most: N,
) -> Result<N, ConfigError> {
    if value < least || value > most {
        return Err(ConfigError::key(key, format!("{value} is not within {least} to {most}")));
    }
    Ok(value)
}

/// Checks a duration.
pub(super) fn within(
    key: &str,
    value: ConfigDuration,
    least: Duration,
    most: Duration,
) -> Result<Duration, ConfigError> {
    if value.0 < least || value.0 > most {
        let [value, least, most] = [value.0, least, most].map(humantime::format_duration);
        return Err(ConfigError::key(key, format!("{value} is not within {least} to {most}")));
    }
    Ok(value.0)
}

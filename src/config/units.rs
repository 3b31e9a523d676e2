//! Values with a unit, as the file has them: `"30s"`, `"1MiB"`.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A span of time: `"90s"`, `"1h30m"`, `"3days"`, or a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigDuration(pub Duration);

/// A number of bytes: `"1MiB"`, `"64kB"`, or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteCount(pub usize);

impl Serialize for ConfigDuration {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ConfigDuration, D::Error> {
        struct DurationVisitor;
        impl Visitor<'_> for DurationVisitor {
            type Value = ConfigDuration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"30s\", \"1h30m\" or a number of seconds")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ConfigDuration, E> {
                let refused = |_| E::invalid_value(de::Unexpected::Str(text), &self);
                // A value from the environment is always text, even if it is a number.
                match text.parse() {
                    Ok(seconds) => Ok(ConfigDuration(Duration::from_secs(seconds))),
                    Err(_) => humantime::parse_duration(text).map(ConfigDuration).map_err(refused),
                }
            }
            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<ConfigDuration, E> {
                let refused = |_| E::invalid_value(de::Unexpected::Signed(seconds), &self);
                u64::try_from(seconds).map(|s| ConfigDuration(Duration::from_secs(s))).map_err(refused)
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<ConfigDuration, E> {
                let refused = |_| E::invalid_value(de::Unexpected::Float(seconds), &self);
                Duration::try_from_secs_f64(seconds).map(ConfigDuration).map_err(refused)
            }
        }
        from.deserialize_any(DurationVisitor)
    }
}

impl Serialize for ByteCount {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&model::topic::Size(self.0 as u64))
    }
}

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ByteCount, D::Error> {
        struct ByteCountVisitor;
        impl Visitor<'_> for ByteCountVisitor {
            type Value = ByteCount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"1MiB\", \"64kB\" or a number of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteCount, E> {
                let size: Option<ByteSize> = text.parse().ok();
                let bytes = size.and_then(|s| usize::try_from(s.as_u64()).ok());
                bytes.map(ByteCount).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteCount, E> {
                let refused = |_| E::invalid_value(de::Unexpected::Signed(bytes), &self);
                usize::try_from(bytes).map(ByteCount).map_err(refused)
            }
        }
        from.deserialize_any(ByteCountVisitor)
    }
}

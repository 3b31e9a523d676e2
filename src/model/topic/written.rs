//! How the values of settings are written, and how they are read. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::{
    self as topic, CatchUp, DeliveryMode, Durability, Failure, Method, Moment, OnReserve, Payload, Rate,
    Success, TopicStatus,
};
use crate::job_parts::Priority;
use crate::json_time;
use crate::retry::Retry;

/// The size of a value that has bounds.
#[derive(Debug, Clone, Copy)]
pub(super) enum BoundedValue {
    Span(Duration),
    Count(u32),
    Bytes(topic::Size),
}

/// A value that can be read from JSON and written as JSON.
pub(super) trait Written: Sized {
    fn read(value: &Value) -> Option<Self>;
    fn write(&self) -> Value;
    fn size(&self) -> Option<BoundedValue> {
        None
    }
}

impl Written for Duration {
    /// A part of a millisecond counts as a whole millisecond, because the registries keep milliseconds.
    fn read(value: &Value) -> Option<Duration> {
        let span = match value {
            Value::Number(seconds) => match seconds.as_u64() {
                Some(seconds) => Duration::from_secs(seconds),
                None => Duration::try_from_secs_f64(seconds.as_f64()?).ok()?,
            },
            Value::String(text) => humantime::parse_duration(text).ok()?,
            _ => return None,
        };
        let part = span.subsec_nanos() % 1_000_000;
        if part == 0 { Some(span) } else { span.checked_add(Duration::from_nanos((1_000_000 - part).into())) }
    }

    fn write(&self) -> Value {
        humantime::format_duration(*self).to_string().replace(' ', "").into()
    }

    fn size(&self) -> Option<BoundedValue> {
        Some(BoundedValue::Span(*self))
    }
}

impl Written for Retry {
    fn read(value: &Value) -> Option<Retry> {
        match value {
            Value::Array(list) => list.iter().map(Duration::read).collect::<Option<_>>().map(Retry::List),
            name if *name == "2n+1" => Some(Retry::TwoNPlusOne),
            name if *name == "exponential" => Some(Retry::Exponential),
            _ => None,
        }
    }

    fn write(&self) -> Value {
        match self {
            Retry::TwoNPlusOne => json!("2n+1"),
            Retry::Exponential => json!("exponential"),
            Retry::List(delays) => delays.iter().map(Duration::write).collect(),
        }
    }
}

impl Written for Option<Rate> {
    fn read(value: &Value) -> Option<Option<Rate>> {
        Rate::deserialize(value).ok().map(Some)
    }

    fn write(&self) -> Value {
        self.map_or(Value::Null, |rate| rate.to_string().into())
    }

    fn size(&self) -> Option<BoundedValue> {
        self.map(|rate| BoundedValue::Count(rate.jobs))
    }
}

impl Written for Option<Moment> {
    fn read(value: &Value) -> Option<Option<Moment>> {
        let raw = to_raw_value(value).ok()?;
        json_time::moment_ms(&raw).map(|ms| Some(Moment(ms)))
    }

    fn write(&self) -> Value {
        self.map_or(Value::Null, |Moment(ms)| json_time::rfc3339(ms).into())
    }
}

macro_rules! written_by_serde {
    ($($type:ty $(, $size:expr)?;)+) => {$(
        impl Written for $type {
            fn read(value: &Value) -> Option<$type> {
                Deserialize::deserialize(value).ok()
            }
            fn write(&self) -> Value {
                serde_json::to_value(self).unwrap_or_default()
            }
            $(fn size(&self) -> Option<BoundedValue> {
                let size: fn(&$type) -> Option<BoundedValue> = $size;
                size(self)
            })?
        }
    )+};
}
written_by_serde! {
    String;
    Vec<String>;
    Vec<Failure>;
    BTreeMap<String, String>;
    bool;
    u32, |n| Some(BoundedValue::Count(*n));
    Option<u32>, |n| n.map(BoundedValue::Count);
    Option<topic::Size>, |n| n.map(BoundedValue::Bytes);
    CatchUp, |rule| match rule {
        CatchUp::All => None,
        CatchUp::Spread(span) | CatchUp::Skip(span) => Some(BoundedValue::Span(*span)),
    };
    Option<Durability>;
    Method;
    DeliveryMode;
    OnReserve;
    Payload;
    Priority;
    TopicStatus;
    Success;
}

//! The values of a request, as gmq-redis reads them. gmq-redis accepts only strings. dq also accepts a number, and uses
//! its digits as the string. The messages about wrong types are those of Go.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Why a call is refused, in the words of its response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RpcError(pub String);

impl RpcError {
    fn wrong_type(raw: &RawValue, expected: &str) -> RpcError {
        let kind = match raw.get().as_bytes().first() {
            Some(b'{') => "object",
            Some(b'[') => "array",
            Some(b'"') => "string",
            Some(b't' | b'f') => "bool",
            _ => "number",
        };
        RpcError(format!("json: cannot unmarshal {kind} into Go value of type {expected}"))
    }
}

/// The members of an object that have one of these names, in upper or lower case, as Go finds them. If a name occurs
/// more than once, the last member counts. Null counts as missing.
pub(super) struct NamedMembers<'a, const N: usize> {
    names: [&'static str; N],
    values: [Option<&'a RawValue>; N],
}

impl<'a, const N: usize> NamedMembers<'a, N> {
    /// Parses an object.
    pub(super) fn parse(names: [&'static str; N], text: &'a str) -> serde_json::Result<NamedMembers<'a, N>> {
        let mut parser = serde_json::Deserializer::from_str(text);
        let members = parser.deserialize_map(NamedMembers { names, values: [None; N] })?;
        parser.end()?;
        Ok(members)
    }

    /// Returns the members in the order of the names.
    pub(super) fn values(&self) -> [Option<&'a RawValue>; N] {
        self.values
    }
}

impl<'de, const N: usize> Visitor<'de> for NamedMembers<'de, N> {
    type Value = NamedMembers<'de, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<NamedMembers<'de, N>, M::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            let value = map.next_value::<&RawValue>()?;
            if let Some(place) = self.names.iter().position(|known| known.eq_ignore_ascii_case(&name)) {
                self.values[place] = Some(value).filter(|value| value.get() != "null");
            }
        }
        Ok(self)
    }
}

/// Returns the first parameter of a call. None: there is no parameter, and Go uses an empty value.
pub(super) fn first_parameter(params: Option<&RawValue>) -> Result<Option<&RawValue>, RpcError> {
    let missing = || RpcError("jsonrpc: request body missing params".to_owned());
    let list = list(params.ok_or_else(missing)?, "[1]interface {}")?;
    Ok(list.first().copied().filter(|parameter| parameter.get() != "null"))
}

/// Returns the entries of a list.
pub(super) fn list<'a>(raw: &'a RawValue, go_type: &str) -> Result<Vec<&'a RawValue>, RpcError> {
    serde_json::from_str(raw.get()).map_err(|_| RpcError::wrong_type(raw, go_type))
}

/// Returns the members of an object.
pub(super) fn object<'a, const N: usize>(
    names: [&'static str; N],
    raw: Option<&'a RawValue>,
) -> Result<[Option<&'a RawValue>; N], RpcError> {
    let Some(raw) = raw else { return Ok([None; N]) };
    let members = NamedMembers::parse(names, raw.get());
    members.map(|members| members.values()).map_err(|_| RpcError::wrong_type(raw, "map[string]string"))
}

/// Returns a string, or the digits of a number. A missing value is empty.
pub(super) fn text(raw: Option<&RawValue>) -> Result<String, RpcError> {
    let Some(raw) = raw else { return Ok(String::new()) };
    match raw.get().as_bytes().first() {
        Some(b'-' | b'0'..=b'9') => Ok(raw.get().to_owned()),
        _ => serde_json::from_str(raw.get()).map_err(|_| RpcError::wrong_type(raw, "string")),
    }
}

/// Returns a number of seconds. A missing, empty or negative number becomes 0, as in gmq-redis.
pub(super) fn seconds(name: &str, raw: Option<&RawValue>) -> Result<Duration, RpcError> {
    let text = text(raw)?;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        _ if text.is_empty() || (is_number && text.starts_with('-')) => Ok(Duration::ZERO),
        Ok(seconds) if is_number => Ok(Duration::from_secs(seconds)),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(RpcError(format!("job.{name} {shown:?} is not a whole number of seconds")))
        }
    }
}

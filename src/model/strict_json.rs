//! JSON objects in which no name of a field occurs twice. A parser that takes the last of two equal names would
//! silently drop the first field. [`StrictValue`] also reads TOML. TOML has infinite numbers and NaN. [`StrictValue`]
//! refuses these numbers. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The fields of an object, by their names. An object that names a field twice is refused. The values may be anything.
#[derive(Debug, Clone)]
pub struct UniqueFields<V>(pub BTreeMap<String, V>);

/// A value in which no object names a field twice, at any depth, and in which all numbers are finite.
#[derive(Debug, Clone)]
pub struct StrictValue(pub Value);

fn unique<'de, V: Deserialize<'de>, M: MapAccess<'de>>(mut map: M) -> Result<BTreeMap<String, V>, M::Error> {
    let mut fields = BTreeMap::new();
    while let Some((name, value)) = map.next_entry::<String, V>()? {
        if fields.contains_key(&name) {
            return Err(de::Error::custom(format!("the field {name:?} occurs twice")));
        }
        fields.insert(name, value);
    }
    Ok(fields)
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueFields<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UniqueFields<V>, D::Error> {
        struct UniqueFieldsVisitor<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueFieldsVisitor<V> {
            type Value = BTreeMap<String, V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
                unique(map)
            }
        }
        from.deserialize_map(UniqueFieldsVisitor(PhantomData)).map(UniqueFields)
    }
}

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<StrictValue, D::Error> {
        struct StrictValueVisitor;
        impl<'de> Visitor<'de> for StrictValueVisitor {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
                // TOML has infinite numbers and NaN, and JSON would write them as null.
                let number = Number::from_f64(value);
                number.map(Value::Number).ok_or_else(|| E::custom(format!("{value} is not a finite number")))
            }
            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_string<E>(self, value: String) -> Result<Value, E> {
                Ok(value.into())
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Value, S::Error> {
                let mut values = Vec::new();
                while let Some(StrictValue(value)) = list.next_element()? {
                    values.push(value);
                }
                Ok(values.into())
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Value, M::Error> {
                let fields = unique::<StrictValue, M>(map)?;
                Ok(fields
                    .into_iter()
                    .map(|(name, StrictValue(value))| (name, value))
                    .collect::<Map<_, _>>()
                    .into())
            }
        }
        from.deserialize_any(StrictValueVisitor).map(StrictValue)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn a_value_is_read_as_it_is() {
        let text = r#"{"a":[1,-2,1.5,null,true,"x\n"],"b":{"c":{}}}"#;
        let StrictValue(value) = serde_json::from_str(text).unwrap();
        assert_eq!(value, json!({"a": [1, -2, 1.5, null, true, "x\n"], "b": {"c": {}}}));
        let UniqueFields(fields) = serde_json::from_str::<UniqueFields<&RawValue>>(text).unwrap();
        assert_eq!(fields["b"].get(), r#"{"c":{}}"#);
    }

    #[test]
    fn a_field_that_occurs_twice_is_refused_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"b":[{"a":1,"c":2,"a":3}]}"#] {
            let refused = serde_json::from_str::<StrictValue>(text).unwrap_err().to_string();
            assert!(refused.contains("the field \"a\" occurs twice"), "{refused}");
        }
        assert!(serde_json::from_str::<UniqueFields<Value>>(r#"{"a":1,"a":1}"#).is_err());
        assert!(serde_json::from_str::<UniqueFields<Value>>(r#"{"a":{"b":1,"b":1}}"#).is_ok());
        assert!(serde_json::from_str::<UniqueFields<Value>>("[]").is_err());
    }
}

//! The functions that flags of the PHP daemon use, with their results in PHP 8. Pure.

use std::ops::RangeInclusive;

use super::value::Value;

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Strlen,
    Count,
    InArray,
    Isset,
    Empty,
    Intval,
    Strpos,
}

impl Function {
    const ALL: [Function; 7] = [
        Function::Strlen,
        Function::Count,
        Function::InArray,
        Function::Isset,
        Function::Empty,
        Function::Intval,
        Function::Strpos,
    ];

    /// Returns the function of that name, in small letters.
    pub(super) fn named(name: &str) -> Option<Function> {
        Function::ALL.into_iter().find(|function| function.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Function::Strlen => "strlen",
            Function::Count => "count",
            Function::InArray => "in_array",
            Function::Isset => "isset",
            Function::Empty => "empty",
            Function::Intval => "intval",
            Function::Strpos => "strpos",
        }
    }

    /// Returns how many arguments the function takes.
    pub(super) fn arguments(self) -> RangeInclusive<usize> {
        match self {
            Function::Strlen | Function::Count | Function::Empty | Function::Intval => 1..=1,
            Function::InArray => 2..=3,
            Function::Isset => 1..=32,
            Function::Strpos => 2..=2,
        }
    }

    /// Returns the result. Null where PHP ends with an error, because an argument has the wrong type.
    pub(super) fn call<'a>(self, arguments: &[Value<'a>]) -> Value<'a> {
        let length = |text: &str| Value::Int(i64::try_from(text.len()).unwrap_or(i64::MAX));
        match (self, arguments) {
            (Function::Strlen, [text]) => text.as_text().map_or(Value::Null, |text| length(&text)),
            (Function::Count, [array]) => array.count().map_or(Value::Null, Value::Int),
            (Function::InArray, [wanted, array, strict @ ..]) => {
                let is_strict = strict.first().is_some_and(Value::is_true);
                array.has_item(wanted, is_strict).map_or(Value::Null, Value::Bool)
            }
            (Function::Isset, all) => Value::Bool(!all.iter().any(|value| matches!(value, Value::Null))),
            (Function::Empty, [value]) => Value::Bool(!value.is_true()),
            (Function::Intval, [value]) => Value::Int(value.whole()),
            (Function::Strpos, [text, part]) => match (text.as_text(), part.as_text()) {
                (Some(text), Some(part)) => text
                    .find(&*part)
                    .map_or(Value::Bool(false), |at| Value::Int(i64::try_from(at).unwrap_or(i64::MAX))),
                _ => Value::Null,
            },
            _ => Value::Null,
        }
    }
}

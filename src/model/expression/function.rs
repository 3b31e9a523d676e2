//! The functions that flags of the PHP daemon use, with their results in PHP 8. Pure.

use std::ops::RangeInclusive;

use super::value::ExpressionValue;

/// A function of PHP that an expression may call.
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

    /// Returns the function with this name. `name` must be in lower case.
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
            Function::Strlen | Function::Empty => 1..=1,
            Function::Count | Function::Intval => 1..=2,
            Function::InArray | Function::Strpos => 2..=3,
            Function::Isset => 1..=32,
        }
    }

    /// Returns the result of the function. The result is null if PHP would end with an error because an argument has
    /// the wrong type.
    pub(super) fn call<'a>(self, arguments: &[ExpressionValue<'a>]) -> ExpressionValue<'a> {
        let length = |text: &str| ExpressionValue::Int(i64::try_from(text.len()).unwrap_or(i64::MAX));
        match (self, arguments) {
            (Function::Strlen, [text]) => text.as_text().map_or(ExpressionValue::Null, |text| length(&text)),
            (Function::Count, [array, mode @ ..]) => {
                let count = match mode.first().map_or(Some(0), ExpressionValue::argument) {
                    Some(0) => array.count(false),
                    Some(1) => array.count(true),
                    _ => None,
                };
                count.map_or(ExpressionValue::Null, ExpressionValue::Int)
            }
            (Function::InArray, [wanted, array, strict @ ..]) => {
                let is_strict = strict.first().is_some_and(ExpressionValue::is_true);
                array.has_item(wanted, is_strict).map_or(ExpressionValue::Null, ExpressionValue::Bool)
            }
            (Function::Isset, all) => {
                ExpressionValue::Bool(!all.iter().any(|value| matches!(value, ExpressionValue::Null)))
            }
            (Function::Empty, [value]) => ExpressionValue::Bool(!value.is_true()),
            (Function::Intval, [value, base @ ..]) => {
                match base.first().map_or(Some(10), ExpressionValue::argument) {
                    Some(base) => ExpressionValue::Int(value.whole_in(base)),
                    None => ExpressionValue::Null,
                }
            }
            (Function::Strpos, [text, part, offset @ ..]) => {
                let offset = offset.first().map_or(Some(0), ExpressionValue::argument);
                match (text.as_text(), part.as_text(), offset) {
                    (Some(text), Some(part), Some(offset)) => position(&text, &part, offset),
                    _ => ExpressionValue::Null,
                }
            }
            _ => ExpressionValue::Null,
        }
    }
}

/// Returns the position of the first occurrence of a part in a text, in bytes. The search begins at an offset. A
/// negative offset counts from the end of the text. The result is null if the offset is outside of the text. (In this
/// case, PHP ends with an error.)
fn position<'a>(text: &str, part: &str, offset: i64) -> ExpressionValue<'a> {
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    let start = if offset < 0 { length.saturating_add(offset) } else { offset };
    let Some(start) = usize::try_from(start).ok().filter(|start| *start <= text.len()) else {
        return ExpressionValue::Null;
    };
    let at = match part {
        "" => Some(start),
        // The wanted part begins at the start of a character. So the search can begin at the next start of a character
        // in the text.
        part => {
            let start = text.ceil_char_boundary(start);
            text[start..].find(part).map(|at| start + at)
        }
    };
    at.map_or(ExpressionValue::Bool(false), |at| ExpressionValue::Int(i64::try_from(at).unwrap_or(i64::MAX)))
}

//! Values, and how PHP 8 compares them (<https://www.php.net/manual/en/language.operators.comparison.php>). Pure.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value as Json;

/// A value in the evaluation of an expression.
#[derive(Debug, Clone)]
pub(super) enum ExpressionValue<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    /// An array or an object of the answer. In PHP, an object of JSON is also an array.
    Array(&'a Json),
    /// An array that is written in the expression.
    List(Vec<ExpressionValue<'a>>),
}

/// The value of a number or of a numeric string.
#[derive(Debug, Clone, Copy)]
enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    fn compare(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
            (a, b) => a.float().partial_cmp(&b.float()),
        }
    }

    fn float(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Float(n) => n,
        }
    }
}

impl<'a> ExpressionValue<'a> {
    fn from_json(json: &'a Json) -> ExpressionValue<'a> {
        match json {
            Json::Null => ExpressionValue::Null,
            Json::Bool(b) => ExpressionValue::Bool(*b),
            Json::Number(n) => {
                n.as_i64().map_or(ExpressionValue::Float(n.as_f64().unwrap_or(0.0)), ExpressionValue::Int)
            }
            Json::String(text) => ExpressionValue::Text(text),
            Json::Array(_) | Json::Object(_) => ExpressionValue::Array(json),
        }
    }

    /// Returns the member at the end of a path, or null if there is no such member.
    pub(super) fn member(mut json: &'a Json, path: &[String]) -> ExpressionValue<'a> {
        for name in path {
            let inner = match json {
                Json::Object(members) => members.get(name),
                Json::Array(items) => name.parse::<usize>().ok().and_then(|n| items.get(n)),
                _ => None,
            };
            let Some(inner) = inner else { return ExpressionValue::Null };
            json = inner;
        }
        ExpressionValue::from_json(json)
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            ExpressionValue::Null => false,
            ExpressionValue::Bool(b) => *b,
            ExpressionValue::Int(n) => *n != 0,
            ExpressionValue::Float(n) => *n != 0.0,
            ExpressionValue::Text(text) => !matches!(*text, "" | "0"),
            ExpressionValue::Array(_) | ExpressionValue::List(_) => self.len() > 0,
        }
    }

    /// Applies `%` to whole numbers. Returns null if one of the values is not a number, or if the second value is 0.
    /// (In these cases, PHP ends with an error.)
    pub(super) fn remainder(&self, other: &ExpressionValue<'_>) -> ExpressionValue<'a> {
        let whole = |value: &ExpressionValue<'_>| match value {
            ExpressionValue::Text(text) if leading_number(text).is_none() => None,
            ExpressionValue::Array(_) | ExpressionValue::List(_) => None,
            other => Some(other.whole()),
        };
        match (whole(self), whole(other)) {
            (Some(_), Some(0)) => ExpressionValue::Null,
            (Some(a), Some(b)) => ExpressionValue::Int(a.wrapping_rem(b)),
            _ => ExpressionValue::Null,
        }
    }

    /// Returns the whole number that PHP's `intval` makes of the value.
    pub(super) fn whole(&self) -> i64 {
        match self {
            ExpressionValue::Null => 0,
            ExpressionValue::Bool(b) => (*b).into(),
            ExpressionValue::Int(n) => *n,
            // For a number that is too large for an integer, PHP does not define the result either.
            ExpressionValue::Float(n) => *n as i64,
            ExpressionValue::Text(text) => match leading_number(text) {
                Some(Number::Int(n)) => n,
                Some(Number::Float(n)) => n as i64,
                None => 0,
            },
            ExpressionValue::Array(_) | ExpressionValue::List(_) => (self.len() > 0).into(),
        }
    }

    /// Returns the whole number that PHP's `intval` makes of the value. The base matters only for a text. Only the
    /// number at the beginning of the text counts. A base that does not exist gives 0, as in PHP.
    pub(super) fn whole_in(&self, base: i64) -> i64 {
        let ExpressionValue::Text(text) = self else { return self.whole() };
        if base == 10 {
            return self.whole();
        }
        let text = text.trim_start_matches(is_space);
        let (is_negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let after =
            |letter: char| digits.strip_prefix('0')?.strip_prefix([letter, letter.to_ascii_uppercase()]);
        let (base, digits) = match (base, after('x'), after('b')) {
            (0 | 16, Some(rest), _) => (16, rest),
            (0 | 2, _, Some(rest)) => (2, rest),
            (0, ..) if digits.starts_with('0') => (8, digits),
            (0, ..) => (10, digits),
            (base, ..) => (base, digits),
        };
        let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else { return 0 };
        let mut number = 0_i64;
        for digit in digits.chars().map_while(|c| c.to_digit(base)) {
            let digit = if is_negative { -i64::from(digit) } else { i64::from(digit) };
            number = number.saturating_mul(base.into()).saturating_add(digit);
        }
        number
    }

    /// Returns the text that PHP makes of the value for a function. None: the value is an array, which has no text.
    pub(super) fn as_text(&self) -> Option<Cow<'a, str>> {
        match self {
            ExpressionValue::Bool(true) => Some("1".into()),
            ExpressionValue::Array(_) | ExpressionValue::List(_) => None,
            other => Some(other.text()),
        }
    }

    /// Returns the whole number that a function of PHP gets if this value is its argument. None: PHP ends with an
    /// error.
    pub(super) fn argument(&self) -> Option<i64> {
        match self {
            ExpressionValue::Text(text) => numeric(text).map(|_| self.whole()),
            ExpressionValue::Array(_) | ExpressionValue::List(_) => None,
            other => Some(other.whole()),
        }
    }

    /// Returns how many items an array has. `is_deep`: the items of arrays within the array count as well. None: the
    /// value is not an array.
    pub(super) fn count(&self, is_deep: bool) -> Option<i64> {
        if !self.is_array() {
            return None;
        }
        let inner = |item: ExpressionValue<'_>| item.count(true).unwrap_or(0);
        let deeper: i64 = if is_deep { self.items().map(|(_, item)| inner(item)).sum() } else { 0 };
        i64::try_from(self.len()).ok()?.checked_add(deeper)
    }

    /// Returns whether an array has an item that is equal to `wanted` (`is_strict`: identical to `wanted`). None: the
    /// value is not an array.
    pub(super) fn has_item(&self, wanted: &ExpressionValue<'_>, is_strict: bool) -> Option<bool> {
        let is_it = |(_, item): (_, ExpressionValue<'a>)| {
            if is_strict { item.is_identical(wanted) } else { item.equals(wanted) }
        };
        self.is_array().then(|| self.items().any(is_it))
    }

    /// Returns the number with the other sign. Null: the value is not a number. (In this case, PHP ends with an error.)
    pub(super) fn negated(&self) -> ExpressionValue<'a> {
        let number = match self {
            ExpressionValue::Null => Some(Number::Int(0)),
            ExpressionValue::Bool(b) => Some(Number::Int((*b).into())),
            // PHP accepts a text that begins with a number.
            ExpressionValue::Text(text) => leading_number(text),
            other => other.number(),
        };
        match number {
            Some(Number::Int(n)) => {
                n.checked_neg().map_or(ExpressionValue::Float(-(n as f64)), ExpressionValue::Int)
            }
            Some(Number::Float(n)) => ExpressionValue::Float(-n),
            None => ExpressionValue::Null,
        }
    }

    fn number(&self) -> Option<Number> {
        match self {
            ExpressionValue::Int(n) => Some(Number::Int(*n)),
            ExpressionValue::Float(n) => Some(Number::Float(*n)),
            ExpressionValue::Text(text) => numeric(text),
            _ => None,
        }
    }

    fn text(&self) -> Cow<'a, str> {
        match self {
            ExpressionValue::Int(n) => n.to_string().into(),
            // PHP writes large numbers in another form. This matters only if such a number is compared with a string
            // that is not a number. Even then, the first characters usually decide, and they are the same.
            ExpressionValue::Float(n) => n.to_string().into(),
            ExpressionValue::Text(text) => (*text).into(),
            _ => "".into(),
        }
    }

    /// `==`.
    pub(super) fn equals(&self, other: &ExpressionValue<'_>) -> bool {
        self.compare(other) == Some(Ordering::Equal)
    }

    /// `===`: of the same type, and equal.
    pub(super) fn is_identical(&self, other: &ExpressionValue<'_>) -> bool {
        match (self, other) {
            (ExpressionValue::Null, ExpressionValue::Null) => true,
            (ExpressionValue::Bool(a), ExpressionValue::Bool(b)) => a == b,
            (ExpressionValue::Int(a), ExpressionValue::Int(b)) => a == b,
            (ExpressionValue::Float(a), ExpressionValue::Float(b)) => a == b,
            (ExpressionValue::Text(a), ExpressionValue::Text(b)) => a == b,
            (a, b) if a.is_array() && b.is_array() => {
                let is_same = |(name, item): (String, ExpressionValue<'a>)| {
                    b.item(&name).is_some_and(|other| item.is_identical(&other))
                };
                a.len() == b.len() && a.items().all(is_same)
            }
            _ => false,
        }
    }

    /// Returns the order of the two values. None: no value is greater, and the values are not equal.
    pub(super) fn compare(&self, other: &ExpressionValue<'_>) -> Option<Ordering> {
        match (self, other) {
            // When null is compared with a string, null counts as an empty string.
            (ExpressionValue::Null, ExpressionValue::Text(b)) => Some("".cmp(b)),
            (ExpressionValue::Text(a), ExpressionValue::Null) => Some((*a).cmp("")),
            (ExpressionValue::Null | ExpressionValue::Bool(_), _)
            | (_, ExpressionValue::Null | ExpressionValue::Bool(_)) => {
                Some(self.is_true().cmp(&other.is_true()))
            }
            (a, b) if a.is_array() && b.is_array() => compare_arrays(a, b),
            (a, _) if a.is_array() => Some(Ordering::Greater),
            (_, b) if b.is_array() => Some(Ordering::Less),
            _ => match (self.number(), other.number()) {
                // Two strings are compared as strings if their numbers are so large that they are equal as
                // floating-point numbers.
                (Some(Number::Float(x)), Some(Number::Float(y)))
                    if x == y
                        && x.abs() >= 9.2e18
                        && matches!((self, other), (ExpressionValue::Text(_), ExpressionValue::Text(_))) =>
                {
                    Some(self.text().as_bytes().cmp(other.text().as_bytes()))
                }
                (Some(a), Some(b)) => a.compare(b),
                _ => Some(self.text().as_bytes().cmp(other.text().as_bytes())),
            },
        }
    }
}

/// These functions are for arrays of the answer, and for arrays that are written in the expression.
impl<'a> ExpressionValue<'a> {
    fn is_array(&self) -> bool {
        matches!(self, ExpressionValue::Array(_) | ExpressionValue::List(_))
    }

    fn len(&self) -> usize {
        match self {
            ExpressionValue::Array(Json::Array(items)) => items.len(),
            ExpressionValue::Array(Json::Object(members)) => members.len(),
            ExpressionValue::List(items) => items.len(),
            _ => 0,
        }
    }

    /// Returns the items of an array, with their names.
    fn items(&self) -> Box<dyn Iterator<Item = (String, ExpressionValue<'a>)> + '_> {
        let number = |n: usize| n.to_string();
        match self {
            ExpressionValue::Array(Json::Array(items)) => Box::new(
                items.iter().enumerate().map(move |(n, item)| (number(n), ExpressionValue::from_json(item))),
            ),
            ExpressionValue::Array(Json::Object(members)) => {
                Box::new(members.iter().map(|(name, item)| (name.clone(), ExpressionValue::from_json(item))))
            }
            ExpressionValue::List(items) => {
                Box::new(items.iter().enumerate().map(move |(n, item)| (number(n), item.clone())))
            }
            _ => Box::new(std::iter::empty()),
        }
    }

    /// Returns the item with this name from an array.
    fn item(&self, name: &str) -> Option<ExpressionValue<'a>> {
        match self {
            ExpressionValue::Array(Json::Array(items)) => {
                items.get(name.parse::<usize>().ok()?).map(ExpressionValue::from_json)
            }
            ExpressionValue::Array(Json::Object(members)) => {
                members.get(name).map(ExpressionValue::from_json)
            }
            ExpressionValue::List(items) => items.get(name.parse::<usize>().ok()?).cloned(),
            _ => None,
        }
    }
}

/// Compares two arrays. The array with fewer items is smaller. With the same number of items, the first items that
/// differ decide. If `b` lacks a name of `a`, there is no order.
fn compare_arrays(a: &ExpressionValue<'_>, b: &ExpressionValue<'_>) -> Option<Ordering> {
    let by_length = a.len().cmp(&b.len());
    if by_length.is_ne() {
        return Some(by_length);
    }
    for (name, item) in a.items() {
        let order = item.compare(&b.item(&name)?)?;
        if order.is_ne() {
            return Some(order);
        }
    }
    Some(Ordering::Equal)
}

/// Returns the number at the beginning of a string. None: the string does not begin with a number.
fn leading_number(text: &str) -> Option<Number> {
    let text = text.trim_start_matches(is_space);
    let ends = (1..=text.len()).rev().filter(|end| text.is_char_boundary(*end));
    ends.filter(|end| *end <= NUMBER_MAX).find_map(|end| numeric(&text[..end]))
}

/// The number of bytes at the beginning of a string in which a number is looked for.
const NUMBER_MAX: usize = 64;

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// Returns the number that a string stands for, by the rules of PHP: only white space may surround the number.
fn numeric(text: &str) -> Option<Number> {
    let text = text.trim_matches(is_space);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    // Rust also reads "inf" and "nan" as numbers, and PHP does not. So the text must begin with a digit.
    let begins = digits.strip_prefix('.').unwrap_or(digits).starts_with(|c: char| c.is_ascii_digit());
    if !begins || !digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'))
    {
        return None;
    }
    match digits.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse().ok().map(Number::Int).or_else(|| text.parse().ok().map(Number::Float)),
        false => text.parse().ok().map(Number::Float),
    }
}

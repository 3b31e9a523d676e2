//! Splits a text into its words: operators, numbers, strings, members. Pure.

use super::function::Function;
use super::{Comparison, ExpressionError, LENGTH_MAX};

/// A word of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Lexeme {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Status,
    Member(Vec<String>),
    Comparison(Comparison),
    /// `&&`.
    Both,
    /// `||`.
    Either,
    /// `and`, which binds less tightly than `||`.
    And,
    /// `or`, which binds least tightly.
    Or,
    Not,
    Minus,
    Plus,
    Open,
    Close,
    /// `[`.
    OpenList,
    /// `]`.
    CloseList,
    /// `array`, which begins a list in parentheses.
    Array,
    Comma,
    Percent,
    Function(Function),
    /// `;`, which may stand at the end.
    End,
}

/// The known words, for messages about an unknown word.
const KNOWN: &str = "known are {status}, {res.member}, numbers, 'texts', lists such as [1, 2], true, false, null, == != === !== < <= > >= % && || ! ( ), \
    and the functions strlen, count, in_array, isset, empty, intval, strpos";

/// Reads all words, each with the position of its first character, from 1.
pub(super) fn words(text: &str) -> Result<Vec<(usize, Lexeme)>, ExpressionError> {
    if text.len() > LENGTH_MAX {
        let problem = format!("it is {} bytes long, which is more than {LENGTH_MAX}", text.len());
        return Err(ExpressionError { at: 1, problem });
    }
    let mut reader = ExpressionReader { text: text.chars().collect(), at: 0 };
    let mut words = Vec::new();
    while let Some(c) = reader.peek() {
        if c.is_ascii_whitespace() {
            reader.at += 1;
            continue;
        }
        let at = reader.at + 1;
        words.push((at, reader.word(c)?));
    }
    Ok(words)
}

struct ExpressionReader {
    text: Vec<char>,
    at: usize,
}

impl ExpressionReader {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.peek().is_some_and(&wanted) {
            self.at += 1;
        }
        self.text[start..self.at].iter().collect()
    }

    /// Makes an error at the word that begins at `at`, from 0.
    fn wrong(at: usize, problem: impl Into<String>) -> ExpressionError {
        ExpressionError { at: at + 1, problem: problem.into() }
    }

    fn word(&mut self, first: char) -> Result<Lexeme, ExpressionError> {
        match first {
            '{' => self.member(),
            '\'' | '"' => self.quoted(first).map(Lexeme::Text),
            '0'..='9' => self.number(),
            '.' if self.text.get(self.at + 1).is_some_and(char::is_ascii_digit) => self.number(),
            c if c.is_alphabetic() || c == '_' || c == '$' => self.name(),
            _ => self.operator(),
        }
    }

    fn operator(&mut self) -> Result<Lexeme, ExpressionError> {
        const OPERATORS: [(&str, Lexeme); 24] = [
            // If one operator begins with another one, the longer operator must come first.
            ("===", Lexeme::Comparison(Comparison::Identical)),
            ("!==", Lexeme::Comparison(Comparison::NotIdentical)),
            ("==", Lexeme::Comparison(Comparison::Equal)),
            ("!=", Lexeme::Comparison(Comparison::Unequal)),
            ("<>", Lexeme::Comparison(Comparison::Unequal)),
            ("<=", Lexeme::Comparison(Comparison::LessOrEqual)),
            (">=", Lexeme::Comparison(Comparison::GreaterOrEqual)),
            ("&&", Lexeme::Both),
            ("||", Lexeme::Either),
            ("<", Lexeme::Comparison(Comparison::Less)),
            (">", Lexeme::Comparison(Comparison::Greater)),
            ("!", Lexeme::Not),
            ("-", Lexeme::Minus),
            ("+", Lexeme::Plus),
            ("(", Lexeme::Open),
            (")", Lexeme::Close),
            ("[", Lexeme::OpenList),
            ("]", Lexeme::CloseList),
            (";", Lexeme::End),
            (",", Lexeme::Comma),
            ("%", Lexeme::Percent),
            // The operators below this line are refused. The message says which operator was probably meant.
            ("=>", Lexeme::Null),
            ("=", Lexeme::Null),
            ("&", Lexeme::Null),
        ];
        let rest: String = self.text[self.at..].iter().take(3).collect();
        let found = OPERATORS.iter().find(|(sign, _)| rest.starts_with(sign));
        match found {
            Some((sign, Lexeme::Null)) => {
                let hint = match *sign {
                    "=" => "is \"==\" meant?",
                    "&" => "is \"&&\" meant?",
                    _ => "a list has no keys: write [1, 2]; or is \">=\" meant?",
                };
                Err(ExpressionReader::wrong(self.at, format!("{sign:?} is not understood; {hint}")))
            }
            Some((sign, word)) => {
                self.at += sign.len();
                Ok(word.clone())
            }
            None if rest.starts_with('|') => {
                Err(ExpressionReader::wrong(self.at, "\"|\" is not understood; is \"||\" meant?"))
            }
            None => {
                let c = self.peek().unwrap_or_default();
                Err(ExpressionReader::wrong(self.at, format!("{c:?} is not understood; {KNOWN}")))
            }
        }
    }

    fn name(&mut self) -> Result<Lexeme, ExpressionError> {
        let start = self.at;
        let name = self.take_while(|c| c.is_alphanumeric() || c == '_' || c == '$');
        match name.to_ascii_lowercase().as_str() {
            "true" => Ok(Lexeme::Bool(true)),
            "false" => Ok(Lexeme::Bool(false)),
            "null" => Ok(Lexeme::Null),
            "and" => Ok(Lexeme::And),
            "or" => Ok(Lexeme::Or),
            "array" => Ok(Lexeme::Array),
            name_in_lower_case => {
                Function::named(name_in_lower_case).map(Lexeme::Function).ok_or_else(|| {
                    ExpressionReader::wrong(start, format!("{name:?} is not understood; {KNOWN}"))
                })
            }
        }
    }

    fn number(&mut self) -> Result<Lexeme, ExpressionError> {
        let start = self.at;
        let mut text = self.take_while(|c| c.is_ascii_digit());
        if self.peek() == Some('.') {
            self.at += 1;
            text += ".";
            text += &self.take_while(|c| c.is_ascii_digit());
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            self.at += 1;
            text += "e";
            if let Some(sign @ ('+' | '-')) = self.peek() {
                self.at += 1;
                text.push(sign);
            }
            text += &self.take_while(|c| c.is_ascii_digit());
        }
        let whole = text.bytes().all(|b| b.is_ascii_digit());
        let ends = !self.peek().is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
        // In PHP, 010 means 8. Nobody wants this meaning, so such a number is refused.
        let octal = whole && text.len() > 1 && text.starts_with('0');
        match text.parse::<f64>() {
            Ok(float) if ends && !octal => {
                Ok(text.parse().ok().filter(|_| whole).map_or(Lexeme::Float(float), Lexeme::Int))
            }
            _ => Err(ExpressionReader::wrong(start, "this is not a number; 0, 200, 1.5 and 1e3 are numbers")),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, ExpressionError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let at = self.at;
            match self.next() {
                None => {
                    return Err(ExpressionReader::wrong(
                        start,
                        format!("the closing {quote} of this text is missing"),
                    ));
                }
                Some(c) if c == quote => break,
                Some('\\') => self.escaped(quote, &mut text)?,
                Some('$')
                    if quote == '"' && self.peek().is_some_and(|c| c.is_alphabetic() || "_{".contains(c)) =>
                {
                    return Err(ExpressionReader::wrong(
                        at,
                        "variables are not supported; write a dollar sign as \\$, or in '…'",
                    ));
                }
                Some(c) => text.push(c),
            }
        }
        if text.starts_with("{res") && text.ends_with('}') {
            let problem = format!("{text} within quotes is a text; leave the quotes out");
            return Err(ExpressionReader::wrong(start, problem));
        }
        Ok(text)
    }

    /// Reads the character after a backslash. An escape without a meaning stays as it is, as in PHP.
    fn escaped(&mut self, quote: char, text: &mut String) -> Result<(), ExpressionError> {
        let at = self.at - 1;
        match (quote, self.next()) {
            (_, None) => {
                return Err(ExpressionReader::wrong(
                    at,
                    "nothing follows the backslash; write \\\\ for a backslash",
                ));
            }
            (_, Some('\\')) => text.push('\\'),
            (_, Some(c)) if c == quote => text.push(c),
            ('"', Some('n')) => text.push('\n'),
            ('"', Some('r')) => text.push('\r'),
            ('"', Some('t')) => text.push('\t'),
            ('"', Some('$')) => text.push('$'),
            ('"', Some(c)) if matches!(c, 'v' | 'e' | 'f' | 'x' | 'u' | '0'..='7') => {
                let problem = format!("\\{c} is not understood; known are \\n, \\r, \\t, \\\", \\$ and \\\\");
                return Err(ExpressionReader::wrong(at, problem));
            }
            (_, Some(c)) => text.extend(['\\', c]),
        }
        Ok(())
    }

    fn member(&mut self) -> Result<Lexeme, ExpressionError> {
        let start = self.at;
        self.at += 1;
        let path = self.take_while(|c| !matches!(c, '{' | '}'));
        if self.next() != Some('}') {
            return Err(ExpressionReader::wrong(start, "the closing } of this member is missing"));
        }
        let mut names = path.trim().split('.').map(str::to_owned);
        match names.next().as_deref() {
            Some("status") if names.next().is_none() => Ok(Lexeme::Status),
            Some("res") => {
                let names: Vec<String> = names.collect();
                if names.iter().any(|name| name.trim().is_empty()) {
                    return Err(ExpressionReader::wrong(
                        start,
                        "a name is missing beside a dot; write it as in {res.a.b}",
                    ));
                }
                Ok(Lexeme::Member(names))
            }
            _ => {
                let problem =
                    format!("{{{path}}} is not understood; known are {{status}} and {{res.member}}");
                Err(ExpressionReader::wrong(start, problem))
            }
        }
    }
}

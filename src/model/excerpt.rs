//! Prepares text from outside for log lines. Pure.
//!
//! All text that a client, a receiver or a foreign server can influence goes through [`Excerpt`] before it is logged:
//! paths, ids, headers, answers, errors of parsers.

use std::fmt::{self, Write};

/// How many characters of a text from outside are shown.
pub const LONGEST: usize = 200;

/// The beginning of a text from outside: at most [`LONGEST`] characters. Characters that would move the cursor, begin a
/// line or change the direction of writing are escaped. If characters are left out at the end, an ellipsis takes their
/// place.
#[derive(Clone, Copy)]
pub struct Excerpt<T>(pub T);

impl<T: fmt::Display> fmt::Display for Excerpt<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cut = LimitedWriter { out: f, left: Some(LONGEST), outcome: Ok(()) };
        // The error of `write!` is ignored. It means only that the limit is reached, or `outcome` contains the same
        // error.
        let _ = write!(cut, "{}", self.0);
        cut.outcome
    }
}

/// Writes the excerpt between quotation marks.
impl<T: fmt::Display> fmt::Debug for Excerpt<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Returns whether a character is written as an escape, and not as itself.
pub fn is_escaped(c: char) -> bool {
    // The listed characters are not control characters. They set the direction of writing, or end a line for programs
    // that follow Unicode.
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Passes on a limited number of characters, and refuses all further characters.
struct LimitedWriter<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    /// How many characters may still be written. None: the limit is passed, and the ellipsis has been written.
    left: Option<usize>,
    outcome: fmt::Result,
}

impl LimitedWriter<'_, '_> {
    fn put(&mut self, c: char) -> fmt::Result {
        let Some(left) = self.left else { return Ok(()) };
        self.left = left.checked_sub(1);
        match self.left {
            None => self.out.write_char('…'),
            Some(_) if is_escaped(c) => write!(self.out, "{}", c.escape_default()),
            Some(_) => self.out.write_char(c),
        }
    }
}

impl Write for LimitedWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            self.outcome = self.outcome.and_then(|()| self.put(c));
            if self.outcome.is_err() || self.left.is_none() {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        Excerpt(text).to_string()
    }

    #[test]
    fn a_text_is_cut_at_two_hundred_characters() {
        assert_eq!(shown("close order 42"), "close order 42");
        assert_eq!(format!("{:?}", Excerpt("a\n")), "\"a\\n\"");
        assert_eq!(shown(&"订".repeat(LONGEST)), "订".repeat(LONGEST));
        assert_eq!(shown(&"订".repeat(60_000)), "订".repeat(LONGEST) + "…");
        // A text that comes in parts is cut in the same way.
        let (a, b) = ("a".repeat(150), "b".repeat(150));
        assert_eq!(Excerpt(format_args!("{a}{b}{a}")).to_string(), a.clone() + &b[..50] + "…");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(shown("a\nb\u{1b}[2J\u{202e}c\u{2028}\t"), "a\\nb\\u{1b}[2J\\u{202e}c\\u{2028}\\t");
        let longest = shown(&"\u{202e}".repeat(60_000));
        assert_eq!(longest.chars().count(), LONGEST * "\\u{202e}".len() + 1);
    }
}

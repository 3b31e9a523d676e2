//! Reads the parts of a word: digits, names, and the characters between them.

/// The part of a text that is not read yet, in lower case.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scanner<'a> {
    pub rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn skip(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Reads characters as long as they are in `set`. All characters of `set` are ASCII.
    pub(super) fn while_in(&mut self, set: &str) -> &'a str {
        let end = self.rest.find(|c| !set.contains(c)).unwrap_or(self.rest.len());
        self.skip(end)
    }

    /// Reads one of these ASCII characters.
    pub(super) fn one_of(&mut self, set: &str) -> Option<char> {
        let next = self.rest.chars().next().filter(|c| set.contains(*c))?;
        self.skip(next.len_utf8());
        Some(next)
    }

    /// Reads this text.
    pub(super) fn text(&mut self, text: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    /// Reads `least` to `most` digits. None: there are fewer digits, or more.
    pub(super) fn digits(&mut self, least: usize, most: usize) -> Option<i64> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        if !(least..=most).contains(&end) {
            return None;
        }
        self.skip(end).parse().ok()
    }

    /// Reads exactly `count` digits. More digits may follow.
    pub(super) fn fixed(&mut self, count: usize) -> Option<i64> {
        let taken = self.rest.get(..count).filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
        self.skip(count);
        taken.parse().ok()
    }

    /// Reads one or two digits that form a number in a range.
    pub(super) fn small(&mut self, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        self.digits(1, 2).filter(|n| range.contains(n))
    }

    /// Reads exactly two digits that form a number in a range. More digits may follow.
    pub(super) fn two(&mut self, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        self.fixed(2).filter(|n| range.contains(n))
    }

    /// Reads all letters that follow, and returns what a table has for them.
    pub(super) fn word<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.rest.len());
        let word = &self.rest[..end];
        let found = table.iter().find(|(name, _)| *name == word)?;
        self.skip(end);
        Some(found.1)
    }

    /// Reads spaces. None: there is no space.
    pub(super) fn spaces(&mut self) -> Option<()> {
        (!self.while_in(" \t").is_empty()).then_some(())
    }

    /// Returns whether no letter and no digit follows: the word is over.
    pub(super) fn is_word_over(&self) -> bool {
        !self.rest.starts_with(|c: char| c.is_alphanumeric())
    }
}

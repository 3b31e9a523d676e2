//! The tags of a job: short texts by which jobs are found and changed together. Pure.

use serde::{Serialize, Serializer};

/// How many tags a job may have.
pub const TAGS_MAX: usize = 8;

/// The longest tag, in bytes.
pub const TAG_MAX: usize = 64;

/// Why tags were refused, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTag {
    /// There are more than [`TAGS_MAX`] different tags.
    #[error("a job has at most {TAGS_MAX} tags")]
    TooMany,
    /// A tag is empty, or has more than [`TAG_MAX`] bytes. Holds the beginning of the tag.
    #[error("{0:?} does not have 1 to {TAG_MAX} bytes")]
    Length(String),
    /// A tag has a character that is not accepted. Holds the beginning of the tag, and the character.
    #[error(
        "{0:?} has {1:?}: a tag has no white space, control character, comma, quotation mark or backslash"
    )]
    Character(String, char),
}

/// A text by which jobs are found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(Box<str>);

impl Tag {
    /// Checks a text and makes a tag from it.
    pub fn new(text: &str) -> Result<Tag, InvalidTag> {
        let short = || text.chars().take(TAG_MAX).collect();
        if text.is_empty() || text.len() > TAG_MAX {
            return Err(InvalidTag::Length(short()));
        }
        // A comma separates tags in the query of a URL. A space separates tags in the text that a store keeps.
        // Quotation marks, backslashes and control characters would need an escape in this text.
        let is_bad = |c: &char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '"' | '\\');
        match text.chars().find(is_bad) {
            Some(bad) => Err(InvalidTag::Character(short(), bad)),
            None => Ok(Tag(text.into())),
        }
    }

    /// Returns the text of the tag.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for Tag {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

/// The tags of a job, sorted and without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Tags(Vec<Tag>);

impl Tags {
    /// Checks texts and makes tags from them. A tag that is given twice counts once.
    pub fn new<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Tags, InvalidTag> {
        let mut tags = Vec::new();
        for text in texts {
            let tag = Tag::new(text.as_ref())?;
            if let Err(place) = tags.binary_search(&tag) {
                tags.insert(place, tag);
            }
            if tags.len() > TAGS_MAX {
                return Err(InvalidTag::TooMany);
            }
        }
        Ok(Tags(tags))
    }

    /// Makes tags from the text of a store, which [`Tags::to_text`] wrote. Text that is not a valid tag is left out.
    pub fn trusted(text: &str) -> Tags {
        Tags(text.split(' ').filter_map(|tag| Tag::new(tag).ok()).collect())
    }

    /// Returns the tags as one text, with a space between two of them.
    pub fn to_text(&self) -> String {
        let texts: Vec<&str> = self.iter().map(Tag::as_str).collect();
        texts.join(" ")
    }

    /// Returns the tags.
    pub fn iter(&self) -> impl Iterator<Item = &Tag> {
        self.0.iter()
    }

    /// Returns whether there are no tags.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether this tag is one of the tags.
    pub fn has(&self, tag: &Tag) -> bool {
        self.0.binary_search(tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_sorted_and_each_of_them_is_there_once() {
        let tags = Tags::new(["shop:7", "campaign:春", "shop:7"]).unwrap();
        assert_eq!(tags.to_text(), "campaign:春 shop:7");
        assert_eq!(Tags::trusted(&tags.to_text()), tags);
        assert!(tags.has(&Tag::new("shop:7").unwrap()) && !tags.has(&Tag::new("shop").unwrap()));
        assert!(Tags::trusted("").is_empty() && Tags::default().to_text().is_empty());
        assert_eq!(serde_json::to_string(&tags).unwrap(), r#"["campaign:春","shop:7"]"#);
    }

    #[test]
    fn bad_tags_are_refused_with_what_would_do() {
        let long = "x".repeat(65);
        for (tag, word) in [
            ("", "1 to 64 bytes"),
            (long.as_str(), "1 to 64 bytes"),
            ("a b", "white space"),
            ("a,b", "','"),
            ("a\"b", "quotation"),
            ("a\\b", "backslash"),
            ("a\u{85}b", "control"),
        ] {
            let why = Tags::new([tag]).expect_err(tag).to_string();
            assert!(why.contains(word), "{tag}: {why}");
        }
        let nine: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        assert_eq!(Tags::new(&nine), Err(InvalidTag::TooMany));
        assert!(Tags::new(&nine[..8]).is_ok());
    }
}

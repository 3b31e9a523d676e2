//! The audit log: who changed what, and of how many jobs. Pure: what an entry is. The registry keeps them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long an entry is kept.
pub const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

/// The longest `target` and `detail`, in characters. What is longer is cut.
pub const LONGEST: usize = 400;

/// Something that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, Unix milliseconds.
    pub at_ms: i64,
    /// By whom: `root`, `account ann`, `token shop`; empty: whoever reaches a port that asks for nothing.
    pub who: String,
    /// What was done, such as `topic.pause`.
    pub action: String,
    /// To what: a topic, a job as `topic/id`, a token.
    pub target: String,
    /// More of it, for people.
    pub detail: String,
    /// With how many jobs it was done; none: it is not about a number of them.
    pub jobs: Option<u64>,
}

impl Entry {
    /// The same, with its texts cut to what is kept.
    pub fn cut(self) -> Entry {
        let cut = |text: String| match text.char_indices().nth(LONGEST - 1) {
            Some((at, _)) if text.chars().count() > LONGEST => text[..at].to_owned() + "…",
            _ => text,
        };
        Entry { who: cut(self.who), target: cut(self.target), detail: cut(self.detail), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let entry = |text: String| Entry {
            at_ms: 1,
            who: "root".into(),
            action: "job.delete".into(),
            target: text,
            detail: String::new(),
            jobs: None,
        };
        let fits = entry("é".repeat(LONGEST));
        assert_eq!(fits.clone().cut(), fits);
        let cut = entry("é".repeat(LONGEST + 1)).cut().target;
        assert!(cut.chars().count() == LONGEST && cut.ends_with("é…"), "{cut}");
    }
}

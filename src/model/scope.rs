//! Scopes: what a token allows, and what a request needs. Pure: no I/O, no clock.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::job::TopicName;

/// The topics that a scope applies to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Range {
    /// All topics, `*`, including those that are registered later.
    All,
    /// One topic.
    Topic(TopicName),
}

/// What a token allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    /// Everything.
    Admin,
    /// To read everything, and to change nothing.
    Read,
    /// To add, change, delete and read the jobs of these topics.
    Produce(Range),
    /// To lease, settle and read the jobs of these topics.
    Consume(Range),
}

/// The error for a text that is not a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "scope {0:?} is none of \"admin\", \"read\", \"produce:<topic>\", \"consume:<topic>\", with * for all topics"
)]
pub struct NoScope(String);

/// How many characters of a text a message repeats.
const SHOWN: usize = 160;

impl FromStr for Scope {
    type Err = NoScope;
    fn from_str(text: &str) -> Result<Scope, NoScope> {
        let no_scope = || NoScope(text.chars().take(SHOWN).collect());
        let range = |of: &str| match of {
            "*" => Ok(Range::All),
            name => TopicName::new(name).map(Range::Topic).map_err(|_| no_scope()),
        };
        match text.split_once(':') {
            None if text == "admin" => Ok(Scope::Admin),
            None if text == "read" => Ok(Scope::Read),
            Some(("produce", of)) => range(of).map(Scope::Produce),
            Some(("consume", of)) => range(of).map(Scope::Consume),
            _ => Err(no_scope()),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = NoScope;
    fn try_from(text: String) -> Result<Scope, NoScope> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> String {
        scope.to_string()
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Range::All => "*",
            Range::Topic(name) => name.as_str(),
        })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Admin => f.write_str("admin"),
            Scope::Read => f.write_str("read"),
            Scope::Produce(range) => write!(f, "produce:{range}"),
            Scope::Consume(range) => write!(f, "consume:{range}"),
        }
    }
}

/// What a request needs. A topic is given as the request spells it. A text that is not a valid name of a topic is in no
/// scope of a single topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need<'a> {
    /// Everything.
    Admin,
    /// To read anything.
    Read,
    /// To read jobs of this topic.
    Jobs(&'a str),
    /// To add, change or delete jobs of this topic.
    Produce(&'a str),
    /// To lease or settle jobs of this topic.
    Consume(&'a str),
}

impl Scope {
    /// Returns whether the scope allows a request with this need.
    pub fn permits(&self, need: Need<'_>) -> bool {
        let covers = |range: &Range, topic: &str| match range {
            Range::All => true,
            Range::Topic(name) => name.as_str() == topic,
        };
        match (self, need) {
            (Scope::Admin, _) | (Scope::Read, Need::Read | Need::Jobs(_)) => true,
            (Scope::Produce(range), Need::Produce(topic) | Need::Jobs(topic))
            | (Scope::Consume(range), Need::Consume(topic) | Need::Jobs(topic)) => covers(range, topic),
            _ => false,
        }
    }
}

/// Writes the smallest scope that is enough.
impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Admin => f.write_str("admin"),
            Need::Read | Need::Jobs(_) => f.write_str("read"),
            Need::Produce(topic) => write!(f, "produce:{topic}"),
            Need::Consume(topic) => write!(f, "consume:{topic}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_shown_as_it_was_written() {
        for text in ["admin", "read", "produce:*", "produce:orders", "consume:a.b-c_d", "consume:*"] {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "Admin",
            "admin:*",
            "read:orders",
            "produce",
            "produce:",
            "produce:a b",
            "write:*",
            "produce:o*",
        ] {
            let said = wrong.parse::<Scope>().unwrap_err().to_string();
            assert!(said.contains(&format!("{wrong:?}")) && said.contains("consume:<topic>"), "{said}");
        }
    }

    #[test]
    fn a_scope_permits_what_it_is_for_and_nothing_else() {
        let needs = [
            Need::Admin,
            Need::Read,
            Need::Jobs("a"),
            Need::Jobs("b"),
            Need::Produce("a"),
            Need::Produce("b"),
            Need::Consume("a"),
            Need::Consume("b"),
        ];
        for (scope, permitted) in [
            ("admin", [true; 8]),
            ("read", [false, true, true, true, false, false, false, false]),
            ("produce:a", [false, false, true, false, true, false, false, false]),
            ("produce:*", [false, false, true, true, true, true, false, false]),
            ("consume:a", [false, false, true, false, false, false, true, false]),
            ("consume:*", [false, false, true, true, false, false, true, true]),
        ] {
            let scope: Scope = scope.parse().unwrap();
            assert_eq!(needs.map(|need| scope.permits(need)), permitted, "{scope}");
        }
    }
}

//! Scopes: what a token allows, and what a request needs. Pure: no I/O, no clock.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::job_parts::TopicName;

/// The topics that a scope applies to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScopeTopics {
    /// All topics, `*`, including those that are registered later.
    All,
    /// All topics with names that begin with a text, such as `shop7.*`, including those that are registered later.
    /// Holds the text before the `*`, which ends with a dot.
    Beginning(String),
    /// One topic.
    Topic(TopicName),
}

/// What a token allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scope {
    /// Everything.
    Admin,
    /// To read the metrics.
    Metrics,
    /// To read everything about these topics, and to change nothing. For all topics, this scope is written `read`. Then
    /// it also permits to read the state of the daemon and the metrics.
    Read(ScopeTopics),
    /// To read and change the settings of these topics, to pause them, to read their jobs, and to act on their dead
    /// letters.
    Manage(ScopeTopics),
    /// To add, change, delete and read the jobs of these topics.
    Produce(ScopeTopics),
    /// To lease, settle and read the jobs of these topics.
    Consume(ScopeTopics),
}

/// The error for a text that is not a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "scope {0:?} is none of \"admin\", \"metrics\", \"read\", \"read:<topic>\", \"manage:<topic>\", \"produce:<topic>\", \
     \"consume:<topic>\"; instead of a topic, there may be \"*\" (all topics) or \"shop7.*\" (all that begin with \"shop7.\")"
)]
pub struct InvalidScope(String);

/// How many characters of a wrong scope the error message shows.
const SHOWN: usize = 160;

impl FromStr for Scope {
    type Err = InvalidScope;
    fn from_str(text: &str) -> Result<Scope, InvalidScope> {
        let no_scope = || InvalidScope(text.chars().take(SHOWN).collect());
        let range = |of: &str| match of {
            "*" => Ok(ScopeTopics::All),
            pattern if pattern.ends_with(".*") => {
                let beginning = &pattern[..pattern.len() - 1];
                TopicName::new(beginning).map_err(|_| no_scope())?;
                Ok(ScopeTopics::Beginning(beginning.to_owned()))
            }
            name => TopicName::new(name).map(ScopeTopics::Topic).map_err(|_| no_scope()),
        };
        match text.split_once(':') {
            None if text == "admin" => Ok(Scope::Admin),
            None if text == "metrics" => Ok(Scope::Metrics),
            None if text == "read" => Ok(Scope::Read(ScopeTopics::All)),
            Some(("read", of)) => range(of).map(Scope::Read),
            Some(("manage", of)) => range(of).map(Scope::Manage),
            Some(("produce", of)) => range(of).map(Scope::Produce),
            Some(("consume", of)) => range(of).map(Scope::Consume),
            _ => Err(no_scope()),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = InvalidScope;
    fn try_from(text: String) -> Result<Scope, InvalidScope> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> String {
        scope.to_string()
    }
}

impl fmt::Display for ScopeTopics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScopeTopics::All => f.write_str("*"),
            ScopeTopics::Beginning(beginning) => write!(f, "{beginning}*"),
            ScopeTopics::Topic(name) => f.write_str(name.as_str()),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Admin => f.write_str("admin"),
            Scope::Metrics => f.write_str("metrics"),
            Scope::Read(ScopeTopics::All) => f.write_str("read"),
            Scope::Read(range) => write!(f, "read:{range}"),
            Scope::Manage(range) => write!(f, "manage:{range}"),
            Scope::Produce(range) => write!(f, "produce:{range}"),
            Scope::Consume(range) => write!(f, "consume:{range}"),
        }
    }
}

/// What a request needs. A topic is given as the request spells it. If this text is not a valid name of a topic, a
/// scope for a single topic never allows the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredAccess<'a> {
    /// Everything.
    Admin,
    /// To read the state of the daemon.
    Read,
    /// To read the metrics.
    Metrics,
    /// To read the settings of some topic. Topics for which the scope is not enough are left out of the answer.
    SomeTopics,
    /// To read jobs of some topic. Topics for which the scope is not enough are left out of the answer.
    SomeJobs,
    /// To read the settings of this topic, but not the credentials in them.
    Topic(&'a str),
    /// To read jobs of this topic.
    Jobs(&'a str),
    /// To read what receivers answered to the jobs of this topic.
    Answers(&'a str),
    /// To change the settings of this topic, to pause it, or to act on its dead letters.
    Manage(&'a str),
    /// To add, change or delete jobs of this topic.
    Produce(&'a str),
    /// To lease or settle jobs of this topic.
    Consume(&'a str),
}

impl ScopeTopics {
    fn covers(&self, topic: &str) -> bool {
        match self {
            ScopeTopics::All => true,
            ScopeTopics::Beginning(beginning) => topic.starts_with(beginning),
            ScopeTopics::Topic(name) => name.as_str() == topic,
        }
    }
}

impl Scope {
    /// Returns whether the scope allows a request with this need.
    pub fn permits(&self, need: RequiredAccess<'_>) -> bool {
        match (self, need) {
            (Scope::Admin, _)
            | (Scope::Metrics | Scope::Read(ScopeTopics::All), RequiredAccess::Metrics)
            | (Scope::Read(ScopeTopics::All), RequiredAccess::Read)
            | (Scope::Read(_) | Scope::Manage(_), RequiredAccess::SomeTopics)
            | (
                Scope::Read(_) | Scope::Manage(_) | Scope::Produce(_) | Scope::Consume(_),
                RequiredAccess::SomeJobs,
            ) => true,
            (
                Scope::Read(range),
                RequiredAccess::Topic(topic) | RequiredAccess::Jobs(topic) | RequiredAccess::Answers(topic),
            )
            | (
                Scope::Manage(range),
                RequiredAccess::Topic(topic) | RequiredAccess::Jobs(topic) | RequiredAccess::Manage(topic),
            )
            | (Scope::Produce(range), RequiredAccess::Produce(topic) | RequiredAccess::Jobs(topic))
            | (Scope::Consume(range), RequiredAccess::Consume(topic) | RequiredAccess::Jobs(topic)) => {
                range.covers(topic)
            }
            _ => false,
        }
    }
}

/// Writes the smallest scope that allows the request.
impl fmt::Display for RequiredAccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequiredAccess::Admin => f.write_str("admin"),
            RequiredAccess::Read | RequiredAccess::SomeTopics | RequiredAccess::SomeJobs => {
                f.write_str("read")
            }
            RequiredAccess::Metrics => f.write_str("metrics"),
            RequiredAccess::Topic(topic) | RequiredAccess::Jobs(topic) | RequiredAccess::Answers(topic) => {
                write!(f, "read:{topic}")
            }
            RequiredAccess::Manage(topic) => write!(f, "manage:{topic}"),
            RequiredAccess::Produce(topic) => write!(f, "produce:{topic}"),
            RequiredAccess::Consume(topic) => write!(f, "consume:{topic}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_shown_as_it_was_written() {
        for text in
            ["admin", "metrics", "read", "read:orders", "manage:shop7.*", "produce:*", "consume:a.b-c_d"]
        {
            assert_eq!(text.parse::<Scope>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "Admin",
            "admin:*",
            "metrics:*",
            "read:",
            "manage",
            "manage:.*.*",
            "manage:o*",
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
            RequiredAccess::Admin,
            RequiredAccess::Read,
            RequiredAccess::Metrics,
            RequiredAccess::SomeTopics,
            RequiredAccess::Topic("a"),
            RequiredAccess::Jobs("a"),
            RequiredAccess::Answers("a"),
            RequiredAccess::Manage("a"),
            RequiredAccess::Produce("a"),
            RequiredAccess::Consume("a"),
            RequiredAccess::Jobs("b.c"),
            RequiredAccess::Manage("b.c"),
            RequiredAccess::SomeJobs,
        ];
        let row = |text: &str| -> Vec<bool> { text.bytes().map(|b| b == b'x').collect() };
        for (scope, permitted) in [
            ("admin", "xxxxxxxxxxxxx"),
            ("metrics", "..x.........."),
            ("read", ".xxxxxx...x.x"),
            ("read:a", "...xxxx.....x"),
            ("read:b.*", "...x......x.x"),
            ("manage:a", "...xxx.x....x"),
            ("manage:b.*", "...x......xxx"),
            ("manage:c.*", "...x........x"),
            ("produce:a", ".....x..x...x"),
            ("produce:*", ".....x..x.x.x"),
            ("consume:a", ".....x...x..x"),
        ] {
            let scope: Scope = scope.parse().unwrap();
            assert_eq!(needs.map(|need| scope.permits(need)).to_vec(), row(permitted), "{scope}");
        }
    }
}

//! Copies topics, tokens and accounts from one registry to another.

use super::{Expected, InvalidRow, Registry, Result};

/// What [`copy`] has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CopySummary {
    /// How many topics the other registry has got.
    pub topics: usize,
    /// How many tokens it has got.
    pub tokens: usize,
    /// How many accounts it has got.
    pub accounts: usize,
    /// The topics and tokens that it already had, with other settings. They were not changed.
    pub different: Vec<String>,
    /// What the first registry has and dq cannot use. It was not copied.
    pub unusable: Vec<InvalidRow>,
}

/// Copies topics, tokens and accounts. What the other registry already has is not changed, so a copy that was interrupted
/// can be started again. Statistics, the audit log and operations on many jobs are not copied. If one of the topics is not
/// valid, nothing is written.
pub fn copy(from: &mut dyn Registry, to: &mut dyn Registry) -> Result<CopySummary> {
    let (from, there) = (from.list()?, to.list()?);
    for registered in &from.topics {
        registered.topic.check()?;
    }
    let mut summary = CopySummary { unusable: from.unusable, ..CopySummary::default() };
    for topic in from.topics.iter().map(|registered| &registered.topic) {
        match there.topics.iter().find(|other| other.topic.name == topic.name) {
            Some(other) if other.topic == *topic => {}
            Some(_) => summary.different.push(format!("topic {}", topic.name)),
            None => {
                to.put(topic, Expected::Absent)?;
                summary.topics += 1;
            }
        }
    }
    for token in &from.tokens {
        match there.tokens.iter().find(|other| other.name == token.name) {
            Some(other) if other == token => {}
            Some(_) => summary.different.push(token.name.to_string()),
            None if token.is_account() => {
                to.put_account(token)?;
                summary.accounts += 1;
            }
            None => {
                to.put_token(token)?;
                summary.tokens += 1;
            }
        }
    }
    Ok(summary)
}

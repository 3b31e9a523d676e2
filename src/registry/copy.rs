//! Copies topics, tokens and accounts from one registry to another.

use super::{Expected, InvalidRow, Registry, Result};
use model::job::TopicName;
use model::token::Token;

/// What [`copy`] has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CopySummary {
    /// How many topics were written to the other registry.
    pub topics: usize,
    /// How many tokens were written to the other registry.
    pub tokens: usize,
    /// How many accounts were written to the other registry.
    pub accounts: usize,
    /// The topics, tokens and accounts that both registries had, but with different settings.
    pub different: Vec<String>,
    /// The topics, tokens and accounts that only the other registry has. They stay there.
    pub only_there: Vec<String>,
    /// The rows of the old registry that dq cannot use. They were not copied.
    pub unusable: Vec<InvalidRow>,
}

fn shown(token: &Token) -> String {
    format!("{} {}", if token.is_account() { "account" } else { "token" }, token.name)
}

/// Copies topics, tokens and accounts. Statistics, the audit log and operations on many jobs are not copied. If a topic
/// is not valid, nothing is written. If a topic, token or account has different settings in the other registry,
/// `replaces` decides: true replaces them, and false writes nothing. A copy that was interrupted can be started again.
pub fn copy(from: &mut dyn Registry, to: &mut dyn Registry, replaces: bool) -> Result<CopySummary> {
    let (from, there) = (from.list()?, to.list()?);
    let topic_there =
        |name: &TopicName| there.topics.iter().map(|other| &other.topic).find(|other| other.name == *name);
    let token_there = |token: &Token| there.tokens.iter().find(|other| other.name == token.name);
    let mut summary = CopySummary { unusable: from.unusable, ..CopySummary::default() };
    let (mut topics, mut tokens) = (Vec::new(), Vec::new());
    for topic in from.topics.iter().map(|registered| &registered.topic) {
        topic.check()?;
        let other = topic_there(&topic.name);
        if other.is_some_and(|other| other != topic) {
            summary.different.push(format!("topic {}", topic.name));
        }
        if other != Some(topic) {
            topics.push(topic);
        }
    }
    for token in &from.tokens {
        let other = token_there(token);
        if other.is_some_and(|other| other != token) {
            summary.different.push(shown(token));
        }
        if other != Some(token) {
            tokens.push((token, other.is_some()));
        }
    }
    let is_only_there = |name: &&TopicName| from.topics.iter().all(|known| known.topic.name != **name);
    let names = there.topics.iter().map(|other| &other.topic.name).filter(is_only_there);
    summary.only_there.extend(names.map(|name| format!("topic {name}")));
    let is_only_there = |token: &&Token| from.tokens.iter().all(|known| known.name != token.name);
    summary.only_there.extend(there.tokens.iter().filter(is_only_there).map(shown));
    if !replaces && !summary.different.is_empty() {
        return Ok(summary);
    }
    for topic in topics {
        to.put(topic, Expected::Any)?;
        summary.topics += 1;
    }
    for (token, is_there) in tokens {
        if token.is_account() {
            to.put_account(token)?;
            summary.accounts += 1;
            continue;
        }
        if is_there {
            to.delete_token(&token.name)?;
        }
        to.put_token(token)?;
        summary.tokens += 1;
    }
    Ok(summary)
}

//! `dq move` copies topics, tokens and accounts, if the two configurations have different registries.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::show::counted;
use model::job::TopicName;
use model::settings::{RegistrySettings, Settings};
use registry::CopySummary;

/// Copies the topics, tokens and accounts from the registry of `old` to the registry of `new`. Returns what was done,
/// or `None` if there is nothing to copy. Nothing is removed from the old registry. If something is different in the
/// new registry, this function fails. With `replaces`, it replaces the different settings instead.
pub(super) fn copy(old: &Settings, new: &Settings, replaces: bool) -> Result<Option<(CopySummary, String)>> {
    let Some(from) = old.registry.as_ref().filter(|from| new.registry.as_ref() != Some(from)) else {
        return Ok(None);
    };
    let at = |registry: &RegistrySettings| format!("the registry {registry}");
    let Some(mut source) = registry::open_existing(from).with_context(|| at(from))? else { return Ok(None) };
    let Some(to) = &new.registry else {
        let topics = source.list().with_context(|| at(from))?.topics.into_iter();
        let lacks = |name: &TopicName| !new.topics.iter().any(|topic| topic.name == *name);
        if let Some(lost) = topics.map(|registered| registered.topic.name).find(lacks) {
            bail!(
                "topic {lost} is in the registry {from}, and registry.url of the new configuration is \"none\": leave registry.url out"
            );
        }
        return Ok(None);
    };
    let mut target = registry::open(to).with_context(|| at(to))?;
    let copied = registry::copy(source.as_mut(), target.as_mut(), replaces)
        .with_context(|| format!("cannot copy the registry {from} to {to}"))?;
    if !replaces && !copied.different.is_empty() {
        bail!(
            "the registries {from} and {to} have different settings of: {}. With --replace-registry, {to} gets those of {from}",
            copied.different.join(", ")
        );
    }
    Ok(Some((copied, to.to_string())))
}

/// Prints what was copied, and what was not.
pub(super) fn print(copied: &CopySummary, to: &str) {
    let CopySummary { topics, tokens, accounts, different: _, only_there, unusable } = copied;
    println!(
        "copied to the registry {to}: {}, {} and {}",
        counted(*topics, "topic"),
        counted(*tokens, "token"),
        counted(*accounts, "account")
    );
    if !only_there.is_empty() {
        println!("only the registry {to} has: {}. Remove what is not wanted", only_there.join(", "));
    }
    for row in unusable {
        println!("not copied: {row}");
    }
}

/// Returns what was copied, for the output of the command in JSON.
pub(super) fn value(copied: Option<&CopySummary>) -> Value {
    copied.map_or(Value::Null, |copied| {
        json!({"topics": copied.topics, "tokens": copied.tokens, "accounts": copied.accounts,
            "replaced": copied.different, "only_there": copied.only_there,
            "not_copied": copied.unusable.iter().map(ToString::to_string).collect::<Vec<_>>()})
    })
}

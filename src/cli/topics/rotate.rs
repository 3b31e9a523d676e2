//! `dq topics rotate-secret`: gives a topic a new secret, while its old one still signs for some time.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;

use super::super::api::Api;
use super::super::target::TargetOptions;
use super::path;

/// Give a topic a new secret, and print it this one time
///
/// Until --keep is over, callbacks have a signature of the new secret and one of each old secret. So receivers accept
/// the callbacks before and after they get the new secret. When --keep is over, the old secrets end by themselves.
/// Topics of the configuration file can be changed only in that file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq topics rotate-secret orders
  dq topics rotate-secret orders --keep 7d
  dq topics rotate-secret orders --keep 0s    # the old secret is known to others")]
pub(super) struct TopicsRotateArguments {
    /// The topic
    name: String,

    /// How long the old secrets still sign, such as 90m or 7d
    #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = humantime::parse_duration)]
    keep: Duration,
}

#[derive(Debug, Deserialize)]
struct NewSecret {
    secret: String,
    old_secrets_until: Option<String>,
}

/// Runs `dq topics rotate-secret`.
pub(super) fn run(
    at: &TargetOptions,
    TopicsRotateArguments { name, keep }: &TopicsRotateArguments,
) -> Result<()> {
    let keep = humantime::format_duration(*keep).to_string();
    let answer = Api::from_options(at)?.ask(
        "POST",
        &format!("{}/rotate-secret", path(name)),
        &json!({"keep": keep}),
    )?;
    if at.json {
        println!("{}", answer.raw()?.get());
        return Ok(());
    }
    let NewSecret { secret, old_secrets_until } = answer.json()?;
    println!("{secret}");
    match old_secrets_until {
        Some(until) => eprintln!("give the receiver this secret now: the old one signs until {until}"),
        None => {
            eprintln!("give the receiver this secret now: callbacks are signed with it alone from now on")
        }
    }
    Ok(())
}

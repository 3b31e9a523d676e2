//! `dq config check`: checks a configuration, and shows the main settings of a daemon that uses it.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::show::lines;
use model::settings::{Settings, StoreSettings};

/// Check a configuration file
#[derive(Debug, clap::Args)]
pub(super) struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    Check(ConfigCheckArguments),
}

/// Check a configuration file, as `dq-master --check` does, and show the main settings of a daemon that uses it
///
/// Environment variables count as they do for dq-master: DQ_SERVER__LISTEN sets server.listen. The exit code is 0 if
/// the configuration is good, and 1 if it is not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq config check /etc/dq/dq.toml\n  dq config check dq.toml --json")]
struct ConfigCheckArguments {
    /// The configuration file
    file: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `dq config check`. Returns whether the file is good.
pub(super) fn run(arguments: &ConfigArguments) -> Result<bool> {
    let ConfigCommand::Check(check) = &arguments.command;
    match super::settings(&check.file) {
        Ok(settings) if check.json => println!("{}", object(&settings)),
        Ok(settings) => {
            print!("{}", lines(&summary(&settings)));
            println!("{} is good", check.file.display());
        }
        Err(e) if check.json => {
            println!("{}", json!({"good": false, "problem": format!("{e:#}")}));
            return Ok(false);
        }
        Err(e) => return Err(e),
    }
    Ok(true)
}

/// Returns a value as text; without a value, `none`.
fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

fn summary(settings: &Settings) -> Vec<(&'static str, String)> {
    let Settings { instance, server, http, timer, consume, topics, .. } = settings;
    let mut facts = vec![
        ("instance", instance.clone()),
        ("run_dir", settings.run_dir.display().to_string()),
        ("log_dir", settings.log_dir.as_ref().map_or("stderr".to_owned(), |dir| dir.display().to_string())),
        ("server", or_none(server.listen)),
        ("http", or_none(http.listen)),
        ("gmq", or_none(settings.gmq.listen)),
        ("beanstalk", or_none(settings.beanstalk.listen)),
        ("timers", timer.processes.to_string()),
        ("consumers", format!("{}, {} callbacks each", consume.processes, consume.concurrency)),
        ("store", settings.store.to_string()),
        ("registry", or_none(settings.registry.as_ref())),
        ("topics", topics_line(topics.len(), settings.registry.is_some())),
    ];
    let odd = [
        (
            server.listen.is_none() && http.listen.is_none(),
            "nobody can hand in jobs: server.listen and http.listen are empty",
        ),
        (timer.processes == 0, "nothing becomes due on this host: timer.processes is 0"),
        (consume.processes == 0, "nothing is delivered by this host: consume.processes is 0"),
        (
            topics.is_empty() && settings.registry.is_none(),
            "there are no topics: the file has none, and there is no registry",
        ),
    ];
    facts.extend(odd.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| ("note", what.to_owned())));
    facts
}

/// Returns how many topics the file has. The check asks no server, so topics of a registry are not counted.
fn topics_line(of_file: usize, has_registry: bool) -> String {
    let others =
        if has_registry { "; those of the registry are not counted here (dq topics list)" } else { "" };
    format!("{of_file} in the file{others}")
}

fn object(settings: &Settings) -> Value {
    let notes: Vec<_> =
        summary(settings).into_iter().filter(|(name, _)| *name == "note").map(|(_, what)| what).collect();
    let nodes: Vec<&str> = match &settings.store {
        StoreSettings::Embedded { .. } => Vec::new(),
        StoreSettings::Redis(redis) => redis.nodes.iter().map(|node| node.name.as_str()).collect(),
    };
    json!({
        "good": true,
        "instance": settings.instance,
        "run_dir": settings.run_dir,
        "log_dir": settings.log_dir,
        "server": settings.server.listen,
        "http": settings.http.listen,
        "gmq": settings.gmq.listen,
        "beanstalk": settings.beanstalk.listen,
        "timers": settings.timer.processes,
        "consumers": settings.consume.processes,
        "concurrency": settings.consume.concurrency,
        "store": settings.store.to_string(),
        "nodes": nodes,
        "registry": settings.registry.as_ref().map(ToString::to_string),
        "topics": settings.topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(),
        "notes": notes,
    })
}

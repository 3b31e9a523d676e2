//! `dq registry`: shows which node of the store has the registry, moves the registry to another node, or writes a new
//! registry.

use anyhow::{Result, bail};

use super::ask::confirm_with_yes;
use super::failure::Failure;
use super::show::counted;
use super::target::TargetOptions;
use model::settings::{RedisSettings, RegistrySettings, Settings};
use registry::{RedisRegistry, Registry as _, Snapshot};

/// Registry: show which Redis node has it, move it, or write it anew (registry.url = "store")
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq registry show --config /etc/dq/dq.toml
  dq registry move r2 --config /etc/dq/dq.toml
  dq registry rebuild --config /etc/dq/dq.toml")]
pub(super) struct RegistryArguments {
    #[command(subcommand)]
    command: RegistryCommand,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum RegistryCommand {
    Show(ShowRegistry),
    Move(MoveRegistry),
    Rebuild(RebuildRegistry),
}

/// Show which node has the registry, and what is registered
///
/// Needs --config.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq registry show --config /etc/dq/dq.toml")]
struct ShowRegistry {}

/// Move the registry to another node, for example before that node is emptied
///
/// Needs --config. All nodes must answer. While the registry is moved, nobody can change it. Jobs are delivered as
/// usual. A move that was interrupted can be started again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq registry move r2 --config /etc/dq/dq.toml")]
struct MoveRegistry {
    /// The name of the node in the configuration
    node: String,
}

/// Write a new registry from what this host knows, after the node with the old registry is lost
///
/// Needs --config. All nodes of the configuration must answer, and none may have a registry. The new registry has the
/// topics, tokens and accounts that this host knew last. A host does not know the audit log, the daily statistics, and
/// the operations on many jobs, so the new registry begins without them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq registry rebuild --config /etc/dq/dq.toml --yes")]
struct RebuildRegistry {
    /// The node that gets the new registry; default: the first node that has jobs
    #[arg(long, value_name = "NAME")]
    node: Option<String>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// Runs `dq registry`.
pub(super) fn run(arguments: &RegistryArguments) -> Result<()> {
    let Some(config) = arguments.at.config.as_deref() else {
        return Err(Failure::Usage("--config is missing: the file names the nodes".to_owned()).into());
    };
    let settings = super::settings(config)?;
    let nodes = nodes(&settings)?;
    match &arguments.command {
        RegistryCommand::Show(ShowRegistry {}) => show(nodes),
        RegistryCommand::Move(wanted) => {
            let Some(registry) = RedisRegistry::find(nodes)? else { bail!("no node has a registry") };
            let before = registry.node().to_owned();
            let registry = registry.move_to(&wanted.node)?;
            println!("the registry was on node {before}; it is on node {}", registry.node());
            Ok(())
        }
        RegistryCommand::Rebuild(wanted) => rebuild(wanted, &settings, nodes),
    }
}

fn nodes(settings: &Settings) -> Result<&RedisSettings> {
    match &settings.registry {
        Some(RegistrySettings::Store(nodes)) => Ok(nodes),
        Some(other) => bail!("the registry is {other}: this command is for registry.url = \"store\""),
        None => bail!("there is no registry: registry.url is \"none\""),
    }
}

/// Returns the registry, if it is on one of these nodes.
pub(super) fn registry_on(settings: &Settings, names: &[String]) -> Result<Option<RedisRegistry>> {
    let Some(RegistrySettings::Store(nodes)) = settings.registry.as_ref().filter(|_| !names.is_empty())
    else {
        return Ok(None);
    };
    Ok(RedisRegistry::find(nodes)?.filter(|registry| names.iter().any(|name| name == registry.node())))
}

fn show(nodes: &RedisSettings) -> Result<()> {
    let Some(mut registry) = RedisRegistry::find(nodes)? else {
        bail!("no node has a registry: it is made when the daemon starts");
    };
    let listing = registry.list()?;
    let accounts = listing.tokens.iter().filter(|token| token.is_account()).count();
    println!(
        "node {}: {}, {}, {}",
        registry.node(),
        counted(listing.topics.len(), "topic"),
        counted(listing.tokens.len() - accounts, "token"),
        counted(accounts, "account")
    );
    Ok(())
}

fn rebuild(arguments: &RebuildRegistry, settings: &Settings, nodes: &RedisSettings) -> Result<()> {
    let Some((known, unusable)) = Snapshot::read(&settings.run_dir)? else {
        bail!("this host knows no registry: {} is not there", Snapshot::file(&settings.run_dir).display());
    };
    if let Some(row) = unusable.first() {
        bail!("{} has what this release cannot read: {row}", Snapshot::file(&settings.run_dir).display());
    }
    let tokens = known.tokens.unwrap_or_default();
    let accounts = tokens.iter().filter(|token| token.is_account()).count();
    let what = format!(
        "{}, {} and {}, as this host knew them from {}",
        counted(known.topics.len(), "topic"),
        counted(tokens.len() - accounts, "token"),
        counted(accounts, "account"),
        known.source
    );
    confirm_with_yes(arguments.yes, &format!("Write a new registry with {what}?"))?;
    let registry = RedisRegistry::rebuild(nodes, arguments.node.as_deref(), &known.topics, &tokens)?;
    println!("node {} has a registry with {what}", registry.node());
    Ok(())
}

//! `dq export php-dq`: writes the pending jobs back to the PHP daemon's Redis, so that people can use the PHP daemon
//! again.
//!
//! The export works straight on the store, while no daemon runs. [`give_back`] says what a crash between any two steps
//! leaves behind.

mod destination;
mod fit;
mod give_back;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;

use self::fit::PhpCompatibility;
use self::give_back::Export;
use super::backup::{check_unused, stopped_daemon};
use super::file_owner::refuse_root;
use super::import::activity;
use super::import::address::addresses;
use super::import::known::TopicsAndPhpNodes;
use super::import::source::Source;
use super::import::{clock, describe};
use super::outbox::{check_outbox, warn_of_outbox};
use super::progress::Progress;
use super::spool::SpoolUsage;
use model::settings::RegistrySettings;

/// Write the pending jobs to another delay queue
#[derive(Debug, clap::Args)]
pub struct ExportArguments {
    #[command(subcommand)]
    to: ExportCommand,
}

#[derive(Debug, Subcommand)]
enum ExportCommand {
    PhpDq(ExportPhpDq),
}

/// Move the pending jobs to the Redis of php-delayqueue, so that php-delayqueue can be used again; dq and
/// php-delayqueue must be stopped
///
/// A job that is written there is removed from dq. dq may have taken over jobs from that Redis. Since then, dq may have
/// delivered or deleted them, or they may have become dead letters. The command removes these jobs from that Redis, so
/// that php-delayqueue does not deliver them again. Dead letters stay in dq. Jobs that php-delayqueue cannot deliver,
/// such as the jobs of pull topics, also stay in dq. dq's registry may be the database of php-delayqueue. Then the
/// command begins only if the given addresses are the same as in the table dq_redis of that database. The command can
/// be killed and run again at any time. The exit code is 0 if all jobs could be written. It is 1 if some could not be
/// written (they are named), or if the addresses do not fit.
#[derive(Debug, clap::Args)]
#[command(after_help = "Run it as the daemon's user, who owns the files of the embedded store. Example:\n  \
                  dq export php-dq --config /etc/dq/dq.toml --to 10.0.0.1:6379:secret --to 10.0.0.2:6379:secret --dry-run")]
struct ExportPhpDq {
    /// dq's configuration file; the jobs of its store are moved
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// The address of a Redis of the PHP daemon: a URL, or host:port:password as in the PHP daemon's table dq_redis.
    /// Give it once for each row of the table, in the order of the rows: the order decides which Redis a job belongs to
    #[arg(long, visible_alias = "redis", value_name = "ADDRESS", required = true)]
    to: Vec<String>,

    /// The prefix of the PHP daemon's keys
    #[arg(long, default_value = "dq_")]
    prefix: String,

    /// The number of buckets of the PHP daemon (DqConf::$bucket)
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    buckets: u32,

    /// Change nothing on either side, and print what would be moved
    #[arg(long)]
    dry_run: bool,

    /// Begin even if the PHP daemon seems to run, or if it possibly does not read these Redis servers
    #[arg(long)]
    anyway: bool,

    /// Also move jobs with headers, a priority number, followers, or an end of life (expire_after of the job or its
    /// topic). The jobs lose these properties, because the PHP daemon has no place for them. (Jobs with their own path
    /// or URL stay in dq)
    #[arg(long)]
    reduce: bool,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs `dq export`. Returns whether all jobs could be written.
pub fn run(arguments: &ExportArguments) -> Result<bool> {
    let ExportCommand::PhpDq(arguments) = &arguments.to;
    host::keep_new_files_private();
    let settings = super::settings(&arguments.config)?;
    refuse_root(&settings, "dq export php-dq")?;
    // While this lock is held, no daemon starts in the run_dir.
    let _lock = stopped_daemon(&settings)?;
    if !arguments.dry_run {
        settings.store.file().map_or(Ok(()), check_unused)?;
    }
    if let Some(fill) = SpoolUsage::of_host(&settings.store)?.filter(|fill| fill.entries > 0) {
        bail!("{} changes wait in the spool: start dq, and wait until `dq status` shows none", fill.entries);
    }
    let connect = |address| Source::connect(address, &arguments.prefix, arguments.dry_run);
    let addresses = addresses("--to", &arguments.to)?;
    let mut nodes: Vec<Source> = addresses.iter().map(connect).collect::<Result<_>>()?;
    // The notes say what this store has taken over. The notes of another store say nothing about this store.
    let name = describe(&settings)?;
    nodes.iter_mut().try_for_each(|node| node.check_claim(&name))?;
    let activity = activity::watch(&mut nodes)?;
    if !arguments.dry_run && !arguments.anyway {
        activity.refuse("which would take jobs while they are moved")?;
    }
    // If the registry does not exist, opening it would create it.
    let is_missing = matches!(&settings.registry, Some(RegistrySettings::Sqlite { path }) if !path.exists());
    let known = TopicsAndPhpNodes::read(&settings, is_missing);
    let mut doubts = known.differences(&addresses);
    doubts.extend(known.unread.iter().map(|why| format!("the registry could not be read: {why}")));
    if !arguments.dry_run && !arguments.anyway && !doubts.is_empty() {
        bail!(
            "the PHP daemon may not read these Redis servers: {} (give the rows of dq_redis in the order of their ids, \
             or give --anyway)",
            doubts.join("; ")
        );
    }
    let mut store =
        store::open(&settings.store.without_spool(), &settings.run_dir).context("cannot open the store")?;
    match arguments.dry_run {
        true => warn_of_outbox(store.as_mut(), "this store"),
        false => check_outbox(store.as_mut(), "this store")?,
    }
    let total = store.counts()?.iter().map(|topic| topic.delayed + topic.ready + topic.leased).sum();
    let progress = Progress::begin(total, "jobs");
    let (clock, dry_run) = (clock(&settings)?, arguments.dry_run);
    let fit = PhpCompatibility::new(known, arguments.reduce);
    let mut export = Export::new(store, nodes, arguments.buckets, clock, fit, dry_run, progress);
    export.summary.notes = activity.signs.into_iter().chain(activity.blind).collect();
    export.summary.differences = doubts;
    export.run()?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&export.summary)?);
    } else {
        print!("{}", export.summary.table());
    }
    Ok(export.summary.is_whole())
}

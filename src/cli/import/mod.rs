//! `dq import php-dq`: takes over the jobs that are pending in the PHP daemon's Redis.
//!
//! The import writes straight into the configured store, whether a daemon runs or not. In the PHP daemon's Redis, it
//! changes nothing except its own notes. [`take`] says what a crash between any two steps leaves behind.

pub(super) mod activity;
pub(super) mod address;
mod body;
pub(super) mod known;
pub(super) mod pending;
pub(super) mod source;
mod summary;
mod take;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::Subcommand;
use jiff::tz::TimeZone;

use self::activity::SourceActivity;
use self::address::{addresses, without_secrets};
use self::known::TopicsAndPhpNodes;
use self::pending::PhpTimeContext;
use self::source::Source;
use self::summary::ImportSummary;
use self::take::ImportRun;
use super::file_owner::refuse_root;
use super::progress::Progress;
use model::job::TopicName;
use model::settings::{self, NodeAddress};
use store::{self, Lanes, SqliteStore, Store};

/// Take over the jobs of another delay queue
#[derive(Debug, clap::Args)]
pub struct ImportArguments {
    #[command(subcommand)]
    from: ImportCommand,
}

#[derive(Debug, Subcommand)]
enum ImportCommand {
    PhpDq(ImportPhpDq),
}

/// Take over the pending jobs of php-delayqueue from its Redis; php-delayqueue must be stopped first
///
/// Ids, bodies, due times and the numbers of failures are kept. The command writes a note about each job that it has
/// taken over into the hash `<prefix>imported` of that Redis, and changes nothing else there. So it can be run again at
/// any time, and continues where it stopped. First it watches the Redis for some seconds, and refuses to begin while
/// the PHP daemon runs. The exit code is 0 if all jobs could be taken over. It is 1 if some jobs could not be taken
/// over (they are named), if a node of the registry's table dq_redis was not given with --from, or if the registry
/// could not be read.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Run it as the daemon's user, who owns the files of the embedded store. Examples:\n  \
                  dq import php-dq --config /etc/dq/dq.toml --from 10.0.0.1:6379:secret --from 10.0.0.2:6379:secret --dry-run\n  \
                  dq import php-dq --config /etc/dq/dq.toml --from redis://:secret@10.0.0.1:6379/0"
)]
struct ImportPhpDq {
    /// dq's configuration file; the jobs go into its store
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// A Redis of the PHP daemon: a URL, or host:port:password as in its table dq_redis. Give it once for each Redis,
    /// in any order
    #[arg(long, visible_alias = "redis", value_name = "ADDRESS", required = true)]
    from: Vec<String>,

    /// The prefix of the PHP daemon's keys
    #[arg(long, default_value = "dq_")]
    prefix: String,

    /// Only jobs of this topic; may be given several times
    #[arg(long = "topic", value_name = "NAME")]
    topics: Vec<String>,

    /// Change nothing on either side, and print what would be taken over
    #[arg(long)]
    dry_run: bool,

    /// Begin even if the PHP daemon seems to run. A job that it delivers meanwhile is delivered twice
    #[arg(long)]
    anyway: bool,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs `dq import`. Returns whether all jobs could be taken over.
pub fn run(arguments: &ImportArguments) -> Result<bool> {
    let ImportCommand::PhpDq(arguments) = &arguments.from;
    host::keep_new_files_private();
    let settings = super::settings(&arguments.config)?;
    refuse_root(&settings, "dq import php-dq")?;
    let mut only = Vec::new();
    for name in &arguments.topics {
        only.push(TopicName::new(name).context("--topic")?);
    }
    let addresses = addresses("--from", &arguments.from)?;
    // All sources must answer before any job is taken over.
    let connect = |address| Source::connect(address, &arguments.prefix, arguments.dry_run);
    let mut sources: Vec<Source> = addresses.iter().map(connect).collect::<Result<_>>()?;
    let entries: Vec<u64> = sources.iter_mut().map(Source::entries).collect::<Result<_>>()?;
    let total = entries.iter().sum();
    let activity = match total {
        0 => SourceActivity::default(),
        _ => activity::watch(&mut sources)?,
    };
    if total == 0 {
        let prefix = &arguments.prefix;
        eprintln!("dq: there is no key {prefix}job_info: check --prefix, and the database in the url");
    }
    if !arguments.dry_run && !arguments.anyway {
        activity.refuse("which would deliver once more what is taken over")?;
    }
    let known = TopicsAndPhpNodes::read(&settings, arguments.dry_run);
    // A job must be at its home, and not in the spool, when it is noted as taken over.
    let store_settings = settings.store.without_spool();
    // The durability levels of the topics apply to the stores that this process opens with these settings while `lanes`
    // lives.
    let lanes = Lanes::new(&store_settings)?;
    lanes.set_topics(&known.topics.values().cloned().collect());
    let store = if arguments.dry_run {
        let name = describe(&settings)?;
        sources.iter_mut().try_for_each(|source| source.check_claim(&name))?;
        None
    } else {
        Some(open(&settings, &store_settings, &mut sources, &entries)?)
    };
    let half_taken =
        known.topics.values().filter_map(|topic| Some((topic.name.to_string(), topic.held()?))).collect();
    let summary = ImportSummary {
        dry_run: arguments.dry_run,
        half_taken,
        unnamed_nodes: known.nodes_without(&addresses),
        running: activity.signs,
        unread_registry: known.unread,
        notes: activity.blind.into_iter().chain(known.problems).collect(),
        ..ImportSummary::default()
    };
    let progress = Progress::begin(total, "jobs");
    let mut import =
        ImportRun::new(store, known.topics.into_keys().collect(), only, clock(&settings)?, summary, progress);
    import.take_over(&mut sources);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&import.summary)?);
    } else {
        print!("{}", import.summary.table());
    }
    Ok(import.summary.is_whole())
}

/// Opens the store, and writes into each source a note that its jobs go to this store. A source without jobs gets no
/// note.
fn open(
    settings: &settings::Settings,
    store: &settings::StoreSettings,
    sources: &mut [Source],
    entries: &[u64],
) -> Result<Box<dyn Store>> {
    let store = store::open(store, &settings.run_dir).context("cannot open the store")?;
    let name = describe(settings)?;
    let mut with_jobs = sources.iter_mut().zip(entries).filter(|(_, entries)| **entries > 0);
    with_jobs.try_for_each(|(source, _)| source.claim(&name))?;
    Ok(store)
}

/// Returns the clock for the PHP daemon's times. Its zone is the setting `timezone`, which also applies to the times of
/// dq's clients. This setting must be the PHP daemon's zone.
pub(super) fn clock(settings: &settings::Settings) -> Result<PhpTimeContext> {
    let zone = match &settings.timezone {
        Some(name) => TimeZone::get(name).with_context(|| format!("timezone {name:?}"))?,
        None => TimeZone::system(),
    };
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
    Ok(PhpTimeContext { zone, now_ms })
}

/// Returns a text that identifies the store, so that another store can be recognised.
pub(super) fn describe(settings: &settings::Settings) -> Result<String> {
    Ok(match &settings.store {
        embedded @ settings::StoreSettings::Embedded { path, .. } => {
            let restored = SqliteStore::restored_as(path).context("cannot read the store")?;
            let restored = restored.map_or(String::new(), |identity| format!(", restored as {identity:08x}"));
            format!("{embedded} on {}{restored}", settings.instance)
        }
        settings::StoreSettings::Redis(redis) => {
            let at = |n: &settings::NodeSettings| match &n.at {
                NodeAddress::Server { url } => without_secrets(url),
                NodeAddress::Sentinel { master_name, .. } => master_name.clone(),
                // The seeds of a cluster may change, so they are left out.
                NodeAddress::Cluster { .. } => "a cluster".to_owned(),
            };
            let node = |n: &settings::NodeSettings| format!("{} at {}", n.name, at(n));
            let nodes: Vec<String> = redis.nodes.iter().map(node).collect();
            format!("redis under {}: {}", redis.prefix, nodes.join(", "))
        }
    })
}

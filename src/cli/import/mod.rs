//! `dq import php-dq`: takes over what is pending in the PHP daemon's Redis.
//!
//! Writes straight into the configuration's store, whether a daemon runs or not, and changes nothing of what it reads.

mod address;
mod pending;
mod source;
mod summary;
mod take;

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;

use self::address::{Address, without_secrets};
use self::source::Source;
use self::take::Import;
use super::progress::Progress;
use crate::job::TopicName;
use crate::registry::{self, Snapshot};
use crate::settings::{self, At};
use crate::store;
use crate::topic::Topic;

/// Take over the jobs of another delay queue
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    from: Origin,
}

#[derive(Debug, Subcommand)]
enum Origin {
    PhpDq(PhpDq),
}

/// Take over what is pending in the Redis of php-delayqueue, which is stopped meanwhile
///
/// Ids, bodies, due times and the numbers of failures are kept. What has been taken over is noted there in the hash
/// `<prefix>imported`, so that it can be run again at any time: it goes on where it was. Nothing else is changed there. Ends
/// with 0 when all could be taken over, and with 1 when some could not, which it names.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Run it as the daemon's user, who owns the files of the embedded store. Examples:\n  \
                  dq import php-dq --config /etc/dq/dq.toml --from 10.0.0.1:6379:secret --from 10.0.0.2:6379:secret --dry-run\n  \
                  dq import php-dq --config /etc/dq/dq.toml --from redis://:secret@10.0.0.1:6379/0"
)]
struct PhpDq {
    /// dq's configuration file: its store takes the jobs
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// A Redis of the PHP daemon's: a url, or host:port:password as in its table dq_redis. Once for each, in any order
    #[arg(long, value_name = "ADDRESS", required = true)]
    from: Vec<String>,

    /// What the names of its keys begin with
    #[arg(long, default_value = "dq_")]
    prefix: String,

    /// Only jobs of this topic; may be given more than once
    #[arg(long = "topic", value_name = "NAME")]
    topics: Vec<String>,

    /// Change nothing on either side: tell what would be taken over
    #[arg(long)]
    dry_run: bool,

    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs `dq import`. Tells whether all could be taken over.
pub fn run(arguments: &Arguments) -> Result<bool> {
    let Origin::PhpDq(arguments) = &arguments.from;
    let settings = super::settings(&arguments.config)?;
    let mut only = Vec::new();
    for name in &arguments.topics {
        only.push(TopicName::new(name).context("--topic")?);
    }
    let mut addresses: Vec<Address> = Vec::new();
    for text in &arguments.from {
        let address = Address::parse(text)?;
        if addresses.iter().any(|a| a.shown == address.shown) {
            bail!("--from {}: it is given twice", address.shown);
        }
        addresses.push(address);
    }
    // All of them answer before anything is taken.
    let connect = |address| Source::connect(address, &arguments.prefix);
    let mut sources: Vec<Source> = addresses.iter().map(connect).collect::<Result<_>>()?;
    let entries: Vec<u64> = sources.iter_mut().map(Source::entries).collect::<Result<_>>()?;
    let total = entries.iter().sum();
    if total == 0 {
        let prefix = &arguments.prefix;
        eprintln!("dq: there is no {prefix}job_info: --prefix and a url's database say where the jobs are");
    }
    let store = if arguments.dry_run {
        None
    } else {
        let store = store::open(&settings.store, &settings.run_dir).context("cannot open the store")?;
        let name = describe(&settings);
        // Nothing is left behind at one that has nothing.
        let mut with_jobs = sources.iter_mut().zip(&entries).filter(|(_, entries)| **entries > 0);
        with_jobs.try_for_each(|(source, _)| source.claim(&name))?;
        Some(store)
    };
    let topics = registered(&settings, arguments.dry_run);
    let names = topics.keys().cloned().collect();
    let mut import = Import::new(store, names, only, Progress::begin(total, "jobs"));
    import.summary.found_half_taken(topics.values());
    import.take_over(&mut sources);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&import.summary)?);
    } else {
        print!("{}", import.summary.table());
    }
    Ok(import.summary.is_whole())
}

/// The topics that dq knows, or will when it runs. A trial opens no registry, which would bring its tables up to date.
fn registered(settings: &settings::Settings, is_trial: bool) -> HashMap<TopicName, Topic> {
    let named = |topic: Topic| (topic.name.clone(), topic);
    let mut topics = HashMap::new();
    if let Some(at) = &settings.registry {
        let known = Snapshot::read(&settings.run_dir).ok().flatten();
        let known = known.filter(|(known, _)| known.source == at.to_string());
        topics.extend(known.into_iter().flat_map(|(known, _)| known.topics).map(named));
        if !is_trial {
            match registry::open(at).and_then(|mut registry| registry.list()) {
                Ok(listing) => topics.extend(listing.topics.into_iter().map(|r| named(r.topic))),
                Err(e) => eprintln!("dq: the registry: {e}; going on with the topics that are known"),
            }
        }
    }
    // Of two of a name, the file's counts.
    topics.extend(settings.topics.iter().cloned().map(named));
    topics
}

/// Which store it is, so that another one is told from it.
fn describe(settings: &settings::Settings) -> String {
    match &settings.store {
        embedded @ settings::Store::Embedded { .. } => format!("{embedded} on {}", settings.instance),
        settings::Store::Redis(redis) => {
            let at = |n: &settings::Node| match &n.at {
                At::Server { url } => without_secrets(url),
                At::Sentinel { master_name, .. } => master_name.clone(),
                // Its seeds come and go.
                At::Cluster { .. } => "a cluster".to_owned(),
            };
            let node = |n: &settings::Node| format!("{} at {}", n.name, at(n));
            let nodes: Vec<String> = redis.nodes.iter().map(node).collect();
            format!("redis under {}: {}", redis.prefix, nodes.join(", "))
        }
    }
}

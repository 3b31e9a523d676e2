//! `dq nodes`: shows the nodes of the store, and changes which of them have jobs.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use super::api::Api;
use super::ask::confirm_with_yes;
use super::daemon_snapshot::{self, Node};
use super::failure::Failure;
use super::node_table::{JobCounts, NodeRow, table, waiting};
use super::shared_registry::registry_on;
use super::show::plain;
use super::spool::SpoolUsage;
use super::target::TargetOptions;
use model::settings::Settings;
use store::{self, Lanes, MoveProgress, MoveSummary, ServerQuery, SetChangeRequest, Store, StoreError};

/// How often the progress of a move is printed if stderr is not a terminal.
const LINE_EACH: Duration = Duration::from_secs(5);

/// Nodes: show the nodes of the store, and change which of them have jobs
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq nodes list
  dq nodes move --add r3 --config /etc/dq/dq.toml
  dq nodes forget r2 --config /etc/dq/dq.toml")]
pub(super) struct NodesArguments {
    #[command(subcommand)]
    command: NodesCommand,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum NodesCommand {
    List(ListNodes),
    Move(Move),
    Forget(ForgetNode),
}

/// Show the nodes: whether each answers and how many jobs it has; and what waits in the spool
///
/// With --config, the command asks the nodes themselves. Without it, it asks the daemon. The exit code is 0 if all
/// nodes answer, and 1 otherwise. A node outside the set need not answer, because it has no jobs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq nodes list\n  dq nodes list --config /etc/dq/dq.toml\n  dq nodes list --config dq.toml --json"
)]
struct ListNodes {}

/// Move jobs between nodes: to a node that is added, or away from a node that is emptied
///
/// Needs --config. The file must name all nodes that have jobs, and the nodes that are added or adopted. All of these
/// must answer. Until the move is finished, no job is delivered or changed. If a node that is emptied has the registry,
/// the registry is moved first. A move that was interrupted can be started again. Without --add and --empty, the
/// command finishes an interrupted move, looks at a node that is older than the others, and brings the jobs of an
/// earlier release to their homes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq nodes move --add r3 --config /etc/dq/dq.toml --dry-run\n  dq nodes move --add r3 --config /etc/dq/dq.toml\n  dq nodes move --empty r1 --config /etc/dq/dq.toml"
)]
struct Move {
    /// A node of the configuration that will have jobs from now on; it must be empty
    #[arg(long, value_name = "NAME")]
    add: Vec<String>,

    /// A node whose jobs are moved away, so that it can be taken out of the configuration
    #[arg(long, value_name = "NAME")]
    empty: Vec<String>,

    /// A forgotten node that is back: take over its jobs. If another node has a job with the same id, the job of the
    /// other node stays
    #[arg(long, value_name = "NAME")]
    adopt: Vec<String>,

    /// Change nothing, and print what would be done
    #[arg(long)]
    dry_run: bool,

    /// With --adopt: do not ask for confirmation. (Jobs that were delivered or deleted since the node was forgotten may
    /// come back)
    #[arg(long)]
    yes: bool,
}

/// Forget a node that is lost for good, with all jobs that it had
///
/// Needs --config. All other nodes must answer. A node that answers is forgotten only if it is empty: dq nodes move
/// --empty empties it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq nodes forget r2 --config /etc/dq/dq.toml")]
struct ForgetNode {
    /// The name of the node in the configuration
    name: String,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// Runs `dq nodes`. Returns whether all is well.
pub(super) fn run(arguments: &NodesArguments) -> Result<bool> {
    let config = || match arguments.at.config.as_deref() {
        Some(config) => open(config),
        None => Err(Failure::Usage("--config is missing: the file names the nodes".to_owned()).into()),
    };
    match &arguments.command {
        NodesCommand::List(ListNodes {}) => list(&arguments.at),
        NodesCommand::Move(wanted) => {
            let (settings, lanes) = config()?;
            move_jobs(wanted, &settings, &lanes).map(|()| true)
        }
        NodesCommand::Forget(wanted) => forget(wanted, &config()?.1).map(|()| true),
    }
}

fn open(config: &Path) -> Result<(Settings, Lanes)> {
    let settings = super::settings(config)?;
    let lanes = Lanes::new(&settings.store)?;
    if lanes.name(0).is_none() {
        bail!("store.backend is \"embedded\", which has no nodes");
    }
    Ok((settings, lanes))
}

fn jobs(store: &mut dyn Store) -> store::Result<JobCounts> {
    let mut jobs = JobCounts::default();
    for counts in store.counts()? {
        jobs.delayed += counts.delayed;
        jobs.ready += counts.ready;
        jobs.leased += counts.leased;
        jobs.dead += counts.dead;
    }
    Ok(jobs)
}

/// Returns why a node does not answer. `None`: the node answers.
fn why_down(lanes: &Lanes, lane: usize) -> Option<String> {
    let mut why = lanes.probe(lane, ServerQuery::Time).into_iter().filter_map(|probed| probed.values.err());
    why.next().map(|e| match e {
        StoreError::NodeDown(why) => why,
        e => e.to_string(),
    })
}

/// Asks the nodes themselves, and reads the spool of this host.
fn rows(config: &Path) -> Result<(Vec<NodeRow>, Option<SpoolUsage>)> {
    let (settings, lanes) = open(config)?;
    let mut rows = Vec::new();
    for (lane, state) in lanes.nodes().into_iter().enumerate() {
        let counts = match store::open_lane(&settings.store, &settings.run_dir, lane) {
            Ok(mut store) if state.answers => jobs(store.as_mut()),
            Ok(_) => Err(StoreError::NodeDown(String::new())),
            Err(e) => Err(e),
        };
        let detail = counts.as_ref().err().map(|e| why_down(&lanes, lane).unwrap_or_else(|| e.to_string()));
        let mut node = Node {
            name: state.name,
            answers: state.answers,
            part: state.part.word().to_owned(),
            is_older: state.is_older,
            durability: state.capability.as_ref().map(|capability| capability.alone().to_string()),
            replicas: state.capability.and_then(|capability| capability.replicas),
            detail,
            ..Node::default()
        };
        if let Ok(JobCounts { delayed, ready, leased, dead }) = counts {
            (node.delayed, node.ready, node.leased, node.dead) = (delayed, ready, leased, dead);
        } else {
            node.answers = false;
        }
        rows.push(NodeRow::from(&node));
    }
    // The spool belongs to no node, and its file may belong to another user. So the nodes are shown even if the spool
    // cannot be read.
    let spool = SpoolUsage::of_host(&settings.store);
    Ok((rows, spool.inspect_err(|e| eprintln!("the spool cannot be read: {e}")).ok().flatten()))
}

fn list(at: &TargetOptions) -> Result<bool> {
    let (rows, spool) = match &at.config {
        Some(config) => rows(config)?,
        None => {
            let snapshot = daemon_snapshot::nodes(&Api::from_options(at)?)?;
            (snapshot.nodes.iter().map(NodeRow::from).collect(), snapshot.spool)
        }
    };
    if at.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}{}", table(&rows), waiting(spool));
    }
    // A node outside the set has no jobs, so it may be down.
    Ok(rows.iter().all(|row| row.jobs.is_some() || row.state == "outside"))
}

fn is_known(lanes: &Lanes, name: &str) -> Result<()> {
    let names: Vec<&str> = (0..lanes.count()).filter_map(|lane| lanes.name(lane)).collect();
    match names.contains(&name) {
        true => Ok(()),
        false => {
            let message = format!("the configuration names no node {name:?}; it names {}", names.join(", "));
            Err(Failure::NotFound(message).into())
        }
    }
}

fn move_jobs(arguments: &Move, settings: &Settings, lanes: &Lanes) -> Result<()> {
    let Some(nodes) = lanes.redis() else { bail!("store.backend is \"embedded\", which has no nodes") };
    let Move { add, empty, adopt, dry_run, yes } = arguments;
    add.iter().chain(empty).chain(adopt).try_for_each(|name| is_known(lanes, name))?;
    let ask = SetChangeRequest {
        add: add.clone(),
        empty: empty.clone(),
        adopt: adopt.clone(),
        ..SetChangeRequest::default()
    };
    let Some(ahead) = nodes.preview_move(&ask)? else {
        println!("nothing is to be done: all nodes have the same set, and no job has to be moved");
        if let Some(registry) = registry_on(settings, empty)? {
            println!("{} has the registry: dq registry move NODE takes it to another node", registry.node());
        }
        return print_outboxes(lanes, empty);
    };
    println!("nodes with jobs now: {}; afterwards: {}", ahead.before.join(", "), ahead.nodes.join(", "));
    println!(
        "{} jobs and dead letters will be looked at; until that is finished, none is delivered or changed",
        ahead.counts[0]
    );
    let registry = registry_on(settings, empty)?.zip(ahead.nodes.first());
    if let Some((registry, goal)) = &registry {
        println!("the registry will be moved from {} to {goal}", registry.node());
    }
    if *dry_run {
        return Ok(());
    }
    let question = format!(
        "The jobs of {} may have been delivered, deleted or replaced since it was forgotten, and would come back. Take them over?",
        adopt.join(", ")
    );
    if !adopt.is_empty() {
        confirm_with_yes(*yes, &question)?;
    }
    if let Some((registry, goal)) = registry {
        registry.move_to(goal).context("the registry is not moved: run the same command again")?;
    }
    eprintln!("if this command is interrupted, run dq nodes move again: until then nothing is delivered");
    let done = nodes
        .move_jobs(&ask, progress_bar()?)
        .context("the move is not finished: run dq nodes move again")?;
    done.iter().for_each(print_moved);
    done.iter().try_for_each(|done| wait_for_outboxes(lanes, done))
}

/// Prints which of these nodes still have entries in their outboxes.
fn print_outboxes(lanes: &Lanes, names: &[String]) -> Result<()> {
    let Some(nodes) = lanes.redis() else { return Ok(()) };
    for name in names {
        if let left @ 1.. = nodes.outbox_of(name)?.entries {
            println!(
                "{name} still has {left} entries about what follows jobs that have ended: the timers send them"
            );
        }
    }
    Ok(())
}

/// The longest time that a move waits at its end for the timers to send all entries of the outboxes.
const OUTBOXES_WAIT: Duration = Duration::from_secs(30);

/// Waits until the emptied nodes also have no entries in their outboxes. The timers send these entries.
fn wait_for_outboxes(lanes: &Lanes, done: &MoveSummary) -> Result<()> {
    let Some(nodes) = lanes.redis() else { return Ok(()) };
    let until = Instant::now() + OUTBOXES_WAIT;
    for name in done.before.iter().filter(|name| !done.nodes.contains(name)) {
        let left = loop {
            match nodes.outbox_of(name)?.entries {
                0 => break 0,
                left if Instant::now() >= until => break left,
                _ => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        if left > 0 {
            println!(
                "{name} still has {left} entries about what follows jobs that have ended: keep it in the configuration until \
                 dq nodes move --empty {name} does not say so any more"
            );
        } else {
            println!(
                "{name} has no jobs any more: take it out of the configuration of every host, and reload"
            );
        }
    }
    Ok(())
}

/// Returns a function that shows the progress of a move: a bar at a terminal, otherwise one line after each
/// [`LINE_EACH`].
fn progress_bar() -> Result<impl FnMut(MoveProgress)> {
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos} of {len} looked at, {eta} to go")?);
    let is_shown = std::io::stderr().is_terminal();
    let mut last_line = Instant::now();
    Ok(move |progress| {
        match progress {
            MoveProgress::Begins(all) => {
                bar.set_length(all);
                bar.set_position(0);
            }
            MoveProgress::Searched(n) => bar.inc(n),
            MoveProgress::Again => {
                eprintln!("a node does not answer, or another server answers for it: the move begins again")
            }
        }
        if !is_shown && last_line.elapsed() >= LINE_EACH {
            last_line = Instant::now();
            eprintln!("{} of {} looked at", bar.position(), bar.length().unwrap_or(0));
        }
    })
}

fn print_moved(done: &MoveSummary) {
    let [before, after] = done.counts;
    println!("{} jobs and dead letters were moved; nodes with jobs: {}", done.moved, done.nodes.join(", "));
    println!("counted before: {before}, after: {after}");
    if after + done.dropped < before {
        println!("jobs that an interrupted move had left on two nodes were counted twice before");
    }
    if done.dropped > 0 {
        println!(
            "{} were dropped on nodes that are older than the others: they had been moved before",
            done.dropped
        );
    }
}

fn forget(arguments: &ForgetNode, lanes: &Lanes) -> Result<()> {
    let Some(nodes) = lanes.redis() else { bail!("store.backend is \"embedded\", which has no nodes") };
    let name = &arguments.name;
    is_known(lanes, name)?;
    let states = lanes.nodes();
    let lane = states.iter().position(|state| state.name == *name);
    if let Some(state) = lane.map(|lane| &states[lane])
        && state.answers
    {
        let ask = SetChangeRequest { empty: vec![name.clone()], ..SetChangeRequest::default() };
        let jobs = nodes.jobs_of(name)?;
        if jobs > 0 {
            bail!(
                "{name} answers and has {jobs} jobs and dead letters: dq nodes move --empty {name} moves them away"
            );
        }
        let done = nodes.move_jobs(&ask, |_| {})?;
        println!("{name} had no jobs; it is no longer one of the nodes");
        return done.map_or(Ok(()), |done| {
            println!("nodes with jobs: {}", done.nodes.join(", "));
            Ok(())
        });
    }
    let why = lane
        .and_then(|lane| why_down(lanes, lane))
        .map_or(String::new(), |why| format!(" ({})", plain(&why)));
    let question = format!(
        "{name} does not answer{why}. All jobs and dead letters that it had are lost with it. Forget it?"
    );
    confirm_with_yes(arguments.yes, &question)?;
    let left = nodes.give_up(name, progress_bar()?)?;
    println!("{name} is forgotten; nodes with jobs: {}", left.join(", "));
    println!(
        "take it out of the configuration of every host, and reload. If it comes back: dq nodes move --adopt {name}"
    );
    Ok(())
}

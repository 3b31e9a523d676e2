//! `dq nodes`: how the nodes of the store are to each other; and draining one, so that it can be taken out of the
//! configuration.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::api::Api;
use super::failure::Failure;
use super::picture::{self, Node};
use super::show::{Table, plain};
use super::target::Where;
use crate::settings::Settings;
use crate::store::{self, Lanes, NodeState, Probe, Store, StoreError};

/// How often it is looked how far a drain is; and how often that is told where there is no terminal.
const ROUND: Duration = Duration::from_millis(300);
const LINE_EACH: Duration = Duration::from_secs(5);

/// Nodes: how those of the store are, and draining one of its jobs
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq nodes list
  dq nodes drain r3 --config /etc/dq/dq.toml")]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    at: Where,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Drain(Drain),
}

/// Show each node: whether it answers, whether new jobs go there, and how many jobs it has
///
/// With --config the nodes are asked themselves, and else the daemon. Ends with 0 when all of them answer, with 1 otherwise.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq nodes list\n  dq nodes list --config /etc/dq/dq.toml\n  dq nodes list --config dq.toml --json"
)]
struct List {}

/// Move a node's pending jobs to the other nodes, and send new ones there, so that it can be taken out of the configuration
///
/// Needs --config. May be broken off and begun again; running daemons go on with it by themselves. Dead letters stay where they
/// are.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq nodes drain r3 --config /etc/dq/dq.toml\n  dq nodes drain r3 --config /etc/dq/dq.toml --undo"
)]
struct Drain {
    /// What the configuration calls the node
    name: String,

    /// Let new jobs go there again; those whose home it is come back
    #[arg(long)]
    undo: bool,
}

/// Runs `dq nodes`. Tells whether all is well.
pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let config = arguments.at.config.as_deref();
    match &arguments.command {
        Command::List(List {}) => list(&arguments.at),
        Command::Drain(drained) => match config {
            Some(config) => drain(drained, config).map(|()| true),
            None => Err(Failure::Usage("--config says which nodes there are".to_owned()).into()),
        },
    }
}

/// A node, and how many jobs it has; none: it does not answer.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    answers: bool,
    is_home: bool,
    held_for_others: u64,
    /// None: whoever was asked does not tell.
    is_looked_through: Option<bool>,
    jobs: Option<Jobs>,
    /// Why it does not answer.
    detail: Option<String>,
}

impl From<&Node> for Row {
    fn from(node: &Node) -> Row {
        let Node { delayed, ready, leased, dead, .. } = *node;
        Row {
            name: node.name.clone(),
            answers: node.answers,
            is_home: !node.drained,
            held_for_others: node.for_others,
            is_looked_through: None,
            jobs: node.answers.then_some(Jobs { delayed, ready, leased, dead }),
            detail: node.detail.clone().filter(|detail| !detail.is_empty()),
        }
    }
}

/// The jobs of a node, by state.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Jobs {
    delayed: u64,
    ready: u64,
    leased: u64,
    dead: u64,
}

impl Jobs {
    fn pending(self) -> u64 {
        self.delayed + self.ready + self.leased
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

fn jobs(store: &mut dyn Store) -> store::Result<Jobs> {
    let mut jobs = Jobs::default();
    for counts in store.counts()? {
        jobs.delayed += counts.delayed;
        jobs.ready += counts.ready;
        jobs.leased += counts.leased;
        jobs.dead += counts.dead;
    }
    Ok(jobs)
}

/// Why a node does not answer; none: it does.
fn why_down(lanes: &Lanes, lane: usize) -> Option<String> {
    let mut why = lanes.probe(lane, Probe::Time).into_iter().filter_map(|probed| probed.told.err());
    why.next().map(|e| match e {
        StoreError::NodeDown(why) => why,
        e => e.to_string(),
    })
}

/// The nodes themselves are asked.
fn rows(config: &Path) -> Result<Vec<Row>> {
    let (settings, lanes) = open(config)?;
    let mut rows = Vec::new();
    for (lane, state) in lanes.nodes().into_iter().enumerate() {
        let mut store = store::open_lane(&settings.store, &settings.run_dir, lane)?;
        let told =
            if state.answers { jobs(store.as_mut()) } else { Err(StoreError::NodeDown(String::new())) };
        let detail = told.as_ref().err().map(|e| why_down(&lanes, lane).unwrap_or_else(|| e.to_string()));
        let NodeState { name, answers, is_home, held_for_others, is_looked_through } = state;
        rows.push(Row {
            name,
            answers,
            is_home,
            held_for_others,
            is_looked_through: Some(is_looked_through),
            jobs: told.ok(),
            detail,
        });
    }
    Ok(rows)
}

fn list(at: &Where) -> Result<bool> {
    let rows = match &at.config {
        Some(config) => rows(config)?,
        None => picture::nodes(&Api::of(at)?)?.iter().map(Row::from).collect(),
    };
    if at.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(rows.iter().all(|row| row.jobs.is_some()))
}

/// The nodes that a daemon tells of.
pub(super) fn told(nodes: &[Node]) -> String {
    table(&nodes.iter().map(Row::from).collect::<Vec<_>>())
}

fn table(rows: &[Row]) -> String {
    let mut table =
        Table::new(&["NODE", "STATE", ">DELAYED", ">READY", ">LEASED", ">DEAD", ">FOR OTHERS", "WHY"]);
    for row in rows {
        let word = match (row.answers, row.is_home) {
            (false, _) => "down",
            (true, false) => "draining",
            (true, true) if row.is_looked_through == Some(false) => "settling",
            (true, true) => "up",
        };
        let count =
            |of: fn(&Jobs) -> u64| row.jobs.as_ref().map_or(String::new(), |jobs| of(jobs).to_string());
        table.row([
            row.name.clone(),
            word.to_owned(),
            count(|jobs| jobs.delayed),
            count(|jobs| jobs.ready),
            count(|jobs| jobs.leased),
            count(|jobs| jobs.dead),
            row.jobs.map_or(String::new(), |_| row.held_for_others.to_string()),
            row.detail.clone().unwrap_or_default(),
        ]);
    }
    table.text()
}

fn drain(arguments: &Drain, config: &Path) -> Result<()> {
    let (settings, lanes) = open(config)?;
    let name = &arguments.name;
    let nodes = lanes.nodes();
    let Some(lane) = nodes.iter().position(|node| node.name == *name) else {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let told = format!("there is no node {name:?}; there are {}", names.join(", "));
        return Err(Failure::NotFound(told).into());
    };
    if arguments.undo {
        lanes.drain(lane, false).context("cannot tell the nodes")?;
        println!("new jobs go to {name} again");
        return Ok(());
    }
    if !nodes.iter().any(|node| node.is_home && node.name != *name) {
        bail!("{name} is the only node that takes jobs: there is none to move its jobs to");
    }
    if !nodes[lane].answers {
        let why = why_down(&lanes, lane).map_or(String::new(), |why| format!(" ({})", plain(&why)));
        bail!("{name} does not answer{why}: its jobs cannot be moved now");
    }
    lanes.drain(lane, true).context("cannot tell the nodes")?;
    let mut store = store::open_lane(&settings.store, &settings.run_dir, lane)?;
    let left = wait_until_drained(&lanes, lane, store.as_mut())?;
    println!("{name} has no pending jobs any more: take it out of the configuration, and reload every host");
    println!("(to use it again one day: dq nodes drain {name} --undo)");
    if left.dead > 0 {
        println!(
            "{} dead letters are left on {name}: redrive or purge them first, or they are lost with it",
            left.dead
        );
    }
    Ok(())
}

/// Until nothing is pending there. Moves jobs itself, too: there need not be a daemon that does.
fn wait_until_drained(lanes: &Lanes, lane: usize, store: &mut dyn Store) -> Result<Jobs> {
    let first = jobs(store)?;
    let bar = ProgressBar::new(first.pending());
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos} of {len} jobs are moved, {eta} to go {msg}")?);
    let is_shown = std::io::stderr().is_terminal();
    let (mut failed, mut told) = (0, Instant::now());
    loop {
        let step = store.maintain().and_then(|_| jobs(store));
        match step {
            Ok(left) => {
                failed = 0;
                bar.set_length(first.pending().max(left.pending()));
                bar.set_position(bar.length().unwrap_or(0) - left.pending());
                let state = &lanes.nodes()[lane];
                let is_through = state.is_looked_through && !state.is_home && state.held_for_others == 0;
                if left.pending() == 0 && is_through {
                    bar.finish_and_clear();
                    return Ok(left);
                }
                let held = if left.leased > 0 && left.leased == left.pending() {
                    format!("({} are being delivered)", left.leased)
                } else {
                    String::new()
                };
                if !is_shown && told.elapsed() >= LINE_EACH {
                    told = Instant::now();
                    let (moved, all) = (bar.position(), bar.length().unwrap_or(0));
                    eprintln!("{moved} of {all} jobs are moved {held}");
                }
                bar.set_message(held);
            }
            // Running daemons go on; it may be back in a moment.
            Err(e) if failed < 30 => {
                failed += 1;
                bar.set_message(format!("({e})"));
            }
            Err(e) => return Err(e).context("cannot move its jobs; begin again when all nodes answer"),
        }
        std::thread::sleep(ROUND);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_what_each_node_does() {
        let row = |name: &str, answers, is_home| Row {
            name: name.into(),
            answers,
            is_home,
            held_for_others: 7,
            is_looked_through: Some(true),
            jobs: answers.then_some(Jobs { delayed: 1, ready: 2, leased: 3, dead: 4 }),
            detail: (!answers).then(|| "connection refused".to_owned()),
        };
        let rows = [row("r1", true, true), row("r-long", true, false), row("r3", false, true)];
        let table = table(&rows);
        let words: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["r1", "up", "1", "2", "3", "4", "7"]);
        assert_eq!(words[2], ["r-long", "draining", "1", "2", "3", "4", "7"]);
        assert_eq!(words[3], ["r3", "down", "connection", "refused"]);
    }
}

//! `dq nodes`: how the nodes of the store are to each other; and draining one, so that it can be taken out of the
//! configuration.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::settings::Settings;
use crate::store::{self, Lanes, NodeState, Store};

/// How often it is looked how far a drain is.
const ROUND: Duration = Duration::from_millis(300);

/// Show the nodes of the store, or move all pending jobs away from one.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Drain(Drain),
}

/// Show each node: whether it answers, whether new jobs go there, and how many jobs it has.
///
/// Ends with 0 when all of them answer, with 1 otherwise.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq nodes list --config /etc/dq/dq.toml\n  dq nodes list --config dq.toml --json"
)]
struct List {
    /// The daemon's configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Move a node's pending jobs to the other nodes, and send new ones there, so that it can be taken out of the configuration.
///
/// May be broken off and begun again; running daemons go on with it by themselves. Dead letters stay where they are.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq nodes drain r3 --config /etc/dq/dq.toml\n  dq nodes drain r3 --config /etc/dq/dq.toml --undo"
)]
struct Drain {
    /// What the configuration calls the node
    name: String,

    /// The daemon's configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// Let new jobs go there again; those whose home it is come back
    #[arg(long)]
    undo: bool,
}

/// Runs `dq nodes`. Tells whether all is well.
pub fn run(arguments: &Arguments) -> Result<bool> {
    match &arguments.command {
        Command::List(arguments) => list(arguments),
        Command::Drain(arguments) => drain(arguments).map(|()| true),
    }
}

/// A node, and how many jobs it has; none: it does not answer.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    state: NodeState,
    jobs: Option<Jobs>,
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

fn list(arguments: &List) -> Result<bool> {
    let (settings, lanes) = open(&arguments.config)?;
    let mut rows = Vec::new();
    for (lane, state) in lanes.nodes().into_iter().enumerate() {
        let mut store = store::open_lane(&settings.store, &settings.run_dir, lane)?;
        let jobs = if state.answers { jobs(store.as_mut()).ok() } else { None };
        rows.push(Row { state, jobs });
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(rows.iter().all(|row| row.jobs.is_some()))
}

fn table(rows: &[Row]) -> String {
    let wide = rows.iter().map(|r| r.state.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "{:wide$}  {:9}  {:>10} {:>10} {:>10} {:>10}  {}\n",
        "NODE", "STATE", "DELAYED", "READY", "LEASED", "DEAD", "FOR OTHERS"
    );
    for Row { state, jobs } in rows {
        let word = match (state.answers, state.is_home) {
            (false, _) => "down",
            (true, false) => "draining",
            (true, true) if !state.is_looked_through => "settling",
            (true, true) => "up",
        };
        let _ = write!(text, "{:wide$}  {word:9}", state.name);
        match jobs {
            Some(Jobs { delayed, ready, leased, dead }) => {
                let others = state.held_for_others;
                let _ = writeln!(text, "  {delayed:>10} {ready:>10} {leased:>10} {dead:>10}  {others}");
            }
            None => text.push('\n'),
        }
    }
    text
}

fn drain(arguments: &Drain) -> Result<()> {
    let (settings, lanes) = open(&arguments.config)?;
    let name = &arguments.name;
    let nodes = lanes.nodes();
    let Some(lane) = nodes.iter().position(|node| node.name == *name) else {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        bail!("there is no node {name:?}; there are {}", names.join(", "));
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
        bail!("{name} does not answer: its jobs cannot be moved now");
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
    let mut failed = 0;
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
        let state = |name: &str, answers, is_home| NodeState {
            name: name.into(),
            answers,
            is_home,
            held_for_others: 7,
            is_looked_through: true,
        };
        let jobs = Some(Jobs { delayed: 1, ready: 2, leased: 3, dead: 4 });
        let rows = [
            Row { state: state("r1", true, true), jobs },
            Row { state: state("r-long", true, false), jobs },
            Row { state: state("r3", false, true), jobs: None },
        ];
        let table = table(&rows);
        let words: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["r1", "up", "1", "2", "3", "4", "7"]);
        assert_eq!(words[2], ["r-long", "draining", "1", "2", "3", "4", "7"]);
        assert_eq!(words[3], ["r3", "down"]);
    }
}

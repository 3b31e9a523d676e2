//! The commands that change the set of nodes, as operators use them. Only this file knows how the set is changed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Daemon, SLOTS, all_new};

/// The nodes of a daemon with their names and sections, and which of them the configuration names.
pub struct Set {
    sections: Vec<(String, String)>,
    is_named: Vec<bool>,
    /// The configuration without the section of the store.
    rest: String,
}

impl Set {
    /// `away`: nodes that the configuration does not name yet.
    pub fn new(sections: Vec<(String, String)>, away: &[usize], rest: String) -> Set {
        let is_named = (0..sections.len()).map(|n| !away.contains(&n)).collect();
        Set { sections, is_named, rest }
    }

    /// Gives a running daemon exactly these nodes, as the documents describe: with a changed configuration and HUP.
    /// Waits until all its processes use the new configuration.
    pub fn change(&mut self, daemon: &Daemon, nodes: &[usize]) {
        let before = daemon.wait_all_up(SLOTS);
        (0..self.is_named.len()).for_each(|n| self.is_named[n] = nodes.contains(&n));
        self.write(daemon);
        daemon.signal(Signal::SIGHUP);
        all_new(daemon, &before);
    }

    /// Whether each node of the configuration is up: it is in the set, it answers, and it is not older. If all nodes
    /// are up, no jobs are being moved.
    pub fn is_settled(&self, config: &Path) -> bool {
        let out = self.command(&["list", "--json"], config).stdout(Stdio::piped()).output().unwrap();
        let Ok(rows) = serde_json::from_slice::<Value>(&out.stdout) else { return false };
        rows.as_array().is_some_and(|rows| rows.iter().all(|row| row["state"] == "up"))
    }

    pub fn config(&self) -> String {
        let named = self.sections.iter().zip(&self.is_named).filter(|(_, is_named)| **is_named);
        let sections: String = named.map(|((_, section), _)| section.as_str()).collect();
        format!("[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n{sections}{}", self.rest)
    }

    pub fn write(&self, daemon: &Daemon) {
        Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &self.config());
    }

    /// Returns the command that empties a node, so that it can be removed from the configuration.
    pub fn take_out(&self, node: usize, config: &Path) -> Command {
        self.command(&["move", "--empty", &self.sections[node].0], config)
    }

    /// Returns the command that gives up a lost node.
    pub fn forget(&self, node: usize, config: &Path) -> Command {
        self.command(&["forget", &self.sections[node].0, "--yes"], config)
    }

    /// Returns the command that finishes an interrupted move, and looks at older nodes.
    pub fn look(&self, config: &Path) -> Command {
        self.command(&["move"], config)
    }

    /// Adds a node to the configuration.
    pub fn name(&mut self, node: usize) {
        self.is_named[node] = true;
    }

    /// Removes a node from the configuration, as an operator does after the command of `take_out` has succeeded.
    pub fn is_taken_out(&mut self, node: usize) {
        self.is_named[node] = false;
    }

    /// Returns the command that gives a node its share of the jobs. The configuration must name the node first.
    pub fn bring_back(&self, node: usize, config: &Path) -> Command {
        self.command(&["move", "--add", &self.sections[node].0], config)
    }

    fn command(&self, arguments: &[&str], config: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        command.arg("nodes").args(arguments).arg("--config").arg(config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// A command that runs in the background. It is killed when this value is dropped.
pub struct Running(Child);

impl Running {
    pub fn start(mut command: Command) -> Running {
        Running(command.spawn().unwrap())
    }

    /// Returns whether the command has succeeded. `None`: the command still runs.
    pub fn ended(&mut self) -> Option<bool> {
        self.0.try_wait().unwrap().map(|status| status.success())
    }

    /// Waits until the command ends, and returns whether it has succeeded. Kills the command after the deadline.
    pub fn wait_or_kill(mut self, deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        loop {
            match self.ended() {
                Some(well) => return well,
                None if Instant::now() > until => return false,
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

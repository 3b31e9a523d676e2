//! The commands that change the set of nodes, as people give them. What is special to one way of changing the set is here alone.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Daemon, SLOTS, all_new};

/// The nodes of a daemon, by name and section, and which of them the configuration names.
pub struct Set {
    sections: Vec<(String, String)>,
    is_named: Vec<bool>,
    /// What stands in the configuration beside them.
    rest: String,
}

impl Set {
    /// `away`: nodes that the configuration does not name yet.
    pub fn new(sections: Vec<(String, String)>, away: &[usize], rest: String) -> Set {
        let is_named = (0..sections.len()).map(|n| !away.contains(&n)).collect();
        Set { sections, is_named, rest }
    }

    /// Gives a running daemon these nodes alone, as people do it who follow the documents: by the configuration and HUP. Waits
    /// until all of its processes go by it.
    pub fn change(&mut self, daemon: &Daemon, nodes: &[usize]) {
        let before = daemon.wait_all_up(SLOTS);
        (0..self.is_named.len()).for_each(|n| self.is_named[n] = nodes.contains(&n));
        self.write(daemon);
        daemon.signal(Signal::SIGHUP);
        all_new(daemon, &before);
    }

    /// Whether nothing is left to be moved between nodes.
    pub fn is_settled(&self, config: &Path) -> bool {
        let out = self.command(&["list", "--json"], config).stdout(Stdio::piped()).output().unwrap();
        let Ok(rows) = serde_json::from_slice::<Value>(&out.stdout) else { return false };
        rows.as_array().is_some_and(|rows| {
            rows.iter().all(|row| row["is_looked_through"] == true && row["held_for_others"] == 0)
        })
    }

    pub fn config(&self) -> String {
        let named = self.sections.iter().zip(&self.is_named).filter(|(_, is_named)| **is_named);
        let sections: String = named.map(|((_, section), _)| section.as_str()).collect();
        format!("[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n{sections}{}", self.rest)
    }

    pub fn write(&self, daemon: &Daemon) {
        Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &self.config());
    }

    /// The command that empties a node, so that it can be taken out of the configuration.
    pub fn take_out(&self, node: usize, config: &Path) -> Command {
        self.command(&["drain", &self.sections[node].0], config)
    }

    /// After it has ended well.
    pub fn is_taken_out(&mut self, node: usize) {
        self.is_named[node] = false;
    }

    /// The command that gives a node its share again, once the configuration names it.
    pub fn bring_back(&mut self, node: usize, config: &Path) -> Command {
        self.is_named[node] = true;
        self.command(&["drain", &self.sections[node].0, "--undo"], config)
    }

    fn command(&self, arguments: &[&str], config: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        command.arg("nodes").args(arguments).arg("--config").arg(config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// A command that runs beside everything else, and is killed when this is dropped.
pub struct Running(Child);

impl Running {
    pub fn start(mut command: Command) -> Running {
        Running(command.spawn().unwrap())
    }

    /// Whether it has ended, and well.
    pub fn ended(&mut self) -> Option<bool> {
        self.0.try_wait().unwrap().map(|status| status.success())
    }

    /// Waits for its end; one that does not end is killed.
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

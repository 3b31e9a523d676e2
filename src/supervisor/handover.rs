//! What a master hands over to the image that takes its place (USR2): everything that it knows, as numbers and times that
//! are left. The next image is the same process: its children stay its children.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::child::{Child, State};
use super::generation::Generation;
use super::restart::{Kind, Restart};
use super::sockets::{Socket, Sockets};
use super::{Filled, Master};
use crate::process::{HandedOver, Link, RunDir};
use crate::settings::Settings;
use crate::slot::{self, Slot};

/// The layout of [`HandOver`]. One more with every change that an image of the release before could not read.
const VERSION: u32 = 1;

/// All that a master knows. Descriptors by their numbers.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandOver {
    version: u32,
    /// The command line, for whoever is not executed with it.
    pub arguments: Vec<OsString>,
    program: PathBuf,
    current: slot::Generation,
    latest: slot::Generation,
    more_consumers: i32,
    /// A restart that was asked for while this one was begun.
    again: Option<Kind>,
    generations: Vec<GenerationData>,
    children: Vec<ChildData>,
    sockets: Vec<(Socket, RawFd)>,
    run_dir: RawFd,
}

#[derive(Debug, Serialize, Deserialize)]
struct GenerationData {
    number: slot::Generation,
    settings: Settings,
    slots: Vec<Slot>,
    sealed: RawFd,
    executable: RawFd,
}

#[derive(Debug, Serialize, Deserialize)]
struct ChildData {
    generation: slot::Generation,
    slot: Slot,
    failures: u32,
    state: StateData,
    link: Option<RawFd>,
}

/// A child's state, with the time that is left of its deadline in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
enum StateData {
    Waiting { left_ms: u64 },
    Starting { pid: i32, left_ms: u64 },
    Up { pid: i32, left_ms: Option<u64> },
    Draining { pid: i32, left_ms: Option<u64> },
    Killed { pid: i32, restart: bool },
    Gone,
}

impl StateData {
    fn of(state: State, now: Instant) -> StateData {
        let left = |at: Instant| at.saturating_duration_since(now).as_millis() as u64;
        match state {
            State::Waiting { at } => StateData::Waiting { left_ms: left(at) },
            State::Starting { pid, ready_by } => {
                StateData::Starting { pid: pid.as_raw(), left_ms: left(ready_by) }
            }
            State::Up { pid, steady_at } => StateData::Up { pid: pid.as_raw(), left_ms: steady_at.map(left) },
            State::Draining { pid, kill_at } => {
                StateData::Draining { pid: pid.as_raw(), left_ms: kill_at.map(left) }
            }
            State::Killed { pid, restart } => StateData::Killed { pid: pid.as_raw(), restart },
            State::Gone => StateData::Gone,
        }
    }

    fn state(&self, now: Instant) -> State {
        let at = |left_ms: u64| now + Duration::from_millis(left_ms);
        match *self {
            StateData::Waiting { left_ms } => State::Waiting { at: at(left_ms) },
            StateData::Starting { pid, left_ms } => {
                State::Starting { pid: Pid::from_raw(pid), ready_by: at(left_ms) }
            }
            StateData::Up { pid, left_ms } => {
                State::Up { pid: Pid::from_raw(pid), steady_at: left_ms.map(at) }
            }
            StateData::Draining { pid, left_ms } => {
                State::Draining { pid: Pid::from_raw(pid), kill_at: left_ms.map(at) }
            }
            StateData::Killed { pid, restart } => State::Killed { pid: Pid::from_raw(pid), restart },
            StateData::Gone => State::Gone,
        }
    }
}

impl HandOver {
    /// What a master knows now.
    pub fn of(master: &Master, again: Option<Kind>) -> HandOver {
        let now = Instant::now();
        let generation = |(number, g): (&slot::Generation, &Generation)| GenerationData {
            number: *number,
            settings: g.settings.clone(),
            slots: g.slots.clone(),
            sealed: g.sealed.as_raw_fd(),
            executable: g.executable.as_raw_fd(),
        };
        let child = |((generation, slot), filled): (&super::Place, &Filled)| ChildData {
            generation: *generation,
            slot: *slot,
            failures: filled.child.failures(),
            state: StateData::of(filled.child.state, now),
            link: filled.link.as_ref().map(|link| link.as_fd().as_raw_fd()),
        };
        HandOver {
            version: VERSION,
            arguments: std::env::args_os().collect(),
            program: master.program.clone(),
            current: master.current,
            latest: master.latest,
            more_consumers: master.more_consumers,
            again,
            generations: master.generations.iter().map(generation).collect(),
            children: master.children.iter().map(child).collect(),
            sockets: master.sockets.iter().map(|(socket, fd)| (socket.clone(), fd.as_raw_fd())).collect(),
            run_dir: master.run_dir.as_fd().as_raw_fd(),
        }
    }

    /// Understands what was handed over, of this version.
    pub fn parse(bytes: &[u8]) -> Result<HandOver> {
        #[derive(Deserialize)]
        struct Any {
            version: u32,
        }
        let Any { version } = serde_json::from_slice(bytes).context("the hand-over has no version")?;
        if version != VERSION {
            bail!("the hand-over has version {version}, and this executable understands {VERSION}");
        }
        serde_json::from_slice(bytes).context("cannot understand the hand-over")
    }

    /// As bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).context("cannot write the hand-over")
    }

    /// The settings of the generation that serves.
    pub fn settings(&self) -> Result<&Settings> {
        let found = self.generations.iter().find(|g| g.number == self.current);
        Ok(&found.context("no generation is serving")?.settings)
    }

    /// The numbers of all descriptors that it names.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let generations = self.generations.iter().flat_map(|g| [g.sealed, g.executable]);
        let links = self.children.iter().filter_map(|c| c.link);
        let sockets = self.sockets.iter().map(|(_, fd)| *fd);
        generations.chain(links).chain(sockets).chain([self.run_dir]).collect()
    }

    /// Whether all of them are open.
    pub fn check_descriptors(&self) -> Result<()> {
        for number in self.descriptors() {
            // SAFETY: borrowed for a question that is answered for any number.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD)
                .with_context(|| format!("descriptor {number} of the hand-over is not open"))?;
        }
        Ok(())
    }

    /// Takes the descriptors over, and gives the parts of the master that goes on.
    pub fn adopt(self, from: &HandedOver) -> Result<Adopted> {
        let now = Instant::now();
        let mut generations = BTreeMap::new();
        let mut timeouts = BTreeMap::new();
        for g in self.generations {
            timeouts.insert(g.number, g.settings.start_timeout);
            let generation = Generation {
                settings: g.settings,
                sealed: from.adopt(g.sealed)?,
                executable: from.adopt(g.executable)?,
                slots: g.slots,
            };
            generations.insert(g.number, generation);
        }
        let mut children = BTreeMap::new();
        for c in self.children {
            let start_timeout = timeouts.get(&c.generation).copied().unwrap_or(Duration::from_secs(30));
            let link = c.link.map(|fd| from.adopt(fd).map(Link::from_fd)).transpose()?;
            let child = Child::resumed(c.state.state(now), c.failures, start_timeout);
            children.insert((c.generation, c.slot), Filled { child, link });
        }
        let mut sockets = Sockets::default();
        for (socket, fd) in self.sockets {
            sockets.add(socket, from.adopt(fd)?);
        }
        Ok(Adopted {
            program: self.program,
            generations,
            current: self.current,
            latest: self.latest,
            children,
            sockets,
            more_consumers: self.more_consumers,
            run_dir: RunDir::handed_over(from.adopt(self.run_dir)?),
            again: self.again,
        })
    }
}

/// The parts of a master that were handed over.
pub struct Adopted {
    program: PathBuf,
    generations: BTreeMap<slot::Generation, Generation>,
    current: slot::Generation,
    latest: slot::Generation,
    children: BTreeMap<super::Place, Filled>,
    sockets: Sockets,
    more_consumers: i32,
    run_dir: RunDir,
    /// A restart that is to follow.
    pub again: Option<Kind>,
}

impl Adopted {
    /// The master that goes on.
    pub fn into_master(self, arguments: super::Arguments, signals: crate::process::Signals) -> Master {
        Master {
            arguments,
            program: self.program,
            generations: self.generations,
            current: self.current,
            latest: self.latest,
            children: self.children,
            restart: Restart::Steady,
            sockets: self.sockets,
            more_consumers: self.more_consumers,
            stopping_since: None,
            started_by: None,
            preflight: None,
            signals,
            run_dir: self.run_dir,
        }
    }
}

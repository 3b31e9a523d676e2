//! The hand-over: what a master passes to the next image (USR2). It contains all that the master knows: descriptors as
//! numbers, and deadlines as the time that is left. The next image is the same process, so its children stay its
//! children.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::arguments::MasterArguments;
use super::child::{Child, State};
use super::control::Control;
use super::generation::Generation;
use super::history::MasterHistory;
use super::plan::Plan;
use super::restart::{RestartKind, RestartState};
use super::running_child::RunningChild;
use super::service::Service;
use super::sockets::{Socket, Sockets};
use super::{GenerationSlot, Master};
use host::{HandOverMemory, Link, RunDirLock, Signals};
use model::slot::{self, Slot};

/// The version of the layout of [`HandOver`]. Each change that an image of the previous release could not read
/// increases the version. The version stays the same if a new field has a default. (tests/handover/v1.json was written
/// by a release of version 1.)
const VERSION: u32 = 1;

/// All that a master knows. Descriptors are given by their numbers.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandOver {
    version: u32,
    /// The command line. The preflight gets no arguments of its own, and reads the arguments of the master here.
    pub arguments: Vec<OsString>,
    program: PathBuf,
    current: slot::GenerationNumber,
    latest: slot::GenerationNumber,
    more_consumers: i32,
    asked_consumers: i32,
    /// A restart that was asked for during the check of this executable.
    pub again: Option<RestartKind>,
    /// The time that is left for the first start, in milliseconds; none: the first start is over.
    started_by_left_ms: Option<u64>,
    history: MasterHistory,
    generations: Vec<GenerationData>,
    children: Vec<ChildData>,
    sockets: Vec<(Socket, RawFd)>,
    control: RawFd,
    run_dir: RawFd,
}

#[derive(Debug, Serialize, Deserialize)]
struct GenerationData {
    number: slot::GenerationNumber,
    plan: Plan,
    sealed: RawFd,
    executable: RawFd,
}

#[derive(Debug, Serialize, Deserialize)]
struct ChildData {
    generation: slot::GenerationNumber,
    slot: Slot,
    failures: u32,
    state: StateData,
    link: Option<RawFd>,
    started_ms: Option<i64>,
    reason: Option<String>,
}

/// The state of a child. Deadlines are given as the time that is left, in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
enum StateData {
    Waiting { left_ms: u64 },
    Starting { pid: i32, left_ms: u64 },
    Up { pid: i32, left_ms: Option<u64> },
    Draining { pid: i32, left_ms: Option<u64>, restart: bool },
    Killed { pid: i32, restart: bool },
    Gone,
}

impl StateData {
    fn new(state: State, now: Instant) -> StateData {
        let left = |at: Instant| at.saturating_duration_since(now).as_millis() as u64;
        match state {
            State::Waiting { at } => StateData::Waiting { left_ms: left(at) },
            State::Starting { pid, ready_by } => {
                StateData::Starting { pid: pid.as_raw(), left_ms: left(ready_by) }
            }
            State::Up { pid, steady_at } => StateData::Up { pid: pid.as_raw(), left_ms: steady_at.map(left) },
            State::Draining { pid, kill_at, restart } => {
                StateData::Draining { pid: pid.as_raw(), left_ms: kill_at.map(left), restart }
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
            StateData::Draining { pid, left_ms, restart } => {
                State::Draining { pid: Pid::from_raw(pid), kill_at: left_ms.map(at), restart }
            }
            StateData::Killed { pid, restart } => State::Killed { pid: Pid::from_raw(pid), restart },
            StateData::Gone => State::Gone,
        }
    }
}

impl HandOver {
    /// Describes what the master knows now.
    pub fn new(master: &Master, again: Option<RestartKind>) -> HandOver {
        let now = Instant::now();
        let generation = |(number, g): (&slot::GenerationNumber, &Generation)| GenerationData {
            number: *number,
            plan: g.plan.clone(),
            sealed: g.sealed.as_raw_fd(),
            executable: g.executable.as_raw_fd(),
        };
        let child = |((generation, slot), filled): (&GenerationSlot, &RunningChild)| ChildData {
            generation: *generation,
            slot: *slot,
            failures: filled.child.failures(),
            state: StateData::new(filled.child.state, now),
            link: filled.link.as_ref().map(|link| link.as_fd().as_raw_fd()),
            started_ms: filled.started_ms,
            reason: filled.reason.clone(),
        };
        HandOver {
            version: VERSION,
            arguments: std::env::args_os().collect(),
            program: master.program.clone(),
            current: master.current,
            latest: master.latest,
            more_consumers: master.more_consumers,
            asked_consumers: master.asked_consumers,
            again,
            started_by_left_ms: master
                .started_by
                .map(|by| by.saturating_duration_since(now).as_millis() as u64),
            history: master.history.clone(),
            generations: master.generations.iter().map(generation).collect(),
            children: master.children.iter().map(child).collect(),
            sockets: master.sockets.iter().map(|(socket, fd)| (socket.clone(), fd.as_raw_fd())).collect(),
            control: master.control.as_fd().as_raw_fd(),
            run_dir: master.run_dir.as_fd().as_raw_fd(),
        }
    }

    /// Parses a hand-over. Any version except `VERSION` is an error.
    pub fn parse(bytes: &[u8]) -> Result<HandOver> {
        #[derive(Deserialize)]
        struct AnyVersion {
            version: u32,
        }
        let AnyVersion { version } = serde_json::from_slice(bytes).context("the hand-over has no version")?;
        if version != VERSION {
            bail!("the hand-over has version {version}, and this executable understands {VERSION}");
        }
        serde_json::from_slice(bytes).context("cannot understand the hand-over")
    }

    /// Returns the hand-over as JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).context("cannot write the hand-over")
    }

    /// Returns the plan of the current generation.
    pub fn plan(&self) -> Result<&Plan> {
        let found = self.generations.iter().find(|g| g.number == self.current);
        Ok(&found.context("no generation is serving")?.plan)
    }

    /// Returns the numbers of all descriptors in the hand-over.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let generations = self.generations.iter().flat_map(|g| [g.sealed, g.executable]);
        let links = self.children.iter().filter_map(|c| c.link);
        let sockets = self.sockets.iter().map(|(_, fd)| *fd);
        generations.chain(links).chain(sockets).chain([self.control, self.run_dir]).collect()
    }

    /// Fails if a descriptor of the hand-over is not open.
    pub fn check_descriptors(&self) -> Result<()> {
        for number in self.descriptors() {
            // SAFETY: the number is borrowed only for F_GETFD. F_GETFD accepts any number, and fails if no descriptor
            // with this number is open.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD)
                .with_context(|| format!("descriptor {number} of the hand-over is not open"))?;
        }
        Ok(())
    }

    /// Takes the descriptors over, and returns the master that continues.
    pub fn adopt(
        self,
        from: &HandOverMemory,
        arguments: MasterArguments,
        signals: Signals,
    ) -> Result<Master> {
        let now = Instant::now();
        let run_dir = self.plan()?.run_dir.clone();
        let mut generations = BTreeMap::new();
        for g in self.generations {
            let generation = Generation {
                plan: g.plan,
                sealed: from.adopt(g.sealed)?,
                executable: from.adopt(g.executable)?,
            };
            generations.insert(g.number, generation);
        }
        let mut children = BTreeMap::new();
        for c in self.children {
            let generation = generations.get(&c.generation);
            let start_timeout = generation.map_or(Duration::from_secs(30), |g| g.plan.start_timeout);
            let link = c.link.map(|fd| from.adopt(fd).map(Link::from_fd)).transpose()?;
            let child = Child::resumed(c.state.state(now), c.failures, start_timeout);
            let filled = RunningChild { reason: c.reason, ..RunningChild::with(child, link, c.started_ms) };
            children.insert((c.generation, c.slot), filled);
        }
        let mut sockets = Sockets::default();
        for (socket, fd) in self.sockets {
            sockets.add(socket, from.adopt(fd)?);
        }
        Ok(Master {
            arguments,
            program: self.program,
            generations,
            current: self.current,
            latest: self.latest,
            children,
            restart: RestartState::Steady,
            renewing: RestartKind::Executable,
            failure: None,
            sockets,
            more_consumers: self.more_consumers,
            asked_consumers: self.asked_consumers,
            signals,
            stopping_since: None,
            timers_drain_by: None,
            started_by: self.started_by_left_ms.map(|left| now + Duration::from_millis(left)),
            preflight: None,
            round_at: None,
            history: self.history,
            control: Control::handed_over(from.adopt(self.control)?, &run_dir),
            service: Service::resumed(),
            config_watch: None,
            run_dir: RunDirLock::handed_over(from.adopt(self.run_dir)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// A hand-over that a release of version 1 has written. The file must never change. If this test fails, an upgrade
    /// from that release fails too.
    const V1: &str = include_str!("../../tests/handover/v1.json");

    #[test]
    fn what_an_older_release_has_handed_over_is_understood() {
        let handover = HandOver::parse(V1.as_bytes()).unwrap();
        assert_eq!(handover.plan().unwrap().slots.len(), 5);
        let mut descriptors = handover.descriptors();
        descriptors.sort_unstable();
        assert_eq!(descriptors, [11, 12, 21, 22, 23, 31, 32, 33, 34, 35]);
        // No part of `V1` is lost in the hand-over to the next image.
        let read = serde_json::from_str(V1).unwrap();
        let written = serde_json::from_slice(&handover.to_bytes().unwrap()).unwrap();
        assert!(holds(&written, &read), "{written}");
    }

    /// Returns whether `whole` contains all of `part`.
    fn holds(whole: &Value, part: &Value) -> bool {
        match (whole, part) {
            (Value::Object(whole), Value::Object(part)) => {
                part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| holds(whole, part)))
            }
            (Value::Array(whole), Value::Array(part)) => {
                whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| holds(whole, part))
            }
            _ => whole == part,
        }
    }

    #[test]
    fn every_state_of_a_child_comes_through() {
        let now = Instant::now();
        for child in HandOver::parse(V1.as_bytes()).unwrap().children {
            let again = StateData::new(child.state.state(now), now);
            assert_eq!(format!("{again:?}"), format!("{:?}", child.state));
        }
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        let newer = V1.replacen("\"version\":1", "\"version\":2", 1);
        let e = HandOver::parse(newer.as_bytes()).unwrap_err().to_string();
        assert_eq!(e, "the hand-over has version 2, and this executable understands 1");
        assert!(HandOver::parse(b"{}").is_err() && HandOver::parse(b"").is_err());
    }
}

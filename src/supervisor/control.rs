//! The control socket: a client that connects gets the master's status, and nothing else. Only the daemon's user and
//! root can connect. The master reads nothing from clients, and does not wait for them.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Master;
use super::child::State;
use super::plan::Plan;
use super::restart::RestartState;
use model::status::{self, DaemonStatus, MasterPhase, Process, ProcessState};

/// How many clients are answered before the master does other work.
const TURN: usize = 16;

/// After an error, no client is answered for this time.
const REST: Duration = Duration::from_secs(1);

/// The socket where the master answers.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// After an error, no client is answered before this moment.
    rests_until: Option<Instant>,
}

impl Control {
    /// Binds the socket. A socket that a dead master left behind is replaced.
    pub fn bind(run_dir: &Path) -> Result<Control> {
        let path = status::control_socket(run_dir);
        let listener = host::bind_unix(&path).with_context(|| format!("cannot bind {}", path.display()))?;
        Ok(Control { listener, path, rests_until: None })
    }

    /// Takes a socket that was handed over.
    pub fn handed_over(fd: OwnedFd, run_dir: &Path) -> Control {
        Control { listener: fd.into(), path: status::control_socket(run_dir), rests_until: None }
    }

    /// Answers the clients that have connected.
    fn answer(&self, status: impl Fn() -> DaemonStatus) -> io::Result<()> {
        for _ in 0..TURN {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            let answer = || -> io::Result<()> {
                // The status fits into the buffer of the socket. So the write does not wait for the client. If the
                // status does not fit after all, the client gets only a part, which is not valid JSON.
                stream.set_nonblocking(true)?;
                (&stream).write_all(&serde_json::to_vec(&status())?)
            };
            if let Err(e) = answer() {
                log::warn!("cannot answer a client of the control socket: {e}");
            }
        }
        Ok(())
    }

    /// Returns the descriptor that is readable when a client connects; none: the socket rests after an error.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.rests_until.is_none().then(|| self.as_fd())
    }

    /// Returns the moment when the socket stops resting after an error. None: the socket does not rest.
    pub fn deadline(&self) -> Option<Instant> {
        self.rests_until
    }

    /// Removes the socket's file, at the end.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Master {
    /// Answers the clients of the control socket. If this fails, for example because no descriptor is free, the master
    /// tries again after a moment.
    pub(super) fn answer_questions(&mut self) {
        self.control.rests_until = self.control.rests_until.filter(|until| *until > Instant::now());
        if self.control.rests_until.is_some() {
            return;
        }
        if let Err(e) = self.control.answer(|| self.status()) {
            log::warn!("cannot answer at the control socket: {e}");
            self.control.rests_until = Some(Instant::now() + REST);
        }
    }

    /// Returns the phase of the master.
    pub(super) fn phase(&self) -> MasterPhase {
        match self.restart {
            RestartState::Stopping => MasterPhase::Stopping,
            RestartState::Checking { .. } => MasterPhase::Checking,
            RestartState::Rolling { .. } => MasterPhase::Rolling,
            RestartState::Steady if self.started_by.is_some() => MasterPhase::Starting,
            RestartState::Steady => MasterPhase::Steady,
        }
    }

    /// Returns the status in one line.
    pub(super) fn summary(&self) -> String {
        let (current, processes) =
            (self.current, self.children.values().filter(|f| f.child.pid().is_some()).count());
        match (self.phase(), &self.history.renewal) {
            (MasterPhase::Starting, _) => format!("starting {processes} processes"),
            (MasterPhase::Checking, _) => format!("generation {current} serves; a new executable is tried"),
            (MasterPhase::Rolling, _) => {
                format!("generation {current} serves; generation {} is started", self.latest)
            }
            (MasterPhase::Stopping, _) => format!("ending: {processes} processes are left"),
            (MasterPhase::Steady, Some(status::Renewal { refused: Some(reason), .. })) => {
                format!("generation {current} serves; the last restart was refused: {reason}")
            }
            (MasterPhase::Steady, _) => format!("generation {current} serves"),
        }
    }

    /// Returns the status of the master and its children.
    pub(super) fn status(&self) -> DaemonStatus {
        let process = |((generation, slot), filled): (&super::GenerationSlot, &super::RunningChild)| {
            let (state, pid) = (state_of(filled.child.state), filled.child.pid().map(|p| p.as_raw()));
            let ends = self.history.ends(*slot);
            Process {
                name: slot.to_string(),
                generation: *generation,
                state,
                pid,
                started_ms: pid.and(filled.started_ms),
                overdue_ms: filled.overdue.as_millis() as u64,
                restarts: ends.restarts,
                last_end: ends.last,
                memory_bytes: None,
                cpu_ms: None,
            }
        };
        let current = self.generations.get(&self.current);
        let of_plan = |text: fn(&Plan) -> String| current.map(|g| text(&g.plan)).unwrap_or_default();
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: of_plan(|plan| plan.instance.clone()),
            pid: std::process::id() as i32,
            started_ms: self.history.started_ms,
            phase: self.phase(),
            generation: self.current,
            renewal: self.history.renewal.clone(),
            listening: self.sockets.iter().map(|(s, _)| (s.name().to_owned(), s.address())).collect(),
            store: of_plan(|plan| plan.store.clone()),
            processes: self.children.iter().map(process).collect(),
            findings: Vec::new(),
        }
    }
}

fn state_of(state: State) -> ProcessState {
    match state {
        State::Waiting { .. } => ProcessState::Waiting,
        State::Starting { .. } => ProcessState::Starting,
        State::Up { .. } => ProcessState::Up,
        State::Draining { .. } => ProcessState::Draining,
        State::Killed { .. } => ProcessState::Killed,
        State::Gone => ProcessState::Gone,
    }
}

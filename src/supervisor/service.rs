//! What systemd is told of a master that runs as a service of the type `notify-reload`; nothing, where nobody listens.

use std::time::{Duration, Instant};

use crate::process::{self, NotifyState};
use crate::status::Phase;

/// What the service manager was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Ready,
    Reloading,
    Stopping,
}

/// The service manager's view of this master.
#[derive(Debug)]
pub struct Service {
    told: Told,
    status: String,
    /// How often it wants a sign of life, and when it gets the next.
    watchdog: Option<(Duration, Instant)>,
}

impl Service {
    /// Of a master that is being started, and may take that long.
    pub fn starting(may_take: Duration) -> Service {
        process::notify(&[extend(may_take)]);
        Service::new(Told::Nothing)
    }

    /// Of a master that has gone over to another image: a reload is under way.
    pub fn resumed() -> Service {
        Service::new(Told::Reloading)
    }

    fn new(told: Told) -> Service {
        // Twice as often as it must be.
        let watchdog = process::watchdog_period().map(|period| (period / 2, Instant::now()));
        Service { told, status: String::new(), watchdog }
    }

    /// A reload was asked for, and may take that long. It is over when [`Service::update`] tells of a steady phase.
    pub fn reloading(&mut self, may_take: Duration) {
        if self.told == Told::Stopping {
            return;
        }
        self.told = Told::Reloading;
        match NotifyState::monotonic_usec_now() {
            Ok(now) => process::notify(&[NotifyState::Reloading, now, extend(may_take)]),
            Err(e) => log::warn!("cannot tell the time to the service manager: {e}"),
        }
    }

    /// Tells what has changed, and that the master's loop goes round. `may_take` is how long an end may.
    pub fn update(&mut self, phase: Phase, status: String, may_take: Duration) {
        let mut states = Vec::new();
        match (phase, self.told) {
            (Phase::Stopping, told) if told != Told::Stopping => {
                states.extend([NotifyState::Stopping, extend(may_take)]);
                self.told = Told::Stopping;
            }
            (Phase::Steady, Told::Nothing | Told::Reloading) => {
                states.push(NotifyState::Ready);
                self.told = Told::Ready;
            }
            _ => {}
        }
        let now = Instant::now();
        if let Some((period, at)) = &mut self.watchdog
            && *at <= now
        {
            states.push(NotifyState::Watchdog);
            *at = now + *period;
        }
        let changed = self.status != status;
        if changed {
            self.status = status;
            states.push(NotifyState::Status(&self.status));
        }
        if !states.is_empty() {
            process::notify(&states);
        }
    }

    /// When the next sign of life is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.watchdog.map(|(_, at)| at)
    }
}

/// So long from now, and some seconds more, the manager is to wait.
fn extend(may_take: Duration) -> NotifyState<'static> {
    let usec = (may_take + Duration::from_secs(10)).as_micros();
    NotifyState::ExtendTimeoutUsec(u32::try_from(usec).unwrap_or(u32::MAX))
}

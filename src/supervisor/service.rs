//! The reports to systemd, for a master that runs as a service of the type `notify-reload`. Without systemd nothing is
//! sent.

use std::time::{Duration, Instant};

use host::{self, NotifyState};
use model::status::MasterPhase;

/// The last report to the service manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastServiceReport {
    Nothing,
    Ready,
    Reloading,
    Stopping,
}

/// What the service manager knows of this master.
#[derive(Debug)]
pub struct Service {
    last_report: LastServiceReport,
    status: String,
    /// The interval of the signs of life, and when the next sign is sent. The interval is half of what the manager
    /// requires.
    watchdog: Option<(Duration, Instant)>,
}

impl Service {
    /// Reports that the start may take the time `may_take`. Returns the state of a master that is starting.
    pub fn starting(may_take: Duration) -> Service {
        host::notify(&[extend(may_take)]);
        Service::new(LastServiceReport::Nothing)
    }

    /// Returns the state of a master after its image was replaced: a reload is under way.
    pub fn resumed() -> Service {
        Service::new(LastServiceReport::Reloading)
    }

    fn new(last_report: LastServiceReport) -> Service {
        let watchdog = host::watchdog_period().map(|period| (period / 2, Instant::now()));
        Service { last_report, status: String::new(), watchdog }
    }

    /// Reports that a reload has begun, and may take the time `may_take`. The reload ends when [`Service::update`]
    /// reports a steady phase.
    pub fn reloading(&mut self, may_take: Duration) {
        if self.last_report == LastServiceReport::Stopping {
            return;
        }
        self.last_report = LastServiceReport::Reloading;
        match NotifyState::monotonic_usec_now() {
            Ok(now) => host::notify(&[NotifyState::Reloading, now, extend(may_take)]),
            Err(e) => log::warn!("cannot get the time for the service manager: {e}"),
        }
    }

    /// Reports what has changed, and that the master's loop works. `may_take` is how long the daemon may take to end.
    /// This time is reported only when the daemon begins to end.
    pub fn update(&mut self, phase: MasterPhase, status: String, may_take: Duration) {
        let mut states = Vec::new();
        match (phase, self.last_report) {
            (MasterPhase::Stopping, last_report) if last_report != LastServiceReport::Stopping => {
                states.extend([NotifyState::Stopping, extend(may_take)]);
                self.last_report = LastServiceReport::Stopping;
            }
            (MasterPhase::Steady, LastServiceReport::Nothing | LastServiceReport::Reloading) => {
                states.push(NotifyState::Ready);
                self.last_report = LastServiceReport::Ready;
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
            host::notify(&states);
        }
    }

    /// When the next sign of life is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.watchdog.map(|(_, at)| at)
    }
}

/// Asks the manager to wait for the time `may_take` from now, and for ten seconds more.
fn extend(may_take: Duration) -> NotifyState<'static> {
    let usec = (may_take + Duration::from_secs(10)).as_micros();
    NotifyState::ExtendTimeoutUsec(u32::try_from(usec).unwrap_or(u32::MAX))
}

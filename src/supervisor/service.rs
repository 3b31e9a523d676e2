//! The reports to systemd, for a master that runs as a service of the type `notify-reload`. Without systemd nothing is
//! sent.

use std::time::{Duration, Instant};

use host::{self, NotifyState};
use model::status::MasterPhase;

/// While a reload or the end of dq is under way, the master asks for time again at this interval. A single request
/// reaches 71 minutes at most.
const ASK_PERIOD: Duration = Duration::from_secs(300);

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
    /// The time that a reload or the end of dq still needs. None: neither is under way.
    time_request: Option<TimeRequest>,
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
        Service { last_report, status: String::new(), watchdog, time_request: None }
    }

    /// Reports that a reload has begun, and may take the time `may_take`. The reload ends when [`Service::update`]
    /// reports a steady phase.
    pub fn reloading(&mut self, may_take: Duration) {
        if self.last_report == LastServiceReport::Stopping {
            return;
        }
        self.last_report = LastServiceReport::Reloading;
        self.time_request = Some(TimeRequest::new(may_take, Instant::now()));
        match NotifyState::monotonic_usec_now() {
            Ok(now) => host::notify(&[NotifyState::Reloading, now, extend(may_take)]),
            Err(e) => log::warn!("cannot get the time for the service manager: {e}"),
        }
    }

    /// Reports what has changed, and that the master's loop works. `may_take` is how long the daemon may take to end.
    /// This time counts from the moment when the daemon begins to end.
    pub fn update(&mut self, phase: MasterPhase, status: String, may_take: Duration) {
        let now = Instant::now();
        let mut states = Vec::new();
        match (phase, self.last_report) {
            (MasterPhase::Stopping, last_report) if last_report != LastServiceReport::Stopping => {
                states.extend([NotifyState::Stopping, extend(may_take)]);
                self.last_report = LastServiceReport::Stopping;
                self.time_request = Some(TimeRequest::new(may_take, now));
            }
            (MasterPhase::Steady, LastServiceReport::Nothing | LastServiceReport::Reloading) => {
                states.push(NotifyState::Ready);
                self.last_report = LastServiceReport::Ready;
                self.time_request = None;
            }
            _ => {}
        }
        states.extend(self.time_request.as_mut().and_then(|request| request.due(now)));
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

    /// When the next sign of life, or the next request for time, is due.
    pub fn deadline(&self) -> Option<Instant> {
        let watchdog = self.watchdog.map(|(_, at)| at);
        let time_request = self.time_request.map(|request| request.ask_at);
        watchdog.into_iter().chain(time_request).min()
    }
}

/// The time for which the manager was asked.
#[derive(Debug, Clone, Copy)]
struct TimeRequest {
    until: Instant,
    /// When the manager is asked again for what is left of the time.
    ask_at: Instant,
}

impl TimeRequest {
    /// Notes that the manager is asked now for the time `may_take`.
    fn new(may_take: Duration, now: Instant) -> TimeRequest {
        TimeRequest { until: now + may_take, ask_at: now + ASK_PERIOD }
    }

    /// Returns the next request, if it is due.
    fn due(&mut self, now: Instant) -> Option<NotifyState<'static>> {
        if now < self.ask_at {
            return None;
        }
        self.ask_at = now + ASK_PERIOD;
        Some(extend(self.until.saturating_duration_since(now)))
    }
}

/// Asks the manager to wait for the time `may_take` from now, and for ten seconds more.
fn extend(may_take: Duration) -> NotifyState<'static> {
    let usec = (may_take + Duration::from_secs(10)).as_micros();
    NotifyState::ExtendTimeoutUsec(u32::try_from(usec).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_drain_asks_for_time_until_its_end() {
        let day = Duration::from_secs(24 * 60 * 60);
        let begin = Instant::now();
        let mut service = Service::new(LastServiceReport::Ready);
        service.update(MasterPhase::Stopping, String::new(), day);
        assert!(service.deadline().unwrap() <= Instant::now() + ASK_PERIOD);
        let mut request = service.time_request.unwrap();
        // The first request was made when the drain began.
        let mut granted = begin + Duration::from_micros(u32::MAX.into());
        while granted < begin + day {
            let now = request.ask_at;
            assert!(now < granted);
            let Some(NotifyState::ExtendTimeoutUsec(usec)) = request.due(now) else { panic!("no request") };
            granted = now + Duration::from_micros(usec.into());
            assert!(request.due(now).is_none(), "not twice at one moment");
        }
        // A master that does not end does not get time for ever.
        assert!(granted < begin + day + Duration::from_secs(60), "{:?}", granted - begin);
        assert!(
            request.due(request.ask_at + day).is_some_and(|state| state.to_string().ends_with("=10000000"))
        );
    }
}

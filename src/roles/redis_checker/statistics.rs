//! Carries the counters of this host's processes into the registry, which keeps them by day. The thread is separate,
//! because a database may delay it. Meanwhile, the counts stay in the pages (`telemetry::counters`). The registry
//! records which counts of each page it has, in the same transaction as the sums. So no count is lost or counted twice,
//! even if a process dies in between or two processes carry counts at the same time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use model::metrics::{MetricSubject, PageSums, Sums};
use model::settings::{self, Settings};
use registry::{self, Registry};
use role::{self, Context, TroubleLog};
use telemetry::counters;

/// How often the counters are carried.
const PERIOD: Duration = Duration::from_secs(10);

/// How long the process waits at its end for the last round.
const LAST: Duration = Duration::from_secs(2);

/// The handle by which the main loop controls the thread.
pub(super) struct StatisticsHandle {
    stop_sender: Sender<()>,
    ended: Receiver<()>,
}

impl StatisticsHandle {
    /// Starts the thread. `None`: there is no registry.
    pub(super) fn start(context: &Context) -> Result<Option<StatisticsHandle>> {
        let Some(registry) = context.settings.registry.clone() else { return Ok(None) };
        let (settings, zone) = (Arc::clone(&context.settings), context.zone()?);
        let mut carrier = StatisticsWorker { settings, registry, zone, open: None, known: HashMap::new() };
        let ((stop_sender, stop), (end, ended)) = (channel(), channel());
        role::vital_thread("statistics", move || {
            carrier.run(&stop);
            drop(end);
        })?;
        Ok(Some(StatisticsHandle { stop_sender, ended }))
    }

    /// Makes the thread carry everything once more, and waits for it for a short time.
    pub(super) fn end(self) {
        drop(self.stop_sender);
        if self.ended.recv_timeout(LAST) == Err(RecvTimeoutError::Timeout) {
            log::info!("statistics: the rest waits for the next start");
        }
    }
}

struct StatisticsWorker {
    settings: Arc<Settings>,
    registry: settings::RegistrySettings,
    zone: TimeZone,
    /// The open registry. `None`: the registry failed, and is opened again.
    open: Option<Box<dyn Registry>>,
    /// The counts of each page that this process has carried into the registry.
    known: HashMap<(u64, MetricSubject), Sums>,
}

impl StatisticsWorker {
    fn run(&mut self, stop: &Receiver<()>) {
        let mut trouble = TroubleLog::default();
        loop {
            let ends = stop.recv_timeout(PERIOD) == Err(RecvTimeoutError::Disconnected);
            let begun = Instant::now();
            match self.carry() {
                Ok(0) => {}
                Ok(changed) => log::debug!("statistics: {changed} sums are carried in {:?}", begun.elapsed()),
                Err(_) if ends => {}
                Err(e) => {
                    self.open = None;
                    trouble.pause_after(&format_args!("statistics wait in run_dir/metrics: {e:#}"));
                    continue;
                }
            }
            trouble.end();
            if ends {
                return;
            }
        }
    }

    /// Carries what has changed. Returns how many sums have changed.
    fn carry(&mut self) -> Result<usize> {
        let run_dir = &self.settings.run_dir;
        let pages = counters::read(run_dir).context("cannot read the pages of counters")?;
        let mut news = Vec::new();
        for PageSums { page, mut sums } in pages.iter().map(counters::PageReading::sums) {
            sums.retain(|(subject, now)| self.known.get(&(page, subject.clone())) != Some(now));
            if !sums.is_empty() {
                news.push(PageSums { page, sums });
            }
        }
        if news.is_empty() {
            return Ok(0);
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(registry::open_known(&self.registry, &self.settings.run_dir)?),
        };
        let day = Timestamp::now().to_zoned(self.zone.clone()).date().to_string();
        let changed = open.carry(&day, &news)?;
        for PageSums { page, sums } in news {
            self.known.extend(sums.into_iter().map(|(subject, now)| ((page, subject), now)));
        }
        Ok(changed)
    }
}

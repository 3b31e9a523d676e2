//! `watch_config`: a changed, valid configuration file acts as HUP.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use super::restart::{Event, Kind};
use super::{Master, generation};
use crate::process::Changes;
use crate::status::Phase;

/// A file that is still being written is left alone for so long after its last change.
const QUIET: Duration = Duration::from_millis(200);

/// A watch on the configuration file.
#[derive(Debug)]
pub struct ConfigWatch {
    changes: Changes,
    /// When it is looked at.
    look_at: Option<Instant>,
}

impl ConfigWatch {
    /// Watches it from now on. One that changed before is looked at, too.
    fn begin(path: &Path) -> Option<ConfigWatch> {
        match Changes::of(path) {
            Ok(changes) => Some(ConfigWatch { changes, look_at: Some(Instant::now() + QUIET) }),
            Err(e) => {
                log::error!("watch_config: cannot watch {}: {e}", path.display());
                None
            }
        }
    }

    /// When it wants its turn.
    pub fn deadline(&self) -> Option<Instant> {
        self.look_at
    }
}

impl AsFd for ConfigWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

impl Master {
    /// Begins or ends to watch the file, as the generation that serves wants it.
    pub(super) fn arrange_config_watch(&mut self) {
        let wanted = self.generations.get(&self.current).is_some_and(|g| g.plan.watch_config);
        match (&self.config_watch, self.arguments.config.as_deref()) {
            (None, Some(path)) if wanted => self.config_watch = ConfigWatch::begin(path),
            (Some(_), _) if !wanted => self.config_watch = None,
            // Where it lies may have changed.
            (Some(watch), _) => {
                if let Err(e) = watch.changes.watch() {
                    log::warn!("watch_config: {e}");
                }
            }
            _ => {}
        }
    }

    /// Looks at the file once it has been left alone for a moment after a change.
    pub(super) fn look_at_config(&mut self) {
        let (now, checking) = (Instant::now(), self.phase() == Phase::Checking);
        let Some(watch) = &mut self.config_watch else { return };
        match watch.changes.take() {
            Ok(true) => watch.look_at = Some(now + QUIET),
            Ok(false) => {}
            Err(e) => {
                log::error!("watch_config: the configuration is no longer watched: {e}");
                self.config_watch = None;
                return;
            }
        }
        if watch.look_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        // What came into being while it was being watched for is watched from now on.
        if let Err(e) = watch.changes.watch() {
            log::warn!("watch_config: {e}");
        }
        if checking {
            // What the restart under way will find is not known before it has begun.
            watch.look_at = Some(now + QUIET);
            return;
        }
        let newest = self.restart.rolling().unwrap_or(self.current);
        let Some(newest) = self.generations.get(&newest) else { return };
        let changed = self.arguments.settings().and_then(|settings| {
            let plan = self.plan(&settings);
            generation::check_successor(&newest.plan, &plan)?;
            Ok(!newest.has(&settings)?)
        });
        match changed {
            Ok(false) => {}
            Ok(true) => {
                log::info!("the configuration has changed");
                self.ask(Kind::Configuration);
            }
            Err(e) => {
                log::error!(
                    "the changed configuration is not taken, and everything goes on as it was: {e:#}"
                );
                self.history.renewed(Kind::Configuration, Some(format!("{e:#}")));
            }
        }
    }

    /// A restart is asked for.
    pub(super) fn ask(&mut self, kind: Kind) {
        self.service.reloading(self.renewal_timeout());
        self.renew(Event::Asked(kind));
    }
}

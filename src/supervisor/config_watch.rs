//! `watch_config`: if the configuration file changes and is valid, this acts like HUP.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use super::restart::{RestartEvent, RestartKind};
use super::{Master, generation};
use host::FileWatcher;
use model::status::MasterPhase;

/// How long a file must be unchanged before it is read. Before that, somebody may still be writing the file.
const QUIET: Duration = Duration::from_millis(200);

/// The file is read at the latest this long after the first change. Other files in its folder may change all the time.
const LONGEST: Duration = Duration::from_secs(2);

/// When the file is to be checked.
#[derive(Debug, Clone, Copy)]
struct PendingCheck {
    at: Instant,
    at_latest: Instant,
}

impl PendingCheck {
    /// Returns the check after a change. `before` is the check that this change puts off.
    fn after_change(before: Option<PendingCheck>, now: Instant) -> PendingCheck {
        let at_latest = before.map_or(now + LONGEST, |check| check.at_latest);
        PendingCheck { at: at_latest.min(now + QUIET), at_latest }
    }
}

/// A watch on the configuration file.
#[derive(Debug)]
pub struct ConfigWatch {
    changes: FileWatcher,
    /// When the file is checked next. None: it has not changed.
    check: Option<PendingCheck>,
}

impl ConfigWatch {
    /// Watches the file from now on. The file is also checked once, because it may have changed before the watch began.
    fn begin(path: &Path) -> Option<ConfigWatch> {
        match FileWatcher::new(path) {
            Ok(changes) => {
                let check = Some(PendingCheck::after_change(None, Instant::now()));
                Some(ConfigWatch { changes, check })
            }
            Err(e) => {
                log::error!("watch_config: cannot watch {}: {e}", path.display());
                None
            }
        }
    }

    /// Returns when the file is to be checked.
    pub fn deadline(&self) -> Option<Instant> {
        self.check.map(|check| check.at)
    }
}

impl AsFd for ConfigWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

impl Master {
    /// Starts or stops watching the file, as the settings of the current generation say.
    pub(super) fn arrange_config_watch(&mut self) {
        let wanted = self.generations.get(&self.current).is_some_and(|g| g.plan.watch_config);
        match (&self.config_watch, self.arguments.config.as_deref()) {
            (None, Some(path)) if wanted => self.config_watch = ConfigWatch::begin(path),
            (Some(_), _) if !wanted => self.config_watch = None,
            // The file may now be in another folder, so the watches are set up again.
            (Some(watch), _) => {
                if let Err(e) = watch.changes.watch() {
                    log::warn!("watch_config: {e}");
                }
            }
            _ => {}
        }
    }

    /// Checks the file a moment after the last change, or after a longer time if the changes do not end.
    pub(super) fn look_at_config(&mut self) {
        let (now, checking) = (Instant::now(), self.phase() == MasterPhase::Checking);
        let Some(watch) = &mut self.config_watch else { return };
        match watch.changes.take() {
            Ok(true) => watch.check = Some(PendingCheck::after_change(watch.check, now)),
            Ok(false) => {}
            Err(e) => {
                log::error!("watch_config: the configuration is no longer watched: {e}");
                self.config_watch = None;
                return;
            }
        }
        if watch.check.take_if(|check| check.at <= now).is_none() {
            return;
        }
        // A folder of the path may have been created since the last call, so the watches are set up again.
        if let Err(e) = watch.changes.watch() {
            log::warn!("watch_config: {e}");
        }
        if checking {
            // It is not known yet which settings the restart under way will read. So the file is checked again later.
            watch.check = Some(PendingCheck::after_change(None, now));
            return;
        }
        let newest = self.restart.rolling().unwrap_or(self.current);
        let Some(newest) = self.generations.get(&newest) else { return };
        let changed = self.arguments.settings().and_then(|settings| {
            let plan = self.plan(&settings);
            generation::check_next_plan(&newest.plan, &plan)?;
            Ok(!newest.has(&settings)?)
        });
        match changed {
            Ok(false) => {}
            Ok(true) => {
                log::info!("the configuration has changed");
                self.ask(RestartKind::Configuration);
            }
            Err(e) => {
                log::error!(
                    "the changed configuration is not used, and dq continues with the previous one: {e:#}"
                );
                self.history.renewed(RestartKind::Configuration, Some(format!("{e:#}")));
            }
        }
    }

    /// Asks for a restart.
    pub(super) fn ask(&mut self, kind: RestartKind) {
        self.service.reloading(self.renewal_timeout());
        self.renew(RestartEvent::Asked(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_folder_does_not_put_the_check_off_for_ever() {
        let first = Instant::now();
        let mut check = PendingCheck::after_change(None, first);
        assert_eq!(check.at, first + QUIET);
        let mut now = first;
        while now < check.at {
            now += QUIET / 2;
            check = PendingCheck::after_change(Some(check), now);
            assert!(check.at <= first + LONGEST);
        }
        assert_eq!(now, first + LONGEST);
        // After this check, the file is quiet again for a while before the next one.
        assert_eq!(PendingCheck::after_change(None, now).at, now + QUIET);
    }
}

//! Passes the handlers' questions to the registry. One thread opens the database when it is first needed, and again
//! after a failure. tokio's thread never waits for the database, and no handler waits for longer than a few seconds.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::http::StatusCode;
use tokio::sync::oneshot;

use super::problem::Problem;
use model::settings::Settings;
use registry::{self, Registry, RegistryError};

/// How long the registry may take. (SQLite itself waits 5 s for another writer, and then reports an error.)
const PATIENCE: Duration = Duration::from_millis(5500);

/// How many questions may wait for the thread.
const WAITING_MAX: usize = 1024;

/// A connection that was idle for this long may be closed by now: by a restart of the database, or because of its own
/// limit. So it is checked before its next use.
const IDLE: Duration = Duration::from_secs(10);

/// The progress of a question.
const WAITS: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// What the thread does with the registry, or with the error if the registry cannot be opened. Returns whether the
/// connection to the registry can be used again.
type Work = Box<dyn FnOnce(std::result::Result<&mut dyn Registry, RegistryError>) -> bool + Send>;

/// Passes questions to the registry. The value is cheap to clone.
#[derive(Clone)]
pub(super) struct Registrar {
    /// The queue of the thread. None: there is no registry.
    work: Option<mpsc::SyncSender<Work>>,
    run_dir: Arc<PathBuf>,
}

impl Registrar {
    /// Starts the thread, if there is a registry.
    pub(super) fn start(settings: &Settings) -> Result<Registrar> {
        let run_dir = Arc::new(settings.run_dir.clone());
        let Some(settings) = settings.registry.clone() else {
            return Ok(Registrar { work: None, run_dir });
        };
        let folder = Arc::clone(&run_dir);
        let (work, works) = mpsc::sync_channel::<Work>(WAITING_MAX);
        let run = move || {
            let mut open: Option<Box<dyn Registry>> = None;
            let mut used_at = Instant::now();
            while let Ok(work) = works.recv() {
                let was_idle = used_at.elapsed() >= IDLE;
                let opened = match open.take_if(|registry| !was_idle || registry.revision().is_ok()) {
                    Some(registry) => Ok(registry),
                    None => registry::open_known(&settings, &folder),
                };
                used_at = Instant::now();
                open = match opened {
                    Ok(mut registry) => work(Ok(registry.as_mut())).then_some(registry),
                    Err(e) => {
                        work(Err(e));
                        None
                    }
                };
            }
        };
        role::vital_thread("registrar", run)?;
        Ok(Registrar { work: Some(work), run_dir })
    }

    /// Whether there is a registry.
    pub(super) fn is_there(&self) -> bool {
        self.work.is_some()
    }

    /// Without a registry: refuses a request about something that only a registry can keep.
    pub(super) fn keeps(&self, what: &str) -> std::result::Result<(), Problem> {
        let detail = || format!("there is no registry to keep {what}");
        self.is_there()
            .then_some(())
            .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "no_registry", detail()))
    }

    /// Without a registry: refuses a change of something that only a registry can keep.
    pub(super) fn takes(&self, what: &str) -> std::result::Result<(), Problem> {
        let detail =
            || format!("there is no registry to keep {what}: registry.url is \"none\" (docs/REGISTRY.md)");
        self.is_there().then_some(()).ok_or_else(|| Problem::conflict("no_registry", detail()))
    }

    /// Asks the registry, and waits for at most [`PATIENCE`]. If no answer comes in time and the registry has already
    /// begun the request, the error is `Unknown`: the change may have happened. Otherwise the error is `Away`.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut dyn Registry) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, RegistryError> {
        let away = |why: &str| RegistryError::Away(why.to_owned());
        let work = self.work.as_ref().ok_or_else(|| away("registry.url is \"none\""))?;
        let (to, answered) = oneshot::channel();
        let progress = Arc::new(AtomicU8::new(WAITS));
        let state = Arc::clone(&progress);
        let asked: Work = Box::new(move |registry| {
            let begin = state.compare_exchange(WAITS, BEGUN, Ordering::AcqRel, Ordering::Acquire);
            if begin.is_err() {
                // The handler no longer waits, so the question is not asked. The connection stays as it was.
                return registry.is_ok();
            }
            let answer = registry.and_then(question);
            let good = !matches!(answer, Err(RegistryError::Away(_) | RegistryError::Unknown(_)));
            let _ = to.send(answer);
            good
        });
        work.try_send(asked).map_err(|_| away("too many questions wait for the registry"))?;
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(away("the thread of the registry has ended")),
            Err(_) => match progress.compare_exchange(WAITS, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => Err(away("the registry is busy with earlier requests")),
                Err(_) => Err(RegistryError::Unknown("the registry has not answered in time".to_owned())),
            },
        }
    }

    /// Changes the registry, and notifies dq-redis-checker, which passes the change on.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut dyn Registry) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, RegistryError> {
        let run_dir = Arc::clone(&self.run_dir);
        // The notification is a file. It is written on the registry's thread, because tokio's thread must not write
        // files.
        self.ask(move |registry| {
            let changed = change(registry);
            if changed.is_ok()
                && let Err(e) = registry::nudge(&run_dir)
            {
                log::warn!("cannot notify dq-redis-checker: {e}; it sees the change within a second");
            }
            changed
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked<T: Send + 'static>(
        registrar: &Registrar,
        question: impl FnOnce(&mut dyn Registry) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, RegistryError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(registrar.ask(question))
    }

    #[test]
    fn a_broken_registry_is_reopened_and_a_hung_one_is_not_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let settings = config::development(dir.path(), std::iter::empty()).unwrap();
        let registrar = Registrar::start(&settings).unwrap();
        assert!(registrar.is_there());
        let count = |registrar: &Registrar| asked(registrar, |r| r.list().map(|l| l.topics.len()));
        assert_eq!(count(&registrar).unwrap(), 0);
        let file = dir.path().join("var/registry.db");
        std::fs::rename(&file, dir.path().join("gone")).unwrap();
        assert!(matches!(count(&registrar), Err(RegistryError::Away(_))));
        assert_eq!(count(&registrar).unwrap(), 0, "another file is made and opened");

        let (go_on, goes_on) = mpsc::channel::<()>();
        let hung = asked(&registrar, move |_| {
            let _ = goes_on.recv();
            Ok(())
        });
        assert!(matches!(hung, Err(RegistryError::Unknown(_))), "{hung:?}");
        assert!(matches!(count(&registrar), Err(RegistryError::Away(_))), "it waits for the one before");
        drop(go_on);
        assert_eq!(count(&registrar).unwrap(), 0);
    }
}

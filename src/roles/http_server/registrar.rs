//! Where handlers ask the registry: one thread, which opens the database when it is first needed, and again when it broke. tokio's
//! thread never waits for it, and nobody waits for longer than a few seconds.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::oneshot;

use crate::registry::{self, Registry, RegistryError};
use crate::role;
use crate::settings::Settings;

/// How long the database may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many questions may wait for the thread.
const WAITING_MAX: usize = 64;

/// What the thread does with a registry, or is told why there is none. Tells whether the handle is still good.
type Work = Box<dyn FnOnce(std::result::Result<&mut dyn Registry, RegistryError>) -> bool + Send>;

/// Where handlers ask the registry. Cheap to clone.
#[derive(Clone)]
pub(super) struct Registrar {
    /// None: there is no registry.
    work: Option<mpsc::SyncSender<Work>>,
}

impl Registrar {
    /// Starts the thread, if there is a registry.
    pub(super) fn start(settings: &Settings) -> Result<Registrar> {
        let Some(settings) = settings.registry.clone() else { return Ok(Registrar { work: None }) };
        let (work, works) = mpsc::sync_channel::<Work>(WAITING_MAX);
        let run = move || {
            let mut open: Option<Box<dyn Registry>> = None;
            while let Ok(work) = works.recv() {
                let opened = open.take().map_or_else(|| registry::open(&settings), Ok);
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
        Ok(Registrar { work: Some(work) })
    }

    /// Asks the registry. Of a change that has not been answered in time nobody knows whether it was made.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut dyn Registry) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, RegistryError> {
        let away = |why: &str| RegistryError::Away(why.to_owned());
        let work = self.work.as_ref().ok_or_else(|| away("registry.url is \"none\""))?;
        let (to, answered) = oneshot::channel();
        let asked: Work = Box::new(move |registry| {
            let answer = registry.and_then(question);
            let good = !matches!(answer, Err(RegistryError::Away(_) | RegistryError::Unknown(_)));
            // Whoever asked may have gone.
            let _ = to.send(answer);
            good
        });
        work.try_send(asked).map_err(|_| away("too many questions wait for the registry"))?;
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(away("nobody asks the registry any more")),
            Err(_) => Err(RegistryError::Unknown("the registry has not answered in time".to_owned())),
        }
    }

    /// Changes the registry.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut dyn Registry) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, RegistryError> {
        self.ask(change).await
    }
}

//! Where handlers ask the registry: one thread, which opens the database when it is first needed, and again when it broke.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::oneshot;

use crate::registry::{self, Registry, RegistryError};
use crate::role;
use crate::settings;

/// How long the database may take.
const PATIENCE: Duration = Duration::from_secs(5);

type Open = Option<Box<dyn Registry>>;
type Work = Box<dyn FnOnce(&mut Open) + Send>;

/// Where handlers ask.
#[derive(Debug, Clone)]
pub(super) struct Registrar {
    settings: settings::Registry,
    work: SyncSender<Work>,
}

impl Registrar {
    /// Starts the thread.
    pub(super) fn start(settings: settings::Registry) -> Result<Registrar> {
        let (work, works) = sync_channel::<Work>(64);
        role::vital_thread("registrar", move || {
            let mut open = None;
            works.iter().for_each(|work| work(&mut open));
        })?;
        Ok(Registrar { settings, work })
    }

    /// Asks. What was asked may still be done when nobody has waited for the answer.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut dyn Registry) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, RegistryError> {
        let (to, answer) = oneshot::channel();
        let settings = self.settings.clone();
        let work = move |open: &mut Open| {
            let opened = match open.take() {
                Some(registry) => Ok(registry),
                None => registry::open(&settings),
            };
            let answer = opened.and_then(|registry| ask(open.insert(registry).as_mut()));
            if matches!(answer, Err(RegistryError::Away(_) | RegistryError::Unknown(_))) {
                *open = None;
            }
            let _ = to.send(answer);
        };
        let away = |why: &str| RegistryError::Away(format!("{}: {why}", self.settings));
        self.work.try_send(Box::new(work)).map_err(|_| away("it has too much to do already"))?;
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(away("no answer in time")),
        }
    }
}

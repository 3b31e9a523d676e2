//! Reads how full the spool of this host is, for the roles that only report it.

use model::settings;
use store::{Result, Spool, SpoolState};

/// Reads the state of a host's spool. A file that was replaced, or could not be read, is opened again.
#[derive(Debug)]
pub struct SpoolStateReader {
    settings: settings::SpoolSettings,
    open: Option<Spool>,
}

impl SpoolStateReader {
    /// Makes a reader. None: the store has no spool, and no earlier spool is left.
    pub fn new(store: &settings::StoreSettings) -> Option<SpoolStateReader> {
        match store {
            settings::StoreSettings::Embedded { .. } => None,
            settings::StoreSettings::Redis(redis) => {
                let spool = redis.used_spool();
                spool.map(|settings| SpoolStateReader { settings: settings.clone(), open: None })
            }
        }
    }

    /// Returns where the spool is, and how large it may grow.
    pub fn settings(&self) -> &settings::SpoolSettings {
        &self.settings
    }

    /// Returns how full the spool is now. Makes the file if it does not exist.
    pub fn read(&mut self) -> Result<SpoolState> {
        let open = self.open.take().filter(|spool| !spool.is_replaced());
        let spool = open.map_or_else(|| Spool::open(&self.settings), Ok)?;
        let state = spool.state()?;
        self.open = Some(spool);
        Ok(state)
    }
}

//! Sends the changes that wait in the host's spool, on a thread of its own.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};

use host::random_name;
use model::settings::files::{SENDER, beside};
use model::settings::{self, SpoolSettings};
use role::{self, TroubleLog};
use store::{SpoolSender, StoreError};

/// How often the thread looks for changes in the spool, and tries again to send them. Other processes put the changes
/// there.
const EVERY: Duration = Duration::from_millis(200);

/// Starts the thread, which ends when the sender is dropped. `None`: the store has no spool.
pub(super) fn start(store: &settings::StoreSettings) -> Result<Option<Sender<()>>> {
    let settings::StoreSettings::Redis(redis) = store else { return Ok(None) };
    let Some(spool) = redis.spool.clone() else { return Ok(None) };
    let sender = SpoolSender::open(redis, random_name()?).context("cannot send what waits in the spool")?;
    let Some(mut sender) = sender else { return Ok(None) };
    let (keep, ended) = channel();
    role::vital_thread("spool", move || {
        if let Some(_alone) = wait_for_turn(&spool, &ended) {
            send(&mut sender, &ended);
        }
    })?;
    Ok(Some(keep))
}

/// Waits until no other timer of the daemon sends. `None`: this process ends.
fn wait_for_turn(spool: &SpoolSettings, ended: &Receiver<()>) -> Option<File> {
    let path = beside(&spool.path, SENDER);
    let mut trouble = TroubleLog::default();
    loop {
        let wait = match lock(&path) {
            Ok(Some(lock)) => return Some(lock),
            Ok(None) => EVERY,
            Err(e) => trouble.pause_after(&format_args!("cannot lock {}: {e}", path.display())),
        };
        if ended.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
            return None;
        }
    }
}

fn lock(path: &Path) -> std::io::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Sends until this process ends.
fn send(sender: &mut SpoolSender, ended: &Receiver<()>) {
    let mut trouble = TroubleLog::default();
    loop {
        let wait = match sender.send() {
            Ok(sent) => {
                trouble.end();
                if sent > 0 {
                    log::info!("{sent} changes from the spool were brought to their homes");
                }
                EVERY
            }
            // Other code reports a node that is down, and jobs that are moved.
            Err(StoreError::NodeDown(e) | StoreError::Moving(e)) => {
                log::debug!("the spool waits: {e}");
                EVERY
            }
            // This process has the old file open. The next process opens the new file.
            Err(StoreError::Gone(e)) => {
                log::error!("{e} was removed or replaced: this process ends");
                std::process::exit(1);
            }
            Err(e) => trouble.pause_after(&format_args!("cannot send what waits in the spool: {e}")),
        };
        if ended.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

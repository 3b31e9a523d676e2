//! Sends the changes that wait in the host's spool, on a thread of its own.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Result;

use host::random_name;
use model::settings::files::{SENDER, beside};
use model::settings::{self, RedisSettings, SpoolSettings};
use role::{self, TroubleLog};
use store::{SpoolSender, StoreError};

/// How often the thread looks for changes in the spool, and tries again to send them. Other processes put the changes
/// there.
const EVERY: Duration = Duration::from_millis(200);

/// Starts the thread, which ends when the sender is dropped. `None`: the store has no spool. The timer does not need the
/// spool for its other work. So if the disk of the spool fails, only this thread waits.
pub(super) fn start(store: &settings::StoreSettings) -> Result<Option<Sender<()>>> {
    let settings::StoreSettings::Redis(redis) = store else { return Ok(None) };
    let Some(spool) = redis.used_spool().cloned() else { return Ok(None) };
    let (redis, (keep, ended)) = (redis.clone(), channel());
    role::vital_thread("spool", move || run(&redis, &spool, &ended))?;
    Ok(Some(keep))
}

/// Opens the spool and sends what waits in it. If the spool fails or is replaced, opens it again. Ends when this process
/// ends, or if the spool is turned off and has no file any more.
fn run(redis: &RedisSettings, spool: &SpoolSettings, ended: &Receiver<()>) {
    let mut trouble = TroubleLog::default();
    while let Some(alone) = wait_for_turn(spool, ended) {
        let wait = match open(redis) {
            Ok(None) => return,
            Ok(Some(mut sender)) => match send(&mut sender, &mut trouble, ended) {
                None => return,
                Some(gone) => {
                    trouble.pause_after(&format_args!("{gone} was removed or replaced: it is opened again"))
                }
            },
            Err(e) => trouble.pause_after(&format_args!("cannot send what waits in the spool: {e:#}")),
        };
        drop(alone);
        if ended.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

fn open(redis: &RedisSettings) -> Result<Option<SpoolSender>> {
    Ok(SpoolSender::open(redis, random_name()?)?)
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

/// Sends until this process ends. If the file of the spool was removed or replaced, returns which file.
fn send(sender: &mut SpoolSender, trouble: &mut TroubleLog, ended: &Receiver<()>) -> Option<String> {
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
            Err(StoreError::Gone(file)) => return Some(file),
            Err(e) => trouble.pause_after(&format_args!("cannot send what waits in the spool: {e}")),
        };
        if ended.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
            return None;
        }
    }
}

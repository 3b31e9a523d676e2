//! Checks this host's spool each second, on a thread of its own, because a disk may delay it. Pure functions judge what
//! the thread reads.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use host::now_ms;
use role::{self, Context, SpoolStateReader, lock};
use store::{self, SpoolState, StoreError};

/// How often the spool is checked.
const PERIOD: Duration = Duration::from_secs(1);

/// A change that has waited for this time is a finding.
const WAITS_MAX_MS: i64 = 10_000;

/// What is wrong with the spool. `None`: nothing is wrong.
pub(super) type SpoolTrouble = Arc<Mutex<Option<String>>>;

/// Starts the thread, if the store has a spool.
pub(super) fn watch(context: &Context) -> Result<SpoolTrouble> {
    let trouble = SpoolTrouble::default();
    let Some(mut reader) = SpoolStateReader::new(&context.settings.store) else { return Ok(trouble) };
    let (found, zone) = (Arc::clone(&trouble), context.zone()?);
    role::vital_thread("spool", move || {
        let settings = reader.settings().clone();
        let judge = SpoolJudge { path: &settings.path, bytes: settings.bytes as u64, zone };
        loop {
            let state = reader.read();
            let mut now = lock(&found);
            *now = judge.judge(now.take(), &state, now_ms());
            drop(now);
            std::thread::sleep(PERIOD);
        }
    })?;
    Ok(trouble)
}

/// Judges the state of a spool.
struct SpoolJudge<'a> {
    path: &'a Path,
    /// The maximum number of bytes of the spool.
    bytes: u64,
    zone: TimeZone,
}

impl SpoolJudge<'_> {
    /// Returns what is wrong now. `before`: what was wrong before. A problem is over only when the spool is empty.
    fn judge(
        &self,
        before: Option<String>,
        state: &store::Result<SpoolState>,
        now_ms: i64,
    ) -> Option<String> {
        let state = match state {
            Ok(state) => state,
            // Another process uses the file, and will soon release it.
            Err(StoreError::Busy) => return before,
            Err(e) => {
                let path = self.path.display();
                return Some(format!(
                    "{path} cannot be read ({e}): until it can, requests about jobs may be refused"
                ));
            }
        };
        let oldest_ms = state.oldest_ms?;
        let waits_long = now_ms - oldest_ms >= WAITS_MAX_MS;
        let is_half_full = self.bytes > 0 && state.bytes * 2 > self.bytes;
        (before.is_some() || waits_long || is_half_full).then(|| self.detail(state, oldest_ms, is_half_full))
    }

    fn detail(&self, state: &SpoolState, oldest_ms: i64, is_half_full: bool) -> String {
        let since = Timestamp::from_millisecond(oldest_ms).unwrap_or_default().to_zoned(self.zone.clone());
        let changes = match state.entries {
            1 => "1 change waits".to_owned(),
            entries => format!("{entries} changes wait"),
        };
        let most = match self.bytes {
            0 => " MiB, and store.spool is 0".to_owned(),
            bytes => format!(" of {:.1} MiB are used", mib(bytes)),
        };
        let room = if is_half_full { "; adds are refused when it is full (store.spool)" } else { "" };
        let cause = match state.has_full_disk {
            true => "the disk is full, and nothing is sent before it has some room",
            false => "dq nodes list shows which node does not answer, or whether jobs are being moved",
        };
        format!(
            "{changes} since {}, {:.1}{most}{room}: {cause}",
            since.strftime("%Y-%m-%d %H:%M:%S"),
            mib(state.bytes),
        )
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn judge(before: Option<&str>, state: store::Result<SpoolState>) -> Option<String> {
        let judge = SpoolJudge { path: Path::new("/var/spool.db"), bytes: 4 * MIB, zone: TimeZone::UTC };
        judge.judge(before.map(str::to_owned), &state, 20_000)
    }

    fn state(entries: u64, bytes: u64, oldest_ms: i64) -> store::Result<SpoolState> {
        Ok(SpoolState { entries, bytes, oldest_ms: (entries > 0).then_some(oldest_ms), has_full_disk: false })
    }

    #[test]
    fn what_waits_for_long_or_takes_much_room_is_told() {
        assert_eq!(judge(None, state(0, 0, 0)), None);
        assert_eq!(judge(None, state(3, MIB, 10_001)), None);
        let long = judge(None, state(3, MIB, 10_000)).unwrap();
        assert!(
            long.starts_with("3 changes wait since 1970-01-01 00:00:10, 1.0 of 4.0 MiB are used: dq nodes")
        );
        assert_eq!(judge(None, state(1, 2 * MIB, 19_000)), None);
        let full = judge(None, state(1, 2 * MIB + 1, 19_000)).unwrap();
        assert!(full.starts_with("1 change waits since") && full.contains("store.spool"), "{full}");
        let unread = judge(None, Err(StoreError::Damaged("no".into()))).unwrap();
        assert!(unread.contains("/var/spool.db cannot be read"), "{unread}");
    }

    #[test]
    fn it_is_over_when_the_spool_is_empty() {
        assert!(judge(Some("x"), state(1, MIB, 19_999)).is_some());
        assert_eq!(judge(Some("x"), Err(StoreError::Busy)), Some("x".to_owned()));
        assert_eq!(judge(Some("x"), state(0, 0, 0)), None);
    }
}

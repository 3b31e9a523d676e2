//! What waits in a spool, as one line.

use serde::{Deserialize, Serialize};

use super::show::span;
use host::now_ms;
use model::settings::StoreSettings;
use role::SpoolStateReader;

/// How full a spool is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpoolUsage {
    /// How many changes wait.
    pub entries: u64,
    pub bytes: u64,
    pub max_bytes: u64,
    /// When the oldest change came, in Unix milliseconds. `None`: no change waits.
    pub oldest_ms: Option<i64>,
}

impl SpoolUsage {
    /// Reads from the file how full the spool of this host is. `None`: there is no spool. Does not create the file.
    pub(super) fn of_host(store: &StoreSettings) -> store::Result<Option<SpoolUsage>> {
        let Some(mut reader) = SpoolStateReader::new(store).filter(|reader| reader.settings().path.exists())
        else {
            return Ok(None);
        };
        let state = reader.read()?;
        let max_bytes = reader.settings().bytes as u64;
        Ok(Some(SpoolUsage {
            entries: state.entries,
            bytes: state.bytes,
            max_bytes,
            oldest_ms: state.oldest_ms,
        }))
    }

    /// Returns what waits as one line. `None`: nothing waits.
    pub(super) fn line(&self) -> Option<String> {
        self.line_at(now_ms())
    }

    fn line_at(&self, now_ms: i64) -> Option<String> {
        let since = span((now_ms - self.oldest_ms?).max(0));
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        let changes = match self.entries {
            1 => "1 change waits".to_owned(),
            entries => format!("{entries} changes wait"),
        };
        let most = match self.max_bytes {
            0 => " MiB; store.spool is 0, so it takes no more".to_owned(),
            max_bytes => format!(" of {} MiB", mib(max_bytes)),
        };
        Some(format!("spool: {changes} for their nodes, for up to {since} ({}{most})", mib(self.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reports_what_waits_and_an_empty_spool_has_no_line() {
        let mut fill = SpoolUsage { max_bytes: 256 << 20, ..SpoolUsage::default() };
        assert_eq!(fill.line_at(0), None);
        (fill.entries, fill.bytes, fill.oldest_ms) = (1204, 3 << 19, Some(1000));
        let line = fill.line_at(66_000).unwrap();
        assert_eq!(line, "spool: 1204 changes wait for their nodes, for up to 1m 5s (1.5 of 256.0 MiB)");
        fill.max_bytes = 0;
        assert!(fill.line_at(66_000).unwrap().ends_with("(1.5 MiB; store.spool is 0, so it takes no more)"));
        fill.entries = 1;
        assert!(fill.line_at(0).unwrap().starts_with("spool: 1 change waits for"));
    }
}

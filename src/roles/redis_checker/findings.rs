//! Findings: what is wrong opens once, and closes once. Those that are open lie in a file, which other processes read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::Path;

use super::condition::Condition;
use crate::status::{Finding, findings_file};

/// What was found at a look: each condition, and its details.
pub(super) type Found = BTreeMap<Condition, String>;

/// The conditions that hold.
#[derive(Debug, Default)]
pub(super) struct Findings {
    open: BTreeMap<Condition, Finding>,
}

/// What changed from one look to the next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Opened(Finding),
    /// And how long it held, in milliseconds.
    Closed(Finding, i64),
}

impl Findings {
    /// Compares what is found now with what was open. `now_ms` is Unix milliseconds.
    pub(super) fn update(&mut self, found: Found, now_ms: i64) -> Vec<Change> {
        let mut changes = Vec::new();
        let over: Vec<Condition> = self.open.keys().filter(|c| !found.contains_key(c)).cloned().collect();
        for condition in over {
            if let Some(finding) = self.open.remove(&condition) {
                let held_ms = now_ms - finding.since_ms;
                changes.push(Change::Closed(finding, held_ms));
            }
        }
        for (condition, detail) in found {
            let finding = Finding {
                what: condition.to_string(),
                name: condition.name().to_owned(),
                node: condition.node().map(str::to_owned),
                loses_jobs: condition.loses_jobs(),
                detail,
                since_ms: now_ms,
            };
            match self.open.entry(condition) {
                Entry::Vacant(new) => {
                    new.insert(finding.clone());
                    changes.push(Change::Opened(finding));
                }
                Entry::Occupied(mut known) => known.get_mut().detail = finding.detail,
            }
        }
        changes
    }

    /// Writes those that are open where others read them.
    pub(super) fn write(&self, run_dir: &Path) -> io::Result<()> {
        let open: Vec<&Finding> = self.open.values().collect();
        let path = findings_file(run_dir);
        let draft = path.with_extension("draft");
        std::fs::write(&draft, serde_json::to_vec(&open)?)?;
        std::fs::rename(draft, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_opens_once_and_closes_once_and_others_can_read_it() {
        let mut findings = Findings::default();
        let found = |detail: &str| Found::from([(Condition::DiskNearlyFull, detail.to_owned())]);
        let opened = findings.update(found("1 MiB"), 1000);
        assert!(matches!(&opened[..], [Change::Opened(f)] if f.detail == "1 MiB" && f.since_ms == 1000));
        assert_eq!(findings.update(found("0 MiB"), 61_000), []);
        let dir = tempfile::tempdir().unwrap();
        findings.write(dir.path()).unwrap();
        let read: Vec<Finding> =
            serde_json::from_slice(&std::fs::read(findings_file(dir.path())).unwrap()).unwrap();
        assert_eq!((read.len(), read[0].detail.as_str(), read[0].since_ms), (1, "0 MiB", 1000));
        assert!(matches!(findings.update(Found::new(), 121_000)[..], [Change::Closed(_, 120_000)]));
        assert_eq!(findings.update(Found::new(), 122_000), []);
    }
}

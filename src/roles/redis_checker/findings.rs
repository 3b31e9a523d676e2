//! Findings: a condition opens a finding once, and closes it once. The open findings are in a file that other processes
//! read.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};

use super::finding_kind::FindingKind;
use model::status::{Finding, findings_file};

/// What one check has found: each condition with its details.
pub(super) type FoundConditions = BTreeMap<FindingKind, String>;

/// How long a finding from before a restart stays open if it is not found again. This is enough time to find again that
/// a node is down, which takes several misses.
const GRACE_MS: i64 = 15_000;

/// The bytes that are reserved for the next findings: the first number, or the second number if the disk has too little
/// room for the first.
const RESERVED: [i64; 2] = [64 << 10, 4 << 10];

/// The open findings.
#[derive(Debug, Default)]
pub(super) struct Findings {
    open: BTreeMap<FindingKind, Finding>,
    /// The findings of the previous process that this process has not yet found itself. They stay open until
    /// `believed_until_ms`.
    taken_up: BTreeSet<FindingKind>,
    believed_until_ms: i64,
    /// The bytes that were last written to the file.
    written: Vec<u8>,
}

/// A change from one check to the next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FindingChange {
    Opened(Finding),
    /// The finding, and how long it was open, in milliseconds.
    Closed(Finding, i64),
}

impl Findings {
    /// Takes over the findings of the previous process. If the configuration has changed and this process no longer
    /// looks for a finding, the finding is closed at the first check.
    pub(super) fn take_up(
        findings: Vec<Finding>,
        now_ms: i64,
        is_watched: impl Fn(&FindingKind) -> bool,
    ) -> Findings {
        let open: BTreeMap<FindingKind, Finding> =
            findings.into_iter().filter_map(|f| Some((FindingKind::from_finding(&f)?, f))).collect();
        let taken_up = open.keys().filter(|condition| is_watched(condition)).cloned().collect();
        let believed_until_ms = now_ms.saturating_add(GRACE_MS);
        Findings { open, taken_up, believed_until_ms, written: Vec::new() }
    }

    /// Returns the open findings.
    pub(super) fn open(&self) -> Vec<Finding> {
        self.open.values().cloned().collect()
    }

    /// Returns the details of an open finding.
    pub(super) fn detail(&self, condition: &FindingKind) -> Option<&str> {
        self.open.get(condition).map(|finding| finding.detail.as_str())
    }

    /// Compares what is found now with what was open. `now_ms` is in Unix milliseconds.
    pub(super) fn update(&mut self, found: FoundConditions, now_ms: i64) -> Vec<FindingChange> {
        let mut changes = Vec::new();
        if now_ms >= self.believed_until_ms {
            self.taken_up.clear();
        }
        self.taken_up.retain(|condition| !found.contains_key(condition));
        let is_over = |c: &&FindingKind| !found.contains_key(c) && !self.taken_up.contains(c);
        let over: Vec<FindingKind> = self.open.keys().filter(is_over).cloned().collect();
        for condition in over {
            if let Some(finding) = self.open.remove(&condition) {
                let held_ms = now_ms - finding.since_ms;
                changes.push(FindingChange::Closed(finding, held_ms));
            }
        }
        for (condition, detail) in found {
            let finding = Finding {
                what: condition.to_string(),
                name: condition.name().to_owned(),
                node: condition.node().map(str::to_owned),
                topic: condition.topic().map(str::to_owned),
                process: condition.process().map(str::to_owned),
                loses_jobs: condition.loses_jobs(),
                detail,
                since_ms: now_ms,
            };
            match self.open.entry(condition) {
                Entry::Vacant(new) => {
                    new.insert(finding.clone());
                    changes.push(FindingChange::Opened(finding));
                }
                Entry::Occupied(mut known) => known.get_mut().detail = finding.detail,
            }
        }
        changes
    }

    /// If the open findings have changed, or the file is gone, writes them to the file that other processes read.
    pub(super) fn write(&mut self, run_dir: &Path) -> io::Result<()> {
        let open: Vec<&Finding> = self.open.values().collect();
        let (path, bytes) = (findings_file(run_dir), serde_json::to_vec(&open)?);
        if bytes == self.written && path.exists() {
            return Ok(());
        }
        let draft = host::draft_of(&path);
        if self.written.is_empty() {
            remove_other_drafts(run_dir, &path, &draft);
        }
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(&draft)?;
        file.write_all(&bytes)?;
        file.set_len(bytes.len() as u64)?;
        std::fs::rename(&draft, path)?;
        self.written = bytes;
        reserve(&draft);
        Ok(())
    }
}

/// Removes the drafts of earlier processes. If another process still lives and is about to rename its draft, the
/// renaming fails, and that process writes again.
fn remove_other_drafts(run_dir: &Path, path: &Path, own: &Path) {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let is_draft = |other: &PathBuf| {
        let has_extension = |e: &OsStr| e.as_encoded_bytes().starts_with(b"draft");
        other.file_stem() == path.file_stem() && other.extension().is_some_and(has_extension) && other != own
    };
    for other in entries.map(|entry| entry.path()).filter(is_draft) {
        // If the draft cannot be removed, it stays.
        let _ = std::fs::remove_file(other);
    }
}

/// Makes the file for the next write now, and reserves space for it. (`write` writes into this draft, and then renames
/// it.) So even the finding "disk full" can be written.
fn reserve(draft: &Path) {
    let Ok(file) = OpenOptions::new().create(true).truncate(false).write(true).open(draft) else { return };
    let _ = RESERVED.into_iter().find(|bytes| fallocate(&file, FallocateFlags::empty(), 0, *bytes).is_ok());
}

#[cfg(test)]
mod tests {
    use super::super::finding_kind::NodeFindingKind;
    use super::*;

    #[test]
    fn a_finding_opens_once_and_closes_once_and_others_can_read_it() {
        let mut findings = Findings::default();
        let found = |detail: &str| FoundConditions::from([(FindingKind::DiskNearlyFull, detail.to_owned())]);
        let opened = findings.update(found("1 MiB"), 1000);
        assert!(
            matches!(&opened[..], [FindingChange::Opened(f)] if f.detail == "1 MiB" && f.since_ms == 1000)
        );
        assert_eq!(findings.update(found("0 MiB"), 61_000), []);
        let dir = tempfile::tempdir().unwrap();
        findings.write(dir.path()).unwrap();
        let read: Vec<Finding> =
            serde_json::from_slice(&std::fs::read(findings_file(dir.path())).unwrap()).unwrap();
        assert_eq!((read.len(), read[0].detail.as_str(), read[0].since_ms), (1, "0 MiB", 1000));
        assert!(matches!(
            findings.update(FoundConditions::new(), 121_000)[..],
            [FindingChange::Closed(_, 120_000)]
        ));
        assert_eq!(findings.update(FoundConditions::new(), 122_000), []);
    }

    #[test]
    fn the_space_for_the_next_findings_is_reserved() {
        let dir = tempfile::tempdir().unwrap();
        let mut findings = Findings::default();
        let found = |detail: String| FoundConditions::from([(FindingKind::DiskNearlyFull, detail)]);
        for detail in ["long ".repeat(1000), "short".to_owned()] {
            findings.update(found(detail), 1000);
            findings.write(dir.path()).unwrap();
            let path = findings_file(dir.path());
            let read: Vec<Finding> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(read, findings.open());
            let draft = std::fs::metadata(host::draft_of(&path)).unwrap();
            assert!(std::os::unix::fs::MetadataExt::blocks(&draft) * 512 >= 64 << 10);
        }
    }

    #[test]
    fn two_processes_do_not_write_into_one_draft() {
        let dir = tempfile::tempdir().unwrap();
        let path = findings_file(dir.path());
        // Another process, of this or an earlier release, is about to write.
        let others = ["draft", "draft-1"].map(|extension| path.with_extension(extension));
        let mut open = others.map(|draft| std::fs::File::create(draft).unwrap());
        std::fs::write(dir.path().join("alerts.draft"), "").unwrap();
        let mut findings = Findings::default();
        findings.write(dir.path()).unwrap();
        open.iter_mut().for_each(|file| file.write_all(b"half of a line").unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[]");
        let mut names: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let own = host::draft_of(&path);
        assert_eq!(names, [dir.path().join("alerts.draft"), own, path], "no draft is left behind");
    }

    #[test]
    fn what_was_open_before_a_restart_stays_so_and_is_not_told_anew() {
        let found = |node: &str| {
            FoundConditions::from([(
                FindingKind::Node(node.into(), NodeFindingKind::Down),
                "refused".to_owned(),
            )])
        };
        let mut before = Findings::default();
        before.update(found("r1"), 1000);
        let mut after = Findings::take_up(before.open(), 5000, |_| true);
        assert_eq!(after.update(FoundConditions::new(), 6000), [], "nobody has looked long enough");
        assert_eq!(after.update(found("r1"), 7000), []);
        assert!(
            matches!(&after.update(FoundConditions::new(), 8000)[..], [FindingChange::Closed(f, 7000)] if f.since_ms == 1000)
        );
        let mut after = Findings::take_up(before.open(), 5000, |_| true);
        assert_eq!(after.update(FoundConditions::new(), 19_999), []);
        let mut other = Findings::take_up(before.open(), 5000, |condition| condition.node() != Some("r1"));
        assert!(
            matches!(&other.update(FoundConditions::new(), 5001)[..], [FindingChange::Closed(..)]),
            "it is not a node any more"
        );
        assert!(matches!(after.update(FoundConditions::new(), 20_000)[..], [FindingChange::Closed(..)]));
    }
}

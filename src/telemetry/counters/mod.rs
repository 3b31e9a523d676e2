//! Counters that outlive processes. Each slot has a page in `run_dir/metrics`. The processes of the slot map this page,
//! one after the other or two at the same time. A page gets its name only when it is complete. Nobody removes a page,
//! because a sum must not fall.
//!
//! A page cannot be used if it is damaged or of another release. Such a page stays as it is, and a new page is made
//! beside it. A page that the previous release writes is still read, so that no sum falls at an upgrade. If the disk is
//! full or the folder cannot be made, a process counts in its own memory, which nobody reads. Apart from that, the
//! process works as usual.

mod mapping;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use self::mapping::PageMemory;
use model::metrics::{BYTES, CounterTotals, FIXED_BYTES, NodeCounters, PageSums, ROW_BYTES, TopicCounters};

/// How many rows of topics get disk space at a time.
const ROWS: usize = 64;

/// The maximum number of pages of a slot, including the pages that cannot be used.
const BESIDE_MAX: u32 = 100;

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("metrics")
}

/// The counters of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Counters(Arc<CounterPage>);

#[derive(Debug)]
struct CounterPage {
    mapping: PageMemory,
    /// The file of the page. None: the page is in the memory of this process only.
    file: Option<File>,
    /// Each topic has one row in the page. This is the number of rows for which this process knows that the file has
    /// disk space.
    room: AtomicUsize,
}

impl Counters {
    /// Opens the counters of a slot. They continue from the values that the previous process left.
    pub fn open(run_dir: &Path, slot: &str) -> Counters {
        Counters::try_open(&folder(run_dir), slot).unwrap_or_else(|e| {
            log::warn!("cannot open a page of counters: {e}; what this process does is not counted");
            Counters::alone()
        })
    }

    /// Returns counters that no other process sees.
    pub fn alone() -> Counters {
        let mapping = PageMemory::own();
        mapping.page().begin(0);
        Counters(Arc::new(CounterPage { mapping, file: None, room: AtomicUsize::new(usize::MAX) }))
    }

    fn try_open(folder: &Path, slot: &str) -> io::Result<Counters> {
        host::make_folder_in_run_dir(folder)?;
        for n in 0..BESIDE_MAX {
            let path = folder.join(if n == 0 { slot.to_owned() } else { format!("{slot}.{n}") });
            let opened = match open(&path, true) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    make(folder, &path)?;
                    open(&path, true)
                }
                other => other,
            };
            match opened {
                Ok((mapping, file)) => {
                    return Ok(Counters(Arc::new(CounterPage {
                        mapping,
                        file: Some(file),
                        room: AtomicUsize::new(0),
                    })));
                }
                Err(_) if open(&path, false).is_ok() => {
                    log::debug!("{} is of the release before this one, and is only read", path.display());
                }
                Err(e) => log::warn!("{} cannot be used, and stays as it is: {e}", path.display()),
            }
        }
        Err(io::Error::other(format!("{BESIDE_MAX} pages of {slot} cannot be used")))
    }

    /// Returns the counters of a topic, to add to them.
    #[inline]
    pub fn topic(&self, name: &str) -> TopicCounters<'_> {
        let page = self.0.mapping.page();
        TopicCounters(
            page.topic(name).unwrap_or_else(|| {
                if self.0.has_room() { page.claim_topic(name) } else { page.other_topics() }
            }),
        )
    }

    /// Returns the counters for a name that is perhaps not a topic. A name without a row gets no row, and is counted
    /// under `(other)`.
    pub fn known_topic(&self, name: &str) -> TopicCounters<'_> {
        let page = self.0.mapping.page();
        TopicCounters(page.topic(name).unwrap_or_else(|| page.other_topics()))
    }

    /// Returns the counters of a node, to add to them.
    pub fn node(&self, name: &str) -> NodeCounters<'_> {
        NodeCounters(self.0.mapping.page().claim_node(name))
    }
}

impl CounterPage {
    /// Returns whether the disk has room for another row. The file has parts without disk space. If the disk is full
    /// and a process writes to such a part, the kernel kills the process (SIGBUS).
    fn has_room(&self) -> bool {
        let Some(file) = &self.file else { return true };
        // Other processes may claim rows between this moment and the claim. So the check includes additional rows.
        let needed = self.mapping.page().topics_used() + ROWS / 2;
        if self.room.load(Ordering::Relaxed) >= needed {
            return true;
        }
        let room = needed.next_multiple_of(ROWS).min((BYTES - FIXED_BYTES) / ROW_BYTES);
        match reserve(file, FIXED_BYTES + room * ROW_BYTES) {
            Ok(()) => {
                self.room.store(needed.next_multiple_of(ROWS), Ordering::Relaxed);
                true
            }
            Err(e) => {
                log::warn!("cannot reserve disk space to count another topic separately: {e}");
                false
            }
        }
    }
}

/// Reserves disk space for the first `bytes` of a file.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, bytes as i64) {
        // EOPNOTSUPP: the file system cannot reserve space.
        Ok(()) | Err(Errno::EOPNOTSUPP) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn open(path: &Path, is_written: bool) -> io::Result<(PageMemory, File)> {
    let file = OpenOptions::new().read(true).write(is_written).open(path)?;
    let mapping = PageMemory::shared(&file, is_written)?;
    let page = mapping.page();
    match page.is_good() || !is_written && page.is_of_version_1() {
        true => Ok((mapping, file)),
        false => Err(io::Error::other("it does not have the page layout of this release")),
    }
}

/// Makes a page. When the page is complete, it gets its name, if no other process was faster.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let number = u64::from_ne_bytes(random);
    let draft = folder.join(format!(".{number:016x}"));
    let made = || -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
        file.set_len(BYTES as u64)?;
        reserve(&file, FIXED_BYTES + ROWS * ROW_BYTES)?;
        PageMemory::shared(&file, true)?.page().begin(number);
        match std::fs::hard_link(&draft, path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    };
    let made = made();
    let _ = std::fs::remove_file(&draft);
    made
}

/// The contents of a page at one moment.
#[derive(Debug)]
pub struct PageReading {
    /// The random number that identifies the page.
    pub number: u64,
    /// Its counts.
    pub totals: CounterTotals,
}

impl PageReading {
    /// Returns the page's sums, for the statistics of each day.
    pub fn sums(&self) -> PageSums {
        PageSums { page: self.number, sums: self.totals.sums() }
    }
}

/// Reads all pages of a `run_dir`, including the pages of slots that no longer exist.
pub fn read(run_dir: &Path) -> io::Result<Vec<PageReading>> {
    let mut readings = Vec::new();
    let entries = match std::fs::read_dir(folder(run_dir)) {
        // No process has counted anything yet.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(readings),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match open(&entry.path(), false) {
            Ok((mapping, _)) => {
                let page = mapping.page();
                readings.push(PageReading { number: page.number(), totals: CounterTotals::from_page(page) });
            }
            Err(e) => log::debug!("{} is not counted: {e}", entry.path().display()),
        }
    }
    Ok(readings)
}

/// Returns the sums of all pages of a `run_dir`.
pub fn totals(run_dir: &Path) -> io::Result<CounterTotals> {
    let mut totals = CounterTotals::default();
    read(run_dir)?.into_iter().for_each(|reading| totals.join(reading.totals));
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::metrics::{AddOutcome, BYTES_1, MetricSubject};

    fn written(run_dir: &Path) -> u64 {
        let sums = |reading: PageReading| reading.sums().sums;
        let topics = read(run_dir).unwrap().into_iter().flat_map(sums);
        topics.filter(|(s, _)| matches!(s, MetricSubject::Topic(_))).map(|(_, sums)| sums.written).sum()
    }

    #[test]
    fn a_new_process_continues_the_counts_of_an_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let old = Counters::open(dir.path(), "dq-server");
        old.topic("t").added(AddOutcome::New, 3);
        let new = Counters::open(dir.path(), "dq-server");
        new.topic("t").added(AddOutcome::New, 4);
        old.topic("t").added(AddOutcome::Replaced, 5);
        drop(old);
        assert_eq!(written(dir.path()), 12);
        drop(new);
        let next = Counters::open(dir.path(), "dq-server");
        Counters::open(dir.path(), "dq-http-server").topic("u").added(AddOutcome::New, 1);
        assert_eq!((written(dir.path()), read(dir.path()).unwrap().len()), (13, 2));
        drop(next);
    }

    #[test]
    fn processes_that_make_the_page_at_the_same_time_share_one() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let counters = Counters::open(dir.path(), "dq-consume-0");
                    (0..1000).for_each(|n| counters.topic(&format!("t{}", n % 10)).added(AddOutcome::New, 1));
                });
            }
        });
        assert_eq!((written(dir.path()), read(dir.path()).unwrap().len()), (8000, 1));
        assert_eq!(std::fs::read_dir(dir.path().join("metrics")).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_damaged_or_foreign_page_stays_and_another_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("metrics");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("dq-server"), "short").unwrap();
        std::fs::write(folder.join("dq-server.1"), vec![7; BYTES]).unwrap();
        for n in 1..=2 {
            Counters::open(dir.path(), "dq-server").topic("t").added(AddOutcome::New, 1);
            assert_eq!(written(dir.path()), n);
        }
        assert!(folder.join("dq-server.2").exists() && !folder.join("dq-server.3").exists());
        assert_eq!(std::fs::read(folder.join("dq-server")).unwrap(), b"short");
    }

    #[test]
    fn a_page_of_the_release_before_is_read_and_stays_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("metrics");
        std::fs::create_dir(&folder).unwrap();
        // Version 1: the header, the indexes and the rows of nodes are the same as in the current version; a row of a
        // topic has 128 words.
        let mut words = vec![0_u64; BYTES_1 / 8];
        let topics_at = FIXED_BYTES / 8;
        words[..5].copy_from_slice(&[u64::from_be_bytes(*b"dqcounts"), 1, 7, 2, 1]);
        words[topics_at + 128..][..2].copy_from_slice(&[1, u64::from_ne_bytes(*b"t\0\0\0\0\0\0\0")]);
        let cells = topics_at + 128 + 17;
        // Five jobs were added. Three attempts are in the last range, up to an hour. The sum of the lateness is five
        // hours, which is only a number for this test.
        (words[cells], words[cells + 32 + 16], words[cells + 32 + 18]) = (5, 3, 18_000_000_000);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(folder.join("dq-server"), &bytes).unwrap();

        let counters = Counters::open(dir.path(), "dq-server");
        counters.topic("t").added(AddOutcome::New, 1);
        counters.topic("t").answered_later(2000, 0);
        let totals = totals(dir.path()).unwrap();
        let (_, sums) = totals.sums().remove(0);
        assert_eq!((sums.written, sums.attempts, sums.late_us), (6, 4, 18_000_002_000));
        let ranges: Vec<_> = totals.lateness_of("t").ranges().collect();
        assert_eq!(ranges[0], (Some(2000), 1));
        assert!(ranges[1].1 == 3 && (300_000_000..3_600_000_000).contains(&ranges[1].0.unwrap()));
        assert_eq!(std::fs::read(folder.join("dq-server")).unwrap(), bytes, "it stays as it was");
    }

    #[test]
    fn where_there_is_no_folder_it_counts_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("metrics"), "in the way").unwrap();
        Counters::open(dir.path(), "dq-server").topic("t").added(AddOutcome::New, 1);
        assert!(read(dir.path()).is_err());
    }

    #[test]
    fn a_page_uses_little_disk_space_until_there_are_many_topics() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let counters = Counters::open(dir.path(), "dq-server");
        let room = || std::fs::metadata(dir.path().join("metrics/dq-server")).unwrap().blocks() * 512;
        assert!(room() < 512 << 10, "{}", room());
        (0..200).for_each(|n| counters.topic(&format!("t{n}")).added(AddOutcome::New, 1));
        assert!((1 << 20..2 << 20).contains(&room()), "{}", room());
        assert_eq!(written(dir.path()), 200);
    }
}

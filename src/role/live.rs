//! The current topics and tokens, from the configuration file and from the last snapshot of the registry. This module
//! never reads the database. dq-redis-checker reads it, and writes the snapshot.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use host::{FileVersion, FileWatcher, make_folder_in_run_dir, version_of};
use model::excerpt::Excerpt;
use model::settings::Settings;
use model::token::Tokens;
use model::topic::{Topic, Topics};
use registry::{InvalidRow, Snapshot, SnapshotError, snapshot_folder};
use store::Lanes;

/// How often the snapshot file is checked if it cannot be watched.
const LOOK: Duration = Duration::from_secs(1);

/// How long a snapshot counts as confirmed. dq-redis-checker confirms it three times in this time.
const CONFIRMED: Duration = Duration::from_secs(60);

/// The topics and tokens of a process. They can change while the process runs. The descriptor becomes readable when
/// they may have changed.
pub struct RegistryView {
    topics: Topics,
    tokens: Tokens,
    registry: Option<FollowedRegistry>,
    /// The lanes, which get the durability levels of the topics at each change.
    lanes: Option<Lanes>,
}

/// The snapshot of the registry, as one process follows it.
#[derive(Debug)]
struct FollowedRegistry {
    file: Vec<Topic>,
    /// The registry whose snapshots are used.
    source: String,
    run_dir: PathBuf,
    watch: SnapshotWatch,
    /// The version of the file that was read last.
    seen: Option<FileVersion>,
    /// A descriptor that is given up while the file is read. So the file can be read if clients have taken all others.
    spare: Option<File>,
    /// The inode of the last snapshot of this registry that was read. `None`: no such snapshot was read yet.
    read: Option<u64>,
    logged: HashSet<InvalidRow>,
}

/// Where the topics of a process come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TopicsOrigin {
    /// The topics of the registry are not known yet.
    #[default]
    Unknown,
    /// From the configuration file alone: there is no registry.
    File,
    /// Also from a snapshot of the registry.
    Snapshot {
        /// The path of the snapshot.
        path: PathBuf,
        /// The inode of the snapshot that was read. Each new snapshot is a new file.
        inode: u64,
    },
}

impl TopicsOrigin {
    /// Returns whether the topics are known, and were compared with the registry within the last minute
    /// ([`Snapshot::confirm`]). If so, they may be used to remove what topics no longer keep.
    pub fn is_confirmed(&self) -> bool {
        let TopicsOrigin::Snapshot { path, inode } = self else { return matches!(self, TopicsOrigin::File) };
        let is_recent = |at: SystemTime| at.elapsed().is_ok_and(|age| age <= CONFIRMED);
        let file = std::fs::metadata(path);
        file.is_ok_and(|file| file.ino() == *inode && file.modified().is_ok_and(is_recent))
    }
}

#[derive(Debug)]
enum SnapshotWatch {
    Notified(FileWatcher),
    /// The system allows no further watch on a file, so a timer is used.
    Polled(TimerFd),
}

impl RegistryView {
    /// Returns the topics as they are known at the start.
    pub(super) fn begin(settings: &Settings) -> io::Result<RegistryView> {
        let file = settings.topics.clone();
        let lanes = Lanes::new(&settings.store).map_err(io::Error::other)?;
        let topics: Topics = file.iter().cloned().collect();
        lanes.set_topics(&topics);
        let lanes = Some(lanes);
        let Some(registry) = &settings.registry else {
            return Ok(RegistryView { topics, tokens: Tokens::default(), registry: None, lanes });
        };
        let run_dir = settings.run_dir.clone();
        make_folder_in_run_dir(&snapshot_folder(&run_dir))?;
        let (source, logged) = (registry.to_string(), HashSet::new());
        // The watch begins before the file is read, so that no change is missed.
        let watch = SnapshotWatch::new(&Snapshot::file(&run_dir))?;
        let (seen, spare, read) = (None, spare(), None);
        let registry = FollowedRegistry { file, source, run_dir, watch, seen, spare, read, logged };
        let mut live = RegistryView { topics, tokens: Tokens::default(), registry: Some(registry), lanes };
        live.reload();
        Ok(live)
    }

    /// Returns the current topics. Cheap to clone.
    pub fn now(&self) -> &Topics {
        &self.topics
    }

    /// Returns the current tokens. Cheap to clone.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Returns whether all topics are known. All topics are known if there is no registry, or if the snapshot of the
    /// registry was read once.
    pub fn is_whole(&self) -> bool {
        self.registry.as_ref().is_none_or(|registry| registry.read.is_some())
    }

    /// Returns where the topics of this process come from.
    pub fn origin(&self) -> TopicsOrigin {
        let Some(registry) = &self.registry else { return TopicsOrigin::File };
        let snapshot = |inode| TopicsOrigin::Snapshot { path: Snapshot::file(&registry.run_dir), inode };
        registry.read.map_or(TopicsOrigin::Unknown, snapshot)
    }

    /// Returns whether there is a snapshot, but no topic of it could be used until now: it is damaged, or belongs to
    /// another registry.
    pub(super) fn has_unusable_snapshot(&self) -> bool {
        let is_there = |registry: &FollowedRegistry| Snapshot::file(&registry.run_dir).exists();
        self.registry.as_ref().is_some_and(|registry| registry.read.is_none() && is_there(registry))
    }

    /// Checks for changes. Returns the topics if they have changed. Call it when the descriptor is readable.
    pub fn reload(&mut self) -> Option<&Topics> {
        let (topics, tokens) = self.registry.as_mut()?.reload()?;
        if let Some(tokens) = tokens {
            self.tokens = tokens;
        }
        if topics == self.topics {
            return None;
        }
        self.topics = topics;
        self.lanes.iter().for_each(|lanes| lanes.set_topics(&self.topics));
        Some(&self.topics)
    }

    /// Returns the descriptor that becomes readable when the topics or tokens may have changed. None: they never
    /// change.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(match &self.registry.as_ref()?.watch {
            SnapshotWatch::Notified(changes) => changes.as_fd(),
            SnapshotWatch::Polled(timer) => timer.as_fd(),
        })
    }
}

impl FollowedRegistry {
    /// Reads the snapshot if it is new. Returns its topics, and its tokens if it has a list of them.
    fn reload(&mut self) -> Option<(Topics, Option<Tokens>)> {
        if let Err(e) = self.watch.take() {
            log::warn!("cannot watch the snapshot of the registry: {e}");
        }
        let path = Snapshot::file(&self.run_dir);
        let seen = std::fs::metadata(&path).ok().map(|file| version_of(&file))?;
        if self.seen == Some(seen) {
            return None;
        }
        self.spare = None;
        let read = Snapshot::read(&self.run_dir);
        self.spare = spare();
        if !matches!(read, Err(SnapshotError::Read(_))) {
            self.seen = Some(seen);
        }
        let (snapshot, unusable) = match read {
            Ok(read) => read?,
            Err(e) => {
                log::warn!("{}: {e}; using the topics that are known", path.display());
                return None;
            }
        };
        // A generation that uses another registry wrote this snapshot.
        if snapshot.source != self.source {
            return None;
        }
        self.read = Some(seen.0);
        for unusable in unusable {
            if self.logged.insert(unusable.clone()) {
                log::warn!("left out of what the registry has: {}", Excerpt(&unusable));
            }
        }
        let topics = self.file.iter().cloned().chain(snapshot.topics).collect();
        Some((topics, snapshot.tokens.map(Tokens::from_iter)))
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

impl SnapshotWatch {
    fn new(file: &Path) -> io::Result<SnapshotWatch> {
        match FileWatcher::new(file) {
            Ok(changes) => Ok(SnapshotWatch::Notified(changes)),
            Err(e) => {
                log::warn!("cannot watch {}: {e}; it is checked every second", file.display());
                let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::all())?;
                let each = Expiration::Interval(TimeSpec::from_duration(LOOK));
                timer.set(each, TimerSetTimeFlags::empty())?;
                Ok(SnapshotWatch::Polled(timer))
            }
        }
    }

    /// Reads the events or the timer that made the descriptor readable.
    fn take(&mut self) -> io::Result<()> {
        match self {
            SnapshotWatch::Notified(changes) => changes.take().map(drop),
            SnapshotWatch::Polled(timer) => match timer.wait() {
                Ok(()) | Err(nix::errno::Errno::EAGAIN) => Ok(()),
                Err(e) => Err(e.into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::TopicName;
    use model::token::{Token, TokenCredential, TokenName, TokenSecret};
    use registry::Revision;

    fn topic(name: &str, callback: &str) -> Topic {
        Topic::new(TopicName::new(name).unwrap(), callback)
    }

    #[test]
    fn the_file_wins_over_a_snapshot_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().to_owned();
        make_folder_in_run_dir(&snapshot_folder(&run_dir)).unwrap();
        let followed = FollowedRegistry {
            file: vec![topic("a", "http://file/")],
            source: "sqlite:/x".into(),
            watch: SnapshotWatch::new(&Snapshot::file(&run_dir)).unwrap(),
            run_dir: run_dir.clone(),
            seen: None,
            spare: spare(),
            read: None,
            logged: HashSet::new(),
        };
        let mut live = RegistryView {
            registry: Some(followed),
            topics: Topics::default(),
            tokens: Tokens::default(),
            lanes: None,
        };
        assert!(live.reload().is_none() && !live.is_whole() && !live.has_unusable_snapshot());
        let write = |source: &str, topics: Vec<Topic>| {
            let snapshot =
                Snapshot { source: source.into(), revision: Revision(1), topics, tokens: Some(Vec::new()) };
            snapshot.write(&run_dir).unwrap();
        };
        write("mysql://other/dq", vec![topic("c", "http://c/")]);
        assert!(live.reload().is_none() && !live.is_whole() && live.has_unusable_snapshot());
        write("sqlite:/x", vec![topic("a", "http://registry/"), topic("b", "http://b/")]);
        let topics = live.reload().unwrap().clone();
        assert!(live.is_whole() && !live.has_unusable_snapshot());
        assert!(live.origin().is_confirmed());
        let file = File::open(Snapshot::file(&run_dir)).unwrap();
        file.set_modified(SystemTime::now() - 2 * CONFIRMED).unwrap();
        assert!(!live.origin().is_confirmed(), "nobody has compared it with the registry for long");
        let version = version_of(&file.metadata().unwrap());
        let confirmed = Snapshot::confirm(&run_dir, version).unwrap().unwrap();
        assert!(live.origin().is_confirmed());
        assert_eq!(Snapshot::confirm(&run_dir, version).unwrap(), None, "it was written since");
        assert_eq!(topics.get("a").unwrap().callback, "http://file/");
        assert_eq!(topics.get("b").unwrap().callback, "http://b/");
        assert!(live.reload().is_none());
        write("mysql://other/dq", vec![]);
        assert_eq!(Snapshot::confirm(&run_dir, confirmed).unwrap(), None, "it is another file now");
        assert!(live.reload().is_none() && !live.origin().is_confirmed());
        std::fs::write(Snapshot::file(&run_dir), "{").unwrap();
        assert!(live.reload().is_none());
        assert_eq!(*live.now(), topics);
        write("sqlite:/x", vec![]);
        assert!(live.reload().unwrap().get("b").is_none());
    }

    #[test]
    fn a_missing_token_is_removed_unless_the_token_list_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().to_owned();
        make_folder_in_run_dir(&snapshot_folder(&run_dir)).unwrap();
        let path = run_dir.join("registry.db");
        let mut settings = config::development(&run_dir, std::iter::empty()).expect("the defaults are valid");
        settings.registry = Some(model::settings::RegistrySettings::Sqlite { path });
        let source = settings.registry.as_ref().unwrap().to_string();
        settings.run_dir = run_dir.clone();
        let mut live = RegistryView::begin(&settings).unwrap();
        let secret = TokenSecret::new([9; 32]);
        let token = Token {
            name: TokenName::new("ops").unwrap(),
            proof: TokenCredential::Secret(secret.digest()),
            scopes: vec![],
            created_ms: 0,
            expires_ms: None,
            creator: String::new(),
            add_rate: None,
        };
        let mut write = |tokens: Option<Vec<Token>>| {
            let (source, revision) = (source.clone(), Revision(1));
            Snapshot { source, revision, topics: Vec::new(), tokens }.write(&run_dir).unwrap();
            assert!(live.reload().is_none(), "no topic has changed");
            live.tokens().find_by_secret(secret.reveal(), 0).is_some()
        };
        assert!(!write(Some(vec![])));
        assert!(write(Some(vec![token])));
        assert!(write(None), "a release without tokens");
        assert!(!write(Some(vec![])));
    }
}

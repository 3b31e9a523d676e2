//! The topics as they are now: those of the configuration file, and those of the registry as the last snapshot has them. Nobody here
//! asks the database: dq-redis-checker does, and writes the snapshot.

use std::collections::HashSet;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::process::Changes;
use crate::registry::{Snapshot, Unusable, snapshot_folder};
use crate::settings::Settings;
use crate::topic::{Topic, Topics};

/// How often the file is looked at where it cannot be watched.
const LOOK: Duration = Duration::from_secs(1);

/// The topics of a process that goes on when they change. Readable when they may have.
#[derive(Debug)]
pub struct LiveTopics {
    topics: Topics,
    registry: Option<Followed>,
}

/// What is followed, when there is a registry.
#[derive(Debug)]
struct Followed {
    file: Vec<Topic>,
    /// Which registry's snapshots count.
    source: String,
    run_dir: PathBuf,
    watch: Watch,
    /// Which file was read last.
    seen: Option<Seen>,
    told: HashSet<Unusable>,
}

/// Inode, and when it was written.
type Seen = (u64, i64, i64);

#[derive(Debug)]
enum Watch {
    Told(Changes),
    /// The system has no more watches to give.
    Looks(TimerFd),
}

impl LiveTopics {
    /// The topics as they are known at the start.
    pub(super) fn begin(settings: &Settings) -> io::Result<LiveTopics> {
        let file = settings.topics.clone();
        let Some(registry) = &settings.registry else {
            return Ok(LiveTopics { topics: file.into_iter().collect(), registry: None });
        };
        let run_dir = settings.run_dir.clone();
        DirBuilder::new().recursive(true).mode(0o700).create(snapshot_folder(&run_dir))?;
        let (source, told) = (registry.to_string(), HashSet::new());
        // Watched before it is read, so that nothing falls between.
        let watch = Watch::of(&Snapshot::file(&run_dir))?;
        let topics = file.iter().cloned().collect();
        let registry = Followed { file, source, run_dir, watch, seen: None, told };
        let mut live = LiveTopics { topics, registry: Some(registry) };
        live.look();
        Ok(live)
    }

    /// As they are known now. Cheap to clone.
    pub fn now(&self) -> &Topics {
        &self.topics
    }

    /// Looks whether they have changed. To be called when this is readable.
    pub fn look(&mut self) -> Option<&Topics> {
        let topics = self.registry.as_mut()?.look()?;
        if topics == self.topics {
            return None;
        }
        self.topics = topics;
        Some(&self.topics)
    }

    /// What becomes readable; none: they never change.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(match &self.registry.as_ref()?.watch {
            Watch::Told(changes) => changes.as_fd(),
            Watch::Looks(timer) => timer.as_fd(),
        })
    }
}

impl Followed {
    fn look(&mut self) -> Option<Topics> {
        if let Err(e) = self.watch.take() {
            log::warn!("cannot watch the snapshot of the registry: {e}");
        }
        let path = Snapshot::file(&self.run_dir);
        let seen = std::fs::metadata(&path).ok().map(|m: Metadata| (m.ino(), m.mtime(), m.mtime_nsec()))?;
        if self.seen.replace(seen) == Some(seen) {
            return None;
        }
        let (snapshot, unusable) = match Snapshot::read(&self.run_dir) {
            Ok(read) => read?,
            Err(e) => {
                log::warn!("{}: {e}; going on with the topics that are known", path.display());
                return None;
            }
        };
        // That of another generation, which has another registry.
        if snapshot.source != self.source {
            return None;
        }
        for unusable in unusable {
            if self.told.insert(unusable.clone()) {
                log::warn!("left out of the topics: {unusable}");
            }
        }
        Some(self.file.iter().cloned().chain(snapshot.topics).collect())
    }
}

impl Watch {
    fn of(file: &Path) -> io::Result<Watch> {
        match Changes::of(file) {
            Ok(changes) => Ok(Watch::Told(changes)),
            Err(e) => {
                log::warn!("cannot watch {}: {e}; it is looked at each second", file.display());
                let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::all())?;
                let each = Expiration::Interval(TimeSpec::from_duration(LOOK));
                timer.set(each, TimerSetTimeFlags::empty())?;
                Ok(Watch::Looks(timer))
            }
        }
    }

    /// Takes what made it readable.
    fn take(&mut self) -> io::Result<()> {
        match self {
            Watch::Told(changes) => changes.take().map(drop),
            Watch::Looks(timer) => match timer.wait() {
                Ok(()) | Err(nix::errno::Errno::EAGAIN) => Ok(()),
                Err(e) => Err(e.into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::TopicName;
    use crate::registry::Revision;

    fn topic(name: &str, callback: &str) -> Topic {
        Topic::new(TopicName::new(name).unwrap(), callback)
    }

    #[test]
    fn a_snapshot_is_followed_the_file_wins_and_what_is_broken_or_of_another_registry_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().to_owned();
        DirBuilder::new().recursive(true).create(snapshot_folder(&run_dir)).unwrap();
        let followed = Followed {
            file: vec![topic("a", "http://file/")],
            source: "sqlite:/x".into(),
            watch: Watch::of(&Snapshot::file(&run_dir)).unwrap(),
            run_dir: run_dir.clone(),
            seen: None,
            told: HashSet::new(),
        };
        let mut live = LiveTopics { topics: Topics::default(), registry: Some(followed) };
        assert!(live.look().is_none());
        let write = |source: &str, topics: Vec<Topic>| {
            let snapshot = Snapshot { source: source.into(), revision: Revision(1), topics };
            snapshot.write(&run_dir).unwrap();
        };
        write("sqlite:/x", vec![topic("a", "http://registry/"), topic("b", "http://b/")]);
        let topics = live.look().unwrap().clone();
        assert_eq!(topics.get("a").unwrap().callback, "http://file/");
        assert_eq!(topics.get("b").unwrap().callback, "http://b/");
        assert!(live.look().is_none());
        write("mysql://other/dq", vec![]);
        assert!(live.look().is_none());
        std::fs::write(Snapshot::file(&run_dir), "{").unwrap();
        assert!(live.look().is_none());
        assert_eq!(*live.now(), topics);
        write("sqlite:/x", vec![]);
        assert!(live.look().unwrap().get("b").is_none());
    }
}

//! The topics and tokens as they are now: topics of the configuration file, and what the registry has, as the last snapshot says.
//! Nobody here asks the database: dq-redis-checker does, and writes the snapshot.

use std::collections::HashSet;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::excerpt::Excerpt;
use crate::process::Changes;
use crate::registry::{Snapshot, Unusable, snapshot_folder};
use crate::settings::Settings;
use crate::token::Tokens;
use crate::topic::{Topic, Topics};

/// How often the file is looked at where it cannot be watched.
const LOOK: Duration = Duration::from_secs(1);

/// The topics and tokens of a process that goes on when they change. Readable when they may have.
#[derive(Debug)]
pub struct LiveTopics {
    topics: Topics,
    tokens: Tokens,
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
    /// Whether a snapshot of this registry was read.
    is_read: bool,
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
            return Ok(LiveTopics {
                topics: file.into_iter().collect(),
                tokens: Tokens::default(),
                registry: None,
            });
        };
        let run_dir = settings.run_dir.clone();
        DirBuilder::new().recursive(true).mode(0o700).create(snapshot_folder(&run_dir))?;
        let (source, told) = (registry.to_string(), HashSet::new());
        // Watched before it is read, so that nothing falls between.
        let watch = Watch::of(&Snapshot::file(&run_dir))?;
        let topics = file.iter().cloned().collect();
        let registry = Followed { file, source, run_dir, watch, seen: None, is_read: false, told };
        let mut live = LiveTopics { topics, tokens: Tokens::default(), registry: Some(registry) };
        live.look();
        Ok(live)
    }

    /// As they are known now. Cheap to clone.
    pub fn now(&self) -> &Topics {
        &self.topics
    }

    /// The tokens as they are known now. Cheap to clone.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Whether all topics that there are are known: without a registry, or after it was read once.
    pub fn is_whole(&self) -> bool {
        self.registry.as_ref().is_none_or(|registry| registry.is_read)
    }

    /// Looks whether they have changed, and gives the topics if those have. To be called when this is readable.
    pub fn look(&mut self) -> Option<&Topics> {
        let (topics, tokens) = self.registry.as_mut()?.look()?;
        if let Some(tokens) = tokens {
            self.tokens = tokens;
        }
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
    /// What a new snapshot says; of tokens it may say nothing.
    fn look(&mut self) -> Option<(Topics, Option<Tokens>)> {
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
        self.is_read = true;
        for unusable in unusable {
            if self.told.insert(unusable.clone()) {
                log::warn!("left out of what the registry has: {}", Excerpt(&unusable));
            }
        }
        let topics = self.file.iter().cloned().chain(snapshot.topics).collect();
        Some((topics, snapshot.tokens.map(Tokens::from_iter)))
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
    use crate::token::{Proof, Secret, Token, TokenName};

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
            is_read: false,
            told: HashSet::new(),
        };
        let mut live =
            LiveTopics { topics: Topics::default(), tokens: Tokens::default(), registry: Some(followed) };
        assert!(live.look().is_none() && !live.is_whole());
        let write = |source: &str, topics: Vec<Topic>| {
            let snapshot =
                Snapshot { source: source.into(), revision: Revision(1), topics, tokens: Some(Vec::new()) };
            snapshot.write(&run_dir).unwrap();
        };
        write("sqlite:/x", vec![topic("a", "http://registry/"), topic("b", "http://b/")]);
        let topics = live.look().unwrap().clone();
        assert!(live.is_whole());
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

    #[test]
    fn a_token_goes_with_a_snapshot_that_has_it_not_and_stays_with_one_that_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().to_owned();
        DirBuilder::new().recursive(true).create(snapshot_folder(&run_dir)).unwrap();
        let path = run_dir.join("registry.db");
        let mut settings =
            crate::config::development(&run_dir, std::iter::empty()).expect("the defaults are valid");
        settings.registry = Some(crate::settings::Registry::Sqlite { path });
        let source = settings.registry.as_ref().unwrap().to_string();
        settings.run_dir = run_dir.clone();
        let mut live = LiveTopics::begin(&settings).unwrap();
        let secret = Secret::of([9; 32]);
        let token = Token {
            name: TokenName::new("ops").unwrap(),
            proof: Proof::Secret(secret.digest()),
            scopes: vec![],
            created_ms: 0,
            expires_ms: None,
            creator: String::new(),
        };
        let mut write = |tokens: Option<Vec<Token>>| {
            let (source, revision) = (source.clone(), Revision(1));
            Snapshot { source, revision, topics: Vec::new(), tokens }.write(&run_dir).unwrap();
            assert!(live.look().is_none(), "no topic has changed");
            live.tokens().shown(secret.reveal(), 0).is_some()
        };
        assert!(!write(Some(vec![])));
        assert!(write(Some(vec![token])));
        assert!(write(None), "a release without tokens");
        assert!(!write(Some(vec![])));
    }
}

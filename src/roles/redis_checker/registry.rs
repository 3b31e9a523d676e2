//! Passes on what the registry holds: asks it each second, and when it is nudged, whether it has changed, and writes the snapshot that all processes of
//! the host follow. The one place of a host that opens the database; on a thread of its own, which a database may hold up.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::routes::{PhpMail, SharedPhpMail};
use crate::job::TopicName;
use crate::process::{Changes, wait_readable};
use crate::registry::{self, Listing, Registry, Revision, Snapshot};
use crate::role::{self, Trouble, lock};
use crate::settings::{self, Settings};

/// How often it asks.
const PERIOD: Duration = Duration::from_secs(1);

/// How often it asks for mail settings, which change without a revision.
const MAIL_PERIOD: Duration = Duration::from_secs(30);

/// Why the registry cannot be read now; none: it can.
pub(super) type Away = Arc<Mutex<Option<String>>>;

/// Starts the thread, if there is a registry.
/// What it says of mail goes to `php`.
pub(super) fn follow(settings: &Arc<Settings>, php: &SharedPhpMail) -> Result<Away> {
    let away = Away::default();
    let asks_for_mail = PhpMail::counts(settings);
    if !asks_for_mail {
        *lock(php) = PhpMail::Nothing;
    }
    if let Some(registry) = settings.registry.clone() {
        let mut follower = Follower {
            settings: Arc::clone(settings),
            registry,
            open: None,
            passed_on: None,
            looked_at: None,
            told: HashSet::new(),
            nudges: nudges(settings),
            mail_at: asks_for_mail.then(Instant::now),
            php: Arc::clone(php),
        };
        let told = Arc::clone(&away);
        role::vital_thread("registry", move || follower.run(&told))?;
    }
    Ok(away)
}

struct Follower {
    settings: Arc<Settings>,
    registry: settings::Registry,
    /// None: it failed, and is opened anew.
    open: Option<Box<dyn Registry>>,
    /// What all processes know.
    passed_on: Option<Revision>,
    /// Which file was looked at last: inode, and when it was written.
    looked_at: Option<(u64, i64, i64)>,
    /// What was said already.
    told: HashSet<String>,
    /// Readable when somebody on this host has changed it; none: it cannot be watched.
    nudges: Option<Changes>,
    /// When it is next asked for mail settings; none: never.
    mail_at: Option<Instant>,
    php: SharedPhpMail,
}

/// Where others say that they have changed the registry.
fn nudges(settings: &Settings) -> Option<Changes> {
    let watch = || Changes::of(&registry::nudge_file(&settings.run_dir)?);
    watch().map_err(|e| log::warn!("cannot watch for nudges: {e}; the registry is asked each second")).ok()
}

impl Follower {
    fn run(&mut self, away: &Away) {
        let mut trouble = Trouble::default();
        loop {
            let begun = Instant::now();
            let next = begun + PERIOD;
            let next = match self.step() {
                Ok(()) => {
                    trouble.over();
                    *lock(away) = None;
                    next
                }
                Err(e) => {
                    self.open = None;
                    let problem = format!("{e:#}; going on with the topics that are known");
                    let again = trouble.again_at(&format_args!("the registry: {problem}"));
                    *lock(away) = Some(problem);
                    again.min(next)
                }
            };
            self.rest(next);
        }
    }

    /// Waits until then, or for a nudge.
    fn rest(&mut self, until: Instant) {
        let nudged = match &self.nudges {
            Some(nudges) => wait_readable(&[nudges.as_fd()], Some(until)).map(drop),
            None => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                Ok(())
            }
        };
        // What comes after this is told again.
        let taken = nudged.and_then(|()| self.nudges.as_mut().map_or(Ok(false), Changes::take));
        if let Err(e) = taken {
            log::warn!("cannot watch for nudges: {e}; the registry is asked each second");
            self.nudges = None;
        }
    }

    fn step(&mut self) -> Result<()> {
        if self.is_written_over() {
            self.passed_on = None;
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(registry::open_known(&self.registry, &self.settings.run_dir)?),
        };
        let revision = open.revision()?;
        if self.mail_at.is_some_and(|at| Instant::now() >= at) {
            *lock(&self.php) = PhpMail::of(open.php_alert()?);
            self.mail_at = Some(Instant::now() + MAIL_PERIOD);
        }
        if self.passed_on == Some(revision) {
            return Ok(());
        }
        let listing = open.list()?;
        self.tell(&listing);
        let snapshot = Snapshot {
            source: self.registry.to_string(),
            revision: listing.revision,
            topics: listing.topics.into_iter().map(|registered| registered.topic).collect(),
            tokens: Some(listing.tokens),
        };
        // After a start it may be there as it is: nobody needs to be woken.
        let known = Snapshot::read(&self.settings.run_dir).ok().flatten().map(|(known, _)| known);
        if known.as_ref() != Some(&snapshot) {
            snapshot.write(&self.settings.run_dir).context("cannot write the snapshot")?;
            let tokens = snapshot.tokens.as_ref().map_or(0, Vec::len);
            let topics = snapshot.topics.len();
            log::info!("{topics} topics and {tokens} tokens of the registry are passed on");
        }
        self.passed_on = Some(snapshot.revision);
        Ok(())
    }

    /// Whether somebody has written over the snapshot since it was looked at: during a restart the release before is there as well,
    /// which leaves out what it knows nothing of. Then it is looked whether it is as it should be.
    fn is_written_over(&mut self) -> bool {
        let Ok(file) = std::fs::metadata(Snapshot::file(&self.settings.run_dir)) else { return false };
        let file = Some((file.ino(), file.mtime(), file.mtime_nsec()));
        if std::mem::replace(&mut self.looked_at, file) == file {
            return false;
        }
        let known = Snapshot::read(&self.settings.run_dir).ok().flatten();
        known.is_some_and(|(known, _)| known.source == self.registry.to_string())
    }

    /// Says what is not done as somebody may expect, once.
    fn tell(&mut self, listing: &Listing) {
        let of_file: HashSet<&TopicName> = self.settings.topics.iter().map(|t| &t.name).collect();
        let mut says: Vec<String> = listing
            .unusable
            .iter()
            .map(|unusable| format!("left out of what the registry has: {unusable}"))
            .collect();
        for topic in listing.topics.iter().map(|r| &r.topic) {
            let name = &topic.name;
            if of_file.contains(name) {
                says.push(format!(
                    "topic {name} is as the configuration file has it, not as the registry does"
                ));
                continue;
            }
            says.extend(topic.problem().map(|problem| format!("topic {name}: {problem}")));
        }
        for line in says {
            if !self.told.contains(&line) {
                log::warn!("{line}");
                self.told.insert(line);
            }
        }
    }
}

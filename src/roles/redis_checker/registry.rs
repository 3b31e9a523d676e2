//! Publishes the contents of the registry. The thread checks each second, and after a nudge, whether the registry has
//! changed. If so, the thread writes the snapshot that all processes of the host follow. This work has a thread of its
//! own, because a database may delay it.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::routes::{PhpMail, SharedPhpMail};
use host::{FileVersion, FileWatcher, version_of, wait_readable};
use model::job::TopicName;
use model::settings::{self, Settings};
use registry::{self, Listing, Registry, Revision, Snapshot};
use role::{self, TroubleLog, lock};

/// How often the registry is asked.
const PERIOD: Duration = Duration::from_secs(1);

/// How often the snapshot is confirmed while the registry does not change.
const CONFIRM_PERIOD: Duration = Duration::from_secs(20);

/// How often mail settings are read. A change of mail settings gives the registry no new revision.
const MAIL_PERIOD: Duration = Duration::from_secs(30);

/// Why the registry cannot be read now. `None`: the registry can be read.
pub(super) type RegistryOutage = Arc<Mutex<Option<String>>>;

/// Starts the thread, if there is a registry. The mail settings that the thread finds go to `php`.
pub(super) fn follow(settings: &Arc<Settings>, php: &SharedPhpMail) -> Result<RegistryOutage> {
    let away = RegistryOutage::default();
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
            last: None,
            looked_at: None,
            confirmed: None,
            logged: HashSet::new(),
            nudges: nudges(settings),
            mail_at: asks_for_mail.then(Instant::now),
            php: Arc::clone(php),
        };
        let logged = Arc::clone(&away);
        role::vital_thread("registry", move || follower.run(&logged))?;
    }
    Ok(away)
}

struct Follower {
    settings: Arc<Settings>,
    registry: settings::RegistrySettings,
    /// The open registry. `None`: the registry failed, and is opened again.
    open: Option<Box<dyn Registry>>,
    /// The revision that all processes know.
    passed_on: Option<Revision>,
    /// What was read last.
    last: Option<Snapshot>,
    /// The snapshot file at the last check.
    looked_at: Option<FileVersion>,
    /// When the snapshot was confirmed last.
    confirmed: Option<Instant>,
    /// The log lines that were already written.
    logged: HashSet<String>,
    /// The watch on the nudge file. It is readable when somebody on this host has changed the registry. `None`: the
    /// file cannot be watched.
    nudges: Option<FileWatcher>,
    /// When mail settings are read next. `None`: never.
    mail_at: Option<Instant>,
    php: SharedPhpMail,
}

/// Opens a watch on the file by which other processes report that they have changed the registry.
fn nudges(settings: &Settings) -> Option<FileWatcher> {
    let watch = || FileWatcher::new(&registry::nudge_file(&settings.run_dir)?);
    watch().map_err(|e| log::warn!("cannot watch for nudges: {e}; the registry is asked each second")).ok()
}

impl Follower {
    fn run(&mut self, away: &RegistryOutage) {
        let mut trouble = TroubleLog::default();
        loop {
            let begun = Instant::now();
            let next = begun + PERIOD;
            let next = match self.step() {
                Ok(()) => {
                    trouble.end();
                    *lock(away) = None;
                    next
                }
                Err(e) => {
                    self.open = None;
                    let problem = format!("{e:#}; dq continues with the topics that it knows");
                    let again =
                        Instant::now() + trouble.pause_after(&format_args!("the registry: {problem}"));
                    *lock(away) = Some(problem);
                    again.min(next)
                }
            };
            self.rest(next);
        }
    }

    /// Waits until this moment, or until dq-http-server reports a change (a nudge).
    fn rest(&mut self, until: Instant) {
        let nudged = match &self.nudges {
            Some(nudges) => wait_readable(&[nudges.as_fd()], Some(until)).map(drop),
            None => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                Ok(())
            }
        };
        // A nudge that comes after this call makes the watch readable again.
        let taken = nudged.and_then(|()| self.nudges.as_mut().map_or(Ok(false), FileWatcher::take));
        if let Err(e) = taken {
            log::warn!("cannot watch for nudges: {e}; the registry is asked each second");
            self.nudges = None;
        }
    }

    fn step(&mut self) -> Result<()> {
        if self.has_changed_file() {
            self.passed_on = None;
            // If this fails, the next step tries it again.
            self.repair_snapshot().inspect_err(|_| self.looked_at = None)?;
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(registry::open_known(&self.registry, &self.settings.run_dir)?),
        };
        let revision = open.revision()?;
        if self.mail_at.is_some_and(|at| Instant::now() >= at) {
            self.mail_at = Some(Instant::now() + MAIL_PERIOD);
            match open.php_alert() {
                Ok(row) => *lock(&self.php) = PhpMail::from_row(row),
                // The table belongs to the PHP daemon, and may be missing. A database that does not answer fails below.
                Err(e) => {
                    let line = format!("cannot read the mail server in dq_alert: {e}; using the last one");
                    log_once(&mut self.logged, line);
                }
            }
        }
        if self.passed_on == Some(revision) {
            if self.confirmed.is_none_or(|at| at.elapsed() >= CONFIRM_PERIOD) {
                self.confirm()?;
            }
            return Ok(());
        }
        let listing = open.list()?;
        self.log_new_problems(&listing);
        let snapshot = Snapshot {
            source: self.registry.to_string(),
            revision: listing.revision,
            topics: listing.topics.into_iter().map(|registered| registered.topic).collect(),
            tokens: Some(listing.tokens),
        };
        // After a start the file may already have the right contents. Then no process needs to be woken.
        let known = Snapshot::read(&self.settings.run_dir).ok().flatten().map(|(known, _)| known);
        if known.as_ref() != Some(&snapshot) {
            snapshot.write(&self.settings.run_dir).context("cannot write the snapshot")?;
            let tokens = snapshot.tokens.as_deref().unwrap_or_default();
            let accounts = tokens.iter().filter(|token| token.is_account()).count();
            log::info!(
                "published {} topics, {} tokens and {accounts} accounts of the registry",
                snapshot.topics.len(),
                tokens.len() - accounts
            );
        }
        self.passed_on = Some(snapshot.revision);
        self.last = Some(snapshot);
        Ok(())
    }

    /// Writes what was read last, if the snapshot is gone or damaged, or belongs to another registry. So the topics are
    /// not lost, even if the registry does not answer now.
    fn repair_snapshot(&self) -> Result<()> {
        let Some(last) = &self.last else { return Ok(()) };
        let there = Snapshot::read(&self.settings.run_dir).ok().flatten();
        if there.is_none_or(|(there, _)| there.source != last.source) {
            last.write(&self.settings.run_dir).context("cannot write the snapshot")?;
        }
        Ok(())
    }

    /// Notes that the snapshot, as it was at the last check, has the contents of the registry. Call it only if the check
    /// before that saw the same version: the contents were compared after that check. Until this is done, and while the
    /// registry does not answer, no dead letters are removed because of their age: `keep_dead` may have changed.
    fn confirm(&mut self) -> Result<()> {
        let Some(version) = self.looked_at else { return Ok(()) };
        let confirmed = Snapshot::confirm(&self.settings.run_dir, version);
        if let Some(version) = confirmed.context("cannot confirm the snapshot")? {
            self.looked_at = Some(version);
            self.confirmed = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns whether the snapshot is another file than at the last check, or is gone. If so, its contents are checked
    /// again. During a rolling restart, the previous release also writes the snapshot, without the parts that it does
    /// not know. A generation with another registry writes its own contents. If that generation is given up, its
    /// contents must not stay.
    fn has_changed_file(&mut self) -> bool {
        let file = std::fs::metadata(Snapshot::file(&self.settings.run_dir)).ok();
        let file = file.as_ref().map(version_of);
        std::mem::replace(&mut self.looked_at, file) != file || file.is_none()
    }

    /// Logs entries of the registry that are not used or have a problem, each line once.
    fn log_new_problems(&mut self, listing: &Listing) {
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
                    "topic {name} is as the configuration file has it; its entry in the registry is not used"
                ));
                continue;
            }
            says.extend(topic.problem().map(|problem| format!("topic {name}: {problem}")));
        }
        says.into_iter().for_each(|line| log_once(&mut self.logged, line));
    }
}

fn log_once(logged: &mut HashSet<String>, line: String) {
    if logged.insert(line.clone()) {
        log::warn!("{line}");
    }
}

//! `dq move`: moves all jobs from one store to another, for example from the embedded store to Redis. A mark in each of
//! the two stores keeps daemons away until the move has ended. The module of `store::MovableStore` describes these
//! marks. It also has a table that shows what a new run does after an earlier run has died. The registry is copied
//! before the marks are set. If the run dies, the next run copies the contents of the registry again. The old registry
//! is not changed.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::backup::{check_unused, stopped_daemon};
use super::file_owner::refuse_root;
use super::move_registry;
use super::outbox::{check_outbox, warn_of_outbox};
use super::progress::Progress;
use super::show::{counted, json_line};
use model::job::{State, TopicName};
use model::settings::{RegistrySettings, Settings, StoreSettings};
use registry::CopySummary;
use store::{Counts, MovableStore, StoreMoveMark, open_to_move};

/// How many jobs are copied at a time.
const PAGE: usize = 500;

/// Move all jobs to another store, while dq is stopped
///
/// Moves the jobs (with their attempts, headers and tags), the dead letters, the records of ended jobs, and the pauses.
/// Copies topics, tokens and accounts, if the new configuration has another registry. Stop dq on all hosts that use one
/// of the two stores first. The new store must be empty.
///
/// Nothing is removed from the old store. If the command is interrupted, run it again, and it continues. Until the
/// command has ended, dq does not start with either store. Afterwards dq starts only with the new store.
#[derive(Debug, clap::Args)]
#[command(after_help = "Run it as the daemon's user, who owns the files. Examples:\n  \
                  dq move --from /etc/dq/dq.toml --to /etc/dq/redis.toml --dry-run\n  \
                  dq move --from /etc/dq/dq.toml --to /etc/dq/redis.toml")]
pub(crate) struct MoveStoreArguments {
    /// The configuration file that has been used up to now: its [store] has the jobs
    #[arg(long, value_name = "FILE")]
    from: PathBuf,

    /// The configuration file that will be used: its [store] gets the jobs
    #[arg(long, value_name = "FILE")]
    to: PathBuf,

    /// Change nothing, and print how many jobs would be moved
    #[arg(long)]
    dry_run: bool,

    /// Replace topics, tokens and accounts of the new registry that have other settings in the old one
    #[arg(long)]
    replace_registry: bool,

    /// Give up a move that was interrupted: dq starts with the old store again
    #[arg(long, conflicts_with = "dry_run")]
    give_up: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One of the two stores, and its name in messages.
struct NamedStore {
    store: Box<dyn MovableStore>,
    name: String,
}

/// How many jobs, dead letters and records a store or a topic has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct JobAndRecordCounts {
    pending: u64,
    dead: u64,
    /// How many ids have records.
    records: u64,
}

impl NamedStore {
    fn open(settings: &Settings) -> Result<NamedStore> {
        let name = settings.store.to_string();
        // Nobody runs in this folder. In the run_dir itself, this command holds the lock. So the first of two files would
        // be noted there as the file of the daemon, and the second one would be refused.
        let store = open_to_move(&settings.store, &settings.run_dir.join("move"))
            .with_context(|| format!("cannot open the store {name}"))?;
        Ok(NamedStore { store, name })
    }

    fn mark(&mut self) -> Result<Option<StoreMoveMark>> {
        self.store.move_mark().with_context(|| format!("the store {}", self.name))
    }

    fn set_mark(&mut self, mark: Option<&StoreMoveMark>) -> Result<()> {
        self.store.set_move_mark(mark).with_context(|| format!("cannot mark the store {}", self.name))
    }

    fn counts(&mut self) -> Result<Vec<Counts>> {
        self.store.counts().with_context(|| format!("cannot count the jobs of the store {}", self.name))
    }

    /// Returns the contents of each topic that is not empty.
    fn contents(&mut self) -> Result<Vec<(TopicName, JobAndRecordCounts)>> {
        let mut contents = Vec::new();
        for counts in self.counts()? {
            let mut records = 0;
            self.each_page_of_records(&counts.topic, |_, ids| {
                records += ids.len() as u64;
                Ok(())
            })?;
            let of_topic = JobAndRecordCounts { pending: counts.pending(), dead: counts.dead, records };
            if of_topic != JobAndRecordCounts::default() {
                contents.push((counts.topic, of_topic));
            }
        }
        Ok(contents)
    }

    /// Calls `work` with the keys of all jobs of a topic that have records, page by page.
    fn each_page_of_records(
        &mut self,
        topic: &TopicName,
        mut work: impl FnMut(&mut dyn MovableStore, &[model::job::JobKey]) -> Result<()>,
    ) -> Result<()> {
        let mut cursor: Option<String> = None;
        loop {
            let page = self.store.list_records(topic, cursor.as_deref(), PAGE)?;
            all_answer(&page.away)?;
            let mut keys: Vec<_> = page.records.into_iter().map(|record| record.key).collect();
            // The records of one id follow each other in the list.
            keys.dedup();
            work(self.store.as_mut(), &keys)?;
            cursor = page.next;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }
}

fn all_answer(away: &[String]) -> Result<()> {
    if !away.is_empty() {
        bail!("these nodes do not answer: {}", away.join(", "));
    }
    Ok(())
}

/// Runs `dq move`.
pub(crate) fn run(arguments: &MoveStoreArguments) -> Result<()> {
    host::keep_new_files_private();
    let (old, new) = (super::settings(&arguments.from)?, super::settings(&arguments.to)?);
    if old.store == new.store {
        bail!("both configurations name the same store, {}", old.store);
    }
    refuse_root(&old, "dq move")?;
    refuse_root(&new, "dq move")?;
    // While these locks are held, no daemon starts in these run_dirs.
    let _locks = match old.run_dir == new.run_dir {
        true => vec![stopped_daemon(&old)?],
        false => vec![stopped_daemon(&old)?, stopped_daemon(&new)?],
    };
    if let Some(file) = old.store.file().filter(|file| !file.exists()) {
        bail!("there is no store at {} (store.path of {})", file.display(), arguments.from.display());
    }
    check_spool(&old)?;
    if !arguments.dry_run {
        [old.store.file(), new.store.file()].into_iter().flatten().try_for_each(check_unused)?;
    }
    let mut from = NamedStore::open(&old)?;
    if arguments.dry_run {
        warn_of_outbox(from.store.as_mut(), &format!("the store {}", from.name));
        let contents = from.contents()?;
        return print_summary(arguments, &contents, None, &new.store.to_string());
    }
    if arguments.give_up {
        return give_up(&mut from, &new);
    }
    make_folder_of(new.store.file())?;
    make_folder_of(new.registry.as_ref().and_then(RegistrySettings::file))?;
    let mut to = NamedStore::open(&new)?;
    let copy_registry = || {
        let copied = move_registry::copy(&old, &new, arguments.replace_registry)?;
        if let (false, Some((copied, to))) = (arguments.json, &copied) {
            move_registry::print(copied, to);
        }
        Ok(copied.map(|(copied, _)| copied))
    };
    match move_jobs(&mut from, &mut to, copy_registry)? {
        Some((contents, copied)) => print_summary(arguments, &contents, copied.as_ref(), &to.name),
        None if arguments.json => json_line(&json!({"moved": false, "moved_before": true})),
        None => {
            println!("the jobs of the store {} were moved to {} before", from.name, to.name);
            Ok(())
        }
    }
}

fn make_folder_of(file: Option<&Path>) -> Result<()> {
    match file.and_then(Path::parent) {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
        }
        None => Ok(()),
    }
}

/// Fails if changes wait in the spool of this host.
fn check_spool(settings: &Settings) -> Result<()> {
    let StoreSettings::Redis(redis) = &settings.store else { return Ok(()) };
    if redis.spool.as_ref().is_some_and(|spool| spool.path.exists())
        && let Some(spool) = store::Spool::from_settings(redis)?
        && !spool.is_empty()?
    {
        bail!(
            "changes wait in the spool of this host: start dq, wait until dq nodes list shows none, and stop dq again"
        );
    }
    Ok(())
}

/// What was moved from each topic, and what was copied from the registry.
type MoveTotals = (Vec<(TopicName, JobAndRecordCounts)>, Option<CopySummary>);

/// Moves what is not moved yet. Returns what was moved, or `None` if an earlier run has moved everything.
fn move_jobs(
    from: &mut NamedStore,
    to: &mut NamedStore,
    copy_registry: impl Fn() -> Result<Option<CopySummary>>,
) -> Result<Option<MoveTotals>> {
    let (leaves, left) = (StoreMoveMark::Leaves(to.name.clone()), StoreMoveMark::Left(to.name.clone()));
    let takes = StoreMoveMark::Takes(from.name.clone());
    let marks = (from.mark()?, to.mark()?);
    match &marks {
        (Some(mark), None) if *mark == left => {
            return Ok(None);
        }
        (Some(mark), Some(other)) if *mark == left && *other == takes => {
            to.set_mark(None)?;
            return Ok(Some((from.contents()?, None)));
        }
        (Some(mark), _) if *mark != leaves => bail!("the store {}: {mark}", from.name),
        (Some(_), Some(other)) if *other == takes => eprintln!("an earlier move goes on"),
        (_, Some(other)) => bail!("the store {}: {other}", to.name),
        (_, None) => check_empty(to)?,
    }
    for end in [&mut *from, &mut *to] {
        check_outbox(end.store.as_mut(), &format!("the store {}", end.name))?;
    }
    let copied = copy_registry()?;
    from.set_mark(Some(&leaves))?;
    to.set_mark(Some(&takes))?;
    eprintln!(
        "if this command is interrupted, run it again: until it has ended, dq starts with neither store"
    );
    copy(from, to)?;
    let contents = from.contents()?;
    compare(&contents, &to.contents()?)?;
    from.set_mark(Some(&left))?;
    to.set_mark(None)?;
    Ok(Some((contents, copied)))
}

fn check_empty(to: &mut NamedStore) -> Result<()> {
    let contents = to.contents()?;
    if let Some((topic, some)) = contents.first() {
        let JobAndRecordCounts { pending, dead, records } = some;
        bail!(
            "the store {} is not empty: topic {topic} has {pending} jobs, {dead} dead letters and records of {records} jobs. A store \
             that gets jobs must be empty (docs/MOVE.md)",
            to.name
        );
    }
    Ok(())
}

fn copy(from: &mut NamedStore, to: &mut NamedStore) -> Result<()> {
    let counts = from.counts()?;
    let total = counts.iter().map(|counts| counts.pending() + counts.dead).sum();
    let mut progress = Progress::begin(total, "jobs");
    for Counts { topic, .. } in &counts {
        for state in [State::Delayed, State::Ready, State::Leased, State::Dead] {
            let mut cursor: Option<String> = None;
            loop {
                let page = from.store.list(topic, state, cursor.as_deref(), PAGE)?;
                all_answer(&page.away)?;
                to.store.take_over(&page.jobs)?;
                progress.step(page.jobs.len() as u64);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
    }
    progress.end();
    for Counts { topic, .. } in &counts {
        from.each_page_of_records(topic, |store, keys| {
            let mut records = Vec::new();
            for key in keys {
                records.extend(store.records(key)?);
            }
            Ok(to.store.take_over_records(&records)?)
        })?;
    }
    for topic in from.store.paused()? {
        to.store.pause(&topic, true)?;
    }
    Ok(to.store.end_take_over()?)
}

/// Fails if something of the old store is missing in the new store.
fn compare(old: &[(TopicName, JobAndRecordCounts)], new: &[(TopicName, JobAndRecordCounts)]) -> Result<()> {
    let lacks =
        old.iter().find(|one| !new.contains(one)).or_else(|| new.iter().find(|one| !old.contains(one)));
    let Some((topic, _)) = lacks else { return Ok(()) };
    let of = |all: &[(TopicName, JobAndRecordCounts)]| {
        let found = all.iter().find(|(name, _)| name == topic).map(|(_, contents)| *contents);
        let JobAndRecordCounts { pending, dead, records } = found.unwrap_or_default();
        format!("{pending} jobs, {dead} dead letters and records of {records} jobs")
    };
    bail!(
        "topic {topic} has {} in the old store, and {} in the new one: does a daemon still use one of them? Stop it, and run the \
         command again",
        of(old),
        of(new)
    );
}

fn give_up(from: &mut NamedStore, new: &Settings) -> Result<()> {
    let to = new.store.to_string();
    match from.mark()? {
        Some(mark) if mark == StoreMoveMark::Leaves(to.clone()) => {}
        Some(mark) => bail!("the store {}: {mark}", from.name),
        None => bail!("no move of the store {} to {to} was begun", from.name),
    }
    // The move has not ended, so the old store has all jobs. If the new store cannot be marked now, it still has the
    // mark that it does not have all jobs. So no daemon starts with it.
    let marked = mark_given_up(&from.name, new);
    from.set_mark(None)?;
    println!("the move is given up: dq starts with the store {} again", from.name);
    match marked {
        Ok(false) => {}
        Ok(true) => {
            println!("the store {to} has some of the jobs: empty it before it is used (docs/MOVE.md)")
        }
        Err(e) => println!("the store {to} may have some of the jobs: empty it before it is used ({e:#})"),
    }
    Ok(())
}

/// Marks the new store of a move that is given up. Returns whether it has some of the jobs.
fn mark_given_up(from: &str, new: &Settings) -> Result<bool> {
    if new.store.file().is_some_and(|file| !file.exists()) {
        return Ok(false);
    }
    let mut to = NamedStore::open(new)?;
    let has_some = to.mark()?.is_some();
    if has_some {
        to.set_mark(Some(&StoreMoveMark::GivenUp(from.to_owned())))?;
    }
    Ok(has_some)
}

fn print_summary(
    arguments: &MoveStoreArguments,
    contents: &[(TopicName, JobAndRecordCounts)],
    copied: Option<&CopySummary>,
    to: &str,
) -> Result<()> {
    let sum = |of: fn(&JobAndRecordCounts) -> u64| contents.iter().map(|(_, one)| of(one)).sum::<u64>();
    let (jobs, dead, records) = (sum(|c| c.pending), sum(|c| c.dead), sum(|c| c.records));
    let topics = contents.len();
    if arguments.json {
        return json_line(&json!({"moved": !arguments.dry_run, "topics": topics, "jobs": jobs,
            "dead": dead, "records": records, "registry": move_registry::value(copied)}));
    }
    let what = format!(
        "{}, {} and the records of {}, of {}",
        counted(jobs, "job"),
        counted(dead, "dead letter"),
        counted(records, "job"),
        counted(topics, "topic")
    );
    match arguments.dry_run {
        true => println!("would be moved to {to}: {what}"),
        false => {
            println!("moved to {to}: {what}");
            println!(
                "start dq with {}. The old store still has its copies (docs/MOVE.md)",
                arguments.to.display()
            );
        }
    }
    Ok(())
}

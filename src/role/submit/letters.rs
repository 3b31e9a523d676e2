//! Requests about dead letters. Finds the letters that a filter picks, in steps of limited time. Also counts, redrives
//! and removes dead letters.

use std::time::{Duration, Instant};

use model::job::{JobKey, State, TopicName};
use model::letters::{DeadLetterFilter, RedrivePace};
use store::{DeadLetterKey, DeadLetterOperation, DeadLetterSelection, JobsPage, Result, Store, StoredJob};

/// The number of letters that are read first, and its maximum. The number doubles as long as the letters are small.
const READ: [usize; 2] = [25, 400];
const SMALL: usize = 256 << 10;

/// How long one step may search.
const STEP: Duration = Duration::from_millis(300);

/// What is done with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetterTask {
    /// Count how many letters a redrive would find. A redrive finds one letter for each id, and no letter for an id
    /// with a live job. If all letters are selected, the result is the number of letters.
    CountForRedrive,
    /// Count how many letters a purge would find.
    CountForPurge,
    /// Make the letters ready, or delayed if a rate is set.
    Redrive(RedrivePace),
    /// Remove the letters.
    Purge,
}

/// Dead letters that a filter picked.
#[derive(Debug, Default)]
pub struct FoundDeadLetters {
    /// The letters.
    pub letters: Vec<DeadLetterKey>,
    /// Where to continue. None: all letters were checked.
    pub next: Option<String>,
    /// The nodes that could not be asked.
    pub away: Vec<String>,
}

pub(super) fn size(view: &StoredJob) -> usize {
    let log = view.attempts_log.iter().map(|a| a.answer.len() + a.error.len());
    view.body.as_str().len() + log.sum::<usize>()
}

/// A search through the dead letters of a topic.
pub(super) struct DeadLetterSearch<'a> {
    store: &'a mut dyn Store,
    topic: &'a TopicName,
    filter: &'a DeadLetterFilter,
    read: usize,
    until: Instant,
}

impl<'a> DeadLetterSearch<'a> {
    pub(super) fn new(
        store: &'a mut dyn Store,
        topic: &'a TopicName,
        filter: &'a DeadLetterFilter,
    ) -> DeadLetterSearch<'a> {
        DeadLetterSearch { store, topic, filter, read: READ[0], until: Instant::now() + STEP }
    }

    /// Returns whether the search has taken as long as a step may take.
    pub(super) fn is_long(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Reads the next letters after `cursor`. Returns up to `most` letters that the filter picks. The page may have
    /// none.
    pub(super) fn next(&mut self, cursor: Option<&str>, most: usize) -> Result<JobsPage> {
        let mut read = self.read;
        loop {
            let mut page = self.store.list(self.topic, State::Dead, cursor, read)?;
            let is_small = page.jobs.iter().map(size).sum::<usize>() < SMALL;
            let picks = |view: &StoredJob| {
                let died_ms = view.until_ms.unwrap_or(0);
                let (id, tags) = (view.key.id.as_str(), view.headers.tags());
                self.filter.picks(id, tags, died_ms, view.attempts_log.last())
            };
            let picked: Vec<usize> = (0..page.jobs.len()).filter(|i| picks(&page.jobs[*i])).collect();
            if let Some(last) = picked.get(most.saturating_sub(1)).filter(|_| picked.len() > most) {
                // The page must end at this letter. The store gives a cursor only for the end of what it reads, so the
                // list is read again, up to this letter.
                read = last + 1;
                continue;
            }
            page.jobs.retain(picks);
            self.read = if is_small { (self.read * 2).min(READ[1]) } else { READ[0] };
            return Ok(page);
        }
    }
}

/// Finds up to `limit` letters that a filter picks. Finds fewer if the time of a step is over.
pub(super) fn find(
    store: &mut dyn Store,
    topic: &TopicName,
    filter: &DeadLetterFilter,
    cursor: Option<String>,
    limit: usize,
) -> Result<FoundDeadLetters> {
    let mut found = FoundDeadLetters { next: cursor, ..FoundDeadLetters::default() };
    let mut look = DeadLetterSearch::new(store, topic, filter);
    loop {
        let page = look.next(found.next.as_deref(), limit - found.letters.len())?;
        let letter = |view: StoredJob| DeadLetterKey { id: view.key.id, died_ms: view.until_ms.unwrap_or(0) };
        found.letters.extend(page.jobs.into_iter().map(letter));
        (found.next, found.away) = (page.next, page.away);
        if found.next.is_none() || found.letters.len() >= limit || look.is_long() {
            return Ok(found);
        }
    }
}

/// Counts, redrives or removes dead letters.
pub(super) fn run_task(
    store: &mut dyn Store,
    topic: TopicName,
    which: &DeadLetterSelection,
    limit: usize,
    what: DeadLetterTask,
) -> Result<usize> {
    match (what, which) {
        (DeadLetterTask::CountForRedrive | DeadLetterTask::CountForPurge, DeadLetterSelection::All) => {
            let counts = store.counts()?;
            Ok(counts.iter().find(|c| c.topic == topic).map_or(0, |c| c.dead as usize))
        }
        (
            DeadLetterTask::CountForRedrive | DeadLetterTask::CountForPurge,
            DeadLetterSelection::Letters(letters),
        ) => Ok(letters.len()),
        (DeadLetterTask::CountForRedrive, DeadLetterSelection::Ids(ids)) => {
            let mut sum = 0;
            for id in ids {
                let found = store.get(&JobKey { topic: topic.clone(), id: id.clone() })?;
                sum += usize::from(found.is_some_and(|view| view.state == State::Dead));
            }
            Ok(sum)
        }
        (DeadLetterTask::CountForPurge, DeadLetterSelection::Ids(ids)) => {
            store.letters(&topic, ids, DeadLetterOperation::Count)
        }
        (DeadLetterTask::Redrive(pace), which) => store.redrive(&topic, which, limit, pace),
        (DeadLetterTask::Purge, DeadLetterSelection::All) => store.purge(&topic, State::Dead, limit),
        (DeadLetterTask::Purge, DeadLetterSelection::Ids(ids)) => {
            store.letters(&topic, ids, DeadLetterOperation::Remove)
        }
        (DeadLetterTask::Purge, DeadLetterSelection::Letters(letters)) => {
            store.purge_letters(&topic, letters)
        }
    }
}

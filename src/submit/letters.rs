//! What is asked about dead letters: those that a filter picks, in steps that end; and what is done with them.

use std::time::{Duration, Instant};

use super::Undertake;
use crate::job::{JobKey, State, TopicName};
use crate::letters::Filter;
use crate::store::{Letter, Letters, Page, Result, Store, View, Which};

/// So many letters are read first; twice as many next time, as long as they are small.
const READ: [usize; 2] = [25, 400];
const SMALL: usize = 256 << 10;

/// How long one step looks for what a filter picks.
const STEP: Duration = Duration::from_millis(300);

/// Dead letters that a filter picked.
#[derive(Debug, Default)]
pub struct Found {
    /// They.
    pub letters: Vec<Letter>,
    /// Where to go on; none: all were looked at.
    pub next: Option<String>,
    /// The nodes that could not be asked.
    pub away: Vec<String>,
}

pub(super) fn size(view: &View) -> usize {
    let log = view.attempts_log.iter().map(|a| a.answer.len() + a.error.len());
    view.body.as_str().len() + log.sum::<usize>()
}

/// A look through a topic's dead letters.
pub(super) struct Look<'a> {
    store: &'a mut dyn Store,
    topic: &'a TopicName,
    filter: &'a Filter,
    read: usize,
    until: Instant,
}

impl<'a> Look<'a> {
    pub(super) fn new(store: &'a mut dyn Store, topic: &'a TopicName, filter: &'a Filter) -> Look<'a> {
        Look { store, topic, filter, read: READ[0], until: Instant::now() + STEP }
    }

    /// Whether it has taken as long as a step may.
    pub(super) fn is_long(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Those of the next letters behind that place which the filter picks, up to `most`; there may be none among them.
    pub(super) fn next(&mut self, cursor: Option<&str>, most: usize) -> Result<Page> {
        let mut read = self.read;
        loop {
            let mut page = self.store.list(self.topic, State::Dead, cursor, read)?;
            let is_small = page.jobs.iter().map(size).sum::<usize>() < SMALL;
            let picks = |view: &View| {
                let died_ms = view.until_ms.unwrap_or(0);
                self.filter.picks(view.key.id.as_str(), died_ms, view.attempts_log.last())
            };
            let picked: Vec<usize> = (0..page.jobs.len()).filter(|i| picks(&page.jobs[*i])).collect();
            if let Some(last) = picked.get(most.saturating_sub(1)).filter(|_| picked.len() > most) {
                // A place in the midst of a page has no name: the page is made to end there.
                read = last + 1;
                continue;
            }
            page.jobs.retain(picks);
            self.read = if is_small { (self.read * 2).min(READ[1]) } else { READ[0] };
            return Ok(page);
        }
    }
}

/// Finds up to `limit` letters that a filter picks, or those that are found within a step.
pub(super) fn find(
    store: &mut dyn Store,
    topic: &TopicName,
    filter: &Filter,
    cursor: Option<String>,
    limit: usize,
) -> Result<Found> {
    let mut found = Found { next: cursor, ..Found::default() };
    let mut look = Look::new(store, topic, filter);
    loop {
        let page = look.next(found.next.as_deref(), limit - found.letters.len())?;
        let letter = |view: View| Letter { id: view.key.id, died_ms: view.until_ms.unwrap_or(0) };
        found.letters.extend(page.jobs.into_iter().map(letter));
        (found.next, found.away) = (page.next, page.away);
        if found.next.is_none() || found.letters.len() >= limit || look.is_long() {
            return Ok(found);
        }
    }
}

/// Does something with dead letters.
pub(super) fn undertake(
    store: &mut dyn Store,
    topic: TopicName,
    which: &Which,
    limit: usize,
    what: Undertake,
) -> Result<usize> {
    match (what, which) {
        (Undertake::CountForRedrive | Undertake::CountForPurge, Which::All) => {
            let counts = store.counts()?;
            Ok(counts.iter().find(|c| c.topic == topic).map_or(0, |c| c.dead as usize))
        }
        (Undertake::CountForRedrive | Undertake::CountForPurge, Which::Letters(letters)) => Ok(letters.len()),
        (Undertake::CountForRedrive, Which::Ids(ids)) => {
            let mut sum = 0;
            for id in ids {
                let found = store.get(&JobKey { topic: topic.clone(), id: id.clone() })?;
                sum += usize::from(found.is_some_and(|view| view.state == State::Dead));
            }
            Ok(sum)
        }
        (Undertake::CountForPurge, Which::Ids(ids)) => store.letters(&topic, ids, Letters::Count),
        (Undertake::Redrive(pace), which) => store.redrive(&topic, which, limit, pace),
        (Undertake::Purge, Which::All) => store.purge(&topic, State::Dead, limit),
        (Undertake::Purge, Which::Ids(ids)) => store.letters(&topic, ids, Letters::Remove),
        (Undertake::Purge, Which::Letters(letters)) => store.purge_letters(&topic, letters),
    }
}

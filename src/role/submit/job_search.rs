//! A search through the jobs of several topics, in steps of limited work. It reads the lists of the store one after the
//! other: for each topic its delayed jobs, its ready jobs, its leased jobs, and its dead letters.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::letters::size;
use super::list::PAGE_BYTES;
use super::records::SearchedTopic;
use model::job::{State, TopicName};
use model::job_filter::JobFilter;
use store::{JobsPage, Result, Store, StoreError, StoredJob};

/// How many jobs one request may look at, and for how long.
const LOOKS: usize = 5_000;
const STEP: Duration = Duration::from_millis(100);

/// The number of jobs that are read first, and its maximum. The number doubles as long as the jobs are small.
const READ: [usize; 2] = [25, 400];
const SMALL: usize = 256 << 10;

/// A topic has one list for each state. If a search has more lists than this number of topics has, dq first counts the
/// jobs of all topics, and then reads no list that is empty.
const COUNTED: usize = 4;

/// Which jobs a request shows.
#[derive(Debug)]
pub struct JobQuery {
    /// The topics, in the order of their names.
    pub topics: Vec<SearchedTopic>,
    /// The filter that selects jobs of these topics.
    pub filter: JobFilter,
    /// Where the previous page ended.
    pub cursor: Option<JobCursor>,
    /// The maximum number of jobs.
    pub limit: usize,
}

/// Where a page of jobs ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobCursor {
    /// The topic that was searched.
    pub topic: TopicName,
    /// The list of this topic that was read.
    pub state: State,
    /// The store's cursor in this list. None: the list was not read yet.
    pub place: Option<String>,
}

/// A page of jobs.
#[derive(Debug, Default)]
pub struct FoundJobs {
    /// The jobs, grouped by topic and state. Each group is in the order of the store's list.
    pub jobs: Vec<StoredJob>,
    /// Where to continue. None: all jobs were looked at.
    pub next: Option<JobCursor>,
    /// How many jobs were looked at for this page.
    pub looked_at: usize,
    /// The nodes that could not be asked.
    pub away: Vec<String>,
}

/// Finds a page of jobs. The page has fewer jobs than the limit if the jobs are large, or if the search takes long.
pub(super) fn find(store: &mut dyn Store, query: &JobQuery) -> Result<FoundJobs> {
    let lists = lists_of(store, query)?;
    let mut search =
        JobSearchStep { store, query, found: FoundJobs::default(), bytes: 0, until: Instant::now() + STEP };
    let mut place = query.cursor.as_ref().and_then(|at| at.place.clone());
    for (n, (topic, state)) in lists.iter().enumerate() {
        let is_continued =
            query.cursor.as_ref().is_some_and(|at| at.topic == topic.name && at.state == *state);
        let place = place.take().filter(|_| is_continued);
        search.found.next = match search.list(topic, *state, place)? {
            Some(place) => Some(JobCursor { topic: topic.name.clone(), state: *state, place: Some(place) }),
            None => lists.get(n + 1).map(|(topic, state)| JobCursor {
                topic: topic.name.clone(),
                state: *state,
                place: None,
            }),
        };
        if search.is_over() {
            break;
        }
    }
    let mut found = search.found;
    found.away.sort();
    found.away.dedup();
    Ok(found)
}

/// Returns the lists that must still be read, beginning with the list of the cursor. Lists that are known to be empty
/// are left out, except the list of the cursor.
fn lists_of<'a>(store: &mut dyn Store, query: &'a JobQuery) -> Result<Vec<(&'a SearchedTopic, State)>> {
    let JobQuery { topics, filter, cursor, .. } = query;
    let first = cursor.as_ref().map(|at| (&at.topic, at.state as u8));
    let is_left =
        |topic: &SearchedTopic, state: State| first.is_none_or(|at| (&topic.name, state as u8) >= at);
    let is_wanted = |state: &State| filter.states.is_empty() || filter.states.contains(state);
    let lists: Vec<(&SearchedTopic, State)> = topics
        .iter()
        .flat_map(|topic| State::ALL.into_iter().filter(is_wanted).map(move |state| (topic, state)))
        .filter(|(topic, state)| is_left(topic, *state))
        .collect();
    if lists.len() <= COUNTED * State::ALL.len() {
        return Ok(lists);
    }
    let counts = match store.counts() {
        Ok(counts) => counts,
        // Without the counts of a node that is down, no list is known to be empty.
        Err(StoreError::NodeDown(_) | StoreError::Unknown(_)) => return Ok(lists),
        Err(e) => return Err(e),
    };
    let counts: HashMap<&str, [u64; 4]> =
        counts.iter().map(|c| (c.topic.as_str(), [c.delayed, c.ready, c.leased, c.dead])).collect();
    let of = |topic: &TopicName, state: State| {
        let place = State::ALL.iter().position(|one| *one == state);
        counts.get(topic.as_str()).zip(place).map_or(0, |(counts, place)| counts[place])
    };
    let is_first = |topic: &SearchedTopic, state: State| first == Some((&topic.name, state as u8));
    Ok(lists
        .into_iter()
        .filter(|(topic, state)| of(&topic.name, *state) > 0 || is_first(topic, *state))
        .collect())
}

/// One step of a search.
struct JobSearchStep<'a> {
    store: &'a mut dyn Store,
    query: &'a JobQuery,
    found: FoundJobs,
    bytes: usize,
    until: Instant,
}

impl JobSearchStep<'_> {
    /// Returns whether the page is full, or the search has reached one of its limits: `LOOKS` or `STEP`.
    fn is_over(&self) -> bool {
        let is_full = self.found.jobs.len() >= self.query.limit || self.bytes >= PAGE_BYTES;
        is_full || self.found.looked_at >= LOOKS || Instant::now() >= self.until
    }

    /// Searches a list of the store. Returns where to continue in the list. None: the list was searched to its end.
    fn list(&mut self, topic: &SearchedTopic, state: State, place: Option<String>) -> Result<Option<String>> {
        let mut place = match (place, state, self.query.filter.due_since_ms) {
            (None, State::Delayed, Some(since_ms)) => Some(self.store.delayed_from(&topic.name, since_ms)?),
            (place, ..) => place,
        };
        let mut read = READ[0];
        loop {
            let page = self.read(&topic.name, state, place.as_deref(), read)?;
            let page_bytes = page.jobs.iter().map(size).sum::<usize>();
            // Delayed jobs are in the order of their due times.
            let is_behind =
                |view: &StoredJob| self.query.filter.due_until_ms.is_some_and(|until| view.due_ms >= until);
            let is_last = state == State::Delayed && page.jobs.last().is_some_and(is_behind);
            self.found.looked_at += page.jobs.len();
            self.found.away.extend(page.away);
            for mut view in page.jobs.into_iter().filter(|view| selects(&self.query.filter, view)) {
                if !topic.sees_answers {
                    view.attempts_log.iter_mut().for_each(|attempt| attempt.answer.clear());
                }
                self.bytes += size(&view);
                self.found.jobs.push(view);
            }
            place = page.next;
            if place.is_none() || is_last {
                return Ok(None);
            }
            if self.is_over() {
                return Ok(place);
            }
            read = if page_bytes < SMALL { (read * 2).min(READ[1]) } else { READ[0] };
        }
    }

    /// Reads the next jobs of a list. If the filter selects more of them than the page has room for, reads fewer jobs.
    fn read(
        &mut self,
        topic: &TopicName,
        state: State,
        place: Option<&str>,
        most: usize,
    ) -> Result<JobsPage> {
        let (mut read, room) = (most, self.query.limit - self.found.jobs.len());
        loop {
            let page = self.store.list(topic, state, place, read)?;
            let mut selected = page
                .jobs
                .iter()
                .enumerate()
                .filter(|(_, view)| selects(&self.query.filter, view))
                .map(|(n, _)| n);
            // If the page becomes full within the jobs that were read, it ends at the last job that fits. The store
            // gives a cursor only for the end of what it reads, so the list is read again, up to this job.
            match (selected.nth(room.saturating_sub(1)), selected.next()) {
                (Some(last), Some(_)) => read = last + 1,
                _ => return Ok(page),
            }
        }
    }
}

fn selects(filter: &JobFilter, view: &StoredJob) -> bool {
    filter.selects(view.state, view.key.id.as_str(), view.due_ms, &view.headers)
}

//! A page of jobs for a person who reads it. The page is short if the jobs are large.

use super::letters::{DeadLetterSearch, size};
use model::job::{State, TopicName};
use model::letters::DeadLetterFilter;
use store::{JobsPage, Result, Store};

/// How many jobs a listing asks the store for at a time.
const PAGE: usize = 50;

/// A page is full when its jobs have this number of bytes.
pub(super) const PAGE_BYTES: usize = 2 << 20;

/// A part of a topic's jobs in one state.
#[derive(Debug)]
pub struct ListRequest {
    /// The topic.
    pub topic: TopicName,
    /// The state.
    pub state: State,
    /// For dead letters: only the letters that this filter picks. A page may be empty, although more pages follow.
    pub filter: Option<DeadLetterFilter>,
    /// The cursor that the previous page gave.
    pub cursor: Option<String>,
    /// The maximum number of jobs. If the jobs are large, a page has fewer.
    pub limit: usize,
}

/// Returns a page of jobs. The page is read in pieces, so that large bodies do not fill the memory. With a filter, the
/// page has the dead letters that one step finds.
pub(super) fn list(
    store: &mut dyn Store,
    ListRequest { topic, state, filter, cursor, limit }: ListRequest,
) -> Result<JobsPage> {
    let mut page = JobsPage { next: cursor, ..JobsPage::default() };
    let mut bytes = 0;
    if let Some(filter) = filter {
        let mut look = DeadLetterSearch::new(store, &topic, &filter);
        loop {
            let piece = look.next(page.next.as_deref(), limit - page.jobs.len())?;
            bytes += piece.jobs.iter().map(size).sum::<usize>();
            page.jobs.extend(piece.jobs);
            (page.next, page.away) = (piece.next, piece.away);
            let is_full = page.jobs.len() >= limit || bytes >= PAGE_BYTES;
            if page.next.is_none() || is_full || look.is_long() {
                return Ok(page);
            }
        }
    }
    let mut next = 1;
    loop {
        // The first piece is small, because the size of the jobs is not known yet.
        let most = next.min(PAGE).min(limit - page.jobs.len());
        next *= 4;
        let piece = store.list(&topic, state, page.next.as_deref(), most)?;
        bytes += piece.jobs.iter().map(size).sum::<usize>();
        page.jobs.extend(piece.jobs);
        (page.next, page.away) = (piece.next, piece.away);
        if page.next.is_none() || page.jobs.len() >= limit || bytes >= PAGE_BYTES {
            return Ok(page);
        }
    }
}

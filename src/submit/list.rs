//! A page of jobs for somebody who reads it: of large jobs it is a short one.

use super::letters::{Look, size};
use crate::job::{State, TopicName};
use crate::letters::Filter;
use crate::store::{Page, Result, Store};

/// A listing asks the store for so many jobs at a time.
const PAGE: usize = 50;

/// A listing that has so many bytes of jobs is a full page.
const PAGE_BYTES: usize = 2 << 20;

/// A page of jobs, taken in pieces, so that large bodies do not fill the memory. Where dead letters are looked for that a filter picks,
/// it holds those that are found within a step.
pub(super) fn list(
    store: &mut dyn Store,
    topic: &TopicName,
    (state, filter): (State, Option<Filter>),
    cursor: Option<String>,
    limit: usize,
) -> Result<Page> {
    let mut page = Page { next: cursor, ..Page::default() };
    let mut bytes = 0;
    if let Some(filter) = filter {
        let mut look = Look::new(store, topic, &filter);
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
        // Nobody knows how large they are before the first is seen.
        let most = next.min(PAGE).min(limit - page.jobs.len());
        next *= 4;
        let piece = store.list(topic, state, page.next.as_deref(), most)?;
        bytes += piece.jobs.iter().map(size).sum::<usize>();
        page.jobs.extend(piece.jobs);
        (page.next, page.away) = (piece.next, piece.away);
        if page.next.is_none() || page.jobs.len() >= limit || bytes >= PAGE_BYTES {
            return Ok(page);
        }
    }
}

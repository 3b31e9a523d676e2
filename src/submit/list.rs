//! A page of jobs for somebody who reads it: of large jobs it is a short one.

use crate::job::{State, TopicName};
use crate::store::{Page, Result, Store, View};

/// A listing asks the store for so many jobs at a time.
const PAGE: usize = 50;

/// A listing that has so many bytes of jobs is a full page.
const PAGE_BYTES: usize = 2 << 20;

/// A page of jobs, taken in pieces, so that large bodies do not fill the memory.
pub(super) fn list(
    store: &mut dyn Store,
    topic: &TopicName,
    state: State,
    cursor: Option<String>,
    limit: usize,
) -> Result<Page> {
    let size = |view: &View| {
        let log = view.attempts_log.iter().map(|a| a.answer.len() + a.error.len());
        view.body.as_str().len() + log.sum::<usize>()
    };
    let mut page = Page { jobs: Vec::new(), next: cursor };
    let (mut bytes, mut next) = (0, 1);
    loop {
        // Nobody knows how large they are before the first is seen.
        let most = next.min(PAGE).min(limit - page.jobs.len());
        next *= 4;
        let piece = store.list(topic, state, page.next.as_deref(), most)?;
        bytes += piece.jobs.iter().map(size).sum::<usize>();
        page.jobs.extend(piece.jobs);
        page.next = piece.next;
        if page.next.is_none() || page.jobs.len() >= limit || bytes >= PAGE_BYTES {
            return Ok(page);
        }
    }
}

//! The submit threads: one for each lane of the store, so that a node that hangs holds up its own jobs alone.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use jiff::tz::TimeZone;
use mio::Waker;

use super::request::Json;
use super::submit::{Ask, Submit, Ticket};
use crate::store::{Lanes, Store};

/// The event loop's side of all of them.
pub(super) struct Submits {
    lanes: Lanes,
    submits: Vec<Submit>,
}

impl Submits {
    /// One for each of these handles; a handle serves any job, and is asked for those of its lane.
    pub(super) fn start(
        lanes: Lanes,
        stores: Vec<Box<dyn Store>>,
        zone: &TimeZone,
        waker: Waker,
    ) -> io::Result<Submits> {
        let waker = Arc::new(waker);
        let start = |store| Submit::start(store, zone.clone(), Arc::clone(&waker));
        Ok(Submits { lanes, submits: stores.into_iter().map(start).collect::<io::Result<_>>()? })
    }

    fn lane_of(&self, ask: &Ask) -> usize {
        let key = match ask {
            Ask::Add(job) => Some(&job.key),
            Ask::Madd { items, .. } => items.iter().flatten().map(|job| &job.key).next(),
            Ask::Get { key, .. } | Ask::Del(key) | Ask::Run(key) => Some(key),
            Ask::Stats(_) => None,
        };
        key.map_or(0, |key| self.lanes.of(key))
    }

    /// Takes a request; it goes to the store at the next flush. Gives it back when its lane hangs.
    pub(super) fn hand_in(&mut self, ticket: Ticket, ask: Ask, bytes: usize) -> Result<(), Ask> {
        let lane = self.lane_of(&ask);
        if self.submits[lane].is_hung() {
            return Err(ask);
        }
        self.submits[lane].hand_in(ticket, ask, bytes);
        Ok(())
    }

    /// Hands over what has come together.
    pub(super) fn flush(&mut self) {
        self.submits.iter_mut().for_each(Submit::flush);
    }

    /// Whether this process must be started anew to find the store.
    pub(super) fn is_gone(&self) -> bool {
        self.submits.iter().any(Submit::is_gone)
    }

    /// Whether the store has enough to do, so that what comes is better left with the clients.
    pub(super) fn is_full(&self) -> bool {
        self.submits.iter().any(Submit::is_full)
    }

    /// By when the store should have answered; none: it has nothing to answer.
    pub(super) fn due_by(&self) -> Option<Instant> {
        self.submits.iter().filter_map(Submit::due_by).min()
    }

    /// The store's answers since the last call.
    pub(super) fn completions(&mut self) -> Vec<(Ticket, Json)> {
        self.submits.iter_mut().flat_map(Submit::completions).collect()
    }
}

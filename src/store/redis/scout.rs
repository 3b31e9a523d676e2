//! What nodes say of each other's jobs: which jobs they hold whose home is another. Each is asked by a thread of its own, when
//! somebody wants to know, so that a node that hangs holds up nobody for longer than one timeout.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::flags::Flags;

/// How old a report may be that is relied on.
pub(super) const FRESH: Duration = Duration::from_secs(1);

/// For how long a node that did not answer is not waited for.
const MEMORY: Duration = Duration::from_secs(4);

/// What a node said when it was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Holdings {
    /// Of each node, how many jobs were added here in its place, of which it has not been told.
    pub away: Vec<u64>,
    /// Of each node, how many other jobs are to be moved there.
    pub stray: Vec<u64>,
    /// For which set of nodes all of its jobs have been looked at.
    pub mark: String,
    /// Which topics it knows to be paused, or to be so no longer.
    pub pauses: Flags,
}

/// The last that is known of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Report {
    /// When it was asked; none: never.
    pub asked_at: Option<Instant>,
    /// What it said; none: it did not answer.
    pub holdings: Option<Arc<Holdings>>,
    /// When this process last added a job there in the place of each other node.
    added_at: Vec<Option<Instant>>,
}

impl Report {
    /// Whether the node was asked and did not answer.
    pub(super) fn is_silent(&self) -> bool {
        self.asked_at.is_some() && self.holdings.is_none()
    }

    /// Whether the node holds jobs that were added there in the place of another, which has not been told.
    pub(super) fn has_away(&self, home: usize) -> bool {
        let since_then = self.added_at.get(home).copied().flatten();
        let told = self.holdings.as_ref().is_some_and(|h| h.away[home] > 0);
        told || since_then.is_some_and(|at| self.asked_at.is_none_or(|asked| at >= asked))
    }

    /// Whether it holds others that are to be moved there.
    pub(super) fn has_strays(&self, home: usize) -> bool {
        self.holdings.as_ref().is_some_and(|h| h.stray[home] > 0)
    }
}

/// Where a node's reports hang.
#[derive(Debug, Default)]
pub(super) struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    report: Report,
    wanted: bool,
    has_scout: bool,
    is_over: bool,
    /// Somebody has waited in vain since it last answered, or failed.
    is_overdue: bool,
    /// The same, for as long as it may take; when he gave up.
    given_up_at: Option<Instant>,
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a report that is not older than that. Tells whether there is nobody yet who could bring one.
    pub(super) fn want(&self, not_before: Instant) -> bool {
        let mut state = self.state();
        if state.report.asked_at.is_none_or(|at| at < not_before) && !state.wanted {
            state.wanted = true;
            self.changed.notify_all();
        }
        !std::mem::replace(&mut state.has_scout, true)
    }

    /// The report that was asked for. A node that was silent is not waited for, and one that does not answer until then is
    /// taken at its last word.
    /// One that has never answered is waited for in full.
    pub(super) fn look(&self, not_before: Instant, until: Instant, in_full: Instant) -> Report {
        let mut state = self.state();
        let until = if state.report.asked_at.is_none() { in_full } else { until };
        loop {
            let is_new = state.report.asked_at.is_some_and(|at| at >= not_before);
            let now = Instant::now();
            // One that was silent long ago may be back.
            let is_silent =
                state.report.is_silent() && state.report.asked_at.is_some_and(|at| at + MEMORY > now);
            if is_new || is_silent || state.is_overdue && state.report.asked_at.is_some() {
                return state.report.clone();
            }
            if now >= until {
                // Nobody else waits for it.
                state.is_overdue = true;
                return state.report.clone();
            }
            let left = until - now;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The report that was asked for, or word that the node is silent, after as long as that may take: once.
    pub(super) fn insist(&self, not_before: Instant, until: Instant) -> Report {
        let mut state = self.state();
        loop {
            if state.report.asked_at.is_some_and(|at| at >= not_before) {
                return state.report.clone();
            }
            let now = Instant::now();
            if now >= until || state.given_up_at.is_some_and(|at| at >= not_before) {
                state.given_up_at.get_or_insert(now);
                return Report { holdings: None, ..state.report.clone() };
            }
            let left = until - now;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Notes that this process has added a job there in the place of another node.
    pub(super) fn added(&self, home: usize, nodes: usize) {
        let mut state = self.state();
        state.report.added_at.resize(nodes, None);
        state.report.added_at[home] = Some(Instant::now());
    }

    /// Waits until a report is wanted. Tells whether ever one will be. The scout's side.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state();
        while !state.wanted && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.wanted = false;
        !state.is_over
    }

    /// Nobody wants a report any more.
    pub(super) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// Hangs up a report. The scout's side.
    pub(super) fn put(&self, asked_at: Instant, holdings: Option<Holdings>) {
        let mut state = self.state();
        state.report.asked_at = Some(asked_at);
        state.report.holdings = holdings.map(Arc::new);
        state.is_overdue = false;
        state.given_up_at = None;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holdings(away: u64) -> Holdings {
        Holdings { away: vec![0, away], stray: vec![0, 0], ..Holdings::default() }
    }

    #[test]
    fn a_report_is_as_new_as_is_asked_and_a_silent_node_is_not_waited_for() {
        let board = Board::default();
        let start = Instant::now();
        assert!(board.want(start) && !board.want(start), "the first to want one brings a scout");
        assert!(board.look(start, start, start).holdings.is_none(), "nothing is known, and the time is over");
        assert!(board.wait());
        board.put(Instant::now(), Some(holdings(3)));
        let said = board.look(start, start, start);
        assert!(said.has_away(1) && !said.has_away(0));
        let soon = Instant::now() + Duration::from_millis(1);
        assert!(
            board.look(soon, soon, soon).has_away(1),
            "one that does not answer is taken at its last word"
        );
        assert!(board.insist(soon, soon).is_silent(), "but for what must be known");
        assert!(board.insist(soon, soon + Duration::from_secs(60)).is_silent(), "for which is waited once");
        let far = Instant::now() + Duration::from_secs(60);
        assert!(board.look(far, far, far).has_away(1), "and that is waited for once");
        board.put(Instant::now(), None);
        let far = Instant::now() + Duration::from_secs(60);
        assert!(board.look(far, far, far).holdings.is_none(), "at once");
        board.want(far);
        assert!(board.wait());
        board.end();
        assert!(!board.wait());
    }

    #[test]
    fn what_this_process_added_is_known_before_the_node_says_so() {
        let board = Board::default();
        let asked_at = Instant::now();
        board.added(1, 2);
        board.put(asked_at, Some(holdings(0)));
        assert!(board.look(asked_at, asked_at, asked_at).has_away(1), "it was asked before");
        board.put(Instant::now(), Some(holdings(0)));
        assert!(!board.look(asked_at, asked_at, asked_at).has_away(1));
    }
}

//! What the main loop knows of a lane: what must be settled and looked for there, and when; which rings are for other
//! processes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::{self, Lane, LaneOrder};
use super::passed_topics::PassedTopics;
use model::fair::Asks;
use model::job::TopicName;
use model::ticket::TicketSecret;
use model::topic::Topic;
use role::TroubleLog;
use store::{Settlement, TopicRing};

/// How long outcomes gather while other callbacks run, so that they are settled together. Also how long a lane that
/// knows of more work does not listen to its bell. If no work is known to be left, a ring leads to a lease at once.
pub(super) const GATHER: Duration = Duration::from_millis(1);

/// While work is left behind, the lane does not listen to its bell. It finds topics with new ready jobs by asking all
/// topics (a survey), besides those that the store happens to report. A survey takes longer with more topics, so
/// surveys get one part of the time in ten: after each, the lane waits for this many times its duration.
const SURVEY_SHARE: u32 = 9;

/// The longest wait between two surveys.
const SURVEY: Duration = Duration::from_millis(100);

/// How long after a failure the lane tries again to take back leases whose answers never came.
pub(super) const TAKE_BACK: Duration = Duration::from_millis(200);

/// How often other processes are told of jobs that this process may not take.
const PASS_ON: Duration = Duration::from_secs(1);

/// What the main loop knows of a lane.
pub(super) struct LaneState {
    pub lane: Lane,
    /// Outcomes that are not in the store yet.
    pub unsettled: Vec<Settlement>,
    /// When the first of `unsettled` came.
    pub gathers_since: Option<Instant>,
    /// How many callbacks of the lane's jobs run.
    pub flying: u32,
    /// Whether there may be ready jobs that a free worker could take.
    pub look: bool,
    /// The bell has rung for ready jobs since the last lease. Such a lease does not wait for outcomes to gather.
    pub rang: bool,
    /// The topics that the bell rang for. After a failure of the store, also the topics that were known to have ready
    /// jobs.
    pub rung: BTreeSet<TopicName>,
    /// It is not known which topics have ready jobs: all topics without limits are asked.
    everywhere: bool,
    /// From when on a lease asks all topics again, and not only those that are known to have ready jobs.
    survey_at: Instant,
    /// Since when an exchange is under way, and how many jobs it may bring.
    pub busy: Option<(Instant, u32)>,
    /// The topics that the exchange asks for, as they were when it was ordered, and for how many jobs.
    pub asked: HashMap<TopicName, (Arc<Topic>, u32)>,
    /// Whether the exchange asks only known topics, or all.
    pub asks: Asks,
    /// The topics that the bell rang for and that were not asked for, because there was no worker or no permit for
    /// them.
    pub unasked: BTreeSet<TopicName>,
    /// When the lane tries again after the store failed.
    pub again: Option<Instant>,
    pub trouble: TroubleLog,
    /// When the lane tries again to take back leases whose answers never came. `None`: there are none.
    pub take_back_at: Option<Instant>,
    /// As far as is known, the last lease left work behind.
    pub leaves: bool,
    /// When a circuit lets a job through. No bell rings then.
    pub lets_through: Option<Instant>,
    /// The topics that have ready jobs here that this process may not take, and when others were last told of them.
    pub passed_on: HashMap<TopicName, Instant>,
    /// The rings for topics of other hosts that were given back.
    pub passing: PassedTopics,
    /// Set when the last lease left work behind. Until then the next lease comes by itself, and no ring is needed.
    pub knows_until: Option<Instant>,
    pub listens: bool,
    /// The bell has been taken down.
    pub deaf: bool,
    pub handed_back: bool,
    /// The secret that signs the tickets of the lane's leases.
    pub secret: Option<TicketSecret>,
}

impl LaneState {
    /// Returns the state of a lane that may have work.
    pub(super) fn new(lane: Lane) -> LaneState {
        LaneState {
            lane,
            unsettled: Vec::new(),
            gathers_since: None,
            flying: 0,
            rang: false,
            rung: BTreeSet::new(),
            everywhere: true,
            survey_at: Instant::now(),
            look: true,
            busy: None,
            asked: HashMap::new(),
            asks: Asks::Known,
            unasked: BTreeSet::new(),
            again: None,
            trouble: TroubleLog::default(),
            take_back_at: None,
            leaves: false,
            lets_through: None,
            passed_on: HashMap::new(),
            passing: PassedTopics::default(),
            knows_until: None,
            listens: true,
            deaf: false,
            handed_back: false,
            secret: None,
        }
    }

    /// Returns when other processes are told again of jobs that this process may not take.
    pub(super) fn passes_on_at(&self) -> Option<Instant> {
        let again = self.passed_on.values().min().map(|at| *at + PASS_ON);
        again.into_iter().chain(self.passing.next()).min()
    }

    /// Tells other processes again of jobs that this process may not take, because they may have been busy before.
    pub(super) fn pass_on_again(&mut self, now: Instant) {
        if self.passed_on.values().any(|at| *at + PASS_ON <= now) {
            let topics = self.passed_on.keys().cloned().collect();
            self.passed_on.values_mut().for_each(|at| *at = now);
            self.lane.order(LaneOrder::PassOn { topics, rest: true });
        }
        let rings = self.passing.again(now);
        self.give_back(rings);
    }

    /// Gives back rings that are for other hosts.
    pub(super) fn give_back(&self, rings: Vec<TopicRing>) {
        if !rings.is_empty() {
            self.lane.order(LaneOrder::GiveBack(rings));
        }
    }

    /// Takes an outcome for the next exchange.
    pub(super) fn owe(&mut self, settlement: Settlement) {
        self.gathers_since.get_or_insert_with(Instant::now);
        self.unsettled.push(settlement);
    }

    /// Returns until when the lane waits for more outcomes, to settle them together. `None` if there are none, or if it
    /// does not wait. When as many outcomes have come as callbacks still run, the lane does not wait: one half is
    /// settled while the other half is in flight. A ring ends the wait only if the lane knows of no other work. A lease
    /// that leaves work behind rings as well, so a busy lane gets rings all the time.
    pub(super) fn gathers_until(&self) -> Option<Instant> {
        let heeds = self.rang && self.look && !self.leaves;
        let waits = !is_enough(self.unsettled.len(), self.flying) && !heeds && self.again.is_none();
        self.gathers_since.filter(|_| waits).map(|since| since + GATHER)
    }

    /// Notes that there may be ready jobs of any topic.
    pub(super) fn look_everywhere(&mut self) {
        (self.look, self.everywhere) = (true, true);
    }

    /// Returns when leases whose answers never came are taken back: not before the store is tried again.
    pub(super) fn takes_back_at(&self) -> Option<Instant> {
        self.take_back_at.map(|at| self.again.map_or(at, |again| again.max(at)))
    }

    /// Begins a lease, and decides which topics it asks.
    pub(super) fn begin_lease(&mut self, now: Instant) {
        let is_due = self.everywhere || self.leaves && self.survey_at <= now;
        self.asks = if is_due { Asks::All } else { Asks::Known };
        (self.look, self.rang, self.everywhere) = (false, false, false);
    }

    /// Notes that a lease has ended, and how long it took.
    pub(super) fn end_lease(&mut self, took: Duration, now: Instant) {
        if self.asks == Asks::All {
            self.survey_at = now + (took * SURVEY_SHARE).min(SURVEY);
        }
    }

    /// Whether a drain has nothing more to do on this lane.
    pub(super) fn is_through(&self) -> bool {
        self.unsettled.is_empty() && self.busy.is_none() && self.deaf
    }
}

/// Whether this many outcomes are settled without waiting for more while this many callbacks still run.
fn is_enough(unsettled: usize, flying: u32) -> bool {
    unsettled >= lane::BATCH.min(flying as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_sent_when_half_of_the_callbacks_have_ended() {
        // (Unsettled, in flight): the last callback that ends does not wait for others.
        for (unsettled, flying) in [(1, 0), (1, 1), (16, 16), (17, 15), (lane::BATCH, 4096)] {
            assert!(is_enough(unsettled, flying), "{unsettled} {flying}");
        }
        for (unsettled, flying) in [(1, 2), (15, 17), (lane::BATCH - 1, 4096)] {
            assert!(!is_enough(unsettled, flying), "{unsettled} {flying}");
        }
    }
}

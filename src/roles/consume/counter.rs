//! What the main loop knows of a lane: what is to be settled and looked for there, and when; which rings others are to hear.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::{self, Lane, Order};
use super::passing::Passing;
use crate::fair::Asks;
use crate::job::TopicName;
use crate::role::Trouble;
use crate::store::{Settlement, TopicRing};
use crate::ticket::Secret;
use crate::topic::Topic;

/// How long outcomes gather while other callbacks run, to be settled together; and for how long who knows of work listens to no
/// bell. Where nothing is known to be left, what is rung for is leased at once.
pub(super) const GATHER: Duration = Duration::from_millis(1);

/// While work is left behind nobody listens to the bell, and topics that have some since then are found by asking all, besides
/// those that the store tells of by chance. That takes longer the more there are: one part of the time, in so many and one.
const SURVEY_SHARE: u32 = 9;

/// And at the latest after so long.
const SURVEY: Duration = Duration::from_millis(100);

/// How often others are told of jobs that this process may not take.
const PASS_ON: Duration = Duration::from_secs(1);

/// What is known of a lane.
pub(super) struct Counter {
    pub lane: Lane,
    /// Outcomes that the store does not have yet.
    pub unsettled: Vec<Settlement>,
    /// When the first of them came.
    pub gathers_since: Option<Instant>,
    /// How many callbacks of its jobs run.
    pub flying: u32,
    /// Whether there may be ready jobs that a free worker could take.
    pub look: bool,
    /// They were rung for since the last lease: none waits for outcomes to gather.
    pub rang: bool,
    /// Of which topics it was told so, or has known so before the store failed.
    pub rung: BTreeSet<TopicName>,
    /// It is not known of which topics: all that have no limits are asked.
    everywhere: bool,
    /// From when on all are asked again, when not only those have ready jobs that are known to.
    survey_at: Instant,
    /// An exchange is under way, since then; and it may bring so many jobs.
    pub busy: Option<(Instant, u32)>,
    /// The topics that it was asked for, as they were then, and for how many jobs.
    pub asked: HashMap<TopicName, (Arc<Topic>, u32)>,
    /// Whether those are all that may have some.
    pub asks: Asks,
    /// Those that were rung for and not asked: there was no worker for them, or no permit.
    pub unasked: BTreeSet<TopicName>,
    /// When it is tried again, after the store failed.
    pub again: Option<Instant>,
    pub trouble: Trouble,
    /// The last lease left work behind, as far as is known.
    pub leaves: bool,
    /// When a circuit lets a job through: nobody rings then.
    pub lets_through: Option<Instant>,
    /// The topics that have ready jobs there of which this process may take no more, and when others were told so last.
    pub passed_on: HashMap<TopicName, Instant>,
    /// The rings for topics of other hosts that were given back.
    pub passing: Passing,
    /// As the last lease left work behind: until then the next comes by itself, and nobody need ring.
    pub knows_until: Option<Instant>,
    pub listens: bool,
    /// Its bell is down.
    pub deaf: bool,
    pub handed_back: bool,
    /// What tickets for its leases are signed with.
    pub secret: Option<Secret>,
}

impl Counter {
    /// Of a lane that may have work.
    pub(super) fn new(lane: Lane) -> Counter {
        Counter {
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
            trouble: Trouble::default(),
            leaves: false,
            lets_through: None,
            passed_on: HashMap::new(),
            passing: Passing::default(),
            knows_until: None,
            listens: true,
            deaf: false,
            handed_back: false,
            secret: None,
        }
    }

    /// When others are told again of what this process may not take.
    pub(super) fn passes_on_at(&self) -> Option<Instant> {
        let again = self.passed_on.values().min().map(|at| *at + PASS_ON);
        again.into_iter().chain(self.passing.next()).min()
    }

    /// Tells others once more of what this process may not take: they may have been busy.
    pub(super) fn pass_on_again(&mut self, now: Instant) {
        if self.passed_on.values().any(|at| *at + PASS_ON <= now) {
            let topics = self.passed_on.keys().cloned().collect();
            self.passed_on.values_mut().for_each(|at| *at = now);
            self.lane.order(Order::PassOn { topics, rest: true });
        }
        let rings = self.passing.again(now);
        self.give_back(rings);
    }

    /// Gives rings back that are for other hosts.
    pub(super) fn give_back(&self, rings: Vec<TopicRing>) {
        if !rings.is_empty() {
            self.lane.order(Order::GiveBack(rings));
        }
    }

    /// Takes an outcome, for the next exchange.
    pub(super) fn owe(&mut self, settlement: Settlement) {
        self.gathers_since.get_or_insert_with(Instant::now);
        self.unsettled.push(settlement);
    }

    /// Until when it waits for more outcomes, to settle them together; none: for no more, or there are none. When as many have
    /// come as still fly, one half of them is exchanged while the other is out. A ring hurries who knows of no work alone: a
    /// lease that leaves some behind rings as well, so that who is busy is rung for all the time.
    pub(super) fn gathers_until(&self) -> Option<Instant> {
        let heeds = self.rang && self.look && !self.leaves;
        let waits = !is_enough(self.unsettled.len(), self.flying) && !heeds && self.again.is_none();
        self.gathers_since.filter(|_| waits).map(|since| since + GATHER)
    }

    /// There may be ready jobs of any topic.
    pub(super) fn look_everywhere(&mut self) {
        (self.look, self.everywhere) = (true, true);
    }

    /// Begins a lease: which topics it asks.
    pub(super) fn begin_lease(&mut self, now: Instant) {
        let is_due = self.everywhere || self.leaves && self.survey_at <= now;
        self.asks = if is_due { Asks::All } else { Asks::Known };
        (self.look, self.rang, self.everywhere) = (false, false, false);
    }

    /// Takes note that it has ended, after so long.
    pub(super) fn end_lease(&mut self, took: Duration, now: Instant) {
        if self.asks == Asks::All {
            self.survey_at = now + (took * SURVEY_SHARE).min(SURVEY);
        }
    }

    /// Whether a drain has nothing more to do there.
    pub(super) fn is_through(&self) -> bool {
        self.unsettled.is_empty() && self.busy.is_none() && self.deaf
    }
}

/// Whether so many outcomes are exchanged without waiting for more, while so many callbacks still fly.
fn is_enough(unsettled: usize, flying: u32) -> bool {
    unsettled >= lane::BATCH.min(flying as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_half_of_the_callbacks_is_exchanged_while_the_other_is_out() {
        // (Unsettled, in flight): the last one that lands waits for nobody.
        for (unsettled, flying) in [(1, 0), (1, 1), (16, 16), (17, 15), (lane::BATCH, 4096)] {
            assert!(is_enough(unsettled, flying), "{unsettled} {flying}");
        }
        for (unsettled, flying) in [(1, 2), (15, 17), (lane::BATCH - 1, 4096)] {
            assert!(!is_enough(unsettled, flying), "{unsettled} {flying}");
        }
    }
}

//! What the dispatcher knows of one lane: what must be settled and asked for there, and when. Pure: the present moment
//! is an argument, and the result says what the lane must do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane;
use super::passed_topics::RingBackoffs;
use model::fair::LeaseTopicSelection;
use model::job::TopicName;
use model::topic::Topic;
use role::TroubleLog;
use store::{Settlement, TopicRing};

/// How long outcomes gather while other callbacks run, so that they are settled together.
///
/// Also how long a lane does not listen to its bell after a lease that has left work behind. If the last lease left no
/// work behind, the lane leases at once after a ring.
const GATHER: Duration = Duration::from_millis(1);

/// After a lease that has left work behind, the lane does not listen to its bell for [`GATHER`]. It finds topics with
/// new ready jobs by surveys, which are leases that ask for all topics. The answers to the other leases also name some
/// of these topics. A survey takes longer with more topics, so surveys get a tenth of the time. After each survey, the
/// lane waits for the duration of the survey, multiplied by this number.
const SURVEY_SHARE: u32 = 9;

/// The longest wait between two surveys.
const SURVEY: Duration = Duration::from_millis(100);

/// How long after a failure the lane tries again to take back the leases of calls that got no answer.
const TAKE_BACK: Duration = Duration::from_millis(200);

/// How often this process tells other processes about jobs that it may not take.
const PASS_ON: Duration = Duration::from_secs(1);

/// What the dispatcher knows of a lane.
#[derive(Debug)]
pub(super) struct LaneState {
    pub exchange: ExchangeState,
    /// What the next lease asks for. `None`: this process knows of no jobs that a lease would bring.
    search: Option<LeaseSearch>,
    /// When the last lease ended. `None`: this process knows of no work that the last lease left behind.
    backlog: Option<Instant>,
    pub bell: BellState,
    /// Since the last lease: the topics for which the bell rang, and the topics whose circuit now lets a job through.
    pub rung: BTreeSet<TopicName>,
    /// Outcomes that are not in the store yet.
    unsettled: Vec<Settlement>,
    /// When the first of `unsettled` came.
    gathers_since: Option<Instant>,
    /// Outcomes that the store did not take. One shard may be down. So these outcomes are kept apart, and do not delay
    /// the outcomes for other shards.
    put_off: Vec<Settlement>,
    /// When `put_off` is tried again. `None`: there are no such outcomes.
    put_off_until: Option<Instant>,
    /// How many callbacks of the lane's jobs run.
    pub flying: u32,
    /// When a lease asks for all topics again, and not only for the topics that are known to have ready jobs.
    survey_at: Instant,
    /// When the lane tries again to take back the leases of calls that got no answer. `None`: there are no such leases.
    take_back_at: Option<Instant>,
    /// The topics whose ready jobs wait because the circuit is open, and when each circuit lets a job through. No bell
    /// rings at that time.
    circuits: BTreeMap<TopicName, Instant>,
    /// The topics whose ready jobs on this lane this process does not take now, for example because no worker is free
    /// for them. Each has the time when it was last passed on to other processes.
    passed_on: BTreeMap<TopicName, Instant>,
    /// The rings for topics of other hosts that were given back.
    pub passing: RingBackoffs,
    pub trouble: TroubleLog,
    pub settle_trouble: TroubleLog,
}

/// Whether the lane's thread talks to the store.
#[derive(Debug)]
pub(super) enum ExchangeState {
    /// The thread does not talk to the store.
    Idle,
    /// The thread has an order to talk to the store, and has not answered yet.
    UnderWay(ExchangeUnderWay),
    /// The store failed. The thread does not ask the store before `until`.
    Paused { until: Instant },
}

/// An exchange that the lane's thread has not answered yet.
#[derive(Debug)]
pub(super) struct ExchangeUnderWay {
    pub since: Instant,
    /// The lease in this exchange.
    pub lease: Option<LeaseUnderWay>,
}

/// A lease that is not answered yet.
#[derive(Debug)]
pub(super) struct LeaseUnderWay {
    /// How many jobs the lease may bring. The same number of workers is kept free for it.
    pub limit: u32,
    /// The topics that the lease asks for, as they were when it was ordered. Each has the number of jobs that the lease
    /// asks for. With 0, the lease only asks how many jobs are ready.
    pub asked: BTreeMap<TopicName, (Arc<Topic>, u32)>,
    /// Whether the lease asks only for topics that are known to have ready jobs, or for all topics.
    pub asks: LeaseTopicSelection,
    /// The topics that the bell rang for and that are not asked for, because there was no worker or no permit for them.
    pub unasked: BTreeSet<TopicName>,
}

/// What the next lease looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeaseSearch {
    /// `All`: it is not known which topics have ready jobs.
    asks: LeaseTopicSelection,
    /// Whether the bell rang for the jobs. After a ring, if the lane knows of no other work, the lease does not wait
    /// for further outcomes.
    is_rung: bool,
}

/// What the lane's thread does with the bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BellState {
    /// The thread listens.
    Heard,
    /// The thread does not listen, so that other processes get the rings.
    Ignored,
    /// The thread has an order to take the bell down.
    TakenDown,
    /// The bell is down. If this kind of bell can lose rings (`loses_rings`), all bells were rung. So other processes
    /// look for the work of the lost rings.
    Gone,
}

impl LaneState {
    /// Returns the state of a lane that may have work.
    pub(super) fn new(now: Instant) -> LaneState {
        LaneState {
            exchange: ExchangeState::Idle,
            search: Some(LeaseSearch { asks: LeaseTopicSelection::All, is_rung: false }),
            backlog: None,
            bell: BellState::Heard,
            rung: BTreeSet::new(),
            unsettled: Vec::new(),
            gathers_since: None,
            put_off: Vec::new(),
            put_off_until: None,
            flying: 0,
            survey_at: now,
            take_back_at: None,
            circuits: BTreeMap::new(),
            passed_on: BTreeMap::new(),
            passing: RingBackoffs::default(),
            trouble: TroubleLog::default(),
            settle_trouble: TroubleLog::default(),
        }
    }

    /// Notes that the next lease may find ready jobs: of known topics, or of any topic.
    pub(super) fn search(&mut self, asks: LeaseTopicSelection) {
        let before = self.search.unwrap_or(LeaseSearch { asks: LeaseTopicSelection::Known, is_rung: false });
        let asks = if before.asks == LeaseTopicSelection::All { LeaseTopicSelection::All } else { asks };
        self.search = Some(LeaseSearch { asks, ..before });
    }

    /// Notes that the bell rang. `None`: the ring names no topic, so any topic may have ready jobs.
    pub(super) fn ring(&mut self, topic: Option<TopicName>) {
        self.search(if topic.is_some() { LeaseTopicSelection::Known } else { LeaseTopicSelection::All });
        self.search = self.search.map(|search| LeaseSearch { is_rung: true, ..search });
        self.rung.extend(topic);
    }

    /// Takes an outcome for the next exchange.
    pub(super) fn add_settlement(&mut self, settlement: Settlement, now: Instant) {
        self.gathers_since.get_or_insert(now);
        self.unsettled.push(settlement);
    }

    /// Takes outcomes that the store did not take. They are tried again at `until`, or earlier if older outcomes are
    /// tried again earlier.
    pub(super) fn put_off(&mut self, settlements: Vec<Settlement>, until: Instant, now: Instant) {
        if !settlements.is_empty() {
            self.put_off.extend(settlements);
            let planned = self.put_off_until.filter(|at| *at > now);
            self.put_off_until = Some(planned.map_or(until, |at| at.min(until)));
        }
    }

    /// Whether there are outcomes that the store did not take.
    pub(super) fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// Takes the outcomes that the next exchange settles.
    pub(super) fn take_settlements(&mut self, now: Instant) -> Vec<Settlement> {
        let count = self.unsettled.len().min(lane::BATCH);
        let mut settle: Vec<Settlement> = self.unsettled.drain(..count).collect();
        self.gathers_since = (!self.unsettled.is_empty()).then_some(now);
        if self.put_off_until.is_some_and(|at| at <= now) {
            let count = self.put_off.len().min(lane::BATCH - count);
            settle.extend(self.put_off.drain(..count));
            self.put_off_until = self.put_off_until.filter(|_| !self.put_off.is_empty());
        }
        settle
    }

    /// Takes all outcomes that are not settled yet. Each part of the result is small enough for one exchange.
    pub(super) fn take_rest(&mut self) -> Vec<Vec<Settlement>> {
        let mut rest = std::mem::take(&mut self.unsettled);
        rest.append(&mut self.put_off);
        self.put_off_until = None;
        rest.chunks(lane::BATCH).map(<[Settlement]>::to_vec).collect()
    }

    /// Forgets the moments that have passed.
    pub(super) fn forget_past_moments(&mut self, now: Instant) {
        if matches!(self.exchange, ExchangeState::Paused { until } if until <= now) {
            self.exchange = ExchangeState::Idle;
        }
        let over = |(topic, at): (&TopicName, &Instant)| (*at <= now).then(|| topic.clone());
        for topic in self.circuits.iter().filter_map(over).collect::<Vec<_>>() {
            self.circuits.remove(&topic);
            self.rung.insert(topic);
            self.search(LeaseTopicSelection::Known);
        }
    }

    /// Returns whether an exchange begins now. `leases`: a lease can be a part of it. (Call `forget_past_moments`
    /// first.)
    pub(super) fn is_due(&self, leases: bool, now: Instant) -> bool {
        let tries_again = [self.take_back_at, self.put_off_until].iter().flatten().any(|at| *at <= now);
        let gathers = self.gathering_deadline().is_some_and(|until| until > now);
        matches!(self.exchange, ExchangeState::Idle)
            && (tries_again || (leases || !self.unsettled.is_empty()) && !gathers)
    }

    /// Whether a lease may find something. Outcomes must not pile up without end. So a lease waits if the new outcomes
    /// do not fit in one exchange, or if there are more than `put_off_max` outcomes that the store did not take.
    pub(super) fn is_searching(&self, put_off_max: usize) -> bool {
        self.search.is_some() && self.unsettled.len() <= lane::BATCH && self.put_off.len() <= put_off_max
    }

    /// Begins a lease. Returns which topics it asks for: only known ones, or all.
    pub(super) fn begin_lease(&mut self, now: Instant) -> LeaseTopicSelection {
        let search = self.search.take();
        let surveys = self.backlog.is_some() && self.survey_at <= now;
        if surveys {
            LeaseTopicSelection::All
        } else {
            search.map_or(LeaseTopicSelection::Known, |search| search.asks)
        }
    }

    /// Notes that a lease has ended, when it began, and whether it left work behind.
    pub(super) fn end_lease(
        &mut self,
        asks: LeaseTopicSelection,
        since: Instant,
        leaves: bool,
        now: Instant,
    ) {
        if asks == LeaseTopicSelection::All {
            self.survey_at = now + ((now - since) * SURVEY_SHARE).min(SURVEY);
        }
        self.backlog = leaves.then_some(now);
    }

    /// Notes whether some lease calls never got an answer, and their leases must still be taken back.
    pub(super) fn note_unanswered(&mut self, unanswered: bool, now: Instant) {
        self.take_back_at = unanswered.then(|| now + TAKE_BACK);
    }

    /// Whether this process may hold leases that it does not know about.
    pub(super) fn has_unanswered(&self) -> bool {
        self.take_back_at.is_some()
    }

    /// Notes when the circuit of a topic lets a job through.
    pub(super) fn note_circuit(&mut self, topic: TopicName, lets_through: Instant) {
        self.circuits.insert(topic, lets_through);
    }

    /// Returns the time until which the lane waits for more outcomes, to settle them together. `None` if there are no
    /// outcomes, or if the lane does not wait. It does not wait when the number of outcomes reaches the number of
    /// callbacks that still run. So one half is settled while the other half is in flight. A ring ends the wait only if
    /// the lane knows of no other work. A lease call also rings the bell if it leaves ready jobs in the store. So a
    /// busy lane gets rings all the time, and they must not end the wait.
    fn gathering_deadline(&self) -> Option<Instant> {
        let is_rung = self.search.is_some_and(|search| search.is_rung) && self.backlog.is_none();
        let waits = !is_enough(self.unsettled.len(), self.flying) && !is_rung;
        self.gathers_since.filter(|_| waits).map(|since| since + GATHER)
    }

    /// Decides whether the lane listens to its bell. A process that knows of work needs no ring. It does not listen, so
    /// that another process gets the ring. `is_free`: the process could take work. Returns the decision if it changes.
    pub(super) fn listen(&mut self, is_free: bool, now: Instant) -> Option<bool> {
        // During an exchange there is no decision, because the answer to the exchange may reverse it.
        let is_idle = matches!(self.exchange, ExchangeState::Idle);
        let before = match self.bell {
            BellState::Heard => true,
            BellState::Ignored => false,
            BellState::TakenDown | BellState::Gone => return None,
        };
        if matches!(self.exchange, ExchangeState::UnderWay(_)) {
            return None;
        }
        let listens = is_free && is_idle && self.search.is_none() && !self.is_resting(now);
        self.bell = if listens { BellState::Heard } else { BellState::Ignored };
        (listens != before).then_some(listens)
    }

    /// Whether the last lease has just left work behind. The next lease then needs no ring.
    fn is_resting(&self, now: Instant) -> bool {
        self.backlog.is_some_and(|since| since + GATHER > now)
    }

    /// Returns when something is due on this lane again. Everything that is due now must have been done.
    pub(super) fn next(&self, drains: bool, now: Instant) -> Option<Instant> {
        let idle = match self.exchange {
            ExchangeState::UnderWay(_) => [None; 4],
            ExchangeState::Paused { until } => [Some(until), None, None, None],
            ExchangeState::Idle => {
                let rest_ends = self.backlog.map(|since| since + GATHER).filter(|until| *until > now);
                [self.gathering_deadline(), rest_ends, self.take_back_at, self.put_off_until]
            }
        };
        let passes_on = self.passed_on.values().min().map(|at| *at + PASS_ON);
        let passes_on = passes_on.into_iter().chain(self.passing.next()).filter(|_| !drains);
        idle.into_iter().flatten().chain(self.circuits.values().copied()).chain(passes_on).min()
    }

    /// Notes topics with ready jobs that this process does not lease now. Other processes may be able to lease them.
    /// Returns the topics that are new in the list. Only these topics are passed on. If all were passed on, two
    /// processes that may not lease a topic would pass the topic to each other without end.
    pub(super) fn pass_on(
        &mut self,
        topics: BTreeSet<TopicName>,
        still_ready: impl Fn(&TopicName) -> bool,
        now: Instant,
    ) -> Vec<TopicName> {
        let is_new = |topic: &TopicName| !self.passed_on.contains_key(topic);
        let fresh: Vec<TopicName> = topics.into_iter().filter(is_new).collect();
        self.passed_on.retain(|topic, _| still_ready(topic));
        self.passed_on.extend(fresh.iter().map(|topic| (topic.clone(), now)));
        fresh
    }

    /// Returns the topics to announce again, because the other processes may have been busy. Also returns the rings to
    /// give back again.
    pub(super) fn pass_on_again(&mut self, now: Instant) -> (Vec<TopicName>, Vec<TopicRing>) {
        let mut topics = Vec::new();
        if self.passed_on.values().any(|at| *at + PASS_ON <= now) {
            topics.extend(self.passed_on.keys().cloned());
            self.passed_on.values_mut().for_each(|at| *at = now);
        }
        (topics, self.passing.again(now))
    }

    /// Whether a drain has nothing more to do on this lane.
    pub(super) fn is_drained(&self) -> bool {
        self.unsettled.is_empty()
            && self.put_off.is_empty()
            && !matches!(self.exchange, ExchangeState::UnderWay(_))
            && self.bell == BellState::Gone
    }
}

/// Whether the `unsettled` outcomes are settled now, without a wait for the `flying` callbacks that still run.
fn is_enough(unsettled: usize, flying: u32) -> bool {
    unsettled >= lane::BATCH.min(flying as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::{JobId, JobKey};
    use store::{Outcome, Token};

    #[test]
    fn outcomes_are_sent_when_half_of_the_callbacks_have_ended() {
        // Each pair has the numbers of unsettled outcomes and of callbacks in flight. With no callback in flight, the
        // outcome does not wait.
        for (unsettled, flying) in [(1, 0), (1, 1), (16, 16), (17, 15), (lane::BATCH, 4096)] {
            assert!(is_enough(unsettled, flying), "{unsettled} {flying}");
        }
        for (unsettled, flying) in [(1, 2), (15, 17), (lane::BATCH - 1, 4096)] {
            assert!(!is_enough(unsettled, flying), "{unsettled} {flying}");
        }
    }

    #[test]
    fn the_rest_has_new_outcomes_and_those_that_were_put_off() {
        let now = Instant::now();
        let settlement = |number: usize| Settlement {
            key: JobKey {
                topic: TopicName::new("t").unwrap(),
                id: JobId::new(format!("j{number}")).unwrap(),
            },
            token: Token(number.to_string().into_bytes().into()),
            outcome: Outcome::Ack,
            attempt: None,
        };
        let mut lane = LaneState::new(now);
        (0..lane::BATCH).for_each(|number| lane.add_settlement(settlement(number), now));
        lane.put_off(vec![settlement(lane::BATCH)], now + GATHER, now);
        assert!(!lane.is_drained());
        let rest = lane.take_rest();
        assert_eq!(rest.iter().map(Vec::len).collect::<Vec<_>>(), [lane::BATCH, 1]);
        assert_eq!(rest[1], [settlement(lane::BATCH)]);
        assert!(lane.take_rest().is_empty() && lane.next(true, now).is_none());
    }
}

//! Decides who waits for what, what is leased from which lane, and who gets the jobs. Pure: the input is events and the
//! present moment, and the output is orders for the lanes and answers to clients. `simulation` drives the broker.
//!
//! A topic is hot on a lane if the topic may have ready jobs there. A topic becomes hot when a client asks for it, or
//! when the bell rings for it. It stays hot if the last lease call did not take all of its jobs. Only jobs of hot
//! topics are leased. After each event, the caller calls [`Broker::act`], and carries out its orders.
//!
//! | event | what follows |
//! |---|---|
//! | a client comes | its topics are hot on all lanes |
//! | the bell rings | the topic is hot on that lane, if somebody waits for it |
//! | a lease brings jobs | its clients get them in the order of their arrival; the other jobs are handed back |
//! | a client with a name gets jobs | its lane is asked to note the name with the leases |
//! | a client leaves | it waits no longer; late jobs of its lease go to the lease's other clients, or are handed back |
//! | a lease fails | its topics stay hot, and the lane pauses |
//! | a lane does not answer | its clients are free for other lanes; a late answer is used or handed back |

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::calls::{BrokerLane, LaneOrder, LeaseAnswer, LeaseCall, PATIENCE, PendingLeaseCall, REGISTER};
use super::rates::PermitTable;
use super::{Reserve, ReserveAnswer, ReservedLease, lease_orders};
use model::job::TopicName;
use model::topic::Topics;
use store::{LEASE_BYTES, Permit, PermitRequest, Ring, StoreError};

/// How long a client still waits for a lease that is under way, after the client's time is over.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// How often the broker checks the topics that clients wait for, even if no bell rings. A process may have died before
/// it rang the bell.
const LOOK: Duration = Duration::from_secs(10);

/// If a limit prevents the lease of a topic's ready jobs, dq pauses before it asks for jobs of this topic again. These
/// are the first pause and the longest pause.
const HELD: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));

/// A client that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) reserve: Reserve,
    /// The lane that leases jobs for this client at the moment.
    pub(super) on: Option<usize>,
}

/// A topic whose ready jobs cannot be leased now.
#[derive(Debug, Clone, Copy)]
pub(super) struct TopicBackoff {
    pub(super) until: Instant,
    pub(super) times: u32,
}

/// Returns the lane that grants the permits of a topic.
pub(super) type HomeOf = Box<dyn Fn(&str) -> usize + Send>;

pub(super) struct Broker {
    pub(super) topics: Topics,
    pub(super) lanes: Vec<BrokerLane>,
    pub(super) waiters: BTreeMap<u64, Waiter>,
    /// The clients that wait for each topic.
    pub(super) waiting: HashMap<TopicName, BTreeSet<u64>>,
    pub(super) deadlines: BTreeSet<(Instant, u64)>,
    /// The clients whose time is over, but which may still get jobs from a lease or a permit that is under way.
    pub(super) overdue: BTreeSet<u64>,
    pub(super) held: HashMap<TopicName, TopicBackoff>,
    pub(super) rates: PermitTable,
    pub(super) home_of: HomeOf,
    pub(super) look_at: Instant,
    /// The lane that is planned first. It is the next lane after the lane that got calls last. So all lanes get their
    /// turn, even if one of them always has jobs.
    pub(super) first_lane: usize,
    pub(super) drains: bool,
    pub(super) orders: Vec<(usize, LaneOrder)>,
    pub(super) answers: Vec<(u64, ReserveAnswer)>,
}

impl Broker {
    pub(super) fn new(lanes: usize, topics: Topics, home_of: HomeOf, now: Instant) -> Broker {
        Broker {
            topics,
            lanes: (0..lanes).map(|_| BrokerLane::default()).collect(),
            waiters: BTreeMap::new(),
            waiting: HashMap::new(),
            deadlines: BTreeSet::new(),
            overdue: BTreeSet::new(),
            held: HashMap::new(),
            rates: PermitTable::default(),
            home_of,
            look_at: now,
            first_lane: 0,
            drains: false,
            orders: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Adds a client that reserves.
    pub(super) fn reserve(&mut self, id: u64, reserve: Reserve, now: Instant) {
        if self.waiters.is_empty() {
            self.look_at = now + LOOK;
        }
        for topic in &reserve.topics {
            self.waiting.entry(topic.clone()).or_default().insert(id);
            for lane in &mut self.lanes {
                lane.hot.insert(topic.clone());
            }
        }
        let until = if self.drains { now } else { reserve.until };
        self.deadlines.insert((until, id));
        self.waiters.insert(id, Waiter { reserve: Reserve { until, ..reserve }, on: None });
    }

    /// Removes a client. Returns whether it still waited.
    pub(super) fn remove_client(&mut self, id: u64) -> bool {
        let Some(waiter) = self.waiters.remove(&id) else { return false };
        self.deadlines.remove(&(waiter.reserve.until, id));
        self.deadlines.remove(&(waiter.reserve.until + GRACE, id));
        self.overdue.remove(&id);
        for topic in &waiter.reserve.topics {
            if let Some(ids) = self.waiting.get_mut(topic) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.waiting.remove(topic);
                }
            }
        }
        true
    }

    /// Uses these topics from now on. A client gets an empty answer if none of its topics is a pull topic any more.
    pub(super) fn serve(&mut self, topics: Topics) {
        self.topics = topics;
        let is_pulled = |topic: &TopicName| self.topics.is_pulled(topic.as_str());
        let lost = |(id, w): (&u64, &Waiter)| (!w.reserve.topics.iter().any(is_pulled)).then_some(*id);
        for id in self.waiters.iter().filter_map(lost).collect::<Vec<_>>() {
            self.answer(id, Ok(Vec::new()));
        }
        // The change may have removed a limit.
        self.held.clear();
    }

    /// Begins to drain: all clients get an answer as soon as possible, and new clients do not wait.
    pub(super) fn drain(&mut self, now: Instant) {
        self.drains = true;
        for (id, waiter) in &mut self.waiters {
            if self.deadlines.remove(&(waiter.reserve.until, *id)) {
                waiter.reserve.until = waiter.reserve.until.min(now);
                self.deadlines.insert((waiter.reserve.until, *id));
            }
        }
    }

    /// Notes that the bell of a lane rang.
    pub(super) fn note_ring(&mut self, lane: usize, rings: Vec<Ring>) {
        let hot = &mut self.lanes[lane].hot;
        for ring in rings {
            match ring {
                Ring::All => hot.extend(self.waiting.keys().cloned()),
                Ring::Of(ring) if self.waiting.contains_key(&ring.topic) => drop(hot.insert(ring.topic)),
                Ring::Of(_) => {}
            }
        }
    }

    /// Notes that a lease of a topic was settled. There may now be room for another lease.
    pub(super) fn settled(&mut self, topic: &TopicName) {
        self.held.remove(topic);
    }

    /// Hands back jobs that a client did not take, for example because it is gone. Jobs that were removed when they
    /// were reserved cannot be handed back, so they go to other clients that wait for them.
    pub(super) fn refuse(&mut self, lane: usize, mut jobs: Vec<ReservedLease>) {
        self.give_removed(&mut jobs);
        let back = lease_orders::hand_backs(jobs);
        if !back.is_empty() {
            self.orders.push((lane, LaneOrder::HandBack(back)));
        }
    }

    /// Takes the answers of a lane to the calls of its last order. If the lane could make no call, takes the error
    /// instead.
    pub(super) fn leased(
        &mut self,
        number: usize,
        answers: Result<Vec<Result<LeaseAnswer, StoreError>>, StoreError>,
        now: Instant,
    ) {
        let Some(under_way) = self.lanes[number].under_way.take() else { return };
        let (mut failed, mut answers) = match answers {
            Ok(answers) => (None, answers.into_iter()),
            Err(e) => {
                self.lanes[number].registered.clear();
                (Some(e), Vec::new().into_iter())
            }
        };
        for PendingLeaseCall { call, waiters } in under_way.calls {
            match answers.next() {
                Some(Ok(answer)) => self.distribute(number, &call, &waiters, answer, now),
                Some(Err(e)) => failed = Some(e),
                None => {}
            }
            if failed.is_some() {
                for want in &call.wanted {
                    self.rates.give_back(&want.topic, want.max);
                    self.lanes[number].hot.insert(want.topic.clone());
                }
            }
            self.free(number, &waiters);
        }
        let lane = &mut self.lanes[number];
        match failed {
            None => (lane.failing, _) = (None, lane.trouble.end()),
            Some(e) => {
                let pause = lane.trouble.pause_after_store("cannot lease for clients that reserve", &e);
                lane.failing = Some((now + pause, e));
            }
        }
    }

    /// Gives the jobs of a call to the clients for which the call was made.
    fn distribute(
        &mut self,
        number: usize,
        call: &LeaseCall,
        waiters: &[u64],
        answer: LeaseAnswer,
        now: Instant,
    ) {
        let LeaseAnswer { mut jobs, left, expired } = answer;
        let bytes: usize = jobs.iter().map(|job| job.leased.body.as_str().len()).sum();
        // If the jobs have many bytes, the next job may have been too long for this call (`LEASE_BYTES`).
        let is_full = jobs.len() >= call.limit || bytes > LEASE_BYTES / 2;
        for want in &call.wanted {
            let brought = jobs.iter().filter(|job| job.leased.key.topic == want.topic).count() as u32;
            let is_left = left.iter().any(|(topic, n)| *topic == want.topic && *n > 0);
            self.rates.give_back(&want.topic, want.max.saturating_sub(brought));
            if is_left {
                self.lanes[number].hot.insert(want.topic.clone());
            }
            if is_left && brought < want.max && !is_full && !expired.contains(&want.topic) {
                let held =
                    self.held.entry(want.topic.clone()).or_insert(TopicBackoff { until: now, times: 0 });
                held.until = now + (HELD.0 * 2_u32.pow(held.times.min(3))).min(HELD.1);
                held.times += 1;
            } else if brought > 0 {
                self.held.remove(&want.topic);
            }
        }
        let mut named = Vec::new();
        for id in waiters {
            let Some(waiter) = self.waiters.get(id).filter(|w| w.on.is_none_or(|lane| lane == number)) else {
                continue;
            };
            let mut own = Vec::new();
            for topic in &waiter.reserve.topics {
                let room = waiter.reserve.max as usize - own.len();
                let is_own = |job: &mut ReservedLease| job.leased.key.topic == *topic;
                own.extend(jobs.extract_if(.., is_own).take(room));
            }
            if !own.is_empty() {
                named.extend(lease_orders::names(&waiter.reserve, &own));
                self.answer(*id, Ok(own));
            }
        }
        self.refuse(number, jobs);
        if !named.is_empty() {
            self.orders.push((number, LaneOrder::Name(named)));
        }
    }

    /// Gives jobs that were removed when they were reserved to any clients that wait for the topics of these jobs. A
    /// client that asks for an owned lease gets none of these jobs: they have no lease.
    fn give_removed(&mut self, jobs: &mut Vec<ReservedLease>) {
        let removed = jobs.iter().filter(|job| job.ticket.is_none());
        for topic in removed.map(|job| job.leased.key.topic.clone()).collect::<BTreeSet<_>>() {
            let mut is_given =
                |job: &mut ReservedLease| job.ticket.is_none() && job.leased.key.topic == topic;
            let takes = |id: &&u64| self.waiters.get(id).is_some_and(|waiter| !waiter.reserve.is_owned);
            let clients: Vec<u64> =
                self.waiting.get(&topic).into_iter().flatten().filter(takes).copied().collect();
            for id in clients {
                let max = self.waiters.get(&id).map_or(0, |waiter| waiter.reserve.max as usize);
                let given: Vec<_> = jobs.extract_if(.., &mut is_given).take(max).collect();
                if given.is_empty() {
                    break;
                }
                self.answer(id, Ok(given));
            }
        }
    }

    /// Frees clients whose call is over.
    pub(super) fn free(&mut self, number: usize, waiters: &[u64]) {
        for id in waiters {
            if let Some(waiter) = self.waiters.get_mut(id).filter(|waiter| waiter.on == Some(number)) {
                waiter.on = None;
            }
        }
    }

    /// Takes the answers to questions for permits.
    pub(super) fn permitted(
        &mut self,
        asks: &[PermitRequest],
        permits: Vec<Result<Permit, StoreError>>,
        now: Instant,
    ) {
        for (ask, permit) in asks.iter().zip(permits) {
            self.rates.answered(ask, permit.ok(), now);
        }
    }

    /// Does what must be done now: frees the clients of lanes that do not answer, asks for permits, plans the next
    /// orders of the lanes, and answers the clients whose time is over.
    pub(super) fn act(&mut self, now: Instant) {
        for number in 0..self.lanes.len() {
            self.give_up(number, now);
        }
        if !self.waiters.is_empty() && self.look_at <= now {
            self.look_at = now + LOOK;
            (0..self.lanes.len()).for_each(|lane| self.note_ring(lane, vec![Ring::All]));
        }
        self.ask_permits(now);
        let (first, count) = (self.first_lane, self.lanes.len());
        for number in (0..count).map(|step| (first + step) % count) {
            self.plan(number, now);
        }
        self.end_waits(now);
    }

    pub(super) fn answer(&mut self, id: u64, answer: ReserveAnswer) {
        if self.remove_client(id) {
            self.answers.push((id, answer));
        }
    }

    /// Returns when [`Broker::act`] must be called again, if no event comes earlier.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        if self.waiters.is_empty() {
            return None;
        }
        let lanes = self.lanes.iter().flat_map(|lane| {
            let given_up = lane.under_way.as_ref().filter(|under_way| !under_way.is_given_up);
            let registers = lane.registered.values().min().map(|at| *at + REGISTER);
            let idle = lane.under_way.is_none();
            let failing = lane.failing.as_ref().map(|(until, _)| *until);
            [given_up.map(|u| u.since + PATIENCE), registers.filter(|_| idle), failing.filter(|_| idle)]
        });
        let held = self.waiting.keys().filter_map(|topic| self.held.get(topic)).map(|held| held.until);
        let rates = self.waiting.keys().filter_map(|topic| self.rates.again(topic, now));
        let first = self.deadlines.first().map(|(at, _)| *at);
        let all = lanes.flatten().chain(held).chain(rates).filter(|at| *at > now);
        all.chain(first).chain([self.look_at]).min()
    }

    /// Returns the orders that have not been taken yet, each with its lane.
    pub(super) fn take_orders(&mut self) -> Vec<(usize, LaneOrder)> {
        std::mem::take(&mut self.orders)
    }

    /// Returns the answers that have not been taken yet, each with its client.
    pub(super) fn take_answers(&mut self) -> Vec<(u64, ReserveAnswer)> {
        std::mem::take(&mut self.answers)
    }
}

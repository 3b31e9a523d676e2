//! Runs the broker against a simulated store of two lanes, with clients that come and go, lanes that fail and hang, and
//! bells that ring. Each seed gives another sequence of events.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::broker::Broker;
use super::calls::LeaseCall;
use super::calls::{LaneOrder, LeaseAnswer};
use super::{Reserve, ReservedLease};
use model::job::{Body, JobId, JobKey, TopicName};
use model::topic::{DeliveryMode, OnReserve, Topic, Topics};
use store::{LeasedJob, Outcome, Permit, Ring, StoreError, Token, TopicRing};

pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) fn name(topic: &str) -> TopicName {
    TopicName::new(topic).unwrap()
}

fn topics() -> Topics {
    let pulled = |topic: &str| Topic { mode: DeliveryMode::Pull, ..Topic::new(name(topic), "") };
    let limited = Topic { max_in_flight: Some(3), ..pulled("few") };
    let rated = Topic { rate: Some(model::topic::Rate::per_second(200)), ..pulled("slow") };
    let removed = Topic { on_reserve: OnReserve::Remove, ..pulled("gone") };
    let all = [pulled("a"), pulled("b"), limited, rated, removed, Topic::new(name("push"), "http://h/")];
    all.into_iter().collect()
}

/// One lane: its ready and leased jobs, and the order that it has not answered yet.
#[derive(Default)]
pub(super) struct SimulatedLane {
    pub(super) ready: BTreeMap<TopicName, VecDeque<u32>>,
    pub(super) leased: HashMap<u32, TopicName>,
    pub(super) order: Option<(Instant, Vec<LeaseCall>)>,
}

pub(super) struct World {
    pub(super) rng: fastrand::Rng,
    pub(super) now: Instant,
    pub(super) broker: Broker,
    pub(super) lanes: [SimulatedLane; 2],
    pub(super) clients: HashMap<u64, (Reserve, bool)>,
    pub(super) jobs: u32,
    pub(super) done: HashSet<u32>,
    pub(super) next_client: u64,
    pub(super) orders: usize,
    /// Whether all lanes answer soon. Then the order of preference holds over all lanes.
    pub(super) is_calm: bool,
    /// For each client: the lanes and topics that have had no ready job at some moment since the client came.
    pub(super) without: HashMap<u64, HashSet<(usize, TopicName)>>,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let now = Instant::now();
        World {
            rng: fastrand::Rng::with_seed(seed),
            now,
            broker: Broker::new(2, topics(), Box::new(|_| 1), now),
            lanes: Default::default(),
            clients: HashMap::new(),
            jobs: 0,
            done: HashSet::new(),
            next_client: 0,
            orders: 0,
            is_calm: false,
            without: HashMap::new(),
        }
    }

    fn ring(&mut self, lane: usize, topic: &TopicName) {
        let ring = TopicRing { topic: topic.clone(), shard: 0, number: String::new() };
        self.broker.note_ring(lane, vec![Ring::Of(ring)]);
    }

    fn add(&mut self, topic: &str) {
        let lane = self.rng.usize(0..2);
        self.jobs += 1;
        self.lanes[lane].ready.entry(name(topic)).or_default().push_back(self.jobs);
        // Some rings are lost, as if a process died before it rang. The broker finds such jobs when it next checks all
        // topics.
        if self.rng.u8(0..20) > 0 {
            self.ring(lane, &name(topic));
        }
    }

    fn add_client(&mut self, wait: Duration) {
        let count = if self.rng.bool() { 1 } else { self.rng.usize(1..=3) };
        self.add_client_for(count, wait);
    }

    /// A new client reserves jobs of `count` topics.
    fn add_client_for(&mut self, count: usize, wait: Duration) {
        let all = ["a", "b", "few", "slow"];
        let mut topics: Vec<TopicName> = all.into_iter().map(name).collect();
        self.rng.shuffle(&mut topics);
        topics.truncate(count);
        let reserve = Reserve {
            topics,
            max: self.rng.u32(1..4),
            lease: None,
            is_owned: false,
            client: None,
            until: self.now + wait,
        };
        self.next_client += 1;
        self.come_as(self.next_client, reserve);
    }

    pub(super) fn come_as(&mut self, id: u64, reserve: Reserve) {
        self.clients.insert(id, (reserve.clone(), true));
        self.without.insert(id, HashSet::new());
        self.note_empty();
        self.broker.reserve(id, reserve, self.now);
    }

    /// For each client, notes each lane and topic that has no ready job now.
    fn note_empty(&mut self) {
        for (id, without) in &mut self.without {
            for topic in &self.clients[id].0.topics {
                let is_empty = |lane: &SimulatedLane| lane.ready.get(topic).is_none_or(VecDeque::is_empty);
                let empty = self.lanes.iter().enumerate().filter(|(_, lane)| is_empty(lane));
                without.extend(empty.map(|(place, _)| (place, topic.clone())));
            }
        }
    }

    /// Checks that a client did not get a job while a lane had a job of a topic that the client prefers.
    fn check_order(&self, id: u64, reserve: &Reserve, jobs: &[ReservedLease]) {
        let without = &self.without[&id];
        for job in jobs.iter().filter(|_| self.is_calm) {
            for topic in reserve.topics.iter().take_while(|topic| **topic != job.leased.key.topic) {
                let is_missed = |lane: &usize| !without.contains(&(*lane, topic.clone()));
                let is_limited = matches!(topic.as_str(), "few" | "slow");
                let missed = (0..self.lanes.len()).find(is_missed).filter(|_| !is_limited);
                assert_eq!(missed, None, "it got {} and lane {missed:?} had {topic}", job.leased.key);
            }
        }
    }

    /// Leases as the stores do.
    fn lease(&mut self, lane: usize, call: &LeaseCall) -> LeaseAnswer {
        let everywhere = |world: &World, topic: &TopicName| {
            world.lanes.iter().flat_map(|lane| lane.leased.values()).filter(|of| *of == topic).count()
        };
        let mut answer = LeaseAnswer::default();
        for want in &call.wanted {
            let room = want
                .max_leased
                .map_or(usize::MAX, |most| (most as usize).saturating_sub(everywhere(self, &want.topic)));
            let most = (want.max as usize).min(call.limit - answer.jobs.len()).min(room);
            let ready = self.lanes[lane].ready.entry(want.topic.clone()).or_default();
            let taken: Vec<u32> = ready.drain(..most.min(ready.len())).collect();
            let left = ready.len() as u64;
            for job in taken {
                self.lanes[lane].leased.insert(job, want.topic.clone());
                let ticket = (!call.removed.contains(&want.topic)).then(String::new);
                answer.jobs.push(ReservedLease { ticket, ..reserved(want.topic.clone(), job) });
            }
            if left > 0 {
                answer.left.push((want.topic.clone(), left));
            }
        }
        self.note_empty();
        answer
    }

    /// Lets the broker act, and carries out what it decides.
    pub(super) fn act(&mut self) {
        self.broker.act(self.now);
        for (lane, order) in self.broker.take_orders() {
            self.orders += 1;
            match order {
                LaneOrder::Lease { calls, .. } => {
                    assert!(self.lanes[lane].order.is_none(), "one order at a time");
                    let hangs = !self.is_calm && self.rng.u8(0..60) == 0;
                    let takes = MS * if hangs { 3000 } else { self.rng.u32(0..5) };
                    self.lanes[lane].order = Some((self.now + takes, calls));
                }
                LaneOrder::Name(settlements) => {
                    assert!(settlements.is_empty(), "no client has named itself");
                }
                LaneOrder::HandBack(settlements) => {
                    for settlement in settlements {
                        assert_eq!(settlement.outcome, Outcome::HandBack);
                        let job: u32 = settlement.key.id.as_str().parse().unwrap();
                        let topic = self.lanes[lane].leased.remove(&job).expect("it is leased here");
                        self.lanes[lane].ready.get_mut(&topic).unwrap().push_front(job);
                        self.ring(lane, &topic);
                    }
                }
                LaneOrder::Permits(asks) => {
                    let grant = |want: u32| Permit { granted: want.min(2), again: Some(5 * MS) };
                    let permits = asks.iter().map(|ask| Ok(grant(ask.want))).collect();
                    self.broker.permitted(&asks, permits, self.now);
                }
            }
        }
        for (id, answer) in self.broker.take_answers() {
            let (reserve, is_there) = self.clients.remove(&id).expect("one answer for each client");
            assert!(is_there, "it has left");
            let jobs = answer.unwrap_or_default();
            assert!(jobs.len() <= reserve.max as usize);
            self.check_order(id, &reserve, &jobs);
            self.without.remove(&id);
            assert!(!jobs.is_empty() || self.now >= reserve.until, "it would have waited");
            assert!(self.now <= reserve.until + 3 * Duration::from_secs(1), "it waited too long");
            for ReservedLease { leased, .. } in jobs {
                assert!(reserve.topics.contains(&leased.key.topic));
                let job: u32 = leased.key.id.as_str().parse().unwrap();
                assert!(self.done.insert(job), "a job went to two clients");
                let of = |lane: &mut SimulatedLane| lane.leased.remove(&job).is_some();
                assert!(self.lanes.iter_mut().any(of), "it is leased");
                self.broker.settled(&leased.key.topic);
            }
        }
    }

    fn answer_orders(&mut self, may_fail: bool) {
        for lane in 0..2 {
            if self.lanes[lane].order.as_ref().is_none_or(|(at, _)| *at > self.now) {
                continue;
            }
            let (_, calls) = self.lanes[lane].order.take().unwrap();
            let answers = match self.rng.u8(0..30) {
                0 if may_fail => Err(StoreError::Unavailable("no answer".into())),
                _ => Ok(calls.iter().map(|call| Ok(self.lease(lane, call))).collect()),
            };
            self.broker.leased(lane, answers, self.now);
        }
    }

    /// Describes what is ready or leased, and which topics the clients wait for.
    fn left(&self) -> Vec<String> {
        let lane = |lane: &SimulatedLane| format!("{:?} {:?} {:?}", lane.ready, lane.leased, lane.order);
        let waiting = self.clients.values().map(|(reserve, _)| format!("{:?}", reserve.topics));
        self.lanes.iter().map(lane).chain(waiting).collect()
    }

    pub(super) fn step(&mut self, may_fail: bool) {
        self.answer_orders(may_fail);
        self.act();
        self.now += MS;
    }
}

fn reserved(topic: TopicName, job: u32) -> ReservedLease {
    let leased = LeasedJob {
        key: JobKey { topic, id: JobId::new(job.to_string()).unwrap() },
        body: Body::trusted("1"),
        token: Token(job.to_be_bytes().into()),
        attempt: 1,
        due_ms: 0,
        stamp_us: 0,
        leased_ms: 0,
        deadline_ms: 0,
        max_attempts: None,
        probe: None,
        headers: Default::default(),
    };
    ReservedLease { leased, ticket: Some(String::new()) }
}

fn run(seed: u64) {
    let mut world = World { is_calm: seed.is_multiple_of(2), ..World::new(seed) };
    for _ in 0..2000 {
        match world.rng.u8(0..20) {
            0..=3 => {
                let topic = ["a", "b", "few", "slow"][world.rng.usize(0..4)];
                world.add(topic);
            }
            4..=6 => {
                let wait = MS * world.rng.u32(0..3) * 400;
                world.add_client(wait);
            }
            7 => {
                let waiting: Vec<u64> = world.clients.keys().copied().collect();
                if let Some(id) = waiting.first() {
                    world.broker.remove_client(*id);
                    world.clients.remove(id);
                    world.without.remove(id);
                }
            }
            _ => {}
        }
        world.step(!world.is_calm);
    }
    // Clients that wait get all jobs that are left, although some rings are lost.
    for _ in 0..60_000 {
        if world.done.len() as u32 == world.jobs {
            break;
        }
        if world.clients.len() < 8 {
            world.add_client_for(4, Duration::from_secs(20));
        }
        world.step(false);
    }
    assert_eq!(world.done.len() as u32, world.jobs, "seed {seed}: {:?}", world.left());
}

#[test]
fn each_job_goes_to_one_client_and_none_is_forgotten() {
    (0..20).for_each(run);
}

#[test]
fn clients_that_wait_cost_nothing_until_a_bell_rings() {
    let mut world = World::new(1);
    (0..5000).for_each(|_| world.add_client(Duration::from_secs(60)));
    (0..100).for_each(|_| world.step(false));
    let before = world.orders;
    let end = world.now + Duration::from_secs(9);
    let mut wakes = 0;
    while let Some(next) = world.broker.next(world.now).filter(|next| *next < end) {
        world.now = next.max(world.now + MS);
        world.step(false);
        wakes += 1;
    }
    assert_eq!((world.orders - before, wakes), (0, 0), "nothing is asked, and nothing is looked at");
    world.add("a");
    world.ring(0, &name("a"));
    world.ring(1, &name("a"));
    (0..20).for_each(|_| world.step(false));
    assert_eq!(world.done.len(), 1);
    assert!(world.orders - before <= 4, "{} orders", world.orders - before);
}

#[test]
fn the_order_of_preference_holds_over_all_lanes() {
    for places in 0..16_usize {
        let lane_of = |bit: usize| places >> bit & 1;
        let mut world = World { is_calm: true, ..World::new(3) };
        // Each topic has one job, on one of the two lanes. The permits of a topic with a rate have not come yet.
        for (bit, topic) in ["slow", "a", "few", "b"].into_iter().enumerate() {
            let ready = world.lanes[lane_of(bit)].ready.entry(name(topic)).or_default();
            ready.push_back(bit as u32);
            world.jobs += 1;
        }
        let topics: Vec<TopicName> = ["slow", "a", "few", "b"].into_iter().map(name).collect();
        for id in 0..4 {
            let until = world.now + Duration::from_millis(if id < 2 { 0 } else { 1000 });
            world.come_as(
                id,
                Reserve { topics: topics.clone(), max: 1, lease: None, is_owned: false, client: None, until },
            );
            (0..200).for_each(|_| world.step(false));
            assert_eq!(world.done.len() as u64, id + 1, "{places:b}");
            assert!(world.done.contains(&(id as u32)), "{places:b}: {:?}", world.done);
        }
    }
}

#[test]
fn a_removed_job_of_a_client_that_is_gone_goes_to_another() {
    let mut world = World::new(5);
    let [gone, a, push] = ["gone", "a", "push"].map(name);
    let reserve = |topic: &TopicName| Reserve {
        topics: vec![topic.clone()],
        max: 1,
        lease: None,
        is_owned: false,
        client: None,
        until: world.now + Duration::from_secs(60),
    };
    // This client needs a lease, and a removed job has none.
    world.broker.reserve(0, Reserve { is_owned: true, ..reserve(&gone) }, world.now);
    world.broker.reserve(1, reserve(&gone), world.now);
    world.broker.reserve(2, reserve(&gone), world.now);
    world.broker.reserve(3, reserve(&a), world.now);
    let removed = |topic: &TopicName, job| ReservedLease { ticket: None, ..reserved(topic.clone(), job) };
    // Nobody waits for the first job.
    world.broker.refuse(0, vec![removed(&push, 7), removed(&gone, 8), removed(&gone, 9), reserved(a, 10)]);
    let answers = world.broker.take_answers().into_iter().map(|(id, answer)| (id, answer.unwrap()));
    let given: Vec<_> = answers.map(|(id, jobs)| (id, jobs[0].leased.key.to_string(), jobs.len())).collect();
    assert_eq!(given, [(1, "gone:8".into(), 1), (2, "gone:9".into(), 1)]);
    let orders = world.broker.take_orders();
    let [(0, LaneOrder::HandBack(back))] = &orders[..] else { panic!("{} orders", orders.len()) };
    assert_eq!(back.iter().map(|back| back.key.to_string()).collect::<Vec<_>>(), ["a:10"]);
}

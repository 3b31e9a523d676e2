//! A lane of the simulated store: ready jobs, leases, the bell, circuits and permits. It follows the rules of the store
//! on Redis (in its Lua files), or of the embedded store, where a bell wakes every process.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use fastrand::Rng;

use model::destination::Destination;
use model::flow::{LimitName, TokenBucket};
use model::headers::Headers;
use model::job::{Body, JobId, JobKey, TopicName};
use store::{
    CircuitOpening, LeaseRequest, LeaseResult, LeasedJob, Outcome, PERMIT_HOLDS, Permit, PermitRequest,
    Settlement, Token, TopicRing,
};

/// The number of a job.
pub(super) type JobNumber = u64;

#[derive(Default)]
pub(super) struct SimulatedLane {
    /// The ready jobs, each with the time when it became ready.
    ready: BTreeMap<TopicName, VecDeque<(JobNumber, Instant)>>,
    leases: BTreeMap<Token, (JobNumber, TopicName, usize)>,
    /// When each lease began.
    pub(super) leased_at: HashMap<Token, Instant>,
    /// The topics whose rings no process has heard yet, each with the number of its ring. `None`: a ring that names no
    /// topic.
    bell: BTreeMap<Option<TopicName>, u64>,
    rings: u64,
    /// The number of the lane, and the number of the last lease. A token contains both numbers.
    number: usize,
    tokens: u64,
    circuits: HashMap<TopicName, SimulatedCircuit>,
    /// How many permits each process holds, and since when.
    held: HashMap<(LimitName, usize), (u32, Instant)>,
    spent_us: HashMap<LimitName, f64>,
    attempts: HashMap<JobNumber, u32>,
    /// Jobs that have ended.
    pub(super) ended: u64,
    /// How many times jobs were postponed.
    pub(super) postponed: u64,
}

#[derive(Clone, Copy)]
struct SimulatedCircuit {
    until: Instant,
    probe_until: Instant,
    opens: u32,
}

/// What follows from settlements: jobs that are ready again after a pause.
pub(super) type SimulatedRetries = Vec<(JobNumber, TopicName, Duration)>;

impl SimulatedLane {
    pub(super) fn new(number: usize) -> SimulatedLane {
        SimulatedLane { number, ..SimulatedLane::default() }
    }

    pub(super) fn make_ready(&mut self, topic: &TopicName, job: JobNumber, now: Instant) {
        self.ready.entry(topic.clone()).or_default().push_back((job, now));
        self.ring(topic);
    }

    fn ring(&mut self, topic: &TopicName) {
        self.rings += 1;
        self.bell.entry(Some(topic.clone())).or_insert(self.rings);
    }

    /// Rings for these topics, if they have ready jobs.
    pub(super) fn pass_on(&mut self, topics: &[TopicName]) {
        for topic in topics {
            if self.has_ready(topic) {
                self.ring(topic);
            }
        }
    }

    /// Makes a ring without a topic, and a ring for each topic that has ready jobs.
    pub(super) fn announce(&mut self) {
        self.rings += 1;
        self.bell.entry(None).or_insert(self.rings);
        let topics: Vec<TopicName> = self.ready.keys().cloned().collect();
        self.pass_on(&topics);
    }

    pub(super) fn give_back(&mut self, rings: &[TopicRing]) {
        for ring in rings {
            if self.has_ready(&ring.topic) {
                self.bell.entry(Some(ring.topic.clone())).or_insert(ring.number.parse().unwrap());
            }
        }
    }

    /// Takes the oldest ring.
    pub(super) fn take_ring(&mut self) -> Option<(Option<TopicName>, u64)> {
        let oldest = self.bell.iter().min_by_key(|(_, number)| **number)?.0.clone();
        self.bell.remove_entry(&oldest)
    }

    pub(super) fn is_rung(&self) -> bool {
        !self.bell.is_empty()
    }

    pub(super) fn has_ready(&self, topic: &TopicName) -> bool {
        self.ready.get(topic).is_some_and(|jobs| !jobs.is_empty())
    }

    /// Returns the topics with ready jobs, and since when the first job of each topic is ready.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&TopicName, Instant)> {
        self.ready.iter().filter_map(|(topic, jobs)| Some((topic, jobs.front()?.1)))
    }

    pub(super) fn ready(&self) -> impl Iterator<Item = (&TopicName, usize)> {
        self.ready.iter().map(|(topic, jobs)| (topic, jobs.len())).filter(|(_, n)| *n > 0)
    }

    /// Leases up to `limit` jobs for a process, as lease.lua does.
    pub(super) fn lease(
        &mut self,
        wanted: &[LeaseRequest],
        limit: usize,
        owner: usize,
        rng: &mut Rng,
        now: Instant,
    ) -> LeaseResult {
        let mut batch = LeaseResult::default();
        let circuits = &self.circuits;
        let waits = |topic: &TopicName| {
            let circuit = circuits.get(topic)?;
            let until = circuit.until.max(circuit.probe_until);
            (until > now).then(|| (topic.clone(), until - now))
        };
        batch.waiting = self.ready().filter_map(|(topic, _)| waits(topic)).collect();
        for (topic, _) in &batch.waiting {
            self.bell.remove(&Some(topic.clone()));
        }
        for want in wanted.iter().filter(|want| waits(&want.topic).is_none()).cloned().collect::<Vec<_>>() {
            let LeaseRequest { topic, max, hold, .. } = want;
            let mut opens = self.circuits.get(&topic).map(|circuit| circuit.opens);
            let most = if opens.is_some() { 1 } else { max as usize }.min(limit - batch.jobs.len());
            let jobs = self.ready.entry(topic.clone()).or_default();
            let taken: Vec<JobNumber> =
                jobs.drain(..most.min(jobs.len())).map(|(number, _)| number).collect();
            opens = opens.filter(|_| !taken.is_empty());
            for number in taken {
                self.tokens += 1;
                let token = Token(format!("{}:{}", self.number, self.tokens).into_bytes().into());
                self.leases.insert(token.clone(), (number, topic.clone(), owner));
                self.leased_at.insert(token.clone(), now);
                let attempt = self.attempts.entry(number).or_default();
                *attempt += 1;
                batch.jobs.push(leased(topic.clone(), number, token, *attempt, opens));
            }
            if opens.is_some() {
                self.circuits.get_mut(&topic).unwrap().probe_until = now + hold;
                self.bell.remove(&Some(topic.clone()));
                batch.waiting.push((topic, hold));
            } else if self.has_ready(&topic) {
                batch.left.push((topic.clone(), self.ready[&topic].len() as u64));
                self.ring(&topic);
            }
        }
        let asked = |topic: &TopicName| wanted.iter().any(|want| want.topic == *topic);
        let others = self
            .ready()
            .filter(|(topic, _)| !asked(topic) && !batch.waiting.iter().any(|(t, _)| t == *topic));
        batch.left.extend(others.filter(|_| rng.u8(0..4) > 0).map(|(topic, n)| {
            let n = if self.circuits.contains_key(topic) { 1 } else { n as u64 };
            (topic.clone(), n)
        }));
        batch
    }

    /// Settles outcomes. Returns which jobs must be made ready again and when. A settlement has no effect if its lease
    /// has ended.
    pub(super) fn settle(&mut self, settlements: &[Settlement]) -> SimulatedRetries {
        let mut retries = Vec::new();
        for Settlement { token, outcome, .. } in settlements {
            let Some((job, topic, _)) = self.leases.remove(token) else { continue };
            match outcome {
                Outcome::Retry(due) => {
                    let model::job::Due::In(pause) = due else { panic!("{due:?}") };
                    retries.push((job, topic, *pause));
                }
                Outcome::Postpone(due) => {
                    let model::job::Due::In(pause) = due else { panic!("{due:?}") };
                    *self.attempts.get_mut(&job).unwrap() -= 1;
                    self.postponed += 1;
                    retries.push((job, topic, *pause));
                }
                Outcome::HandBack => {
                    *self.attempts.get_mut(&job).unwrap() -= 1;
                    retries.push((job, topic, Duration::ZERO));
                }
                Outcome::Ack | Outcome::DeadLetter => self.ended += 1,
                other => panic!("{other:?}"),
            }
        }
        retries
    }

    /// Takes back these leases, if they have not ended. If `tokens` is `None`, takes back all leases of the process.
    pub(super) fn take_back(&mut self, tokens: Option<&[Token]>, owner: usize, now: Instant) {
        let is_meant = |token: &Token, of: usize| of == owner && tokens.is_none_or(|t| t.contains(token));
        let meant = self.leases.iter().filter(|(token, (_, _, of))| is_meant(token, *of));
        for token in meant.map(|(token, _)| token.clone()).collect::<Vec<_>>() {
            let (job, topic, _) = self.leases.remove(&token).unwrap();
            self.make_ready(&topic, job, now);
        }
        if tokens.is_none() {
            self.held.retain(|(_, of), _| *of != owner);
        }
    }

    pub(super) fn leases(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn leases_of(&self, owner: usize) -> impl Iterator<Item = &Token> {
        self.leases.iter().filter(move |(_, (_, _, of))| *of == owner).map(|(token, _)| token)
    }

    /// Grants permits, as permits.lua does.
    pub(super) fn permit(
        &mut self,
        owner: usize,
        ask: &PermitRequest,
        now: Instant,
        start: Instant,
    ) -> Permit {
        let (mut granted, mut again) = (ask.want, None);
        self.held.retain(|_, (_, since)| *since + PERMIT_HOLDS > now);
        if let Some(most) = ask.max_in_flight {
            let others = self.held.iter().filter(|((name, of), _)| *name == ask.name && *of != owner);
            let others: u32 = others.map(|(_, (held, _))| held).sum();
            granted = granted.min(most.saturating_sub(ask.held + others));
        }
        if let Some(rate) = ask.rate {
            let spent = self.spent_us.entry(ask.name.clone()).or_default();
            let now_us = (now - start).as_micros() as f64;
            let taken = TokenBucket::from(rate).take(*spent, now_us, ask.unused, granted);
            (granted, again, *spent) = (taken.granted, taken.again, taken.spent_us);
        }
        self.held.insert((ask.name.clone(), owner), (ask.held + granted, now));
        Permit { granted, again }
    }

    /// Opens a circuit, as open.lua does. Returns whether it was closed before.
    pub(super) fn open(
        &mut self,
        CircuitOpening { topic, pause, opens, .. }: &CircuitOpening,
        now: Instant,
    ) -> bool {
        self.bell.remove(&Some(topic.clone()));
        let was = self.circuits.get(topic).copied();
        if let Some(was) = was {
            let is_probed = *opens == 1 && was.probe_until > now && !pause.is_zero();
            if was.until > now && was.opens >= *opens || is_probed {
                return false;
            }
        } else if pause.is_zero() {
            return false;
        }
        self.circuits
            .insert(topic.clone(), SimulatedCircuit { until: now + *pause, probe_until: now, opens: *opens });
        was.is_none()
    }

    /// Closes a circuit, as close.lua does. Returns whether it was open before.
    pub(super) fn close(&mut self, topic: &TopicName) -> bool {
        let was = self.circuits.remove(topic).is_some();
        if was {
            self.pass_on(std::slice::from_ref(topic));
        }
        was
    }
}

/// Some jobs have a URL of their own, if their topics allow it.
pub(super) fn destination_of(number: JobNumber) -> Option<Destination> {
    number.is_multiple_of(3).then(|| Destination::Url("http://h1.example/".to_owned()))
}

fn leased(topic: TopicName, number: JobNumber, token: Token, attempt: u32, probe: Option<u32>) -> LeasedJob {
    LeasedJob {
        key: JobKey { topic, id: JobId::new(number.to_string().as_str()).unwrap() },
        body: Body::trusted("1"),
        token,
        attempt,
        due_ms: 0,
        stamp_us: 0,
        leased_ms: 0,
        deadline_ms: 0,
        max_attempts: None,
        probe,
        headers: Headers::default().with_destination(destination_of(number)),
    }
}

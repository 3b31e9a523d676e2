//! Leases. See `lease_token` for their tokens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::answer::{self, LiveJobRecord, array, count, number, unexpected};
use super::homes::Homes;
use super::lease_token::{LeaseCallPrefix, new_prefix};
use super::node::Call;
use super::nodes::Place;
use super::script::Script;
use super::{CHUNK, RedisStore};
use crate::{
    CircuitWaits, HELD_MS, LEASE_BYTES, LeaseRequest, LeaseResult, LeasedJob, Leases, OwnerTag, ReadyCounts,
    Result, StoreError,
};
use model::headers::Headers;
use model::job::{JobKey, LATEST_MS, TopicName};
use model::job_priority::JobPriority;

/// The largest number of shards for which dq asks each shard for jobs. With more shards, dq first checks which of them
/// have ready jobs.
pub(super) const FEW: usize = 4;

/// How many times in all dq tries to lease a named job, if the set of nodes changes meanwhile.
const LEASE_JOB_TRIES: usize = 4;

/// Returns how long a lease lasts, in milliseconds, for the script.
fn hold_ms(want: &LeaseRequest) -> i64 {
    want.hold.as_millis().min(LATEST_MS as u128) as i64
}

fn hold_of(wanted: &[LeaseRequest], topic: &TopicName) -> i64 {
    wanted.iter().find(|want| want.topic == *topic).map_or(0, hold_ms)
}

/// How many jobs of a topic are leased on a shard.
type LeasedCounts = BTreeMap<(TopicName, Place), usize>;

/// Returns what a lease requests from one shard: the part of the limits that the other shards have not used.
fn wanted_here(
    wanted: &[LeaseRequest],
    leased: &LeasedCounts,
    here: Place,
    jobs: &[(JobPriority, LeasedJob)],
) -> Vec<LeaseRequest> {
    let of = |want: &LeaseRequest| {
        let others = leased.iter().filter(|((topic, place), _)| *topic == want.topic && *place != here);
        let new = jobs.iter().filter(|(_, job)| job.key.topic == want.topic).count();
        let elsewhere = others.map(|(_, n)| *n).sum::<usize>() + new;
        let left =
            want.max_leased.map(|most| most.saturating_sub(u32::try_from(elsewhere).unwrap_or(u32::MAX)));
        LeaseRequest { max_leased: left, ..want.clone() }
    };
    wanted.iter().map(of).collect()
}

/// Returns the texts of the headers of those leased jobs that have headers. Each key is the number of a job in the
/// answer.
fn headers(packed: Option<Value>) -> Result<BTreeMap<u32, Vec<u8>>> {
    let mut values = packed.map_or_else(|| Ok(Vec::new()), array)?.into_iter();
    let mut headers = BTreeMap::new();
    while let (Some(number), Some(text)) = (values.next(), values.next()) {
        headers.insert(count(&number)? as u32, answer::bytes(text)?);
    }
    Ok(headers)
}

/// Returns the deadlines of the leases that last for the `ttr` of their job, by the number of the job in the answer.
fn own_deadlines(packed: Option<Value>) -> Result<BTreeMap<u32, i64>> {
    let values = packed.map_or_else(|| Ok(Vec::new()), array)?;
    let pair = |pair: &[Value]| Ok((count(&pair[0])? as u32, number(&pair[1])?));
    values.chunks_exact(2).map(pair).collect()
}

impl RedisStore {
    /// Makes a call that leases up to [`CHUNK`] jobs on one shard. `jobs`: the jobs that were leased so far.
    pub(super) fn lease_call(
        &self,
        place: Place,
        homes: &Homes,
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
        jobs: &[(JobPriority, LeasedJob)],
    ) -> Result<(LeaseCallPrefix, Call)> {
        let prefix = new_prefix()?;
        let mut call = self.nodes.call(Script::Lease, place, homes);
        let tag = owner.map_or("", |o| o.0.as_str());
        let bytes: usize = jobs.iter().map(|(_, job)| job.body.as_str().len()).sum();
        let bytes_left = LEASE_BYTES.saturating_sub(bytes);
        call.cmd.arg(limit.min(CHUNK)).arg(&prefix[..]).arg(tag).arg(CHUNK).arg(bytes_left);
        for want in wanted {
            let taken = jobs.iter().filter(|(_, j)| j.key.topic == want.topic).count() as u32;
            let max = want.max.saturating_sub(taken);
            let hold = hold_ms(want);
            call.cmd.arg(want.topic.as_str()).arg(max).arg(hold).arg(want.max_attempts);
            call.cmd.arg(want.max_leased.map_or(String::new(), |most| most.to_string()));
            call.cmd.arg(if want.is_own_ttr { "1" } else { "" });
        }
        Ok((prefix, call))
    }

    /// Reads the answer of a lease call, and adds its jobs to `jobs`. Returns how many jobs the call leased, which
    /// topics have ready jobs left, and which topics wait for their circuit.
    pub(super) fn take_leased(
        &self,
        place: Place,
        prefix: &LeaseCallPrefix,
        wanted: &[LeaseRequest],
        answer: Value,
        jobs: &mut Vec<(JobPriority, LeasedJob)>,
    ) -> Result<(usize, ReadyCounts, CircuitWaits)> {
        let before = jobs.len();
        let mut parts = array(answer)?.into_iter();
        let (Some(groups), Some(left), Some(waiting)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(unexpected("an answer"));
        };
        let mut headers = headers(parts.next())?;
        let own_deadlines = own_deadlines(parts.next())?;
        let mut token = 0;
        for group in array(groups)? {
            let mut values = array(group)?.into_iter();
            let mut next = || values.next().ok_or_else(|| unexpected("a lease"));
            let topic = answer::topic(next()?)?;
            let deadline_ms = number(&next()?)?;
            // The deadline is the shard's time at the lease, plus `hold`.
            let leased_ms = deadline_ms.saturating_sub(hold_of(wanted, &topic));
            while let Some(id) = values.next() {
                let mut next = || values.next().ok_or_else(|| unexpected("a lease"));
                let record = LiveJobRecord::parse(&answer::bytes(next()?)?)?;
                token += 1;
                let own = headers.remove(&token).unwrap_or_default();
                let leased = LeasedJob {
                    key: JobKey { topic: topic.clone(), id: answer::id(id)? },
                    body: record.body,
                    token: self.token(place, prefix, token),
                    attempt: count(&next()?)? as u32,
                    due_ms: number(&next()?)?,
                    stamp_us: record.stamp_us,
                    leased_ms,
                    deadline_ms: own_deadlines.get(&token).copied().unwrap_or(deadline_ms),
                    max_attempts: record.max_attempts,
                    probe: None,
                    headers: answer::headers(&own),
                };
                jobs.push((answer::priority(record.level, &own), leased));
            }
        }
        let (mut ready_counts, mut left) = (Vec::new(), array(left)?.into_iter());
        while let (Some(topic), Some(n)) = (left.next(), left.next()) {
            ready_counts.push((answer::topic(topic)?, count(&n)? as u64));
        }
        let mut closed = Vec::new();
        for three in array(waiting)?.chunks(3) {
            let [topic, ms, opens] = three else { return Err(unexpected("an answer")) };
            let (topic, opens) = (answer::topic(topic.clone())?, count(opens)? as u32);
            let probes = jobs[before..].iter_mut().filter(|(_, j)| opens > 0 && j.key.topic == topic);
            probes.for_each(|(_, j)| j.probe = Some(opens));
            closed.push((topic, Duration::from_millis(count(ms)? as u64)));
        }
        Ok((token as usize, ready_counts, closed))
    }

    /// Returns the shards that may have ready jobs. Asks each shard once.
    fn with_work(
        &self,
        places: Vec<Place>,
        worked: &mut bool,
        failed: &mut Option<StoreError>,
    ) -> Vec<Place> {
        let look =
            |place: Place| (place, self.nodes.nodes[place.node].plain("EXISTS", place.shard, "leasable"));
        let mut found = Vec::new();
        for (place, answer) in self.ask_all(places.into_iter().map(look).collect()) {
            match answer.and_then(|n| number(&n)) {
                Ok(n) => {
                    *worked = true;
                    found.extend((n > 0).then_some(place));
                }
                Err(e) => *failed = Some(e),
            }
        }
        found
    }

    /// Returns for each topic with a limit how many of its jobs are leased on each shard of all nodes. A shard that
    /// does not answer counts as a shard without leases.
    fn leased_everywhere(&self, homes: &Homes, wanted: &[LeaseRequest]) -> LeasedCounts {
        let nodes = (0..self.nodes.count()).filter(|node| homes.has(*node));
        let places: Vec<Place> = nodes.flat_map(|node| self.nodes.shards_of(node)).collect();
        let mut leased = LeasedCounts::new();
        for want in wanted.iter().filter(|want| want.max_leased.is_some()) {
            let key = format!("l:{}", want.topic);
            let ask = |place: Place| (place, self.nodes.nodes[place.node].plain("ZCARD", place.shard, &key));
            for (place, answer) in self.ask_all(places.iter().copied().map(ask).collect()) {
                let n = answer.and_then(|n| count(&n)).unwrap_or(0);
                leased.insert((want.topic.clone(), place), n);
            }
        }
        leased
    }

    /// Returns the shards in an order that begins with another shard each time.
    pub(super) fn in_turn(&mut self, mut places: Vec<Place>) -> Vec<Place> {
        self.turn = (self.turn + 1) % places.len().max(1);
        places.rotate_left(self.turn);
        places
    }

    /// Leases jobs on some shards, one shard after the other, up to `limit` jobs in all.
    pub(super) fn lease_on(
        &mut self,
        places: &[Place],
        homes: &Arc<Homes>,
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
        found: &mut LeaseProgress,
    ) {
        for place in places {
            if let Err(e) = self.is_answered(*place) {
                found.note(Err(e));
                continue;
            }
            loop {
                let left = limit - found.jobs.len();
                let asked = self.lease_call(*place, homes, wanted, left, owner, &found.jobs);
                let taken = asked.and_then(|(prefix, call)| {
                    let answer = self.ask(*place, call);
                    self.note_unanswered(*place, homes, prefix, owner, &answer);
                    self.take_leased(*place, &prefix, wanted, answer?, &mut found.jobs)
                });
                // If the answer is full, the shard may have more of the wanted jobs.
                let is_full = matches!(taken, Ok((CHUNK, ..))) && found.jobs.len() < limit;
                if is_full {
                    continue;
                }
                found.note(taken);
                break;
            }
        }
    }
}

/// The results of a lease so far.
#[derive(Default)]
pub(super) struct LeaseProgress {
    pub jobs: Vec<(JobPriority, LeasedJob)>,
    left: BTreeMap<TopicName, u64>,
    waiting: BTreeMap<TopicName, Duration>,
    /// Whether any shard has answered.
    worked: bool,
    failed: Option<StoreError>,
}

impl LeaseProgress {
    /// Adds what a shard answered to its last call. (A shard may get several calls.)
    pub(super) fn note(&mut self, answer: Result<(usize, ReadyCounts, CircuitWaits)>) {
        match answer {
            Ok((_, left, closed)) => {
                self.worked = true;
                // If a topic has several waits, the shortest wait is used.
                for (topic, wait) in closed {
                    let known = self.waiting.entry(topic).or_insert(wait);
                    *known = wait.min(*known);
                }
                left.into_iter().for_each(|(topic, n)| *self.left.entry(topic).or_default() += n);
            }
            Err(e) => self.failed = Some(e),
        }
    }

    pub(super) fn into_batch(mut self, wanted: &[LeaseRequest]) -> Result<LeaseResult> {
        match self.failed {
            // Leases from other shards are returned despite the error, because no other process knows of them.
            Some(e) if !self.worked && self.jobs.is_empty() => Err(e),
            _ => {
                let order = |topic: &TopicName| wanted.iter().position(|w| w.topic == *topic);
                self.jobs.sort_by_cached_key(|(priority, j)| (order(&j.key.topic), *priority, j.due_ms));
                let jobs = self.jobs.into_iter().map(|(_, leased)| leased).collect();
                let (left, waiting) = (self.left.into_iter().collect(), self.waiting.into_iter().collect());
                Ok(LeaseResult { jobs, left, waiting })
            }
        }
    }
}

impl RedisStore {
    fn lease_job_at_home(
        &mut self,
        key: &JobKey,
        hold: Duration,
        max_attempts: u32,
        owner: Option<&OwnerTag>,
    ) -> Result<Option<LeasedJob>> {
        let homes = self.nodes.open_homes()?;
        let place = self.nodes.place(homes.home(key)?, key);
        self.is_answered(place)?;
        let prefix = new_prefix()?;
        let hold_ms = hold.as_millis().min(LATEST_MS as u128) as i64;
        let mut call = self.nodes.call(Script::LeaseJob, place, &homes);
        call.cmd.arg(key.topic.as_str()).arg(key.id.as_str()).arg(hold_ms).arg(&prefix[..]);
        call.cmd.arg(owner.map_or("", |owner| owner.0.as_str())).arg(max_attempts).arg(HELD_MS);
        let answer = self.ask_by(place, call);
        self.note_unanswered(place, &homes, prefix, owner, &answer);
        let mut values = array(answer?)?.into_iter();
        let Some(deadline) = values.next() else { return Ok(None) };
        let mut next = || values.next().ok_or_else(|| unexpected("a lease"));
        let (deadline_ms, record) = (number(&deadline)?, LiveJobRecord::parse(&answer::bytes(next()?)?)?);
        let (attempt, due_ms) = (count(&next()?)? as u32, number(&next()?)?);
        let headers = answer::bytes(next()?)?;
        Ok(Some(LeasedJob {
            key: key.clone(),
            body: record.body,
            token: self.token(place, &prefix, 1),
            attempt,
            due_ms,
            stamp_us: record.stamp_us,
            // The deadline is the shard's time at the lease, plus `hold`.
            leased_ms: deadline_ms.saturating_sub(hold_ms),
            deadline_ms,
            max_attempts: record.max_attempts,
            probe: None,
            headers: if headers.is_empty() { Headers::default() } else { answer::headers(&headers) },
        }))
    }
}

impl Leases for RedisStore {
    fn lease(
        &mut self,
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> Result<LeaseResult> {
        let (homes, places) = self.delivering()?;
        let mut found = LeaseProgress::default();
        self.take_back_before_lease();
        let places = match places.len() {
            ..=FEW => places,
            _ => self.with_work(places, &mut found.worked, &mut found.failed),
        };
        let places = self.in_turn(places);
        if wanted.iter().all(|want| want.max_leased.is_none()) {
            self.lease_on(&places, &homes, wanted, limit, owner, &mut found);
        } else {
            let leased = self.leased_everywhere(&homes, wanted);
            for place in places {
                let here = wanted_here(wanted, &leased, place, &found.jobs);
                self.lease_on(&[place], &homes, &here, limit, owner, &mut found);
            }
        }
        found.into_batch(wanted)
    }

    fn lease_job(
        &mut self,
        key: &JobKey,
        hold: Duration,
        max_attempts: u32,
        owner: Option<&OwnerTag>,
    ) -> Result<Option<LeasedJob>> {
        self.take_back_before_lease();
        let mut leased = Err(unexpected("no answer"));
        for _ in 0..LEASE_JOB_TRIES {
            leased = self.lease_job_at_home(key, hold, max_attempts, owner);
            if !matches!(leased, Err(StoreError::Moving(_))) {
                break;
            }
        }
        if matches!(leased, Err(StoreError::Unknown(_))) {
            self.take_back_before_lease();
        }
        leased
    }

    fn take_back_unanswered(&mut self) -> Result<()> {
        self.take_back_all()
    }
}

//! Leasing, and the tokens that prove a lease and say where it is.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::answer::{self, Record, array, count, number, strange};
use super::node::Call;
use super::nodes::{Nodes, Place};
use super::script::Script;
use super::{BYTES, CHUNK, RedisStore};
use crate::headers::Headers;
use crate::job::{JobKey, LATEST_MS, Priority, TopicName};
use crate::store::{Batch, Leased, Left, OwnerTag, Result, StoreError, Token, Waiting, Wanted};
use crate::ticket::Secret;

/// More shards than this are looked at before they are asked one after the other.
pub(super) const FEW: usize = 4;

/// The token of the lease on a shard: what the script knows (20 bytes), the shard (2), the node's name.
pub(super) const SCRIPT_TOKEN: usize = 20;

/// What the tokens of a lease begin with: random bytes, never given twice.
pub(super) type Prefix = [u8; 16];

impl Nodes {
    /// Where the lease of a token is; none: it is no token of these nodes.
    pub(super) fn place_of(&self, token: &Token) -> Option<Place> {
        let parts =
            token.0.split_at_checked(SCRIPT_TOKEN).and_then(|(_, rest)| rest.split_first_chunk::<2>());
        parts.and_then(|(shard, name)| {
            let node = self.nodes.iter().position(|n| n.name.as_bytes() == name)?;
            let shard = usize::from(u16::from_be_bytes(*shard));
            (shard < self.nodes[node].bases.len()).then_some(Place { node, shard })
        })
    }

    /// The node of a lease.
    pub fn lane_of_token(&self, token: &Token) -> Option<usize> {
        self.place_of(token).map(|place| place.node)
    }
}

/// How long a lease holds, as the script is told.
fn hold_ms(want: &Wanted) -> i64 {
    want.hold.as_millis().min(LATEST_MS as u128) as i64
}

fn hold_of(wanted: &[Wanted], topic: &TopicName) -> i64 {
    wanted.iter().find(|want| want.topic == *topic).map_or(0, hold_ms)
}

/// The headers of those leased jobs that have some, by their number in the answer.
fn headers(told: Option<Value>) -> Result<BTreeMap<u32, Headers>> {
    let mut values = told.map_or_else(|| Ok(Vec::new()), array)?.into_iter();
    let mut headers = BTreeMap::new();
    while let (Some(number), Some(text)) = (values.next(), values.next()) {
        headers.insert(count(&number)? as u32, answer::headers(&answer::bytes(text)?));
    }
    Ok(headers)
}

impl RedisStore {
    fn token(&self, place: Place, prefix: &Prefix, number: u32) -> Token {
        let shard = (place.shard as u16).to_be_bytes();
        let name = self.nodes.nodes[place.node].name.as_bytes();
        Token([&prefix[..], &number.to_be_bytes(), &shard, name].concat().into())
    }

    /// What tickets for a node's leases are signed with.
    pub(super) fn secret_of(&self, node: usize) -> Result<Secret> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
        let place = Place { node, shard: 0 };
        let mut call = self.call(Script::Secret, place);
        call.cmd.arg(&random[..]);
        let secret = answer::bytes(self.ask(place, call)?)?;
        Secret::of(&secret).ok_or_else(|| strange("the secret of tickets"))
    }

    /// A call that leases on one shard, up to [`CHUNK`] jobs. `jobs`: what was leased so far.
    pub(super) fn lease_call(
        &self,
        place: Place,
        wanted: &[Wanted],
        limit: usize,
        owner: Option<&OwnerTag>,
        jobs: &[(Priority, Leased)],
    ) -> Result<(Prefix, Call)> {
        let mut prefix = [0; 16];
        getrandom::fill(&mut prefix)
            .map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
        let mut call = self.call(Script::Lease, place);
        let tag = owner.map_or("", |o| o.0.as_str());
        call.cmd.arg(limit.min(CHUNK)).arg(&prefix[..]).arg(tag).arg(CHUNK).arg(BYTES);
        for want in wanted {
            let taken = jobs.iter().filter(|(_, j)| j.key.topic == want.topic).count() as u32;
            let max = want.max.saturating_sub(taken);
            let hold = hold_ms(want);
            call.cmd.arg(want.topic.as_str()).arg(max).arg(hold).arg(want.max_attempts);
        }
        Ok((prefix, call))
    }

    /// Takes what it answers. Adds to what was leased. Tells how many it leased, what is left, and what waits.
    pub(super) fn take_leased(
        &self,
        place: Place,
        prefix: &Prefix,
        wanted: &[Wanted],
        answer: Value,
        jobs: &mut Vec<(Priority, Leased)>,
    ) -> Result<(usize, Left, Waiting)> {
        let before = jobs.len();
        let mut parts = array(answer)?.into_iter();
        let (Some(groups), Some(left), Some(waiting)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(strange("an answer"));
        };
        let mut headers = headers(parts.next())?;
        let mut token = 0;
        for group in array(groups)? {
            let mut values = array(group)?.into_iter();
            let mut next = || values.next().ok_or_else(|| strange("a lease"));
            let topic = answer::topic(next()?)?;
            let deadline_ms = number(&next()?)?;
            // The shard has added the hold to its now.
            let leased_ms = deadline_ms.saturating_sub(hold_of(wanted, &topic));
            while let Some(id) = values.next() {
                let mut next = || values.next().ok_or_else(|| strange("a lease"));
                let record = Record::parse(&answer::bytes(next()?)?)?;
                token += 1;
                let leased = Leased {
                    key: JobKey { topic: topic.clone(), id: answer::id(id)? },
                    body: record.body,
                    token: self.token(place, prefix, token),
                    attempt: count(&next()?)? as u32,
                    due_ms: number(&next()?)?,
                    stamp_us: record.stamp_us,
                    leased_ms,
                    deadline_ms,
                    max_attempts: record.max_attempts,
                    probe: None,
                    headers: headers.remove(&token).unwrap_or_default(),
                };
                jobs.push((record.priority, leased));
            }
        }
        let (mut told, mut left) = (Vec::new(), array(left)?.into_iter());
        while let (Some(topic), Some(n)) = (left.next(), left.next()) {
            told.push((answer::topic(topic)?, count(&n)? as u64));
        }
        let mut closed = Vec::new();
        for three in array(waiting)?.chunks(3) {
            let [topic, ms, opens] = three else { return Err(strange("an answer")) };
            let (topic, opens) = (answer::topic(topic.clone())?, count(opens)? as u32);
            let probes = jobs[before..].iter_mut().filter(|(_, j)| opens > 0 && j.key.topic == topic);
            probes.for_each(|(_, j)| j.probe = Some(opens));
            closed.push((topic, Duration::from_millis(count(ms)? as u64)));
        }
        Ok((token as usize, told, closed))
    }

    /// Those of many shards that may have ready jobs, by one look at all of them.
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

    /// Leases on all shards, from another one on each time.
    pub(super) fn lease_all(
        &mut self,
        wanted: &[Wanted],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> Result<Batch> {
        let (places, failed) = self.delivering();
        let mut found = Found::nothing(failed);
        let places = match places.len() {
            ..=FEW => places,
            _ => self.with_work(places, &mut found.worked, &mut found.failed),
        };
        let places = self.in_turn(places);
        self.lease_on(&places, wanted, limit, owner, &mut found);
        found.into_batch(wanted)
    }

    /// Those places, from another one on each time.
    pub(super) fn in_turn(&mut self, mut places: Vec<Place>) -> Vec<Place> {
        self.turn = (self.turn + 1) % places.len().max(1);
        places.rotate_left(self.turn);
        places
    }

    /// Leases on some shards, one after the other, as long as there is room.
    pub(super) fn lease_on(
        &self,
        places: &[Place],
        wanted: &[Wanted],
        limit: usize,
        owner: Option<&OwnerTag>,
        found: &mut Found,
    ) {
        for place in places {
            loop {
                let left = limit - found.jobs.len();
                let asked = self.lease_call(*place, wanted, left, owner, &found.jobs);
                let taken = asked.and_then(|(prefix, call)| {
                    self.take_leased(*place, &prefix, wanted, self.ask(*place, call)?, &mut found.jobs)
                });
                // A full answer has perhaps left some that are wanted.
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

/// What a lease has found so far.
#[derive(Default)]
pub(super) struct Found {
    pub jobs: Vec<(Priority, Leased)>,
    left: BTreeMap<TopicName, u64>,
    waiting: BTreeMap<TopicName, Duration>,
    /// Some shard has answered.
    worked: bool,
    failed: Option<StoreError>,
}

impl Found {
    /// Nothing yet. `failed`: why some shards are not asked.
    pub(super) fn nothing(failed: Option<StoreError>) -> Found {
        Found { failed, ..Found::default() }
    }

    /// Takes what a shard told at last.
    pub(super) fn note(&mut self, told: Result<(usize, Left, Waiting)>) {
        match told {
            Ok((_, left, closed)) => {
                self.worked = true;
                // The first that ends.
                for (topic, wait) in closed {
                    let known = self.waiting.entry(topic).or_insert(wait);
                    *known = wait.min(*known);
                }
                left.into_iter().for_each(|(topic, n)| *self.left.entry(topic).or_default() += n);
            }
            Err(e) => self.failed = Some(e),
        }
    }

    pub(super) fn into_batch(mut self, wanted: &[Wanted]) -> Result<Batch> {
        match self.failed {
            // What other nodes gave is not held up.
            Some(e) if !self.worked => Err(e),
            _ => {
                let order = |topic: &TopicName| wanted.iter().position(|w| w.topic == *topic);
                self.jobs.sort_by_cached_key(|(priority, j)| (order(&j.key.topic), *priority, j.due_ms));
                let jobs = self.jobs.into_iter().map(|(_, leased)| leased).collect();
                let (left, waiting) = (self.left.into_iter().collect(), self.waiting.into_iter().collect());
                Ok(Batch { jobs, left, waiting })
            }
        }
    }
}

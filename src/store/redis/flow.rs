//! Permits and circuits. The home shard of a topic grants its permits. Each shard has the circuits, so that a lease and
//! the check of the circuit are one step. If a node did not answer when a circuit was opened, the jobs of this node are
//! delivered until their failures open the circuit there too. If a node did not answer when a circuit was closed, a
//! probe on this node closes the circuit there.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use redis::Value;

use super::answer::{array, count, number, unexpected};
use super::nodes::{Nodes, Place};
use super::script::Script;
use super::{RedisStore, now_ms};
use crate::{
    CircuitOpening, CircuitState, CircuitView, FlowControl, LimitQuery, LimitUse, OwnerTag, PERMIT_HOLDS,
    Permit, PermitRequest, Result, StoreError,
};
use model::flow::{LimitName, TokenBucket};
use model::job::TopicName;
use model::rendezvous;

/// The maximum number of characters that are kept of the reason why a circuit was opened.
const REASON: usize = 200;

impl Nodes {
    /// Returns the node that grants the permits of a topic or of a receiver's host. `name` is the name of this topic or
    /// host. All hosts of dq choose the same node, even if some nodes are down.
    pub fn home_of(&self, name: &str) -> usize {
        let known = self.known();
        let names = known.as_ref().map_or(&self.names[..], |homes| homes.set.homes());
        let first = rendezvous::order(names, &[name.as_bytes()]).first().map(|i| &names[*i]);
        self.names.iter().position(|name| Some(name) == first).unwrap_or(0)
    }
}

impl RedisStore {
    /// Returns the shard of a node that has the permits of a topic or a host.
    fn shard_of(&self, node: usize, name: &str) -> Place {
        let shards = self.nodes.nodes[node].bases.len() as u32;
        Place { node, shard: rendezvous::first_of(shards, &[name.as_bytes()]) as usize }
    }

    /// Returns the homes of topics and hosts. Each home has the indices of the names that belong to it.
    fn by_home<'a>(&self, names: impl Iterator<Item = &'a LimitName>) -> BTreeMap<Place, Vec<usize>> {
        let mut groups: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
        for (i, name) in names.enumerate() {
            let node = self.lane.unwrap_or_else(|| self.nodes.home_of(name.as_str()));
            groups.entry(self.shard_of(node, name.as_str())).or_default().push(i);
        }
        groups
    }

    /// Runs a script on all shards that answer. Returns the answer of the topic's home shard, or that of another shard
    /// if the home does not answer.
    fn send_statement(&self, script: Script, topic: &TopicName, words: &[String]) -> Result<bool> {
        let name = topic.as_str();
        let home = self.shard_of(self.lane.unwrap_or_else(|| self.nodes.home_of(name)), name);
        let call = |place| {
            let mut call = self.call(script, place);
            call.cmd.arg(topic.as_str()).arg(words);
            (place, call)
        };
        let mut outcome = Err(StoreError::NodeDown("no node answers".into()));
        for (place, answer) in self.ask_all(self.places().map(call).collect()) {
            match answer.and_then(|n| number(&n)) {
                Ok(n) if place == home || outcome.is_err() => outcome = Ok(n > 0),
                Ok(_) => {}
                Err(e) if outcome.is_ok() => {
                    log::debug!(topic = topic.as_str(); "cannot change the circuit on one shard: {e}")
                }
                Err(e) => outcome = Err(e),
            }
        }
        outcome
    }
}

fn view(hash: Value) -> Result<Vec<CircuitView>> {
    let texts: HashMap<String, String> =
        redis::from_redis_value(hash).map_err(|_| unexpected("an answer"))?;
    let parse = |(topic, text): (String, String)| {
        let mut words = text.splitn(5, ' ');
        let until_ms = words.next()?.parse().ok()?;
        let [_probe, opens, since] = [words.next()?, words.next()?, words.next()?];
        Some(CircuitView {
            topic: TopicName::new(&topic).ok()?,
            state: if until_ms > now_ms() { CircuitState::Open } else { CircuitState::HalfOpen },
            until_ms,
            opens: opens.parse().ok()?,
            since_ms: since.parse().ok()?,
            reason: words.next().unwrap_or_default().to_owned(),
        })
    };
    Ok(texts.into_iter().filter_map(parse).collect())
}

impl FlowControl for RedisStore {
    fn permits(&mut self, owner: &OwnerTag, asks: &[PermitRequest]) -> Vec<Result<Permit>> {
        let groups = self.by_home(asks.iter().map(|ask| &ask.name));
        let call = |(place, group): (&Place, &Vec<usize>)| {
            let mut call = self.call(Script::Permits, *place);
            call.cmd.arg(&owner.0).arg(PERMIT_HOLDS.as_millis() as u64);
            for ask in group.iter().map(|i| &asks[*i]) {
                let most = ask.max_in_flight.map_or(String::new(), |n| n.to_string());
                let pace = ask.rate.map(TokenBucket::from);
                let step = pace.map_or(String::new(), |p| p.step_us.to_string());
                call.cmd.arg(ask.name.as_str()).arg(ask.held).arg(ask.want).arg(most);
                call.cmd.arg(step).arg(pace.map_or(0, |p| p.burst)).arg(ask.unused);
            }
            (*place, call)
        };
        let permit = |two: &[Value]| -> Result<Permit> {
            let [granted, again] = two else { return Err(unexpected("an answer")) };
            let again = u64::try_from(number(again)?).ok().map(Duration::from_millis);
            Ok(Permit { granted: count(granted)? as u32, again })
        };
        let mut permits: Vec<Result<Permit>> = asks.iter().map(|_| Err(unexpected("no answer"))).collect();
        for (place, answer) in self.ask_all(groups.iter().map(call).collect()) {
            match answer.and_then(array) {
                Ok(values) => {
                    groups[&place]
                        .iter()
                        .zip(values.chunks(2))
                        .for_each(|(i, two)| permits[*i] = permit(two));
                }
                Err(e) => groups[&place].iter().for_each(|i| permits[*i] = Err(e.clone())),
            }
        }
        permits
    }

    fn limit_use(&mut self, queries: &[LimitQuery]) -> Vec<Result<LimitUse>> {
        let groups = self.by_home(queries.iter().map(|query| &query.name));
        let call = |(place, group): (&Place, &Vec<usize>)| {
            let mut call = self.call(Script::LimitUse, *place);
            call.cmd.arg(group.iter().map(|i| queries[*i].name.as_str()).collect::<Vec<_>>());
            (*place, call)
        };
        let micros = |value: &Value| -> Result<f64> {
            let text: Option<String> = redis::from_redis_value(value.clone()).ok();
            text.and_then(|text| text.parse().ok()).ok_or_else(|| unexpected("an answer"))
        };
        let used = |query: &LimitQuery, now_us: &Value, two: &[Value]| -> Result<LimitUse> {
            let [held, spent_us] = two else { return Err(unexpected("an answer")) };
            let (now_us, spent_us) = (micros(now_us)?, micros(spent_us)?);
            let again = query.rate.and_then(|rate| TokenBucket::from(rate).wait(spent_us, now_us));
            Ok(LimitUse { held: count(held)? as u32, again })
        };
        let mut all: Vec<Result<LimitUse>> = queries.iter().map(|_| Err(unexpected("no answer"))).collect();
        for (place, answer) in self.ask_all(groups.iter().map(call).collect()) {
            match answer.and_then(array) {
                Ok(values) => {
                    let Some((now_us, rest)) = values.split_first() else { continue };
                    groups[&place]
                        .iter()
                        .zip(rest.chunks(2))
                        .for_each(|(i, two)| all[*i] = used(&queries[*i], now_us, two));
                }
                Err(e) => groups[&place].iter().for_each(|i| all[*i] = Err(e.clone())),
            }
        }
        all
    }

    fn open_circuit(&mut self, opening: &CircuitOpening) -> Result<bool> {
        let reason = opening.reason.chars().take(REASON).collect();
        let pause = opening.pause.as_millis().to_string();
        self.send_statement(Script::Open, &opening.topic, &[pause, opening.opens.to_string(), reason])
    }

    fn close_circuit(&mut self, topic: &TopicName) -> Result<bool> {
        self.send_statement(Script::Close, topic, &[])
    }

    fn circuits(&mut self) -> Result<Vec<CircuitView>> {
        let ask =
            |place: Place| (place, self.nodes.nodes[place.node].plain("HGETALL", place.shard, "circuits"));
        let (mut views, mut failed, mut worked) = (Vec::new(), None, false);
        for (_, answer) in self.ask_all(self.places().map(ask).collect()) {
            match answer.and_then(view) {
                Ok(some) => {
                    worked = true;
                    views.extend(some);
                }
                Err(e) => failed = Some(e),
            }
        }
        match failed {
            Some(e) if !worked => Err(e),
            _ => Ok(CircuitView::join(views)),
        }
    }
}

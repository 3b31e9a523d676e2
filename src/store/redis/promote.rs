//! What timers ask of shards: to make due jobs ready, and to end leases that ran out; of those that may.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::answer::{self, array, count, number, strange};
use super::nodes::Place;
use super::script::Script;
use super::{RedisStore, TOPICS, now_ms};
use crate::job::TopicName;
use crate::store::{Moved, OUTAGE, Result, Spread, Store, StoreError};

/// How long it is until shards are looked at again that could not deliver.
const SOON: Duration = Duration::from_millis(200);

impl RedisStore {
    /// The shards that may deliver now, and why others may not.
    pub(super) fn delivering(&self) -> (Vec<Place>, Option<StoreError>) {
        let survey = self.nodes.survey();
        let mut not_yet = None;
        let may = |place: &Place| match self.nodes.may_deliver(*place, &survey) {
            Ok(()) => true,
            Err(e) => {
                not_yet = Some(e);
                false
            }
        };
        (self.places().filter(may).collect(), not_yet)
    }

    /// Makes due jobs of the shards that may deliver ready, or spreads them.
    pub(super) fn promote_delivering(
        &mut self,
        limit: usize,
        spread: &[(TopicName, Duration)],
    ) -> Result<(Moved, Spread)> {
        let (places, not_yet) = self.delivering();
        let was_partial = std::mem::replace(&mut self.partial, true);
        let (mut moved, told) = match not_yet {
            Some(e) if places.is_empty() => return Err(e),
            not_yet => {
                let words: Vec<String> = match spread {
                    [] => Vec::new(),
                    some => {
                        let spans =
                            some.iter().flat_map(|(t, span)| [t.to_string(), span.as_millis().to_string()]);
                        let first = [OUTAGE.as_millis().to_string(), fastrand::u32(..).to_string()];
                        first.into_iter().chain(spans).collect()
                    }
                };
                let (moved, told, failed) = self.move_jobs(Script::Promote, places, limit, &words)?;
                self.partial = not_yet.is_some() || failed;
                (moved, told)
            }
        };
        let mut counts = BTreeMap::new();
        for two in told.chunks(2) {
            let [topic, n] = two else { return Err(strange("an answer")) };
            *counts.entry(answer::topic(topic.clone())?).or_default() += count(n)?;
        }
        if self.partial {
            // The others are looked at soon.
            let soon = now_ms() + SOON.as_millis() as i64;
            moved.next_ms = Some(moved.next_ms.map_or(soon, |at| at.min(soon)));
        } else if was_partial {
            // Who was told of jobs that could not be had then is not told again by anybody else.
            self.announce();
        }
        Ok((moved, counts.into_iter().collect()))
    }

    /// Calls a script of a timer's on these shards: how many jobs moved, and when the next is due; what else they tell; and
    /// whether some could not be asked.
    pub(super) fn move_jobs(
        &mut self,
        script: Script,
        places: Vec<Place>,
        limit: usize,
        words: &[String],
    ) -> Result<(Moved, Vec<Value>, bool)> {
        let (mut moved, mut told) = (Moved::default(), Vec::new());
        let (mut failed, mut worked) = (None, false);
        let asked_ms = now_ms();
        let calls = places.into_iter().map(|place| {
            let mut call = self.call(script, place);
            call.cmd.arg(limit).arg(TOPICS).arg(words);
            (place, call)
        });
        for (_, answer) in self.ask_all(calls.collect()) {
            let one = answer.and_then(array).and_then(|values| match values.as_slice() {
                [jobs, next, now, more @ ..] => {
                    told.extend_from_slice(more);
                    Ok((count(jobs)?, number(next)?, number(now)?))
                }
                _ => Err(strange("an answer")),
            });
            match one {
                Ok((jobs, next_ms, shard_now_ms)) => {
                    worked = true;
                    moved.jobs += jobs;
                    // By the clock of this host, by which it is waited for. One that was right when it was asked is right.
                    let answered_ms = now_ms();
                    let agrees = (asked_ms - 1..=answered_ms + 1).contains(&shard_now_ms);
                    let ahead_ms = if agrees { 0 } else { shard_now_ms - answered_ms };
                    let here = (next_ms >= 0).then(|| next_ms - ahead_ms);
                    moved.next_ms = [moved.next_ms, here].into_iter().flatten().min();
                }
                Err(e) => failed = Some(e),
            }
        }
        match failed {
            Some(e) if !worked => Err(e),
            failed => Ok((moved, told, failed.is_some())),
        }
    }
}

//! The work of timers on shards: to make due jobs ready, and to end leases that ran out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use super::answer::{self, array, count, number, unexpected};
use super::homes::Homes;
use super::nodes::{FRESH, Place};
use super::script::Script;
use super::{CHUNK, RedisStore, TOPICS, now_ms};
use crate::{Maintenance, OUTAGE, OwnerTag, PromotionResult, Result, SpreadCounts, TimerWork};
use model::job::TopicName;

/// How soon shards that could not be asked are tried again.
const SOON: Duration = Duration::from_millis(200);

impl RedisStore {
    /// Hands back the leases of a process on a shard, step by step.
    pub(super) fn hand_back_at(&mut self, place: Place, owner: &OwnerTag) -> Result<usize> {
        let mut sum = 0;
        loop {
            let mut call = self.call(Script::HandBack, place);
            call.cmd.arg(&owner.0).arg(CHUNK);
            let values = array(self.ask(place, call)?)?;
            let [jobs, more, buried @ ..] = values.as_slice() else { return Err(unexpected("an answer")) };
            sum += count(jobs)?;
            let is_finished = number(more)? == 0;
            self.note_dead_letters(buried)?;
            if is_finished {
                return Ok(sum);
            }
        }
    }

    /// Keeps the topics at the end of a script's answer. There is one topic for each dead letter that the script made.
    pub(super) fn note_dead_letters(&mut self, topics: &[Value]) -> Result<()> {
        for topic in topics {
            self.dead_topics.push(answer::topic(topic.clone())?);
        }
        Ok(())
    }

    /// Returns the shards of this handle that may deliver now, and the set of nodes for the calls. Returns an error
    /// while jobs are being moved.
    pub(super) fn delivering(&self) -> Result<(Arc<Homes>, Vec<Place>)> {
        let mut homes = self.nodes.open_homes()?;
        if let Some(lane) = self.lane
            && !homes.has(lane)
        {
            // The node may have become a home in the meantime.
            self.nodes.learn(Instant::now().checked_sub(FRESH))?;
            homes = self.nodes.open_homes()?;
        }
        let places = self.places().filter(|place| homes.has(place.node)).collect();
        Ok((homes, places))
    }

    /// Calls a timer's script on these shards. Returns how many jobs moved and when the next one is due, the other
    /// values of the answers, and whether some shards could not be asked.
    pub(super) fn move_jobs(
        &mut self,
        script: Script,
        homes: &Homes,
        places: Vec<Place>,
        limit: usize,
        words: &[String],
    ) -> Result<(PromotionResult, Vec<Value>, bool)> {
        let (mut moved, mut spread_topics) = (PromotionResult::default(), Vec::new());
        let (mut failed, mut worked) = (None, false);
        let asked_ms = now_ms();
        let calls = places.into_iter().map(|place| {
            let mut call = self.nodes.call(script, place, homes);
            call.cmd.arg(limit).arg(TOPICS).arg(words);
            (place, call)
        });
        for (_, answer) in self.ask_all(calls.collect()) {
            let one = answer.and_then(array).and_then(|values| match values.as_slice() {
                [jobs, next, now, out, more @ ..] => {
                    spread_topics.extend_from_slice(more);
                    if number(out)? == 1 {
                        self.outboxes.is_seen = true;
                    }
                    Ok((count(jobs)?, number(next)?, number(now)?))
                }
                _ => Err(unexpected("an answer")),
            });
            match one {
                Ok((jobs, next_ms, shard_now_ms)) => {
                    worked = true;
                    moved.jobs += jobs;
                    // The caller waits by this host's clock, so the shard's time is converted. If the shard's time lies
                    // between the times of the call and of the answer, the clocks agree.
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
            failed => Ok((moved, spread_topics, failed.is_some())),
        }
    }
}

impl TimerWork for RedisStore {
    fn promote_or_spread(
        &mut self,
        limit: usize,
        spread: &[(TopicName, Duration)],
    ) -> Result<(PromotionResult, SpreadCounts)> {
        let was_partial = std::mem::replace(&mut self.partial, true);
        let (homes, places) = self.delivering()?;
        let words: Vec<String> = match spread {
            [] => Vec::new(),
            some => {
                let spans = some.iter().flat_map(|(t, span)| [t.to_string(), span.as_millis().to_string()]);
                let first = [OUTAGE.as_millis().to_string(), fastrand::u32(..).to_string()];
                first.into_iter().chain(spans).collect()
            }
        };
        let (mut moved, spread_topics, failed) =
            self.move_jobs(Script::Promote, &homes, places, limit, &words)?;
        self.partial = failed;
        let mut counts = BTreeMap::new();
        for two in spread_topics.chunks(2) {
            let [topic, n] = two else { return Err(unexpected("an answer")) };
            *counts.entry(answer::topic(topic.clone())?).or_default() += count(n)?;
        }
        if self.partial {
            // The shards that failed are tried again soon.
            let soon = now_ms() + SOON.as_millis() as i64;
            moved.next_ms = Some(moved.next_ms.map_or(soon, |at| at.min(soon)));
        } else if was_partial {
            // The bell of a consumer may have rung for jobs that the consumer could not get at that time. No other
            // process rings this bell again.
            self.announce();
        }
        Ok((moved, counts.into_iter().collect()))
    }

    fn hand_back(&mut self, owner: &OwnerTag) -> Result<usize> {
        let (_, places) = self.delivering()?;
        // A shard that is down does not delay the other shards. The error makes the caller try again later.
        let all: Vec<Result<usize>> =
            places.into_iter().map(|place| self.hand_back_at(place, owner)).collect();
        all.into_iter().sum()
    }

    fn expire(&mut self, limit: usize) -> Result<PromotionResult> {
        let (homes, places) = self.delivering()?;
        let (moved, buried, _) = self.move_jobs(Script::Expire, &homes, places, limit, &[])?;
        self.note_dead_letters(&buried)?;
        Ok(moved)
    }

    fn take_dead_letter_topics(&mut self) -> Vec<TopicName> {
        std::mem::take(&mut self.dead_topics)
    }
}

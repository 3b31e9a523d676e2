//! Dead letters on all shards: redrives, counts and removes them.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::answer::{self, array, count, number, unexpected};
use super::node::Call;
use super::nodes::Place;
use super::script::Script;
use super::{BYTES, CHUNK, RedisStore};
use crate::{DeadLetterKey, DeadLetterOperation, DeadLetterSelection, DeadLetters, Result, StoreError};
use model::job::{JobId, JobKey, TopicName};
use model::letters::RedrivePace;

/// The maximum number of dead letters that one call of a purge names. Each letter is named by its id and the time of
/// its death.
const LETTERS: usize = 100;

impl RedisStore {
    /// Refuses a call if a change of one of the ids waits in the spool. That change would later replace the job that is
    /// redriven now.
    fn check_none_spooled<'a>(&self, topic: &TopicName, ids: impl Iterator<Item = &'a JobId>) -> Result<()> {
        let keys: Vec<JobKey> = ids.map(|id| JobKey { topic: topic.clone(), id: id.clone() }).collect();
        self.check_nothing_spooled(&keys.iter().collect::<Vec<_>>())
    }

    /// Begins a call of `redrive`. Earlier calls have redriven `done` jobs, which count for the pace.
    fn redrive_call(
        &self,
        place: Place,
        topic: &TopicName,
        most: usize,
        pace: RedrivePace,
        done: usize,
    ) -> Call {
        let micros = |span: Duration| span.as_micros().min(u128::from(u64::MAX)) as u64;
        let mut call = self.call(Script::Redrive, place);
        call.cmd.arg(topic.as_str()).arg(CHUNK.min(most)).arg(BYTES);
        call.cmd.arg(micros(pace.due(done))).arg(micros(pace.every));
        call
    }

    /// Redrives all dead letters of a topic, shard by shard.
    fn redrive_all(&self, topic: &TopicName, limit: usize, pace: RedrivePace) -> Result<usize> {
        let mut sum = 0;
        self.at_each_place(|place| {
            let (mut score, mut member) = (String::new(), Vec::new());
            while sum < limit {
                let mut call = self.redrive_call(place, topic, limit - sum, pace, sum);
                call.cmd.arg("all").arg(&score).arg(&member[..]).arg(CHUNK);
                let [moved, at, behind] = self.redriven(place, call)?;
                sum += count(&moved)?;
                (score, member) = (answer::text(at)?, answer::bytes(behind)?);
                if score.is_empty() {
                    break;
                }
            }
            Ok(())
        })?;
        self.confirm(topic, self.places()).map(|()| sum)
    }

    /// Redrives the named dead letters. An id means its latest dead letter. The names are ids (`word` is "ids"), or
    /// exact dead letters, each an id and its time of death (`word` is "letters"). If a node is down, the letters of
    /// the other nodes are redriven, and then the error is returned.
    fn redrive_named<T>(
        &self,
        topic: &TopicName,
        by_home: BTreeMap<Place, Vec<&T>>,
        (word, words): (&str, impl Fn(&T, &mut Call)),
        limit: usize,
        pace: RedrivePace,
    ) -> Result<usize> {
        let (mut sum, mut failed, mut done) = (0, None, Vec::new());
        for (place, named) in by_home {
            done.push(place);
            let mut left = &named[..];
            while !left.is_empty() && sum < limit {
                let mut call = self.redrive_call(place, topic, limit - sum, pace, sum);
                call.cmd.arg(word);
                left[..left.len().min(CHUNK)].iter().for_each(|one| words(one, &mut call));
                match self.redriven(place, call) {
                    Ok([moved, seen, again]) => {
                        sum += count(&moved)?;
                        // If an id has very many letters, the call for one of them must be repeated.
                        let least = i64::from(answer::bytes(again)?.is_empty());
                        left = left.get(number(&seen)?.max(least) as usize..).unwrap_or_default();
                    }
                    Err(e @ StoreError::NodeDown(_)) => {
                        failed = Some(e);
                        done.pop();
                        break;
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        self.confirm(topic, done.into_iter())?;
        failed.map_or(Ok(sum), Err)
    }

    fn redriven(&self, place: Place, call: Call) -> Result<[Value; 3]> {
        array(self.ask(place, call)?)?.try_into().map_err(|_| unexpected("an answer"))
    }

    /// Groups the named dead letters by the home of their ids.
    fn group_by_home<'a, T>(
        &self,
        topic: &TopicName,
        named: &'a [T],
        id: impl Fn(&T) -> &JobId,
    ) -> Result<BTreeMap<Place, Vec<&'a T>>> {
        let homes = self.nodes.open_homes()?;
        let mut by_place: BTreeMap<Place, Vec<&T>> = BTreeMap::new();
        for one in named {
            let key = JobKey { topic: topic.clone(), id: id(one).clone() };
            by_place.entry(self.nodes.place(homes.home(&key)?, &key)).or_default().push(one);
        }
        Ok(by_place)
    }

    /// Removes some of these letters on one shard. Returns how many it removed, and whether the same call must be made
    /// again.
    fn remove_some(
        &self,
        place: Place,
        topic: &TopicName,
        letters: &[&DeadLetterKey],
    ) -> Result<(usize, bool)> {
        let mut call = self.call(Script::PurgeLetters, place);
        call.cmd.arg(topic.as_str());
        letters.iter().for_each(|letter| letter_words(letter, &mut call));
        match array(self.ask(place, call)?)?.as_slice() {
            [gone, again] => Ok((count(gone)?, number(again)? > 0)),
            _ => Err(unexpected("an answer")),
        }
    }
}

fn letter_words(letter: &DeadLetterKey, call: &mut Call) {
    call.cmd.arg(letter.id.as_str()).arg(letter.died_ms);
}

impl DeadLetters for RedisStore {
    fn redrive(
        &mut self,
        topic: &TopicName,
        which: &DeadLetterSelection,
        limit: usize,
        pace: RedrivePace,
    ) -> Result<usize> {
        match which {
            DeadLetterSelection::All => self.redrive_all(topic, limit, pace),
            DeadLetterSelection::Ids(ids) => {
                self.check_none_spooled(topic, ids.iter())?;
                let words = |id: &JobId, call: &mut Call| {
                    call.cmd.arg(id.as_str());
                };
                self.redrive_named(
                    topic,
                    self.group_by_home(topic, ids, |id| id)?,
                    ("ids", words),
                    limit,
                    pace,
                )
            }
            DeadLetterSelection::Letters(letters) => {
                self.check_none_spooled(topic, letters.iter().map(|letter| &letter.id))?;
                let by_home = self.group_by_home(topic, letters, |letter| &letter.id)?;
                self.redrive_named(topic, by_home, ("letters", letter_words), limit, pace)
            }
        }
    }

    fn letters(&mut self, topic: &TopicName, ids: &[JobId], what: DeadLetterOperation) -> Result<usize> {
        let word = if what == DeadLetterOperation::Count { "count" } else { "remove" };
        let (mut sum, mut done) = (0, Vec::new());
        for (place, ids) in self.group_by_home(topic, ids, |id| id)? {
            done.push(place);
            for some in ids.chunks(CHUNK) {
                loop {
                    let mut call = self.call(Script::Letters, place);
                    call.cmd.arg(topic.as_str()).arg(word);
                    for id in some {
                        call.cmd.arg(id.as_str());
                    }
                    let values = array(self.ask(place, call)?)?;
                    let [found, left] = values.as_slice() else { return Err(unexpected("an answer")) };
                    sum += count(found)?;
                    if number(left)? == 0 {
                        break;
                    }
                }
            }
        }
        match what {
            DeadLetterOperation::Count => Ok(sum),
            DeadLetterOperation::Remove => self.confirm(topic, done.into_iter()).map(|()| sum),
        }
    }

    fn purge_letters(&mut self, topic: &TopicName, letters: &[DeadLetterKey]) -> Result<usize> {
        let (mut sum, mut failed, mut done) = (0, None, Vec::new());
        for (place, letters) in self.group_by_home(topic, letters, |letter| &letter.id)? {
            for some in letters.chunks(LETTERS) {
                let mut again = true;
                while again {
                    let gone;
                    (gone, again) = match self.remove_some(place, topic, some) {
                        Ok(removed) => removed,
                        Err(e) => {
                            failed = Some(e);
                            break;
                        }
                    };
                    sum += gone;
                    done.push(place);
                }
            }
        }
        done.dedup();
        match failed {
            Some(e) if sum == 0 || !matches!(e, StoreError::NodeDown(_)) => Err(e),
            _ => self.confirm(topic, done.into_iter()).map(|()| sum),
        }
    }

    fn retire(&mut self, topic: &TopicName, age: Duration, limit: usize) -> Result<usize> {
        let (mut sum, mut failed) = (0, None);
        self.at_each_place(|place| {
            let mut call = self.call(Script::Purge, place);
            call.cmd.arg(topic.as_str()).arg(model::job::State::Dead as u8);
            call.cmd
                .arg(CHUNK.min(limit.saturating_sub(sum)))
                .arg(age.as_millis().min(u64::MAX.into()) as u64);
            match self.ask(place, call).and_then(array) {
                Ok(values) => sum += values.first().map_or(Ok(0), count)?,
                Err(e) => failed = Some(e),
            }
            Ok(())
        })?;
        match failed {
            Some(e) if sum == 0 => Err(e),
            _ => Ok(sum),
        }
    }
}

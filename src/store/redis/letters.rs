//! Dead letters over all shards together: redriven, counted, removed.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::answer::{self, array, count, number, strange};
use super::node::Call;
use super::nodes::Place;
use super::script::Script;
use super::{BYTES, CHUNK, RedisStore};
use crate::job::{JobId, JobKey, TopicName};
use crate::letters::Pace;
use crate::store::{Letter, Letters, Result, StoreError, Which};

/// So many letters are looked for in one call: each by when it died.
const LETTERS: usize = 100;

impl RedisStore {
    pub(super) fn redrive_some(
        &self,
        topic: &TopicName,
        which: &Which,
        limit: usize,
        pace: Pace,
    ) -> Result<usize> {
        match which {
            Which::All => self.redrive_all(topic, limit, pace),
            Which::Ids(ids) => {
                let words = |id: &JobId, call: &mut Call| {
                    call.cmd.arg(id.as_str());
                };
                self.redrive_named(topic, self.graves(topic, ids, |id| id), ("ids", words), limit, pace)
            }
            Which::Letters(letters) => {
                let graves = self.graves(topic, letters, |letter| &letter.id);
                self.redrive_named(topic, graves, ("letters", letter_words), limit, pace)
            }
        }
    }

    /// Begins a call of `redrive`, behind the first `done`.
    fn redrive_call(&self, place: Place, topic: &TopicName, most: usize, pace: Pace, done: usize) -> Call {
        let micros = |span: Duration| span.as_micros().min(u128::from(u64::MAX)) as u64;
        let mut call = self.call(Script::Redrive, place);
        call.cmd.arg(topic.as_str()).arg(CHUNK.min(most)).arg(BYTES);
        call.cmd.arg(micros(pace.due(done))).arg(micros(pace.every));
        call
    }

    /// Makes dead letters ready, shard by shard.
    fn redrive_all(&self, topic: &TopicName, limit: usize, pace: Pace) -> Result<usize> {
        let mut sum = 0;
        for place in self.places() {
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
        }
        Ok(sum)
    }

    /// Makes those ready that are named, of ids their latest ones. A node that is away has none of what others have told.
    fn redrive_named<T>(
        &self,
        topic: &TopicName,
        graves: BTreeMap<Place, Vec<&T>>,
        (word, words): (&str, impl Fn(&T, &mut Call)),
        limit: usize,
        pace: Pace,
    ) -> Result<usize> {
        let (mut sum, mut failed) = (0, None);
        for (place, named) in graves {
            let mut left = &named[..];
            while !left.is_empty() && sum < limit {
                let mut call = self.redrive_call(place, topic, limit - sum, pace, sum);
                call.cmd.arg(word);
                left[..left.len().min(CHUNK)].iter().for_each(|one| words(one, &mut call));
                match self.redriven(place, call) {
                    Ok([moved, seen, again]) => {
                        sum += count(&moved)?;
                        // One of very many is brought out by several calls.
                        let least = i64::from(answer::bytes(again)?.is_empty());
                        left = left.get(number(&seen)?.max(least) as usize..).unwrap_or_default();
                    }
                    Err(e @ StoreError::NodeDown(_)) if word == "letters" => {
                        failed = Some(e);
                        break;
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        match failed {
            Some(e) if sum == 0 => Err(e),
            _ => Ok(sum),
        }
    }

    fn redriven(&self, place: Place, call: Call) -> Result<[Value; 3]> {
        array(self.ask(place, call)?)?.try_into().map_err(|_| strange("an answer"))
    }

    /// Where dead letters of these ids may be: they lie where they died, which need not be at home.
    fn graves<'a, T>(
        &self,
        topic: &TopicName,
        named: &'a [T],
        id: impl Fn(&T) -> &JobId,
    ) -> BTreeMap<Place, Vec<&'a T>> {
        let mut by_place: BTreeMap<Place, Vec<&T>> = BTreeMap::new();
        for (node, one) in (0..self.nodes.count()).flat_map(|node| named.iter().map(move |one| (node, one))) {
            let key = JobKey { topic: topic.clone(), id: id(one).clone() };
            by_place.entry(self.nodes.place(node, &key)).or_default().push(one);
        }
        by_place
    }

    /// Counts or removes the dead letters of these ids.
    pub(super) fn letters_of(&self, topic: &TopicName, ids: &[JobId], what: Letters) -> Result<usize> {
        let word = if what == Letters::Count { "count" } else { "remove" };
        let mut sum = 0;
        for (place, ids) in self.graves(topic, ids, |id| id) {
            for some in ids.chunks(CHUNK) {
                loop {
                    let mut call = self.call(Script::Letters, place);
                    call.cmd.arg(topic.as_str()).arg(word);
                    for id in some {
                        call.cmd.arg(id.as_str());
                    }
                    let values = array(self.ask(place, call)?)?;
                    let [found, left] = values.as_slice() else { return Err(strange("an answer")) };
                    sum += count(found)?;
                    if number(left)? == 0 {
                        break;
                    }
                }
            }
        }
        Ok(sum)
    }

    /// Removes some of these letters on one shard. Tells how many, and whether it is to be called again with the same.
    fn remove_some(&self, place: Place, topic: &TopicName, letters: &[&Letter]) -> Result<(usize, bool)> {
        let mut call = self.call(Script::PurgeLetters, place);
        call.cmd.arg(topic.as_str());
        letters.iter().for_each(|letter| letter_words(letter, &mut call));
        match array(self.ask(place, call)?)?.as_slice() {
            [gone, again] => Ok((count(gone)?, number(again)? > 0)),
            _ => Err(strange("an answer")),
        }
    }

    /// Removes these letters, and no others of their ids. Those of one id that has very many are brought out by several calls.
    pub(super) fn remove_letters(&self, topic: &TopicName, letters: &[Letter]) -> Result<usize> {
        let (mut sum, mut failed) = (0, None);
        for (place, letters) in self.graves(topic, letters, |letter| &letter.id) {
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
                }
            }
        }
        match failed {
            Some(e) if sum == 0 || !matches!(e, StoreError::NodeDown(_)) => Err(e),
            _ => Ok(sum),
        }
    }

    /// Removes letters that died so long ago; one that is away holds up no other.
    pub(super) fn retire_at(&self, topic: &TopicName, age: Duration, limit: usize) -> Result<usize> {
        let (mut sum, mut failed) = (0, None);
        for place in self.places() {
            let mut call = self.call(Script::Purge, place);
            call.cmd.arg(topic.as_str()).arg(crate::job::State::Dead as u8);
            call.cmd
                .arg(CHUNK.min(limit.saturating_sub(sum)))
                .arg(age.as_millis().min(u64::MAX.into()) as u64);
            match self.ask(place, call).and_then(array) {
                Ok(values) => sum += values.first().map_or(Ok(0), count)?,
                Err(e) => failed = Some(e),
            }
        }
        match failed {
            Some(e) if sum == 0 => Err(e),
            _ => Ok(sum),
        }
    }
}

fn letter_words(letter: &Letter, call: &mut Call) {
    call.cmd.arg(letter.id.as_str()).arg(letter.died_ms);
}

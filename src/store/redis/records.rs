//! Records of jobs that have ended. The scripts that end jobs write the records. The code here reads, erases and limits
//! them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::answer::{self, array, bytes, count, id, number, text, unexpected};
use super::browse::{ListPosition, ShardPage};
use super::nodes::Place;
use super::script::Script;
use super::{BYTES, CHUNK, RedisStore};
use crate::records::trim_again;
use crate::{RecordPage, Records, Result};
use model::job::{JobId, JobKey, TopicName};
use model::record::{Ending, JobRecord, RECORDS_MAX, RecordKeeping};

/// Reads the records of an id, as part/history.lua describes them. The oldest comes first.
pub(super) fn records_of(key: &JobKey, mut packed: &[u8]) -> Result<Vec<JobRecord>> {
    let mut records = Vec::new();
    while !packed.is_empty() {
        let (record, rest) = record_of(key, packed).ok_or_else(|| unexpected("a record"))?;
        records.push(record);
        packed = rest;
    }
    Ok(records)
}

/// Reads the first record. Returns the record and the bytes after it.
fn record_of<'a>(key: &JobKey, packed: &'a [u8]) -> Option<(JobRecord, &'a [u8])> {
    let (length, packed) = number_of::<4>(packed)?;
    let (record, rest) = packed.split_at_checked(length as usize)?;
    let (ending, record) = number_of::<1>(record)?;
    let (ended_ms, record) = number_of::<6>(record)?;
    let (stamp_us, record) = number_of::<7>(record)?;
    let (due_ms, record) = number_of::<6>(record)?;
    let (attempts, record) = number_of::<4>(record)?;
    let (length, record) = number_of::<4>(record)?;
    let (log, body) = record.split_at_checked(length as usize)?;
    let body = if body.is_empty() { None } else { Some(std::str::from_utf8(body).ok()?) };
    let record = JobRecord {
        key: key.clone(),
        ending: Ending::from_number(ending)?,
        ended_ms,
        order_ms: ended_ms,
        stamp_us: Some(stamp_us).filter(|stamp| *stamp > 0),
        due_ms,
        attempts: u32::try_from(attempts).ok()?,
        attempts_log: answer::attempts_of(log),
        body: body.map(model::job::Body::trusted),
        headers: answer::headers_of(log),
    };
    Some((record, rest))
}

/// Reads a number of N bytes, big-endian.
fn number_of<const N: usize>(packed: &[u8]) -> Option<(i64, &[u8])> {
    let (number, rest) = packed.split_first_chunk::<N>()?;
    Some((number.iter().fold(0, |n, byte| n << 8 | i64::from(*byte)), rest))
}

/// Returns which records a topic keeps, in the form of `keeping` in part/history.lua. An empty text means the default.
fn word_of(keeping: &RecordKeeping) -> String {
    match *keeping == RecordKeeping::DEFAULT {
        true => String::new(),
        false => format!(
            "{} {} {}",
            keeping.age.as_millis(),
            keeping.jobs,
            u8::from(keeping.with_body) + 2 * u8::from(keeping.with_event)
        ),
    }
}

/// Returns the position after a record. `id` is the id of the job. `ended_ms` is the time when the job ended (Unix
/// milliseconds).
fn place_behind(ended_ms: i64, id: &str) -> ListPosition {
    ListPosition::Behind(ended_ms.to_string(), id.into())
}

impl RedisStore {
    fn record_page(
        &self,
        place: Place,
        topic: &TopicName,
        from: &ListPosition,
        limit: usize,
    ) -> Result<ShardPage<JobRecord>> {
        let (mut found, mut end) = (Vec::new(), from.clone());
        while let ListPosition::Behind(score, member) = &end {
            if found.len() >= limit {
                break;
            }
            let mut call = self.call(Script::RecordList, place);
            call.cmd.arg(topic.as_str()).arg(score).arg(&member[..]);
            call.cmd.arg((limit - found.len()).min(CHUNK)).arg(BYTES);
            let mut values = array(self.ask(place, call)?)?.into_iter();
            let mut next = || values.next().ok_or_else(|| unexpected("a list"));
            let (score, member) = (text(next()?)?, bytes(next()?)?);
            while let (Some(of), Some(packed)) = (values.next(), values.next()) {
                let key = JobKey { topic: topic.clone(), id: id(of)? };
                for record in records_of(&key, &bytes(packed)?)? {
                    let behind = place_behind(record.order_ms, key.id.as_str());
                    found.push((record, behind));
                }
            }
            end = if score.is_empty() { ListPosition::AtEnd } else { ListPosition::Behind(score, member) };
        }
        Ok(ShardPage { items: found, end })
    }

    fn records_at(&self, place: Place, key: &JobKey) -> Result<Vec<JobRecord>> {
        let mut call = self.call(Script::RecordGet, place);
        call.cmd.arg(key.topic.as_str()).arg(key.id.as_str());
        match self.ask(place, call)? {
            Value::Nil => Ok(Vec::new()),
            packed => records_of(key, &bytes(packed)?),
        }
    }

    /// Erases records. `what`: the arguments of the script after the topic. Returns how many it erased, and whether
    /// there are more.
    fn erase(&self, place: Place, topic: &TopicName, what: &[&str]) -> Result<(usize, bool)> {
        let mut call = self.call(Script::RecordForget, place);
        call.cmd.arg(topic.as_str()).arg(what);
        match array(self.ask(place, call)?)?.as_slice() {
            [gone, more] => Ok((count(gone)?, number(more)? > 0)),
            _ => Err(unexpected("an answer")),
        }
    }

    /// Makes a shard erase records. `what`: `old` erases records that are too old, and `room` erases records to make
    /// room. Returns for how many ids the shard has erased records. Also returns the shortest time for which a topic of
    /// the shard keeps its records. None: this call found no such topic, or `what` is `room`.
    fn trim(&self, place: Place, what: &str) -> Result<(usize, Option<Duration>)> {
        let mut call = self.call(Script::RecordTrim, place);
        call.cmd.arg(CHUNK).arg(what);
        match array(self.ask(place, call)?)?.as_slice() {
            [gone, shortest] => {
                Ok((count(gone)?, u64::try_from(number(shortest)?).ok().map(Duration::from_millis)))
            }
            _ => Err(unexpected("an answer")),
        }
    }

    /// Makes room on the shards of these jobs. Returns whether any record was erased.
    pub(super) fn make_room<'a>(&self, keys: impl Iterator<Item = &'a JobKey>) -> bool {
        let Ok(homes) = self.nodes.open_homes() else { return false };
        let place = |key: &JobKey| Some(self.nodes.place(homes.home(key).ok()?, key));
        let mut places: Vec<Place> = keys.filter_map(place).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().filter(|place| matches!(self.trim(*place, "room"), Ok((1.., _)))).count() > 0
    }

    /// Sends a shard the settings that say what topics keep. Settings that the shard knows already are not sent. The
    /// settings of other topics stay, because another host may serve these topics.
    fn send_keeping(&self, place: Place, wanted: &BTreeMap<&str, String>) -> Result<()> {
        let known = self.nodes.nodes[place.node].plain("HGETALL", place.shard, "keeping");
        let known = array(self.ask(place, known)?).unwrap_or_default();
        let words: Vec<String> = known.into_iter().map(text).collect::<Result<_>>()?;
        let known: BTreeMap<&str, &str> =
            words.as_chunks().0.iter().map(|[topic, word]| (topic.as_str(), word.as_str())).collect();
        let is_new = |topic: &str, word: &str| known.get(topic).copied().unwrap_or_default() != word;
        let changes: Vec<(&str, &str)> = wanted
            .iter()
            .map(|(topic, word)| (*topic, word.as_str()))
            .filter(|(topic, word)| is_new(topic, word))
            .collect();
        for some in changes.chunks(CHUNK) {
            let mut call = self.call(Script::RecordKeep, place);
            some.iter().for_each(|(topic, word)| {
                call.cmd.arg(*topic).arg(*word);
            });
            self.ask(place, call)?;
        }
        Ok(())
    }
}

impl Records for RedisStore {
    fn keep_records(&mut self, topics: &[(TopicName, RecordKeeping)], bytes_max: u64) -> Result<()> {
        let places: Vec<Place> = self.all_places().collect();
        let share = bytes_max / places.len().max(1) as u64;
        let mut wanted: BTreeMap<&str, String> =
            topics.iter().map(|(topic, keeping)| (topic.as_str(), word_of(keeping))).collect();
        wanted.insert("", if share == RECORDS_MAX { String::new() } else { share.to_string() });
        let mut failed = Ok(());
        for place in places {
            match self.send_keeping(place, &wanted) {
                Ok(()) => {}
                // The shard gets these settings when it is back.
                Err(e) => failed = Err(e),
            }
        }
        failed
    }

    fn records(&mut self, key: &JobKey) -> Result<Vec<JobRecord>> {
        let homes = self.nodes.homes()?;
        // While jobs are moved, records are first copied to their new home, and then removed from their old home.
        let (before, home) = (homes.home_before(key)?, homes.home(key)?);
        let mut found = self.records_at(self.nodes.place(before, key), key)?;
        if home != before {
            let others = self.records_at(self.nodes.place(home, key), key)?;
            found.extend(others.into_iter().filter(|one| !found.contains(one)).collect::<Vec<_>>());
            found.sort_by_key(|record| record.ended_ms);
        }
        found.reverse();
        Ok(found)
    }

    fn list_records(&mut self, topic: &TopicName, cursor: Option<&str>, limit: usize) -> Result<RecordPage> {
        let page = |place, from: &ListPosition, limit| self.record_page(place, topic, from, limit);
        let merged =
            self.merged(cursor, limit, page, |record| Reverse((record.ended_ms, record.key.id.clone())))?;
        Ok(RecordPage { records: merged.items, next: merged.next, away: merged.away })
    }

    fn records_after(&mut self, _: &TopicName, ended_ms: i64, id: Option<&JobId>) -> Result<Option<String>> {
        // On each shard, records are in the order of their time and id. So the same position is valid on all shards.
        let behind = place_behind(ended_ms, id.map_or("", JobId::as_str));
        self.cursor_of(self.all_places().map(|place| (place, &behind))).map(Some)
    }

    fn forget(&mut self, key: &JobKey) -> Result<usize> {
        let homes = self.nodes.open_homes()?;
        let place = self.nodes.place(homes.home(key)?, key);
        let (gone, _) = self.erase(place, &key.topic, &["ids", key.id.as_str()])?;
        self.confirm(&key.topic, std::iter::once(place)).map(|()| gone)
    }

    fn purge_records(&mut self, topic: &TopicName, limit: usize) -> Result<usize> {
        let mut sum = 0;
        self.at_each_place(|place| {
            while sum < limit {
                let (gone, more) =
                    self.erase(place, topic, &["oldest", &CHUNK.min(limit - sum).to_string()])?;
                sum += gone;
                if !more {
                    break;
                }
            }
            Ok(())
        })?;
        Ok(sum)
    }

    fn trim_records(&mut self) -> Result<(usize, Duration)> {
        let (mut sum, mut shortest, mut failed) = (0, None::<Duration>, None);
        for place in self.places() {
            match self.trim(place, "old") {
                Ok((gone, age)) => {
                    sum += gone;
                    shortest = [shortest, age].into_iter().flatten().min();
                }
                Err(e) => failed = Some(e),
            }
        }
        match failed {
            Some(e) if sum == 0 => Err(e),
            _ => Ok((sum, trim_again(sum, shortest))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_scripts_are_those_of_the_model() {
        let script = include_str!("lua/part/history.lua");
        let age = RecordKeeping::DEFAULT.age.as_millis();
        let defaults = format!("{age}, {}, {RECORDS_MAX}\n", RecordKeeping::DEFAULT.jobs);
        assert!(script.contains(&format!("DEFAULT_BYTES = {defaults}")));
        let bounds = format!("{}, {}", model::record::RECORDS_OF_AN_ID, model::record::RECORD_BODY_MAX);
        assert!(script.contains(&format!("OF_AN_ID, BODY_MAX = {bounds}\n")));
        for (number, word) in ["DELIVERED", "DEAD", "DELETED", "REPLACED"].iter().enumerate() {
            let ending = Ending::from_number(number as i64 + 1).unwrap();
            assert_eq!(ending.word().to_uppercase(), *word);
        }
        assert!(script.contains("DELIVERED, DEAD, DELETED, REPLACED = 1, 2, 3, 4\n"));
    }

    #[test]
    fn records_are_read_as_scripts_write_them() {
        let key = JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("i").unwrap() };
        let log = b"h{\"a\":\"7\"}\n{\"number\":1,\"at_ms\":5,\"took_ms\":2,\"status\":200}\n";
        let mut record = vec![1];
        record.extend([0, 0, 0, 0, 1, 0]);
        record.extend([0, 0, 0, 0, 0, 0, 0]);
        record.extend([0, 0, 0, 0, 0, 9]);
        record.extend([0, 0, 0, 1]);
        record.extend((log.len() as u32).to_be_bytes());
        record.extend(log);
        record.extend(b"{}");
        let packed = [&(record.len() as u32).to_be_bytes()[..], &record].concat();
        let read = records_of(&key, &[&packed[..], &packed].concat()).unwrap();
        assert_eq!((read.len(), &read[0]), (2, &read[1]));
        let JobRecord { ending, ended_ms, stamp_us, due_ms, attempts, attempts_log, body, headers, .. } =
            &read[0];
        assert_eq!((*ending, *ended_ms, *stamp_us, *due_ms), (Ending::Delivered, 256, None, 9));
        assert_eq!((*attempts, attempts_log[0].status), (1, Some(200)));
        assert_eq!((body.as_ref().unwrap().as_str(), headers.to_text()), ("{}", r#"{"a":"7"}"#.to_owned()));
        for cut in [3, 10, 40] {
            assert!(records_of(&key, &packed[..cut]).is_err());
        }
    }
}

//! Copies jobs and dead letters to their homes, and then removes them from their old shards. A round of a move does
//! this with each page of jobs.

use redis::Value;

use super::answer::{self, array, bytes, count, number, text, unexpected};
use super::move_progress::MoveProgress;
use super::nodes::Place;
use super::round::{MoveRound, MoveRoundError, RoundResult, ShardMove};
use super::script::Script;
use super::{BYTES, CHUNK};
use crate::Result;
use model::job::{JobId, TopicName};

/// How many ids one step handles when records are copied. Some records may have large bodies.
const RECORDS: usize = 16;

/// A live job as `move_take` returns it.
type MovedJob = [Vec<u8>; 6];

impl<F: FnMut(MoveProgress)> MoveRound<'_, F> {
    /// Copies live jobs to their home, unchanged.
    pub(super) fn carry(&mut self, way: &ShardMove<'_>, ids: &[JobId]) -> RoundResult<()> {
        let ShardMove { from, topic, .. } = *way;
        let mut left = ids;
        while !left.is_empty() {
            let mut take = self.call(Script::MoveTake, from);
            take.cmd.arg(topic.as_str()).arg(BYTES).arg(left.iter().map(JobId::as_str).collect::<Vec<_>>());
            let mut values = array(self.run_one(from, take)?)?.into_iter();
            let seen = count(&values.next().unwrap_or_default())?;
            let values: Vec<Vec<u8>> = values.map(bytes).collect::<Result<_>>()?;
            let jobs: Vec<MovedJob> = values.as_chunks().0.to_vec();
            self.done.moved += self.put(way, &jobs)?;
            left = left.get(seen.max(1)..).unwrap_or_default();
        }
        Ok(())
    }

    fn put(&self, way: &ShardMove<'_>, jobs: &[MovedJob]) -> RoundResult<u64> {
        let ShardMove { from, home, topic, replicas } = *way;
        let rule = match self.goal_from() {
            _ if self.ask.adopt.contains(&self.nodes.names[from.node]) => "absent",
            0 => "newer",
            _ => "replace",
        };
        let shard = format!("{}.{}", self.nodes.names[from.node], from.shard);
        let taken = self.safely(home, replicas, || {
            let mut call = self.call(Script::MovePut, home);
            call.cmd.arg(rule).arg(&shard).arg(topic.as_str());
            call.cmd.arg(jobs.iter().flatten().collect::<Vec<_>>());
            call
        })?;
        Ok(count(&taken)? as u64)
    }

    /// Copies dead letters to their home.
    pub(super) fn carry_letters(&mut self, way: &ShardMove<'_>, ids: &[JobId]) -> RoundResult<()> {
        let ShardMove { from, home, topic, replicas } = *way;
        for id in ids {
            let mut at = "1".to_owned();
            while at != "0" {
                let mut take = self.call(Script::MoveTakeLetters, from);
                take.cmd.arg(topic.as_str()).arg(id.as_str()).arg(&at).arg(CHUNK / 4).arg(BYTES);
                let mut values = array(self.run_one(from, take)?)?.into_iter();
                at = text(values.next().unwrap_or_default())?;
                let letters: Vec<Vec<u8>> = values.map(bytes).collect::<Result<_>>()?;
                if letters.is_empty() {
                    continue;
                }
                let taken = self.safely(home, replicas, || {
                    let mut call = self.call(Script::MovePutLetters, home);
                    call.cmd.arg(topic.as_str()).arg(id.as_str());
                    call.cmd.arg(&letters);
                    call
                })?;
                self.done.moved += count(&taken)? as u64;
            }
        }
        Ok(())
    }

    /// Copies records to their home.
    pub(super) fn carry_records(&self, way: &ShardMove<'_>, ids: &[JobId]) -> RoundResult<()> {
        let ShardMove { from, home, topic, replicas } = *way;
        let names: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        for some in names.chunks(RECORDS) {
            let mut take =
                self.nodes.nodes[from.node].plain("HMGET", from.shard, &format!("H:{}", topic.as_str()));
            take.cmd.arg(some);
            let found = array(self.run_one(from, take)?)?;
            let there: Vec<(&str, Vec<u8>)> = some
                .iter()
                .zip(found)
                .filter(|(_, packed)| *packed != Value::Nil)
                .map(|(id, packed)| Ok((*id, bytes(packed)?)))
                .collect::<Result<_>>()?;
            if there.is_empty() {
                continue;
            }
            self.safely(home, replicas, || {
                let mut call = self.call(Script::RecordPut, home);
                call.cmd.arg(topic.as_str());
                for (id, packed) in &there {
                    call.cmd.arg(*id).arg(packed);
                }
                call
            })?;
        }
        Ok(())
    }

    pub(super) fn drop_there(
        &self,
        place: Place,
        topic: &TopicName,
        kind: &str,
        ids: &[JobId],
    ) -> RoundResult<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        if kind == "b" {
            let mut call = self.call(Script::MoveDrop, place);
            call.cmd.arg(topic.as_str()).arg(names);
            return self.run_one(place, call).map(drop);
        }
        if kind == "H" {
            let mut call = self.call(Script::RecordForget, place);
            call.cmd.arg(topic.as_str()).arg("ids").arg(names);
            return self.run_one(place, call).map(drop);
        }
        loop {
            let mut call = self.call(Script::Letters, place);
            call.cmd.arg(topic.as_str()).arg("remove").arg(&names);
            match array(self.run_one(place, call)?)?.as_slice() {
                [_, left] if number(left)? > 0 => {}
                [_, _] => return Ok(()),
                _ => return Err(MoveRoundError::Fails(unexpected("an answer"))),
            }
        }
    }

    /// Applies the notes that an earlier release without sets has left beside its jobs, and then removes these notes.
    /// That release could add a job on another node instead of at its home. If the job has ended there, the home may
    /// still have an earlier version of it. This earlier version is removed.
    pub(super) fn take_up_notes(&mut self, places: &[Place]) -> RoundResult<()> {
        for place in places {
            for home in self.nodes.names.clone() {
                let key = format!("away:{home}");
                let mut cursor = "0".to_owned();
                loop {
                    let mut scan = self.nodes.nodes[place.node].plain("HSCAN", place.shard, &key);
                    scan.cmd.arg(&cursor).arg("COUNT").arg(CHUNK);
                    let [next, entries] = <[Value; 2]>::try_from(array(self.run_one(*place, scan)?)?)
                        .map_err(|_| MoveRoundError::Fails(unexpected("an answer")))?;
                    cursor = text(next)?;
                    let entries: Vec<Vec<u8>> =
                        array(entries)?.into_iter().map(bytes).collect::<Result<_>>()?;
                    for [name, stamp] in entries.as_chunks().0 {
                        let cut = name.iter().position(|b| *b == 0).ok_or_else(|| unexpected("a name"))?;
                        let key = answer::key(&name[..cut], &name[cut + 1..])?;
                        let none = Vec::new;
                        let ended: MovedJob =
                            [key.id.as_str().into(), stamp.clone(), none(), none(), none(), none()];
                        let home = self.nodes.place(self.homes.home(&key)?, &key);
                        self.put(
                            &ShardMove { from: *place, home, topic: &key.topic, replicas: 0 },
                            &[ended],
                        )?;
                    }
                    if cursor == "0" {
                        break;
                    }
                }
            }
        }
        let other = |what: &'static str| self.nodes.names.iter().map(move |name| format!("{what}:{name}"));
        let shards = places.iter().map(|p| format!("put:{}.{}", self.nodes.names[p.node], p.shard));
        let keys: Vec<String> = other("away").chain(other("stray")).chain(shards).collect();
        let notes = ["map", "drained", "mover"].map(str::to_owned);
        for place in places {
            for key in keys.iter().chain(&notes) {
                let gone = self.nodes.nodes[place.node].plain("UNLINK", place.shard, key);
                self.run_one(*place, gone)?;
            }
        }
        Ok(())
    }
}

//! Brings jobs home that lie on another node: out of delivery there, into the home, gone there, forgotten at home. Whoever dies
//! in between leaves a job that is hidden on the node where it was, and is taken again after a while; none is ever in delivery
//! on both.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use redis::Value;

use super::answer::{self, array, bytes, strange, text};
use super::batch::letters;
use super::node::{Call, Failure};
use super::nodes::{Place, Survey};
use super::script::Script;
use super::{BYTES, RedisStore};
use crate::job::JobKey;
use crate::store::{Result, StoreError};

/// After how long a job may be taken again that somebody took and did not bring home.
const AGAIN_AFTER: Duration = Duration::from_secs(25);

/// How long somebody may take to bring home what he took. Less than half of [`AGAIN_AFTER`].
const MAX_AGE: Duration = Duration::from_secs(10);

/// How long a job that somebody else brings home is waited for.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// A job as the node that holds it gives it.
#[derive(Debug)]
pub(super) struct Entry {
    pub topic: Vec<u8>,
    pub id: Vec<u8>,
    pub stamp: Vec<u8>,
    /// Empty: there is no job to move, or it is leased. `?`: somebody else has taken it. `-`: it has ended, and its home has
    /// not been told.
    pub token: Vec<u8>,
    record: Vec<u8>,
    due: Vec<u8>,
    notes: Vec<u8>,
}

impl Entry {
    pub(super) fn key(&self) -> Result<JobKey> {
        answer::key(&self.topic, &self.id)
    }

    fn is_taken(&self) -> bool {
        self.token.len() > 1
    }
}

/// What a holder gave.
pub(super) struct Taken {
    /// Where to go on; `0`: all was seen.
    pub cursor: String,
    /// The holder's clock, as it gives it.
    pub clock: Vec<u8>,
    pub entries: Vec<Entry>,
}

/// Where a job is that was to be brought home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// Nowhere but at home.
    No,
    /// Leased there: it was left. With its stamp.
    Leased(Vec<(Place, Vec<u8>)>),
    /// Somebody else is bringing it home.
    OnItsWay,
}

impl RedisStore {
    /// Takes jobs out of delivery that are noted to be moved to another node.
    pub(super) fn take_noted(&self, holder: Place, home: usize, cursor: &str, some: usize) -> Result<Taken> {
        self.take(holder, home, cursor, some, &[])
    }

    /// `ids`: which jobs, where the cursor is `ids`.
    fn take(&self, holder: Place, home: usize, cursor: &str, some: usize, ids: &[&JobKey]) -> Result<Taken> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
        let mut call = self.call(Script::ReconcileTake, holder);
        call.cmd.arg(&self.nodes.names[home]).arg(cursor).arg(some).arg(&random[..]);
        call.cmd.arg(BYTES).arg(AGAIN_AFTER.as_millis() as u64);
        for key in ids {
            call.cmd.arg(key.topic.as_str()).arg(key.id.as_str());
        }
        let mut values = array(self.ask(holder, call)?)?.into_iter();
        let mut next = || values.next().ok_or_else(|| strange("an answer"));
        // Whether some could not be taken now is seen by what stays noted.
        let (cursor, _passed_over, clock) = (text(next()?)?, next()?, bytes(next()?)?);
        let mut entries = Vec::new();
        while let Some(topic) = values.next() {
            let mut next = || values.next().ok_or_else(|| strange("an answer")).and_then(bytes);
            let (id, stamp, token) = (next()?, next()?, next()?);
            let (record, due, notes) = (next()?, next()?, next()?);
            entries.push(Entry { topic: bytes(topic)?, id, stamp, token, record, due, notes });
        }
        Ok(Taken { cursor, clock, entries })
    }

    /// Brings home what was taken from a shard when its clock was that, as far as it can be; all of it has that home.
    pub(super) fn carry(&self, holder: Place, home: usize, clock: &[u8], entries: &[&Entry]) -> Result<()> {
        let mut by_shard: BTreeMap<Place, Vec<&Entry>> = BTreeMap::new();
        for entry in entries {
            by_shard.entry(self.nodes.place(home, &entry.key()?)).or_default().push(entry);
        }
        for (place, entries) in by_shard {
            let mut put = self.call(Script::ReconcilePut, place);
            put.cmd.arg(self.nodes.shard_name(holder)).arg(clock).arg(MAX_AGE.as_millis() as u64);
            for e in &entries {
                put.cmd.arg(&e.topic).arg(&e.id).arg(&e.stamp).arg(&e.record).arg(&e.due).arg(&e.notes);
            }
            match self.nodes.nodes[place.node].run_one(put) {
                Ok(answer) if bytes(answer.clone())?.is_empty() => {
                    log::error!(
                        "the clocks of {} and {} differ too much to move jobs",
                        self.nodes.names[holder.node],
                        self.nodes.names[home]
                    );
                    self.give_back(holder, &entries)?;
                }
                Ok(answer) => {
                    letters(answer, entries.len())?;
                    self.let_go(holder, place, &entries)?;
                }
                Err(Failure::Unknown(e)) => return Err(e),
                Err(e) => {
                    // It was not put for certain.
                    self.give_back(holder, &entries)?;
                    return Err(e.into_error());
                }
            }
        }
        Ok(())
    }

    /// Lets a holder forget jobs that are at home now, and the home that it has put them.
    fn let_go(&self, holder: Place, place: Place, entries: &[&Entry]) -> Result<()> {
        let mut remove = self.call(Script::ReconcileDrop, holder);
        remove.cmd.arg(&self.nodes.names[place.node]);
        for e in entries {
            remove.cmd.arg(&e.topic).arg(&e.id).arg(&e.stamp).arg(&e.token);
        }
        let gone = letters(self.ask(holder, remove)?, entries.len())?;
        let mut forget = self.call(Script::ReconcileForget, place);
        forget.cmd.arg(self.nodes.shard_name(holder));
        for (e, _) in entries.iter().zip(&gone).filter(|(_, letter)| **letter == b'g') {
            forget.cmd.arg(&e.topic).arg(&e.id).arg(&e.stamp);
        }
        self.ask(place, forget).map(drop)
    }

    /// Puts jobs back into delivery that cannot be brought home now.
    pub(super) fn give_back(&self, holder: Place, entries: &[&Entry]) -> Result<()> {
        let mut call = self.call(Script::Settle, holder);
        let mut topics: BTreeMap<&[u8], Vec<&Entry>> = BTreeMap::new();
        entries.iter().filter(|e| e.is_taken()).for_each(|e| topics.entry(&e.topic).or_default().push(e));
        if topics.is_empty() {
            return Ok(());
        }
        for (topic, entries) in topics {
            call.cmd.arg(topic).arg(entries.len());
            for e in entries {
                call.cmd.arg(&e.id).arg(&e.token).arg("h").arg("");
            }
        }
        self.ask(holder, call).map(drop)
    }

    /// Removes copies from a shard, in whichever state they are, of which there is a newer one at home.
    pub(super) fn remove_copies(
        &self,
        holder: Place,
        home: usize,
        copies: &[(&JobKey, &[u8])],
    ) -> Result<()> {
        let mut call = self.call(Script::ReconcileDrop, holder);
        call.cmd.arg(&self.nodes.names[home]);
        for (key, stamp) in copies {
            call.cmd.arg(key.topic.as_str()).arg(key.id.as_str()).arg(*stamp).arg("any");
        }
        letters(self.ask(holder, call)?, copies.len()).map(drop)
    }

    /// Brings the jobs of these keys to their homes, as far as other nodes that answer hold any, so that what is then done to
    /// them at home is done to the jobs. Tells of each, in their order, what is left elsewhere.
    pub(super) fn bring_home(&self, keys: &[&JobKey], survey: &Survey) -> Vec<Elsewhere> {
        let mut elsewhere = vec![Elsewhere::No; keys.len()];
        let until = Instant::now() + ON_ITS_WAY;
        let mut left: Vec<usize> = if survey.reports.is_empty() { vec![] } else { (0..keys.len()).collect() };
        while !left.is_empty() {
            let mut asked: BTreeMap<(Place, usize), Vec<usize>> = BTreeMap::new();
            for i in left.drain(..) {
                let home = survey.map.home(keys[i]);
                if survey.is_silent(home) {
                    continue;
                }
                for holder in survey.holders(home) {
                    asked.entry((self.nodes.place(holder, keys[i]), home)).or_default().push(i);
                }
            }
            for ((holder, home), members) in asked {
                match self.bring_from(holder, home, &members, keys) {
                    Ok(found) => {
                        for (i, stamp) in found {
                            match (stamp, &mut elsewhere[i]) {
                                (Some(stamp), Elsewhere::Leased(places)) => places.push((holder, stamp)),
                                (Some(stamp), place) => *place = Elsewhere::Leased(vec![(holder, stamp)]),
                                (None, place) => *place = Elsewhere::OnItsWay,
                            }
                        }
                    }
                    // What cannot be asked now is looked at before it delivers anything.
                    Err(e) => log::debug!("{}: {e}", self.nodes.names[holder.node]),
                }
            }
            left.extend((0..keys.len()).filter(|i| elsewhere[*i] == Elsewhere::OnItsWay));
            if Instant::now() >= until {
                break;
            }
            if !left.is_empty() {
                // Whoever brings them is through in milliseconds, or dead.
                std::thread::sleep(Duration::from_millis(10));
                left.iter().for_each(|i| elsewhere[*i] = Elsewhere::No);
            }
        }
        elsewhere
    }

    /// Brings some jobs home from a shard. Gives those that it left: leased, with their stamps, or on their way.
    fn bring_from(
        &self,
        holder: Place,
        home: usize,
        members: &[usize],
        keys: &[&JobKey],
    ) -> Result<Vec<(usize, Option<Vec<u8>>)>> {
        let wanted: Vec<&JobKey> = members.iter().map(|i| keys[*i]).collect();
        let taken = self.take(holder, home, "ids", 0, &wanted)?;
        let by_key: HashMap<(&[u8], &[u8]), usize> = members
            .iter()
            .map(|i| ((keys[*i].topic.as_str().as_bytes(), keys[*i].id.as_str().as_bytes()), *i))
            .collect();
        let mut left = Vec::new();
        let (mut carried, mut ended) = (Vec::new(), Vec::new());
        for entry in &taken.entries {
            let Some(i) = by_key.get(&(&entry.topic[..], &entry.id[..])) else { continue };
            match &entry.token[..] {
                b"" => left.push((*i, Some(entry.stamp.clone()))),
                b"?" => left.push((*i, None)),
                b"-" => ended.push([entry.topic.clone(), entry.id.clone(), entry.stamp.clone()]),
                _ => carried.push(entry),
            }
        }
        if !carried.is_empty() {
            self.carry(holder, home, &taken.clock, &carried)?;
        }
        self.tell_of(holder, home, &ended)?;
        Ok(left)
    }

    /// Tells a home of jobs that were added on a shard in its place, so that it lets go of older copies.
    pub(super) fn tell_of(&self, holder: Place, home: usize, entries: &[[Vec<u8>; 3]]) -> Result<()> {
        let mut by_shard: BTreeMap<Place, Vec<&[Vec<u8>; 3]>> = BTreeMap::new();
        for entry in entries {
            let key = answer::key(&entry[0], &entry[1])?;
            by_shard.entry(self.nodes.place(home, &key)).or_default().push(entry);
        }
        for (at, entries) in by_shard {
            let mut tell = self.call(Script::ReconcileYield, at);
            for e in &entries {
                tell.cmd.arg(&e[0]).arg(&e[1]).arg(&e[2]);
            }
            let told = letters(self.ask(at, tell)?, entries.len())?;
            let mut demote = self.call(Script::ReconcileDemote, holder);
            demote.cmd.arg(&self.nodes.names[home]);
            for (e, letter) in entries.iter().zip(told) {
                demote.cmd.arg(&e[0]).arg(&e[1]).arg(&e[2]).arg(&[letter][..]);
            }
            self.ask(holder, demote)?;
        }
        Ok(())
    }
}

/// A page of what is noted on a shard under a name: topic, id, stamp each; and where to go on.
pub(super) fn noted(value: Value) -> Result<(String, Vec<[Vec<u8>; 3]>)> {
    let [cursor, entries] = <[Value; 2]>::try_from(array(value)?).map_err(|_| strange("an answer"))?;
    let mut values = array(entries)?.into_iter();
    let mut out = Vec::new();
    while let (Some(name), Some(stamp)) = (values.next(), values.next()) {
        let name = bytes(name)?;
        let cut = name.iter().position(|b| *b == 0).ok_or_else(|| strange("a name"))?;
        out.push([name[..cut].to_vec(), name[cut + 1..].to_vec(), bytes(stamp)?]);
    }
    Ok((text(cursor)?, out))
}

/// A page of the jobs that were added on a shard in the place of a node.
pub(super) fn page_of_away(
    store: &RedisStore,
    holder: Place,
    home: usize,
    cursor: &str,
    some: usize,
) -> Call {
    let key = format!("away:{}", store.nodes.names[home]);
    let mut call = store.nodes.nodes[holder.node].plain("HSCAN", holder.shard, &key);
    call.cmd.arg(cursor).arg("COUNT").arg(some);
    call
}

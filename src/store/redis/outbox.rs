//! Sends the entries of outboxes: from the shard where a job ended (the source) to the homes of the jobs that follow it
//! (the targets). docs/internals/FOLLOW.md has the rules, and the reason why no entry is lost or taken twice.
//! `outbox_plan` decides what is sent and removed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use redis::Value;

use super::RedisStore;
use super::answer::{self, array, bytes, count, number, unexpected};
use super::change::add_words;
use super::homes::Homes;
use super::node::{BATCH, Call, Failure};
use super::nodes::Place;
use super::outbox_entry::parse_entry;
use super::outbox_pass::{OutboxPass, OutboxRetry};
use super::outbox_plan::plan;
use super::script::Script;
use super::set::{NodeSet, SET, home_of};
use crate::{FollowerMaker, FollowerSendResult, Outbox, OutboxEntry, OutboxState, Result, StoreError};
use model::job::{NewJob, TopicName};

/// How many entries, and about how many bytes of entries, are sent together.
const PAGE: usize = 64;
const PAGE_BYTES: usize = 1 << 20;

/// How many pages of a shard are sent before the next shard has its turn.
const PAGES: usize = 8;

/// For how long no other sender may send, after a sender has read entries.
const ALONE: Duration = Duration::from_secs(2);

/// How long a sender waits before it looks for new entries, while older entries wait for a target that is down.
const LOOK: Duration = Duration::from_millis(200);

/// What a handle knows of outboxes.
pub(super) struct Outboxes {
    /// The name under which this handle sends.
    name: String,
    /// The shards with waiting entries, and when to send these entries again.
    sources: BTreeMap<Place, OutboxRetry>,
    /// Whether a promotion or an expiry has seen entries since this flag was last read.
    pub(super) is_seen: bool,
}

impl Outboxes {
    pub(super) fn new() -> Result<Outboxes> {
        let no_random = |e| StoreError::Unavailable(format!("no random numbers: {e}"));
        let name = format!("{:016x}", getrandom::u64().map_err(no_random)?);
        Ok(Outboxes { name, sources: BTreeMap::new(), is_seen: false })
    }
}

/// A page of entries.
enum OutboxPage {
    /// Only another sender may send for this long.
    Busy(Duration),
    /// The set under which entries were last sent, and the entries with their numbers. None: the entry cannot be read.
    Read(String, Vec<(i64, Option<OutboxEntry>)>),
}

/// What is left to do for a source after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutboxSendResult {
    Nothing,
    /// There is more to send now.
    More,
    /// The end of the outbox is reached, but some entries could not be sent.
    Blocked,
    /// It is not known yet what the targets took under an earlier set.
    Unsettled,
    /// Only another sender may send for this long.
    Busy(Duration),
}

/// Returns the name under which the entries of a source are sent under one set of nodes.
fn sender_name(node: &str, source: Place, set: &str) -> String {
    let mut words = set.split(' ');
    let (number, tag) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    format!("out:{node}.{}:{number}-{tag}", source.shard)
}

impl RedisStore {
    /// Sends some pages of the entries of one source.
    fn send_from(
        &mut self,
        homes: &Homes,
        source: Place,
        make: FollowerMaker<'_>,
        added: &mut Vec<TopicName>,
        pass: &mut OutboxPass,
    ) -> Result<OutboxSendResult> {
        if pass.set != homes.set.text() {
            *pass = OutboxPass { set: homes.set.text().to_owned(), ..OutboxPass::default() };
        }
        let OutboxPass { set, after, blocked, has_waiting } = pass;
        let sender = sender_name(&self.nodes.names[source.node], source, homes.set.text());
        let mut marks = BTreeMap::new();
        for _ in 0..PAGES {
            let (last_set, entries) = match self.take_page(homes, source, *after)? {
                OutboxPage::Busy(wait) => return Ok(OutboxSendResult::Busy(wait)),
                OutboxPage::Read(last_set, entries) => (last_set, entries),
            };
            if last_set != homes.set.text() {
                // The next call begins the pass again.
                set.clear();
                let is_settled = self.settle_earlier_set(homes, source, &last_set, make)?;
                return Ok(if is_settled { OutboxSendResult::More } else { OutboxSendResult::Unsettled });
            }
            if entries.is_empty() {
                return Ok(if *has_waiting { OutboxSendResult::Blocked } else { OutboxSendResult::Nothing });
            }
            let (mut done, mut jobs, mut targets, mut level) =
                (Vec::new(), BTreeMap::new(), Vec::new(), None);
            for (number, entry) in entries {
                let Some(job) = entry.as_ref().and_then(make) else {
                    done.push(number);
                    *after = number;
                    continue;
                };
                // Calls that are made together wait for one durability level, so the page ends before another level.
                let own = self.nodes.level(&job.key.topic);
                if *level.get_or_insert(own) != own {
                    break;
                }
                *after = number;
                match homes.home(&job.key) {
                    Ok(node) => targets.push((number, self.nodes.place(node, &job.key))),
                    Err(e) => {
                        let (topic, id) = (job.key.topic.as_str(), job.key.id.as_str());
                        log::debug!(topic, id; "what follows this job waits: {e}");
                        *has_waiting = true;
                        continue;
                    }
                }
                jobs.insert(number, job);
            }
            self.read_marks(&sender, &targets, &mut marks);
            let plan = plan(&targets, &marks, blocked);
            done.extend(plan.taken);
            let call = |(target, batch): (&Place, &super::outbox_plan::OutboxBatch)| {
                let some = by_topic(&batch.entries, &jobs);
                Some((
                    *target,
                    self.batch_call(homes, *target, &sender, batch.expected, batch.number, &some)?,
                ))
            };
            let calls: Vec<(Place, Call)> = plan.batches.iter().filter_map(call).collect();
            for (target, answer) in self.ask_all_by(calls) {
                let batch = &plan.batches[&target];
                match answer.and_then(bytes) {
                    Ok(letters) if !letters.is_empty() => {
                        let letters = letters.chunks(8).map(|letter| letter[0]);
                        let is_new = by_topic(&batch.entries, &jobs).into_iter().zip(letters);
                        added
                            .extend(is_new.filter(|(_, l)| *l == b'n').map(|(job, _)| job.key.topic.clone()));
                        marks.insert(target, batch.number);
                        done.extend(&batch.entries);
                    }
                    Ok(_) => {
                        // Another sender has sent entries to this target meanwhile.
                        marks.remove(&target);
                        blocked.insert(target);
                    }
                    Err(e) => {
                        log::debug!("what follows jobs waits for {}: {e}", self.nodes.names[target.node]);
                        marks.remove(&target);
                        blocked.insert(target);
                    }
                }
            }
            let is_done: BTreeSet<i64> = done.iter().copied().collect();
            if targets.iter().any(|(number, _)| !is_done.contains(number)) {
                *has_waiting = true;
                // Later entries for a target must wait for the earlier entries.
                let waits = targets.iter().filter(|(number, _)| !is_done.contains(number));
                blocked.extend(waits.map(|(_, target)| *target));
            }
            self.note_done(homes, source, &done)?;
        }
        Ok(OutboxSendResult::More)
    }

    fn take_page(&self, homes: &Homes, source: Place, after: i64) -> Result<OutboxPage> {
        let mut call = self.nodes.call(Script::OutboxTake, source, homes);
        call.cmd.arg(after).arg(PAGE).arg(PAGE_BYTES).arg(&self.outboxes.name).arg(ALONE.as_millis() as u64);
        let values = array(self.ask_by(source, call)?)?;
        match values.as_slice() {
            [busy_ms] => Ok(OutboxPage::Busy(Duration::from_millis(count(busy_ms)? as u64))),
            [_, now_us, last_set, entries @ ..] => {
                let now_us = number(now_us)?;
                let entry = |value: &Value| parse_entry(&bytes(value.clone())?, now_us);
                let entries = entries.iter().map(entry).collect::<Result<_>>()?;
                Ok(OutboxPage::Read(answer::text(last_set.clone())?, entries))
            }
            _ => Err(unexpected("an answer")),
        }
    }

    /// Reads the marks that `marks` does not have yet. A target that does not answer has no mark.
    fn read_marks(&self, sender: &str, targets: &[(i64, Place)], marks: &mut BTreeMap<Place, i64>) {
        let unknown: BTreeSet<Place> =
            targets.iter().map(|(_, target)| *target).filter(|target| !marks.contains_key(target)).collect();
        let key = format!("{BATCH}{sender}");
        let call = |target: Place| (target, self.nodes.nodes[target.node].plain("GET", target.shard, &key));
        for (target, answer) in self.ask_all_by(unknown.into_iter().map(call).collect()) {
            if let Ok(mark) = answer.and_then(answer::optional_text) {
                marks.insert(target, mark.parse().unwrap_or(0));
            }
        }
    }

    /// Makes the call that adds the jobs of a batch.
    fn batch_call(
        &self,
        homes: &Homes,
        target: Place,
        sender: &str,
        expected: i64,
        number: i64,
        jobs: &[&NewJob],
    ) -> Option<Call> {
        let places = jobs.iter().map(|_| Ok(target)).collect();
        let words = |jobs: &[&NewJob], cmd: &mut redis::Cmd| add_words(jobs, 1, cmd);
        let (mut calls, _) =
            self.grouped::<8, _>(Script::Add, homes, jobs, places, |job| &job.key, &[], words);
        let (_, mut call) = calls.pop()?;
        call.durability = jobs.iter().map(|job| self.nodes.level(&job.key.topic)).max()?;
        let number = format_args!("{number}@{expected}");
        Some(self.nodes.nodes[target.node].as_batch(&call, sender, number, &[]))
    }

    fn note_done(&self, homes: &Homes, source: Place, done: &[i64]) -> Result<()> {
        if done.is_empty() {
            return Ok(());
        }
        let mut call = self.nodes.call(Script::OutboxNote, source, homes);
        call.cmd.arg("done").arg(done);
        self.ask_by(source, call).map(drop)
    }

    /// Removes the entries that their targets took under an earlier set of nodes. Then notes that entries are sent
    /// under the present set from now on. Targets no longer take entries under the earlier set: their fences refuse
    /// these entries. Returns false if it is not known yet what a target took.
    fn settle_earlier_set(
        &self,
        homes: &Homes,
        source: Place,
        last_set: &str,
        make: FollowerMaker<'_>,
    ) -> Result<bool> {
        if let Some(earlier) = NodeSet::parse(last_set) {
            let sender = sender_name(&self.nodes.names[source.node], source, last_set);
            let (mut after, mut marks) = (0, BTreeMap::new());
            loop {
                let OutboxPage::Read(_, entries) = self.take_page(homes, source, after)? else {
                    return Ok(false);
                };
                let Some((last, _)) = entries.last() else { break };
                after = *last;
                let mut done = Vec::new();
                for (number, entry) in entries {
                    let Some(job) = entry.as_ref().and_then(make) else { continue };
                    let name = &earlier.names[home_of(&earlier.names, &job.key)];
                    let Some(node) = self.nodes.names.iter().position(|n| n == name) else {
                        if homes.set.names.contains(name) {
                            return Ok(false);
                        }
                        // The configuration does not name this node, and the node is not in the set any more. So dq
                        // cannot learn what the node took. The entry stays, and is sent again under the present set.
                        continue;
                    };
                    let target = self.nodes.place(node, &job.key);
                    let mark = match marks.get(&target) {
                        Some(mark) => *mark,
                        None => {
                            let Some(mark) = self.earlier_mark(homes, target, &sender, last_set) else {
                                return Ok(false);
                            };
                            *marks.entry(target).or_insert(mark)
                        }
                    };
                    if number <= mark {
                        done.push(number);
                    }
                }
                self.note_done(homes, source, &done)?;
            }
        }
        let mut call = self.nodes.call(Script::OutboxNote, source, homes);
        call.cmd.arg("set").arg(last_set).arg(homes.set.text());
        self.ask_by(source, call)?;
        Ok(true)
    }

    /// Returns the last entry that a target took under an earlier set. None: this is not known yet.
    fn earlier_mark(&self, homes: &Homes, target: Place, sender: &str, last_set: &str) -> Option<i64> {
        let node = &self.nodes.nodes[target.node];
        let calls = [
            node.plain("GET", target.shard, SET),
            node.plain("GET", target.shard, &format!("{BATCH}{sender}")),
        ];
        let mut answers = self.nodes.run(target.node, &calls).into_iter();
        let mut next = || {
            let answer = answers.next()?.map_err(Failure::into_error);
            answer.and_then(answer::optional_text).ok()
        };
        match (next(), next(), homes.has(target.node)) {
            // The shard still has another set, so it could still take an entry that is on its way.
            (Some(set), Some(_), true) if set != homes.set.text() => None,
            // The node is outside the set now, but its shard still has the earlier set. So the set was changed while
            // the node did not answer. The node is forgotten, and what it took counts as not taken.
            (Some(set), Some(_), false) if set == last_set => Some(0),
            (Some(_), Some(mark), _) => Some(mark.parse().unwrap_or(0)),
            // A node outside the set that does not answer is given up.
            (_, _, false) => Some(0),
            (_, _, true) => None,
        }
    }
}

/// Returns the jobs of these entries in the order in which the script gets them, and answers: by topic, and the jobs of
/// a topic in the order of the entries.
fn by_topic<'a>(entries: &[i64], jobs: &'a BTreeMap<i64, NewJob>) -> Vec<&'a NewJob> {
    let mut some: Vec<&NewJob> = entries.iter().filter_map(|number| jobs.get(number)).collect();
    some.sort_by(|a, b| a.key.topic.as_str().cmp(b.key.topic.as_str()));
    some
}

impl Outbox for RedisStore {
    fn has_followers(&mut self) -> Result<bool> {
        let is_outside = || self.lane.zip(self.nodes.known()).is_some_and(|(lane, homes)| !homes.has(lane));
        // The jobs of a node outside the set were moved away. Entries of its outbox may still be there, and no
        // promotion sees them.
        let is_outside = is_outside();
        Ok(std::mem::take(&mut self.outboxes.is_seen) || is_outside)
    }

    fn send_followers(&mut self, make: FollowerMaker<'_>) -> Result<FollowerSendResult> {
        let homes = match self.nodes.open_homes() {
            Ok(homes) => homes,
            // Nothing is added until the move of the jobs is over, or the node answers again.
            Err(e @ (StoreError::Moving(_) | StoreError::NodeDown(_))) => {
                log::debug!("what follows jobs waits: {e}");
                return Ok(FollowerSendResult { added: Vec::new(), again: Some(LOOK) });
            }
            Err(e) => return Err(e),
        };
        let mut sent = FollowerSendResult::default();
        let mut failed = None;
        for source in self.places() {
            let now = Instant::now();
            let mut retry = self.outboxes.sources.remove(&source).unwrap_or_else(|| OutboxRetry::new(now));
            if retry.again_at <= now {
                retry.restart_if_due(now);
                let left = self.send_from(&homes, source, make, &mut sent.added, &mut retry.pass);
                retry.again_at = match left {
                    Ok(OutboxSendResult::Nothing) => continue,
                    Ok(OutboxSendResult::More) => now,
                    Ok(OutboxSendResult::Busy(wait)) => {
                        retry.pass = OutboxPass::default();
                        now + wait
                    }
                    Ok(OutboxSendResult::Blocked) => retry.restart_later(now).min(now + LOOK),
                    Ok(OutboxSendResult::Unsettled) | Err(_) => retry.restart_later(now),
                };
                failed = left.err().or(failed);
            }
            let wait = retry.again_at.saturating_duration_since(now);
            sent.again = sent.again.into_iter().chain([wait]).min();
            self.outboxes.sources.insert(source, retry);
        }
        match failed {
            Some(e)
                if sent.added.is_empty() && !matches!(e, StoreError::NodeDown(_) | StoreError::Moving(_)) =>
            {
                // The shards are tried again after their pauses.
                log::warn!("cannot add what follows jobs: {e}");
            }
            Some(e) => log::debug!("what follows jobs waits: {e}"),
            None => {}
        }
        Ok(sent)
    }

    fn outbox(&mut self) -> Result<OutboxState> {
        let call = |place: Place| (place, self.call(Script::OutboxState, place));
        let calls = self.all_places().map(call).collect();
        let mut state = OutboxState::default();
        for (_, answer) in self.ask_all(calls) {
            state.count(answer)?;
        }
        Ok(state)
    }
}

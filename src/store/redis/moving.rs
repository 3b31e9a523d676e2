//! What a node holds for others goes to them, in the background: first they are told of what was added in their place, so that
//! they may deliver; then the jobs themselves are moved. And when the nodes have become others, all of its jobs are looked at.
//!
//! Any number of processes may do so at once; a lock keeps all but one from what takes long.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::answer::{self, array, number, text};
use super::map::Map;
use super::nodes::{MARK, Place, Survey, scanning};
use super::reconcile::{Entry, noted, page_of_away};
use super::scout::FRESH;
use super::script::Script;
use super::{CHUNK, RedisStore};
use crate::job::{JobId, JobKey, TopicName};
use crate::store::Result;

/// How long it is until it is looked again whether there is something to move, where nobody rings for it.
const SELDOM: Duration = Duration::from_secs(10);

/// The same while there is something that cannot be moved now.
const SOON: Duration = Duration::from_secs(1);

/// How often it is looked at most, however often it is rung for.
const PAUSE: Duration = Duration::from_millis(200);

/// How long the lock of whoever moves jobs holds, if he dies.
const LOCK: Duration = Duration::from_secs(10);

/// How long it may take from a look's beginning until it holds the lock.
const BEGINNING: Duration = Duration::from_secs(5);

/// A look at all jobs of a node, for the homes that there are.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    /// The mark that says so at the node.
    mark: String,
    begun_at: Instant,
}

impl RedisStore {
    /// Moves away what a node holds for others. Tells when to come again.
    pub(super) fn move_away(&mut self, holder: usize) -> Result<Duration> {
        if self.nodes.count() == 1 {
            return Ok(SELDOM);
        }
        // As of now: there is something new, or it is long ago that somebody looked.
        let wait = self.looked_at.map_or(Duration::ZERO, |at| PAUSE.saturating_sub(at.elapsed()));
        if !wait.is_zero() {
            return Ok(wait);
        }
        self.looked_at = Some(Instant::now());
        let survey = self.nodes.survey_since(Instant::now());
        let report = survey.reports[holder].clone();
        let Some(holdings) = &report.holdings else { return Ok(SOON) };
        let homes: Vec<usize> =
            (0..self.nodes.count()).filter(|n| *n != holder && !survey.is_silent(*n)).collect();
        let mut left = false;
        for home in &homes {
            if report.has_away(*home) {
                self.tell_home(holder, *home, &survey)?;
                left = true;
            }
        }
        let strays = homes.iter().any(|home| report.has_strays(*home));
        let marked = holdings.mark == survey.map.fingerprint;
        left |= (0..self.nodes.count()).any(|n| report.has_away(n) || report.has_strays(n)) || !marked;
        if (strays || !marked) && self.lock(holder)? {
            let moved = self.move_all(holder, &homes, &survey, marked);
            let free = self.nodes.nodes[holder].plain("DEL", 0, "mover");
            self.ask(Place { node: holder, shard: 0 }, free)?;
            moved?;
        }
        Ok(if left { SOON } else { SELDOM })
    }

    /// What takes long.
    fn move_all(&mut self, holder: usize, homes: &[usize], survey: &Survey, marked: bool) -> Result<()> {
        for home in homes {
            if survey.reports[holder].has_strays(*home) {
                self.move_strays(holder, *home, survey)?;
            }
        }
        if marked { Ok(()) } else { self.look_through(holder, survey) }
    }

    /// Says at a home which jobs were added elsewhere in its place, so that it lets go of older copies.
    fn tell_home(&self, holder: usize, home: usize, survey: &Survey) -> Result<()> {
        for place in self.shards_of(holder) {
            let mut cursor = "0".to_owned();
            loop {
                let page = self.ask(place, page_of_away(self, place, home, &cursor, CHUNK))?;
                let (next, entries) = noted(page)?;
                self.tell_of(place, home, &entries)?;
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        log::info!(
            "{} knows what was added on {} in its place{}",
            self.nodes.names[home],
            self.nodes.names[holder],
            if survey.map.has(home) { "" } else { ", and is no home any more" }
        );
        Ok(())
    }

    /// Moves jobs that are noted to be another node's.
    fn move_strays(&self, holder: usize, noted_home: usize, survey: &Survey) -> Result<()> {
        for place in self.shards_of(holder) {
            let mut cursor = "0".to_owned();
            loop {
                let taken = self.take_noted(place, noted_home, &cursor, CHUNK)?;
                let mut by_home: BTreeMap<usize, Vec<&Entry>> = BTreeMap::new();
                for entry in &taken.entries {
                    let home = survey.map.home(&entry.key()?);
                    by_home.entry(home).or_default().push(entry);
                }
                for (home, entries) in by_home {
                    if home == holder {
                        self.keep(place, noted_home, &entries)?;
                    } else {
                        self.carry(place, home, &taken.clock, &entries)?;
                        if home != noted_home {
                            self.unnote(place, noted_home, &entries)?;
                        }
                    }
                }
                cursor = taken.cursor;
                if cursor == "0" {
                    break;
                }
                self.keep_lock(holder)?;
            }
        }
        Ok(())
    }

    /// What was to be moved is at home after all, since the nodes have become others.
    fn keep(&self, place: Place, noted_home: usize, entries: &[&Entry]) -> Result<()> {
        self.give_back(place, entries)?;
        self.unnote(place, noted_home, entries)
    }

    fn unnote(&self, place: Place, noted_home: usize, entries: &[&Entry]) -> Result<()> {
        let key = format!("stray:{}", self.nodes.names[noted_home]);
        let mut call = self.nodes.nodes[place.node].plain("HDEL", place.shard, &key);
        for e in entries {
            call.cmd.arg([&e.topic[..], &e.id[..]].join(&0));
        }
        self.ask(place, call).map(drop)
    }

    /// Looks at all jobs of a node, and notes those whose home is another; first says that it does, and waits until
    /// everybody else must have seen it, who may still add jobs by other homes.
    fn look_through(&mut self, holder: usize, survey: &Survey) -> Result<()> {
        let first = Place { node: holder, shard: 0 };
        let read = self.nodes.nodes[holder].plain("GET", 0, MARK);
        let mark = answer::optional_text(self.ask(first, read)?)?;
        if mark == survey.map.fingerprint {
            return Ok(());
        }
        let scan = match self.scan.clone().filter(|scan| scan.mark == mark) {
            Some(scan) => scan,
            // Somebody else has begun, and is not through with the pause: then he has the lock.
            None if is_young(&mark, &survey.map) => return Ok(()),
            None => {
                let begun = scanning(&survey.map.fingerprint);
                let scan = Scan {
                    mark: format!("{begun}{} {}", super::now_ms(), self.name),
                    begun_at: Instant::now(),
                };
                if self.set_mark(first, &mark, &scan.mark)? {
                    self.scan = Some(scan);
                }
                return Ok(());
            }
        };
        if scan.begun_at.elapsed() < 2 * FRESH {
            return Ok(());
        }
        let mut found = 0;
        for place in self.shards_of(holder) {
            for topic in self.topics_with_jobs(place)? {
                found += self.look_through_topic(place, &topic, &survey.map)?;
                self.keep_lock(holder)?;
            }
        }
        if found > 0 {
            log::info!("{found} jobs on {} have another home", self.nodes.names[holder]);
        }
        if self.set_mark(first, &scan.mark, &survey.map.fingerprint)? {
            log::info!("all jobs on {} have been looked at", self.nodes.names[holder]);
        }
        self.scan = None;
        Ok(())
    }

    fn set_mark(&self, first: Place, before: &str, after: &str) -> Result<bool> {
        let mut call = self.call(Script::Mark, first);
        call.cmd.arg(before).arg(after);
        Ok(number(&self.ask(first, call)?)? == 1)
    }

    fn look_through_topic(&self, place: Place, topic: &TopicName, map: &Map) -> Result<usize> {
        let (mut cursor, mut found) = ("0".to_owned(), 0);
        loop {
            let mut call = self.call(Script::Ids, place);
            call.cmd.arg(topic.as_str()).arg(&cursor).arg(CHUNK);
            let mut values = array(self.ask(place, call)?)?.into_iter();
            cursor = text(values.next().unwrap_or_default())?;
            let mut by_home: BTreeMap<usize, Vec<JobId>> = BTreeMap::new();
            for id in values {
                let key = JobKey { topic: topic.clone(), id: answer::id(id)? };
                let home = map.home(&key);
                if home != place.node {
                    by_home.entry(home).or_default().push(key.id);
                }
            }
            for (home, ids) in by_home {
                found += ids.len();
                let mut mark = self.call(Script::ReconcileMark, place);
                mark.cmd.arg(&self.nodes.names[home]).arg(topic.as_str());
                mark.cmd.arg(ids.iter().map(JobId::as_str).collect::<Vec<_>>());
                self.ask(place, mark)?;
            }
            if cursor == "0" {
                return Ok(found);
            }
        }
    }

    /// Takes the lock of whoever moves jobs away from a node, or holds it for longer.
    fn lock(&self, holder: usize) -> Result<bool> {
        let node = &self.nodes.nodes[holder];
        let mut take = node.plain("SET", 0, "mover");
        take.cmd.arg(&self.name).arg("NX").arg("GET").arg("PX").arg(LOCK.as_millis() as u64);
        let holds = answer::optional_text(self.ask(Place { node: holder, shard: 0 }, take)?)?;
        Ok(holds.is_empty() || holds == self.name && self.keep_lock(holder).is_ok())
    }

    fn keep_lock(&self, holder: usize) -> Result<()> {
        let mut keep = self.nodes.nodes[holder].plain("PEXPIRE", 0, "mover");
        keep.cmd.arg(LOCK.as_millis() as u64);
        self.ask(Place { node: holder, shard: 0 }, keep).map(drop)
    }

    fn shards_of(&self, node: usize) -> impl Iterator<Item = Place> + use<> {
        (0..self.nodes.nodes[node].bases.len()).map(move |shard| Place { node, shard })
    }
}

/// Whether a node's mark says that somebody has just begun to look at its jobs for these homes.
fn is_young(mark: &str, map: &Map) -> bool {
    let begun = mark.strip_prefix(&scanning(&map.fingerprint)).and_then(|rest| rest.split(' ').next());
    let begun_ms = begun.and_then(|ms| ms.parse::<i64>().ok());
    begun_ms.is_some_and(|ms| super::now_ms().abs_diff(ms) < BEGINNING.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::map::Plan;
    use super::*;

    #[test]
    fn a_look_that_somebody_has_just_begun_is_left_to_him() {
        let map = Plan::new(&["a".to_owned(), "b".to_owned()]).map;
        let now = super::super::now_ms();
        let mark = |at_ms: i64| format!("scanning a,b {at_ms} 77c69d5a4b071460");
        assert!(is_young(&mark(now), &map) && is_young(&mark(now + 50), &map));
        assert!(!is_young(&mark(now - 6000), &map));
        assert!(!is_young("a,b", &map) && !is_young("", &map) && !is_young("scanning a 1 x", &map));
    }
}

//! What clients do to jobs that they name: add, get, change, delete. Each of these actions happens at the home of the
//! job.

use std::collections::HashMap;

use super::answer::{self, unexpected};
use super::batch::argument_writer;
use super::homes::Homes;
use super::jobs::superseded;
use super::script::Script;
use super::{BYTES, RedisStore};
use crate::{Added, Change, Changed, HELD_MS, Result, StoreError, StoredJob};
use model::headers::Headers;
use model::job::{Due, JobKey, NewJob};
use model::quota::{OverQuota, QuotaLimit};

/// How many times in all a request is tried, if the set of nodes changes meanwhile.
const TRIES: usize = 4;

/// Returns whether two jobs have the same arguments for the script, apart from their ids and bodies.
fn are_alike(a: &NewJob, b: &NewJob) -> bool {
    let common = |job: &NewJob| (job.due, job.priority, job.on_conflict, job.max_attempts, job.attempts);
    common(a) == common(b) && a.headers == b.headers
}

/// Adds the arguments of a topic's jobs to a command. Most jobs differ only in id and body, so their common arguments
/// are sent once. All these jobs have the same limits. `shards` is the number of the shards that share the limits.
pub(super) fn add_words(jobs: &[&NewJob], shards: u32, cmd: &mut redis::Cmd) {
    let first = jobs[0];
    cmd.arg(answer::limits(first.quota.as_deref(), shards));
    let alike = jobs.iter().all(|job| are_alike(job, first));
    let common = |job: &NewJob, cmd: &mut redis::Cmd| {
        cmd.arg(answer::flags(job)).arg(answer::due(job.due));
    };
    if alike {
        common(first, cmd);
    } else {
        cmd.arg("").arg("");
    }
    for job in jobs {
        cmd.arg(job.key.id.as_str()).arg(job.body.as_str());
        if !alike {
            common(job, cmd);
        }
    }
}

impl RedisStore {
    /// Runs `act` on items, with the set of nodes that this process knows. If a shard refuses items because the shard
    /// has a newer set, these items are tried again with that set.
    pub(super) fn run_by_homes<T, R>(
        &self,
        items: &[T],
        act: impl Fn(&Homes, &[&T]) -> Vec<Result<R>>,
    ) -> Vec<Result<R>> {
        let mut out: Vec<Result<R>> = items.iter().map(|_| Err(unexpected("no answer"))).collect();
        let mut left: Vec<usize> = (0..items.len()).collect();
        for _ in 0..TRIES {
            let homes = match self.nodes.open_homes() {
                Ok(homes) => homes,
                Err(e) => {
                    left.iter().for_each(|i| out[*i] = Err(e.clone()));
                    break;
                }
            };
            let some: Vec<&T> = left.iter().map(|i| &items[*i]).collect();
            left.iter().zip(act(&homes, &some)).for_each(|(i, result)| out[*i] = result);
            // A node that is down may have been taken out of the set. Then its items are tried again with the new set.
            let is_down = left.iter().any(|i| matches!(out[*i], Err(StoreError::NodeDown(_))));
            let is_other = is_down && self.nodes.is_given_up(&homes);
            left.retain(|i| match out[*i] {
                Err(StoreError::Moving(_)) => true,
                Err(StoreError::NodeDown(_)) => is_other,
                _ => false,
            });
            if left.is_empty() {
                break;
            }
        }
        out
    }

    /// Adds jobs. The jobs of one call have at most [`BYTES`] bytes together. A larger job gets a call of its own.
    pub(super) fn add_all(&self, jobs: &[NewJob]) -> Vec<Result<Added>> {
        let (mut added, mut left) = (Vec::with_capacity(jobs.len()), jobs);
        while !left.is_empty() {
            let (mut bytes, mut quotas) = (0, HashMap::new());
            let fitting = left.iter().take_while(|job| {
                bytes += job.body.as_str().len() + job.headers.to_text().len();
                // A call sends the limits of a topic only once. So a job with other limits than an earlier job of its
                // topic begins a new call.
                let is_shared = *quotas.entry(&job.key.topic).or_insert(&job.quota) == &job.quota;
                bytes <= BYTES && is_shared
            });
            let (some, rest) = left.split_at(fitting.count().max(1));
            added.append(&mut self.run_by_homes(some, |homes, jobs| self.add_some(homes, jobs)));
            left = rest;
        }
        self.add_where_full(jobs, &mut added);
        added
    }

    /// If full servers refused adds, erases records to make room, and tries these adds once more.
    fn add_where_full(&self, jobs: &[NewJob], added: &mut [Result<Added>]) {
        if !added.iter().any(|added| matches!(added, Err(StoreError::Full(_)))) {
            return;
        }
        let is_superseded = superseded(jobs, added);
        let full: Vec<usize> = (0..jobs.len())
            .filter(|i| matches!(added[*i], Err(StoreError::Full(_))) && !is_superseded[*i])
            .collect();
        if full.is_empty() || !self.make_room(full.iter().map(|i| &jobs[*i].key)) {
            return;
        }
        let some: Vec<NewJob> = full.iter().map(|i| jobs[*i].clone()).collect();
        let again = self.run_by_homes(&some, |homes, jobs| self.add_some(homes, jobs));
        full.into_iter().zip(again).for_each(|(i, one)| added[i] = one);
    }

    /// Returns how many shards the nodes with jobs have in all.
    fn shards(&self, homes: &Homes) -> u32 {
        let nodes = self.nodes.nodes.iter().enumerate().filter(|(n, _)| homes.has(*n));
        nodes.map(|(_, node)| node.bases.len() as u32).sum()
    }

    fn add_some(&self, homes: &Homes, jobs: &[&NewJob]) -> Vec<Result<Added>> {
        let understand = |[letter, due @ ..]: [u8; 8]| {
            let due_ms = due.iter().fold(0, |ms, byte| ms << 8 | i64::from(*byte));
            match letter {
                b'n' => Ok(Added::New { due_ms }),
                b'r' => Ok(Added::Replaced { due_ms }),
                b'k' => Ok(Added::Kept { due_ms }),
                b'x' => Ok(Added::Rejected),
                b'q' => Err(StoreError::OverQuota(answer::over_quota(due)?)),
                _ => Err(unexpected("an answer")),
            }
        };
        let shards = self.shards(homes);
        let words = |jobs: &[&NewJob], cmd: &mut redis::Cmd| add_words(jobs, shards, cmd);
        let answers = self.each(Script::Add, homes, jobs, |job| &job.key, &[], words);
        answers.into_iter().map(|answer| answer.and_then(understand)).collect()
    }

    /// Returns the job of that key from its home.
    pub(super) fn find(&self, key: &JobKey) -> Result<Option<StoredJob>> {
        for _ in 0..TRIES {
            let homes = self.nodes.homes()?;
            // While jobs are moved, each job is first copied to its new home, and then removed from its old home. So
            // the old home is asked first.
            let (before, home) = (homes.home_before(key)?, homes.home(key)?);
            let mut found = self.find_at(before, key, &homes);
            if home != before && matches!(found, Ok(None)) {
                found = self.find_at(home, key, &homes);
            }
            if !matches!(found, Err(StoreError::Moving(_))) {
                return found;
            }
        }
        self.nodes.open_homes()?;
        Err(unexpected("a set of nodes"))
    }

    fn find_at(&self, node: usize, key: &JobKey, homes: &Homes) -> Result<Option<StoredJob>> {
        let place = self.nodes.place(node, key);
        let mut call = self.nodes.call(Script::Get, place, homes);
        call.cmd.arg(key.topic.as_str()).arg(key.id.as_str());
        let values = answer::array(self.ask_by(place, call)?)?;
        Ok(answer::views(&key.topic, values)?.pop())
    }

    /// Deletes jobs. `note` is the reason, which is written into the records of the jobs. It may be empty.
    pub(super) fn delete_all(&self, keys: &[JobKey], note: &str) -> Vec<Result<bool>> {
        self.run_by_homes(keys, |homes, keys| self.delete_some(homes, keys, note))
    }

    fn delete_some(&self, homes: &Homes, keys: &[&JobKey], note: &str) -> Vec<Result<bool>> {
        let mut out: Vec<Result<bool>> = keys.iter().map(|_| Ok(false)).collect();
        let mut left: Vec<usize> = (0..keys.len()).collect();
        while !left.is_empty() {
            let some: Vec<&JobKey> = left.iter().map(|i| keys[*i]).collect();
            let ids = argument_writer(|key: &JobKey, cmd| {
                cmd.arg(key.id.as_str());
            });
            let digits = self.each(Script::Delete, homes, &some, |key| key, &[note], ids);
            // If an id has very many dead letters, one call does not remove them all. The answer is then 2.
            let mut again = Vec::new();
            for (i, digit) in left.into_iter().zip(digits) {
                again.extend((digit == Ok(*b"2")).then_some(i));
                out[i] = digit.map(|digit: [u8; 1]| out[i] == Ok(true) || digit != *b"0");
            }
            left = again;
        }
        out
    }

    /// Sets the real due times of jobs that are held back. A second release of a job does no harm, because the job is
    /// not held back any more.
    pub(super) fn release_all(&self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>> {
        let understand = |[letter]: [u8; 1]| match letter {
            b'd' => Ok(true),
            b'n' => Ok(false),
            _ => Err(unexpected("an answer")),
        };
        self.run_by_homes(jobs, |homes, jobs| {
            let words = argument_writer(|(key, due): &(JobKey, Due), cmd| {
                cmd.arg(key.id.as_str()).arg(answer::due(*due));
            });
            let held = HELD_MS.to_string();
            let letters = self.each(Script::Release, homes, jobs, |(key, _)| key, &[&held], words);
            letters.into_iter().map(|letter| letter.and_then(understand)).collect()
        })
    }

    /// Changes a job that is delayed or ready.
    pub(super) fn change_at_home(&self, key: &JobKey, change: &Change) -> Result<Changed> {
        let changed = self.run_by_homes(&[key], |homes, _| vec![self.change_by(homes, key, change)]).pop();
        changed.unwrap_or_else(|| Err(unexpected("no answer")))
    }

    fn change_by(&self, homes: &Homes, key: &JobKey, change: &Change) -> Result<Changed> {
        let place = self.nodes.place(homes.home(key)?, key);
        let mut call = self.nodes.call(Script::Change, place, homes);
        call.durability = self.nodes.level(&key.topic);
        call.cmd.arg(key.topic.as_str()).arg(key.id.as_str());
        call.cmd.arg(change.due.map(answer::due).unwrap_or_default());
        call.cmd.arg(change.priority.map(answer::priority_word).unwrap_or_default());
        call.cmd.arg(change.body.as_ref().map_or("", |body| body.as_str()));
        call.cmd.arg(match change.max_attempts {
            None => String::new(),
            Some(None) => "-".to_owned(),
            Some(Some(limit)) => limit.to_string(),
        });
        call.cmd.arg(match &change.headers {
            None => String::new(),
            Some(headers) if headers.is_empty() => "-".to_owned(),
            Some(headers) => answer::headers_word(headers),
        });
        call.cmd.arg(match &change.destination {
            None => String::new(),
            Some(None) => "-".to_owned(),
            Some(destination) => Headers::destination_text(destination.as_ref()),
        });
        call.cmd.arg(match &change.tags {
            None => String::new(),
            Some(tags) if tags.is_empty() => "-".to_owned(),
            Some(tags) => Headers::tags_text(tags),
        });
        let shards = u64::from(self.shards(homes).max(1));
        call.cmd.arg(change.max_bytes.map(|most| most.div_ceil(shards).to_string()).unwrap_or_default());
        call.cmd.arg(match change.ttr {
            None => String::new(),
            Some(None) => "-".to_owned(),
            Some(Some(ttr)) => Headers::ttr_text(ttr),
        });
        match answer::text(self.ask_by(place, call)?)?.as_str() {
            "d" => Ok(Changed::Done),
            "n" => Ok(Changed::NotFound),
            "c" => Ok(Changed::Conflict),
            "q" => Err(StoreError::OverQuota(OverQuota::full(QuotaLimit::Bytes))),
            _ => Err(unexpected("an answer")),
        }
    }
}

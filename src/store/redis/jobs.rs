//! What clients do to jobs: add, get, change, delete. Also decides which of these requests wait in the spool, if the
//! handle has one. If the home of an add does not answer, the add waits in the spool. While a change of a job waits
//! there, later requests for this job must not overtake that change.

use std::collections::HashSet;

use super::answer::{array, count, number, unexpected};
use super::script::Script;
use super::{CHUNK, RedisStore};
use crate::spool::SpooledJob;
use crate::{Added, Change, Changed, Deleted, HELD_MS, Jobs, Result, StoreError, StoredJob};
use model::job::{Due, JobKey, NewJob, OnConflict, State, TopicName};

/// Returns whether an add may wait in the spool: its result must not depend on the jobs that are stored, and it must
/// not add a job that is held back.
fn may_wait(job: &NewJob) -> bool {
    job.on_conflict == OnConflict::Replace && job.due != Due::At(HELD_MS)
}

/// Returns whether an add was not stored because its home does not answer, or because jobs are being moved.
fn was_not_sent(added: &Result<Added>) -> bool {
    matches!(added, Err(StoreError::NodeDown(_) | StoreError::Moving(_)))
}

/// Returns for each job whether a later job of the same call has the same id and is stored, or is perhaps stored. If
/// so, the earlier job must not be stored any more, because it would replace the later one.
pub(super) fn superseded(jobs: &[NewJob], added: &[Result<Added>]) -> Vec<bool> {
    let mut later = HashSet::new();
    let mut superseded: Vec<bool> = Vec::with_capacity(jobs.len());
    for (job, added) in jobs.iter().zip(added).rev() {
        superseded.push(later.contains(&job.key));
        if matches!(added, Ok(_) | Err(StoreError::Unknown(_))) {
            later.insert(&job.key);
        }
    }
    superseded.reverse();
    superseded
}

fn behind(key: &JobKey) -> StoreError {
    StoreError::NodeDown(format!(
        "a change of {key} waits in this host's spool until its node answers; until then, only deletions and adds that replace the job are accepted"
    ))
}

/// Runs `act` on all items that are picked, in their order, and stores the new results in `out`.
fn with_picked<T, R>(
    items: &[T],
    out: &mut [Result<R>],
    is_picked: impl Fn(usize, &Result<R>) -> bool,
    act: impl FnOnce(&[&T]) -> Vec<Result<R>>,
) {
    let picked: Vec<usize> = (0..items.len()).filter(|i| is_picked(*i, &out[*i])).collect();
    if picked.is_empty() {
        return;
    }
    let some: Vec<&T> = picked.iter().map(|i| &items[*i]).collect();
    for (i, result) in picked.into_iter().zip(act(&some)) {
        out[i] = result;
    }
}

/// Returns the same error `count` times.
fn each<R>(count: usize, error: StoreError) -> Vec<Result<R>> {
    std::iter::repeat_with(|| Err(error.clone())).take(count).collect()
}

impl RedisStore {
    /// Refuses a request for a job if a change of this job waits in the spool: the request would overtake that change.
    pub(super) fn check_nothing_spooled(&self, keys: &[&JobKey]) -> Result<()> {
        let Some(spool) = &self.spool else { return Ok(()) };
        let held = spool.holds(keys.iter().copied())?;
        match keys.iter().zip(held).find(|(_, held)| *held) {
            Some((key, _)) => Err(behind(key)),
            None => Ok(()),
        }
    }
}

impl Jobs for RedisStore {
    fn add(&mut self, jobs: &[NewJob]) -> Vec<Result<Added>> {
        let held = match &self.spool {
            None => return self.add_all(jobs),
            Some(spool) => spool.holds(jobs.iter().map(|job| &job.key)),
        };
        let held = match held {
            Ok(held) => held,
            Err(e) => return each(jobs.len(), e),
        };
        let mut added = if held.contains(&true) {
            let mut added: Vec<_> = jobs.iter().map(|job| Err(behind(&job.key))).collect();
            with_picked(
                jobs,
                &mut added,
                |i, _| !held[i],
                |jobs| self.add_all(&jobs.iter().map(|job| (*job).clone()).collect::<Vec<_>>()),
            );
            added
        } else {
            self.add_all(jobs)
        };
        let Some(spool) = self.spool.as_mut().filter(|spool| spool.takes()) else { return added };
        if !added.iter().any(was_not_sent) {
            return added;
        }
        let is_superseded = superseded(jobs, &added);
        with_picked(
            jobs,
            &mut added,
            |i, added| was_not_sent(added) && may_wait(&jobs[i]) && !is_superseded[i],
            |jobs| match spool.put(jobs) {
                Ok(dues) => dues.into_iter().map(|due_ms| Ok(Added::Spooled { due_ms })).collect(),
                Err(e) => each(jobs.len(), e),
            },
        );
        added
    }

    fn get(&mut self, key: &JobKey) -> Result<Option<StoredJob>> {
        match self.spool.as_ref().map(|spool| spool.get(key)).transpose()?.flatten() {
            Some(SpooledJob::Job(view)) => Ok(Some(*view)),
            Some(SpooledJob::Deleted) => Ok(None),
            None => self.find(key),
        }
    }

    fn delete(&mut self, keys: &[JobKey]) -> Vec<Result<Deleted>> {
        let at_home = |store: &RedisStore, keys: &[JobKey]| -> Vec<Result<Deleted>> {
            store.delete_all(keys, "").into_iter().map(|one| one.map(Deleted::from_found)).collect()
        };
        let waiting = match &mut self.spool {
            None => return at_home(self, keys),
            Some(spool) => match spool.is_empty() {
                Ok(true) => return at_home(self, keys),
                Ok(false) => spool.delete(&keys.iter().collect::<Vec<_>>()),
                Err(e) => Err(e),
            },
        };
        let waiting = match waiting {
            Ok(waiting) => waiting,
            Err(e) => return each(keys.len(), e),
        };
        let of_waiting = |was_added| if was_added { Deleted::Spooled } else { Deleted::NotFound };
        let mut deleted: Vec<Result<Deleted>> =
            waiting.iter().map(|one| Ok(of_waiting(one.unwrap_or(false)))).collect();
        with_picked(
            keys,
            &mut deleted,
            |i, _| waiting[i].is_none(),
            |keys| at_home(self, &keys.iter().map(|key| (*key).clone()).collect::<Vec<_>>()),
        );
        deleted
    }

    fn delete_with_note(&mut self, keys: &[JobKey], note: &str) -> Vec<Result<Deleted>> {
        self.delete_all(keys, note).into_iter().map(|one| one.map(Deleted::from_found)).collect()
    }

    fn change(&mut self, key: &JobKey, change: &Change) -> Result<Changed> {
        self.check_nothing_spooled(&[key])?;
        self.change_at_home(key, change)
    }

    fn release(&mut self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>> {
        self.release_all(jobs)
    }

    fn purge(&mut self, topic: &TopicName, state: State, limit: usize) -> Result<usize> {
        let mut sum = 0;
        self.at_each_place(|place| {
            while sum < limit {
                let mut call = self.call(Script::Purge, place);
                call.cmd.arg(topic.as_str()).arg(state as u8).arg(CHUNK.min(limit - sum));
                let values = array(self.ask(place, call)?)?;
                let [gone, more] = values.as_slice() else { return Err(unexpected("an answer")) };
                sum += count(gone)?;
                if number(more)? == 0 {
                    break;
                }
            }
            Ok(())
        })?;
        self.confirm(topic, self.places()).map(|()| sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::{Body, JobId};
    use std::time::Duration;

    #[test]
    fn a_job_that_failed_does_not_replace_a_later_one() {
        let job = |id: &str| {
            let key = JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new(id).unwrap() };
            NewJob::new(key, Body::trusted("1"), Due::In(Duration::ZERO))
        };
        let jobs = ["a", "b", "a", "c", "b", "c", "c"].map(job);
        let down = || Err(StoreError::NodeDown("r0".to_owned()));
        let stored = Ok(Added::New { due_ms: 1 });
        let unknown = Err(StoreError::Unknown("r0".to_owned()));
        let added = [down(), down(), stored, down(), down(), unknown, down()];
        // The second "b" failed, too. So both jobs with the id "b" can be tried again, in the same order.
        assert_eq!(superseded(&jobs, &added), [true, false, false, true, false, false, false]);
    }
}

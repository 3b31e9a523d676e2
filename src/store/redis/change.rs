//! What clients change: add, delete, change; each at the job's home, after what other nodes hold of it has been brought
//! there. An add that replaces goes to the next node in the job's order while its home is down, which remembers whose place it
//! took; one that must know whether the id is taken does not.

use std::collections::BTreeMap;
use std::time::Instant;

use super::answer::{self, strange};
use super::nodes::{Place, Survey};
use super::reconcile::Elsewhere;
use super::scout::Report;
use super::script::Script;
use super::{BYTES, RedisStore};
use crate::job::{JobKey, NewJob, OnConflict};
use crate::store::{Added, Change, Changed, Result, StoreError};

/// A job that another node is about to hand to its home cannot be changed for that moment.
pub(super) fn on_its_way() -> StoreError {
    StoreError::Busy
}

/// Whether a script is told the same of both, beside their ids and bodies.
fn are_alike(a: &NewJob, b: &NewJob) -> bool {
    let common = |job: &NewJob| (job.due, job.priority, job.on_conflict, job.max_attempts, job.attempts);
    common(a) == common(b) && a.headers == b.headers
}

impl RedisStore {
    /// What is known of the nodes, as new as it must be for a change: right after a node's return as of now.
    pub(super) fn survey_for_change(&self) -> Survey {
        let survey = self.nodes.survey();
        if self.is_unsure(&survey) { self.nodes.survey_since(Instant::now()) } else { survey }
    }

    /// Whether what is known may be from before a node's return, or from before everybody knew of that.
    pub(super) fn is_unsure(&self, survey: &Survey) -> bool {
        let answers = |r: &&Report| r.holdings.is_some();
        let oldest = survey.reports.iter().filter(answers).filter_map(|r| r.asked_at).min();
        let mut known = self.nodes.nodes.iter().zip(&survey.reports);
        known.any(|(node, report)| node.was_missed(report.holdings.is_some(), oldest))
    }

    /// What is known as of now, where a change was made by what was known before a node's return, which only the change itself
    /// has shown: others may have known it for down.
    pub(super) fn survey_again(&self, before: &Survey, was_unsure: bool) -> Option<Survey> {
        (!was_unsure && self.is_unsure(before)).then(|| self.nodes.survey_since(Instant::now()))
    }

    /// Whether a job's home can be taken at its word: one that has only just come back cannot, while a node is silent that may
    /// hold what has replaced its copy.
    pub(super) fn vouches(&self, key: &JobKey, survey: &Survey) -> Result<()> {
        let home = self.nodes.place(survey.map.home(key), key);
        let node = &self.nodes.nodes[home.node];
        if !node.is_returning(home.shard) {
            return Ok(());
        }
        let may_hold = |other: &usize| survey.is_silent(*other) && *other != home.node;
        match (0..self.nodes.count()).find(may_hold) {
            Some(silent) => Err(StoreError::NodeDown(format!(
                "{}: it was away, and {} may hold newer jobs, but does not answer",
                node.name, self.nodes.names[silent]
            ))),
            None => Ok(()),
        }
    }

    /// Adds jobs, as many in one call as a script may hold the bodies of.
    pub(super) fn add_all(&self, jobs: &[NewJob]) -> Vec<Result<Added>> {
        let survey = self.survey_for_change();
        let was_unsure = self.is_unsure(&survey);
        let (mut added, mut left) = (Vec::with_capacity(jobs.len()), jobs);
        while !left.is_empty() {
            let mut bytes = 0;
            let fitting = left.iter().take_while(|job| {
                bytes += job.body.as_str().len() + job.headers.to_text().len();
                bytes <= BYTES
            });
            let (some, rest) = left.split_at(fitting.count().max(1));
            added.append(&mut self.add_some(some, &survey));
            left = rest;
        }
        if let Some(survey) = self.survey_again(&survey, was_unsure) {
            // Older copies go home, where they are no match for these.
            let keys: Vec<&JobKey> = jobs.iter().map(|job| &job.key).collect();
            let elsewhere = self.bring_home(&keys, &survey);
            self.remove_replaced(&keys, &elsewhere, &survey, |i| {
                matches!(added[i], Ok(Added::New { .. } | Added::Replaced { .. }))
            });
        }
        added
    }

    fn add_some(&self, jobs: &[NewJob], survey: &Survey) -> Vec<Result<Added>> {
        let keys: Vec<&JobKey> = jobs.iter().map(|job| &job.key).collect();
        let elsewhere = self.bring_home(&keys, survey);
        let taken = |job: &NewJob, place: &Elsewhere| match (place, job.on_conflict) {
            (Elsewhere::No, _) | (Elsewhere::Leased(_), OnConflict::Replace) => None,
            (Elsewhere::Leased(_), OnConflict::Keep) => Some(self.kept_elsewhere(&job.key)),
            (Elsewhere::Leased(_), OnConflict::Reject) => Some(Ok(Added::Rejected)),
            // The newer copy stays at home.
            (Elsewhere::OnItsWay, OnConflict::Replace) => None,
            (Elsewhere::OnItsWay, _) => Some(Err(on_its_way())),
        };
        let mut out: Vec<Option<Result<Added>>> =
            jobs.iter().zip(&elsewhere).map(|(job, place)| taken(job, place)).collect();
        // Whether an id is taken only its home knows.
        let order = |job: &NewJob| {
            let nodes = if job.on_conflict == OnConflict::Replace { usize::MAX } else { 1 };
            survey.map.order(&job.key).take(nodes).collect()
        };
        let orders: Vec<Vec<usize>> = jobs.iter().map(order).collect();
        let mut left: Vec<usize> = (0..jobs.len()).filter(|i| out[*i].is_none()).collect();
        for place in 0.. {
            // By whose place it is that is taken; nobody's, at first.
            let mut groups: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
            for i in left.drain(..).filter(|i| place < orders[*i].len()) {
                groups.entry((place > 0).then_some(orders[i][0])).or_default().push(i);
            }
            if groups.is_empty() {
                break;
            }
            for (home, members) in groups {
                // Whether a node is there is asked by its scout alone: all act on one answer.
                let (members, away): (Vec<usize>, Vec<usize>) =
                    members.into_iter().partition(|i| !survey.is_silent(orders[*i][place]));
                for i in away {
                    out[i].get_or_insert_with(|| Err(self.nodes.silent(orders[i][place])));
                    left.push(i);
                }
                let nodes: Vec<usize> = members.iter().map(|i| orders[*i][place]).collect();
                let added = self.add_at(jobs, &members, &nodes, home);
                for ((i, node), result) in members.into_iter().zip(nodes).zip(added) {
                    if let (Some(home), Ok(_) | Err(StoreError::Unknown(_))) = (home, &result) {
                        self.nodes.displaced(node, home);
                    }
                    if matches!(result, Err(StoreError::NodeDown(_))) {
                        left.push(i);
                    }
                    // Of a job that no node takes, its home says why.
                    let is_news = out[i].is_none() || !matches!(result, Err(StoreError::NodeDown(_)));
                    if is_news {
                        out[i] = Some(result);
                    }
                }
            }
        }
        let added: Vec<Result<Added>> =
            out.into_iter().map(|one| one.unwrap_or_else(|| Err(strange("no answer")))).collect();
        self.remove_replaced(&keys, &elsewhere, survey, |i| {
            matches!(added[i], Ok(Added::New { .. } | Added::Replaced { .. }))
        });
        let letter = |(result, place): (Result<Added>, &Elsewhere)| match (result, place) {
            (Ok(Added::New { due_ms }), Elsewhere::Leased(_)) => Ok(Added::Replaced { due_ms }),
            (result, _) => result,
        };
        added.into_iter().zip(&elsewhere).map(letter).collect()
    }

    /// Adds some of these jobs, each at one node; `home`: in whose place.
    fn add_at(
        &self,
        jobs: &[NewJob],
        members: &[usize],
        nodes: &[usize],
        home: Option<usize>,
    ) -> Vec<Result<Added>> {
        let items: Vec<(&NewJob, usize)> =
            members.iter().map(|i| &jobs[*i]).zip(nodes.iter().copied()).collect();
        // Most have all but id and body in common, which is then said once.
        let words = |jobs: &[&(&NewJob, usize)], cmd: &mut redis::Cmd| {
            let (first, _) = jobs[0];
            let alike = jobs.iter().all(|(job, _)| are_alike(job, first));
            let common = |job: &NewJob, cmd: &mut redis::Cmd| {
                cmd.arg(answer::flags(job)).arg(answer::due(job.due));
            };
            if alike {
                common(first, cmd);
            } else {
                cmd.arg("").arg("");
            }
            for (job, _) in jobs {
                cmd.arg(job.key.id.as_str()).arg(job.body.as_str());
                if !alike {
                    common(job, cmd);
                }
            }
        };
        let place = |(job, node): &(&NewJob, usize)| Ok(self.nodes.place(*node, &job.key));
        let home = home.map_or("", |home| &self.nodes.names[home]);
        let answers = self.each(Script::Add, &items, place, |(job, _)| &job.key.topic, &[home], words);
        let understand = |[letter, due @ ..]: [u8; 8]| {
            let due_ms = due.iter().fold(0, |ms, byte| ms << 8 | i64::from(*byte));
            match letter {
                b'n' => Ok(Added::New { due_ms }),
                b'r' => Ok(Added::Replaced { due_ms }),
                b'k' => Ok(Added::Kept { due_ms }),
                b'x' => Ok(Added::Rejected),
                _ => Err(strange("an answer")),
            }
        };
        answers.into_iter().map(|answer| answer.and_then(understand)).collect()
    }

    /// What an add that keeps comes to, whose job is leased on another node than its home.
    fn kept_elsewhere(&self, key: &JobKey) -> Result<Added> {
        // One that has just ended is no reason to add it: the client sends it again, if it wants.
        let view = self.find(key)?.ok_or_else(on_its_way)?;
        Ok(Added::Kept { due_ms: view.due_ms })
    }

    /// Removes the copies that were left leased elsewhere, of jobs that are replaced or deleted: what settles those leases is
    /// stale. Of one that cannot be reached, the copy is looked at before that node delivers anything.
    fn remove_replaced(
        &self,
        keys: &[&JobKey],
        elsewhere: &[Elsewhere],
        survey: &Survey,
        is_gone: impl Fn(usize) -> bool,
    ) {
        type Copies<'a> = Vec<(&'a JobKey, &'a [u8])>;
        let mut copies: BTreeMap<(Place, usize), Copies<'_>> = BTreeMap::new();
        for (i, place) in elsewhere.iter().enumerate() {
            let Elsewhere::Leased(places) = place else { continue };
            let home = survey.map.home(keys[i]);
            for (holder, stamp) in places.iter().filter(|_| is_gone(i)) {
                copies.entry((*holder, home)).or_default().push((keys[i], stamp));
            }
        }
        for ((holder, home), copies) in copies {
            if let Err(e) = self.remove_copies(holder, home, &copies) {
                log::warn!("cannot remove copies of jobs that were replaced: {e}");
            }
        }
    }

    /// Deletes jobs, each at its home; where they are not there, wherever they are.
    pub(super) fn delete_all(&self, keys: &[JobKey]) -> Vec<Result<bool>> {
        let survey = self.survey_for_change();
        let was_unsure = self.is_unsure(&survey);
        let keys: Vec<&JobKey> = keys.iter().collect();
        let mut deleted = self.delete_by(&keys, &survey);
        if let Some(survey) = self.survey_again(&survey, was_unsure) {
            let again = self.delete_by(&keys, &survey);
            for (first, again) in deleted.iter_mut().zip(again) {
                *first = match (first.clone(), again) {
                    (Ok(true), Ok(_)) => Ok(true),
                    (Ok(true), Err(e)) => Err(StoreError::Unknown(e.to_string())),
                    (first @ Err(StoreError::Unknown(_)), Ok(false) | Err(_)) => first,
                    (_, again) => again,
                };
            }
        }
        deleted
    }

    fn delete_by(&self, keys: &[&JobKey], survey: &Survey) -> Vec<Result<bool>> {
        let elsewhere = self.bring_home(keys, survey);
        let homes: Vec<usize> = keys.iter().map(|key| survey.map.home(key)).collect();
        let mut out: Vec<Result<bool>> = elsewhere
            .iter()
            .zip(&homes)
            .map(|(place, home)| match place {
                _ if survey.is_silent(*home) => Err(self.nodes.silent(*home)),
                Elsewhere::OnItsWay => Err(on_its_way()),
                Elsewhere::No | Elsewhere::Leased(_) => Ok(false),
            })
            .zip(keys)
            .map(|(there, key)| there.and_then(|there| self.vouches(key, survey).map(|()| there)))
            .collect();
        let known: Vec<usize> = (0..keys.len()).filter(|i| out[*i].is_ok()).collect();
        self.delete_at(keys, known.iter().map(|i| (*i, homes[*i])).collect(), &mut out);
        self.remove_replaced(keys, &elsewhere, survey, |i| out[i].is_ok());
        for (i, place) in elsewhere.iter().enumerate() {
            if let (Ok(there), Elsewhere::Leased(_)) = (&mut out[i], place) {
                *there = true;
            }
        }
        // What died where it was added lies there.
        for other in 0..self.nodes.count() {
            let missing = |i: &usize| out[*i] == Ok(false) && homes[*i] != other && !survey.is_silent(other);
            let missing: Vec<(usize, usize)> = (0..keys.len()).filter(missing).map(|i| (i, other)).collect();
            let mut found = out.clone();
            self.delete_at(keys, missing, &mut found);
            for (was, is) in out.iter_mut().zip(found) {
                if is == Ok(true) {
                    *was = is;
                }
            }
        }
        out
    }

    /// Deletes these of the jobs at these nodes.
    fn delete_at(&self, keys: &[&JobKey], mut left: Vec<(usize, usize)>, out: &mut [Result<bool>]) {
        while !left.is_empty() {
            let items: Vec<(&JobKey, usize)> = left.iter().map(|(i, node)| (keys[*i], *node)).collect();
            let place = |(key, node): &(&JobKey, usize)| Ok(self.nodes.place(*node, key));
            let words = |keys: &[&(&JobKey, usize)], cmd: &mut redis::Cmd| {
                for (key, _) in keys {
                    cmd.arg(key.id.as_str());
                }
            };
            let digits = self.each(Script::Delete, &items, place, |(key, _)| &key.topic, &[], words);
            // One that had very many dead letters has some left.
            let mut again = Vec::new();
            for ((i, node), digit) in left.into_iter().zip(digits) {
                match digit {
                    Ok([digit]) => out[i] = out[i].clone().map(|there| there || digit != b'0'),
                    Err(ref e) => out[i] = Err(e.clone()),
                }
                again.extend((digit == Ok(*b"2")).then_some((i, node)));
            }
            left = again;
        }
    }

    /// Changes a job that waits, at its home.
    pub(super) fn change_at_home(&self, key: &JobKey, change: &Change) -> Result<Changed> {
        let survey = self.survey_for_change();
        let was_unsure = self.is_unsure(&survey);
        let changed = self.change_by(key, change, &survey);
        // What may have been done is not done again.
        if !matches!(changed, Ok(_) | Err(StoreError::NodeDown(_))) {
            return changed;
        }
        let Some(survey) = self.survey_again(&survey, was_unsure) else { return changed };
        match (changed, self.change_by(key, change, &survey)) {
            // It was run, and is gone.
            (Ok(Changed::Done), Ok(Changed::NotFound)) => Ok(Changed::Done),
            // It is being delivered, or another copy is the job.
            (Ok(Changed::Done), Ok(Changed::Conflict)) => {
                Err(StoreError::Unknown("a newer copy of the job may not have been changed".into()))
            }
            (Ok(Changed::Done), Err(e)) => Err(StoreError::Unknown(e.to_string())),
            (_, again) => again,
        }
    }

    fn change_by(&self, key: &JobKey, change: &Change, survey: &Survey) -> Result<Changed> {
        let home = survey.map.home(key);
        if survey.is_silent(home) {
            return Err(self.nodes.silent(home));
        }
        self.vouches(key, survey)?;
        if self.bring_home(&[key], survey) != [Elsewhere::No] {
            return Ok(Changed::Conflict);
        }
        let place = self.nodes.place(home, key);
        let mut call = self.call(Script::Change, place);
        call.cmd.arg(key.topic.as_str()).arg(key.id.as_str());
        call.cmd.arg(change.due.map(answer::due).unwrap_or_default());
        call.cmd.arg(change.priority.map(|p| (p as u8).to_string()).unwrap_or_default());
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
        match answer::text(self.ask(place, call)?)?.as_str() {
            "d" => Ok(Changed::Done),
            "n" => Ok(Changed::NotFound),
            "c" => Ok(Changed::Conflict),
            _ => Err(strange("an answer")),
        }
    }
}

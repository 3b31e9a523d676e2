//! Requests to the store. A request carries the function that makes the client's response from the store's answer, so
//! the compiler checks that each answer belongs to its request.

use super::job_search::{self, FoundJobs, JobQuery};
use super::letters::{DeadLetterTask, FoundDeadLetters, find, run_task};
use super::list::{ListRequest, list};
use super::records::{self, FoundIds, FoundRecords, RecordQuery, SearchedTopic};
use crate::bulk::BulkRun;
use std::time::Duration;

use crate::tickets::{SettledTicket, TicketError, TicketReport, Tickets};
use model::bulk::{BulkProgress, BulkRequest};
use model::job::{JobId, JobKey, NewJob, State, TopicName};
use model::letters::DeadLetterFilter;
use model::record::JobRecord;
use model::ticket::TicketSecret;
use store::{
    Added, Change, Changed, CircuitView, Counts, DeadLetterSelection, Deleted, JobsPage, Lanes, LeasedJob,
    LimitQuery, LimitUse, OwnerTag, Result, Settled, Settlement, Store, StoredJob,
};

/// A request to the store. The thread that asks the store also makes the response of type `R`. So a long response does
/// not delay the thread that serves all clients.
pub struct StoreRequest<R>(pub(super) StoreWork<R>);

/// Makes the response from the store's answer.
pub(super) type Responder<T, R> = Box<dyn FnOnce(T) -> R + Send>;

/// Makes the response from the store's answer about this job.
pub(super) type JobResponder<T, R> = Box<dyn FnOnce(&JobKey, T) -> R + Send>;

/// Asks the store, and makes the response.
pub(super) type StoreQuestion<R> = Box<dyn FnOnce(&mut dyn Store) -> R + Send>;

/// Makes a settlement, and the function that makes the response from the store's answer. `Err`: there is nothing to
/// settle, and the value is the response.
pub(super) type SettlementMaker<R> =
    Box<dyn FnOnce(&mut dyn Store) -> Result<(Settlement, Responder<Result<Settled>, R>), R> + Send>;

pub(super) enum StoreWork<R> {
    Add(AddWork<R>),
    Delete(JobKey, JobResponder<Result<Deleted>, R>),
    /// A settlement. The settlements of several requests can share a transaction.
    Settle(Target, SettlementMaker<R>),
    Other(Target, StoreQuestion<R>),
}

/// An add. The adds of several requests can share a transaction.
pub(super) enum AddWork<R> {
    One(Box<NewJob>, Responder<Result<Added>, R>),
    Many(Vec<NewJob>, Responder<Vec<Result<Added>>, R>),
}

/// Where a request goes.
pub(super) enum Target {
    /// The lane of this job.
    Job(JobKey),
    Lane(usize),
    AllLanes,
}

impl Target {
    /// Returns the job that the request is about. None: the job is not known yet, or the request is not about one job.
    fn key(&self) -> Option<&JobKey> {
        match self {
            Target::Job(key) => Some(key),
            Target::Lane(_) | Target::AllLanes => None,
        }
    }
}

impl<R: 'static> StoreRequest<R> {
    /// Stores a job.
    pub fn add(job: NewJob, respond: impl FnOnce(Result<Added>) -> R + Send + 'static) -> StoreRequest<R> {
        StoreRequest(StoreWork::Add(AddWork::One(Box::new(job), Box::new(respond))))
    }

    /// Stores several jobs. The answer has one result for each job, in their order.
    pub fn add_many(
        jobs: Vec<NewJob>,
        respond: impl FnOnce(Vec<Result<Added>>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest(StoreWork::Add(AddWork::Many(jobs, Box::new(respond))))
    }

    /// Removes a job.
    pub fn delete(
        key: JobKey,
        respond: impl FnOnce(&JobKey, Result<Deleted>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest(StoreWork::Delete(key, Box::new(respond)))
    }

    fn other(target: Target, ask: impl FnOnce(&mut dyn Store) -> R + Send + 'static) -> StoreRequest<R> {
        StoreRequest(StoreWork::Other(target, Box::new(ask)))
    }

    /// Asks about one job.
    fn about<T>(
        key: JobKey,
        ask: impl FnOnce(&mut dyn Store, &JobKey) -> T + Send + 'static,
        respond: impl FnOnce(&JobKey, T) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::Job(key.clone()), move |store| {
            let answer = ask(store, &key);
            respond(&key, answer)
        })
    }

    /// Shows a job.
    pub fn get(
        key: JobKey,
        respond: impl FnOnce(&JobKey, Result<Option<StoredJob>>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::about(key, |store, key| store.get(key), respond)
    }

    /// Shows a job. If there is no job, shows the records of the id, as [`StoreRequest::records`] does.
    pub fn get_or_records(
        key: JobKey,
        sees_answers: bool,
        respond: impl FnOnce(&JobKey, Result<(Option<StoredJob>, Vec<JobRecord>)>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        let ask = move |store: &mut dyn Store, key: &JobKey| match store.get(key)? {
            Some(view) => Ok((Some(view), Vec::new())),
            None => Ok((None, records::of_id(store, key, sees_answers)?)),
        };
        StoreRequest::about(key, ask, respond)
    }

    /// Shows the records of an id, the latest first. `sees_answers`: they include what the receivers answered.
    pub fn records(
        key: JobKey,
        sees_answers: bool,
        respond: impl FnOnce(&JobKey, Result<Vec<JobRecord>>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::about(key, move |store, key| records::of_id(store, key, sees_answers), respond)
    }

    /// Erases the records of an id. The answer says how many there were.
    pub fn forget(
        key: JobKey,
        respond: impl FnOnce(&JobKey, Result<usize>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::about(key, |store, key| store.forget(key), respond)
    }

    /// Shows a page of the records of several topics. The search takes a limited time. The answer says where to
    /// continue.
    pub fn find_records(
        query: RecordQuery,
        respond: impl FnOnce(Result<FoundRecords>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(records::find(store, &query)))
    }

    /// Shows a page of the jobs of several topics. The search takes a limited time. The answer says where to continue.
    pub fn find_jobs(
        query: JobQuery,
        respond: impl FnOnce(Result<FoundJobs>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(job_search::find(store, &query)))
    }

    /// Looks for an id in these topics. Stops when the time that one request may take is over. Looks at least at one
    /// topic.
    pub fn find_id(
        topics: Vec<SearchedTopic>,
        id: JobId,
        respond: impl FnOnce(Result<FoundIds>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(records::find_id(store, topics, &id)))
    }

    /// Erases up to `limit` records of a topic.
    pub fn purge_records(
        topic: TopicName,
        limit: usize,
        respond: impl FnOnce(Result<usize>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(store.purge_records(&topic, limit)))
    }

    /// Makes a delayed job due now.
    pub fn run(
        key: JobKey,
        respond: impl FnOnce(&JobKey, Result<Changed>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::about(key, |store, key| store.run(key), respond)
    }

    /// Changes a job that is delayed or ready.
    pub fn change(
        key: JobKey,
        change: Change,
        respond: impl FnOnce(&JobKey, Result<Changed>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::about(key, move |store, key| store.change(key, &change), respond)
    }

    /// Leases a delayed or ready job, even if other jobs come before it. `max_attempts` is as in
    /// [`store::LeaseRequest`].
    pub fn lease_job(
        key: JobKey,
        hold: Duration,
        max_attempts: u32,
        owner: Option<OwnerTag>,
        respond: impl FnOnce(Result<Option<LeasedJob>>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::about(
            key,
            move |store, key| store.lease_job(key, hold, max_attempts, owner.as_ref()),
            |_, leased| respond(leased),
        )
    }

    /// Settles a leased job.
    pub fn settle(
        settlement: Settlement,
        respond: impl FnOnce(Result<Settled>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        let target = Target::Job(settlement.key.clone());
        StoreRequest(StoreWork::Settle(target, Box::new(move |_| Ok((settlement, Box::new(respond))))))
    }

    /// Settles the lease that a ticket proves. A ticket that is not proved yet is checked at the lane that it names, so
    /// that a forged ticket delays no other lane.
    pub fn report(
        tickets: Tickets,
        found: TicketReport,
        respond: impl FnOnce(Result<SettledTicket, TicketError>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        let target = match tickets.proved(found.lane, &found.shown) {
            Ok(ticket) => Target::Job(ticket.key),
            Err(_) => Target::Lane(found.lane),
        };
        let make = move |store: &mut dyn Store| match tickets.prepare(store, found) {
            Err(answer) => Err(respond(answer)),
            Ok((settlement, report)) => {
                let settled = move |answer| respond(tickets.settled(report, answer));
                Ok((settlement, Box::new(settled) as Responder<Result<Settled>, R>))
            }
        };
        StoreRequest(StoreWork::Settle(target, Box::new(make)))
    }

    /// Shows a page of jobs.
    pub fn list(
        listing: ListRequest,
        respond: impl FnOnce(Result<JobsPage>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(list(store, listing)))
    }

    /// Returns up to `limit` dead letters that a filter picks. If the search takes long, the answer has the letters
    /// that one step has found, and a cursor. The next request passes this `cursor` to continue.
    pub fn find(
        topic: TopicName,
        filter: DeadLetterFilter,
        cursor: Option<String>,
        limit: usize,
        respond: impl FnOnce(Result<FoundDeadLetters>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| {
            respond(find(store, &topic, &filter, cursor, limit))
        })
    }

    /// For a limited time, looks at the jobs that an operation on many jobs would change. The answer has the progress
    /// after this step, and the number of jobs of this step that would be changed.
    pub fn look_at_many(
        request: BulkRequest,
        started_ms: i64,
        before: BulkProgress,
        respond: impl FnOnce(Result<(BulkProgress, u64)>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        let bulk = BulkRun::new(&request, 0, started_ms);
        StoreRequest::other(Target::AllLanes, move |store| respond(bulk.count(store, before, started_ms)))
    }

    /// Returns the secret that signs tickets for the leases of this lane.
    pub fn secret(
        lane: usize,
        respond: impl FnOnce(Result<TicketSecret>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::Lane(lane), move |store| respond(store.secret(lane)))
    }

    /// Counts the jobs of all topics.
    pub fn count(respond: impl FnOnce(Result<Vec<Counts>>) -> R + Send + 'static) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(store.counts()))
    }

    /// Pauses a topic.
    pub fn pause(
        topic: TopicName,
        respond: impl FnOnce(Result<()>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(store.pause(&topic, true)))
    }

    /// Resumes a topic, and closes its circuit, so that its jobs are delivered again.
    pub fn resume(
        topic: TopicName,
        respond: impl FnOnce(Result<()>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        let resume = move |store: &mut dyn Store| {
            store.pause(&topic, false)?;
            store.close_circuit(&topic).map(drop)
        };
        StoreRequest::other(Target::AllLanes, move |store| respond(resume(store)))
    }

    /// Returns the topics that are paused, and the circuits that are not closed.
    pub fn held_back(
        respond: impl FnOnce(Result<(Vec<TopicName>, Vec<CircuitView>)>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        let ask = |store: &mut dyn Store| Ok((store.paused()?, store.circuits()?));
        StoreRequest::other(Target::AllLanes, move |store| respond(ask(store)))
    }

    /// Returns how much of the limits of topics and hosts is used.
    pub fn limit_use(
        queries: Vec<LimitQuery>,
        respond: impl FnOnce(Vec<Result<LimitUse>>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(store.limit_use(&queries)))
    }

    /// Removes up to `limit` jobs of a topic that are in one state.
    pub fn purge(
        topic: TopicName,
        state: State,
        limit: usize,
        respond: impl FnOnce(Result<usize>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| respond(store.purge(&topic, state, limit)))
    }

    /// Counts, redrives or removes dead letters of a topic: up to `limit` letters, or the letters of all ids if ids are
    /// given. For large numbers, the server asks in several steps, so that other requests are served in between.
    pub fn dead_letters(
        topic: TopicName,
        which: DeadLetterSelection,
        limit: usize,
        task: DeadLetterTask,
        respond: impl FnOnce(Result<usize>) -> R + Send + 'static,
    ) -> StoreRequest<R> {
        StoreRequest::other(Target::AllLanes, move |store| {
            respond(run_task(store, topic, &which, limit, task))
        })
    }
}

impl<R> StoreRequest<R> {
    /// Returns the job that the request is about. For several jobs, it is the first one.
    pub fn key(&self) -> Option<&JobKey> {
        match &self.0 {
            StoreWork::Add(AddWork::One(job, _)) => Some(&job.key),
            StoreWork::Add(AddWork::Many(jobs, _)) => jobs.first().map(|job| &job.key),
            StoreWork::Delete(key, _) => Some(key),
            StoreWork::Settle(target, _) | StoreWork::Other(target, _) => target.key(),
        }
    }

    /// Returns the lane of the request. None: the request does not belong to one lane alone.
    pub(super) fn lane(&self, lanes: &Lanes) -> Option<usize> {
        match &self.0 {
            StoreWork::Add(AddWork::Many(jobs, _)) => {
                let mut of_jobs = jobs.iter().map(|job| lanes.lane_of(&job.key));
                of_jobs.next().filter(|first| of_jobs.all(|lane| lane == *first))
            }
            StoreWork::Settle(Target::Lane(lane), _) | StoreWork::Other(Target::Lane(lane), _) => Some(*lane),
            _ => self.key().map(|key| lanes.lane_of(key)),
        }
    }
}

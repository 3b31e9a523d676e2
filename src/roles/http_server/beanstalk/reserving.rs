//! Waits for a job that a client reserves.
//!
//! A job is leased for its own TTR, or for `ttr` of its topic if it has none. The store chooses between these values,
//! because this process does not know the TTR of a job before the job is leased.
//!
//! Only this process knows the pauses of tubes. A job of a tube that was paused while the client waited is handed back.

use std::future::pending;
use std::time::{Duration, Instant};

use super::super::pool::PoolAllocation;
use super::super::presence::ClientPresence;
use super::super::problem::Problem;
use super::super::store_client::AnswerSender;
use super::commands::failed;
use super::held::{HELD_MAX, HeldJob};
use super::session::BeanstalkSession;
use super::stored_job::{body_bytes, ttr};
use super::tube_topic::{topic_of, tube_of};
use host::now_ms;
use model::job::{JobKey, State, TopicName};
use model::scope::RequiredAccess;
use model::topic::LEASES;
use protocol::beanstalk::{BeanstalkResponse, TubeName};
use role::expiry::expired;
use role::pull::{PullHandle, Reserve, ReservedLease};
use role::submit::StoreRequest;
use store::{DeadLetterSelection, LeasedJob, Outcome, OwnerTag, Settlement};

/// The maximum length of one wait for jobs. If no job has come, the next wait begins.
const WAIT: Duration = Duration::from_secs(3600);

/// A reserved job that the client does not know yet. If this value is dropped before `accept` is called, the job is
/// handed back.
pub(super) struct NewlyReserved {
    reserved: Option<ReservedLease>,
    pull: PullHandle,
}

impl NewlyReserved {
    fn leased(&self) -> &LeasedJob {
        &self.reserved.as_ref().expect("it is there until it is accepted").leased
    }

    fn accept(mut self) -> LeasedJob {
        self.reserved.take().expect("it is accepted once").leased
    }
}

impl Drop for NewlyReserved {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            self.pull.refuse(vec![reserved]);
        }
    }
}

/// Counts a client that waits. The client is counted as long as this value exists.
struct WaitCountGuard<'a> {
    session: &'a BeanstalkSession,
}

impl<'a> WaitCountGuard<'a> {
    fn new(session: &'a BeanstalkSession) -> WaitCountGuard<'a> {
        session.port().with_state(|state| state.counts.current_waiting += 1);
        session.watched().iter().for_each(|tube| session.port().with_tube(tube, |known| known.waiting += 1));
        WaitCountGuard { session }
    }
}

impl Drop for WaitCountGuard<'_> {
    fn drop(&mut self) {
        let session = self.session;
        session.port().with_state(|state| state.counts.current_waiting -= 1);
        session.watched().iter().for_each(|tube| session.port().with_tube(tube, |known| known.waiting -= 1));
    }
}

/// How a wait ended.
enum WaitResult {
    Job(Box<NewlyReserved>),
    /// No job came.
    Nothing,
    /// The topics or the pauses have changed, so the client must wait again with the changed ones.
    Again,
    /// This process drains.
    Closing,
}

impl BeanstalkSession {
    /// Reserves a job of a watched tube. If there is no job, waits until the time `until`, or without limit if `until`
    /// is none. Returns the response, and the client's place among the clients that reserve. None: this process drains.
    pub(super) async fn reserve(
        &mut self,
        until: Option<Instant>,
    ) -> Option<(BeanstalkResponse<'static>, Option<PoolAllocation>)> {
        let place = match self.port().api.reserve_place(Some(self.holder().clone())) {
            Ok(place) => place,
            Err(problem) => {
                failed(&problem);
                return Some((BeanstalkResponse::OutOfMemory, None));
            }
        };
        if self.held().len() >= HELD_MAX {
            return Some((BeanstalkResponse::OutOfMemory, None));
        }
        let waited = {
            let count = WaitCountGuard::new(self);
            count.session.wait(until).await
        };
        Some(match waited {
            Ok(Some((leased, hold, ends))) => (self.take(leased, hold, ends), Some(place)),
            Ok(None) if *self.port().api.closing.borrow() => return None,
            Ok(None) => {
                let now = Instant::now();
                let is_over = until.is_some_and(|until| until <= now);
                let warns = self.held().warns_from(now).is_some_and(|at| at <= now);
                let response = if warns || !is_over {
                    BeanstalkResponse::DeadlineSoon
                } else {
                    BeanstalkResponse::TimedOut
                };
                (response, None)
            }
            Err(problem) => (failed(&problem), None),
        })
    }

    /// Waits for a job. Returns the job with its TTR and the end of its lease. None: the time is over, a lease of the
    /// client ends soon, or this process drains.
    async fn wait(&self, until: Option<Instant>) -> Result<Option<(LeasedJob, Duration, Instant)>, Problem> {
        loop {
            let now = Instant::now();
            let warns_from = self.held().warns_from(now);
            let ends = [until, warns_from].into_iter().flatten().min();
            match self.wait_once(now, ends).await? {
                WaitResult::Job(job) => {
                    let topic = job.leased().key.topic.clone();
                    let known = self.port().topic(&topic);
                    let tube = known.as_deref().and_then(tube_of);
                    if tube.is_some_and(|tube| self.port().paused_until(&tube, Instant::now()).is_some()) {
                        continue;
                    }
                    let (leased, now) = (job.accept(), Instant::now());
                    let held_ms = leased.deadline_ms.saturating_sub(leased.leased_ms).max(0) as u64;
                    let hold = Duration::from_millis(held_ms);
                    let ttr = ttr(&leased.headers).unwrap_or(hold);
                    return Ok(Some((leased, ttr, now + hold)));
                }
                WaitResult::Closing => return Ok(None),
                WaitResult::Nothing if ends.is_some_and(|ends| ends <= Instant::now()) => return Ok(None),
                WaitResult::Nothing | WaitResult::Again => {}
            }
        }
    }

    /// Waits once for a job of the tubes that are not paused now.
    async fn wait_once(&self, now: Instant, ends: Option<Instant>) -> Result<WaitResult, Problem> {
        let api = &self.port().api;
        let (mut topics_change, mut pauses) = (api.topics.clone(), self.port().follow_pauses());
        topics_change.mark_unchanged();
        let mut closing = api.closing.subscribe();
        if *closing.borrow() {
            return Ok(WaitResult::Closing);
        }
        let (topics, resumes) = self.reservable(now);
        let is_idle = topics.is_empty();
        let until = [Some(now + WAIT), ends, resumes].into_iter().flatten().min().unwrap_or(now);
        let jobs = async {
            if topics.is_empty() {
                tokio::time::sleep_until(until.into()).await;
                return Ok(Vec::new());
            }
            let reserve = Reserve { topics, max: 1, lease: None, is_owned: true, client: None, until };
            api.wait_for_jobs(reserve, &ClientPresence::default(), pending()).await
        };
        tokio::select! {
            biased;
            jobs = jobs => Ok(match jobs?.pop() {
                Some(reserved) => {
                    let job = NewlyReserved { reserved: Some(reserved), pull: api.pull.clone() };
                    WaitResult::Job(Box::new(job))
                }
                None if *closing.borrow() => WaitResult::Closing,
                None => WaitResult::Nothing,
            }),
            // When this process drains, each reserve gets its answer soon. This code waits for the answer, because a
            // job may be leased for the client. If the process ended before the answer, it could not hand this job
            // back. If there are no topics (`is_idle`), no job was asked for, so the wait ends at once.
            _ = closing.changed(), if is_idle => Ok(WaitResult::Closing),
            _ = pauses.changed() => Ok(WaitResult::Again),
            _ = topics_change.changed() => Ok(WaitResult::Again),
        }
    }

    /// Returns the topics of the watched tubes that are not paused, and when the next tube is resumed. Each reserve
    /// begins with another tube, so that each tube gets its turn.
    fn reservable(&self, now: Instant) -> (Vec<TopicName>, Option<Instant>) {
        let (mut topics, mut resumes) = (Vec::new(), None);
        let known = self.port().api.topics.borrow();
        let watched = self.watched();
        let first = self.turn() % watched.len().max(1);
        for tube in watched[first..].iter().chain(&watched[..first]) {
            let topic = topic_of(tube);
            if let Some(until) = self.port().paused_until(tube, now) {
                resumes = Some(resumes.map_or(until, |first: Instant| first.min(until)));
            } else if known.is_pulled(topic.as_str())
                && self.port().permits(RequiredAccess::Consume(topic.as_str()))
            {
                topics.push(topic);
            }
        }
        (topics, resumes)
    }

    /// Reserves the job with this number. A buried job is kicked first. Another client that waits may then get it.
    pub(super) async fn reserve_job(&mut self, number: u64) -> Result<BeanstalkResponse<'static>, Problem> {
        if self.held().len() >= HELD_MAX {
            return Ok(BeanstalkResponse::OutOfMemory);
        }
        let Some(view) = self.find(number).await?.filter(|view| view.state != State::Leased) else {
            return Ok(BeanstalkResponse::NotFound);
        };
        let JobKey { topic, id } = view.key.clone();
        let known = self
            .port()
            .topic(&topic)
            .filter(|_| self.port().permits(RequiredAccess::Consume(topic.as_str())));
        let Some(known) = known else { return Ok(BeanstalkResponse::NotFound) };
        if view.state == State::Dead && self.redrive(topic, DeadLetterSelection::Ids(vec![id]), 1).await? == 0
        {
            return Ok(BeanstalkResponse::NotFound);
        }
        let ttr = ttr(&view.headers).unwrap_or(known.ttr);
        let owner = self.port().api.pull.owner().map(|owner| OwnerTag(owner.tag().to_owned()));
        let (hold, now) = (ttr.min(LEASES.1), Instant::now());
        let ask = |reply: AnswerSender<_>| {
            StoreRequest::lease_job(view.key, hold, known.max_attempts, owner, |leased| reply.with(leased))
        };
        let Some(leased) = self.port().api.store_client.ask(0, ask).await?? else {
            return Ok(BeanstalkResponse::NotFound);
        };
        if let Some(attempt) = expired(&leased) {
            let (key, token) = (leased.key, leased.token);
            let settlement = Settlement { key, token, outcome: Outcome::DeadLetter, attempt: Some(attempt) };
            let ask =
                |reply: AnswerSender<_>| StoreRequest::settle(settlement, |settled| reply.with(settled));
            self.port().api.store_client.ask(0, ask).await??;
            return Ok(BeanstalkResponse::NotFound);
        }
        Ok(self.take(leased, ttr, now + hold))
    }

    /// Notes that the client has a job from now on, and returns the response.
    pub(super) fn take(
        &mut self,
        leased: LeasedJob,
        ttr: Duration,
        ends: Instant,
    ) -> BeanstalkResponse<'static> {
        let number = self.port().number_of(&leased.key);
        let body = body_bytes(&leased.body, &leased.headers);
        self.hold(number, self.held_job(leased, ttr, ends));
        BeanstalkResponse::Reserved { id: number, body: body.into() }
    }

    fn held_job(&self, leased: LeasedJob, ttr: Duration, ends: Instant) -> HeldJob {
        let LeasedJob { key, token, attempt, .. } = leased;
        HeldJob { key, token, attempt, began_ms: now_ms(), ttr, ends, owner: self.port().api.pull.owner() }
    }
}

/// Returns the tube of a topic.
pub(super) fn tube_named(session: &BeanstalkSession, topic: &TopicName) -> Option<TubeName> {
    session.port().topic(topic).as_deref().and_then(tube_of)
}

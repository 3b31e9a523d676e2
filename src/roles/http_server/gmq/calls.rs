//! What the calls of a client do: push, pop and ack.
//!
//! The TTR of a job is its `ttr`, and its delay is the header `gmq-delay`, in seconds. A job with TTR 0 has the header
//! `gmq-ttr` instead. Such a job is leased for the `ttr` of its topic, and is settled before the client gets it.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;

use super::super::api::Api;
use super::super::input;
use super::super::pool::{PoolAllocation, PoolHolder};
use super::super::presence::ClientPresence;
use super::super::problem::Problem;
use super::super::store_client::AnswerSender;
use super::last_reserves::PoppedLease;
use super::succession::LeasesFile;
use host::now_ms;
use model::headers::Headers;
use model::job::{Attempt, Body, Due, JobId, JobKey, NewJob, OnConflict, TopicName};
use model::job_priority::JobPriority;
use model::metrics::AttemptOutcome;
use model::quota::Quota;
use model::scope::{RequiredAccess, Scope};
use model::topic::{LEASES, Topic};
use protocol::gmq::{PoppedJob, Push};
use role::lock;
use role::pull::{MAX_TOPICS, PullHandle, Reserve, ReservedLease};
use role::submit::StoreRequest;
use store::{Added, LeasedJob, Outcome, Settled, Settlement};

/// How long a pop waits for a job.
const POP_WAIT: Duration = Duration::from_secs(2);

/// The header of a job that is done when it is popped. Its value is 0.
const TTR: &str = "gmq-ttr";
/// The header that keeps the delay of a job, in seconds.
const DELAY: &str = "gmq-delay";

/// What the connections of the port share. The value is cheap to clone.
#[derive(Clone)]
pub(super) struct GmqPort {
    pub api: Api,
    /// What each client may do.
    pub scopes: Arc<[Scope]>,
    pub succession: LeasesFile,
}

/// A popped job. If the client does not get the job, the job is handed back.
pub(super) struct PoppedJobGuard {
    reserved: Option<ReservedLease>,
    body: String,
    delay: Duration,
    ttr: Duration,
    /// How long the lease lasts.
    hold: Duration,
    pull: PullHandle,
    /// The client's place. `http.max_reserves` limits the places. The place is taken until the answer is written to the
    /// client. So this setting also limits how many answers wait for clients that do not read.
    _place: PoolAllocation,
}

impl PoppedJobGuard {
    /// Returns the job as the answer shows it.
    pub(super) fn job(&self) -> PoppedJob<'_> {
        let LeasedJob { key, attempt, .. } = self.leased();
        PoppedJob {
            id: key.id.as_str(),
            topic: key.topic.as_str(),
            body: &self.body,
            delay: self.delay,
            ttr: self.ttr,
            consume_num: u64::from(attempt.saturating_sub(1)),
        }
    }

    fn leased(&self) -> &LeasedJob {
        &self.reserved.as_ref().expect("it is there until the client has it").leased
    }

    /// Whether the job was done and removed when it was reserved.
    fn is_removed(&self) -> bool {
        self.reserved.as_ref().is_some_and(|reserved| reserved.ticket.is_none())
    }

    /// Notes that the client has the job, so that the job is not handed back.
    pub(super) fn take_by_client(mut self) {
        self.reserved = None;
    }
}

impl Drop for PoppedJobGuard {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            // A job with TTR 0 is already settled, so the refusal has no effect for it.
            self.pull.refuse(vec![reserved]);
        }
    }
}

/// Returns the text about a problem for a client.
pub(super) fn failed(problem: Problem) -> String {
    problem.detail
}

/// Returns the seconds that a header of a job names.
fn seconds(headers: &Headers, name: &str) -> Option<Duration> {
    headers.by_name().get(name)?.parse().ok().map(Duration::from_secs)
}

/// Returns the body as a client gets it: the text of a string, or the JSON of another value.
fn text(body: &Body) -> String {
    serde_json::from_str(body.as_str()).unwrap_or_else(|_| body.as_str().to_owned())
}

fn headers(push: &Push) -> Result<Headers, Problem> {
    if push.ttr > LEASES.1 {
        let detail =
            format!("job.TTR is {} seconds, and not 0 to {}", push.ttr.as_secs(), LEASES.1.as_secs());
        return Err(Problem::field("TTR", detail));
    }
    let mut pairs = Vec::new();
    if push.ttr.is_zero() {
        pairs.push((TTR.to_owned(), "0".to_owned()));
    }
    if push.delay > Duration::ZERO {
        pairs.push((DELAY.to_owned(), push.delay.as_secs().to_string()));
    }
    let headers = Headers::new(pairs).map_err(|e| Problem::field("TTR", e.to_string()))?;
    Ok(headers.with_ttr(Some(push.ttr).filter(|ttr| !ttr.is_zero())))
}

impl GmqPort {
    fn permits(&self, need: RequiredAccess<'_>) -> Result<(), Problem> {
        if self.scopes.iter().any(|scope| scope.permits(need)) {
            return Ok(());
        }
        let detail = format!("gmq.scopes does not permit {need}");
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }

    /// Returns a topic whose jobs clients of this port may push and pop.
    fn topic(&self, name: &TopicName) -> Result<Arc<Topic>, Problem> {
        let known = self.api.topics.borrow();
        let Some(topic) = known.get(name.as_str()) else {
            let detail = format!(
                "topic {name} is not registered: add it with `dq topics set {name} --mode pull`, or to the \
                 configuration as a [[topic]] with mode = \"pull\""
            );
            return Err(Problem::new(StatusCode::NOT_FOUND, "unknown_topic", detail));
        };
        if known.is_pulled(name.as_str()) {
            return Ok(Arc::clone(topic));
        }
        let why = match known.undelivered(name.as_str()) {
            None => "its mode is \"push\", so dq calls a receiver: set mode = \"pull\"".to_owned(),
            Some(why) => why.to_string(),
        };
        Err(Problem::conflict("not_pull", format!("the jobs of topic {name} cannot be popped: {why}")))
    }

    /// Stores a job. If the topic already has a job with this id, the push is refused.
    pub(super) async fn push(&self, push: Push) -> Result<(), Problem> {
        let (name, id, length) = (push.topic.clone(), push.id.clone(), push.body.len());
        let job = self.api.count_refusal(&name, self.new_job(push))?;
        let ask = |reply: AnswerSender<_>| StoreRequest::add(job, |added| reply.with(added));
        match self.api.store_client.ask(length, ask).await?? {
            Added::Rejected => {
                let detail = format!("job {:?} exists already in topic {name}", id.as_str());
                Err(Problem::conflict("exists", detail))
            }
            Added::New { .. } | Added::Replaced { .. } | Added::Kept { .. } | Added::Spooled { .. } => Ok(()),
        }
    }

    fn new_job(&self, push: Push) -> Result<NewJob, Problem> {
        self.permits(RequiredAccess::Produce(push.topic.as_str()))?;
        let topic = self.topic(&push.topic)?;
        input::takes_jobs(&self.api.topics.borrow(), &push.topic)?;
        let due = Due::In(push.delay);
        let headers = headers(&push)?.with_expires_ms(topic.expires_ms(None, due, now_ms()));
        Ok(NewJob {
            key: JobKey { topic: push.topic, id: push.id },
            body: Body::trusted(serde_json::Value::from(push.body).to_string()),
            due,
            priority: JobPriority::default(),
            on_conflict: OnConflict::Reject,
            max_attempts: None,
            attempts: 0,
            headers,
            quota: Quota::of(&topic, None),
        })
    }

    /// Pops a job of the first topic that has a job. Waits for up to two seconds. None: no job came.
    pub(super) async fn pop(
        &self,
        topics: Vec<TopicName>,
        holder: PoolHolder,
        now: Instant,
    ) -> Result<Option<PoppedJobGuard>, Problem> {
        if topics.len() > MAX_TOPICS {
            let detail = format!("topics has {} topics, which is more than {MAX_TOPICS}", topics.len());
            return Err(Problem::field("topics", detail));
        }
        let mut names: Vec<TopicName> = Vec::new();
        for name in topics {
            self.permits(RequiredAccess::Consume(name.as_str()))?;
            self.topic(&name)?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let until = now + POP_WAIT;
        let mut place = self.api.reserve_place(Some(holder.clone()))?;
        loop {
            let reserve =
                Reserve { topics: names.clone(), max: 1, lease: None, is_owned: false, client: None, until };
            let Some(reserved) =
                self.api.wait_for_jobs(reserve, &ClientPresence::default(), pending()).await?.pop()
            else {
                return Ok(None);
            };
            let popped = self.popped(reserved, place);
            let last = PoppedLease::new(popped.leased(), now_ms(), popped.hold);
            if popped.is_removed() {
                return Ok(Some(popped));
            }
            if !popped.ttr.is_zero() {
                lock(self.succession.last()).note(last, now_ms());
                return Ok(Some(popped));
            }
            if self.settle(&last, Outcome::Ack).await? {
                return Ok(Some(popped));
            }
            // The lease had ended before it was settled. So the client must not get this job, which may be leased
            // again, perhaps for another client. This call looks for another job.
            drop(popped);
            if Instant::now() >= until {
                return Ok(None);
            }
            place = self.api.reserve_place(Some(holder.clone()))?;
        }
    }

    fn popped(&self, reserved: ReservedLease, place: PoolAllocation) -> PoppedJobGuard {
        let leased = &reserved.leased;
        let hold = leased.deadline_ms.saturating_sub(leased.leased_ms).max(0) as u64;
        let hold = Duration::from_millis(hold);
        // A job that was removed when it was reserved is shown with TTR 0.
        let ttr = match reserved.ticket {
            None => Duration::ZERO,
            Some(_) => seconds(&leased.headers, TTR).filter(Duration::is_zero).unwrap_or(hold),
        };
        PoppedJobGuard {
            body: text(&leased.body),
            delay: seconds(&leased.headers, DELAY).unwrap_or_default(),
            ttr,
            hold,
            pull: self.api.pull.clone(),
            reserved: Some(reserved),
            _place: place,
        }
    }

    /// Settles the last lease of an id.
    pub(super) async fn ack(&self, id: JobId) -> Result<(), Problem> {
        let over = || {
            let detail = format!(
                "job {:?} is not popped: it was acked, its TTR ran out, or it was popped elsewhere",
                id.as_str()
            );
            Problem::new(StatusCode::GONE, "gone", detail)
        };
        let find = || lock(self.succession.last()).find(&id);
        let last = match find() {
            Some(last) => last,
            None => {
                self.succession.learn().await;
                find().ok_or_else(over)?
            }
        };
        self.permits(RequiredAccess::Consume(last.key.topic.as_str()))?;
        let is_done = self.settle(&last, Outcome::Ack).await?;
        lock(self.succession.last()).forget(&last);
        if is_done { Ok(()) } else { Err(over()) }
    }

    /// Settles a lease. Returns whether the lease was still valid.
    async fn settle(&self, last: &PoppedLease, outcome: Outcome) -> Result<bool, Problem> {
        let PoppedLease { key, token, .. } = last.clone();
        let is_over = outcome == Outcome::Ack;
        let attempt = is_over.then(|| Attempt {
            number: last.attempt,
            at_ms: last.began_ms,
            took_ms: now_ms().saturating_sub(last.began_ms).max(0) as u64,
            status: None,
            answer: String::new(),
            error: String::new(),
            late: None,
        });
        let took_ms = attempt.as_ref().map(|attempt| attempt.took_ms);
        let settlement = Settlement { key, token, outcome, attempt };
        let ask = |reply: AnswerSender<_>| StoreRequest::settle(settlement, |settled| reply.with(settled));
        let is_done = self.api.store_client.ask(0, ask).await?? == Settled::Done;
        if is_done && is_over {
            let took_us = took_ms.unwrap_or_default().saturating_mul(1000);
            let counters = self.api.counters.topic(last.key.topic.as_str());
            counters.reported(AttemptOutcome::Accepted, took_us);
            self.api.pull.settled(&last.key.topic);
        }
        Ok(is_done)
    }
}

//! Stores the jobs that clients put, and registers the topics of new tubes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;

use super::super::input;
use super::super::problem::Problem;
use super::super::store_client::AnswerSender;
use super::commands::failed;
use super::number::id_of;
use super::port::BeanstalkPort;
use super::session::BeanstalkSession;
use super::stored_job::{ATTEMPTS, stored};
use super::tube_topic::topic_of;
use host::now_ms;
use model::headers::Headers;
use model::job::{Body, Due, JobKey, NewJob, OnConflict, TopicName};
use model::job_priority::JobPriority;
use model::quota::Quota;
use model::topic::{DeliveryMode, LEASES, Topic};
use protocol::beanstalk::{BeanstalkResponse, Put, TubeName};
use registry::{Expected, RegistryError};
use role::submit::StoreRequest;
use store::StoreError;

/// How many times dq tries to add a job, if its number is taken or the home of its number does not answer.
const TRIES: usize = 8;

/// How many numbers dq tries for a job, to find a number with a home that is not known to be down.
const NUMBERS: usize = 64;

/// A put registers a new topic only while dq knows fewer topics than this.
const TOPICS_MAX: usize = 10_000;

/// The `max_attempts` of a topic that a put registers. It does not apply to the jobs that clients put, because each of
/// these jobs has its own limit ([`ATTEMPTS`]).
const TOPIC_ATTEMPTS: u32 = 1000;

/// A job that is not stored yet, and the place of its response.
struct PendingPut {
    place: usize,
    body: Body,
    headers: Headers,
    priority: JobPriority,
    delay: Duration,
    number: u64,
}

impl BeanstalkSession {
    /// Stores jobs in the used tube, in their order. Returns a response for each job.
    pub(super) async fn put(&mut self, puts: Vec<Put>) -> Vec<BeanstalkResponse<'static>> {
        let count = puts.len();
        self.note_puts(count as u64);
        if *self.port().api.closing.borrow() {
            return vec![BeanstalkResponse::Draining; count];
        }
        let tube = self.used().clone();
        let api = &self.port().api;
        let ttr = puts.iter().map(|put| put.ttr_s).max().unwrap_or(1);
        let topic = self.port().topic_for_puts(&tube, Duration::from_secs(ttr.into())).await;
        let topic = match api.count_refusal(&topic_of(&tube), topic) {
            Ok(topic) => topic,
            Err(problem) => return vec![failed(&problem); count],
        };
        let mut responses = vec![BeanstalkResponse::InternalError; count];
        let mut pending: Vec<PendingPut> = Vec::new();
        for (place, put) in puts.into_iter().enumerate() {
            let ((body, headers), delay) = (stored(&put), Duration::from_secs(put.delay_s.into()));
            let priority = JobPriority::from_number(put.priority);
            pending.push(PendingPut { place, body, headers, priority, delay, number: 0 });
        }
        for _ in 0..TRIES {
            self.port().add(&topic, &mut pending, &mut responses).await;
            if pending.is_empty() {
                break;
            }
            self.port().change_numbers();
        }
        let stored =
            responses.iter().filter(|response| matches!(response, BeanstalkResponse::Inserted(_))).count();
        self.port().with_tube(&tube, |known| known.total_jobs += stored as u64);
        self.port().with_state(|state| state.counts.total_jobs += stored as u64);
        responses
    }
}

impl BeanstalkPort {
    /// Adds jobs under new numbers. If the number of a job is taken or its node is down, the job stays in `pending`,
    /// and the caller tries it again.
    async fn add(
        &self,
        topic: &Topic,
        pending: &mut Vec<PendingPut>,
        responses: &mut [BeanstalkResponse<'static>],
    ) {
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        let quota = Quota::of(topic, None);
        for job in pending.iter_mut() {
            bytes += job.body.as_str().len();
            job.number = self.number_with_home(&topic.name);
            let key = JobKey { topic: topic.name.clone(), id: id_of(job.number) };
            let due = Due::In(job.delay);
            jobs.push(NewJob {
                on_conflict: OnConflict::Reject,
                max_attempts: Some(ATTEMPTS),
                headers: job.headers.clone().with_expires_ms(topic.expires_ms(None, due, now_ms())),
                priority: job.priority,
                quota: quota.clone(),
                ..NewJob::new(key, job.body.clone(), due)
            });
        }
        let ask = |reply: AnswerSender<_>| StoreRequest::add_many(jobs, |added| reply.with(added));
        let results = match self.api.store_client.ask(bytes, ask).await {
            Ok(results) => results,
            Err(problem) => {
                pending.iter().for_each(|job| responses[job.place] = failed(&problem));
                return pending.clear();
            }
        };
        let mut results = results.into_iter();
        pending.retain(|job| {
            responses[job.place] = match results.next() {
                Some(Ok(added)) if added.due_ms().is_some() => BeanstalkResponse::Inserted(job.number),
                // The number of this job is taken.
                Some(Ok(_)) => return true,
                Some(Err(e @ StoreError::NodeDown(_))) => {
                    responses[job.place] = failed(&e.into());
                    return true;
                }
                Some(Err(e @ (StoreError::OverQuota(_) | StoreError::Full(_)))) => {
                    failed(&e.into());
                    BeanstalkResponse::OutOfMemory
                }
                Some(Err(e)) => failed(&e.into()),
                None => BeanstalkResponse::InternalError,
            };
            false
        });
    }

    /// Makes a number for a job. Prefers a number whose home is not known to be down.
    fn number_with_home(&self, topic: &TopicName) -> u64 {
        let mut number = self.new_number(topic);
        for _ in 0..NUMBERS {
            if !self.api.lanes.is_home_down(&JobKey { topic: topic.clone(), id: id_of(number) }) {
                break;
            }
            number = self.new_number(topic);
        }
        number
    }

    /// Returns the topic of a tube, for puts. If the topic is new and `beanstalk.create` is set, registers the topic
    /// with this TTR.
    async fn topic_for_puts(&self, tube: &TubeName, ttr: Duration) -> Result<Arc<Topic>, Problem> {
        let name = topic_of(tube);
        self.check_produces(&name)?;
        if self.topic(&name).is_none() && self.api.settings.beanstalk.create {
            self.register(tube, &name, ttr).await?;
        }
        let topics = self.api.topics.borrow();
        let Some(topic) = topics.get(name.as_str()) else {
            let detail = format!(
                "topic {name} is not registered: add it with `dq topics set {name} --mode pull`, or set \
                 beanstalk.create = true"
            );
            if self.with_state(|state| state.unregistered.is_due(&name, Instant::now())) {
                log::warn!("beanstalk: puts into a tube get INTERNAL_ERROR: {detail}");
            }
            return Err(Problem::new(StatusCode::NOT_FOUND, "unknown_topic", detail));
        };
        if !topics.is_pulled(name.as_str()) {
            let why = match topics.undelivered(name.as_str()) {
                None => "its mode is \"push\", so dq calls a receiver: set mode = \"pull\"".to_owned(),
                Some(why) => why.to_string(),
            };
            let detail = format!("the jobs of topic {name} cannot be reserved: {why}");
            return Err(Problem::conflict("not_pull", detail));
        }
        input::takes_jobs(&topics, &name)?;
        Ok(Arc::clone(topic))
    }

    async fn register(&self, tube: &TubeName, name: &TopicName, ttr: Duration) -> Result<(), Problem> {
        if self.api.topics.borrow().iter().count() >= TOPICS_MAX {
            let detail = format!("dq has {TOPICS_MAX} topics, and a put registers no more");
            return Err(Problem::conflict("too_many_topics", detail));
        }
        self.api.check_writable(name)?;
        let topic = Topic {
            mode: DeliveryMode::Pull,
            title: tube.to_string(),
            creator: "beanstalk".to_owned(),
            max_attempts: TOPIC_ATTEMPTS,
            ttr: ttr.clamp(LEASES.0, LEASES.1),
            ..Topic::new(name.clone(), "")
        };
        let new = topic.clone();
        let written = self.api.registrar.change(move |registry| match registry.put(&new, Expected::Absent) {
            Ok(_) => Ok(true),
            // Another put has registered the topic meanwhile.
            Err(RegistryError::Exists(_) | RegistryError::Changed(_)) => Ok(false),
            Err(e) => Err(e),
        });
        match written.await? {
            true => {
                log::info!(topic = name.as_str(); "the topic is registered for a new tube of a beanstalkd client");
                self.api.seen(name, Some(&topic)).await;
            }
            false => self.api.seen_any(name).await,
        }
        Ok(())
    }
}

//! Carries out the commands of a connection.

use std::time::{Duration, Instant};

use super::super::problem::Problem;
use super::super::store_client::AnswerSender;
use super::held::HeldJob;
use super::kicks::shown;
use super::reserving::tube_named;
use super::session::BeanstalkSession;
use super::stored_job::BeanstalkNackReason;
use host::now_ms;
use model::job::{Attempt, Due, State, TopicName};
use model::job_priority::JobPriority;
use model::metrics::AttemptOutcome;
use model::scope::RequiredAccess;
use model::topic::LEASES;
use protocol::beanstalk::{BeanstalkCommand, BeanstalkResponse, TubeName, YamlDocument};
use role::pull::MAX_TOPICS;
use role::submit::StoreRequest;
use store::{Deleted, Outcome, Settled, Settlement, StoredJob};

/// Logs a problem, and returns the response. The protocol cannot tell the client what the problem is.
pub(super) fn failed(problem: &Problem) -> BeanstalkResponse<'static> {
    log::debug!("beanstalk: a command failed: {}", problem.detail);
    BeanstalkResponse::InternalError
}

impl BeanstalkSession {
    /// Carries out any command except put, quit, and the reserves that may wait.
    pub(super) async fn carry_out(&mut self, command: BeanstalkCommand) -> BeanstalkResponse<'static> {
        self.count(&command);
        let done = match command {
            BeanstalkCommand::Use(tube) => Ok(self.use_tube(tube)),
            BeanstalkCommand::Watch(tube) => Ok(self.watch(tube)),
            BeanstalkCommand::Ignore(tube) => Ok(self.ignore(&tube)),
            BeanstalkCommand::ReserveJob(number) => self.reserve_job(number).await,
            BeanstalkCommand::Delete(number) => self.delete(number).await,
            BeanstalkCommand::Release { id, priority, delay_s } => {
                let due = Due::In(Duration::from_secs(delay_s.into()));
                let outcome = Outcome::RetryAs(due, JobPriority::from_number(priority));
                let note = BeanstalkNackReason::Released { priority, delay_s };
                self.give_up(id, outcome, note, BeanstalkResponse::Released).await
            }
            BeanstalkCommand::Bury { id, priority } => {
                let outcome = Outcome::DeadLetterAs(JobPriority::from_number(priority));
                self.give_up(id, outcome, BeanstalkNackReason::Buried { priority }, BeanstalkResponse::Buried)
                    .await
            }
            BeanstalkCommand::Touch(number) => self.touch(number).await,
            BeanstalkCommand::Peek(number) => self.find(number).await.map(shown(number)),
            BeanstalkCommand::PeekReady => self.peek(State::Ready).await,
            BeanstalkCommand::PeekDelayed => self.peek(State::Delayed).await,
            BeanstalkCommand::PeekBuried => self.peek(State::Dead).await,
            BeanstalkCommand::Kick(count) => self.kick(count).await,
            BeanstalkCommand::KickJob(number) => self.kick_job(number).await,
            BeanstalkCommand::StatsJob(number) => self.stats_job(number).await,
            BeanstalkCommand::StatsTube(tube) => self.stats_tube(tube).await,
            BeanstalkCommand::Stats => self.stats().await,
            BeanstalkCommand::ListTubes => Ok(list(self.port.tubes().iter())),
            BeanstalkCommand::ListTubeUsed => Ok(BeanstalkResponse::Using(self.used.clone())),
            BeanstalkCommand::ListTubesWatched => Ok(list(self.watched.iter())),
            BeanstalkCommand::PauseTube { tube, delay_s } => Ok(match self.port.exists(&tube) {
                true => {
                    self.port.pause(&tube, Duration::from_secs(delay_s.into()));
                    BeanstalkResponse::Paused
                }
                false => BeanstalkResponse::NotFound,
            }),
            BeanstalkCommand::Put(_)
            | BeanstalkCommand::Reserve
            | BeanstalkCommand::ReserveWithTimeout(_)
            | BeanstalkCommand::Quit => Ok(BeanstalkResponse::InternalError),
        };
        done.unwrap_or_else(|problem| failed(&problem))
    }

    fn count(&self, command: &BeanstalkCommand) {
        self.port.with_state(|state| {
            let counts = &mut state.counts;
            let count = match command {
                BeanstalkCommand::Use(_) => &mut counts.cmd_use,
                BeanstalkCommand::Watch(_) => &mut counts.cmd_watch,
                BeanstalkCommand::Ignore(_) => &mut counts.cmd_ignore,
                BeanstalkCommand::ReserveJob(_) => &mut counts.cmd_reserve,
                BeanstalkCommand::Delete(_) => &mut counts.cmd_delete,
                BeanstalkCommand::Release { .. } => &mut counts.cmd_release,
                BeanstalkCommand::Bury { .. } => &mut counts.cmd_bury,
                BeanstalkCommand::Touch(_) => &mut counts.cmd_touch,
                BeanstalkCommand::Peek(_) => &mut counts.cmd_peek,
                BeanstalkCommand::PeekReady => &mut counts.cmd_peek_ready,
                BeanstalkCommand::PeekDelayed => &mut counts.cmd_peek_delayed,
                BeanstalkCommand::PeekBuried => &mut counts.cmd_peek_buried,
                BeanstalkCommand::Kick(_) | BeanstalkCommand::KickJob(_) => &mut counts.cmd_kick,
                BeanstalkCommand::StatsJob(_) => &mut counts.cmd_stats_job,
                BeanstalkCommand::StatsTube(_) => &mut counts.cmd_stats_tube,
                BeanstalkCommand::Stats => &mut counts.cmd_stats,
                BeanstalkCommand::ListTubes => &mut counts.cmd_list_tubes,
                BeanstalkCommand::ListTubeUsed => &mut counts.cmd_list_tube_used,
                BeanstalkCommand::ListTubesWatched => &mut counts.cmd_list_tubes_watched,
                BeanstalkCommand::PauseTube { .. } => &mut counts.cmd_pause_tube,
                // These commands are counted where they are carried out.
                BeanstalkCommand::Put(_)
                | BeanstalkCommand::Reserve
                | BeanstalkCommand::ReserveWithTimeout(_)
                | BeanstalkCommand::Quit => return,
            };
            *count += 1;
        });
    }

    fn use_tube(&mut self, tube: TubeName) -> BeanstalkResponse<'static> {
        self.port.with_tube(&tube, |known| known.using += 1);
        let before = std::mem::replace(&mut self.used, tube.clone());
        self.port.with_tube(&before, |known| known.using -= 1);
        BeanstalkResponse::Using(tube)
    }

    fn watch(&mut self, tube: TubeName) -> BeanstalkResponse<'static> {
        if !self.watched.contains(&tube) {
            if self.watched.len() >= MAX_TOPICS {
                return BeanstalkResponse::OutOfMemory;
            }
            self.port.with_tube(&tube, |known| known.watching += 1);
            self.watched.push(tube);
        }
        BeanstalkResponse::Watching(self.watched.len() as u64)
    }

    fn ignore(&mut self, tube: &TubeName) -> BeanstalkResponse<'static> {
        if let Some(place) = self.watched.iter().position(|watched| watched == tube) {
            if self.watched.len() == 1 {
                return BeanstalkResponse::NotIgnored;
            }
            self.watched.remove(place);
            self.port.with_tube(tube, |known| known.watching -= 1);
        }
        BeanstalkResponse::Watching(self.watched.len() as u64)
    }

    /// Settles a lease of this connection. `error`: why the attempt failed.
    pub(super) async fn settle(
        &self,
        job: &HeldJob,
        outcome: Outcome,
        error: String,
    ) -> Result<Settled, Problem> {
        let is_over = matches!(outcome, Outcome::Ack | Outcome::RetryAs(..) | Outcome::DeadLetterAs(_));
        let attempt = is_over.then(|| Attempt {
            number: job.attempt,
            at_ms: job.began_ms,
            took_ms: now_ms().saturating_sub(job.began_ms).max(0) as u64,
            status: None,
            answer: String::new(),
            error,
            late: None,
        });
        let took_us = attempt.as_ref().map(|attempt| attempt.took_ms.saturating_mul(1000));
        let is_done = outcome == Outcome::Ack;
        let ends_lease = !matches!(outcome, Outcome::Extend(_));
        let settlement = Settlement { key: job.key.clone(), token: job.token.clone(), outcome, attempt };
        let ask = |reply: AnswerSender<_>| StoreRequest::settle(settlement, |settled| reply.with(settled));
        let settled = self.port.api.store_client.ask(0, ask).await??;
        if ends_lease && settled == Settled::Done {
            self.port.api.pull.settled(&job.key.topic);
            if let Some(took_us) = took_us {
                let outcome = if is_done { AttemptOutcome::Accepted } else { AttemptOutcome::Failed };
                self.port.api.counters.topic(job.key.topic.as_str()).reported(outcome, took_us);
            }
        }
        Ok(settled)
    }

    /// Releases or buries a job.
    async fn give_up(
        &mut self,
        number: u64,
        outcome: Outcome,
        note: BeanstalkNackReason,
        done: BeanstalkResponse<'static>,
    ) -> Result<BeanstalkResponse<'static>, Problem> {
        let Some(job) = self.held.get(number).cloned() else { return Ok(BeanstalkResponse::NotFound) };
        let settled = self.settle(&job, outcome, note.to_string()).await?;
        self.held.remove(number);
        Ok(if settled == Settled::Done { done } else { BeanstalkResponse::NotFound })
    }

    async fn touch(&mut self, number: u64) -> Result<BeanstalkResponse<'static>, Problem> {
        let Some(job) = self.held.get(number).cloned() else { return Ok(BeanstalkResponse::NotFound) };
        let hold = job.ttr.min(LEASES.1);
        let ends = Instant::now() + hold;
        match self.settle(&job, Outcome::Extend(hold), String::new()).await? {
            Settled::Done => {
                self.held.insert(number, HeldJob { ends, ..job });
                Ok(BeanstalkResponse::Touched)
            }
            Settled::Stale => {
                self.held.remove(number);
                Ok(BeanstalkResponse::NotFound)
            }
        }
    }

    async fn delete(&mut self, number: u64) -> Result<BeanstalkResponse<'static>, Problem> {
        if let Some(job) = self.held.get(number).cloned() {
            let settled = self.settle(&job, Outcome::Ack, String::new()).await?;
            self.held.remove(number);
            if settled == Settled::Done {
                return Ok(self.deleted(&job.key.topic));
            }
        }
        let Some(view) = self.find(number).await?.filter(|view| view.state != State::Leased) else {
            return Ok(BeanstalkResponse::NotFound);
        };
        let topic = view.key.topic.clone();
        self.port.check_produces(&topic)?;
        let ask = |reply: AnswerSender<_>| StoreRequest::delete(view.key, |_, deleted| reply.with(deleted));
        match self.port.api.store_client.ask(0, ask).await?? {
            Deleted::Done | Deleted::Spooled => Ok(self.deleted(&topic)),
            Deleted::NotFound => Ok(BeanstalkResponse::NotFound),
        }
    }

    fn deleted(&self, topic: &TopicName) -> BeanstalkResponse<'static> {
        if let Some(tube) = tube_named(self, topic) {
            self.port.with_tube(&tube, |known| known.cmd_delete += 1);
        }
        BeanstalkResponse::Deleted
    }

    /// Returns the job with this number. If two topics have a job with this number, no job is returned.
    pub(super) async fn find(&self, number: u64) -> Result<Option<StoredJob>, Problem> {
        let held = self.held.get(number).map(|job| vec![job.key.clone()]);
        let mut found = None;
        for key in held.unwrap_or_else(|| self.port.keys(number)) {
            if !self.port.permits(RequiredAccess::Jobs(key.topic.as_str())) {
                continue;
            }
            let ask = |reply: AnswerSender<_>| StoreRequest::get(key, move |_, view| reply.with(view));
            if let Some(view) = self.port.api.store_client.ask(0, ask).await??
                && found.replace(view).is_some()
            {
                return Ok(None);
            }
        }
        Ok(found)
    }
}

fn list<'a>(tubes: impl Iterator<Item = &'a TubeName>) -> BeanstalkResponse<'static> {
    BeanstalkResponse::Ok(YamlDocument::List(tubes.map(TubeName::to_string).collect()))
}

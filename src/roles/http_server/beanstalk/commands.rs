//! Carries out the commands of a connection.

use std::time::{Duration, Instant};

use super::super::problem::Problem;
use super::super::store_client::Reply;
use super::held::HeldJob;
use super::kicks::shown;
use super::reserving::tube_named;
use super::session::Session;
use super::stored_job::Note;
use host::now_ms;
use model::job::{Attempt, Due, State, TopicName};
use model::job_priority::JobPriority;
use model::metrics::AttemptOutcome;
use model::scope::RequiredAccess;
use model::topic::LEASES;
use protocol::beanstalk::{Command, Document, Response, TubeName};
use role::pull::MAX_TOPICS;
use role::submit::Request;
use store::{Deleted, Outcome, Settled, Settlement, View};

/// Notes a problem, and returns the response. The protocol has no words for a problem of the server.
pub(super) fn failed(problem: &Problem) -> Response<'static> {
    log::debug!("beanstalk: a command failed: {}", problem.detail);
    Response::InternalError
}

impl Session {
    /// Carries out a command that is neither a put nor a reserve with a wait.
    pub(super) async fn carry_out(&mut self, command: Command) -> Response<'static> {
        self.count(&command);
        let done = match command {
            Command::Use(tube) => Ok(self.use_tube(tube)),
            Command::Watch(tube) => Ok(self.watch(tube)),
            Command::Ignore(tube) => Ok(self.ignore(&tube)),
            Command::ReserveJob(number) => self.reserve_job(number).await,
            Command::Delete(number) => self.delete(number).await,
            Command::Release { id, priority, delay_s } => {
                let due = Due::In(Duration::from_secs(delay_s.into()));
                let outcome = Outcome::RetryAs(due, JobPriority::from_number(priority));
                let note = Note::Released { priority, delay_s };
                self.give_up(id, outcome, note, Response::Released).await
            }
            Command::Bury { id, priority } => {
                let outcome = Outcome::DeadLetterAs(JobPriority::from_number(priority));
                self.give_up(id, outcome, Note::Buried { priority }, Response::Buried).await
            }
            Command::Touch(number) => self.touch(number).await,
            Command::Peek(number) => self.find(number).await.map(shown(number)),
            Command::PeekReady => self.peek(State::Ready).await,
            Command::PeekDelayed => self.peek(State::Delayed).await,
            Command::PeekBuried => self.peek(State::Dead).await,
            Command::Kick(count) => self.kick(count).await,
            Command::KickJob(number) => self.kick_job(number).await,
            Command::StatsJob(number) => self.stats_job(number).await,
            Command::StatsTube(tube) => self.stats_tube(tube).await,
            Command::Stats => self.stats().await,
            Command::ListTubes => Ok(list(self.port.tubes().iter())),
            Command::ListTubeUsed => Ok(Response::Using(self.used.clone())),
            Command::ListTubesWatched => Ok(list(self.watched.iter())),
            Command::PauseTube { tube, delay_s } => Ok(match self.port.exists(&tube) {
                true => {
                    self.port.pause(&tube, Duration::from_secs(delay_s.into()));
                    Response::Paused
                }
                false => Response::NotFound,
            }),
            Command::Put(_) | Command::Reserve | Command::ReserveWithTimeout(_) | Command::Quit => {
                Ok(Response::InternalError)
            }
        };
        done.unwrap_or_else(|problem| failed(&problem))
    }

    fn count(&self, command: &Command) {
        self.port.with_state(|state| {
            let counts = &mut state.counts;
            let count = match command {
                Command::Use(_) => &mut counts.cmd_use,
                Command::Watch(_) => &mut counts.cmd_watch,
                Command::Ignore(_) => &mut counts.cmd_ignore,
                Command::ReserveJob(_) => &mut counts.cmd_reserve,
                Command::Delete(_) => &mut counts.cmd_delete,
                Command::Release { .. } => &mut counts.cmd_release,
                Command::Bury { .. } => &mut counts.cmd_bury,
                Command::Touch(_) => &mut counts.cmd_touch,
                Command::Peek(_) => &mut counts.cmd_peek,
                Command::PeekReady => &mut counts.cmd_peek_ready,
                Command::PeekDelayed => &mut counts.cmd_peek_delayed,
                Command::PeekBuried => &mut counts.cmd_peek_buried,
                Command::Kick(_) | Command::KickJob(_) => &mut counts.cmd_kick,
                Command::StatsJob(_) => &mut counts.cmd_stats_job,
                Command::StatsTube(_) => &mut counts.cmd_stats_tube,
                Command::Stats => &mut counts.cmd_stats,
                Command::ListTubes => &mut counts.cmd_list_tubes,
                Command::ListTubeUsed => &mut counts.cmd_list_tube_used,
                Command::ListTubesWatched => &mut counts.cmd_list_tubes_watched,
                Command::PauseTube { .. } => &mut counts.cmd_pause_tube,
                // They are counted where they are carried out.
                Command::Put(_) | Command::Reserve | Command::ReserveWithTimeout(_) | Command::Quit => return,
            };
            *count += 1;
        });
    }

    fn use_tube(&mut self, tube: TubeName) -> Response<'static> {
        self.port.with_tube(&tube, |known| known.using += 1);
        let before = std::mem::replace(&mut self.used, tube.clone());
        self.port.with_tube(&before, |known| known.using -= 1);
        Response::Using(tube)
    }

    fn watch(&mut self, tube: TubeName) -> Response<'static> {
        if !self.watched.contains(&tube) {
            if self.watched.len() >= MAX_TOPICS {
                return Response::OutOfMemory;
            }
            self.port.with_tube(&tube, |known| known.watching += 1);
            self.watched.push(tube);
        }
        Response::Watching(self.watched.len() as u64)
    }

    fn ignore(&mut self, tube: &TubeName) -> Response<'static> {
        if let Some(place) = self.watched.iter().position(|watched| watched == tube) {
            if self.watched.len() == 1 {
                return Response::NotIgnored;
            }
            self.watched.remove(place);
            self.port.with_tube(tube, |known| known.watching -= 1);
        }
        Response::Watching(self.watched.len() as u64)
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
        let ask = |reply: Reply<_>| Request::settle(settlement, |settled| reply.with(settled));
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
        note: Note,
        done: Response<'static>,
    ) -> Result<Response<'static>, Problem> {
        let Some(job) = self.held.get(number).cloned() else { return Ok(Response::NotFound) };
        let settled = self.settle(&job, outcome, note.to_string()).await?;
        self.held.remove(number);
        Ok(if settled == Settled::Done { done } else { Response::NotFound })
    }

    async fn touch(&mut self, number: u64) -> Result<Response<'static>, Problem> {
        let Some(job) = self.held.get(number).cloned() else { return Ok(Response::NotFound) };
        let hold = job.ttr.min(LEASES.1);
        let ends = Instant::now() + hold;
        match self.settle(&job, Outcome::Extend(hold), String::new()).await? {
            Settled::Done => {
                self.held.insert(number, HeldJob { ends, ..job });
                Ok(Response::Touched)
            }
            Settled::Stale => {
                self.held.remove(number);
                Ok(Response::NotFound)
            }
        }
    }

    async fn delete(&mut self, number: u64) -> Result<Response<'static>, Problem> {
        if let Some(job) = self.held.get(number).cloned() {
            let settled = self.settle(&job, Outcome::Ack, String::new()).await?;
            self.held.remove(number);
            if settled == Settled::Done {
                return Ok(self.deleted(&job.key.topic));
            }
        }
        let Some(view) = self.find(number).await?.filter(|view| view.state != State::Leased) else {
            return Ok(Response::NotFound);
        };
        let topic = view.key.topic.clone();
        let ask = |reply: Reply<_>| Request::delete(view.key, |_, deleted| reply.with(deleted));
        match self.port.api.store_client.ask(0, ask).await?? {
            Deleted::Done | Deleted::Spooled => Ok(self.deleted(&topic)),
            Deleted::NotFound => Ok(Response::NotFound),
        }
    }

    fn deleted(&self, topic: &TopicName) -> Response<'static> {
        if let Some(tube) = tube_named(self, topic) {
            self.port.with_tube(&tube, |known| known.cmd_delete += 1);
        }
        Response::Deleted
    }

    /// Returns the job with a number. If two topics have a job with this number, none is returned.
    pub(super) async fn find(&self, number: u64) -> Result<Option<View>, Problem> {
        let held = self.held.get(number).map(|job| vec![job.key.clone()]);
        let mut found = None;
        for key in held.unwrap_or_else(|| self.port.keys(number)) {
            if !self.port.permits(RequiredAccess::Jobs(key.topic.as_str())) {
                continue;
            }
            let ask = |reply: Reply<_>| Request::get(key, move |_, view| reply.with(view));
            if let Some(view) = self.port.api.store_client.ask(0, ask).await??
                && found.replace(view).is_some()
            {
                return Ok(None);
            }
        }
        Ok(found)
    }
}

fn list<'a>(tubes: impl Iterator<Item = &'a TubeName>) -> Response<'static> {
    Response::Ok(Document::List(tubes.map(TubeName::to_string).collect()))
}

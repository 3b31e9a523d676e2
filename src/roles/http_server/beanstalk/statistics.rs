//! The statistics of jobs, tubes and the port. The counts of jobs come from the store. The counts of commands and
//! connections cover only this process.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::gethostname;

use super::super::problem::Problem;
use super::super::store_client::AnswerSender;
use super::reserving::tube_named;
use super::session::BeanstalkSession;
use super::stored_job::BeanstalkJobStats;
use super::tube_topic::topic_of;
use host::now_ms;
use model::job::State;
use protocol::beanstalk::{
    BeanstalkResponse, JobState, JobStats, ProcessorTime, QuotedStat, ServerStats, TubeName, TubeStats,
};
use role::submit::StoreRequest;
use store::Counts;

fn seconds(ms: i64) -> u64 {
    ms.max(0) as u64 / 1000
}

impl BeanstalkSession {
    pub(super) async fn stats_job(&self, number: u64) -> Result<BeanstalkResponse<'static>, Problem> {
        let Some(view) = self.find(number).await? else { return Ok(BeanstalkResponse::NotFound) };
        let Some(tube) = tube_named(self, &view.key.topic) else { return Ok(BeanstalkResponse::NotFound) };
        let by_topic = self.port().topic(&view.key.topic).map_or(Duration::ZERO, |topic| topic.ttr);
        let facts = BeanstalkJobStats::new(&view, by_topic);
        let now_ms = now_ms();
        let (state, left_ms) = match view.state {
            State::Ready => (JobState::Ready, 0),
            State::Delayed => (JobState::Delayed, view.due_ms - now_ms),
            State::Leased => (JobState::Reserved, view.until_ms.unwrap_or(now_ms) - now_ms),
            State::Dead => (JobState::Buried, 0),
        };
        let stats = JobStats {
            id: number,
            tube,
            state,
            priority: facts.priority,
            age_s: seconds(now_ms - view.stamp_us / 1000),
            delay_s: facts.delay_s,
            ttr_s: facts.ttr_s,
            time_left_s: seconds(left_ms),
            file: 0,
            reserves: view.attempts.into(),
            timeouts: facts.timeouts,
            releases: facts.releases,
            buries: facts.buries,
            kicks: facts.kicks,
        };
        Ok(BeanstalkResponse::Ok(stats.to_document()))
    }

    async fn counts(&self) -> Result<Vec<Counts>, Problem> {
        let ask = |reply: AnswerSender<_>| StoreRequest::count(|counts| reply.with(counts));
        Ok(self.port().api.store_client.ask(0, ask).await??)
    }

    pub(super) async fn stats_tube(&self, tube: TubeName) -> Result<BeanstalkResponse<'static>, Problem> {
        if !self.port().exists(&tube) {
            return Ok(BeanstalkResponse::NotFound);
        }
        let topic = topic_of(&tube);
        let is_seen = self.port().topics().iter().any(|known| known.name == topic);
        let counts = if is_seen { self.counts().await? } else { Vec::new() };
        let counts =
            counts.into_iter().find(|counts| counts.topic == topic).unwrap_or_else(|| Counts::none(topic));
        let now = Instant::now();
        let stats = |known: Option<&super::port::TubeState>| {
            let known_pause = known.and_then(|known| known.pause).filter(|(_, until)| *until > now);
            TubeStats {
                name: tube.clone(),
                current_jobs_urgent: 0,
                current_jobs_ready: counts.ready,
                current_jobs_reserved: counts.leased,
                current_jobs_delayed: counts.delayed,
                current_jobs_buried: counts.dead,
                total_jobs: known.map_or(0, |known| known.total_jobs),
                current_using: known.map_or(0, |known| known.using),
                current_watching: known.map_or(0, |known| known.watching),
                current_waiting: known.map_or(0, |known| known.waiting),
                cmd_delete: known.map_or(0, |known| known.cmd_delete),
                cmd_pause_tube: known.map_or(0, |known| known.cmd_pause_tube),
                pause_s: known_pause.map_or(0, |(span, _)| span.as_secs()),
                pause_time_left_s: known_pause.map_or(0, |(_, until)| (until - now).as_secs()),
            }
        };
        let stats = self.port().tube(&tube, |known| stats(Some(known))).unwrap_or_else(|| stats(None));
        Ok(BeanstalkResponse::Ok(stats.to_document()))
    }

    pub(super) async fn stats(&self) -> Result<BeanstalkResponse<'static>, Problem> {
        let seen = self.port().topics();
        let mut counts = self.counts().await?;
        counts.retain(|counts| seen.iter().any(|topic| topic.name == counts.topic));
        let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum();
        let api = &self.port().api;
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let time = |micros: i64| ProcessorTime(Duration::from_micros(micros.max(0) as u64));
        let host = gethostname().map(|name| name.to_string_lossy().into_owned());
        let own = self.port().with_state(|state| state.counts.clone());
        let stats = ServerStats {
            current_jobs_urgent: 0,
            current_jobs_ready: sum(|counts| counts.ready),
            current_jobs_reserved: sum(|counts| counts.leased),
            current_jobs_delayed: sum(|counts| counts.delayed),
            current_jobs_buried: sum(|counts| counts.dead),
            max_job_size: api.settings.beanstalk.max_job_size.into(),
            current_tubes: self.port().tubes().len() as u64,
            pid: std::process::id().into(),
            version: QuotedStat(format!("dq {}", env!("CARGO_PKG_VERSION"))),
            rusage_utime: time(usage.as_ref().map_or(0, |usage| usage.user_time().num_microseconds())),
            rusage_stime: time(usage.as_ref().map_or(0, |usage| usage.system_time().num_microseconds())),
            uptime_s: self.port().started.elapsed().as_secs(),
            draining: *api.closing.borrow(),
            id: api.settings.instance.clone(),
            hostname: host.unwrap_or_else(|_| "unknown".to_owned()),
            os: std::env::consts::OS.to_owned(),
            platform: std::env::consts::ARCH.to_owned(),
            ..own
        };
        Ok(BeanstalkResponse::Ok(stats.to_document()))
    }
}

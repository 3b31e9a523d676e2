//! The state of a connection: the used tube, the watched tubes, and the jobs that its client has reserved; and how a
//! connection begins and ends.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::super::pool::PoolHolder;
use super::held::{HeldJob, HeldJobs};
use super::passed_state::BeanstalkHandoffState;
use super::port::{BeanstalkPort, default_tube};
use protocol::beanstalk::{BeanstalkCommandError, TubeName};
use store::Outcome;

/// If the store does not answer, the process tries for this time to give back the jobs of a connection that has ended.
/// After that, each job comes back at the end of its lease.
const GIVE_BACK: Duration = Duration::from_secs(60);

/// The state of a connection.
pub(super) struct BeanstalkSession {
    pub(super) port: BeanstalkPort,
    holder: PoolHolder,
    pub(super) used: TubeName,
    /// The watched tubes, in the order in which the client began to watch them.
    pub(super) watched: Vec<TubeName>,
    pub(super) held: HeldJobs,
    is_producer: bool,
    is_worker: bool,
    /// How many reserve commands the client has sent on this connection.
    reserves: usize,
}

impl BeanstalkSession {
    pub(super) fn new(port: BeanstalkPort, holder: PoolHolder) -> BeanstalkSession {
        let default = default_tube();
        BeanstalkSession {
            port,
            holder,
            used: default.clone(),
            watched: vec![default],
            held: HeldJobs::default(),
            is_producer: false,
            is_worker: false,
            reserves: 0,
        }
        .counted()
    }

    /// Continues with the state of a connection that another process has passed on.
    pub(super) fn resume(
        port: BeanstalkPort,
        holder: PoolHolder,
        state: BeanstalkHandoffState,
    ) -> BeanstalkSession {
        let mut held = HeldJobs::default();
        for (number, job) in state.held {
            port.keep_number(number, &job.key);
            held.insert(number, job);
        }
        BeanstalkSession {
            port,
            holder,
            used: state.used,
            watched: state.watched,
            held,
            is_producer: state.is_producer,
            is_worker: state.is_worker,
            reserves: state.reserves,
        }
        .counted()
    }

    fn counted(self) -> BeanstalkSession {
        self.port.with_tube(&self.used, |tube| tube.using += 1);
        self.watched.iter().for_each(|tube| self.port.with_tube(tube, |known| known.watching += 1));
        self.port.with_state(|state| {
            state.counts.current_connections += 1;
            state.counts.total_connections += 1;
            state.counts.current_producers += u64::from(self.is_producer);
            state.counts.current_workers += u64::from(self.is_worker);
        });
        self
    }

    /// Removes the connection from the counts. The connection has ended, or belongs to the next process now.
    pub(super) fn forget(&self) {
        self.port.with_tube(&self.used, |tube| tube.using -= 1);
        self.watched.iter().for_each(|tube| self.port.with_tube(tube, |known| known.watching -= 1));
        self.port.with_state(|state| {
            state.counts.current_connections -= 1;
            state.counts.current_producers -= u64::from(self.is_producer);
            state.counts.current_workers -= u64::from(self.is_worker);
        });
    }

    /// Returns the state to pass on.
    pub(super) fn state(&self, peer: IpAddr, input: Vec<u8>) -> BeanstalkHandoffState {
        BeanstalkHandoffState {
            peer,
            used: self.used.clone(),
            watched: self.watched.clone(),
            held: self.held.all(),
            is_producer: self.is_producer,
            is_worker: self.is_worker,
            is_half_closed: false,
            reserves: self.reserves,
            waiting: None,
            input,
        }
    }

    /// Gives back the jobs that the client has reserved.
    pub(super) async fn end(mut self) {
        self.forget();
        let until = Instant::now() + GIVE_BACK;
        let mut pause = Duration::from_millis(50);
        let mut held = self.held.take_all();
        loop {
            let mut left = Vec::new();
            for job in held {
                if self.settle(&job, Outcome::HandBack, String::new()).await.is_err() {
                    left.push(job);
                }
            }
            let now = Instant::now();
            left.retain(|job| job.ends > now);
            if left.is_empty() || now >= until {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(Duration::from_secs(2));
            held = left;
        }
    }

    pub(super) fn port(&self) -> &BeanstalkPort {
        &self.port
    }

    pub(super) fn holder(&self) -> &PoolHolder {
        &self.holder
    }

    pub(super) fn used(&self) -> &TubeName {
        &self.used
    }

    pub(super) fn watched(&self) -> &[TubeName] {
        &self.watched
    }

    pub(super) fn held(&self) -> &HeldJobs {
        &self.held
    }

    pub(super) fn turn(&self) -> usize {
        self.reserves
    }

    pub(super) fn has_jobs(&mut self) -> bool {
        self.held.forget_ended(Instant::now());
        self.held.len() > 0
    }

    pub(super) fn hold(&mut self, number: u64, job: HeldJob) {
        self.held.insert(number, job);
    }

    pub(super) fn note_puts(&mut self, count: u64) {
        let is_new = !std::mem::replace(&mut self.is_producer, true);
        self.port.with_state(|state| {
            state.counts.cmd_put += count;
            state.counts.current_producers += u64::from(is_new);
        });
    }

    /// Counts a refused put whose body is too big or does not end with CRLF. beanstalkd counts such puts, too.
    pub(super) fn note_error(&mut self, error: BeanstalkCommandError) {
        if matches!(error, BeanstalkCommandError::JobTooBig | BeanstalkCommandError::ExpectedCrlf) {
            self.note_puts(1);
        }
    }

    /// Counts a reserve. `is_timed`: the reserve has a timeout.
    pub(super) fn note_reserve(&mut self, is_timed: bool) {
        self.reserves += 1;
        self.held.forget_ended(Instant::now());
        let is_new = !std::mem::replace(&mut self.is_worker, true);
        self.port.with_state(|state| {
            let counts = &mut state.counts;
            *(if is_timed { &mut counts.cmd_reserve_with_timeout } else { &mut counts.cmd_reserve }) += 1;
            counts.current_workers += u64::from(is_new);
        });
    }
}

//! dq-consume: leases ready jobs, calls their callbacks, and settles the leases.
//!
//! The `dispatcher` decides, and is pure. Each lane of the store has a thread that talks to it (`lane`), and one thread
//! makes all calls (`workers`). The main loop in this file passes the reports of these threads to the dispatcher, and
//! passes the orders of the dispatcher to the threads. While calls run, their outcomes gather and are settled together.
//! A lease never takes more jobs than there are free workers, so that no job waits here while another consumer is idle.
//!
//! This crate never stores or promotes a job. Begin with [`run`], then `dispatcher`.

mod dispatcher;
mod ending;
mod exchange;
mod failure_log;
mod held_back;
mod hold_log;
mod host_limits;
mod lane;
mod lane_state;
mod limits;
mod passed_topics;
#[cfg(test)]
mod simulation;
mod workers;

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::dispatcher::ConsumerState;
use self::ending::ack_url;
use self::lane::{Inbox, LaneHandle, LaneOrder, LaneReport};
use self::workers::Workers;
use host::{Owner, wait_readable};
use model::settings::{NodeAddress, NodeSettings, StoreSettings};
use model::ticket::TicketSecret;
use role::{Context, DrainOrder, RegistryView};
use store::{BellKind, OwnerTag};

/// The time that a lease lasts beyond the timeout of its callback. It is for slow name resolution, and for settling.
const LEASE_MARGIN: Duration = Duration::from_secs(15);

/// How long an exchange with the store may take.
const EXCHANGE: Duration = Duration::from_secs(15);

/// The leases of running callbacks are handed back this long before the end of a drain.
const LAST_CALL: Duration = Duration::from_millis(500);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let mut consumer = Consumer::start(&mut context)?;
    context.ready()?;
    consumer.run(&mut context)
}

/// Whether jobs can be leased while the home of a topic does not answer. If all shards are on one server, no jobs can
/// be leased then. So a process that decides about permits by itself would gain nothing, and the limit could be
/// exceeded.
fn may_go_alone(store: &StoreSettings) -> bool {
    match store {
        StoreSettings::Embedded { .. } => false,
        StoreSettings::Redis(redis) => {
            let is_cluster = |node: &NodeSettings| matches!(node.at, NodeAddress::Cluster { .. });
            redis.nodes.len() > 1 || redis.nodes.iter().any(is_cluster)
        }
    }
}

struct Consumer {
    topics: RegistryView,
    /// The owner of this process's leases. `None` after a drain that is complete.
    owner: Option<Owner>,
    dispatcher: ConsumerState,
    lanes: Vec<ConsumedLane>,
    inbox: Arc<Inbox>,
    /// Readable when the inbox has reports.
    reported: UnixStream,
    workers: Workers,
    /// The address of the HTTP API for receivers that answer later.
    public_url: Option<String>,
}

/// A lane, as the main loop knows it.
struct ConsumedLane {
    thread: LaneHandle,
    /// The secret that signs the tickets of the lane's leases.
    secret: Option<TicketSecret>,
}

impl Consumer {
    fn start(context: &mut Context) -> Result<Consumer> {
        let settings = Arc::clone(&context.settings);
        let workers = Workers::new(&settings, context.zone()?, context.counters.clone())?;
        let owner = Owner::claim(&settings.run_dir).context("cannot become an owner of leases")?;
        let topics = context.topics()?;
        let (inbox, reported) = Inbox::new()?;
        let all = context.lanes()?;
        let mut lanes = Vec::new();
        for number in 0..all.count() {
            let bell = context.bell(number, BellKind::Push, owner.tag())?;
            let tag = OwnerTag(owner.tag().to_owned());
            let thread = LaneHandle::start(number, context.lane(number)?, bell, tag, &inbox)?;
            lanes.push(ConsumedLane { thread, secret: None });
        }
        let concurrency = settings.consume.concurrency;
        let may_go_alone = may_go_alone(&settings.store);
        let home_of = Box::new(move |name: &str| all.home_of(name));
        let (served, host_limits) = (topics.now().clone(), &settings.consume.host_limits);
        let dispatcher = ConsumerState::new(
            lanes.len(),
            concurrency,
            served,
            host_limits,
            home_of,
            may_go_alone,
            Instant::now(),
        );
        let public_url = settings.http.public_url.clone();
        Ok(Consumer { topics, owner: Some(owner), dispatcher, lanes, inbox, reported, workers, public_url })
    }

    fn run(&mut self, context: &mut Context) -> Result<()> {
        loop {
            self.dispatcher.callbacks_ended(self.workers.finished(), Instant::now());
            self.handle_ready()?;
            if let Some(drain) = context.drain() {
                self.dispatcher.drain();
                let is_over = drain.until.is_some_and(|at| at <= Instant::now() + LAST_CALL);
                if is_over || self.dispatcher.is_drained() {
                    self.carry_out();
                    self.dispatcher.failures.log_rest();
                    return self.end(drain);
                }
            }
            self.dispatcher.act(Instant::now());
            self.dispatcher.failures.log_due(Instant::now());
            self.carry_out();
            self.wait(context)?;
        }
    }

    /// Takes the reports of the lanes.
    fn handle_ready(&mut self) -> Result<()> {
        for (number, report) in self.inbox.take() {
            match report {
                LaneReport::Event(event) => self.dispatcher.lane_event(number, event, Instant::now())?,
                LaneReport::Secret(secret) => self.lanes[number].secret = Some(secret),
                // Leases are handed back only at the end.
                LaneReport::HandedBack(_) => {}
                LaneReport::Ended(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Begins callbacks and gives orders to the lanes, as the dispatcher has decided.
    fn carry_out(&mut self) {
        let (workers, lanes, base) = (&mut self.workers, &self.lanes, self.public_url.as_deref());
        self.dispatcher.begin_callbacks(|callback| {
            let secret = lanes[callback.lane].secret.as_ref();
            let url = ack_url(base, secret, &callback.topic, &callback.leased);
            workers.call(&callback.topic, &callback.leased, callback.began, url);
        });
        self.workers.begin();
        for (lane, order) in self.dispatcher.take_orders() {
            self.lanes[lane].thread.order(order);
        }
    }

    /// Waits until a callback ends, a lane or the master reports something, the topics change, or something is due.
    fn wait(&mut self, context: &mut Context) -> Result<()> {
        context.workers_by(self.dispatcher.overdue_at());
        let drain_ends = context.drain().and_then(|DrainOrder { until, .. }| until?.checked_sub(LAST_CALL));
        let until = self.dispatcher.next(Instant::now()).into_iter();
        let until = until.chain(drain_ends).chain(self.dispatcher.failures.due()).min();
        let fds: Vec<BorrowedFd<'_>> =
            [self.workers.as_fd(), self.reported.as_fd()].into_iter().chain(self.topics.fd()).collect();
        let changed = context.wait(&fds, until)?.get(2).is_some_and(|readable| *readable);
        if changed && let Some(topics) = self.topics.reload() {
            self.dispatcher.serve(topics.clone(), Instant::now());
        }
        let mut buffer = [0; 64];
        while let Ok(n) = (&self.reported).read(&mut buffer)
            && n == buffer.len()
        {}
        Ok(())
    }

    /// Hands back the leases that are left, before the process ends.
    fn end(&mut self, drain: DrainOrder) -> Result<()> {
        if self.dispatcher.is_drained() {
            // Some lease calls may have no answer, and their leases may not be taken back yet. Then the file of the
            // owner stays. The timers find it, see that the owner is dead, and hand these leases back.
            let holds_none = !self.dispatcher.has_unanswered();
            if let Some(Err(e)) = self.owner.take().filter(|_| holds_none).map(Owner::retire) {
                log::warn!("cannot remove the owner's file: {e}");
            }
            return Ok(());
        }
        let left = self.dispatcher.in_flight();
        log::warn!("{left} callbacks still run at the end of the drain: their jobs are handed back");
        // Some outcomes may not be in the store yet: their callbacks have just ended, or their lane was paused. They
        // must not be lost.
        self.dispatcher.settle_rest();
        self.carry_out();
        // Each lane hands back by itself. If a lane is too slow, the timers hand its leases back as soon as this
        // process is gone.
        self.lanes.iter().for_each(|lane| lane.thread.order(LaneOrder::HandBack));
        let (mut waits_for, until) = (self.lanes.len(), drain.until.unwrap_or_else(Instant::now) + LAST_CALL);
        while waits_for > 0 && Instant::now() < until {
            wait_readable(&[self.reported.as_fd()], Some(until))?;
            let _ = (&self.reported).read(&mut [0; 64]);
            for (_, report) in self.inbox.take() {
                if let LaneReport::HandedBack(handed_back) = report {
                    if let Err(e) = handed_back {
                        log::warn!("cannot hand back, so the timers do this: {e}");
                    }
                    waits_for -= 1;
                }
            }
        }
        Ok(())
    }
}

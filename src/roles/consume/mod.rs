//! dq-consume: leases ready jobs, calls their callbacks, settles what came of it.
//!
//! The main loop alone talks to the store; workers make the calls. While calls run, outcomes gather, and are settled
//! together. A lease never holds more jobs than there are free workers, so that none waits here while another consumer
//! is idle.

mod workers;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::workers::{Finished, Workers};
use crate::callback::{Caller, Rules, Verdict};
use crate::fair::Fair;
use crate::job::{Due, JobKey, TopicName};
use crate::process::Owner;
use crate::role::{Context, Drain, Trouble};
use crate::store::{
    self, Batch, Bell, BellKind, Leased, Outcome, OwnerTag, Settled, Settlement, Store, StoreError, Token,
    Wanted,
};
use crate::topic::{Topic, Topics};

/// How much longer than a callback may take its lease holds: for names that are slow to resolve, and for settling.
const LEASE_MARGIN: Duration = Duration::from_secs(15);

/// The most jobs that one lease or settlement takes, so that others have their turn at the store.
const BATCH: usize = 256;

/// How long before the end of a drain the leases of callbacks that still run are handed back.
const LAST_CALL: Duration = Duration::from_millis(500);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let mut consumer = Consumer::start(&mut context)?;
    context.ready()?;
    consumer.run(&mut context)
}

/// A callback that runs.
struct Flight {
    leased: Leased,
    /// When it should have ended.
    by: Instant,
}

struct Consumer {
    store: Box<dyn Store>,
    topics: Topics,
    /// None: nothing is held under it any more.
    owner: Option<Owner>,
    tag: OwnerTag,
    /// None: it drains.
    bell: Option<Box<dyn Bell>>,
    workers: Workers,
    /// The jobs whose callbacks run, by their leases.
    in_flight: HashMap<Token, Flight>,
    fair: Fair,
    /// Outcomes that the store does not have yet.
    unsettled: Vec<Settlement>,
    /// Whether there may be ready jobs that a free worker could take.
    look: bool,
    trouble: Trouble,
}

impl Consumer {
    fn start(context: &mut Context) -> Result<Consumer> {
        let settings = Arc::clone(&context.settings);
        let concurrency = settings.consume.concurrency;
        let caller = Caller::new(concurrency, Rules::new(&settings.callback), context.zone()?);
        let owner = Owner::claim(&settings.run_dir).context("cannot become an owner of leases")?;
        let names = context.topics.iter().map(|t| t.name.clone()).collect();
        Ok(Consumer {
            store: context.store()?,
            topics: context.topics.clone(),
            tag: OwnerTag(owner.tag().to_owned()),
            bell: Some(
                store::hang_bell(&settings.store, &settings.run_dir, BellKind::Push, owner.tag())
                    .context("cannot hang the bell")?,
            ),
            owner: Some(owner),
            workers: Workers::new(caller, concurrency)?,
            in_flight: HashMap::new(),
            fair: Fair::new(names),
            unsettled: Vec::new(),
            look: true,
            trouble: Trouble::default(),
        })
    }

    fn run(&mut self, context: &mut Context) -> Result<()> {
        loop {
            self.collect();
            let again = match self.exchange() {
                Ok(()) => {
                    self.trouble.over();
                    None
                }
                Err(e @ StoreError::Gone(_)) => return Err(e.into()),
                Err(e) => Some(self.trouble.again_at(&format_args!("cannot lease or settle: {e}"))),
            };
            if let Some(drain) = context.drain() {
                // No new work: whoever else waits may hear the bell.
                self.bell = None;
                let done = self.in_flight.is_empty() && self.unsettled.is_empty();
                if done || drain.until.is_some_and(|at| at <= Instant::now() + LAST_CALL) {
                    return self.end();
                }
            }
            // Leases go on as long as they bring something.
            if again.is_none() && self.may_lease() {
                continue;
            }
            self.wait(context, again)?;
        }
    }

    /// Waits for a callback's end, a bell, or the master; when the store failed, for its next try.
    fn wait(&mut self, context: &mut Context, again: Option<Instant>) -> Result<()> {
        context.workers_by(self.in_flight.values().map(|flight| flight.by).min());
        let drain_ends = context.drain().and_then(|Drain { until, .. }| until?.checked_sub(LAST_CALL));
        let until = [again, drain_ends].into_iter().flatten().min();
        // A bell that cannot be answered, for want of workers, is left to ring until one is free.
        let could = self.workers.free() > 0 && again.is_none();
        let bell = self.bell.as_ref().filter(|_| could);
        if let Some(bell) = &self.bell {
            bell.listen(could);
        }
        let mut fds = vec![self.workers.as_fd()];
        fds.extend(bell.map(|bell| bell.as_fd()));
        let readable = context.wait(&fds, until)?;
        if let Some(bell) = bell
            && readable[1]
        {
            self.look |= bell.answer().context("cannot answer the bell")?;
        }
        Ok(())
    }

    /// Takes the outcomes of the callbacks that ended.
    fn collect(&mut self) {
        for Finished { token, verdict, attempt } in self.workers.finished() {
            let Some(Flight { leased, .. }) = self.in_flight.remove(&token) else { continue };
            self.fair.ended(&leased.key.topic);
            let Some(topic) = self.topics.get(leased.key.topic.as_str()) else { continue };
            let outcome = outcome(topic, &leased, &verdict);
            note(&leased, &verdict, &outcome);
            let attempt = (outcome != Outcome::Ack).then_some(attempt);
            self.unsettled.push(Settlement { key: leased.key, token, outcome, attempt });
        }
        // Ready jobs of a topic that had its share of workers may be leased now.
        self.look |= self.fair.more(self.workers.free());
    }

    /// Tells the store what came of callbacks, and takes new jobs.
    fn exchange(&mut self) -> Result<(), StoreError> {
        while !self.unsettled.is_empty() {
            let count = self.unsettled.len().min(BATCH);
            let settled = self.store.settle(&self.unsettled[..count]);
            let (mut again, mut failed) = (Vec::new(), None);
            for (settlement, settled) in self.unsettled.drain(..count).zip(settled) {
                match settled {
                    Ok(Settled::Done) => {}
                    Ok(Settled::Stale) => {
                        log::info!(
                            "{}: deleted, replaced or taken back while it was delivered",
                            settlement.key
                        );
                    }
                    Err(e) => {
                        again.push(settlement);
                        failed = Some(e);
                    }
                }
            }
            self.unsettled.append(&mut again);
            if let Some(e) = failed {
                return Err(e);
            }
        }
        if self.may_lease() { self.lease() } else { Ok(()) }
    }

    fn may_lease(&self) -> bool {
        self.look && self.bell.is_some() && self.workers.free() > 0
    }

    fn lease(&mut self) -> Result<(), StoreError> {
        let free = self.workers.free();
        let wanted: Vec<Wanted> = self
            .fair
            .plan(free)
            .into_iter()
            .filter_map(|quota| {
                let topic = self.topics.get(quota.topic.as_str())?;
                Some(Wanted {
                    topic: quota.topic,
                    max: quota.max,
                    hold: topic.timeout + LEASE_MARGIN,
                    max_attempts: topic.max_attempts,
                })
            })
            .collect();
        let Batch { jobs, left } = self.store.lease(&wanted, BATCH.min(free as usize), Some(&self.tag))?;
        // What was not asked for may be for others.
        let asked = |topic: &TopicName| wanted.iter().any(|w| w.topic == *topic);
        let served = |topic: &TopicName| self.topics.get(topic.as_str()).is_some();
        let unasked: Vec<TopicName> =
            left.iter().map(|(topic, _)| topic).filter(|t| !asked(t) && served(t)).cloned().collect();
        let any_left = left.iter().any(|(topic, _)| served(topic));
        if !unasked.is_empty() {
            self.store.pass_on(&unasked);
        }
        self.fair.left(left);
        if any_left && let Some(bell) = self.bell.as_ref().filter(|_| !self.fair.more(free)) {
            bell.rest();
        }
        if jobs.is_empty() {
            // What is left is not for the asking, whatever the counts say: the next bell or callback brings the next try.
            self.look = false;
            return Ok(());
        }
        for leased in jobs {
            let Some(topic) = self.topics.get(leased.key.topic.as_str()) else { continue };
            self.fair.began(&leased.key.topic);
            self.workers.call(topic, &leased);
            let by = Instant::now() + topic.timeout + LEASE_MARGIN;
            self.in_flight.insert(leased.token.clone(), Flight { leased, by });
        }
        self.look = self.fair.more(self.workers.free());
        Ok(())
    }

    /// Gives back what is still held, and ends.
    fn end(&mut self) -> Result<()> {
        if self.in_flight.is_empty() && self.unsettled.is_empty() {
            if let Some(Err(e)) = self.owner.take().map(Owner::retire) {
                log::warn!("cannot remove the owner's file: {e}");
            }
            return Ok(());
        }
        log::warn!(
            "{} callbacks still run at the end of the drain: their jobs are handed back",
            self.in_flight.len()
        );
        match self.store.hand_back(&self.tag) {
            Ok(_) => Ok(()),
            // The timers do it, as soon as this process is gone.
            Err(e) => Err(e).context("cannot hand back"),
        }
    }
}

/// What becomes of a job whose callback ended so.
fn outcome(topic: &Topic, leased: &Leased, verdict: &Verdict) -> Outcome {
    let limit = leased.max_attempts.unwrap_or(topic.max_attempts);
    match verdict {
        Verdict::Accepted => Outcome::Ack,
        Verdict::Refused => Outcome::Bury,
        Verdict::Failed(_) if leased.attempt >= limit => Outcome::Bury,
        Verdict::Failed(_) => {
            Outcome::Retry(Due::In(topic.retry.delay_after(leased.attempt, fastrand::f64())))
        }
    }
}

fn note(leased: &Leased, verdict: &Verdict, outcome: &Outcome) {
    let (JobKey { topic, id }, attempt) = (&leased.key, leased.attempt);
    let reason = match verdict {
        Verdict::Accepted => {
            return log::debug!(target: "notify", "{topic}:{id} accepted at attempt {attempt}");
        }
        Verdict::Refused => "410: the receiver is gone",
        Verdict::Failed(reason) => reason,
    };
    match outcome {
        Outcome::Bury => {
            log::error!(target: "notify", "{topic}:{id} is a dead letter after attempt {attempt}: {reason}")
        }
        _ => log::warn!(target: "notify", "{topic}:{id} failed at attempt {attempt}: {reason}"),
    }
}

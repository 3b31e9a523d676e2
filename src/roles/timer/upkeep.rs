//! What is done for all topics now and then, on a thread of its own: says which topics have jobs that nobody delivers, and lets go of
//! dead letters that were kept for as long as their topic says.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::role;
use crate::store::{Store, StoreError};
use crate::topic::Topics;

/// How often it is looked for dead letters that were kept long enough.
const EVERY: Duration = Duration::from_secs(60);

/// So many are removed in one step, so that others have their turn at the store; and for so long in one go.
const STEP: usize = 256;
const GO: Duration = Duration::from_secs(10);

/// Starts the thread. It does its work for each set of topics that it is told of, and ends when nobody tells it any more.
pub(super) fn start(mut store: Box<dyn Store>) -> Result<Sender<Topics>> {
    let (tell, told) = channel::<Topics>();
    role::vital_thread("upkeep", move || {
        let mut topics = Topics::default();
        let mut next: Option<Instant> = None;
        loop {
            let wait = next.map(|at| at.saturating_duration_since(Instant::now()));
            let heard = match wait {
                None => told.recv().map_err(RecvTimeoutError::from),
                Some(wait) => told.recv_timeout(wait),
            };
            match heard {
                Ok(new) => {
                    topics = new;
                    say_unregistered(store.as_mut(), &topics);
                    // One that was looked at just now is not looked at again because some other has changed.
                    next = keeps_any_for_a_while(&topics)
                        .then(|| next.filter(|at| *at > Instant::now()).unwrap_or_else(Instant::now));
                }
                Err(RecvTimeoutError::Timeout) => {
                    retire(store.as_mut(), &topics);
                    next = Some(Instant::now() + EVERY);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok(tell)
}

fn keeps_any_for_a_while(topics: &Topics) -> bool {
    topics.iter().any(|topic| !topic.keep_dead.is_zero())
}

/// Says which topics have jobs that nobody delivers.
fn say_unregistered(store: &mut dyn Store, topics: &Topics) {
    let counts = match store.counts() {
        Ok(counts) => counts,
        Err(e) => return log::warn!("cannot count the jobs: {e}"),
    };
    for counts in counts.iter().filter(|c| topics.get(c.topic.as_str()).is_none()) {
        if let pending @ 1.. = counts.delayed + counts.ready + counts.leased {
            log::warn!("{pending} jobs of topic {} wait until it is registered", counts.topic);
        }
    }
}

/// Lets go of what was kept long enough; what is left is for the next time.
fn retire(store: &mut dyn Store, topics: &Topics) {
    let until = Instant::now() + GO;
    for topic in topics.iter().filter(|topic| !topic.keep_dead.is_zero()) {
        let mut sum = 0;
        while Instant::now() < until {
            match store.retire(&topic.name, topic.keep_dead, STEP) {
                Ok(0) => break,
                Ok(some) => sum += some,
                // Of a node that is down others say so.
                Err(StoreError::NodeDown(e)) => {
                    log::debug!("cannot remove old dead letters: {e}");
                    break;
                }
                Err(e) => {
                    log::warn!("cannot remove old dead letters of topic {}: {e}", topic.name);
                    break;
                }
            }
        }
        if sum > 0 {
            let kept = humantime::format_duration(topic.keep_dead);
            log::info!("{sum} dead letters of topic {} are removed: kept for {kept}", topic.name);
        }
    }
}

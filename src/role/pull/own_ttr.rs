//! The leases of jobs that have a `ttr` of their own. When a job is leased, its `ttr` is not known yet, so it is leased for
//! `ttr` of its topic. Before a client learns of the job, the lease gets the length of the job's `ttr`.

use std::collections::BTreeSet;

use model::job::TopicName;
use store::{Leased, Outcome, Settled, Settlement, Store};

/// Gives leases the length of the jobs' `ttr`. If this process dies before, such a job comes back after `ttr` of its topic.
/// Jobs whose leases have ended meanwhile are left out. Jobs of the topics in `removed` have no leases any more.
pub(super) fn hold(store: &mut dyn Store, jobs: &mut Vec<Leased>, removed: &BTreeSet<TopicName>) {
    let own_ttr = |job: &Leased| job.headers.ttr().filter(|_| !removed.contains(&job.key.topic));
    let settlement = |job: &Leased, ttr| Settlement {
        key: job.key.clone(),
        token: job.token.clone(),
        outcome: Outcome::Extend(ttr),
        attempt: None,
    };
    let own = jobs.iter().filter_map(|job| Some(settlement(job, own_ttr(job)?)));
    let settlements: Vec<Settlement> = own.collect();
    if settlements.is_empty() {
        return;
    }
    let mut results = store.settle(&settlements).into_iter();
    jobs.retain_mut(|job| {
        let Some(ttr) = own_ttr(job) else { return true };
        let by_ttr = job.leased_ms.saturating_add(ttr.as_millis() as i64);
        match results.next() {
            Some(Ok(Settled::Done)) => job.deadline_ms = by_ttr,
            Some(Ok(Settled::Stale)) => return false,
            // The lease holds at least until the earlier of both moments.
            Some(Err(_)) | None => job.deadline_ms = job.deadline_ms.min(by_ttr),
        }
        true
    });
}

//! The settlements that the broker makes for leases that it has got from the store. Some of them hand back the jobs
//! that no client uses. The others note in each lease which client has the job. Pure, except for the log.

use super::{NamedClient, Reserve, ReservedLease};
use model::job::JobKey;
use store::{Outcome, Reserver, Settlement};

/// Returns the settlements that hand jobs back. A job that was removed when it was reserved cannot be handed back.
pub(super) fn hand_backs(jobs: Vec<ReservedLease>) -> Vec<Settlement> {
    let back = |ReservedLease { leased, ticket }: ReservedLease| {
        if ticket.is_none() {
            let JobKey { topic, id } = &leased.key;
            log::warn!(target: "notify", topic = topic.as_str(), id = id.as_str(); "was removed when it was reserved, and its client is gone");
            return None;
        }
        let (key, token) = (leased.key, leased.token);
        Some(Settlement { key, token, outcome: Outcome::HandBack, attempt: None })
    };
    jobs.into_iter().filter_map(back).collect()
}

/// Returns the settlements that write the name of a client into its leases. If the client has no name, there are none.
pub(super) fn names(reserve: &Reserve, jobs: &[ReservedLease]) -> Vec<Settlement> {
    let Some(NamedClient { name, address }) = &reserve.client else { return Vec::new() };
    let note = |ReservedLease { leased, .. }: &ReservedLease| {
        let (name, address, since_ms) = (name.clone(), address.clone(), leased.leased_ms);
        let outcome = Outcome::Name(Reserver { name, address, since_ms });
        Settlement { key: leased.key.clone(), token: leased.token.clone(), outcome, attempt: None }
    };
    jobs.iter().filter(|job| job.ticket.is_some()).map(note).collect()
}

//! The source of ids for jobs that are added without an id.

use sha2::{Digest as _, Sha256};

use super::access::Caller;
use super::input;
use super::problem::Problem;
use model::job::JobId;

/// Makes ids for jobs without an id, from an Idempotency-Key. So a repeated request makes the same ids, and the jobs of
/// the first request are kept.
pub(super) struct IdempotentIdGenerator {
    digest: String,
}

impl IdempotentIdGenerator {
    /// Makes the source from the caller and the key. The ids of two callers are never the same, so a key that another
    /// caller has used does no harm.
    pub(super) fn new(caller: Option<&Caller>, key: &str) -> IdempotentIdGenerator {
        let mut hash = Sha256::new();
        match caller {
            None => hash.update(b"\n"),
            Some(caller) => hash.update(format!("{caller}\n")),
        }
        let hash = hash.chain_update(key).finalize();
        IdempotentIdGenerator { digest: hash[..16].iter().map(|byte| format!("{byte:02x}")).collect() }
    }

    /// Returns the id of the job at `place` in a batch. None: the request has only one job. The `~` makes it unlikely
    /// that a client's own id is the same.
    pub(super) fn id(&self, place: Option<usize>) -> Result<JobId, Problem> {
        let place = place.map_or(String::new(), |place| format!(".{place}"));
        input::id(format!("~{}{place}", self.digest))
    }
}

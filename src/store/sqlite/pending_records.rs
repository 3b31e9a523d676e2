//! What a transaction of the embedded store knows about the records that it writes, and what a handle knows about the
//! bytes of all records.

use std::collections::BTreeMap;

use model::record::RecordKeeping;

/// What a transaction knows about the records of a topic.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingTopicRecords {
    pub keeping: RecordKeeping,
    /// The number of the last record, and its `order_ms`.
    pub last: i64,
    pub last_order_ms: i64,
    /// How many records there were before the transaction.
    pub there: i64,
    /// How many records the transaction has written, and how many bytes these records have.
    pub written: (i64, i64),
}

/// The records that a transaction writes.
#[derive(Debug, Default)]
pub(super) struct PendingRecords(pub BTreeMap<i64, PendingTopicRecords>);

/// What a handle knows about the bytes of the records of all topics, and about their limit.
///
/// The sum over the topics is not computed in each transaction. A handle computes the sum again when it has written an
/// eighth of the bytes that were free at the last sum. So with up to eight handles, the records exceed their limit only
/// by what one transaction of each handle writes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RecordBudget {
    /// How many bytes were free at the last sum.
    free: i64,
    /// How many bytes this handle has written since then.
    written: i64,
}

impl RecordBudget {
    /// Notes bytes that were written. Returns whether the sum must be computed again.
    pub(super) fn spend(&mut self, bytes: i64) -> bool {
        self.written += bytes;
        self.written.saturating_mul(8) > self.free
    }

    /// Notes a new sum: how many bytes are free.
    pub(super) fn renew(&mut self, free: i64) {
        *self = RecordBudget { free, written: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_taken_again_after_an_eighth_of_what_was_free() {
        let mut budget = RecordBudget::default();
        assert!(budget.spend(1), "nothing is known yet");
        budget.renew(800);
        assert_eq!([100, 1].map(|bytes| budget.spend(bytes)), [false, true]);
        budget.renew(-5);
        assert!(budget.spend(0), "beyond the limit, each transaction takes the sum");
    }
}

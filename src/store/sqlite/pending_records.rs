//! What a transaction of the embedded store knows of the records that it writes.

use std::collections::BTreeMap;

use model::record::RecordKeeping;

/// What a transaction knows of the records of a topic.
#[derive(Debug, Clone, Copy)]
pub(super) struct TopicRecords {
    pub keeping: RecordKeeping,
    /// The number of the last record, and its `order_ms`.
    pub last: i64,
    pub last_order_ms: i64,
    /// How many records the transaction has written, and how many bytes these have.
    pub written: (i64, i64),
}

/// The records that a transaction writes.
#[derive(Debug, Default)]
pub(super) struct PendingRecords(pub BTreeMap<i64, TopicRecords>);

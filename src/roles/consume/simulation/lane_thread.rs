//! What a simulated consumer knows of the thread of a lane.

use std::collections::VecDeque;
use std::time::Instant;

use super::super::lane::LaneOrder;
use ::store::Token;

/// The thread of a lane.
#[derive(Default)]
pub(super) struct SimulatedLaneThread {
    pub(super) orders: VecDeque<LaneOrder>,
    /// The time at which the thread will have carried out its present order. The next order waits until then.
    pub(super) free_at: Option<Instant>,
    pub(super) is_busy: bool,
    pub(super) listens: bool,
    pub(super) rests_until: Option<Instant>,
    pub(super) has_bell: bool,
    /// For a bell that rings for every process: whether it has rung and this process has not heard it.
    pub(super) is_rung: bool,
    /// Rings that were heard and not reported yet.
    pub(super) heard: u32,
    /// How many jobs an exchange under way may lease. None: no exchange is under way.
    pub(super) under_way: Option<usize>,
    /// The leases of calls whose answers never came.
    pub(super) lost: Vec<Token>,
}

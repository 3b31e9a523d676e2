//! Permits, circuits and pauses: the requests and answers about topics that have ready jobs which must wait.

use crate::{OwnerTag, Result};
use std::time::Duration;

use model::flow::LimitName;
use model::job::TopicName;
use model::topic::Rate;

/// Topics with ready jobs, and how many jobs each has.
pub type ReadyCounts = Vec<(TopicName, u64)>;

/// Topics that have ready jobs, but their circuit lets no job through now. Each topic comes with the time until its
/// circuit may let one job through.
pub type CircuitWaits = Vec<(TopicName, Duration)>;

/// A process reports how many permits it holds. The store remembers the number for this long after the last report.
/// Then the store forgets the number.
pub const PERMIT_HOLDS: Duration = Duration::from_secs(30);

/// A request of a process for permits of a topic or a host that has limits.
#[derive(Debug, Clone, PartialEq)]
pub struct PermitRequest {
    /// The topic or host of the permits.
    pub name: LimitName,
    /// How many callbacks of this topic or host the process has in flight, or may still begin with earlier permits.
    /// This number replaces the number that the process reported last, so a repeated request or a lost answer does no
    /// harm.
    pub held: u32,
    /// How many more callbacks it wants to begin.
    pub want: u32,
    /// How many callbacks may be in flight, for all processes together.
    pub max_in_flight: Option<u32>,
    /// How many callbacks may begin in a span, for all processes together.
    pub rate: Option<Rate>,
    /// How many earlier permits the process has not used, and gives back with this request.
    pub unused: u32,
}

/// The answer to a [`PermitRequest`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permit {
    /// How many callbacks may begin.
    pub granted: u32,
    /// The time until the rate allows more callbacks. None: the rate did not delay a callback.
    pub again: Option<Duration>,
}

/// A question about how far the limits of a topic or a host are used.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitQuery {
    /// The topic or host of the limits.
    pub name: LimitName,
    /// How many callbacks may begin in a span.
    pub rate: Option<Rate>,
}

/// The answer to a [`LimitQuery`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitUse {
    /// How many permits all processes hold together. 0 if there is no `max_in_flight`.
    pub held: u32,
    /// The time until the rate lets the next callback begin. None: it may begin now.
    pub again: Option<Duration>,
}

/// A request to open the circuit of a topic, so that its jobs wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitOpening {
    /// The topic.
    pub topic: TopicName,
    /// How long the jobs wait. Zero: the probe had no result, so the next job may be a probe now.
    pub pause: Duration,
    /// How often the circuit was opened in a row, including this time.
    pub opens: u32,
    /// Why it is opened.
    pub reason: String,
}

/// The state of a circuit that is not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CircuitState {
    /// The circuit lets one job through at a time.
    HalfOpen,
    /// The circuit lets no job through.
    Open,
}

/// A circuit that is not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitView {
    /// The topic.
    pub topic: TopicName,
    /// Whether it is open or half open.
    pub state: CircuitState,
    /// When its pause ends or ended, Unix milliseconds.
    pub until_ms: i64,
    /// How often it was opened in a row.
    pub opens: u32,
    /// When it was opened for the first time in this series of openings, Unix milliseconds.
    pub since_ms: i64,
    /// Why it was opened last.
    pub reason: String,
}

impl CircuitView {
    /// Joins the reports of several parts of the store. For each topic, the result has one view. If the circuit of a
    /// topic is open in one part and half open in another, the view of the open circuit is taken. If the states are
    /// equal, the view with the latest `until_ms` is taken.
    pub fn join(views: impl IntoIterator<Item = CircuitView>) -> Vec<CircuitView> {
        let mut all: Vec<CircuitView> = views.into_iter().collect();
        all.sort_by(|a, b| {
            let rank = |v: &CircuitView| (v.state, v.until_ms);
            a.topic.cmp(&b.topic).then(rank(b).cmp(&rank(a)))
        });
        all.dedup_by(|later, first| later.topic == first.topic);
        all
    }
}

/// Pauses of topics.
pub trait Pauses {
    /// Pauses or resumes a topic. The jobs of a paused topic are not leased, but existing leases continue. With several
    /// nodes, a node that is down gets the change when it is back. After an error, perhaps only some nodes have the
    /// change. The caller must then repeat the call.
    fn pause(&mut self, topic: &TopicName, paused: bool) -> Result<()>;

    /// Returns the paused topics, sorted by name.
    fn paused(&mut self) -> Result<Vec<TopicName>>;
}

/// Permits and circuits, which make ready jobs wait.
pub trait FlowControl {
    /// Grants permits to begin callbacks of topics and hosts with limits, at their homes. Returns one answer for each
    /// of `asks`, in their order. The store forgets how many callbacks a process holds in two cases: if the process
    /// does not report the number again within [`PERMIT_HOLDS`], or if
    /// [`TimerWork::hand_back`](crate::TimerWork::hand_back) is called for the process.
    fn permits(&mut self, owner: &OwnerTag, asks: &[PermitRequest]) -> Vec<Result<Permit>>;

    /// Returns how far the limits of topics and hosts are used, according to their homes. Changes nothing. Returns one
    /// answer for each of `queries`, in their order.
    fn limit_use(&mut self, queries: &[LimitQuery]) -> Vec<Result<LimitUse>>;

    /// Opens the circuit of a topic: its jobs wait, and after the pause each shard lets one job through as a probe.
    /// Returns whether the circuit was closed before. Nothing changes if the circuit is open and already has this
    /// number of openings in a row (`opens`), or more. A handle to one lane opens the circuit in this lane only.
    fn open_circuit(&mut self, opening: &CircuitOpening) -> Result<bool>;

    /// Closes the circuit of a topic, so that its jobs no longer wait. Returns whether it was not closed before.
    fn close_circuit(&mut self, topic: &TopicName) -> Result<bool>;

    /// Returns the circuits that are not closed, sorted by topic.
    fn circuits(&mut self) -> Result<Vec<CircuitView>>;
}

//! What the store is asked and tells of topics whose jobs are held back: permits, and circuits.

use std::time::Duration;

use crate::job::TopicName;
use crate::topic::Rate;

/// Topics with ready jobs, and how many.
pub type Left = Vec<(TopicName, u64)>;

/// Topics with ready jobs none of which is let through now, and after how long one may be.
pub type Waiting = Vec<(TopicName, Duration)>;

/// For how long a count of callbacks holds that its owner does not renew.
pub const PERMIT_HOLDS: Duration = Duration::from_secs(30);

/// What a process asks of a topic that has a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct PermitAsk {
    /// The topic.
    pub topic: TopicName,
    /// So many callbacks of it are in flight, or may begin by what was granted before. It takes the place of what was told
    /// last, so that a repeat, or an answer that was lost, does no harm.
    pub held: u32,
    /// So many more it would begin.
    pub want: u32,
    /// How many may be in flight, of all processes together.
    pub max_in_flight: Option<u32>,
    /// How many may begin in a span, of all processes together.
    pub rate: Option<Rate>,
    /// So many were granted before, and did not begin.
    pub unused: u32,
}

/// How many callbacks may begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permit {
    /// So many.
    pub granted: u32,
    /// When the rate allows more, where it is what held some back.
    pub again: Option<Duration>,
}

/// Why a topic's jobs are to wait, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The topic.
    pub topic: TopicName,
    /// For how long.
    pub pause: Duration,
    /// How often it was opened in a row, with this time.
    pub opens: u32,
    /// Why.
    pub reason: String,
}

/// Whether a circuit lets jobs through that is not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CircuitState {
    /// One at a time.
    HalfOpen,
    /// None.
    Open,
}

/// A circuit that is not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitView {
    /// The topic.
    pub topic: TopicName,
    /// Whether it lets one through.
    pub state: CircuitState,
    /// When its pause ends or ended, Unix milliseconds.
    pub until_ms: i64,
    /// How often it was opened in a row.
    pub opens: u32,
    /// When it was opened first, Unix milliseconds.
    pub since_ms: i64,
    /// Why it was opened last.
    pub reason: String,
}

impl CircuitView {
    /// Of what several parts of the store know of a topic: what holds back most.
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

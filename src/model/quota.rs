//! Quotas: how many jobs and bytes a topic may hold, and how fast clients may add jobs. Pure.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::flow::TokenBucket;
use crate::token::Token;
use crate::topic::{Rate, Topic};

/// If a topic is full, a client may try again after this time. Nobody knows when the topic will have room.
const FULL_WAIT: Duration = Duration::from_secs(10);

/// A limit that an add can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaLimit {
    /// The topic holds `max_pending` jobs that are delayed, ready or leased.
    Pending,
    /// The jobs of the topic have `max_bytes` bytes together.
    Bytes,
    /// The clients of the topic add faster than its `add_rate`.
    TopicRate,
    /// The clients with a token add faster than the `add_rate` of the token.
    TokenRate,
}

impl QuotaLimit {
    /// All limits, in the order of their numbers.
    pub const ALL: [QuotaLimit; 4] =
        [QuotaLimit::Pending, QuotaLimit::Bytes, QuotaLimit::TopicRate, QuotaLimit::TokenRate];
}

impl fmt::Display for QuotaLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuotaLimit::Pending => "the topic has as many jobs as its max_pending allows",
            QuotaLimit::Bytes => "the jobs of the topic would have more bytes than its max_bytes allows",
            QuotaLimit::TopicRate => "jobs of the topic are added faster than its add_rate allows",
            QuotaLimit::TokenRate => "the token adds jobs faster than its add_rate allows",
        })
    }
}

/// An add was refused because of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{limit}; try again in {wait:?}")]
pub struct OverQuota {
    /// The limit.
    pub limit: QuotaLimit,
    /// When to try again.
    pub wait: Duration,
}

impl OverQuota {
    /// Returns the refusal for a topic that is full.
    pub fn full(limit: QuotaLimit) -> OverQuota {
        OverQuota { limit, wait: FULL_WAIT }
    }

    /// Returns the refusal for jobs that are added too fast. The next job may be added after `wait_us` microseconds.
    pub fn too_fast(limit: QuotaLimit, wait_us: f64) -> OverQuota {
        OverQuota { limit, wait: Duration::from_millis((wait_us / 1000.0).ceil().max(1.0) as u64) }
    }
}

/// How fast jobs may be added, counted under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddRate {
    /// [`QuotaLimit::TopicRate`] or [`QuotaLimit::TokenRate`].
    pub limit: QuotaLimit,
    /// The name under which the rate is counted. No topic can have this name, because the name has a colon.
    pub name: String,
    /// The rate.
    pub rate: Rate,
}

impl AddRate {
    /// Returns the bucket of tokens of one shard, if the rate is divided among `shards` shards. All buckets together
    /// hold as many tokens as the rate gives in its period. The size of each bucket is rounded up, so the sum can be
    /// greater.
    pub fn steps(&self, shards: u32) -> TokenBucket {
        let shards = shards.max(1);
        let step_us = self.rate.per.as_micros() as f64 / f64::from(self.rate.jobs.max(1)) * f64::from(shards);
        TokenBucket { step_us, burst: self.rate.jobs.div_ceil(shards).max(1) }
    }
}

/// Returns how long adds are counted before their number is compared with a rate.
pub fn measured_span(rate: Rate) -> Duration {
    rate.per.clamp(Duration::from_secs(10), Duration::from_secs(600))
}

/// Returns how many jobs would be added in one period of a rate, if `jobs` were added in `span`.
pub fn jobs_in_a_period(rate: Rate, jobs: u64, span: Duration) -> u64 {
    (jobs as f64 * rate.per.as_secs_f64() / span.as_secs_f64()).round() as u64
}

/// The limits for the adds of one client to one topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quota {
    /// The maximum number of the topic's jobs that are delayed, ready or leased.
    pub max_pending: Option<u32>,
    /// The maximum number of bytes of all jobs of the topic together, including dead letters.
    pub max_bytes: Option<u64>,
    /// The rates of the topic and of the client's token.
    pub rates: Vec<AddRate>,
}

impl Quota {
    /// Returns the limits that apply when a client with this token adds jobs to a topic. None: there are no limits.
    pub fn of(topic: &Topic, token: Option<&Token>) -> Option<Arc<Quota>> {
        let rate = |limit, name: String, rate| AddRate { limit, name, rate };
        let of_topic =
            topic.add_rate.map(|r| rate(QuotaLimit::TopicRate, format!("topic:{}", topic.name), r));
        let of_token = token.and_then(|token| {
            token.add_rate.map(|r| rate(QuotaLimit::TokenRate, format!("token:{}", token.name.stored()), r))
        });
        let quota = Quota {
            max_pending: topic.max_pending,
            max_bytes: topic.max_bytes.map(|size| size.0),
            rates: of_topic.into_iter().chain(of_token).collect(),
        };
        (quota != Quota::default()).then(|| Arc::new(quota))
    }

    /// Returns the share of each shard, if the jobs are spread over `shards` shards. The shares are rounded up. So
    /// their sum can exceed the limit by up to the number of shards minus one.
    #[must_use]
    pub fn share(&self, shards: u32) -> Quota {
        let shards = shards.max(1);
        Quota {
            max_pending: self.max_pending.map(|n| n.div_ceil(shards)),
            max_bytes: self.max_bytes.map(|n| n.div_ceil(shards.into())),
            rates: self.rates.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::TopicName;
    use crate::topic::Size;

    #[test]
    fn a_topic_without_limits_has_no_quota() {
        let mut topic = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        assert_eq!(Quota::of(&topic, None), None);
        topic.max_bytes = Some(Size(1000));
        topic.add_rate = Some(Rate::per_second(10));
        let quota = Quota::of(&topic, None).unwrap();
        assert_eq!((quota.max_pending, quota.max_bytes), (None, Some(1000)));
        assert_eq!(quota.rates[0].name, "topic:t");
        assert_eq!(quota.share(3).max_bytes, Some(334));
    }

    #[test]
    fn a_bucket_holds_the_jobs_of_one_span() {
        let rate = AddRate {
            limit: QuotaLimit::TopicRate,
            name: "topic:t".into(),
            rate: Rate { jobs: 30, per: Duration::from_secs(60) },
        };
        let steps = rate.steps(1);
        let taken = steps.take(0.0, 1e9, 0, 40);
        assert_eq!((taken.granted, steps.burst), (30, 30));
        assert_eq!(steps.take(taken.spent_us, 1e9 + 2e6, 0, 40).granted, 1);
        let half = rate.steps(2);
        assert_eq!((half.burst, half.step_us), (15, 4e6));
    }
}

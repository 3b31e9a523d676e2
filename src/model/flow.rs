//! Decides which ready jobs must wait, because of rate limits, or because of the circuits of topics with failing
//! receivers. Pure: the current time is an argument, and the decision is the result.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::job_parts::TopicName;
use crate::topic::{Rate, Topic};

/// The longest time by which a job is postponed because its host is at a limit.
pub const POSTPONED_MAX: Duration = Duration::from_secs(300);

/// The name under which the store counts permits: the name of a topic, or the name of a host. The two kinds of names
/// are never equal, because only the name of a host has a colon.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName(String);

impl LimitName {
    /// Returns the name for a host.
    pub fn from_host(host: &str) -> LimitName {
        LimitName(format!("host:{host}"))
    }

    /// Returns the name as stores keep it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&TopicName> for LimitName {
    fn from(topic: &TopicName) -> LimitName {
        LimitName(topic.as_str().to_owned())
    }
}

impl From<&LimitName> for LimitName {
    fn from(name: &LimitName) -> LimitName {
        name.clone()
    }
}

/// A map with [`LimitName`] keys can look up a topic by the text of its name.
impl Borrow<str> for LimitName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A rate limit as a bucket of tokens. The bucket holds as many tokens as the rate gives in a tenth of a second, but at
/// least one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenBucket {
    /// The time from one token to the next, in microseconds.
    pub step_us: f64,
    /// How many tokens the bucket has when it is full.
    pub burst: u32,
}

/// The result of taking tokens from a bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateGrant {
    /// How many tokens were taken.
    pub granted: u32,
    /// The time after which the caller asks again. None: the caller got all tokens that it asked for.
    pub again: Option<Duration>,
    /// A moment in Unix microseconds, the only stored value of a bucket. If the moment is not in the future, the bucket
    /// is full. For each token that is taken, the moment moves forward by `step_us`.
    pub spent_us: f64,
}

impl From<Rate> for TokenBucket {
    fn from(rate: Rate) -> TokenBucket {
        let step_us = rate.per.as_micros() as f64 / f64::from(rate.jobs.max(1));
        TokenBucket { step_us, burst: (100_000.0 / step_us).max(1.0) as u32 }
    }
}

impl TokenBucket {
    /// Gives `unused` tokens back, and takes `want` tokens, or all tokens if there are fewer.
    /// (src/store/redis/lua/permits.lua does the same.)
    pub fn take(self, spent_us: f64, now_us: f64, unused: u32, want: u32) -> RateGrant {
        let TokenBucket { step_us, burst } = self;
        let full = f64::from(burst) * step_us;
        // No wait is longer than the time in which a bucket fills. This limit is also needed after the rate was
        // changed, and after a clock that was ahead was set back.
        let spent_us = (spent_us - f64::from(unused) * step_us).max(now_us).min(now_us + full);
        let there = ((now_us + full - spent_us) / step_us + 0.001).floor() as u32;
        let granted = want.min(there);
        let spent_us = spent_us + f64::from(granted) * step_us;
        // The caller asks again when half of the bucket is full, or earlier if fewer tokens are missing. So the caller
        // does not ask for each single token, and it asks before a full bucket loses tokens.
        let next = (want - granted).min((burst / 2).max(1));
        let wait_us = (spent_us + f64::from(next) * step_us - now_us - full).max(1000.0);
        let again = (granted < want).then(|| Duration::from_micros(wait_us.ceil() as u64));
        RateGrant { granted, again, spent_us }
    }

    /// Returns the time until there is a token. None: there is a token now.
    pub fn wait(self, spent_us: f64, now_us: f64) -> Option<Duration> {
        self.take(spent_us, now_us, 0, 1).again
    }
}

/// Returns how long jobs wait after a circuit was opened `opens` times in a row. `first` is the pause after the first
/// opening.
pub fn pause(first: Duration, opens: u32) -> Duration {
    (first * 2_u32.saturating_pow(opens.saturating_sub(1).min(4))).min(first * 10)
}

/// What the end of a callback means for the circuit of its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CircuitChange {
    /// The circuit opens: the jobs of the topic wait.
    Open {
        /// How long the jobs wait.
        pause: Duration,
        /// How often the circuit was opened in a row, including this time. The first time is 1.
        opens: u32,
    },
    /// The circuit closes: the jobs of the topic wait no longer.
    Close,
}

/// What a process knows of failing receivers: their failures, and the circuits that are open.
#[derive(Debug, Default)]
pub struct CircuitTable(HashMap<TopicName, FailureRun>);

#[derive(Debug, Default)]
struct FailureRun {
    /// Failures in a row.
    failures: u32,
    /// When the circuit was opened, or when the probe that closed it began. A failure of a callback that began before
    /// this moment gives no new information. Some nodes may not know that the circuit is open, and still give jobs. So
    /// callbacks that are not the probe may begin after this moment.
    opened_at: Option<Instant>,
}

impl CircuitTable {
    /// Records the end of a callback, and returns what follows for the circuit. `failed`: the receiver itself failed.
    /// (What happens to the job does not matter here.) `probe`: if the callback was the probe, how often the circuit
    /// had been opened in a row before it. None: the callback was not the probe.
    pub fn record_end(
        &mut self,
        topic: &Topic,
        probe: Option<u32>,
        failed: bool,
        begun: Instant,
        now: Instant,
    ) -> Option<CircuitChange> {
        let opens = match (probe, failed) {
            (Some(opens), true) if topic.breaker_failures > 0 => opens.saturating_add(1),
            (Some(_), _) => {
                // Callbacks that began before the probe say nothing about the receiver as it is now.
                self.0.insert(topic.name.clone(), FailureRun { failures: 0, opened_at: Some(begun) });
                return Some(CircuitChange::Close);
            }
            (None, false) => {
                if let Some(seen) = self.0.get_mut(&topic.name) {
                    seen.failures = 0;
                }
                return None;
            }
            (None, true) if topic.breaker_failures == 0 => return None,
            (None, true) => {
                let seen = self.0.entry(topic.name.clone()).or_default();
                if seen.opened_at.is_some_and(|at| begun < at) {
                    return None;
                }
                seen.failures += 1;
                if seen.failures < topic.breaker_failures {
                    return None;
                }
                1
            }
        };
        let pause = pause(topic.breaker_pause, opens);
        self.0.insert(topic.name.clone(), FailureRun { failures: 0, opened_at: Some(now) });
        Some(CircuitChange::Open { pause, opens })
    }

    /// Records that the circuit of a topic is open, as the store reported. Any process may have opened the circuit.
    pub fn record_open(&mut self, topic: &TopicName, now: Instant) {
        let seen = self.0.entry(topic.clone()).or_default();
        if seen.opened_at.is_none() {
            *seen = FailureRun { failures: 0, opened_at: Some(now) };
        }
    }

    /// Forgets the topics that are no longer served.
    pub fn keep(&mut self, is_served: impl Fn(&TopicName) -> bool) {
        self.0.retain(|topic, _| is_served(topic));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(failures: u32) -> Topic {
        let mut topic = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        topic.breaker_failures = failures;
        topic.breaker_pause = Duration::from_secs(10);
        topic
    }

    #[test]
    fn a_rate_is_kept_whoever_asks_and_whenever() {
        let pace = TokenBucket::from(Rate::per_second(100));
        assert_eq!((pace.step_us, pace.burst), (10_000.0, 10));
        let first = pace.take(0.0, 1e15, 0, 64);
        assert_eq!((first.granted, first.again), (10, Some(Duration::from_millis(50))));
        let second = pace.take(first.spent_us, 1e15 + 50_000.0, 0, 3);
        assert_eq!((second.granted, second.again), (3, None));
        let back = pace.take(second.spent_us, 1e15 + 50_000.0, 2, 4);
        assert_eq!((back.granted, back.again), (4, None), "what is given back is there");
        assert_eq!(pace.wait(first.spent_us, 1e15), Some(Duration::from_millis(10)));
        assert_eq!(pace.wait(first.spent_us, 1e15 + 10_000.0), None);
        assert_eq!(TokenBucket::from(Rate { jobs: 1, per: Duration::from_secs(3600) }).burst, 1);
    }

    #[test]
    fn a_rate_that_was_lower_before_is_not_waited_for() {
        let slow = TokenBucket::from(Rate { jobs: 1, per: Duration::from_secs(3600) });
        let taken = slow.take(0.0, 1e15, 0, 5);
        assert_eq!((taken.granted, taken.again), (1, Some(Duration::from_secs(3600))));
        let fast = TokenBucket::from(Rate::per_second(1000));
        let again = fast.take(taken.spent_us, 1e15, 0, 5).again.unwrap();
        assert!(again <= Duration::from_millis(100), "{again:?}");
    }

    proptest! {
        /// Callers may ask in any order. In any span of time, all callers together get at most the tokens that the rate
        /// allows, plus the tokens of one bucket. A caller that asks again after the time in `again` gets a token.
        #[test]
        fn no_more_comes_than_the_rate_allows(jobs in 1_u32..5000, waits in prop::collection::vec((0_u64..300_000, 1_u32..200), 1..100)) {
            let pace = TokenBucket::from(Rate::per_second(jobs));
            let (start, mut now, mut spent, mut sum) = (1.7e15, 1.7e15, 0.0, 0);
            for (wait, want) in waits {
                now += wait as f64;
                let taken = pace.take(spent, now, 0, want);
                spent = taken.spent_us;
                sum += taken.granted;
                let most = f64::from(pace.burst) + (now - start) / pace.step_us;
                prop_assert!(f64::from(sum) <= most + 0.5, "{sum} of {most}");
                if let Some(again) = taken.again {
                    prop_assert!(pace.take(spent, now + again.as_micros() as f64, 0, 1).granted == 1);
                }
            }
        }
    }

    #[test]
    fn failures_in_a_row_open_and_a_probe_decides() {
        let (mut seen, now, topic) = (CircuitTable::default(), Instant::now(), topic(3));
        let at = |s| now + Duration::from_secs(s);
        let open = |s, opens| Some(CircuitChange::Open { pause: Duration::from_secs(s), opens });
        for failed in [true, true, false, true, true] {
            assert_eq!(seen.record_end(&topic, None, failed, now, now), None);
        }
        assert_eq!(seen.record_end(&topic, None, true, now, at(1)), open(10, 1));
        for _ in 0..9 {
            assert_eq!(seen.record_end(&topic, None, true, now, at(60)), None, "they were in flight");
        }
        assert_eq!(seen.record_end(&topic, Some(1), true, at(11), at(11)), open(20, 2));
        assert_eq!(seen.record_end(&topic, Some(9), true, at(99), at(99)), open(100, 10), "never longer");
        assert_eq!(seen.record_end(&topic, Some(10), false, at(199), at(199)), Some(CircuitChange::Close));
        assert_eq!(seen.record_end(&topic, None, true, at(200), at(200)), None);
    }

    #[test]
    fn a_circuit_opened_elsewhere_resets_failures_and_opens_again() {
        let (mut seen, now, topic) = (CircuitTable::default(), Instant::now(), topic(2));
        let at = |s| now + Duration::from_secs(s);
        assert_eq!(seen.record_end(&topic, None, true, now, now), None);
        seen.record_open(&topic.name, at(1));
        assert_eq!(seen.record_end(&topic, None, true, now, at(2)), None);
        assert_eq!(seen.record_end(&topic, None, true, at(2), at(2)), None);
        seen.record_open(&topic.name, at(3));
        assert!(matches!(
            seen.record_end(&topic, None, true, at(2), at(4)),
            Some(CircuitChange::Open { opens: 1, .. })
        ));
    }

    #[test]
    fn a_disabled_breaker_opens_nothing_and_closes_an_open_circuit() {
        let (mut seen, now, topic) = (CircuitTable::default(), Instant::now(), topic(0));
        assert!((0..99).all(|_| seen.record_end(&topic, None, true, now, now).is_none()));
        assert_eq!(seen.record_end(&topic, Some(3), true, now, now), Some(CircuitChange::Close));
    }
}

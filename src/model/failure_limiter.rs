//! Counts wrong tokens and passwords by source, so that the number of guesses from one source is bounded. Pure: the
//! current time is an argument.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long failures are counted, from the first failure.
pub const WINDOW: Duration = Duration::from_secs(60);

/// How many failures a source may have within [`WINDOW`].
pub const MOST: u32 = 10;

/// How many sources are counted separately. All other sources are counted as one source.
const REMEMBERED: usize = 4096;

/// Where a client comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientSource {
    /// An address. For IPv6, its network of 64 bits, because one host may have all addresses of this network.
    Address(IpAddr),
    /// A user of this host.
    User(u32),
    /// All sources that are not counted separately.
    Others,
}

impl ClientSource {
    /// Returns the source of an address. An IPv4-mapped address counts as its IPv4 address.
    pub fn address(ip: IpAddr) -> ClientSource {
        ClientSource::Address(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
            v4 => v4,
        })
    }
}

impl fmt::Display for ClientSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientSource::Address(ip) => write!(f, "{ip}"),
            ClientSource::User(uid) => write!(f, "user {uid}"),
            ClientSource::Others => f.write_str("others"),
        }
    }
}

/// How a wrong token or password counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureLimiterVerdict {
    /// The source has not exceeded its number of allowed failures.
    Counted,
    /// The source had too many failures. The source is blocked until this time.
    TooMany(Instant),
}

/// The key of a limiter: failures with the same key are counted together.
pub trait FailureKey: Copy + Eq + Hash {
    /// The key for all sources that are not counted separately.
    const OTHERS: Self;
}

impl FailureKey for ClientSource {
    const OTHERS: ClientSource = ClientSource::Others;
}

/// The key for the failures of a source with one name, such as the name of an account. The number is a hash of the
/// name.
impl FailureKey for (ClientSource, u64) {
    const OTHERS: (ClientSource, u64) = (ClientSource::Others, 0);
}

/// The counts of failures by source: when the first failure was, and how many failures there were.
#[derive(Debug)]
pub struct FailureLimiter<K = ClientSource> {
    most: u32,
    counts: HashMap<K, (Instant, u32)>,
}

impl<K: FailureKey> Default for FailureLimiter<K> {
    fn default() -> FailureLimiter<K> {
        FailureLimiter::new(MOST)
    }
}

impl<K: FailureKey> FailureLimiter<K> {
    /// Makes a limiter that allows `most` failures within [`WINDOW`].
    pub fn new(most: u32) -> FailureLimiter<K> {
        FailureLimiter { most, counts: HashMap::new() }
    }

    /// Returns when the block of a source ends. None: the source is not blocked.
    pub fn blocked_until(&self, from: K, now: Instant) -> Option<Instant> {
        // If the limiter cannot count more sources separately, all new sources count as one.
        let is_full = self.counts.len() >= REMEMBERED && !self.counts.contains_key(&from);
        let counted_as = if is_full { K::OTHERS } else { from };
        let (since, count) = self.counts.get(&counted_as)?;
        let until = *since + WINDOW;
        (*count >= self.most && now < until).then_some(until)
    }

    /// Counts a wrong token or a wrong password.
    pub fn record_failure(&mut self, from: K, now: Instant) -> FailureLimiterVerdict {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if self.counts.len() >= REMEMBERED && !self.counts.contains_key(&from) {
            self.counts.retain(|_, (since, _)| !is_over(*since));
        }
        let is_full = self.counts.len() >= REMEMBERED && !self.counts.contains_key(&from);
        let entry = self.counts.entry(if is_full { K::OTHERS } else { from }).or_insert((now, 0));
        if is_over(entry.0) {
            *entry = (now, 0);
        }
        entry.1 = entry.1.saturating_add(1);
        match entry.1 {
            n if n <= self.most => FailureLimiterVerdict::Counted,
            _ => FailureLimiterVerdict::TooMany(entry.0 + WINDOW),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_wrong_tokens_block_a_source_until_the_minute_ends() {
        let (mut failures, now) = (FailureLimiter::<ClientSource>::default(), Instant::now());
        let from = ClientSource::address("::ffff:10.0.0.1".parse().unwrap());
        assert_eq!(from, ClientSource::address("10.0.0.1".parse().unwrap()));
        assert_eq!(failures.record_failure(from, now), FailureLimiterVerdict::Counted);
        for _ in 1..10 {
            assert_eq!(
                failures.record_failure(from, now + Duration::from_secs(1)),
                FailureLimiterVerdict::Counted
            );
        }
        assert_eq!(failures.blocked_until(from, now + WINDOW / 2), Some(now + WINDOW));
        assert_eq!(
            failures.record_failure(from, now + WINDOW / 2),
            FailureLimiterVerdict::TooMany(now + WINDOW)
        );
        assert_eq!(failures.blocked_until(from, now + WINDOW), None);
        assert_eq!(failures.blocked_until(ClientSource::User(3), now), None);
        assert_eq!(failures.record_failure(ClientSource::User(3), now), FailureLimiterVerdict::Counted);
        assert_eq!(failures.record_failure(from, now + WINDOW), FailureLimiterVerdict::Counted);
        let of = |text: &str| ClientSource::address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[test]
    fn of_too_many_only_so_many_are_remembered() {
        let (mut failures, now) = (FailureLimiter::<ClientSource>::default(), Instant::now());
        for uid in 0..10_000 {
            failures.record_failure(ClientSource::User(uid), now);
        }
        assert_eq!(failures.counts.len(), REMEMBERED + 1);
        assert!(matches!(
            failures.record_failure(ClientSource::User(9999), now),
            FailureLimiterVerdict::TooMany(_)
        ));
        assert!(
            failures.blocked_until(ClientSource::User(9998), now).is_some()
                && failures.blocked_until(ClientSource::User(1), now).is_none()
        );
        assert_eq!(
            failures.record_failure(ClientSource::User(9999), now + WINDOW),
            FailureLimiterVerdict::Counted
        );
        assert_eq!(failures.counts.len(), 1);
    }
}

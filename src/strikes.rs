//! Who has shown wrong tokens or passwords, and how often: by this what they are told stays bounded. Pure: the moment
//! is given.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long wrong tokens are remembered.
pub const WINDOW: Duration = Duration::from_secs(60);

/// How many somebody may show within that time.
pub const MOST: u32 = 10;

/// How many are remembered; all others count as one.
const REMEMBERED: usize = 4096;

/// Where somebody comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// An address; of IPv6 the network of 64 bits, all of which one host may have.
    Address(IpAddr),
    /// A user of this host.
    User(u32),
    /// Any of those who are too many to be told apart.
    Others,
}

impl Source {
    /// That of an address, as it is without its IPv4-mapped form.
    pub fn address(ip: IpAddr) -> Source {
        Source::Address(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
            v4 => v4,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Address(ip) => write!(f, "{ip}"),
            Source::User(uid) => write!(f, "user {uid}"),
            Source::Others => f.write_str("others"),
        }
    }
}

/// What a wrong token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// One of those that are let go.
    Counted,
    /// One too many: it ends at that moment.
    TooMany(Instant),
}

/// Those who have shown wrong tokens.
#[derive(Debug, Default)]
pub struct Strikes(HashMap<Source, (Instant, u32)>);

impl Strikes {
    /// Until when somebody has struck out; none: he has not.
    pub fn is_out(&self, from: Source, now: Instant) -> Option<Instant> {
        // Where no more are told apart, those who are not known are one.
        let is_full = self.0.len() >= REMEMBERED && !self.0.contains_key(&from);
        let (since, count) = self.0.get(if is_full { &Source::Others } else { &from })?;
        let until = *since + WINDOW;
        (*count >= MOST && now < until).then_some(until)
    }

    /// Counts a wrong token, or a wrong password.
    pub fn strike(&mut self, from: Source, now: Instant) -> Strike {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&from) {
            self.0.retain(|_, (since, _)| !is_over(*since));
        }
        let is_full = self.0.len() >= REMEMBERED && !self.0.contains_key(&from);
        let entry = self.0.entry(if is_full { Source::Others } else { from }).or_insert((now, 0));
        if is_over(entry.0) {
            *entry = (now, 0);
        }
        entry.1 = entry.1.saturating_add(1);
        match entry.1 {
            n if n <= MOST => Strike::Counted,
            _ => Strike::TooMany(entry.0 + WINDOW),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_ten_wrong_tokens_there_are_too_many_until_the_minute_is_over() {
        let (mut strikes, now) = (Strikes::default(), Instant::now());
        let from = Source::address("::ffff:10.0.0.1".parse().unwrap());
        assert_eq!(from, Source::address("10.0.0.1".parse().unwrap()));
        assert_eq!(strikes.strike(from, now), Strike::Counted);
        for _ in 1..10 {
            assert_eq!(strikes.strike(from, now + Duration::from_secs(1)), Strike::Counted);
        }
        assert_eq!(strikes.is_out(from, now + WINDOW / 2), Some(now + WINDOW));
        assert_eq!(strikes.strike(from, now + WINDOW / 2), Strike::TooMany(now + WINDOW));
        assert_eq!(strikes.is_out(from, now + WINDOW), None);
        assert_eq!(strikes.is_out(Source::User(3), now), None);
        assert_eq!(strikes.strike(Source::User(3), now), Strike::Counted);
        assert_eq!(strikes.strike(from, now + WINDOW), Strike::Counted);
        let of = |text: &str| Source::address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[test]
    fn of_too_many_only_so_many_are_remembered() {
        let (mut strikes, now) = (Strikes::default(), Instant::now());
        for uid in 0..10_000 {
            strikes.strike(Source::User(uid), now);
        }
        assert_eq!(strikes.0.len(), REMEMBERED + 1);
        assert!(matches!(strikes.strike(Source::User(9999), now), Strike::TooMany(_)));
        assert!(
            strikes.is_out(Source::User(9998), now).is_some()
                && strikes.is_out(Source::User(1), now).is_none()
        );
        assert_eq!(strikes.strike(Source::User(9999), now + WINDOW), Strike::Counted);
        assert_eq!(strikes.0.len(), 1);
    }
}

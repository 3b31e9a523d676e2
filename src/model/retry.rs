//! Decides when a failed delivery is tried again. Pure: it computes a delay from the number of the attempt.

use std::time::Duration;

/// How the delay between the attempts of a job grows. The delay also depends on two other settings of the topic:
/// `base`, the first delay, and `cap`, the longest delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retry {
    /// After attempt k (1, 2, 3 …), the next attempt comes 2(k-1)+1 times `base` later: by default 1, 3, 5 … minutes.
    TwoNPlusOne,
    /// After attempt k, the next attempt comes `base` × 2^(k-1) later, but at most `cap`. A random part of up to a
    /// tenth is added.
    Exponential,
    /// These delays, in their order. When all of them were used, the last delay is used for each further attempt. The
    /// list is never empty.
    List(Vec<Duration>),
}

impl Retry {
    /// Returns the delay after the failure of attempt `number` (from 1). `random` is between 0 and 1. `random` makes
    /// the delay of an exponential retry longer, so that retries do not all come at the same time.
    pub fn delay_after(&self, base: Duration, cap: Duration, number: u32, random: f64) -> Duration {
        let failures = number.max(1);
        match self {
            Retry::TwoNPlusOne => base.saturating_mul(2 * (failures.min(1 << 20) - 1) + 1),
            Retry::Exponential => {
                let plain = base.saturating_mul(1u32 << (failures - 1).min(31)).min(cap);
                plain.saturating_add(plain.mul_f64(0.1 * random.clamp(0.0, 1.0)))
            }
            Retry::List(delays) => {
                delays.get(failures as usize - 1).or(delays.last()).copied().unwrap_or(base)
            }
        }
    }

    /// Returns whether a setting of the topic has an effect with this policy.
    pub(crate) fn uses(&self, setting: &str) -> bool {
        match setting {
            "retry_base" => !matches!(self, Retry::List(_)),
            "retry_cap" => matches!(self, Retry::Exponential),
            _ => true,
        }
    }

    /// Returns the name of the policy for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Retry::TwoNPlusOne => "\"2n+1\"",
            Retry::Exponential => "\"exponential\"",
            Retry::List(_) => "a list",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn two_n_plus_one_gives_one_three_five_minutes() {
        let policy = Retry::TwoNPlusOne;
        let minutes: Vec<u64> =
            (1..=9).map(|k| policy.delay_after(MINUTE, HOUR, k, 0.9).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 3, 5, 7, 9, 11, 13, 15, 17]);
        assert_eq!(minutes.iter().sum::<u64>(), 81);
    }

    #[test]
    fn exponential_doubles_up_to_its_cap_and_jitter_only_adds() {
        let policy = Retry::Exponential;
        assert_eq!(policy.delay_after(MINUTE, 5 * MINUTE, 1, 0.0), MINUTE);
        assert_eq!(policy.delay_after(MINUTE, 5 * MINUTE, 3, 0.0), 4 * MINUTE);
        assert_eq!(policy.delay_after(MINUTE, 5 * MINUTE, 4, 0.0), 5 * MINUTE);
        assert_eq!(policy.delay_after(MINUTE, 5 * MINUTE, u32::MAX, 1.0), 5 * MINUTE + 5 * MINUTE / 10);
    }

    #[test]
    fn a_list_goes_on_with_its_last_delay() {
        let policy = Retry::List(vec![MINUTE, 2 * MINUTE]);
        assert_eq!(
            [1, 2, 3, 99].map(|k| policy.delay_after(MINUTE, HOUR, k, 0.5)),
            [MINUTE, 2 * MINUTE, 2 * MINUTE, 2 * MINUTE]
        );
    }
}

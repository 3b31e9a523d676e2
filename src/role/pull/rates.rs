//! The permits of pull topics with a `rate`. The home of a topic grants them to consumers and to this process, by the
//! same rule. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::calls::PATIENCE;
use model::flow::LimitName;
use model::job::TopicName;
use model::topic::Rate;
use store::{Permit, PermitRequest};

/// How long to wait before the next question for permits. This pause is used if a question failed. It is also used if
/// an answer granted too few permits, and did not say when to ask again.
const AGAIN: Duration = Duration::from_millis(200);

/// The permits of one topic.
#[derive(Debug, Default)]
struct Permits {
    /// Permits that may be used now.
    hand: u32,
    /// Permits that were granted and not used. They are given back with the next question.
    unused: u32,
    /// When the question under way was asked. None: no question is under way.
    asked: Option<Instant>,
    /// Permits are not asked for before this moment.
    again: Option<Instant>,
}

/// The permits of all topics with a rate.
#[derive(Debug, Default)]
pub(super) struct PermitTable(HashMap<TopicName, Permits>);

impl PermitTable {
    /// Returns how many permits may be used now.
    pub(super) fn usable_permits(&self, topic: &TopicName) -> u32 {
        self.0.get(topic).map_or(0, |permits| permits.hand)
    }

    /// Whether a question is under way, so that permits may come soon.
    pub(super) fn is_asked(&self, topic: &TopicName) -> bool {
        self.0.get(topic).is_some_and(|permits| permits.asked.is_some())
    }

    /// Whether a question is under way that should be answered soon.
    pub(super) fn is_awaited(&self, topic: &TopicName, now: Instant) -> bool {
        let asked = self.0.get(topic).and_then(|permits| permits.asked);
        asked.is_some_and(|asked| now < asked + PATIENCE)
    }

    /// Uses permits for a lease.
    pub(super) fn take(&mut self, topic: &TopicName, jobs: u32) {
        if let Some(permits) = self.0.get_mut(topic) {
            permits.hand = permits.hand.saturating_sub(jobs);
        }
    }

    /// Notes that a lease brought fewer jobs than it had permits for.
    pub(super) fn give_back(&mut self, topic: &TopicName, jobs: u32) {
        if let Some(permits) = self.0.get_mut(topic) {
            permits.unused += jobs;
        }
    }

    /// Returns a question for `want` permits, if one may be asked now. A question for 0 permits gives back permits that
    /// are no longer used.
    pub(super) fn ask(
        &mut self,
        topic: &TopicName,
        rate: Rate,
        want: u32,
        now: Instant,
    ) -> Option<PermitRequest> {
        let permits = self.0.entry(topic.clone()).or_default();
        if want == 0 {
            permits.unused += std::mem::take(&mut permits.hand);
        }
        let may_ask = want > 0 && permits.hand == 0 && permits.again.is_none_or(|again| again <= now);
        if permits.asked.is_some() || !may_ask && (want > 0 || permits.unused == 0) {
            return None;
        }
        permits.asked = Some(now);
        Some(PermitRequest {
            name: LimitName::from(topic),
            held: 0,
            want,
            max_in_flight: None,
            rate: Some(rate),
            unused: std::mem::take(&mut permits.unused),
        })
    }

    /// Takes the answer to a question. None: the home could not be asked.
    pub(super) fn answered(&mut self, ask: &PermitRequest, permit: Option<Permit>, now: Instant) {
        let Some(permits) = self.0.get_mut(ask.name.as_str()) else { return };
        permits.asked = None;
        let Some(Permit { granted, again }) = permit else {
            permits.unused += ask.unused;
            permits.again = Some(now + AGAIN);
            return;
        };
        permits.hand += granted;
        permits.again = (granted < ask.want).then(|| now + again.unwrap_or(AGAIN));
    }

    /// Returns when to check the permits of a topic again. At this time more permits may be asked for, or an answer is
    /// overdue. None: there is no such moment after `now`.
    pub(super) fn again(&self, topic: &TopicName, now: Instant) -> Option<Instant> {
        let permits = self.0.get(topic)?;
        let both = [permits.again, permits.asked.map(|asked| asked + PATIENCE)];
        both.into_iter().flatten().filter(|at| *at > now).min()
    }

    /// Returns the topics for which this process has permits, or knows when to ask for permits.
    pub(super) fn topics(&self) -> Vec<TopicName> {
        self.0.keys().cloned().collect()
    }

    /// Forgets a topic that has no rate any more.
    pub(super) fn forget(&mut self, topic: &TopicName) {
        self.0.remove(topic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_asked_for_used_and_given_back() {
        let (topic, now) = (TopicName::new("t").unwrap(), Instant::now());
        let (rate, mut rates) = (Rate::per_second(10), PermitTable::default());
        let ask = rates.ask(&topic, rate, 3, now).unwrap();
        assert_eq!((ask.want, ask.unused, rates.is_asked(&topic)), (3, 0, true));
        assert!(rates.is_awaited(&topic, now) && !rates.is_awaited(&topic, now + PATIENCE));
        assert_eq!(rates.again(&topic, now), Some(now + PATIENCE));
        assert_eq!(rates.ask(&topic, rate, 3, now), None, "one question at a time");
        let soon = Duration::from_millis(50);
        rates.answered(&ask, Some(Permit { granted: 2, again: Some(soon) }), now);
        assert_eq!((rates.usable_permits(&topic), rates.again(&topic, now)), (2, Some(now + soon)));
        rates.take(&topic, 2);
        assert_eq!(rates.ask(&topic, rate, 1, now), None, "not before the rate allows it");
        rates.give_back(&topic, 1);
        let ask = rates.ask(&topic, rate, 0, now).unwrap();
        assert_eq!((ask.want, ask.unused), (0, 1));
        rates.answered(&ask, None, now);
        let again = rates.ask(&topic, rate, 0, now).unwrap();
        assert_eq!(again.unused, 1, "an answer that did not come gave nothing back");
        rates.answered(&again, Some(Permit::default()), now);
        assert_eq!(rates.ask(&topic, rate, 0, now), None);
    }
}

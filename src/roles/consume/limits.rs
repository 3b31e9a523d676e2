//! Topics with `max_in_flight` or `rate`: how many of their callbacks may begin here. The topic's home grants permits.
//! While the home does not answer, this process decides alone. Pure: the caller passes the present moment, and gets
//! what must be asked and when. The limits of receivers' hosts are kept in the same way (`host_limits`).

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::flow::{LimitName, TokenBucket};
use model::job::TopicName;
use model::settings::HostLimit;
use model::topic::{Rate, Topics};
use store::{Permit, PermitRequest};

/// How often this process reports to the home how many permits it holds. This interval must be much shorter than the
/// time after which the home forgets the last report.
const RENEW: Duration = Duration::from_secs(10);

/// How long this process waits for an answer before it decides alone.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long this process decides alone after a missing answer, before it asks the home again.
const ALONE: Duration = Duration::from_secs(1);

/// How long permits are kept while no jobs can be leased for them.
const KEPT: Duration = Duration::from_secs(1);

/// The first and the longest pause after a refusal, before permits are asked for again. A pause is needed because
/// nobody reports when the callbacks of other processes end.
const REFUSED: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));

/// A topic or a host that has limits.
#[derive(Debug)]
struct Limit {
    max_in_flight: Option<u32>,
    rate: Option<Rate>,
    in_flight: u32,
    /// Permits that may be used now.
    hand: u32,
    /// When permits were last granted.
    hand_since: Instant,
    /// Permits for which a lease is under way.
    reserved: u32,
    /// Permits that were granted and not used. They are given back to the rate.
    unused: u32,
    /// How many permits this process holds, by the last report that the home has answered.
    known_held: u32,
    renew: Instant,
    asked: Option<Instant>,
    /// Permits are not asked for before this moment.
    again: Option<Instant>,
    refusals: u32,
    /// This process decides alone until this moment.
    alone: Option<Instant>,
    /// How much of the rate is spent while this process decides alone (see [`TokenBucket`]).
    spent_us: f64,
}

impl Limit {
    /// Returns a limit that has not been reported to its home yet.
    fn new(in_flight: u32, now: Instant) -> Limit {
        Limit {
            max_in_flight: None,
            rate: None,
            in_flight,
            hand: 0,
            hand_since: now,
            reserved: 0,
            unused: 0,
            known_held: 0,
            renew: now + RENEW,
            asked: None,
            again: None,
            refusals: 0,
            alone: None,
            spent_us: 0.0,
        }
    }

    fn held(&self) -> u32 {
        self.in_flight + self.hand + self.reserved
    }

    fn give_back(&mut self) {
        self.unused += std::mem::take(&mut self.hand);
    }

    /// Whether there is nothing to report to the home: the home knows how many permits are held, and no permit is left
    /// unused.
    fn is_even(&self) -> bool {
        (self.max_in_flight.is_none() || self.known_held == self.held())
            && (self.rate.is_none() || self.unused == 0)
    }

    fn may_ask(&self, now: Instant) -> bool {
        self.again.is_none_or(|again| again <= now)
    }

    /// Grants permits without the home, by what this process knows.
    fn grant_alone(&mut self, want: u32, now: Instant, epoch: Instant) {
        let room = self.max_in_flight.map_or(u32::MAX, |most| most.saturating_sub(self.held()));
        let mut granted = want.min(room);
        self.again = None;
        if let Some(rate) = self.rate {
            let now_us = now.duration_since(epoch).as_micros() as f64;
            let taken = TokenBucket::from(rate).take(
                self.spent_us,
                now_us,
                std::mem::take(&mut self.unused),
                granted,
            );
            (granted, self.spent_us) = (taken.granted, taken.spent_us);
            self.again = taken.again.map(|again| now + again);
        }
        self.take(granted, now);
        if granted < want && self.again.is_none() {
            self.again = Some(now + REFUSED.0);
            // Because this number is not 0, the end of a callback in this process ends the pause at once.
            self.refusals = 1;
        }
    }

    fn take(&mut self, granted: u32, now: Instant) {
        self.hand += granted;
        if granted > 0 {
            self.hand_since = now;
            self.refusals = 0;
        }
    }
}

/// What this process knows of topics with limits, or of hosts with limits.
#[derive(Debug)]
pub(super) struct Limits<N = TopicName> {
    epoch: Instant,
    /// Whether jobs can be leased while a home does not answer. It is false if the home is the whole store.
    may_go_alone: bool,
    topics: BTreeMap<N, Limit>,
}

impl Limits<LimitName> {
    pub(super) fn from_hosts(hosts: &[HostLimit], now: Instant, may_go_alone: bool) -> Limits<LimitName> {
        let limit = |HostLimit { name, max_in_flight, rate, .. }: &HostLimit| {
            let limit = Limit { max_in_flight: *max_in_flight, rate: *rate, ..Limit::new(0, now) };
            (LimitName::from_host(name), limit)
        };
        Limits { epoch: now, may_go_alone, topics: hosts.iter().map(limit).collect() }
    }

    /// Returns when permits of a host are asked for again. None: this process has permits of the host already, or may
    /// ask for permits now.
    pub(super) fn refused_until(&self, host: &LimitName, now: Instant) -> Option<Instant> {
        let limit = self.topics.get(host)?;
        limit.again.filter(|again| limit.hand == 0 && *again > now)
    }
}

impl Limits {
    pub(super) fn new(now: Instant, may_go_alone: bool) -> Limits {
        Limits { epoch: now, may_go_alone, topics: BTreeMap::new() }
    }

    /// Applies the limits of these topics from now on. For a topic that had no limits before, `in_flight` returns how
    /// many of its callbacks run.
    pub(super) fn serve(&mut self, topics: &Topics, now: Instant, in_flight: impl Fn(&TopicName) -> u32) {
        for topic in topics.iter() {
            if topic.max_in_flight.is_none() && topic.rate.is_none() {
                // This process reports nothing more about the topic. After a while, the home forgets which permits this
                // process held.
                self.topics.remove(&topic.name);
                continue;
            }
            let known = self.topics.entry(topic.name.clone());
            let known = known.or_insert_with(|| Limit::new(in_flight(&topic.name), now));
            if (known.max_in_flight, known.rate) != (topic.max_in_flight, topic.rate) {
                if known.max_in_flight.is_none() {
                    // The home does not know yet how many callbacks are in flight.
                    (known.known_held, known.renew) = (0, now);
                }
                (known.max_in_flight, known.rate, known.again) = (topic.max_in_flight, topic.rate, None);
            }
        }
        // The callbacks of a removed topic that still run continue to count.
        self.topics.retain(|name, limit| {
            limit.give_back();
            topics.get(name.as_str()).is_some() || limit.held() > 0
        });
    }

    /// Returns the topic with this name, if it has limits.
    pub(super) fn named(&self, name: &str) -> Option<TopicName> {
        self.topics.get_key_value(name).map(|(topic, _)| topic.clone())
    }

    /// Returns how many callbacks of a topic may begin, including those for which a lease is under way. `None` if the
    /// topic has no limits.
    pub(super) fn usable(&self, topic: &TopicName) -> Option<u32> {
        self.topics.get(topic).map(|limit| limit.hand + limit.reserved)
    }

    /// Whether the topic has no limits, or this process has permits of the topic, or may ask for permits now.
    pub(super) fn may_begin(&self, topic: &TopicName, now: Instant) -> bool {
        self.topics.get(topic).is_none_or(|limit| limit.hand > 0 || limit.may_ask(now))
    }
}

impl<N: Ord + Clone + Borrow<str>> Limits<N>
where
    LimitName: for<'a> From<&'a N>,
{
    /// Returns how many callbacks of a topic may begin. `None` if the topic has no limits.
    pub(super) fn allowed(&self, topic: &N) -> Option<u32> {
        self.topics.get::<str>(topic.borrow()).map(|limit| limit.hand)
    }

    /// Reserves permits for a lease that is under way.
    pub(super) fn reserve(&mut self, topic: &N, jobs: u32) {
        if let Some(limit) = self.topics.get_mut::<str>(topic.borrow()) {
            limit.hand = limit.hand.saturating_sub(jobs);
            limit.reserved += jobs;
        }
    }

    /// Records that the lease for `reserved` permits brought `jobs` jobs. Their callbacks begin.
    pub(super) fn leased(&mut self, topic: &N, reserved: u32, jobs: u32) {
        if let Some(limit) = self.topics.get_mut::<str>(topic.borrow()) {
            // If a lease was ordered before the topic had limits, no permits were reserved for it.
            let had = limit.reserved.min(reserved);
            limit.reserved -= had;
            limit.in_flight += jobs;
            limit.hand += had.saturating_sub(jobs);
        }
    }

    /// Records that a callback ended, or that it did not begin although its job was leased.
    pub(super) fn record_end(&mut self, topic: &N, began: bool) {
        if let Some(limit) = self.topics.get_mut::<str>(topic.borrow()) {
            limit.in_flight = limit.in_flight.saturating_sub(1);
            limit.unused += u32::from(!began);
            // There is room again. A permit that was not used goes back with the next permit request. The home may
            // grant it again at once.
            if !began || limit.max_in_flight.is_some() && limit.refusals > 0 {
                limit.again = None;
            }
        }
    }

    /// Returns the permit requests that must be sent to the homes of topics (or hosts) now. `wants` returns how many
    /// more callbacks of a topic would begin without its limits. The lease calls under way keep workers for the jobs
    /// that they may bring. `wants` does not count these workers as free. `could` counts them as free, as if these
    /// calls brought no jobs. `granted` is called with each topic that gets permits without asking.
    pub(super) fn asks(
        &mut self,
        now: Instant,
        wants: impl Fn(&N) -> u32,
        could: impl Fn(&N) -> u32,
        mut granted: impl FnMut(&N),
    ) -> Vec<PermitRequest> {
        let mut asks = Vec::new();
        for (topic, limit) in &mut self.topics {
            let want = wants(topic);
            if limit.hand > 0 && limit.hand_since + KEPT <= now {
                // Other processes may need the permits more.
                limit.give_back();
                limit.again = Some(now + KEPT);
            } else if limit.hand > 0 && could(topic) == 0 {
                limit.give_back();
            }
            let want = if limit.hand == 0 && limit.may_ask(now) { want } else { 0 };
            if self.may_go_alone && limit.asked.is_some_and(|since| since + PATIENCE <= now) {
                limit.alone = Some(now + ALONE);
            } else if limit.asked.is_none() && limit.alone.is_some_and(|until| until <= now) {
                limit.alone = None;
            }
            if limit.alone.is_some_and(|until| until > now) {
                if want > 0 && self.may_go_alone {
                    limit.grant_alone(want, now, self.epoch);
                    if limit.hand > 0 {
                        granted(topic);
                    }
                }
                continue;
            }
            let renews = limit.max_in_flight.is_some() && limit.held() > 0 && limit.renew <= now;
            if limit.asked.is_some() || (want == 0 && limit.is_even() && !renews) {
                continue;
            }
            limit.asked = Some(now);
            asks.push(PermitRequest {
                name: LimitName::from(topic),
                held: limit.held(),
                want,
                max_in_flight: limit.max_in_flight,
                rate: limit.rate,
                unused: std::mem::take(&mut limit.unused),
            });
        }
        asks
    }

    /// Takes the home's answer. `None`: the home could not be asked. Returns whether callbacks may begin now.
    pub(super) fn answered(&mut self, ask: &PermitRequest, permit: Option<Permit>, now: Instant) -> bool {
        let Some(limit) = self.topics.get_mut(ask.name.as_str()) else { return false };
        let asked = limit.asked.take();
        let Some(Permit { granted, again }) = permit else {
            limit.unused += ask.unused;
            limit.alone = Some(now + ALONE);
            limit.again = Some(now + if self.may_go_alone { REFUSED.0 } else { ALONE });
            limit.renew = limit.renew.max(now + REFUSED.1);
            // The home may have granted permits that never came. So this process reports again how many permits it
            // holds.
            limit.known_held = u32::MAX;
            return false;
        };
        limit.known_held = ask.held + granted;
        limit.renew = now + RENEW;
        if self.may_go_alone && asked.is_some_and(|since| since + PATIENCE <= now) {
            // The answer came too late: meanwhile this process has decided alone. The home gets another report of what
            // this process holds.
            limit.unused += granted;
            limit.alone = None;
            return false;
        }
        limit.alone = None;
        limit.take(granted, now);
        if granted < ask.want {
            let capped = (REFUSED.0 * 2_u32.pow(limit.refusals.min(3))).min(REFUSED.1);
            limit.again = Some(now + again.unwrap_or(capped));
            limit.refusals += u32::from(again.is_none());
        } else if ask.want > 0 {
            limit.again = None;
        }
        granted > 0
    }

    /// Returns when `asks` must be called again.
    pub(super) fn next(&self, wants: impl Fn(&N) -> u32) -> Option<Instant> {
        let next_of = |(topic, limit): (&N, &Limit)| {
            let waits = wants(topic) > 0;
            let is_asked = limit.asked.is_some() && limit.alone.is_none();
            let again = limit.again.filter(|_| waits && limit.hand == 0 && !is_asked);
            let late = limit.asked.filter(|_| is_asked && self.may_go_alone);
            let late = late.map(|since| since + PATIENCE);
            let renew = (limit.max_in_flight.is_some() && limit.held() > 0 && limit.asked.is_none())
                .then_some(limit.renew);
            let alone = limit.alone.filter(|_| limit.asked.is_none() && (waits || !limit.is_even()));
            let kept = (limit.hand > 0).then_some(limit.hand_since + KEPT);
            [again, late, renew, alone, kept].into_iter().flatten().min()
        };
        self.topics.iter().filter_map(next_of).min()
    }

    /// Whether each home that can be reached knows that this process holds no permits any more.
    pub(super) fn is_drained(&self) -> bool {
        self.topics.values().all(|limit| limit.alone.is_some() || (limit.asked.is_none() && limit.is_even()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topic::Topic;

    fn limits(max_in_flight: Option<u32>, rate: Option<Rate>) -> (Limits, TopicName, Instant) {
        let (name, now) = (TopicName::new("t").unwrap(), Instant::now());
        let mut topic = Topic::new(name.clone(), "http://h/");
        (topic.max_in_flight, topic.rate) = (max_in_flight, rate);
        let mut limits = Limits::new(now, true);
        limits.serve(&[topic].into_iter().collect(), now, |_| 0);
        (limits, name, now)
    }

    fn ask(limits: &mut Limits, now: Instant, want: u32) -> Option<PermitRequest> {
        limits.asks(now, |_| want, |_| want, |_| {}).pop()
    }

    fn permit(granted: u32) -> Option<Permit> {
        Some(Permit { granted, again: None })
    }

    #[test]
    fn what_is_granted_is_used_and_what_ends_is_said() {
        let (mut l, t, now) = limits(Some(5), None);
        assert!(ask(&mut l, now, 0).is_none() && l.next(|_| 0).is_none(), "nothing polls without a backlog");
        let first = ask(&mut l, now, 9).unwrap();
        assert_eq!((first.held, first.want, first.max_in_flight), (0, 9, Some(5)));
        assert!(ask(&mut l, now, 9).is_none(), "one question at a time");
        assert!(l.answered(&first, permit(5), now));
        assert_eq!(l.allowed(&t), Some(5));
        l.reserve(&t, 5);
        assert_eq!(l.allowed(&t), Some(0));
        l.leased(&t, 5, 3);
        assert_eq!(l.allowed(&t), Some(2));
        assert!(ask(&mut l, now, 9).is_none(), "there are some in hand");
        let back = ask(&mut l, now, 0).unwrap();
        assert_eq!((back.held, back.want), (3, 0), "which are given back where there is no more to do");
        assert!(!l.answered(&back, permit(0), now) && l.is_drained());
        l.record_end(&t, true);
        let said = ask(&mut l, now, 0).unwrap();
        assert_eq!(said.held, 2);
        l.answered(&said, permit(0), now);
        assert!(ask(&mut l, now, 0).is_none());
        let renewed = ask(&mut l, now + RENEW, 0).unwrap();
        assert_eq!(renewed.held, 2, "said again before it is forgotten");
        assert_eq!(l.next(|_| 0), Some(now + RENEW + PATIENCE), "while it is asked");
    }

    #[test]
    fn who_was_refused_comes_again_ever_later_or_when_its_own_end() {
        let (mut l, t, now) = limits(Some(5), None);
        let mut at = now;
        let mut waits = Vec::new();
        for _ in 0..5 {
            let asked = ask(&mut l, at, 9).unwrap();
            l.answered(&asked, permit(0), at);
            assert!(ask(&mut l, at, 9).is_none());
            let next = l.next(|_| 9).unwrap();
            waits.push(next.duration_since(at).as_millis());
            at = next;
        }
        assert_eq!(waits, [200, 400, 800, 1000, 1000]);
        let asked = ask(&mut l, at, 9).unwrap();
        l.answered(&asked, permit(0), at);
        l.topics.get_mut(&t).unwrap().in_flight = 1;
        l.record_end(&t, true);
        assert!(ask(&mut l, at, 9).is_some());
    }

    #[test]
    fn a_rate_says_when_to_come_again() {
        let (mut l, t, now) = limits(None, Some(Rate::per_second(100)));
        let asked = ask(&mut l, now, 9).unwrap();
        l.answered(&asked, Some(Permit { granted: 4, again: Some(Duration::from_millis(50)) }), now);
        l.reserve(&t, 4);
        l.leased(&t, 4, 4);
        (0..4).for_each(|i| l.record_end(&t, i > 0));
        let said = ask(&mut l, now, 9).unwrap();
        assert_eq!(
            (said.want, said.unused),
            (9, 1),
            "what did not begin is given back, and may be had again at once"
        );
        l.answered(&said, Some(Permit { granted: 0, again: Some(Duration::from_millis(50)) }), now);
        assert_eq!(l.next(|_| 9), Some(now + Duration::from_millis(50)));
        assert!(ask(&mut l, now + Duration::from_millis(49), 9).is_none());
        assert_eq!(ask(&mut l, now + Duration::from_millis(50), 9).unwrap().want, 9);
    }

    #[test]
    fn a_home_that_does_not_answer_is_done_without() {
        let (mut l, t, now) = limits(Some(5), Some(Rate::per_second(20)));
        let asked = ask(&mut l, now, 9).unwrap();
        assert_eq!(l.next(|_| 9), Some(now + PATIENCE));
        let later = now + PATIENCE;
        let mut known_held = 0;
        assert!(l.asks(later, |_| 9, |_| 9, |_| known_held += 1).is_empty());
        assert_eq!((known_held, l.allowed(&t)), (1, Some(2)), "by its own rate and limit");
        l.reserve(&t, 2);
        l.leased(&t, 2, 2);
        // The home answers, but late.
        let late = later + Duration::from_millis(10);
        assert!(!l.answered(&asked, permit(5), late));
        let said = ask(&mut l, late, 0).unwrap();
        assert_eq!((said.held, said.unused), (2, 5), "what it takes this process to hold is put right");
        l.answered(&said, None, late);
        assert_eq!(l.next(|_| 9), Some(late + REFUSED.0));
        assert!(l.is_drained(), "no home can be reached");
    }

    #[test]
    fn a_home_that_is_the_whole_store_is_asked_again_after_a_pause() {
        let (mut l, t, now) = limits(Some(5), None);
        l.may_go_alone = false;
        let asked = ask(&mut l, now, 3).unwrap();
        l.answered(&asked, permit(3), now);
        l.reserve(&t, 3);
        l.leased(&t, 3, 3);
        l.record_end(&t, true);
        let said = ask(&mut l, now, 0).unwrap();
        assert_eq!(said.held, 2);
        l.answered(&said, None, now);
        assert!(ask(&mut l, now, 0).is_none() && ask(&mut l, now, 9).is_none());
        assert_eq!((l.next(|_| 9), l.is_drained()), (Some(now + ALONE), true));
        let later = now + ALONE;
        assert_eq!(ask(&mut l, later, 0).unwrap().held, 2, "whether it was heard is not known");
    }

    #[test]
    fn permits_stay_during_a_lease_and_are_returned_when_unused() {
        let (mut l, t, now) = limits(Some(5), None);
        let asked = ask(&mut l, now, 5).unwrap();
        l.answered(&asked, permit(5), now);
        assert!(l.asks(now, |_| 0, |_| 5, |_| {}).is_empty(), "all workers are promised, and none is busy");
        assert_eq!(l.allowed(&t), Some(5));
        let back = ask(&mut l, now + KEPT, 5).unwrap();
        assert_eq!((back.held, back.want), (0, 0), "others may have more use for them");
        l.answered(&back, permit(0), now + KEPT);
        assert!(ask(&mut l, now + KEPT, 5).is_none());
        assert_eq!(ask(&mut l, now + 2 * KEPT, 5).unwrap().want, 5);
    }

    #[test]
    fn a_lease_ordered_before_there_were_limits_brings_no_permits() {
        let (mut l, t, _) = limits(Some(1), None);
        l.leased(&t, 20, 5);
        assert_eq!((l.allowed(&t), l.topics[&t].in_flight), (Some(0), 5));
    }
}

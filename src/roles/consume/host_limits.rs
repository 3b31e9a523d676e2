//! The limits of receivers' hosts: which leased jobs begin, which wait for an answer about permits, and which are
//! postponed. Pure.
//!
//! A job may have a URL of its own, so its host is known only when it is leased. While the home of the host is asked
//! for a permit, the job waits here, and a worker stays free for it. When the host is at its limit, its jobs are
//! postponed, so that the jobs of other hosts come next. A job is postponed to the time when the jobs before it should
//! have begun. So the work of leasing and postponing these jobs is limited, even if the backlog is large. If all jobs
//! of a topic go to one host, permits are asked for before the lease.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Uri;

use super::limits::Limits;
use model::fair::Fair;
use model::flow::{LimitName, POSTPONED_MAX};
use model::job::TopicName;
use model::settings::HostLimit;
use model::topic::{Topic, Topics};
use store::{LeasedJob, Permit, PermitRequest};

/// The shortest time by which a job is postponed.
const POSTPONED_MIN: Duration = Duration::from_millis(20);

/// The assumed duration of callbacks to a host, until the first callback has ended.
const FIRST_GUESS: Duration = Duration::from_millis(200);

/// A leased job. Its callback has not begun.
#[derive(Debug)]
pub(super) struct HeldJob {
    /// The lane that it was leased from.
    pub lane: usize,
    /// The topic as it was when the lease was ordered.
    pub topic: Arc<Topic>,
    pub leased: LeasedJob,
    /// When the exchange that leased the job began.
    pub since: Instant,
    /// The index of the job's host in `HostLimits`, if this host has limits.
    pub host: Option<usize>,
}

/// What happens to a job that was leased.
#[derive(Debug)]
pub(super) enum HostDecision {
    /// The callback of the job begins.
    Begin(HeldJob),
    /// The job is postponed for this long.
    Postpone(HeldJob, Duration),
}

/// A host with limits.
#[derive(Debug)]
struct Host {
    name: LimitName,
    limit: HostLimit,
    /// The topics whose jobs all go to this host.
    topics: Vec<TopicName>,
    /// The jobs that wait for an answer about permits.
    waiting: VecDeque<HeldJob>,
    /// When the job that was postponed last should begin.
    slot: Instant,
    /// The approximate duration of its callbacks.
    took: Duration,
}

impl Host {
    /// Returns how many more callbacks would begin with `free` workers. `most` returns how many callbacks of a topic
    /// may begin by the topic's own limits.
    fn wanted_callbacks(&self, free: u32, fair: &Fair, most: impl Fn(&TopicName) -> Option<u32>) -> u32 {
        let of_topic = |topic| fair.wanted_callbacks(topic, free).min(most(topic).unwrap_or(u32::MAX));
        self.waiting.len() as u32 + self.topics.iter().map(of_topic).sum::<u32>()
    }

    /// Returns the time by which the next job is postponed, if the host grants permits again at `from`. If this would
    /// be longer than `POSTPONED_MAX`, the result is a random time between half of `POSTPONED_MAX` and `POSTPONED_MAX`.
    fn postpone(&mut self, from: Instant, now: Instant) -> Duration {
        // With `most` callbacks at a time, one callback ends every `took / most`. The step is half of this time,
        // because callbacks may get faster.
        let of_calls = self.limit.max_in_flight.map(|most| self.took / most / 2);
        let of_rate = self.limit.rate.map(|rate| rate.per / rate.jobs);
        let step = of_calls.max(of_rate).unwrap_or_default();
        self.slot = self.slot.max(from) + step;
        let wait = self.slot.saturating_duration_since(now);
        if wait > POSTPONED_MAX {
            self.slot = now + POSTPONED_MAX;
            return POSTPONED_MAX.mul_f64((1.0 + fastrand::f64()) / 2.0);
        }
        wait.max(POSTPONED_MIN)
    }
}

/// What this process knows of hosts with limits.
#[derive(Debug)]
pub(super) struct HostLimits {
    limits: Limits<LimitName>,
    hosts: Vec<Host>,
    /// The index of the host to which all jobs of a topic go.
    by_topic: HashMap<TopicName, usize>,
}

impl HostLimits {
    pub(super) fn new(limits: &[HostLimit], topics: &Topics, now: Instant, may_go_alone: bool) -> HostLimits {
        let host = |limit: &HostLimit| Host {
            name: LimitName::from_host(&limit.name),
            limit: limit.clone(),
            topics: Vec::new(),
            waiting: VecDeque::new(),
            slot: now,
            took: FIRST_GUESS,
        };
        let hosts = limits.iter().map(host).collect();
        let limits = Limits::from_hosts(limits, now, may_go_alone);
        let mut hosts = HostLimits { limits, hosts, by_topic: HashMap::new() };
        hosts.serve(topics);
        hosts
    }

    /// Serves these topics from now on.
    pub(super) fn serve(&mut self, topics: &Topics) {
        self.by_topic.clear();
        self.hosts.iter_mut().for_each(|host| host.topics.clear());
        for topic in topics.iter().filter(|topic| topic.job_hosts.is_empty()) {
            if let Some(host) = self.host_of(&topic.callback) {
                self.hosts[host].topics.push(topic.name.clone());
                self.by_topic.insert(topic.name.clone(), host);
            }
        }
    }

    fn host_of(&self, url: &str) -> Option<usize> {
        if self.hosts.is_empty() {
            return None;
        }
        let uri: Uri = url.split('#').next()?.parse().ok()?;
        self.hosts.iter().position(|host| host.limit.host.matches(&uri))
    }

    /// Returns how many callbacks of a topic its host allows to begin. None: its host has no limits, or its jobs may
    /// have different hosts.
    pub(super) fn allowed(&self, topic: &TopicName) -> Option<u32> {
        self.by_topic.get(topic).and_then(|host| self.limits.allowed(&self.hosts[*host].name))
    }

    /// Whether the host of a topic may grant permits now: this process knows of no refusal that still holds.
    pub(super) fn may_begin(&self, topic: &TopicName, now: Instant) -> bool {
        let host = self.by_topic.get(topic).map(|host| &self.hosts[*host]);
        host.is_none_or(|host| self.limits.refused_until(&host.name, now).is_none())
    }

    /// Takes a job that was leased. None: it waits for an answer about permits.
    pub(super) fn take(&mut self, mut job: HeldJob, now: Instant) -> Option<HostDecision> {
        // If the URL of a job cannot be used, the callback begins at once, and fails.
        let url = job.topic.url_for(job.leased.headers.destination());
        job.host = url.ok().and_then(|url| self.host_of(&url));
        let Some(host) = job.host else { return Some(HostDecision::Begin(job)) };
        self.hosts[host].waiting.push_back(job);
        self.decide_one(host, now)
    }

    /// Decides on the job that has waited longest for a host. None: there is no answer yet.
    fn decide_one(&mut self, host: usize, now: Instant) -> Option<HostDecision> {
        let HostLimits { limits, hosts, .. } = self;
        let host = &mut hosts[host];
        if limits.allowed(&host.name).is_some_and(|allowed| allowed > 0) {
            let job = host.waiting.pop_front()?;
            limits.reserve(&host.name, 1);
            limits.leased(&host.name, 1, 1);
            return Some(HostDecision::Begin(job));
        }
        let from = limits.refused_until(&host.name, now)?;
        let job = host.waiting.pop_front()?;
        let wait = host.postpone(from, now);
        Some(HostDecision::Postpone(job, wait))
    }

    /// Returns what happens to the waiting jobs. A job is left out while there is no answer about the permits of its
    /// host.
    pub(super) fn decide(&mut self, now: Instant) -> Vec<HostDecision> {
        let hosts: Vec<usize> =
            (0..self.hosts.len()).filter(|host| !self.hosts[*host].waiting.is_empty()).collect();
        let mut decisions = Vec::new();
        for host in hosts {
            decisions.extend(std::iter::from_fn(|| self.decide_one(host, now)));
        }
        decisions
    }

    /// Returns the waiting jobs for which `ends_wait` is true. They do not wait any longer.
    pub(super) fn take_waiting(&mut self, ends_wait: impl Fn(&HeldJob) -> bool) -> Vec<HeldJob> {
        let mut taken = Vec::new();
        for host in &mut self.hosts {
            let (ended, waiting) = host.waiting.drain(..).partition::<Vec<_>, _>(&ends_wait);
            host.waiting.extend(waiting);
            taken.extend(ended);
        }
        taken
    }

    /// Returns how many jobs wait for an answer about permits.
    pub(super) fn waiting(&self) -> u32 {
        self.hosts.iter().map(|host| host.waiting.len() as u32).sum()
    }

    /// Records that a callback to a host ended, and how long it took.
    pub(super) fn record_end(&mut self, host: usize, took: Duration) {
        let host = &mut self.hosts[host];
        host.took = (host.took * 7 + took) / 8;
        self.limits.record_end(&host.name, true);
    }

    /// Returns the questions that must be asked now, and the topics whose jobs may begin without asking. `free` is the
    /// number of workers that no lease under way may need. `idle` is the number of workers that have no callback, and
    /// that are not kept for a job that waits here. Both are 0 in a drain.
    pub(super) fn asks(
        &mut self,
        now: Instant,
        (free, idle): (u32, u32),
        fair: &Fair,
        topic_limits: &Limits,
    ) -> (Vec<PermitRequest>, Vec<TopicName>) {
        let (hosts, mut granted) = (&self.hosts, Vec::new());
        let find = |name: &LimitName| hosts.iter().find(|host| host.name == *name);
        // A topic with limits of its own asks its host for no more permits than the topic itself has.
        let wants = |name: &LimitName| {
            find(name)
                .map_or(0, |host| host.wanted_callbacks(free, fair, |topic| topic_limits.allowed(topic)))
        };
        let could = |name: &LimitName| {
            find(name).map_or(0, |host| host.wanted_callbacks(idle, fair, |topic| topic_limits.usable(topic)))
        };
        let asks = self.limits.asks(now, wants, could, |name| {
            granted.extend(find(name).iter().flat_map(|host| host.topics.iter().cloned()));
        });
        (asks, granted)
    }

    /// Takes the answer to a question, if the question is about a host. Returns the topics whose jobs may begin now.
    /// None: the question is about a topic.
    pub(super) fn answered(
        &mut self,
        ask: &PermitRequest,
        permit: Option<Permit>,
        now: Instant,
    ) -> Option<Vec<TopicName>> {
        let host = self.hosts.iter().find(|host| host.name == ask.name)?;
        let may_begin = self.limits.answered(ask, permit, now);
        Some(if may_begin { host.topics.clone() } else { Vec::new() })
    }

    /// Returns the topics whose callbacks go to a host, if the name is the name of a host.
    pub(super) fn topics_of(&self, name: &LimitName) -> Option<&[TopicName]> {
        self.hosts.iter().find(|host| host.name == *name).map(|host| host.topics.as_slice())
    }

    /// Returns when `asks` must be called again.
    pub(super) fn next(
        &self,
        now: Instant,
        free: u32,
        fair: &Fair,
        topic_limits: &Limits,
    ) -> Option<Instant> {
        self.limits.next(|name| {
            let Some(host) = self.hosts.iter().find(|host| host.name == *name) else { return 0 };
            // While the host refuses, its topics do not ask for permits of their own.
            let is_refused = self.limits.refused_until(name, now).is_some();
            host.wanted_callbacks(free, fair, |topic| topic_limits.allowed(topic).filter(|_| !is_refused))
        })
    }

    /// Whether a drain is complete here: no job waits, and each home that can be reached knows that this process holds
    /// no permits.
    pub(super) fn is_drained(&self) -> bool {
        self.waiting() == 0 && self.limits.is_drained()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topic::{HostPattern, Rate};

    fn host(max_in_flight: Option<u32>, rate: Option<Rate>, now: Instant) -> Host {
        let name = "h.example".to_owned();
        let limit = HostLimit { host: HostPattern::parse(&name).unwrap(), name, max_in_flight, rate };
        let (name, topics) = (LimitName::from_host("h.example"), Vec::new());
        Host { name, limit, topics, waiting: VecDeque::new(), slot: now, took: FIRST_GUESS }
    }

    #[test]
    fn postponed_jobs_come_one_after_the_other() {
        let now = Instant::now();
        let mut by_rate = host(None, Some(Rate::per_second(10)), now);
        let from = now + Duration::from_millis(50);
        let waits: Vec<u128> = (0..4).map(|_| by_rate.postpone(from, now).as_millis()).collect();
        assert_eq!(waits, [150, 250, 350, 450]);
        let mut by_calls = host(Some(2), None, now);
        by_calls.took = Duration::from_secs(4);
        let waits: Vec<u64> = (0..3).map(|_| by_calls.postpone(now, now).as_secs()).collect();
        assert_eq!(waits, [1, 2, 3]);
        assert_eq!(host(Some(1000), None, now).postpone(now, now), POSTPONED_MIN);
    }

    #[test]
    fn no_job_is_postponed_for_longer_than_five_minutes() {
        let now = Instant::now();
        let mut slow = host(None, Some("1/h".parse().unwrap()), now);
        for _ in 0..100 {
            let wait = slow.postpone(now, now);
            assert!((POSTPONED_MAX / 2..=POSTPONED_MAX).contains(&wait), "{wait:?}");
        }
        // When the backlog is gone, it delays no further jobs.
        let later = now + 2 * POSTPONED_MAX;
        slow.limit.rate = Some(Rate::per_second(1));
        assert_eq!(slow.postpone(later, later), Duration::from_secs(1));
    }
}

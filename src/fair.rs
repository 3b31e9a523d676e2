//! Which topics a consumer leases from next, and how many jobs of each. Pure.
//!
//! Two rules. A topic may have one more callback in flight only while its callbacks in flight are fewer than the free
//! workers (a dynamic threshold): a topic whose callback hangs takes at most half of the workers, a second one half of
//! the rest, so that the next topic always finds some free. And free workers go round the topics one by one, from a
//! start that moves with each plan, so that ten thousand ready jobs of one topic do not delay another's.

use std::collections::HashMap;

use crate::job::TopicName;

/// How many jobs to ask of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// The topic.
    pub topic: TopicName,
    /// At most this many; never 0.
    pub max: u32,
}

/// What the planner remembers from one lease to the next: ready jobs as the store last told them, callbacks in flight.
#[derive(Debug)]
pub struct Fair {
    topics: Vec<TopicName>,
    start: usize,
    ready: HashMap<TopicName, u64>,
    in_flight: HashMap<TopicName, u32>,
}

impl Fair {
    /// A planner for these topics; of none of them is anything known.
    pub fn new(topics: Vec<TopicName>) -> Fair {
        let none = (HashMap::new(), HashMap::new());
        let mut fair = Fair { topics: Vec::new(), start: 0, ready: none.0, in_flight: none.1 };
        fair.serve(topics);
        fair
    }

    /// From now on these are served. Callbacks in flight count on, whatever their topic.
    pub fn serve(&mut self, mut topics: Vec<TopicName>) {
        topics.sort();
        self.ready.retain(|topic, _| topics.binary_search(topic).is_ok());
        self.topics = topics;
    }

    /// Notes what the store told at the last lease: the topics with ready jobs left, and how many. Topics that this
    /// planner does not serve are passed over.
    pub fn left(&mut self, ready: impl IntoIterator<Item = (TopicName, u64)>) {
        let served = |(topic, _): &(TopicName, u64)| self.topics.binary_search(topic).is_ok();
        self.ready = ready.into_iter().filter(served).collect();
    }

    /// Notes that callbacks of a topic began.
    pub fn began(&mut self, topic: &TopicName) {
        *self.in_flight.entry(topic.clone()).or_default() += 1;
    }

    /// Notes that a callback of a topic ended.
    pub fn ended(&mut self, topic: &TopicName) {
        if let Some(n) = self.in_flight.get_mut(topic) {
            *n -= 1;
            if *n == 0 {
                self.in_flight.remove(topic);
            }
        }
    }

    /// Divides `free` workers over the topics that are known to have ready jobs, and asks each of the others for one,
    /// in case it has some. Together that may be more than `free`: the lease stops there, and who stood at the end is
    /// nearer to the front of the next plan.
    pub fn plan(&mut self, free: u32) -> Vec<Quota> {
        let count = self.topics.len();
        if free == 0 || count == 0 {
            return Vec::new();
        }
        self.start = (self.start + 1) % count;
        let order = (0..count).map(|i| &self.topics[(self.start + i) % count]);
        let flying = |topic: &TopicName| self.in_flight.get(topic).copied().unwrap_or(0);
        let mut quotas: Vec<Quota> = order
            .map(|topic| {
                let probe = !self.ready.contains_key(topic) && free > flying(topic);
                Quota { topic: topic.clone(), max: u32::from(probe) }
            })
            .collect();
        let mut wanting: Vec<(usize, u64)> =
            quotas.iter().enumerate().filter_map(|(i, q)| Some((i, *self.ready.get(&q.topic)?))).collect();
        let mut unused = free;
        while unused > 0 && !wanting.is_empty() {
            wanting.retain(|&(i, ready)| {
                let quota = &mut quotas[i];
                let may = u64::from(quota.max) < ready && unused > flying(&quota.topic) + quota.max;
                quota.max += u32::from(may);
                unused -= u32::from(may);
                may
            });
        }
        quotas.retain(|q| q.max > 0);
        quotas
    }

    /// Whether the store told of ready jobs that could be started now with `free` workers.
    pub fn more(&self, free: u32) -> bool {
        self.ready.iter().any(|(topic, n)| *n > 0 && free > self.in_flight.get(topic).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: &str) -> TopicName {
        TopicName::new(n).unwrap()
    }

    fn fair(topics: &[&str]) -> Fair {
        Fair::new(topics.iter().map(|t| name(t)).collect())
    }

    fn max_of(plan: &[Quota], topic: &str) -> u32 {
        plan.iter().find(|q| q.topic.as_str() == topic).map_or(0, |q| q.max)
    }

    #[test]
    fn free_workers_are_divided_evenly_over_the_topics_that_want_them() {
        let mut f = fair(&["a", "b", "c"]);
        f.left([(name("a"), 10_000), (name("b"), 5), (name("c"), 10_000)]);
        let plan = f.plan(64);
        assert_eq!(max_of(&plan, "b"), 5);
        assert!(max_of(&plan, "a").abs_diff(max_of(&plan, "c")) <= 1, "{plan:?}");
        assert!(plan.iter().map(|q| q.max).sum::<u32>() <= 64);
    }

    #[test]
    fn a_topic_that_hangs_leaves_workers_for_the_others() {
        let (mut f, mut free) = (fair(&["slow", "fast"]), 64);
        f.left([(name("slow"), 10_000)]);
        for _ in 0..64 {
            let slow = max_of(&f.plan(free), "slow");
            (0..slow).for_each(|_| f.began(&name("slow")));
            free -= slow;
        }
        assert_eq!(free, 32);
        f.left([(name("slow"), 10_000), (name("fast"), 10_000)]);
        assert_eq!(max_of(&f.plan(free), "slow"), 0);
        assert!(max_of(&f.plan(free), "fast") >= 15);
    }

    #[test]
    fn a_single_worker_serves_every_topic_in_turn() {
        let mut f = fair(&["a", "b", "c"]);
        let mut served = std::collections::HashSet::new();
        for _ in 0..3 {
            f.left([(name("a"), 9), (name("b"), 9), (name("c"), 9)]);
            let plan = f.plan(1);
            assert_eq!(plan.len(), 1);
            served.insert(plan[0].topic.clone());
        }
        assert_eq!(served.len(), 3);
    }

    #[test]
    fn topics_of_which_nothing_is_known_are_all_asked() {
        let names: Vec<String> = (0..200).map(|i| format!("t{i}")).collect();
        let mut f = fair(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(f.plan(4).len(), 200);
        f.left([(name("t7"), 100)]);
        assert!(max_of(&f.plan(4), "t7") >= 1);
    }

    #[test]
    fn a_topic_that_is_new_is_asked_and_one_that_is_gone_is_not() {
        let mut f = fair(&["a", "b"]);
        f.left([(name("a"), 3), (name("b"), 3)]);
        f.began(&name("a"));
        f.serve(vec![name("c"), name("b")]);
        let plan = f.plan(8);
        assert_eq!((max_of(&plan, "a"), max_of(&plan, "b"), max_of(&plan, "c")), (0, 3, 1));
        f.ended(&name("a"));
        f.serve(Vec::new());
        assert!(f.plan(8).is_empty() && !f.more(8));
    }

    #[test]
    fn more_tells_only_of_what_could_start() {
        let mut f = fair(&["a"]);
        assert!(!f.more(8));
        f.left([(name("a"), 3)]);
        assert!(f.more(8));
        (0..8).for_each(|_| f.began(&name("a")));
        assert!(!f.more(8));
        f.left([(name("of-another-release"), 3)]);
        assert!(!f.more(8));
        f.left([(name("a"), 3)]);
        f.ended(&name("a"));
        assert!(f.more(8));
    }
}

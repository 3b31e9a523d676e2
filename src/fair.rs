//! Which topics a consumer leases from next, and how many jobs of each. Pure.
//!
//! Two rules. A topic may have one more callback in flight only while its callbacks in flight are fewer than the free
//! workers (a dynamic threshold): a topic whose callback hangs takes at most half of the workers, a second one half of
//! the rest, so that the next topic always finds some free. And free workers go to the topic that has had least of its
//! share (stride scheduling), so that ten thousand ready jobs of one topic do not delay another's.
//!
//! Priorities weigh both, 5 to 3 to 2: among topics that have ready jobs, the highest of them go by the free workers as they
//! are, the lower by their part of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::job::{Priority, TopicName};

/// How far a topic that was held back may be behind the others, and catches up: a hundred jobs of a normal one.
const CREDIT: u64 = 1000;

/// How many jobs to ask of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// The topic.
    pub topic: TopicName,
    /// At most this many; never 0.
    pub max: u32,
}

/// Of how many jobs together so many are of this priority, when all are busy.
fn weight(priority: Priority) -> u32 {
    match priority {
        Priority::High => 5,
        Priority::Normal => 3,
        Priority::Low => 2,
    }
}

/// By how much a topic of that weight moves on with each job. (30 is divisible by all weights.)
fn stride(weight: u32) -> u64 {
    u64::from(30 / weight)
}

/// What the planner remembers from one lease to the next: ready jobs as the store last told them, callbacks in flight, and what
/// each topic has had.
#[derive(Debug)]
pub struct Fair {
    /// By name, with their weights.
    topics: Vec<(TopicName, u32)>,
    start: usize,
    /// Of each lane.
    ready: Vec<HashMap<TopicName, u64>>,
    in_flight: HashMap<TopicName, u32>,
    /// How far each has come; whoever is least far is next.
    passes: HashMap<TopicName, u64>,
    /// How far whoever begins to have ready jobs has come at least.
    now: u64,
    /// Those that had ready jobs at the last plan.
    active: HashSet<TopicName>,
    /// The greatest weight of the topics that have ready jobs.
    greatest: u32,
}

/// A topic in a plan.
struct Candidate {
    pass: u64,
    weight: u32,
    flying: u32,
    /// No more than so many are asked for.
    most: u64,
    max: u32,
}

impl Candidate {
    fn may_begin(&self, free: u32, top: u32) -> bool {
        u64::from(self.max) < self.most && may(self.flying + self.max, free, self.weight, top)
    }
}

/// The dynamic threshold: whether one more callback may begin. `top`: the greatest weight of those who want to.
fn may(flying: u32, free: u32, weight: u32, top: u32) -> bool {
    u64::from(flying) * u64::from(top) < u64::from(free) * u64::from(weight)
}

impl Fair {
    /// A planner for these topics, on so many lanes; of none of them is anything known.
    pub fn new(lanes: usize, topics: Vec<(TopicName, Priority)>) -> Fair {
        let mut fair = Fair {
            topics: Vec::new(),
            start: 0,
            ready: vec![HashMap::new(); lanes],
            in_flight: HashMap::new(),
            passes: HashMap::new(),
            now: 0,
            active: HashSet::new(),
            greatest: 1,
        };
        fair.serve(topics);
        fair
    }

    /// From now on these are served. Callbacks in flight count on, whatever their topic.
    pub fn serve(&mut self, topics: Vec<(TopicName, Priority)>) {
        self.topics = topics.into_iter().map(|(topic, priority)| (topic, weight(priority))).collect();
        self.topics.sort();
        let served: HashSet<&TopicName> = self.topics.iter().map(|(topic, _)| topic).collect();
        self.ready.iter_mut().for_each(|ready| ready.retain(|topic, _| served.contains(topic)));
        self.passes.retain(|topic, _| served.contains(topic));
        self.active.retain(|topic| served.contains(topic));
        self.greatest = self.top(|_| None);
    }

    fn weight(&self, topic: &TopicName) -> Option<u32> {
        let at = self.topics.binary_search_by(|(name, _)| name.cmp(topic)).ok()?;
        Some(self.topics[at].1)
    }

    /// Notes what a lane told at its last lease: the topics with ready jobs left, and how many. Topics that this planner does
    /// not serve are passed over.
    pub fn left(&mut self, lane: usize, ready: impl IntoIterator<Item = (TopicName, u64)>) {
        let served = |(topic, n): &(TopicName, u64)| *n > 0 && self.weight(topic).is_some();
        self.ready[lane] = ready.into_iter().filter(served).collect();
        self.greatest = self.top(|_| None);
    }

    /// How many callbacks of a topic are in flight.
    pub fn in_flight(&self, topic: &TopicName) -> u32 {
        self.in_flight.get(topic).copied().unwrap_or(0)
    }

    /// Notes that a callback of a topic began.
    pub fn began(&mut self, topic: &TopicName) {
        *self.in_flight.entry(topic.clone()).or_default() += 1;
        if let Some(weight) = self.weight(topic) {
            *self.passes.entry(topic.clone()).or_insert(self.now) += stride(weight);
        }
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

    /// The greatest weight of the topics that have ready jobs, and may begin some.
    fn top(&self, allowed: impl Fn(&TopicName) -> Option<u32>) -> u32 {
        let some = self.ready.iter().flat_map(HashMap::keys).filter(|topic| allowed(topic) != Some(0));
        some.filter_map(|topic| self.weight(topic)).max().unwrap_or(1)
    }

    /// Divides `limit` of the `free` workers over the topics that are known to have ready jobs on a lane, and asks each of the others
    /// for one, in case it has some. Together that may be more than `limit`: the lease stops there; who has had least stands first.
    /// `allowed` gives how many of a topic with limits may begin now; of those, only what is known to be there is asked for.
    pub fn plan(
        &mut self,
        lane: usize,
        free: u32,
        limit: u32,
        allowed: impl Fn(&TopicName) -> Option<u32>,
    ) -> Vec<Quota> {
        let count = self.topics.len();
        if free == 0 || count == 0 {
            return Vec::new();
        }
        self.catch_up(free, &allowed);
        self.start = (self.start + 1) % count;
        let top = self.top(&allowed);
        let mut candidates: Vec<(usize, Candidate)> = Vec::new();
        let mut heap = BinaryHeap::new();
        for i in (0..count).map(|i| (self.start + i) % count) {
            let (topic, weight) = &self.topics[i];
            let flying = self.in_flight(topic);
            let behind = self.passes.get(topic).copied().unwrap_or(0);
            let pass = if self.active.contains(topic) { behind } else { behind.max(self.now) };
            let mut candidate = Candidate { pass, weight: *weight, flying, most: 0, max: 0 };
            match (self.ready[lane].get(topic), allowed(topic)) {
                (Some(ready), most) => {
                    candidate.most = (*ready).min(most.map_or(u64::MAX, u64::from));
                    heap.push(Reverse((pass, candidates.len())));
                }
                (None, None) => candidate.max = u32::from(free > flying),
                (None, Some(_)) => {}
            }
            candidates.push((i, candidate));
        }
        let (mut unused, last) = (free, free.saturating_sub(limit));
        while unused > last
            && let Some(Reverse((pass, i))) = heap.pop()
        {
            let candidate = &mut candidates[i].1;
            // With fewer workers free it will not be allowed more.
            if candidate.may_begin(unused, top) {
                candidate.max += 1;
                unused -= 1;
                heap.push(Reverse((pass + stride(candidate.weight), i)));
            }
        }
        candidates.sort_by_key(|(_, candidate)| candidate.pass);
        let asked = candidates.into_iter().filter(|(_, candidate)| candidate.max > 0);
        asked.map(|(i, c)| Quota { topic: self.topics[i].0.clone(), max: c.max }).collect()
    }

    /// Brings those forward that had nothing to do, or were held back for long: nobody is owed more than a little.
    fn catch_up(&mut self, free: u32, allowed: &impl Fn(&TopicName) -> Option<u32>) {
        let active: HashSet<TopicName> = self.ready.iter().flat_map(HashMap::keys).cloned().collect();
        let top = self.top(allowed);
        let mut least = None;
        for topic in &active {
            let behind = if self.active.contains(topic) { CREDIT } else { 0 };
            let pass = self.passes.entry(topic.clone()).or_default();
            *pass = (*pass).max(self.now.saturating_sub(behind));
            let pass = *pass;
            let may_begin = allowed(topic) != Some(0)
                && self.weight(topic).is_some_and(|w| may(self.in_flight(topic), free, w, top));
            if may_begin {
                least = Some(least.map_or(pass, |l: u64| l.min(pass)));
            }
        }
        self.now = self.now.max(least.unwrap_or(0));
        self.active = active;
    }

    /// How many more callbacks of a topic could begin with `free` workers, were it not for its limits.
    pub fn wants(&self, topic: &TopicName, free: u32) -> u32 {
        let ready: u64 = self.ready.iter().filter_map(|ready| ready.get(topic)).sum();
        let Some(weight) = self.weight(topic).filter(|_| ready > 0) else { return 0 };
        let (flying, top) = (self.in_flight(topic), self.greatest);
        let most = ready.min(u64::from(free)) as u32;
        (0..most).take_while(|n| may(flying + n, free - n, weight, top)).count() as u32
    }

    /// Whether a lane told of ready jobs that could be started now with `free` workers.
    pub fn more(&self, lane: usize, free: u32, allowed: impl Fn(&TopicName) -> Option<u32>) -> bool {
        let top = self.top(&allowed);
        self.ready[lane].keys().any(|topic| {
            allowed(topic) != Some(0)
                && self.weight(topic).is_some_and(|w| may(self.in_flight(topic), free, w, top))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(n: &str) -> TopicName {
        TopicName::new(n).unwrap()
    }

    fn fair(topics: &[&str]) -> Fair {
        Fair::new(1, topics.iter().map(|t| (name(t), Priority::Normal)).collect())
    }

    fn unlimited(_: &TopicName) -> Option<u32> {
        None
    }

    fn max_of(plan: &[Quota], topic: &str) -> u32 {
        plan.iter().find(|q| q.topic.as_str() == topic).map_or(0, |q| q.max)
    }

    #[test]
    fn free_workers_are_divided_evenly_over_the_topics_that_want_them() {
        let mut f = fair(&["a", "b", "c"]);
        f.left(0, [(name("a"), 10_000), (name("b"), 5), (name("c"), 10_000)]);
        let plan = f.plan(0, 64, 64, unlimited);
        assert_eq!(max_of(&plan, "b"), 5);
        assert!(max_of(&plan, "a").abs_diff(max_of(&plan, "c")) <= 1, "{plan:?}");
        assert!(plan.iter().map(|q| q.max).sum::<u32>() <= 64);
    }

    #[test]
    fn a_topic_that_hangs_leaves_workers_for_the_others() {
        let (mut f, mut free) = (fair(&["slow", "fast"]), 64);
        f.left(0, [(name("slow"), 10_000)]);
        for _ in 0..64 {
            let slow = max_of(&f.plan(0, free, free, unlimited), "slow");
            (0..slow).for_each(|_| f.began(&name("slow")));
            free -= slow;
        }
        assert_eq!(free, 32);
        f.left(0, [(name("slow"), 10_000), (name("fast"), 10_000)]);
        assert_eq!(max_of(&f.plan(0, free, free, unlimited), "slow"), 0);
        assert!(max_of(&f.plan(0, free, free, unlimited), "fast") >= 15);
    }

    #[test]
    fn a_single_worker_serves_every_topic_in_turn() {
        let mut f = fair(&["a", "b", "c"]);
        let mut served = HashSet::new();
        for _ in 0..3 {
            f.left(0, [(name("a"), 9), (name("b"), 9), (name("c"), 9)]);
            let plan = f.plan(0, 1, 1, unlimited);
            assert_eq!(plan.len(), 1);
            served.insert(plan[0].topic.clone());
            f.began(&plan[0].topic);
            f.ended(&plan[0].topic);
        }
        assert_eq!(served.len(), 3);
    }

    #[test]
    fn topics_of_which_nothing_is_known_are_all_asked() {
        let names: Vec<String> = (0..200).map(|i| format!("t{i}")).collect();
        let mut f = fair(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(f.plan(0, 4, 4, unlimited).len(), 200);
        f.left(0, [(name("t7"), 100)]);
        assert!(max_of(&f.plan(0, 4, 4, unlimited), "t7") >= 1);
    }

    #[test]
    fn a_topic_that_is_new_is_asked_and_one_that_is_gone_is_not() {
        let mut f = fair(&["a", "b"]);
        f.left(0, [(name("a"), 3), (name("b"), 3)]);
        f.began(&name("a"));
        f.serve(vec![(name("c"), Priority::Low), (name("b"), Priority::High)]);
        let plan = f.plan(0, 8, 8, unlimited);
        assert_eq!((max_of(&plan, "a"), max_of(&plan, "b"), max_of(&plan, "c")), (0, 3, 1));
        f.ended(&name("a"));
        f.serve(Vec::new());
        assert!(f.plan(0, 8, 8, unlimited).is_empty() && !f.more(0, 8, unlimited));
    }

    #[test]
    fn more_tells_only_of_what_could_start() {
        let mut f = fair(&["a"]);
        assert!(!f.more(0, 8, unlimited));
        f.left(0, [(name("a"), 3)]);
        assert!(f.more(0, 8, unlimited) && !f.more(0, 8, |_| Some(0)));
        (0..8).for_each(|_| f.began(&name("a")));
        assert!(!f.more(0, 8, unlimited));
        f.left(0, [(name("of-another-release"), 3)]);
        assert!(!f.more(0, 8, unlimited));
        f.left(0, [(name("a"), 3)]);
        f.ended(&name("a"));
        assert!(f.more(0, 8, unlimited));
    }

    #[test]
    fn a_topic_with_limits_is_asked_for_what_it_may_and_what_is_there() {
        let mut f = fair(&["a", "b"]);
        let only_b = |may: u32| move |topic: &TopicName| (topic.as_str() == "b").then_some(may);
        assert_eq!(max_of(&f.plan(0, 8, 8, only_b(3)), "b"), 0, "it is not asked in case it has some");
        f.left(0, [(name("a"), 9), (name("b"), 9)]);
        assert_eq!(max_of(&f.plan(0, 16, 16, only_b(0)), "b"), 0);
        assert_eq!(max_of(&f.plan(0, 16, 16, only_b(2)), "b"), 2);
        assert_eq!((f.wants(&name("b"), 16), f.wants(&name("b"), 2), f.wants(&name("c"), 16)), (8, 1, 0));
        f.left(0, [(name("b"), 4)]);
        assert_eq!(f.wants(&name("b"), 64), 4);
    }

    #[test]
    fn each_lane_is_asked_for_what_it_has() {
        let mut f = Fair::new(2, vec![(name("a"), Priority::Normal), (name("b"), Priority::Normal)]);
        f.left(0, [(name("a"), 9)]);
        f.left(1, [(name("b"), 9)]);
        assert_eq!(max_of(&f.plan(0, 1, 1, unlimited), "a"), 1);
        assert_eq!(max_of(&f.plan(1, 1, 1, unlimited), "b"), 1);
        assert!(f.more(0, 1, unlimited) && f.more(1, 1, unlimited));
    }

    #[test]
    fn a_topic_that_was_held_back_is_not_owed_all_of_it() {
        let mut f = fair(&["a", "b", "c"]);
        let held = |topic: &TopicName| (topic.as_str() == "b").then_some(0);
        for _ in 0..10_000 {
            f.left(0, [(name("a"), 9), (name("b"), 9)]);
            f.plan(0, 1, 1, held).iter().for_each(|q| (f.began(&q.topic), f.ended(&q.topic)).0);
        }
        let mut had: HashMap<TopicName, u32> = HashMap::new();
        for _ in 0..300 {
            f.left(0, [(name("a"), 9), (name("b"), 9), (name("c"), 9)]);
            for quota in f.plan(0, 1, 1, unlimited) {
                f.began(&quota.topic);
                f.ended(&quota.topic);
                *had.entry(quota.topic).or_default() += 1;
            }
        }
        assert!(had[&name("a")] >= 50 && had[&name("c")] >= 50, "{had:?}");
    }

    const ALL: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

    /// Busy topics of these priorities, with so many workers, of which each is at a callback for some rounds. Gives how many
    /// callbacks of each began, from the moment on when all are busy.
    fn simulate(priorities: &[Priority], workers: u32, rounds: &[u8], lanes: usize) -> Vec<u32> {
        let names: Vec<TopicName> = (0..priorities.len()).map(|i| name(&format!("t{i}"))).collect();
        let mut f = Fair::new(lanes, names.iter().cloned().zip(priorities.iter().copied()).collect());
        let mut flying: Vec<(usize, u8)> = Vec::new();
        let mut began = vec![0; names.len()];
        for (n, round) in rounds.iter().cycle().take(4000).enumerate() {
            flying.retain_mut(|(topic, left)| {
                *left -= 1;
                if *left == 0 {
                    f.ended(&names[*topic]);
                }
                *left > 0
            });
            let lane = n % lanes;
            f.left(lane, names.iter().map(|t| (t.clone(), 1000)));
            let free = workers - flying.len() as u32;
            let mut limit = free.div_ceil(lanes as u32);
            for quota in f.plan(lane, free, limit, unlimited) {
                let topic = names.iter().position(|n| *n == quota.topic).unwrap();
                for _ in 0..quota.max.min(limit) {
                    limit -= 1;
                    assert!(f.in_flight(&names[topic]) < workers);
                    f.began(&names[topic]);
                    flying.push((topic, round % 4 + 1));
                    began[topic] += u32::from(n > 400);
                }
            }
        }
        began
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// However long callbacks take: 5 to 3 to 2. (With a few workers it is the threshold that divides them.)
        #[test]
        fn busy_topics_have_their_shares(workers in 8_u32..100, rounds in prop::collection::vec(any::<u8>(), 1..40), lanes in 1_usize..3) {
            let began = simulate(&ALL, workers, &rounds, lanes);
            let sum = f64::from(began.iter().sum::<u32>());
            for (n, share) in began.iter().zip([0.5, 0.3, 0.2]) {
                let has = f64::from(*n) / sum;
                prop_assert!((has - share).abs() < 0.06, "{began:?} with {workers}");
            }
        }

        /// A topic that is alone has what any would have, whatever its priority.
        #[test]
        fn a_topic_that_is_alone_has_all(workers in 1_u32..100, rounds in prop::collection::vec(any::<u8>(), 1..40)) {
            let [high, normal, low] = ALL.map(|priority| simulate(&[priority], workers, &rounds, 1)[0]);
            prop_assert!(high > 0 && high == normal && normal == low);
        }

        /// The threshold: a topic never begins one with as many in flight as workers are free, and the last worker is there for
        /// a topic that has none.
        #[test]
        fn no_topic_takes_more_than_half(priorities in prop::collection::vec(0_usize..3, 1..6), workers in 2_u32..100) {
            let topics: Vec<_> = priorities.iter().enumerate().map(|(i, p)| (name(&format!("t{i}")), ALL[*p])).collect();
            let mut f = Fair::new(1, topics.clone());
            let mut free = workers;
            for _ in 0..workers {
                f.left(0, topics.iter().map(|(t, _)| (t.clone(), 1000)));
                for quota in f.plan(0, free, free, unlimited) {
                    free -= quota.max;
                    (0..quota.max).for_each(|_| f.began(&quota.topic));
                }
            }
            for (topic, _) in &topics {
                prop_assert!(f.in_flight(topic) <= workers.div_ceil(2), "{} of {workers}", f.in_flight(topic));
            }
            let left = workers >> topics.len();
            prop_assert!(free >= left.min(1), "{free} are free of {workers}");
        }
    }
}

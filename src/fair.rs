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
use std::collections::{BTreeMap, BinaryHeap, HashMap};

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

/// Which topics a plan asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Those that are known to have ready jobs.
    Known,
    /// Each of the others that have no limits as well, for one, in case it has some.
    All,
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
/// each topic has had. What is known to have ready jobs is little of what is served: plans go over that alone where they can.
#[derive(Debug)]
pub struct Fair {
    /// By name.
    topics: Vec<Known>,
    /// Where each stands there.
    places: HashMap<TopicName, usize>,
    start: usize,
    /// Of each lane: the topics with ready jobs by their places, and how many.
    ready: Vec<BTreeMap<usize, u64>>,
    /// Callbacks in flight of topics that are not served any more.
    strays: HashMap<TopicName, u32>,
    /// How far whoever begins to have ready jobs has come at least.
    now: u64,
    /// Those that had ready jobs at the last plan.
    active: Vec<usize>,
    /// The greatest weight of the topics that have ready jobs.
    greatest: u32,
}

/// What is known of a topic.
#[derive(Debug, Clone)]
struct Known {
    name: TopicName,
    weight: u32,
    in_flight: u32,
    /// How far it has come; whoever is least far is next.
    pass: u64,
    /// It had ready jobs at the last plan.
    is_active: bool,
}

/// A topic in a plan.
struct Candidate {
    place: usize,
    pass: u64,
    /// No more than so many are asked for.
    most: u64,
    max: u32,
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
            places: HashMap::new(),
            start: 0,
            ready: vec![BTreeMap::new(); lanes],
            strays: HashMap::new(),
            now: 0,
            active: Vec::new(),
            greatest: 1,
        };
        fair.serve(topics);
        fair
    }

    /// From now on these are served. Callbacks in flight count on, whatever their topic.
    pub fn serve(&mut self, mut topics: Vec<(TopicName, Priority)>) {
        topics.sort();
        let before = std::mem::take(&mut self.topics);
        let places: HashMap<TopicName, usize> =
            topics.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
        for (name, priority) in topics {
            let known = self.places.get(&name).map(|place| &before[*place]);
            self.topics.push(Known {
                weight: weight(priority),
                in_flight: known.map_or_else(|| self.strays.remove(&name).unwrap_or(0), |k| k.in_flight),
                pass: known.map_or(0, |k| k.pass),
                is_active: known.is_some_and(|k| k.is_active),
                name,
            });
        }
        let strays = before.iter().filter(|k| k.in_flight > 0 && !places.contains_key(&k.name));
        self.strays.extend(strays.map(|k| (k.name.clone(), k.in_flight)));
        for ready in &mut self.ready {
            let moved = |(place, n): (usize, u64)| Some((*places.get(&before[place].name)?, n));
            *ready = std::mem::take(ready).into_iter().filter_map(moved).collect();
        }
        self.places = places;
        self.active = (0..self.topics.len()).filter(|place| self.topics[*place].is_active).collect();
        self.greatest = self.top(|_| None);
    }

    fn known(&self, topic: &TopicName) -> Option<&Known> {
        self.places.get(topic).map(|place| &self.topics[*place])
    }

    /// Notes what a lane told at a lease: the topics with ready jobs left, and how many. Of those that were asked it has told all;
    /// of others what was known before holds, where it does not tell. Topics that this planner does not serve are passed over.
    pub fn left<'a>(
        &mut self,
        lane: usize,
        asked: impl IntoIterator<Item = &'a TopicName>,
        ready: impl IntoIterator<Item = (TopicName, u64)>,
    ) {
        for topic in asked {
            self.places.get(topic).map(|place| self.ready[lane].remove(place));
        }
        for (topic, n) in ready.into_iter().filter(|(_, n)| *n > 0) {
            self.places.get(&topic).map(|place| self.ready[lane].insert(*place, n));
        }
        self.greatest = self.top(|_| None);
    }

    /// Takes what is known of a lane's ready jobs for nothing any more. Gives their topics.
    pub fn forget(&mut self, lane: usize) -> Vec<TopicName> {
        let known = std::mem::take(&mut self.ready[lane]);
        self.greatest = self.top(|_| None);
        known.into_keys().map(|place| self.topics[place].name.clone()).collect()
    }

    /// Whether a lane is known to have ready jobs.
    pub fn knows_some(&self, lane: usize) -> bool {
        !self.ready[lane].is_empty()
    }

    /// Notes that a lane may have ready jobs of a topic.
    pub fn rang(&mut self, lane: usize, topic: &TopicName) {
        if let Some(place) = self.places.get(topic) {
            self.ready[lane].entry(*place).or_insert(1);
            self.greatest = self.greatest.max(self.topics[*place].weight);
        }
    }

    /// Whether a lane is known to have ready jobs of a topic.
    pub fn knows(&self, lane: usize, topic: &TopicName) -> bool {
        self.places.get(topic).is_some_and(|place| self.ready[lane].contains_key(place))
    }

    /// How many callbacks of a topic are in flight.
    pub fn in_flight(&self, topic: &TopicName) -> u32 {
        let stray = || self.strays.get(topic).copied().unwrap_or(0);
        self.known(topic).map_or_else(stray, |known| known.in_flight)
    }

    /// Notes that a callback of a topic began.
    pub fn began(&mut self, topic: &TopicName) {
        if let Some(place) = self.places.get(topic) {
            let known = &mut self.topics[*place];
            known.in_flight += 1;
            known.pass += stride(known.weight);
        } else {
            *self.strays.entry(topic.clone()).or_default() += 1;
        }
    }

    /// Notes that a callback of a topic ended.
    pub fn ended(&mut self, topic: &TopicName) {
        if let Some(place) = self.places.get(topic) {
            let known = &mut self.topics[*place];
            known.in_flight = known.in_flight.saturating_sub(1);
        } else if let Some(n) = self.strays.get_mut(topic) {
            *n -= 1;
            if *n == 0 {
                self.strays.remove(topic);
            }
        }
    }

    /// The greatest weight of the topics that have ready jobs, and may begin some.
    fn top(&self, allowed: impl Fn(&TopicName) -> Option<u32>) -> u32 {
        let known = self.ready.iter().flat_map(BTreeMap::keys).map(|place| &self.topics[*place]);
        known.filter(|k| allowed(&k.name) != Some(0)).map(|k| k.weight).max().unwrap_or(1)
    }

    /// Divides `limit` of the `free` workers over the topics that are known to have ready jobs on a lane; and asks others, if so it
    /// is to be. Together that may be more than `limit`: the lease stops there; who has had least stands first.
    /// `allowed` gives how many of a topic with limits may begin now; of those, only what is known to be there is asked for.
    pub fn plan(
        &mut self,
        lane: usize,
        free: u32,
        limit: u32,
        allowed: impl Fn(&TopicName) -> Option<u32>,
        asks: Asks,
    ) -> Vec<Quota> {
        let count = self.topics.len();
        if free == 0 || count == 0 {
            return Vec::new();
        }
        self.catch_up(free, &allowed);
        self.start = (self.start + 1) % count;
        let top = self.top(&allowed);
        let ready = &self.ready[lane];
        // From another one on each time: among those who have had the same, nobody is always the first.
        let known = ready.range(self.start..).chain(ready.range(..self.start));
        let mut candidates: Vec<Candidate> = known
            .map(|(place, ready)| {
                let most = allowed(&self.topics[*place].name).map_or(u64::MAX, u64::from);
                Candidate { place: *place, pass: self.pass(*place), most: most.min(*ready), max: 0 }
            })
            .collect();
        let mut heap: BinaryHeap<_> =
            candidates.iter().enumerate().map(|(i, c)| Reverse((c.pass, i))).collect();
        let (mut unused, last) = (free, free.saturating_sub(limit));
        while unused > last
            && let Some(Reverse((pass, i))) = heap.pop()
        {
            let candidate = &mut candidates[i];
            let Known { weight, in_flight, .. } = &self.topics[candidate.place];
            // With fewer workers free it will not be allowed more.
            let could = u64::from(candidate.max) < candidate.most;
            if could && may(in_flight + candidate.max, unused, *weight, top) {
                candidate.max += 1;
                unused -= 1;
                heap.push(Reverse((pass + stride(*weight), i)));
            }
        }
        if asks == Asks::All {
            let others = (0..count).filter(|place| !ready.contains_key(place));
            let could = |place: &usize| {
                free > self.topics[*place].in_flight && allowed(&self.topics[*place].name).is_none()
            };
            let asked = |place| Candidate { place, pass: self.pass(place), most: 1, max: 1 };
            candidates.extend(others.filter(could).map(asked));
        }
        candidates.retain(|candidate| candidate.max > 0);
        let from_start = |place: usize| (place + count - self.start) % count;
        candidates.sort_by_key(|candidate| (candidate.pass, from_start(candidate.place)));
        let quota = |c: Candidate| Quota { topic: self.topics[c.place].name.clone(), max: c.max };
        candidates.into_iter().map(quota).collect()
    }

    /// How far a topic has come, in a plan.
    fn pass(&self, place: usize) -> u64 {
        let Known { pass, is_active, .. } = self.topics[place];
        if is_active { pass } else { pass.max(self.now) }
    }

    /// Brings those forward that had nothing to do, or were held back for long: nobody is owed more than a little.
    fn catch_up(&mut self, free: u32, allowed: &impl Fn(&TopicName) -> Option<u32>) {
        let mut active: Vec<usize> = self.ready.iter().flat_map(BTreeMap::keys).copied().collect();
        active.sort_unstable();
        active.dedup();
        let top = self.top(allowed);
        let mut least = None;
        for place in &active {
            let known = &mut self.topics[*place];
            let behind = if known.is_active { CREDIT } else { 0 };
            known.pass = known.pass.max(self.now.saturating_sub(behind));
            if allowed(&known.name) != Some(0) && may(known.in_flight, free, known.weight, top) {
                least = Some(least.map_or(known.pass, |l: u64| l.min(known.pass)));
            }
        }
        self.now = self.now.max(least.unwrap_or(0));
        for place in std::mem::replace(&mut self.active, active) {
            self.topics[place].is_active = false;
        }
        for place in &self.active {
            self.topics[*place].is_active = true;
        }
    }

    /// How many more callbacks of a topic could begin with `free` workers, were it not for its limits.
    pub fn wants(&self, topic: &TopicName, free: u32) -> u32 {
        let Some(place) = self.places.get(topic) else { return 0 };
        let Known { weight, in_flight, .. } = self.topics[*place];
        let ready: u64 = self.ready.iter().filter_map(|ready| ready.get(place)).sum();
        let most = ready.min(u64::from(free)) as u32;
        (0..most).take_while(|n| may(in_flight + n, free - n, weight, self.greatest)).count() as u32
    }

    /// Whether a lane told of ready jobs that could be started now with `free` workers.
    pub fn more(&self, lane: usize, free: u32, allowed: impl Fn(&TopicName) -> Option<u32>) -> bool {
        let top = self.top(&allowed);
        let mut known = self.ready[lane].keys().map(|place| &self.topics[*place]);
        known.any(|k| allowed(&k.name) != Some(0) && may(k.in_flight, free, k.weight, top))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn name(n: &str) -> TopicName {
        TopicName::new(n).unwrap()
    }

    fn fair(topics: &[&str]) -> Fair {
        Fair::new(1, topics.iter().map(|t| (name(t), Priority::Normal)).collect())
    }

    /// All that is known of a lane from now on.
    fn left(f: &mut Fair, lane: usize, ready: impl IntoIterator<Item = (TopicName, u64)>) {
        f.forget(lane);
        f.left(lane, [], ready);
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
        left(&mut f, 0, [(name("a"), 10_000), (name("b"), 5), (name("c"), 10_000)]);
        let plan = f.plan(0, 64, 64, unlimited, Asks::All);
        assert_eq!(max_of(&plan, "b"), 5);
        assert!(max_of(&plan, "a").abs_diff(max_of(&plan, "c")) <= 1, "{plan:?}");
        assert!(plan.iter().map(|q| q.max).sum::<u32>() <= 64);
    }

    #[test]
    fn a_topic_that_hangs_leaves_workers_for_the_others() {
        let (mut f, mut free) = (fair(&["slow", "fast"]), 64);
        left(&mut f, 0, [(name("slow"), 10_000)]);
        for _ in 0..64 {
            let slow = max_of(&f.plan(0, free, free, unlimited, Asks::All), "slow");
            (0..slow).for_each(|_| f.began(&name("slow")));
            free -= slow;
        }
        assert_eq!(free, 32);
        left(&mut f, 0, [(name("slow"), 10_000), (name("fast"), 10_000)]);
        assert_eq!(max_of(&f.plan(0, free, free, unlimited, Asks::All), "slow"), 0);
        assert!(max_of(&f.plan(0, free, free, unlimited, Asks::All), "fast") >= 15);
    }

    #[test]
    fn a_single_worker_serves_every_topic_in_turn() {
        let mut f = fair(&["a", "b", "c"]);
        let mut served = HashSet::new();
        for _ in 0..3 {
            left(&mut f, 0, [(name("a"), 9), (name("b"), 9), (name("c"), 9)]);
            let plan = f.plan(0, 1, 1, unlimited, Asks::All);
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
        assert_eq!(f.plan(0, 4, 4, unlimited, Asks::All).len(), 200);
        left(&mut f, 0, [(name("t7"), 100)]);
        assert!(max_of(&f.plan(0, 4, 4, unlimited, Asks::All), "t7") >= 1);
    }

    #[test]
    fn those_that_are_known_are_asked_alone_until_the_store_tells_otherwise() {
        let mut f = fair(&["a", "b", "c", "d"]);
        let asked = |f: &mut Fair| -> Vec<(String, u32)> {
            let plan = f.plan(0, 64, 64, unlimited, Asks::Known);
            let mut asked: Vec<_> = plan.into_iter().map(|q| (q.topic.as_str().to_owned(), q.max)).collect();
            asked.sort();
            asked
        };
        assert_eq!(asked(&mut f), []);
        left(&mut f, 0, [(name("a"), 4), (name("b"), 4)]);
        f.rang(0, &name("b"));
        f.rang(0, &name("c"));
        f.rang(0, &name("of-another-host"));
        assert_eq!(asked(&mut f), [("a".to_owned(), 4), ("b".to_owned(), 4), ("c".to_owned(), 1)]);
        // Of `b` nothing was said, since it was not asked.
        f.left(0, &[name("a"), name("c")], [(name("c"), 7), (name("d"), 2)]);
        assert_eq!(asked(&mut f), [("b".to_owned(), 4), ("c".to_owned(), 7), ("d".to_owned(), 2)]);
        assert!(!f.knows(0, &name("a")) && f.knows(0, &name("b")));
        f.serve(["a", "c", "d", "e"].map(|t| (name(t), Priority::High)).to_vec());
        assert_eq!(asked(&mut f), [("c".to_owned(), 7), ("d".to_owned(), 2)]);
        left(&mut f, 0, []);
        assert_eq!(asked(&mut f), []);
    }

    #[test]
    fn a_topic_that_is_new_is_asked_and_one_that_is_gone_is_not() {
        let mut f = fair(&["a", "b"]);
        left(&mut f, 0, [(name("a"), 3), (name("b"), 3)]);
        f.began(&name("a"));
        f.serve(vec![(name("c"), Priority::Low), (name("b"), Priority::High)]);
        let plan = f.plan(0, 8, 8, unlimited, Asks::All);
        assert_eq!((max_of(&plan, "a"), max_of(&plan, "b"), max_of(&plan, "c")), (0, 3, 1));
        f.ended(&name("a"));
        f.serve(Vec::new());
        assert!(f.plan(0, 8, 8, unlimited, Asks::All).is_empty() && !f.more(0, 8, unlimited));
    }

    #[test]
    fn more_tells_only_of_what_could_start() {
        let mut f = fair(&["a"]);
        assert!(!f.more(0, 8, unlimited));
        left(&mut f, 0, [(name("a"), 3)]);
        assert!(f.more(0, 8, unlimited) && !f.more(0, 8, |_| Some(0)));
        (0..8).for_each(|_| f.began(&name("a")));
        assert!(!f.more(0, 8, unlimited));
        left(&mut f, 0, [(name("of-another-release"), 3)]);
        assert!(!f.more(0, 8, unlimited));
        left(&mut f, 0, [(name("a"), 3)]);
        f.ended(&name("a"));
        assert!(f.more(0, 8, unlimited));
    }

    #[test]
    fn a_topic_with_limits_is_asked_for_what_it_may_and_what_is_there() {
        let mut f = fair(&["a", "b"]);
        let only_b = |may: u32| move |topic: &TopicName| (topic.as_str() == "b").then_some(may);
        assert_eq!(
            max_of(&f.plan(0, 8, 8, only_b(3), Asks::All), "b"),
            0,
            "it is not asked in case it has some"
        );
        left(&mut f, 0, [(name("a"), 9), (name("b"), 9)]);
        assert_eq!(max_of(&f.plan(0, 16, 16, only_b(0), Asks::All), "b"), 0);
        assert_eq!(max_of(&f.plan(0, 16, 16, only_b(2), Asks::All), "b"), 2);
        assert_eq!((f.wants(&name("b"), 16), f.wants(&name("b"), 2), f.wants(&name("c"), 16)), (8, 1, 0));
        left(&mut f, 0, [(name("b"), 4)]);
        assert_eq!(f.wants(&name("b"), 64), 4);
    }

    #[test]
    fn each_lane_is_asked_for_what_it_has() {
        let mut f = Fair::new(2, vec![(name("a"), Priority::Normal), (name("b"), Priority::Normal)]);
        left(&mut f, 0, [(name("a"), 9)]);
        left(&mut f, 1, [(name("b"), 9)]);
        assert_eq!(max_of(&f.plan(0, 1, 1, unlimited, Asks::All), "a"), 1);
        assert_eq!(max_of(&f.plan(1, 1, 1, unlimited, Asks::All), "b"), 1);
        assert!(f.more(0, 1, unlimited) && f.more(1, 1, unlimited));
    }

    #[test]
    fn a_topic_that_was_held_back_is_not_owed_all_of_it() {
        let mut f = fair(&["a", "b", "c"]);
        let held = |topic: &TopicName| (topic.as_str() == "b").then_some(0);
        for _ in 0..10_000 {
            left(&mut f, 0, [(name("a"), 9), (name("b"), 9)]);
            f.plan(0, 1, 1, held, Asks::All).iter().for_each(|q| (f.began(&q.topic), f.ended(&q.topic)).0);
        }
        let mut had: HashMap<TopicName, u32> = HashMap::new();
        for _ in 0..300 {
            left(&mut f, 0, [(name("a"), 9), (name("b"), 9), (name("c"), 9)]);
            for quota in f.plan(0, 1, 1, unlimited, Asks::All) {
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
            left(&mut f, lane, names.iter().map(|t| (t.clone(), 1000)));
            let free = workers - flying.len() as u32;
            let mut limit = free.div_ceil(lanes as u32);
            for quota in f.plan(lane, free, limit, unlimited, Asks::All) {
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

        /// Whether the others are asked as well makes no difference for those that are known.
        #[test]
        fn the_known_are_asked_for_the_same_either_way(
            ready in prop::collection::vec(0_u64..9, 1..40), flying in prop::collection::vec(0_u32..3, 40), limit in 1_u32..64
        ) {
            let names: Vec<TopicName> = (0..ready.len()).map(|i| name(&format!("t{i}"))).collect();
            let plan = |asks| {
                let topics = names.iter().enumerate().map(|(i, t)| (t.clone(), ALL[i % 3])).collect();
                let mut f = Fair::new(1, topics);
                names.iter().zip(&flying).for_each(|(t, n)| (0..*n).for_each(|_| f.began(t)));
                left(&mut f, 0, names.iter().cloned().zip(ready.iter().copied()));
                let plan = f.plan(0, 64, limit, unlimited, asks);
                plan.into_iter().filter(|q| f.knows(0, &q.topic)).collect::<Vec<_>>()
            };
            prop_assert_eq!(plan(Asks::All), plan(Asks::Known));
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
                left(&mut f, 0, topics.iter().map(|(t, _)| (t.clone(), 1000)));
                for quota in f.plan(0, free, free, unlimited, Asks::All) {
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

//! Rings that others are told of. Where a ring goes to one of those who listen, it may go to one who may not take what it rings
//! for: its workers are busy with that topic already, or its host does not serve it. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::job::TopicName;

/// How often others are told of what this process may take no more of, and at least how often of what it does not serve.
const SLOW: Duration = Duration::from_secs(1);

/// How soon it is looked whether somebody has taken what this process does not serve; it takes twice as long each time that nobody
/// has. What nobody serves would go round without end between processes that tell each other.
const SOON: Duration = Duration::from_millis(10);

/// Ready jobs that are for others, as a lease has left them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForOthers {
    pub topic: TopicName,
    pub ready: u64,
    /// This process never takes any of them.
    pub is_foreign: bool,
}

/// The topics of which others were told.
#[derive(Debug, Default)]
pub(super) struct Passing(HashMap<TopicName, Told>);

#[derive(Debug, Clone, Copy)]
struct Told {
    ready: u64,
    is_foreign: bool,
    pause: Duration,
    again_at: Instant,
    /// The next lease tells whether it is still there.
    is_looked_for: bool,
}

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Again {
    /// Others are told of these once more: they may have been busy.
    pub tell: Vec<TopicName>,
    /// Whether it is looked what is left.
    pub look: bool,
}

impl Passing {
    /// Takes all that a lease has left for others. Gives the topics that they are to be told of.
    pub(super) fn left(&mut self, left: Vec<ForOthers>, now: Instant) -> Vec<TopicName> {
        let mut before = std::mem::take(&mut self.0);
        let mut tell = Vec::new();
        for ForOthers { topic, ready, is_foreign } in left {
            let known = before.remove(&topic).filter(|told| told.is_foreign == is_foreign);
            let (told, is_news) = match known {
                None => (Told::first(ready, is_foreign, now), true),
                Some(told) if !is_foreign => (told, false),
                // Somebody takes them, or more have come, for which it rang as well.
                Some(told) if told.ready != ready => (Told::first(ready, is_foreign, now), true),
                Some(told) if told.is_looked_for => (told.patient(now), true),
                Some(told) => (told, false),
            };
            tell.extend(is_news.then(|| topic.clone()));
            self.0.insert(topic, told);
        }
        tell
    }

    /// What is to be done of what was told a while ago. `looks`: whether a lease could be made now.
    pub(super) fn again(&mut self, looks: bool, now: Instant) -> Again {
        let mut again = Again::default();
        for (topic, told) in self.0.iter_mut().filter(|(_, told)| told.again_at <= now) {
            if told.is_foreign && looks {
                (told.is_looked_for, again.look) = (true, true);
                told.again_at = now + told.pause;
            } else {
                *told = told.patient(now);
                again.tell.push(topic.clone());
            }
        }
        again
    }

    /// When there is something to be done.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|told| told.again_at).min()
    }
}

impl Told {
    fn first(ready: u64, is_foreign: bool, now: Instant) -> Told {
        let pause = if is_foreign { SOON } else { SLOW };
        Told { ready, is_foreign, pause, again_at: now + pause, is_looked_for: false }
    }

    /// It was told once more.
    fn patient(self, now: Instant) -> Told {
        let pause = (self.pause * 2).min(SLOW);
        Told { pause, again_at: now + pause, is_looked_for: false, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: &str) -> TopicName {
        TopicName::new(n).unwrap()
    }

    fn left(topic: &str, ready: u64, is_foreign: bool) -> Vec<ForOthers> {
        vec![ForOthers { topic: name(topic), ready, is_foreign }]
    }

    const NOBODY: Again = Again { tell: Vec::new(), look: false };

    #[test]
    fn what_others_may_take_is_told_once_and_again_each_second() {
        let (mut passing, start) = (Passing::default(), Instant::now());
        assert_eq!(passing.left(left("t", 5, false), start), [name("t")]);
        assert!(passing.left(left("t", 9, false), start + SOON).is_empty());
        assert_eq!(passing.next(), Some(start + SLOW));
        assert_eq!(passing.again(true, start + SOON), NOBODY);
        for second in 1..4 {
            let again = passing.again(true, start + SLOW * second);
            assert_eq!(again, Again { tell: vec![name("t")], look: false });
        }
        assert!(passing.left(Vec::new(), start).is_empty() && passing.next().is_none());
    }

    #[test]
    fn what_this_process_does_not_serve_is_looked_for_ever_more_rarely() {
        let (mut passing, mut now) = (Passing::default(), Instant::now());
        assert_eq!(passing.left(left("t", 1, true), now), [name("t")]);
        let (start, mut looks) = (now, 0);
        while now < start + SLOW * 10 {
            assert!(passing.left(left("t", 1, true), now).is_empty(), "rung for the same meanwhile");
            now = passing.next().unwrap();
            assert_eq!(passing.again(true, now), Again { tell: Vec::new(), look: true });
            assert!(passing.next().unwrap() > now, "the lease takes a while");
            now += Duration::from_millis(1);
            assert_eq!(passing.left(left("t", 1, true), now), [name("t")]);
            looks += 1;
        }
        assert!((14..=18).contains(&looks), "{looks} in ten seconds");
        // One of two has been taken, or one more has come.
        assert_eq!(passing.left(left("t", 2, true), now), [name("t")]);
        assert_eq!(passing.next(), Some(now + SOON));
    }

    #[test]
    fn who_cannot_look_tells_others_all_the_same() {
        let (mut passing, now) = (Passing::default(), Instant::now());
        passing.left(left("t", 1, true), now);
        assert_eq!(passing.again(false, now + SOON), Again { tell: vec![name("t")], look: false });
        assert_eq!(passing.next(), Some(now + SOON * 3));
        // It is served from now on.
        assert_eq!(passing.left(left("t", 1, false), now), [name("t")]);
    }
}

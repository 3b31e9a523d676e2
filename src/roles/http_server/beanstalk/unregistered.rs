//! Tubes without a topic. The protocol cannot tell the client why a put is refused. So the log names the tube, but each
//! tube only once a minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use model::job::TopicName;

/// After the log has named a tube, it does not name this tube again for this time.
const SILENCE: Duration = Duration::from_secs(60);

/// The maximum number of tubes that the log names within `SILENCE`.
const TUBES: usize = 64;

/// The topics of the tubes that the log has named, and the time when it named each tube.
#[derive(Debug, Default)]
pub(super) struct UnregisteredTubes(HashMap<TopicName, Instant>);

impl UnregisteredTubes {
    /// Returns whether the log must name the tube of this topic now.
    pub(super) fn is_due(&mut self, topic: &TopicName, now: Instant) -> bool {
        self.0.retain(|_, named| now.saturating_duration_since(*named) < SILENCE);
        if self.0.contains_key(topic) || self.0.len() >= TUBES {
            return false;
        }
        self.0.insert(topic.clone(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tube_is_named_once_a_minute_and_not_too_many_are() {
        let (mut tubes, begin) = (UnregisteredTubes::default(), Instant::now());
        let topic = |n: usize| TopicName::new(&format!("tube{n}")).unwrap();
        assert!(tubes.is_due(&topic(0), begin));
        assert!(!tubes.is_due(&topic(0), begin + Duration::from_secs(59)));
        assert!(tubes.is_due(&topic(1), begin + Duration::from_secs(59)));
        assert!(tubes.is_due(&topic(0), begin + Duration::from_secs(60)));
        let named = (2..1000).filter(|n| tubes.is_due(&topic(*n), begin + Duration::from_secs(61))).count();
        assert_eq!(named, TUBES - 2);
    }
}

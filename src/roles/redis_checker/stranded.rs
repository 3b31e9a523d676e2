//! Finds the topics whose due jobs nobody delivers, and the topics whose settings dq does not support. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::finding_kind::FindingKind;
use super::findings::FoundConditions;
use model::job::TopicName;
use model::topic::{TopicNonDeliveryReason, Topics};

/// What waits: how many jobs of a topic are ready, and when the oldest of them was due.
pub(super) type WaitingJobs = BTreeMap<TopicName, (u64, i64)>;

/// How long a due job that nobody delivers may wait before it is a finding. Somebody may be about to register its topic
/// again.
const AFTER: Duration = Duration::from_secs(10);

/// Returns each topic whose due jobs no process delivers, with the number of these jobs and the reason. Paused topics
/// count as well: if somebody resumed such a topic, its jobs would still not be delivered.
pub(super) fn stranded(
    waiting: &WaitingJobs,
    now_ms: i64,
    undelivered: impl Fn(&str) -> Option<TopicNonDeliveryReason>,
) -> FoundConditions {
    let mut found = BTreeMap::new();
    for (topic, (ready, oldest_ms)) in waiting {
        let waits = Duration::from_millis((now_ms - oldest_ms).max(0) as u64);
        if waits <= AFTER {
            continue;
        }
        if let Some(why) = undelivered(topic.as_str()) {
            found.insert(
                FindingKind::JobsStranded(topic.as_str().to_owned()),
                detail(topic, *ready, waits, &why),
            );
        }
    }
    found
}

fn detail(topic: &TopicName, ready: u64, waits: Duration, why: &TopicNonDeliveryReason) -> String {
    let waits = humantime::format_duration(Duration::from_secs(waits.as_secs()));
    let jobs = if ready == 1 { "1 due job waits".to_owned() } else { format!("{ready} due jobs wait") };
    let advice = match why {
        TopicNonDeliveryReason::Pull => format!("Start a worker, for example `dq reserve {topic} --exec …`"),
        TopicNonDeliveryReason::Unregistered | TopicNonDeliveryReason::Held(_) => {
            "They are delivered when that is fixed".to_owned()
        }
    };
    format!(
        "{jobs}, the oldest for {waits}: {why}. {advice}; `dq topics delete {topic} --purge` removes them"
    )
}

/// Returns the topics with settings that dq does not support, each with the problem and its consequence.
pub(super) fn problems(topics: &Topics) -> FoundConditions {
    let of = |name: &str, problem: String| (FindingKind::TopicProblem(name.to_owned()), problem);
    topics.iter().filter_map(|topic| Some(of(topic.name.as_str(), topic.problem()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topic::{DeliveryMode, Topic};

    fn name(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    #[test]
    fn undelivered_due_jobs_are_found_later_with_count_and_reason() {
        let topics = Topics::from_iter([
            Topic::new(name("served"), "http://h/"),
            Topic { mode: DeliveryMode::Pull, ..Topic::new(name("pulled"), "http://h/") },
        ]);
        let waiting =
            WaitingJobs::from([(name("served"), (1, 0)), (name("pulled"), (1, 0)), (name("gone"), (3, 0))]);
        let at = |now_ms| stranded(&waiting, now_ms, |name| topics.undelivered(name));
        assert_eq!(at(10_000), FoundConditions::new(), "its topic may be about to come");
        let found = at(10_001);
        let about = |name: &str| found[&FindingKind::JobsStranded(name.to_owned())].as_str();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            about("gone").starts_with("3 due jobs wait, the oldest for 10s: the topic is not registered.")
        );
        assert!(about("pulled").starts_with("1 due job waits") && about("pulled").contains("\"pull\""));
        assert!(about("pulled").contains("Start a worker, for example `dq reserve pulled --exec"));
        assert!(about("gone").contains("delivered when that is fixed"));
    }

    #[test]
    fn a_setting_that_dq_cannot_do_is_found_as_long_as_it_is_there() {
        let plain = Topic::new(name("t"), "http://h/");
        let flag = Topic { re_notify_flag: "system({res.a})".into(), ..plain.clone() };
        let found = problems(&Topics::from_iter([flag]));
        assert!(found[&FindingKind::TopicProblem("t".into())].contains("re_notify_flag"), "{found:?}");
        assert_eq!(problems(&Topics::from_iter([plain])), FoundConditions::new());
    }
}

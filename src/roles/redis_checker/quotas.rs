//! Finds the topics that hold nearly as much as their quota allows.

use std::collections::BTreeMap;

use super::finding_kind::FindingKind;
use super::findings::FoundConditions;
use model::job::TopicName;
use model::topic::{Rate, Size, Topic};
use store::Counts;

/// A quota is nearly used up if at least this part of its limit is used.
const NEARLY: f64 = 0.8;

/// What the topics of one lane hold: pending jobs, and bytes if they are counted.
pub(super) type TopicUsage = BTreeMap<TopicName, (u64, Option<u64>)>;

/// Returns what the topics of these counts hold.
pub(super) fn held(counts: &[Counts]) -> TopicUsage {
    counts.iter().map(|one| (one.topic.clone(), (one.pending(), one.bytes))).collect()
}

/// Returns the topics that have used at least four fifths of one of their limits. `add_rates`: how many jobs clients
/// add in one period of each topic's `add_rate`.
pub(super) fn nearly_used<'a>(
    lanes: impl Iterator<Item = &'a TopicUsage>,
    topics: impl Iterator<Item = &'a Topic>,
    add_rates: &BTreeMap<TopicName, u64>,
) -> FoundConditions {
    let mut sums: BTreeMap<&TopicName, (u64, u64)> = BTreeMap::new();
    for (topic, (pending, bytes)) in lanes.flatten() {
        let sum = sums.entry(topic).or_default();
        *sum = (sum.0 + pending, sum.1 + bytes.unwrap_or(0));
    }
    let is_near = |used: u64, limit: u64| used as f64 >= limit as f64 * NEARLY;
    let mut found = FoundConditions::new();
    for topic in topics {
        let (pending, bytes) = sums.get(&topic.name).unwrap_or(&(0, 0));
        let of_pending = topic.max_pending.filter(|max| is_near(*pending, u64::from(*max)));
        let of_bytes = topic.max_bytes.filter(|max| is_near(*bytes, max.0));
        let of_rate = topic.add_rate.zip(add_rates.get(&topic.name));
        let of_rate = of_rate.filter(|(max, added)| is_near(**added, u64::from(max.jobs)));
        let parts = [
            of_pending.map(|max| format!("{pending} of {max} jobs are pending (max_pending)")),
            of_bytes.map(|max| {
                let (bytes, max) = (Size(*bytes).in_words(), max.in_words());
                format!("its jobs have {bytes} of {max} (max_bytes)")
            }),
            of_rate.map(|(max, added)| {
                let added = Rate { jobs: u32::try_from(*added).unwrap_or(u32::MAX), ..max };
                format!("{added} of {max} jobs are added (add_rate)")
            }),
        ];
        let detail: Vec<String> = parts.into_iter().flatten().collect();
        if !detail.is_empty() {
            let detail = format!("{}; when a limit is reached, adds are refused", detail.join(", "));
            found.insert(FindingKind::QuotaNearlyUsed(topic.name.as_str().to_owned()), detail);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_nearly_used_from_four_fifths_on() {
        let name = TopicName::new("t").unwrap();
        let topic =
            Topic { max_pending: Some(10), max_bytes: Some(Size(1000)), ..Topic::new(name.clone(), "") };
        let found = |lanes: &[(u64, Option<u64>)]| {
            let lanes: Vec<TopicUsage> =
                lanes.iter().map(|held| TopicUsage::from([(name.clone(), *held)])).collect();
            nearly_used(lanes.iter(), [&topic].into_iter(), &BTreeMap::new()).into_values().next()
        };
        assert_eq!(found(&[(7, Some(799))]), None);
        assert!(found(&[(4, None), (4, None)]).unwrap().starts_with("8 of 10 jobs"));
        assert!(found(&[(1, Some(1000))]).unwrap().starts_with("its jobs have 1000 bytes of 1000 bytes"));
    }

    #[test]
    fn a_rate_of_adds_is_nearly_used_from_four_fifths_on() {
        let name = TopicName::new("t").unwrap();
        let topic = Topic { add_rate: Some("100/m".parse().unwrap()), ..Topic::new(name.clone(), "") };
        let found = |added: u64| {
            let added = BTreeMap::from([(name.clone(), added)]);
            nearly_used([].iter(), [&topic].into_iter(), &added).into_values().next()
        };
        assert_eq!(found(79), None);
        assert!(found(80).unwrap().starts_with("80/m of 100/m jobs are added (add_rate); when"));
    }
}

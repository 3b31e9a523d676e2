//! Topics that dq has taken over half: those that are known on this host, whether a daemon runs or not.

use std::collections::{BTreeMap, HashSet};

use super::judge::{self, Line};
use crate::registry::Snapshot;
use crate::settings::Settings;
use crate::status::Status;

/// What dq cannot do of the topics, but for what the running daemon tells itself.
pub(super) fn look(settings: &Settings, status: Option<&Status>) -> Vec<Line> {
    let source = settings.registry.as_ref().map(ToString::to_string);
    let snapshot = Snapshot::read(&settings.run_dir).ok().flatten();
    let known = snapshot.map(|(known, _)| known).filter(|known| Some(&known.source) == source.as_ref());
    let of_registry = known.iter().flat_map(|known| &known.topics);
    let mut topics = BTreeMap::new();
    for topic in settings.topics.iter().chain(of_registry) {
        // Of two of a name, the file's counts.
        topics.entry(topic.name.as_str()).or_insert_with(|| topic.problem());
    }
    let findings = status.iter().flat_map(|status| &status.findings);
    let told: HashSet<&str> =
        findings.filter(|f| f.name == "topic_problem").filter_map(|f| f.topic.as_deref()).collect();
    judge::topics(&topics, |name| told.contains(name))
}

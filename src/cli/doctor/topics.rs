//! Looks for topics that dq cannot serve with their settings. Checks the topics that are known on this host, even if no
//! daemon runs.

use std::collections::{BTreeMap, HashSet};

use super::judge::{self, CheckResult};
use model::settings::Settings;
use model::status::DaemonStatus;
use model::topic::Topics;
use registry::Snapshot;

/// Returns the topics that this host knows: the topics of the file, and the topics of the registry's last snapshot.
pub(super) fn known(settings: &Settings) -> Topics {
    let source = settings.registry.as_ref().map(ToString::to_string);
    let snapshot = Snapshot::read(&settings.run_dir).ok().flatten();
    let known = snapshot.map(|(known, _)| known).filter(|known| Some(&known.source) == source.as_ref());
    let of_registry = known.into_iter().flat_map(|known| known.topics);
    // If two topics have the same name, the topic of the file counts.
    settings.topics.iter().cloned().chain(of_registry).collect()
}

/// Checks the topics, but leaves out what the running daemon reports itself.
pub(super) fn check(settings: &Settings, status: Option<&DaemonStatus>) -> Vec<CheckResult> {
    let all = known(settings);
    let topics: BTreeMap<&str, Option<String>> =
        all.iter().map(|topic| (topic.name.as_str(), topic.problem())).collect();
    let findings = status.iter().flat_map(|status| &status.findings);
    let with_findings: HashSet<&str> =
        findings.filter(|f| f.name == "topic_problem").filter_map(|f| f.topic.as_deref()).collect();
    let mut lines = judge::topics(&topics, |name| with_findings.contains(name));
    lines.extend(all.iter().filter_map(|topic| judge::certificate(topic)));
    lines
}

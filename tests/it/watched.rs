//! The rules for Prometheus, the dashboard for Grafana, and the runbook. They name only metrics and alerts that exist,
//! and the runbook has a section for each alert.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::metrics::promtool;
use serde_json::Value;

const RULES: &str = "deploy/prometheus/dq.rules.yml";
const TESTS: &str = "deploy/prometheus/dq.rules.test.yml";

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn text(file: &str) -> String {
    std::fs::read_to_string(path(file)).unwrap()
}

/// Returns the names of metrics in a text. The three names of the parts of a histogram count as one name.
fn metrics_in(text: &str, shown: &BTreeSet<String>) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("dq_") && word.len() > 3);
    let whole = |name: &str| {
        let parts = ["_bucket", "_count", "_sum"].iter().filter_map(|end| name.strip_suffix(end));
        let histogram = parts.filter(|_| !shown.contains(name)).find(|whole| shown.contains(*whole));
        histogram.unwrap_or(name).to_owned()
    };
    names.map(whole).collect()
}

/// Returns the metrics that dq-http-server shows: the names in the two sources that write its page.
fn shown() -> BTreeSet<String> {
    let names: BTreeSet<String> = ["src/roles/http_server/metrics.rs", "src/model/metrics/mod.rs"]
        .iter()
        .flat_map(|file| {
            let source = text(file);
            let code = source.split("#[cfg(test)]").next().unwrap();
            let strings = code.split('"').skip(1).step_by(2);
            strings
                .filter(|s| s.starts_with("dq_") && !s.contains(' '))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(names.len() > 30 && names.contains("dq_jobs") && names.contains("dq_adds_total"), "{names:?}");
    names
}

/// Returns the names of the rules.
fn rules() -> Vec<String> {
    let names: Vec<String> = text(RULES)
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: ").map(str::to_owned))
        .collect();
    assert!(names.len() > 10, "{names:?}");
    names
}

#[test]
fn rules_dashboard_and_docs_name_the_metrics_that_exist() {
    let shown = shown();
    // The other sections of the page also name tables of databases, so the test leaves these sections out.
    let page = text("docs/METRICS.md");
    let of_metrics = page.split("\n## ").find(|section| section.starts_with("Metrics\n")).unwrap();
    for (file, named) in [RULES, TESTS, "deploy/grafana/dq.json"]
        .map(|file| (file, metrics_in(&text(file), &shown)))
        .into_iter()
        .chain([("docs/METRICS.md", metrics_in(of_metrics, &shown))])
    {
        let unknown: Vec<&String> = named.difference(&shown).collect();
        assert!(!named.is_empty() && unknown.is_empty(), "{file} names {unknown:?}");
    }
    let documented = metrics_in(of_metrics, &shown);
    let missing: Vec<&String> = shown.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/METRICS.md lacks {missing:?}");
}

#[test]
fn each_alert_has_a_section_in_the_runbook() {
    let runbook = text("docs/RUNBOOK.md");
    let titles: BTreeSet<&str> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .flat_map(|title| title.split(", "))
        .map(|name| name.trim_matches('`'))
        .collect();
    let rules = rules();
    let wanted: BTreeSet<&str> =
        model::notice::KINDS.iter().copied().chain(rules.iter().map(String::as_str)).collect();
    assert_eq!(titles, wanted);
    for (n, rule) in rules.iter().enumerate() {
        assert!(
            text(RULES).contains(&format!("docs/RUNBOOK.md, {rule}\"")),
            "rule {n}, {rule}, names its section"
        );
    }
}

#[test]
fn the_rules_fire_when_they_must_and_only_then() {
    let folder = path("deploy/prometheus");
    for args in [["check", "rules", "dq.rules.yml"], ["test", "rules", "dq.rules.test.yml"]] {
        let done =
            promtool().current_dir(&folder).args(args).output().expect("promtool, which `make tools` gets");
        let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {said}");
    }
    // The series of the tests make each rule fire.
    let tests = text(TESTS);
    for rule in rules() {
        assert!(
            tests.contains(&format!("alertname=\"{rule}\"")),
            "{TESTS} has no case in which {rule} fires"
        );
    }
}

#[test]
fn panels_of_the_dashboard_have_queries_and_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(&text("deploy/grafana/dq.json")).unwrap();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for place in
            (at("y")..at("y") + at("h")).flat_map(|y| (at("x")..at("x") + at("w")).map(move |x| (x, y)))
        {
            assert!(place.0 < 24 && taken.insert(place), "{} is at a place that is taken", panel["title"]);
        }
        if panel["type"] != "row" {
            let targets = panel["targets"].as_array().unwrap();
            assert!(targets.iter().all(|target| target["expr"].as_str().unwrap().contains("dq_")), "{panel}");
            assert!(!targets.is_empty() && !panel["description"].as_str().unwrap().is_empty(), "{panel}");
        }
    }
}

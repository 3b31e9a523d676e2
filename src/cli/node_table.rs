//! The nodes of a store as a table: whether each answers, its durability, and how many jobs it has.

use serde::Serialize;

use super::daemon_snapshot::Node;
use super::show::{Table, TerminalColour, paint};
use super::spool::SpoolUsage;

/// A node, as a row of the table and as JSON.
#[derive(Debug, Serialize)]
pub(super) struct NodeRow {
    pub name: String,
    pub answers: bool,
    /// The part of the node in the set of nodes: `home`, `joining`, `leaving`, `outside`, `unknown`.
    pub part: String,
    /// Whether the data of the node is older than the data of the other nodes.
    pub is_older: bool,
    /// The state of the node in one word: `up`, `down`, `older`, `joining`, `leaving`, `outside`, `unknown`.
    pub state: String,
    /// The highest durability level that the node can provide without replicas: `fsync` or `memory`.
    pub durability: Option<String>,
    /// The number of replicas of the node.
    pub replicas: Option<u64>,
    /// How many jobs the node has. `None`: the node does not answer.
    pub jobs: Option<JobCounts>,
    /// Why the node does not answer, or why its jobs are not delivered.
    pub detail: Option<String>,
}

impl From<&Node> for NodeRow {
    fn from(node: &Node) -> NodeRow {
        let Node { delayed, ready, leased, dead, .. } = *node;
        NodeRow {
            name: node.name.clone(),
            answers: node.answers,
            part: node.part.clone(),
            is_older: node.is_older,
            state: node.state().to_owned(),
            durability: node.durability.clone(),
            replicas: node.replicas,
            jobs: node.answers.then_some(JobCounts { delayed, ready, leased, dead }),
            detail: node.detail.clone().filter(|detail| !detail.is_empty()).or_else(|| advice(node)),
        }
    }
}

/// Says what to do about a node that does not deliver its jobs, or says that the node does not answer.
fn advice(node: &Node) -> Option<String> {
    let advice = match node.state() {
        "older" => "its set is older than that of the others: dq nodes move looks at it",
        "joining" | "leaving" => {
            "jobs are being moved, and none is delivered: if no dq nodes move runs, run it again"
        }
        "unknown" => "it is not known whether it has jobs",
        _ if !node.answers => "it does not answer",
        _ => return None,
    };
    Some(advice.to_owned())
}

/// The jobs of a node, by state.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(super) struct JobCounts {
    pub delayed: u64,
    pub ready: u64,
    pub leased: u64,
    pub dead: u64,
}

/// Returns the table of the nodes that a daemon reports, and the line about its spool.
pub(super) fn table_with_spool(nodes: &[Node], spool: Option<SpoolUsage>) -> String {
    table(&nodes.iter().map(NodeRow::from).collect::<Vec<_>>()) + &waiting(spool)
}

/// Returns the line about the changes that wait in the spool for their nodes. Empty: nothing waits.
pub(super) fn waiting(spool: Option<SpoolUsage>) -> String {
    let line = spool.and_then(|spool| spool.line());
    line.map_or_else(String::new, |line| paint(&line, TerminalColour::Yellow) + "\n")
}

pub(super) fn table(rows: &[NodeRow]) -> String {
    let mut table = Table::new(&[
        "NODE",
        "STATE",
        "DURABILITY",
        ">REPLICAS",
        ">DELAYED",
        ">READY",
        ">LEASED",
        ">DEAD",
        "WHY",
    ]);
    for row in rows {
        let count =
            |of: fn(&JobCounts) -> u64| row.jobs.as_ref().map_or(String::new(), |jobs| of(jobs).to_string());
        table.row([
            row.name.clone(),
            row.state.clone(),
            row.durability.clone().unwrap_or_default(),
            row.replicas.map_or(String::new(), |n| n.to_string()),
            count(|jobs| jobs.delayed),
            count(|jobs| jobs.ready),
            count(|jobs| jobs.leased),
            count(|jobs| jobs.dead),
            row.detail.clone().unwrap_or_default(),
        ]);
    }
    let mut text = table.text();
    if rows.iter().any(|row| row.part == "unknown") {
        text += "It is not known yet which nodes have jobs: no node that answers says so. Start the servers of the nodes. \
                 If they run, see docs/REDIS.md.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_what_each_node_does() {
        let row = |name: &str, answers: bool, part: &str, is_older| {
            let detail = (!answers).then(|| "connection refused".to_owned());
            let (delayed, ready, leased, dead) = (1, 2, 3, 4);
            NodeRow::from(&Node {
                name: name.into(),
                answers,
                part: part.into(),
                is_older,
                delayed,
                ready,
                leased,
                dead,
                detail,
                durability: answers.then(|| "fsync".into()),
                replicas: answers.then_some(2),
            })
        };
        let rows = [
            row("r1", true, "home", false),
            row("r-long", true, "leaving", false),
            row("r3", false, "home", false),
            row("r4", true, "home", true),
            row("r5", false, "outside", false),
        ];
        let text = table(&[row("r1", false, "unknown", false)]);
        assert!(
            text.contains("r1    down ") && text.contains("not known yet which nodes have jobs"),
            "{text}"
        );
        let table = table(&rows);
        assert!(!table.contains("not known"), "{table}");
        let words: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["r1", "up", "fsync", "2", "1", "2", "3", "4"]);
        assert_eq!(words[2][..8], ["r-long", "leaving", "fsync", "2", "1", "2", "3", "4"]);
        assert!(table.lines().nth(2).unwrap().ends_with("run it again"), "{table}");
        assert_eq!(words[3], ["r3", "down", "connection", "refused"]);
        assert_eq!(words[5], ["r5", "outside", "connection", "refused"]);
        assert_eq!(words[4][..8], ["r4", "older", "fsync", "2", "1", "2", "3", "4"]);
        assert!(table.lines().nth(4).unwrap().ends_with("dq nodes move looks at it"), "{table}");
    }
}

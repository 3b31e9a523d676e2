//! Which changes of the store a running daemon refuses, and what to do instead. The stores are compared by their
//! descriptions ([`super::StoreSettings`] as text). So a master can compare its store with the store of another
//! release, and need not read the settings of that release. Pure.

const EMBEDDED: &str = "embedded in ";
const REDIS: &str = "redis under ";

/// If the descriptions mean different stores, returns which key of the configuration was changed, and what to do. None:
/// both descriptions mean the same store. Nodes may be added or removed, but each node keeps its number of shards.
pub fn refused_store_change(before: &str, after: &str) -> Option<String> {
    if before == after {
        return None;
    }
    if let (Some(before), Some(after)) = (before.strip_prefix(EMBEDDED), after.strip_prefix(EMBEDDED)) {
        return Some(format!(
            "store.path cannot be changed while dq runs: dq has its jobs in {before}, and the file names {after}. To move \
             the store, stop dq, move {before} and the files beside it (-wal, -shm, -turn), and start dq. Otherwise \
             change store.path back"
        ));
    }
    let ((store, nodes), (other, others)) = (parts(before), parts(after));
    let kind = |text: &str| [EMBEDDED, REDIS].into_iter().find(|kind| text.starts_with(kind));
    let why = match () {
        () if kind(store) != kind(other) => {
            "store.backend cannot be changed while dq runs: the other store does not have the jobs of this one. Stop dq, \
             take the jobs to the other store with dq move (docs/MOVE.md), and start dq"
                .to_owned()
        }
        () if store != other => {
            "store.prefix cannot be changed while dq runs. Under another prefix, dq does not find its jobs: let dq \
             deliver them first. Then stop dq and start it"
                .to_owned()
        }
        () => {
            let has_other_shards = |(name, shards): &&(&str, &str)| others.iter().any(|(n, s)| n == name && s != shards);
            let (name, shards) = nodes.iter().find(has_other_shards)?;
            format!("the shards of node {name} cannot be changed (its shards, or store.shards_per_node): it has {shards}, and dq finds jobs by \
                 this number")
        }
    };
    Some(why)
}

/// Splits a description: the store, and its nodes with the text about each node.
fn parts(text: &str) -> (&str, Vec<(&str, &str)>) {
    let mut parts = text.split(", ");
    (parts.next().unwrap_or_default(), parts.filter_map(|part| part.split_once(": ")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_to_another_store_names_its_key() {
        let refused = |before, after| refused_store_change(before, after).unwrap_or_default();
        for (before, after, key) in [
            ("embedded in /a/dq.db", "embedded in /b/dq.db", "store.path "),
            ("embedded in /a, b/dq.db", "embedded in /a, c/dq.db", "store.path "),
            ("embedded in /a/dq.db", "redis under dq, r1: 2 shards", "store.backend "),
            ("redis under dq, r1: 2 shards", "redis under dr, r1: 2 shards", "store.prefix "),
            (
                "redis under dq, r1: 2 shards",
                "redis under dq, r1: 3 shards, r2: 2 shards",
                "the shards of node r1 ",
            ),
        ] {
            assert!(refused(before, after).starts_with(key), "{}", refused(before, after));
        }
        let moved = refused("embedded in /a/dq.db", "embedded in /b/dq.db");
        assert!(moved.contains("in /a/dq.db, and") && moved.contains("-wal, -shm"), "{moved}");
        for (before, after) in [
            ("embedded in /a/dq.db", "embedded in /a/dq.db"),
            ("redis under dq, r1: 2 shards", "redis under dq, r1: 2 shards, r2: 4 shards"),
            ("redis under dq, r1: 2 shards, r2: 4 shards", "redis under dq, r2: 4 shards"),
        ] {
            assert_eq!(refused(before, after), "");
        }
    }
}

//! Writes jobs to a Redis of the PHP daemon, and removes jobs there. Each call is one transaction.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result};

use super::super::import::pending::PhpJobInfo;
use super::super::import::source::Source;
use model::job::Priority;

/// A job that goes back to the PHP daemon.
pub struct ExportedJob {
    /// `topic:id`.
    pub name: Vec<u8>,
    /// The body, with the fields that the PHP daemon adds.
    pub body: String,
    /// When it is due, in Unix seconds.
    pub due_s: i64,
    /// The number of its bucket.
    pub bucket: u32,
}

/// Writes jobs, and removes their notes. A job is left out if the PHP daemon has added another job with the same name
/// (`is_other`). Returns the names of the jobs that are left out.
pub fn give_back(
    node: &mut Source,
    jobs: &[ExportedJob],
    is_other: impl Fn(&PhpJobInfo) -> bool,
) -> Result<HashSet<Vec<u8>>> {
    if jobs.is_empty() {
        return Ok(HashSet::new());
    }
    let names: Vec<Vec<u8>> = jobs.iter().map(|job| job.name.clone()).collect();
    let wanted: HashSet<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let ready = node.ready(|name| wanted.contains(name))?;
    // An entry with the same body was written by an export that was killed.
    let own: HashSet<(&[u8], &[u8])> = jobs.iter().map(|job| (&*job.name, job.body.as_bytes())).collect();
    let is_own = |entry: &PhpJobInfo| own.contains(&(&*entry.name, &*entry.body));
    let entries = entries(node, &names, &ready)?;
    let others = entries.into_iter().filter(|entry| !is_own(entry) && is_other(entry));
    let left: HashSet<Vec<u8>> = others.map(|entry| entry.name).collect();
    let (bodies, notes, lists) = (node.bodies_key(), node.notes(), node.ready_lists());
    let mut pipe = redis::pipe();
    pipe.atomic();
    for job in jobs.iter().filter(|job| !left.contains(&job.name)) {
        let own = node.bucket_key(job.bucket);
        pipe.hset(&bodies, &job.name, &job.body).ignore();
        for other in node.buckets().iter().filter(|bucket| **bucket != own) {
            pipe.zrem(other, &job.name).ignore();
        }
        pipe.zadd(&own, &job.name, job.due_s).ignore();
        if ready.contains_key(&job.name) {
            lists.iter().for_each(|list| _ = pipe.lrem(list, 0, &job.name).ignore());
        }
        pipe.hdel(&notes, &job.name).ignore();
    }
    node.query_all::<()>(&pipe).with_context(|| format!("cannot write jobs to {}", node.shown))?;
    Ok(left)
}

/// Removes the jobs that have one of these names and for which `gone` is true. Also removes the notes of all these
/// names. `ready` has the names in the ready lists.
pub fn remove(
    node: &mut Source,
    names: &[Vec<u8>],
    ready: &HashMap<Vec<u8>, Priority>,
    gone: impl Fn(&PhpJobInfo) -> bool,
) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let entries = entries(node, names, ready)?;
    let (bodies, notes, lists) = (node.bodies_key(), node.notes(), node.ready_lists());
    let mut pipe = redis::pipe();
    pipe.atomic();
    for PhpJobInfo { name, list, .. } in entries.iter().filter(|entry| gone(entry)) {
        pipe.hdel(&bodies, name).ignore();
        node.buckets().iter().for_each(|bucket| _ = pipe.zrem(bucket, name).ignore());
        if list.is_some() {
            lists.iter().for_each(|list| _ = pipe.lrem(list, 0, name).ignore());
        }
    }
    for name in names {
        pipe.hdel(&notes, name).ignore();
    }
    node.query_all::<()>(&pipe).with_context(|| format!("cannot remove jobs from {}", node.shown))
}

/// Returns the entries with these names.
fn entries(
    node: &mut Source,
    names: &[Vec<u8>],
    ready: &HashMap<Vec<u8>, Priority>,
) -> Result<Vec<PhpJobInfo>> {
    let found: Vec<Option<Vec<u8>>> = node
        .query(redis::cmd("HMGET").arg(node.bodies_key()).arg(names))
        .with_context(|| format!("cannot read the jobs of {}", node.shown))?;
    let with_body = names.iter().cloned().zip(found).filter_map(|(name, body)| Some((name, body?)));
    node.entries_of(with_body.collect(), ready)
}

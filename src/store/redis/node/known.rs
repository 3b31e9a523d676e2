//! Whether a node is what the settings say: the server that it was, with as many shards. Jobs would not be found otherwise.

use std::sync::atomic::Ordering;

use super::{Call, Node, Servers};
use crate::store::StoreError;

impl Node {
    /// Checks, once, that the node is the one that it was, and has as many shards as when it was first used: jobs would not be found otherwise. One shard
    /// says so of a server; each its own of a Cluster, where some may be away, and are asked when they are back.
    pub(super) fn know(&self, calls: &[Call]) -> Result<(), StoreError> {
        let is_known = |shard: usize| self.known[shard].load(Ordering::Relaxed);
        let shards: Vec<usize> = match self.servers {
            Servers::One(_) if is_known(0) => return Ok(()),
            Servers::One(_) => vec![0],
            Servers::Many(_) if calls.iter().all(|call| is_known(call.shard)) => return Ok(()),
            Servers::Many(_) => (0..self.bases.len()).filter(|shard| !is_known(*shard)).collect(),
        };
        self.know_name()?;
        // A server that is full, or short of replicas, can still be read.
        let (unmarked, away) = self.marks(&shards, false)?;
        let (_, unset) = self.marks(&unmarked, true)?;
        let some = self.known.iter().any(|known| known.load(Ordering::Relaxed));
        away.or(unset).filter(|_| !some).map_or(Ok(()), Err)
    }

    /// Asks shards how many there are of them, or tells them. Gives those that do not know, and why some could not be asked.
    fn marks(&self, shards: &[usize], tells: bool) -> Result<(Vec<usize>, Option<StoreError>), StoreError> {
        let call = |shard: &usize| {
            let mut call = self.plain(if tells { "SET" } else { "GET" }, *shard, "shards");
            if tells {
                call.cmd.arg(self.bases.len()).arg("NX").arg("GET");
            }
            call
        };
        let calls: Vec<Call> = shards.iter().map(call).collect();
        let (mut unmarked, mut away) = (Vec::new(), None);
        for (shard, answer) in shards.iter().zip(self.ask(&calls.iter().collect::<Vec<_>>())) {
            let before = answer.map(redis::from_redis_value::<Option<usize>>);
            match (before, self.bases.len()) {
                (Ok(Ok(Some(before))), own) if before != own => {
                    let name = &self.name;
                    return Err(StoreError::Unavailable(format!(
                        "node {name} has had {before} shards since it was first used: they cannot be {own}"
                    )));
                }
                (Ok(Ok(None)), _) if !tells => unmarked.push(*shard),
                (Ok(Ok(_)), _) => self.known[*shard].store(true, Ordering::Relaxed),
                (Ok(Err(e)), _) => away = Some(self.down(&e.to_string())),
                (Err(failure), _) => away = Some(failure.into_error()),
            }
        }
        Ok((unmarked, away))
    }

    /// A server keeps which node it is: with two urls swapped, each would look empty. (Of a Cluster any server tells of the
    /// others.)
    fn know_name(&self) -> Result<(), StoreError> {
        if matches!(self.servers, Servers::Many(_)) {
            return Ok(());
        }
        let mut get = redis::cmd("GET");
        get.arg(&self.name_key);
        let before = self.ask_one(get)?;
        match redis::from_redis_value::<Option<String>>(before) {
            Ok(Some(before)) if before != self.name => Err(StoreError::Unavailable(format!(
                "node {}: the server at its url is node {before} of this store (are two urls swapped? a server, or a \
                 database of it, is one node)",
                self.name
            ))),
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                let mut set = redis::cmd("SET");
                set.arg(&self.name_key).arg(&self.name).arg("NX");
                // Where it takes nothing now, the next process tells it.
                if let Err(e) = self.ask_one(set) {
                    log::debug!("node {}: cannot note its name: {e}", self.name);
                }
                Ok(())
            }
            Err(e) => Err(self.down(&e.to_string())),
        }
    }

    fn ask_one(&self, cmd: redis::Cmd) -> Result<redis::Value, StoreError> {
        let mut answers = self.ask(&[&Call { shard: 0, script: None, cmd }]);
        answers.pop().map_or_else(|| Err(self.down("no answer")), |a| a.map_err(super::Failure::into_error))
    }
}

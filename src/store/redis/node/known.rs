//! Checks that a node is what the settings say: the same server as before, with the same number of shards. Otherwise
//! jobs would not be found.

use std::sync::atomic::Ordering;

use super::{Call, Node, Servers};
use crate::StoreError;

impl Node {
    /// Checks once that the node is the same as before, and has the same number of shards as when it was first used.
    /// With one server, only the first shard is asked. In a Cluster, each shard is asked. Shards that are down are
    /// asked when they are back.
    pub(super) fn know(&self, calls: &[Call]) -> Result<(), StoreError> {
        let is_known = |shard: usize| self.known[shard].load(Ordering::Relaxed);
        let shards: Vec<usize> = match self.servers {
            Servers::One(_) if is_known(0) => return Ok(()),
            Servers::One(_) => vec![0],
            Servers::Many(_) if calls.iter().all(|call| is_known(call.shard)) => return Ok(()),
            Servers::Many(_) => (0..self.bases.len()).filter(|shard| !is_known(*shard)).collect(),
        };
        self.know_name()?;
        // A server that is full, or has too few replicas, can still be read. So the stored number of shards is read
        // first, and is written only to shards that do not have it.
        let (unmarked, away) = self.compare_marks(&shards, false)?;
        let (_, unset) = self.compare_marks(&unmarked, true)?;
        let some = self.known.iter().any(|known| known.load(Ordering::Relaxed));
        away.or(unset).filter(|_| !some).map_or(Ok(()), Err)
    }

    /// Reads from shards how many shards there are. With `tells`, also writes this number to the shards that do not
    /// have it. Returns the shards without this number, and why some shards could not be asked.
    fn compare_marks(
        &self,
        shards: &[usize],
        tells: bool,
    ) -> Result<(Vec<usize>, Option<StoreError>), StoreError> {
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

    /// Checks the name of the node that the server keeps. If the URLs of two servers were swapped, both servers would
    /// look empty without this check. (A Cluster is not checked: any of its servers knows where the shards are.)
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
                // If the server accepts no write now, the next process writes the name.
                if let Err(e) = self.ask_one(set) {
                    log::debug!("node {}: cannot note its name: {e}", self.name);
                }
                Ok(())
            }
            Err(e) => Err(self.down(&e.to_string())),
        }
    }

    fn ask_one(&self, cmd: redis::Cmd) -> Result<redis::Value, StoreError> {
        let mut answers = self.ask(&[&Call::plain(0, cmd)]);
        answers.pop().map_or_else(|| Err(self.down("no answer")), |a| a.map_err(super::Failure::into_error))
    }
}

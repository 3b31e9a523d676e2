//! A Redis of the PHP daemon's: what is pending in it, read page by page. Changes nothing but the one hash in which it is
//! noted what has been taken over. Asks only for commands that Redis has had since 2.8.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use redis::{Connection, FromRedisValue, RedisResult};

use super::address::Address;
use super::pending::Entry;
use crate::job::Priority;

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// How many entries a page is about. (Redis may give more.)
const PAGE: usize = 256;

/// How many names of a list are asked for at once.
const NAMES: usize = 1000;

/// The field of the notes that says into which store was taken over: a job's name has a topic before its `:`.
const STORE: &str = ":store";

const PRIORITIES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// A name, and what stands behind it.
pub type Named = (Vec<u8>, Vec<u8>);

/// A connection to it.
pub struct Source {
    /// Its address, without its password.
    pub shown: String,
    connection: Connection,
    prefix: String,
}

/// A page of a scan.
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next begins; none: this was the last.
    pub next: Option<u64>,
}

impl<T> Page<T> {
    fn of((next, items): (u64, Vec<T>)) -> Page<T> {
        Page { items, next: Some(next).filter(|next| *next != 0) }
    }
}

impl Source {
    /// Connects.
    pub fn connect(address: &Address, prefix: &str) -> Result<Source> {
        let connect = || {
            let client = redis::Client::open(address.info.clone())?;
            let mut connection = client.get_connection_with_timeout(CONNECT)?;
            connection.set_read_timeout(Some(ANSWER))?;
            connection.set_write_timeout(Some(ANSWER))?;
            redis::cmd("PING").exec(&mut connection)?;
            Ok(connection)
        };
        let connection = connect().map_err(|e: redis::RedisError| {
            anyhow::anyhow!(
                "cannot reach {}: {e} (is it the address of a Redis of the PHP daemon's?)",
                address.shown
            )
        })?;
        Ok(Source { shown: address.shown.clone(), connection, prefix: prefix.to_owned() })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The key of the notes.
    pub fn notes(&self) -> String {
        self.key("imported")
    }

    fn ask<T: FromRedisValue>(
        &mut self,
        what: &str,
        ask: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<T> {
        ask(&mut self.connection).with_context(|| format!("cannot read {what} of {}", self.shown))
    }

    /// How many entries there are.
    pub fn entries(&mut self) -> Result<u64> {
        let key = self.key("job_info");
        self.ask(&key, |c| redis::cmd("HLEN").arg(&key).query(c))
    }

    /// The names in the ready lists that are asked for; one that is in several has the highest priority.
    pub fn ready(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Result<HashMap<Vec<u8>, Priority>> {
        let mut names = HashMap::new();
        for priority in PRIORITIES {
            let key = self.key(&format!("{}ready_queue", priority as u8));
            for from in (0..).step_by(NAMES) {
                let to = from + NAMES - 1;
                let page: Vec<Vec<u8>> =
                    self.ask(&key, |c| redis::cmd("LRANGE").arg(&key).arg(from).arg(to).query(c))?;
                let is_last = page.len() < NAMES;
                for name in page.into_iter().filter(|name| wanted(name)) {
                    names.entry(name).or_insert(priority);
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(names)
    }

    /// Names and bodies from a cursor on; the first is 0.
    pub fn bodies(&mut self, cursor: u64) -> Result<Page<Named>> {
        let key = self.key("job_info");
        let scan =
            |c: &mut Connection| redis::cmd("HSCAN").arg(&key).arg(cursor).arg("COUNT").arg(PAGE).query(c);
        self.ask(&key, scan).map(Page::of)
    }

    /// What else is said of these: due time, ready list, note.
    pub fn entries_of(
        &mut self,
        bodies: Vec<Named>,
        ready: &HashMap<Vec<u8>, Priority>,
    ) -> Result<Vec<Entry>> {
        if bodies.is_empty() {
            return Ok(Vec::new());
        }
        let (buckets, notes) = ([self.key("bucket_0"), self.key("bucket_1")], self.notes());
        let mut pipe = redis::pipe();
        for (name, _) in &bodies {
            pipe.zscore(&buckets[0], name).zscore(&buckets[1], name);
        }
        let scores: Vec<Option<f64>> = self.ask("the buckets", |c| pipe.query(c))?;
        let names: Vec<&[u8]> = bodies.iter().map(|(name, _)| &**name).collect();
        let noted: Vec<Option<Vec<u8>>> =
            self.ask(&notes, |c| redis::cmd("HMGET").arg(&notes).arg(&names).query(c))?;
        let entries = bodies.into_iter().zip(scores.chunks(2)).zip(noted);
        let entry = |(((name, body), scores), noted): ((Named, &[Option<f64>]), _)| {
            let list = ready.get(&name).copied();
            // One that is in both is due when the daemon would first have found it.
            let score = scores.iter().copied().flatten().min_by(f64::total_cmp);
            Entry { name, body, score, list, noted }
        };
        Ok(entries.map(entry).collect())
    }

    /// Names of a bucket from a cursor on.
    pub fn bucket(&mut self, bucket: u8, cursor: u64) -> Result<Page<Vec<u8>>> {
        let key = self.key(&format!("bucket_{bucket}"));
        let scan = |c: &mut Connection| -> RedisResult<(u64, Vec<Named>)> {
            redis::cmd("ZSCAN").arg(&key).arg(cursor).arg("COUNT").arg(NAMES).query(c)
        };
        let (next, members) = self.ask(&key, scan)?;
        Ok(Page::of((next, members.into_iter().map(|(name, _)| name).collect())))
    }

    /// Those of the names that have no entry.
    pub fn without_entry(&mut self, names: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let key = self.key("job_info");
        let mut pipe = redis::pipe();
        for name in &names {
            pipe.hexists(&key, name);
        }
        let there: Vec<bool> = if names.is_empty() { Vec::new() } else { self.ask(&key, |c| pipe.query(c))? };
        Ok(names.into_iter().zip(there).filter(|(_, there)| !there).map(|(name, _)| name).collect())
    }

    /// Notes into which store is taken over, and refuses another than before. What cannot be written to is found out here,
    /// before anything is taken.
    pub fn claim(&mut self, store: &str) -> Result<()> {
        let key = self.notes();
        let claim = |c: &mut Connection| -> RedisResult<String> {
            redis::cmd("HSETNX").arg(&key).arg(STORE).arg(store).exec(c)?;
            redis::cmd("HGET").arg(&key).arg(STORE).query(c)
        };
        let before = claim(&mut self.connection)
            .with_context(|| format!("cannot note in {key} of {} what is taken over", self.shown))?;
        if before != store {
            bail!(
                "{}: its jobs are being taken over into another store: {before}; this one is: {store} \
                 (to take all of them once more: redis-cli DEL {key}; to go on, since both are one: redis-cli HDEL {key} {STORE})",
                self.shown
            );
        }
        Ok(())
    }

    /// Notes what has been taken over: names and fingerprints.
    pub fn note(&mut self, taken: &[(&[u8], String)]) -> Result<()> {
        if taken.is_empty() {
            return Ok(());
        }
        let key = self.notes();
        redis::Cmd::hset_multiple(&key, taken)
            .exec(&mut self.connection)
            .with_context(|| format!("cannot note in {key} of {} what is taken over", self.shown))
    }
}

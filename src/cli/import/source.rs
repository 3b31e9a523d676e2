//! A Redis of the PHP daemon. Its pending jobs are read page by page. The import changes only one hash there: the notes
//! about what has been taken over. The import uses only commands that exist since Redis 2.8.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use redis::{Connection, FromRedisValue, RedisResult};

use super::address::RedisAddress;
use super::pending::PhpJobInfo;
use model::job::Priority;

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// The approximate number of entries on a page. (Redis may return more.)
const PAGE: usize = 256;

/// How many names are requested at once.
const NAMES: usize = 1000;

/// The PHP daemon cannot have more buckets than this, because it has one timer for each bucket.
const BUCKETS_MAX: usize = 10_000;

/// How many commands are sent at once.
const COMMANDS: usize = 4096;

/// The prefix of the connection names of imports. By this prefix, an import recognizes other imports.
pub const CONNECTION: &str = "dq-import:";

/// The field of the notes that says which store took the jobs over. No job has this name, because a job's name has a
/// topic before its `:`.
const STORE: &str = ":store";

const PRIORITIES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// A name and its value.
pub type NameValuePair = (Vec<u8>, Vec<u8>);

/// A connection to a Redis of the PHP daemon.
pub struct Source {
    /// The address of the Redis, without the password.
    pub shown: String,
    /// The name of the connection. `None`: Redis has refused the name.
    pub name: Option<String>,
    /// The number of the database that the connection uses.
    pub database: i64,
    connection: Connection,
    prefix: String,
    /// The keys of the PHP daemon's buckets, which are sorted sets.
    buckets: Vec<String>,
}

/// A page of a scan.
pub struct ScanPage<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// The cursor of the next page. `None`: this is the last page.
    pub next: Option<u64>,
}

impl<T> ScanPage<T> {
    fn new((next, items): (u64, Vec<T>)) -> ScanPage<T> {
        ScanPage { items, next: Some(next).filter(|next| *next != 0) }
    }
}

impl Source {
    /// Connects, and finds the buckets. `is_trial`: it is a dry run, which changes nothing.
    pub fn connect(address: &RedisAddress, prefix: &str, is_trial: bool) -> Result<Source> {
        let connect = || {
            let client = redis::Client::open(address.info.clone())?;
            let mut connection = client.get_connection_with_timeout(CONNECT)?;
            connection.set_read_timeout(Some(ANSWER))?;
            connection.set_write_timeout(Some(ANSWER))?;
            redis::cmd("PING").exec(&mut connection)?;
            Ok(connection)
        };
        let mut connection = connect().map_err(|e: redis::RedisError| {
            anyhow::anyhow!(
                "cannot reach {}: {e} (is this the address of the PHP daemon's Redis?)",
                address.shown
            )
        })?;
        // A dry run uses another connection name, because a real import must not count a dry run as a second import. An
        // error of `CLIENT SETNAME` is ignored: a Redis that refuses the name also refuses the list of clients, and
        // then the name is not needed.
        let kind = if is_trial { "dq-import-trial:" } else { CONNECTION };
        let name = format!("{kind}{}-{:08x}", std::process::id(), fastrand::u32(..));
        let named = redis::cmd("CLIENT").arg("SETNAME").arg(&name).exec(&mut connection);
        let mut source = Source {
            shown: address.shown.clone(),
            name: named.is_ok().then_some(name),
            database: address.info.redis_settings().db(),
            connection,
            prefix: prefix.to_owned(),
            buckets: Vec::new(),
        };
        source.buckets = source.find_buckets()?;
        Ok(source)
    }

    /// Returns the keys `<prefix>bucket_*` that are sorted sets. The PHP daemon may have any number of buckets, and
    /// jobs stay in buckets that it no longer uses.
    fn find_buckets(&mut self) -> Result<Vec<String>> {
        let what = self.key("bucket_*");
        let pattern = escaped(&self.prefix) + "bucket_*";
        let (mut found, mut cursor) = (BTreeSet::new(), 0);
        loop {
            let scan = |c: &mut Connection| -> RedisResult<(u64, Vec<Vec<u8>>)> {
                redis::cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(NAMES).query(c)
            };
            let (next, keys) = self.ask(&what, scan)?;
            // The names of all keys of the daemon are UTF-8, so other keys are left out.
            found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
            if found.len() > BUCKETS_MAX {
                bail!(
                    "{}: more than {BUCKETS_MAX} keys are called {what}: is that the prefix of the PHP daemon?",
                    self.shown
                );
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let found: Vec<String> = found.into_iter().collect();
        let mut buckets = Vec::new();
        for some in found.chunks(COMMANDS) {
            let mut pipe = redis::pipe();
            for key in some {
                pipe.cmd("TYPE").arg(key);
            }
            let kinds: Vec<String> = self.ask(&what, |c| pipe.query(c))?;
            let is_bucket = |(_, kind): &(&String, String)| kind == "zset";
            buckets.extend(some.iter().zip(kinds).filter(is_bucket).map(|(key, _)| key.clone()));
        }
        Ok(buckets)
    }

    /// Returns the keys of the buckets.
    pub fn buckets(&self) -> &[String] {
        &self.buckets
    }

    /// Returns the keys of the ready lists.
    pub fn ready_lists(&self) -> [String; 3] {
        PRIORITIES.map(|priority| self.key(&format!("{}ready_queue", priority as u8)))
    }

    /// Returns the key of the bodies.
    pub fn bodies_key(&self) -> String {
        self.key("job_info")
    }

    /// Sends a command, and returns the answer.
    pub fn query<T: FromRedisValue>(&mut self, cmd: &redis::Cmd) -> RedisResult<T> {
        cmd.query(&mut self.connection)
    }

    /// Sends several commands at once, and returns the answers.
    pub fn query_all<T: FromRedisValue>(&mut self, pipe: &redis::Pipeline) -> RedisResult<T> {
        pipe.query(&mut self.connection)
    }

    /// Returns the key of the bucket with this number.
    pub fn bucket_key(&self, number: u32) -> String {
        self.key(&format!("bucket_{number}"))
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the key of the notes.
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

    /// Returns how many entries the hash of the bodies has.
    pub fn entries(&mut self) -> Result<u64> {
        let key = self.bodies_key();
        self.ask(&key, |c| redis::cmd("HLEN").arg(&key).query(c))
    }

    /// Returns the wanted names in the ready lists, with their priorities. A name in several lists has the highest of
    /// these priorities.
    pub fn ready(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Result<HashMap<Vec<u8>, Priority>> {
        let mut names = HashMap::new();
        for (priority, key) in PRIORITIES.into_iter().zip(self.ready_lists()) {
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

    /// Returns a page of names and bodies. The first cursor is 0.
    pub fn bodies(&mut self, cursor: u64) -> Result<ScanPage<NameValuePair>> {
        let key = self.bodies_key();
        let scan =
            |c: &mut Connection| redis::cmd("HSCAN").arg(&key).arg(cursor).arg("COUNT").arg(PAGE).query(c);
        self.ask(&key, scan).map(ScanPage::new)
    }

    /// Returns the entries with these names and bodies, together with their due times, ready lists and notes.
    pub fn entries_of(
        &mut self,
        bodies: Vec<NameValuePair>,
        ready: &HashMap<Vec<u8>, Priority>,
    ) -> Result<Vec<PhpJobInfo>> {
        if bodies.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&[u8]> = bodies.iter().map(|(name, _)| &**name).collect();
        let scores = self.scores(&names)?;
        let notes = self.notes();
        let noted: Vec<Option<Vec<u8>>> =
            self.ask(&notes, |c| redis::cmd("HMGET").arg(&notes).arg(&names).query(c))?;
        let entries = bodies.into_iter().zip(scores).zip(noted);
        let entry = |(((name, body), score), noted): ((NameValuePair, Option<f64>), _)| {
            let list = ready.get(&name).copied();
            PhpJobInfo { name, body, score, list, noted }
        };
        Ok(entries.map(entry).collect())
    }

    /// Returns the scores of names. For a name in several buckets, the lowest score counts, because the daemon would
    /// find the name first at this score.
    fn scores(&mut self, names: &[&[u8]]) -> Result<Vec<Option<f64>>> {
        let buckets = self.buckets.clone();
        if buckets.is_empty() {
            return Ok(vec![None; names.len()]);
        }
        let mut out = Vec::with_capacity(names.len());
        for some in names.chunks((COMMANDS / buckets.len()).max(1)) {
            let mut pipe = redis::pipe();
            for (name, bucket) in
                some.iter().flat_map(|name| buckets.iter().map(move |bucket| (name, bucket)))
            {
                pipe.zscore(bucket, name);
            }
            let scores: Vec<Option<f64>> = self.ask("the buckets", |c| pipe.query(c))?;
            let first = |scores: &[Option<f64>]| scores.iter().copied().flatten().min_by(f64::total_cmp);
            out.extend(scores.chunks(buckets.len()).map(first));
        }
        Ok(out)
    }

    /// Returns a page of the names in a bucket.
    pub fn bucket(&mut self, key: &str, cursor: u64) -> Result<ScanPage<Vec<u8>>> {
        let scan = |c: &mut Connection| -> RedisResult<(u64, Vec<NameValuePair>)> {
            redis::cmd("ZSCAN").arg(key).arg(cursor).arg("COUNT").arg(NAMES).query(c)
        };
        let (next, members) = self.ask(key, scan)?;
        Ok(ScanPage::new((next, members.into_iter().map(|(name, _)| name).collect())))
    }

    /// Returns which of the names have no entry.
    pub fn without_entry(&mut self, names: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        let key = self.bodies_key();
        let mut pipe = redis::pipe();
        for name in &names {
            pipe.hexists(&key, name);
        }
        let there: Vec<bool> = if names.is_empty() { Vec::new() } else { self.ask(&key, |c| pipe.query(c))? };
        Ok(names.into_iter().zip(there).filter(|(_, there)| !there).map(|(name, _)| name).collect())
    }

    /// Writes a note about which store takes the jobs over. Fails if another store is noted, or if Redis refuses
    /// writes. So the import fails before it takes the first job.
    pub fn claim(&mut self, store: &str) -> Result<()> {
        let key = self.notes();
        redis::cmd("HSETNX")
            .arg(&key)
            .arg(STORE)
            .arg(store)
            .exec(&mut self.connection)
            .with_context(|| format!("cannot note in {key} of {} what is taken over", self.shown))?;
        self.check_claim(store)
    }

    /// Fails if another store has taken jobs over from this source.
    pub fn check_claim(&mut self, store: &str) -> Result<()> {
        let key = self.notes();
        let noted: Option<String> = self.ask(&key, |c| redis::cmd("HGET").arg(&key).arg(STORE).query(c))?;
        if let Some(before) = noted.filter(|before| before != store) {
            bail!(
                "{}: its jobs are being taken over into another store: {before}; this one is: {store} \
                 (to take all of them once more: redis-cli DEL {key}; to go on, since both are one: redis-cli HDEL {key} {STORE})",
                self.shown
            );
        }
        Ok(())
    }

    /// Returns which of the names are noted as taken over.
    pub fn noted_of(&mut self, names: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if names.is_empty() {
            return Ok(names);
        }
        let key = self.notes();
        let notes: Vec<Option<Vec<u8>>> =
            self.ask(&key, |c| redis::cmd("HMGET").arg(&key).arg(&names).query(c))?;
        Ok(names.into_iter().zip(notes).filter_map(|(name, note)| note.map(|_| name)).collect())
    }

    /// Returns a page of the names that are noted as taken over. The first cursor is 0.
    pub fn noted_names(&mut self, cursor: u64) -> Result<ScanPage<Vec<u8>>> {
        let key = self.notes();
        let scan = |c: &mut Connection| -> RedisResult<(u64, Vec<NameValuePair>)> {
            redis::cmd("HSCAN").arg(&key).arg(cursor).arg("COUNT").arg(PAGE).query(c)
        };
        let (next, notes) = self.ask(&key, scan)?;
        let names = notes.into_iter().map(|(name, _)| name).filter(|name| name != STORE.as_bytes());
        Ok(ScanPage::new((next, names.collect())))
    }

    /// Removes all notes. After that, no job counts as taken over.
    pub fn forget_notes(&mut self) -> Result<()> {
        let key = self.notes();
        self.ask(&key, |c| redis::cmd("DEL").arg(&key).exec(c))
    }

    /// Writes the notes of jobs that have been taken over or are held back in the store. `taken` has the name and the
    /// note of each job.
    pub fn note(&mut self, taken: &[(&[u8], Vec<u8>)]) -> Result<()> {
        if taken.is_empty() {
            return Ok(());
        }
        let key = self.notes();
        redis::Cmd::hset_multiple(&key, taken)
            .exec(&mut self.connection)
            .with_context(|| format!("cannot note in {key} of {} what is taken over", self.shown))
    }
}

/// Escapes a text, so that a Redis pattern takes each of its characters literally.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(escaped("dq_"), "dq_");
        assert_eq!(escaped("{d*q}?[^a-b]\\:"), "{d\\*q}\\?\\[^a-b]\\\\:");
    }
}

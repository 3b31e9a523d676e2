//! Finds out whether a PHP daemon runs on a Redis: watches its keys for a short time, and looks at the connected
//! clients.
//!
//! A running PHP daemon does something at least once a second. Each timer reads the first name of its bucket ten times
//! a second. Each consumer takes names from the ready lists. All timers and consumers keep their connections open.
//! These connections have no names.
//!
//! The check asks for three things, because Redis may refuse each of them, and each of them may show nothing:
//!
//! - `OBJECT IDLETIME`: how long each key was idle. Under an LFU policy this time is unknown. Redis does not update
//!   this time while it saves.
//! - `CLIENT LIST`: the clients. Managed servers may refuse this command.
//! - `INFO`, used only if one of the other two is missing: how often the commands of timers and consumers were called.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::source::{CONNECTION, Source};

/// How long a Redis is watched. The watch itself reads each key at its beginning. Redis counts the idle time of a key
/// in whole seconds, and the first second may be short. So after this time, a key that nobody has used is idle for at
/// least 2 seconds, which is more than `TOUCHED`.
const WATCHED: Duration = Duration::from_millis(2500);

/// If a key was idle for at most this many seconds at the end of the watch, somebody used the key during the watch.
const TOUCHED: u64 = 1;

/// The largest number of clients or keys that a sign names.
const NAMED: usize = 5;

/// The commands that the PHP daemon sends to the Redis of its jobs.
const COMMANDS: [&str; 14] = [
    "del",
    "hdel",
    "hget",
    "hincrby",
    "hset",
    "incr",
    "incrby",
    "lpop",
    "rpush",
    "setnx",
    "zadd",
    "zrange",
    "zrangebyscore",
    "zrem",
];

/// The commands that the PHP daemon's timers and consumers send all the time.
const POLLS: [&str; 4] = ["zrange", "zrangebyscore", "lpop", "rpop"];

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SourceActivity {
    /// The signs that a PHP daemon or another import runs.
    pub signs: Vec<String>,
    /// What could not be found out, and why.
    pub blind: Vec<String>,
}

impl SourceActivity {
    /// Fails if a PHP daemon seems to run. `harm` says what harm the PHP daemon would do.
    pub fn refuse(&self, harm: &str) -> Result<()> {
        if self.signs.is_empty() {
            return Ok(());
        }
        bail!(
            "the PHP daemon seems to run, {harm}: {} (stop all of its processes, or give --anyway if these are not its \
             processes)",
            self.signs.join("; ")
        );
    }
}

/// A line of `CLIENT LIST`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ClientListEntry {
    address: String,
    name: String,
    /// The last command.
    command: String,
    idle_s: u64,
    flags: String,
    database: i64,
}

/// The state of a Redis at one moment. An `Err` says why Redis refused to answer.
#[derive(Debug)]
struct SourceActivitySample {
    /// The keys that were there, and for how many seconds each was idle.
    idle: Result<Vec<(String, u64)>, String>,
    /// How often the [`POLLS`] were called since the server started.
    polls: Option<u64>,
    clients: Result<Vec<ClientListEntry>, String>,
    /// How many entries each key holds.
    sizes: Vec<(String, u64)>,
    /// When the observation was complete.
    at: Instant,
}

/// Watches all sources for a short time.
pub fn watch(sources: &mut [Source]) -> Result<SourceActivity> {
    let before: Vec<SourceActivitySample> = sources.iter_mut().map(observe).collect::<Result<_>>()?;
    let mut activity = SourceActivity::default();
    for (source, before) in sources.iter_mut().zip(before) {
        std::thread::sleep(WATCHED.saturating_sub(before.at.elapsed()));
        let after = observe(source)?;
        let SourceActivity { signs, blind } = judge(source.name.as_deref(), source.database, before, after);
        activity.signs.extend(signs.into_iter().map(|sign| format!("{}: {sign}", source.shown)));
        activity.blind.extend(blind.into_iter().map(|why| format!("{}: {why}", source.shown)));
    }
    Ok(activity)
}

/// Observes a source. The idle times come first, because reading the size of a key resets its idle time.
fn observe(source: &mut Source) -> Result<SourceActivitySample> {
    let idle = idle_times(source).map_err(|e| e.to_string());
    let polls = redis::cmd("INFO").arg("commandstats").to_owned();
    let polls = source.query::<String>(&polls).ok().map(|text| calls(&text));
    let list = redis::cmd("CLIENT").arg("LIST").to_owned();
    let clients = source.query::<String>(&list).map_err(|e| e.to_string());
    let clients = clients.map(|text| text.lines().filter_map(ClientListEntry::parse).collect());
    let sizes = sizes(source)?;
    Ok(SourceActivitySample { idle, polls, clients, sizes, at: Instant::now() })
}

/// Returns the keys that timers and consumers use.
fn polled_keys(source: &Source) -> Vec<String> {
    source.buckets().iter().cloned().chain(source.ready_lists()).collect()
}

fn idle_times(source: &mut Source) -> redis::RedisResult<Vec<(String, u64)>> {
    let keys = polled_keys(source);
    let mut pipe = redis::pipe();
    for key in &keys {
        pipe.cmd("OBJECT").arg("IDLETIME").arg(key);
    }
    let idle: Vec<Option<u64>> = source.query_all(&pipe)?;
    Ok(keys.into_iter().zip(idle).filter_map(|(key, idle)| Some((key, idle?))).collect())
}

fn sizes(source: &mut Source) -> Result<Vec<(String, u64)>> {
    let mut pipe = redis::pipe();
    pipe.hlen(source.bodies_key());
    source.buckets().iter().for_each(|key| {
        pipe.zcard(key);
    });
    source.ready_lists().iter().for_each(|key| {
        pipe.llen(key);
    });
    let sizes: Vec<u64> =
        source.query_all(&pipe).with_context(|| format!("cannot watch {}", source.shown))?;
    let keys = std::iter::once(source.bodies_key()).chain(polled_keys(source));
    Ok(keys.zip(sizes).collect())
}

/// Returns how often the [`POLLS`] were called, from the answer of `INFO commandstats`:
/// `cmdstat_lpop:calls=17,usec=30,…`.
fn calls(text: &str) -> u64 {
    let of = |line: &str| {
        let (name, rest) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = rest.split(',').find_map(|field| field.strip_prefix("calls="))?;
        POLLS.contains(&name).then(|| calls.parse::<u64>().ok())?
    };
    text.lines().filter_map(of).sum()
}

impl ClientListEntry {
    /// Reads `id=3 addr=10.0.0.5:51234 name= age=4 idle=0 flags=N db=0 … cmd=lpop …`. `None`: it is another kind of
    /// line.
    fn parse(line: &str) -> Option<ClientListEntry> {
        let mut client = ClientListEntry::default();
        for (field, value) in line.split(' ').filter_map(|part| part.split_once('=')) {
            match field {
                "addr" => client.address = value.to_owned(),
                "name" => client.name = value.to_owned(),
                "cmd" => client.command = value.to_ascii_lowercase(),
                "idle" => client.idle_s = value.parse().unwrap_or(0),
                "flags" => client.flags = value.to_owned(),
                "db" => client.database = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        (!client.address.is_empty()).then_some(client)
    }

    /// Returns whether the client may be a process of the PHP daemon: it has no name, works on the same database, and
    /// its last command is one of the [`COMMANDS`]. Masters and replicas do not count, because they repeat the commands
    /// of other clients.
    fn may_be_php(&self, database: i64) -> bool {
        let is_replication = self.flags.contains(['M', 'S']);
        self.name.is_empty()
            && !is_replication
            && self.database == database
            && COMMANDS.contains(&&*self.command)
    }
}

/// Compares two observations. `own`: the name of the connection that made them.
fn judge(
    own: Option<&str>,
    database: i64,
    before: SourceActivitySample,
    after: SourceActivitySample,
) -> SourceActivity {
    let mut activity = SourceActivity::default();
    for ((key, was), (_, is)) in before.sizes.iter().zip(&after.sizes) {
        if was != is {
            activity.signs.push(format!("{key} held {was} entries, and {is} a moment later"));
        }
    }
    match &after.idle {
        Ok(idle) => {
            let touched: Vec<&str> =
                idle.iter().filter(|(_, idle_s)| *idle_s <= TOUCHED).map(|(key, _)| &**key).collect();
            if let Some(keys) = in_short(&touched) {
                activity.signs.push(format!("somebody used {keys} while it was watched"));
            }
        }
        Err(why) => activity.blind.push(format!("when keys were last used is not known: {why}")),
    }
    match &after.clients {
        Ok(clients) => activity.signs.extend(signs_of(clients, own, database)),
        Err(why) => activity.blind.push(format!("who is connected is not known: {why}")),
    }
    if !activity.blind.is_empty() {
        match (before.polls, after.polls) {
            (Some(was), Some(is)) if is > was => {
                let [first @ .., last] = &POLLS;
                let names = format!("{} or {last}", first.join(", "));
                activity.signs.push(format!("{names} was called {} times while it was watched", is - was));
            }
            (Some(_), Some(_)) => {}
            _ => activity.blind.push("INFO commandstats is refused, too".to_owned()),
        }
    }
    activity
}

fn signs_of(clients: &[ClientListEntry], own: Option<&str>, database: i64) -> Vec<String> {
    let mut signs = Vec::new();
    let is_import =
        |client: &&ClientListEntry| client.name.starts_with(CONNECTION) && Some(&*client.name) != own;
    if let Some(other) = clients.iter().find(is_import) {
        signs.push(format!("another import runs, at {}", other.address));
    }
    let php: Vec<String> = clients
        .iter()
        .filter(|client| client.may_be_php(database))
        .map(|c| format!("{} (its last command was {}, {} s ago)", c.address, c.command, c.idle_s))
        .collect();
    let php: Vec<&str> = php.iter().map(String::as_str).collect();
    if let Some(clients) = in_short(&php) {
        signs.push(format!("clients do what the PHP daemon does: {clients}"));
    }
    signs
}

/// Returns the first entries as a text, and the number of further entries. `None`: there are no entries.
fn in_short(all: &[&str]) -> Option<String> {
    let (first, rest) = all.split_at(all.len().min(NAMED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    (!first.is_empty()).then(|| first.join(", ") + &more)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(idle: &[u64], clients: &[&str]) -> SourceActivitySample {
        let keys = ["dq_bucket_0", "dq_bucket_1"].map(str::to_owned);
        SourceActivitySample {
            idle: Ok(keys.iter().cloned().zip(idle.iter().copied()).collect()),
            polls: Some(7),
            clients: Ok(clients.iter().filter_map(|line| ClientListEntry::parse(line)).collect()),
            sizes: keys.into_iter().map(|key| (key, 5)).collect(),
            at: Instant::now(),
        }
    }

    fn found(before: SourceActivitySample, after: SourceActivitySample) -> SourceActivity {
        judge(Some("dq-import:1-a"), 0, before, after)
    }

    const TIMER: &str =
        "id=9 addr=10.0.0.5:51 laddr=h:1 fd=8 name= age=40 idle=0 flags=N db=0 cmd=zrange user=default";

    #[test]
    fn a_redis_that_is_left_alone_shows_no_signs() {
        let others = [
            "id=1 addr=10.0.0.9:1 name=dq-import:1-a age=1 idle=0 flags=N db=0 cmd=client|list",
            "id=2 addr=10.0.0.9:2 name=dq-import-trial:9-b age=1 idle=0 flags=N db=0 cmd=hscan",
            "id=3 addr=10.0.0.9:3 name= age=1 idle=0 flags=N db=1 cmd=zrange",
            "id=4 addr=10.0.0.9:4 name= age=1 idle=0 flags=S db=0 cmd=zrem",
            "id=5 addr=10.0.0.9:5 name= age=1 idle=0 flags=M db=0 cmd=hset",
            "id=6 addr=10.0.0.9:6 name=sentinel-ab-cmd age=1 idle=0 flags=N db=0 cmd=ping",
            "id=7 addr=10.0.0.9:7 name= age=1 idle=0 flags=N db=0 cmd=info",
            "id=8 addr=10.0.0.9:8 name= age=1 idle=0 flags=N db=0 cmd=NULL",
            "",
        ];
        assert_eq!(found(seen(&[0, 0], &others), seen(&[2, 9], &others)), SourceActivity::default());
    }

    #[test]
    fn what_moves_is_named() {
        let activity = found(seen(&[0, 0], &[]), seen(&[2, 1], &[]));
        assert_eq!(activity.signs, ["somebody used dq_bucket_1 while it was watched"]);
        let mut after = seen(&[2, 2], &[]);
        after.sizes[0].1 = 4;
        let activity = found(seen(&[0, 0], &[]), after);
        assert_eq!(activity.signs, ["dq_bucket_0 held 5 entries, and 4 a moment later"]);
    }

    #[test]
    fn clients_of_the_daemon_and_other_imports_are_named() {
        let signs = found(seen(&[0, 0], &[]), seen(&[2, 2], &[TIMER; 7])).signs;
        let [sign] = &signs[..] else { panic!("{signs:?}") };
        assert!(sign.contains("10.0.0.5:51 (its last command was zrange, 0 s ago)"), "{sign}");
        assert!(sign.ends_with(" and 2 more"), "{sign}");
        let other = "id=2 addr=10.0.0.9:2 name=dq-import:9-b age=1 idle=0 flags=N db=0 cmd=hscan";
        let signs = found(seen(&[0, 0], &[]), seen(&[2, 2], &[other])).signs;
        assert_eq!(signs, ["another import runs, at 10.0.0.9:2"]);
    }

    #[test]
    fn what_is_refused_is_told_and_calls_are_counted_in_its_place() {
        let refused = || SourceActivitySample { clients: Err("NOPERM".to_owned()), ..seen(&[2, 2], &[]) };
        let blind = ["who is connected is not known: NOPERM".to_owned()];
        let quiet = found(refused(), refused());
        assert_eq!((quiet.signs.len(), &quiet.blind[..]), (0, &blind[..]));
        let called = found(refused(), SourceActivitySample { polls: Some(30), ..refused() });
        assert!(called.signs[0].contains("was called 23 times"), "{called:?}");
        let lfu = SourceActivitySample { idle: Err("LFU".to_owned()), ..seen(&[], &[]) };
        let called = found(seen(&[0, 0], &[]), SourceActivitySample { polls: Some(8), ..lfu });
        assert!(called.signs[0].contains("was called 1 times"), "{called:?}");
        let nothing = found(refused(), SourceActivitySample { polls: None, ..refused() });
        assert_eq!(nothing.blind[1], "INFO commandstats is refused, too");
        // Redis refused no command. dq uses the numbers of calls only if one of the other two commands is refused.
        // Other clients may have made these calls.
        let others =
            found(seen(&[0, 0], &[]), SourceActivitySample { polls: Some(30), ..seen(&[2, 2], &[]) });
        assert_eq!(others, SourceActivity::default());
    }

    #[test]
    fn calls_of_timers_and_consumers_are_summed() {
        let text = "# Commandstats\r\ncmdstat_zrange:calls=20,usec=1\r\ncmdstat_lpop:calls=3,usec=1\r\n\
                    cmdstat_get:calls=900,usec=1\r\ncmdstat_zrangebyscore:calls=x\r\n";
        assert_eq!(calls(text), 23);
    }
}

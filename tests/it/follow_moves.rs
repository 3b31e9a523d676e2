//! The outbox on Redis nodes: a sender dies between its steps, or the set of nodes changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::redis::RedisServer;
use crate::support::{SECOND, eventually, new_job};
use model::follow::{PredecessorJob, Then, job_of};
use model::headers::Headers;
use model::job::{Due, NewJob, TopicName};
use model::record::{RECORDS_MAX, RecordKeeping};
use model::settings::{NodeSettings, RedisSettings, StoreSettings};
use store::{
    Lanes, LeaseRequest, OutboxCause, OutboxEntry, Outcome, SetChangeRequest, Settled, Settlement, Store,
};

const JOBS: usize = 60;

struct Nodes(Vec<RedisServer>);

impl Nodes {
    fn settings(&self) -> StoreSettings {
        let node =
            |(n, server): (usize, &RedisServer)| NodeSettings::server(format!("r{n}"), server.url(), 2);
        let nodes = self.0.iter().enumerate().map(node).collect();
        StoreSettings::Redis(RedisSettings::of_nodes("dq", 5 * SECOND, 2, nodes))
    }

    /// Opens the store of these nodes. Also returns its settings, and a folder for its bells.
    fn open(&self) -> (StoreSettings, tempfile::TempDir, Box<dyn Store>) {
        let (settings, run_dir) = (self.settings(), tempfile::tempdir().unwrap());
        let store = store::open(&settings, run_dir.path()).unwrap();
        (settings, run_dir, store)
    }

    /// The entries of all outboxes: for each key, members and scores in turn.
    fn outboxes(&self) -> Vec<BTreeMap<String, String>> {
        let dump = |server: &RedisServer| {
            let keys = server.cli(&["keys", "*:out"]);
            let one = |key: &str| {
                let script = "local out = {} for _, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')) do \
                              out[#out + 1] = (string.gsub(e, '.', function(c) return string.format('%02x', string.byte(c)) end)) end \
                              return table.concat(out, ' ')";
                (key.to_owned(), server.cli(&["eval", script, "1", key]).trim().to_owned())
            };
            keys.lines().filter(|key| !key.is_empty()).map(one).collect()
        };
        self.0.iter().map(dump).collect()
    }

    /// Puts entries back, as if the sender had died before it removed them.
    fn put_back(&self, all: &[BTreeMap<String, String>]) {
        let script = "local words = {} for hex in string.gmatch(ARGV[1], '%x+') do \
                      words[#words + 1] = (string.gsub(hex, '%x%x', function(two) return string.char(tonumber(two, 16)) end)) end \
                      for i = 1, #words, 2 do redis.call('ZADD', KEYS[1], words[i + 1], words[i]) end return #words";
        for (server, keys) in self.0.iter().zip(all) {
            for (key, entries) in keys {
                server.cli(&["eval", script, "1", key, entries]);
            }
        }
    }
}

fn make(entry: &OutboxEntry) -> Option<NewJob> {
    let OutboxCause::Then { place, text } = &entry.what else { return None };
    job_of(text, PredecessorJob { key: &entry.key, stamp_us: entry.stamp_us }, *place, entry.ago, |_| None)
}

fn send_all(settings: &StoreSettings) -> usize {
    let run_dir = tempfile::tempdir().unwrap();
    let lanes = Lanes::new(settings).unwrap().count();
    let mut handles: Vec<Box<dyn Store>> =
        (0..lanes).map(|lane| store::open_lane(settings, run_dir.path(), lane).unwrap()).collect();
    let mut sum = 0;
    eventually(20 * SECOND, "empty outboxes", || {
        for handle in &mut handles {
            // A node that was down a moment ago is asked again a little later.
            sum += handle.send_followers(&make).map_or(0, |sent| sent.added.len());
        }
        let left =
            handles.iter_mut().map(|handle| Some(handle.outbox().ok()?.entries)).sum::<Option<u64>>()?;
        (left == 0).then_some(sum)
    })
}

/// Leases and accepts all ready jobs of a topic. Returns the number of jobs.
fn accept_all(store: &mut dyn Store, topic: &str) -> usize {
    let topic = TopicName::new(topic).unwrap();
    let wanted = LeaseRequest {
        topic,
        max: 256,
        hold: 60 * SECOND,
        max_attempts: 9,
        max_leased: None,
        is_own_ttr: false,
    };
    let mut sum = 0;
    loop {
        let held = store.lease(std::slice::from_ref(&wanted), 256, None).unwrap().jobs;
        if held.is_empty() {
            return sum;
        }
        sum += held.len();
        let accepted = |job: &store::LeasedJob| Settlement {
            key: job.key.clone(),
            token: job.token.clone(),
            outcome: Outcome::Ack,
            attempt: None,
        };
        let all: Vec<Settlement> = held.iter().map(accepted).collect();
        assert!(store.settle(&all).iter().all(|one| *one == Ok(Settled::Done)));
    }
}

fn add_with_followers(store: &mut dyn Store, from: usize) {
    let then = Then::parse(r#"[{"topic": "u", "body": 1}, {"topic": "u", "body": 2}]"#).unwrap();
    let job = |n: usize| NewJob {
        headers: Headers::default().with_then(then.clone()),
        ..new_job("t", &(from + n).to_string(), "1", Due::In(Duration::ZERO))
    };
    let jobs: Vec<NewJob> = (0..JOBS).map(job).collect();
    assert!(store.add(&jobs).iter().all(Result::is_ok));
    assert_eq!(accept_all(store, "t"), JOBS);
}

#[test]
fn entries_that_were_taken_are_not_taken_again_after_a_move() {
    let nodes = Nodes((0..3).map(|_| RedisServer::start()).collect());
    let (settings, _run_dir, mut store) = nodes.open();
    add_with_followers(&mut *store, 0);
    let entries = nodes.outboxes();
    assert_eq!(send_all(&settings), 2 * JOBS);
    assert_eq!(accept_all(&mut *store, "u"), 2 * JOBS);
    // This is as if the sender had died before it removed the entries. The followers have ended in the meantime.
    nodes.put_back(&entries);
    assert_eq!(store.outbox().unwrap().entries, 2 * JOBS as u64);
    assert_eq!(send_all(&settings), 0, "the marks refuse them");
    // The old entries are put back again, and there are also new entries. No entry is sent before a node is emptied.
    nodes.put_back(&entries);
    add_with_followers(&mut *store, JOBS);
    assert_eq!(store.outbox().unwrap().entries, 4 * JOBS as u64);
    let lanes = Lanes::new(&settings).unwrap();
    let empty = SetChangeRequest { empty: vec!["r1".into()], ..SetChangeRequest::default() };
    let done = lanes.redis().unwrap().move_jobs(&empty, |_| {}).unwrap().unwrap();
    assert_eq!(done.nodes, ["r0", "r2"]);
    assert!(lanes.redis().unwrap().outbox_of("r1").unwrap().entries > 0);
    assert_eq!(send_all(&settings), 2 * JOBS, "those that were not taken before");
    assert_eq!(lanes.redis().unwrap().outbox_of("r1").unwrap().entries, 0);
    assert_eq!(accept_all(&mut *store, "u"), 2 * JOBS);
    assert_eq!(send_all(&settings), 0);
}

#[test]
fn a_node_that_hangs_holds_up_its_own_followers_alone() {
    let nodes = Nodes((0..2).map(|_| RedisServer::start()).collect());
    let (settings, run_dir, mut store) = nodes.open();
    add_with_followers(&mut *store, 0);
    let mut lane = store::open_lane(&settings, run_dir.path(), 0).unwrap();
    let before = lane.outbox().unwrap().entries;
    nodes.0[1].hang(true);
    // The first call may send nothing, and may only notice that a node hangs.
    let mut added = 0;
    let (sent, left) = eventually(20 * SECOND, "the followers of the other node", || {
        let sent = lane.send_followers(&make).unwrap();
        added += sent.added.len() as u64;
        let left = lane.outbox().unwrap().entries;
        (left < before).then_some((sent, left))
    });
    assert!(added == before - left && left > 0, "{left} of {before}, {added} added");
    assert!(sent.again.is_some());
    nodes.0[1].hang(false);
    assert_eq!(send_all(&settings) + sent.added.len(), 2 * JOBS);
    assert_eq!(accept_all(&mut *store, "u"), 2 * JOBS);
}

#[test]
fn many_followers_of_a_hanging_node_do_not_hold_up_the_others() {
    let nodes = Nodes((0..2).map(|_| RedisServer::start()).collect());
    let (settings, run_dir, mut store) = nodes.open();
    // In each outbox, more entries wait for the node that hangs than a sender reads in one call.
    for batch in 0..12 * 250 / JOBS {
        add_with_followers(&mut *store, batch * JOBS);
    }
    let mut lane = store::open_lane(&settings, run_dir.path(), 0).unwrap();
    nodes.0[1].hang(true);
    let there = || -> usize {
        let counts = |key: &str| nodes.0[0].cli(&["zcard", key]).trim().parse::<usize>().unwrap();
        nodes.0[0].cli(&["keys", "*:r:u"]).lines().filter(|key| !key.is_empty()).map(counts).sum()
    };
    let mut last = (0, Instant::now());
    eventually(60 * SECOND, "no more followers for the other node", || {
        let again = lane.send_followers(&make).unwrap().again.expect("some entries wait");
        if there() != last.0 {
            last = (there(), Instant::now());
        }
        // A sender that can send nothing now does not look again at once.
        (last.1.elapsed() > 3 * SECOND && !again.is_zero()).then_some(())
    });
    let left = lane.outbox().unwrap().entries;
    assert!(last.0 > 0 && left > 2 * 512, "{last:?}, {left} left");
    nodes.0[1].hang(false);
    eventually(30 * SECOND, "an empty outbox", || {
        let _ = lane.send_followers(&make);
        (lane.outbox().ok()?.entries == 0).then_some(())
    });
    assert_eq!(there(), last.0, "all entries that were left are of the node that hung");
}

#[test]
fn a_host_leaves_what_topics_of_other_hosts_keep() {
    let nodes = Nodes(vec![RedisServer::start()]);
    let settings = nodes.settings();
    let run_dir = tempfile::tempdir().unwrap();
    let open = || store::open(&settings, run_dir.path()).unwrap();
    let (mut one, mut other) = (open(), open());
    let name = |topic: &str| TopicName::new(topic).unwrap();
    let with_event = RecordKeeping { with_event: true, ..RecordKeeping::DEFAULT };
    one.keep_records(&[(name("t"), with_event)], RECORDS_MAX).unwrap();
    other.keep_records(&[(name("u"), with_event)], RECORDS_MAX).unwrap();
    assert!(one.add(&[new_job("t", "1", "1", Due::In(Duration::ZERO))]).iter().all(Result::is_ok));
    assert_eq!(accept_all(&mut *one, "t"), 1);
    assert_eq!(one.outbox().unwrap().entries, 1, "its event");
    // When all records of a topic are removed, its settings go too.
    assert_eq!(one.purge_records(&name("t"), 9), Ok(1));
    let names = |key: &str| nodes.0[0].cli(&["hkeys", key]).trim().to_owned();
    let kept: Vec<String> = nodes.0[0].cli(&["keys", "*:keeping"]).lines().map(names).collect();
    assert_eq!(kept, ["u", "u"]);
}

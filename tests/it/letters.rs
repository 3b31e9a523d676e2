//! One id may have very many dead letters. No call about them may take much of a node's time.

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};

use crate::support::redis::RedisServer;
use crate::support::{SECOND, eventually, in_memory, new_job};
use model::bulk::{BulkFilter, BulkOperation, BulkProgress, BulkRequest};
use model::job::{Due, JobId, JobKey, State, TopicName};
use model::letters::RedrivePace;
use model::settings;
use role::bulk::BulkRun;
use store::{
    DeadLetterKey, DeadLetterOperation, DeadLetterSelection, Deleted, LeaseRequest, Outcome, Settlement,
    Store, StoreError,
};

/// No call touches more records than this.
const MOST: usize = 8000;

fn topic() -> TopicName {
    TopicName::new("t").unwrap()
}

fn store_on(server: &RedisServer) -> Box<dyn Store> {
    store_on_all(&[server], 1)
}

/// Opens the store on these nodes, with `shards` shards on each node.
fn store_on_all(servers: &[&RedisServer], shards: u32) -> Box<dyn Store> {
    let nodes = servers.iter().enumerate();
    let node = |(n, server): (usize, &&RedisServer)| {
        settings::NodeSettings::server(format!("r{n}"), server.url(), shards)
    };
    let redis = settings::RedisSettings::of_nodes("dq", 5 * SECOND, 2, nodes.map(node).collect());
    store::open(&settings::StoreSettings::Redis(redis), std::path::Path::new("/nowhere")).unwrap()
}

/// Makes dead letters: `times` letters for each of these ids.
fn bury(store: &mut dyn Store, ids: &[String], times: usize) {
    let hold = 60 * SECOND;
    let wanted = LeaseRequest {
        topic: topic(),
        max: ids.len() as u32,
        hold,
        max_leased: None,
        is_own_ttr: false,
        max_attempts: 3,
    };
    for _ in 0..times {
        let jobs: Vec<_> =
            ids.iter().map(|id| new_job("t", id, "{}", Due::In(std::time::Duration::ZERO))).collect();
        store.add(&jobs).into_iter().for_each(|added| assert!(added.is_ok()));
        let leased = store.lease(std::slice::from_ref(&wanted), ids.len(), None).unwrap().jobs;
        assert_eq!(leased.len(), ids.len());
        let dies = |job: store::LeasedJob| Settlement {
            key: job.key,
            token: job.token,
            outcome: Outcome::DeadLetter,
            attempt: None,
        };
        let buried: Vec<_> = leased.into_iter().map(dies).collect();
        store.settle(&buried).into_iter().for_each(|settled| assert!(settled.is_ok()));
    }
}

/// Returns the dead letters with the times of their deaths, in the order in which they are shown.
fn dead(store: &mut dyn Store) -> Vec<(String, i64)> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.list(&topic(), State::Dead, cursor.as_deref(), 200).unwrap();
        let view = |view: store::StoredJob| (view.key.id.to_string(), view.until_ms.unwrap());
        all.extend(page.jobs.into_iter().map(view));
        cursor = page.next;
        if cursor.is_none() {
            return all;
        }
    }
}

fn named(letters: &[(String, i64)]) -> Vec<DeadLetterKey> {
    let letter = |(id, died_ms): &(String, i64)| DeadLetterKey {
        id: JobId::new(id.as_str()).unwrap(),
        died_ms: *died_ms,
    };
    letters.iter().map(letter).collect()
}

/// Sees each command that a server executes.
struct Monitor<'a> {
    server: &'a RedisServer,
    file: tempfile::NamedTempFile,
    process: Child,
}

impl Monitor<'_> {
    fn of(server: &RedisServer) -> Monitor<'_> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let process = Command::new("redis-cli")
            .arg("-s")
            .arg(server.socket())
            .arg("monitor")
            .stdout(Stdio::from(file.reopen().unwrap()))
            .spawn()
            .unwrap();
        let monitor = Monitor { server, file, process };
        eventually(5 * SECOND, "a monitor", || monitor.text().starts_with("OK").then_some(()));
        monitor
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.file.path()).unwrap()).into_owned()
    }

    /// For each call of a script, returns approximately how many records the call touched. (This is the number of words in the
    /// commands of the script.)
    fn touched(self) -> Vec<usize> {
        self.server.cli(&["echo", "it-is-over"]);
        eventually(60 * SECOND, "the end", || self.text().contains("it-is-over").then_some(()));
        let (mut calls, text) = (Vec::new(), self.text());
        for line in text.lines() {
            if line.contains("\"EVALSHA\"") || line.contains("\"EVAL\"") {
                calls.push(0);
            } else if line.contains(" lua] ") {
                *calls.last_mut().unwrap() += line.matches("\" \"").count();
            }
        }
        calls
    }
}

impl Drop for Monitor<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs some work, and fails if one of its calls touches more than `MOST` records.
fn bounded<T>(server: &RedisServer, what: &str, work: impl FnOnce() -> T) -> T {
    let monitor = Monitor::of(server);
    let done = work();
    let touched = monitor.touched();
    let (calls, most) = (touched.len(), touched.into_iter().max().unwrap());
    println!("{what}: {calls} calls, at most {most} records each");
    assert!(most <= MOST, "{what}: one of {calls} calls touched {most} records");
    done
}

#[test]
fn letters_in_the_middle_of_many_are_removed_in_small_calls() {
    let server = RedisServer::start_in(in_memory());
    let mut store = store_on(&server);
    bury(store.as_mut(), &["1".to_owned()], 2000);
    let mut left = dead(store.as_mut());
    assert_eq!(left.len(), 2000);
    let half = left.len() / 2;
    let middle: Vec<_> = left.drain(half..half + 100).collect();
    let removed = bounded(&server, "the middle", || store.purge_letters(&topic(), &named(&middle)).unwrap());
    assert_eq!(removed, 100);
    assert_eq!(dead(store.as_mut()), left, "the others stay, in their order");

    // If one letter is redriven, the other letters stay as they are.
    let one = left.remove(900);
    let which = DeadLetterSelection::Letters(named(&[one]));
    let moved =
        bounded(&server, "one", || store.redrive(&topic(), &which, 10, RedrivePace::default()).unwrap());
    assert_eq!(moved, 1);
    assert_eq!(dead(store.as_mut()), left);
    let key = JobKey { topic: topic(), id: JobId::new("1").unwrap() };
    assert_eq!(store.get(&key).unwrap().unwrap().state, State::Ready);
    assert_eq!(store.delete(std::slice::from_ref(&key)).remove(0), Ok(Deleted::Done));
    assert_eq!(dead(store.as_mut()), left);

    // Some letters at random places are removed, including the first and the last. So another letter becomes the
    // latest.
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..6 {
        let last = left.len() - 1;
        let goes: Vec<bool> =
            (0..left.len()).map(|i| i == 0 || i == last || random.u8(..) < 1 << (round + 2)).collect();
        let mut gone: Vec<_> =
            left.iter().zip(&goes).filter(|(_, goes)| **goes).map(|(l, _)| l.clone()).collect();
        random.shuffle(&mut gone);
        let n = gone.len();
        let removed = bounded(&server, "some", || store.purge_letters(&topic(), &named(&gone)).unwrap());
        assert_eq!(removed, n, "round {round}");
        left = left.into_iter().zip(goes).filter(|(_, goes)| !goes).map(|(letter, _)| letter).collect();
        assert_eq!(dead(store.as_mut()), left, "round {round}");
        let latest = store.get(&key).unwrap().map(|view| view.until_ms.unwrap());
        assert_eq!(latest, left.last().map(|(_, died_ms)| *died_ms), "round {round}");
        assert_eq!(
            store.letters(&topic(), std::slice::from_ref(&key.id), DeadLetterOperation::Count).unwrap(),
            left.len()
        );
    }
    assert_eq!(store.delete(&[key]).remove(0), Ok(Deleted::Done));
    assert_eq!(server.cli(&["--raw", "eval", "return #redis.call('KEYS', '*[Xx]:t')", "0"]).trim(), "0");
}

#[test]
fn ids_with_many_letters_are_counted_and_deleted_in_small_calls() {
    let server = RedisServer::start_in(in_memory());
    let mut store = store_on(&server);
    let ids: Vec<String> = (0..80).map(|n| n.to_string()).collect();
    bury(store.as_mut(), &ids, 120);
    let keys: Vec<JobKey> =
        ids.iter().map(|id| JobKey { topic: topic(), id: JobId::new(id.as_str()).unwrap() }).collect();
    let named: Vec<JobId> = keys.iter().map(|key| key.id.clone()).collect();
    let counted =
        bounded(&server, "a count", || store.letters(&topic(), &named, DeadLetterOperation::Count).unwrap());
    assert_eq!(counted, 80 * 120);
    let deleted = bounded(&server, "a deletion", || store.delete(&keys));
    assert!(deleted.iter().all(|one| *one == Ok(Deleted::Done)));
    assert_eq!(dead(store.as_mut()), []);
}

#[test]
fn a_page_of_a_list_asks_each_shard_once() {
    let server = RedisServer::start();
    let mut store = store_on_all(&[&server], 2);
    let ids: Vec<String> = (0..300).map(|n| format!("j{n}")).collect();
    bury(&mut *store, &ids, 1);
    let scripts = || {
        let output = server.cli(&["info", "commandstats"]);
        let calls = output.lines().find_map(|l| l.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
        calls.map_or(0, |n| n.parse::<u64>().unwrap())
    };
    let (before, mut cursor, mut pages, mut found) = (scripts(), None, 0, Vec::new());
    loop {
        let page = store.list(&topic(), State::Dead, cursor.as_deref(), 20).unwrap();
        found.extend(page.jobs.into_iter().map(|view| view.key.id.to_string()));
        pages += 1;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    // Each shard is asked only once for the end of a page. At a second call, other jobs could be in this place.
    assert!(scripts() - before <= 2 * pages, "{} calls for {pages} pages", scripts() - before);
    assert_eq!(found.iter().collect::<HashSet<_>>().len(), 300);
    assert_eq!(found.len(), 300);
}

#[test]
fn letters_of_a_node_that_is_down_are_redriven_later() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let mut store = store_on_all(&[&servers[0], &servers[1]], 1);
    let ids: Vec<String> = (0..100).map(|n| format!("j{n}")).collect();
    bury(&mut *store, &ids, 1);
    let (operation, filter) = (BulkOperation::Redrive, BulkFilter::default());
    let request = BulkRequest { topic: topic(), operation, filter, rate: 1000, hides_answers: false };
    let now_ms = host::now_ms();
    let run = BulkRun::new(&request, 1, now_ms + 1);
    let looked = run.look(&mut *store, &BulkProgress::default(), 500, now_ms).unwrap();
    assert_eq!(looked.plan.len(), 100);
    servers[1].hang(true);
    eventually(20 * SECOND, "the node counts as down", || {
        let key = |id: &String| JobKey { topic: topic(), id: JobId::new(id.as_str()).unwrap() };
        ids.iter().find(|id| matches!(store.get(&key(id)), Err(StoreError::NodeDown(_))))
    });
    let down = run.apply(&mut *store, &looked.plan, false).unwrap_err();
    assert!(matches!(&down, StoreError::NodeDown(why) if why.contains("r1")), "{down}");
    servers[1].hang(false);
    let counts =
        eventually(20 * SECOND, "the node is back", || run.apply(&mut *store, &looked.plan, true).ok());
    assert_eq!((counts.changed + counts.unclear, counts.skipped), (100, 0));
    assert!(dead(&mut *store).is_empty());
}

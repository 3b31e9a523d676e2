//! Numbers as priorities on Redis: the order of the ready jobs (docs/internals/PRIORITY.md), and what jobs without
//! numbers cost. A process of the previous release may leave this order with a missing entry or with a surplus entry.

use std::time::Duration;

use crate::store_contract::numbered::change_at_random;
use crate::support::redis::RedisServer;
use crate::support::{SECOND, new_job};
use model::job::{Due, NewJob, Priority, TopicName};
use model::job_priority::JobPriority;
use model::settings;
use store::{LeaseRequest, Outcome, Settlement, Store};

const READY: &str = "dq:{a.0}:r:t";
const ORDER: &str = "dq:{a.0}:q:t";

fn store_on(server: &RedisServer) -> Box<dyn Store> {
    let node = settings::NodeSettings::server("a".to_owned(), server.url(), 1);
    let redis = settings::RedisSettings::of_nodes("dq", 5 * SECOND, 2, vec![node]);
    store::open(&settings::StoreSettings::Redis(redis), std::path::Path::new("/nowhere")).unwrap()
}

fn numbered(id: u32, number: u32) -> NewJob {
    let job = new_job("t", &format!("{id:03}"), "1", Due::In(Duration::ZERO));
    NewJob { priority: JobPriority::from_number(number), ..job }
}

fn add(store: &mut dyn Store, jobs: &[NewJob]) {
    store.add(jobs).into_iter().for_each(|added| assert!(added.is_ok()));
}

/// Leases jobs. Returns their ids, which are numbers.
fn lease(store: &mut dyn Store, max: u32) -> Vec<u32> {
    let topic = TopicName::new("t").unwrap();
    let wanted =
        LeaseRequest { topic, max, hold: 60 * SECOND, max_leased: None, is_own_ttr: false, max_attempts: 3 };
    let jobs = store.lease(&[wanted], max as usize, None).unwrap().jobs;
    jobs.into_iter().map(|one| one.key.id.as_str().parse().unwrap()).collect()
}

/// A script. It returns what is wrong with the order of the ready jobs of the topic `t`. Empty: nothing is wrong.
const COMPARE: &str = r#"
local base, seen, wrong = KEYS[1], {}, {}
local order = redis.call('ZRANGE', base .. 'q:t', 0, -1, 'WITHSCORES')
for i = 1, #order, 2 do
  local id, due, stamp = string.sub(order[i], 16), struct.unpack('>I6I7', order[i])
  local noted = redis.call('HGET', base .. 'm:t', id) or ''
  local number, since = string.match(noted, '^h{":priority":"(%d+)%.(%d+)', 6)
  if seen[id] then wrong[#wrong + 1] = 'twice ' .. id end
  if redis.call('ZSCORE', base .. 'r:t', id) ~= string.format('%.0f', due) then wrong[#wrong + 1] = 'surplus ' .. id end
  if number ~= order[i + 1] or since ~= string.format('%.0f', stamp) then wrong[#wrong + 1] = 'number ' .. id end
  seen[id] = true
end
for _, id in ipairs(redis.call('ZRANGE', base .. 'r:t', '-inf', '(1000000000000000', 'BYSCORE')) do
  if not seen[id] then wrong[#wrong + 1] = 'missing ' .. id end
end
return table.concat(wrong, ', ')
"#;

fn wrong(server: &RedisServer) -> String {
    server.cli(&["eval", COMPARE, "1", "dq:{a.0}:"]).trim().to_owned()
}

fn number_of(server: &RedisServer, command: &[&str]) -> u64 {
    let output = server.cli(command);
    output.trim().parse().unwrap_or_else(|_| panic!("{command:?}: {output}"))
}

#[test]
fn each_change_keeps_the_order_with_the_ready_jobs() {
    let server = RedisServer::start();
    let mut store = store_on(&server);
    let mut most = 0;
    change_at_random(&mut *store, true, 500, |what| {
        assert_eq!(wrong(&server), "", "{what}");
        most = most.max(number_of(&server, &["zcard", ORDER]));
    });
    assert!(most >= 5, "at most {most} ready jobs with numbers");
}

#[test]
fn missing_entries_of_the_order_are_mended() {
    const JOBS: u32 = 100;
    let server = RedisServer::start();
    let mut store = store_on(&server);
    // The numbers descend, so the job that was added last comes first.
    let jobs: Vec<NewJob> = (0..JOBS).map(|n| numbered(n, JOBS - n)).collect();
    add(&mut *store, &jobs);
    // Now the store is as if the previous release had promoted all jobs.
    server.cli(&["del", ORDER]);
    let first = lease(&mut *store, 10);
    // (All jobs are due at the same time. The jobs of one answer are sorted.)
    assert_eq!(first, (0..10).rev().collect::<Vec<_>>(), "nothing is known but the due times");
    assert!(number_of(&server, &["zcard", ORDER]) >= 16, "some are mended");
    let mut came = first;
    while came.len() < 50 {
        came.extend(lease(&mut *store, 1));
    }
    for _ in 0..200 {
        lease(&mut *store, 0);
    }
    let rest = lease(&mut *store, JOBS);
    came.extend(&rest);
    assert_eq!(came.len(), JOBS as usize, "a lease of all jobs returns all jobs");
    came.sort_unstable();
    assert_eq!(came, (0..JOBS).collect::<Vec<_>>());
}

#[test]
fn a_missing_entry_comes_although_others_are_before_it() {
    let server = RedisServer::start();
    let mut store = store_on(&server);
    add(&mut *store, &(0..15).map(|n| numbered(n, 5)).collect::<Vec<_>>());
    add(&mut *store, &[numbered(500, 1)]);
    let member = server.cli(&[
        "eval",
        "return redis.call('ZREM', KEYS[1], redis.call('ZRANGE', KEYS[1], 0, 0)[1])",
        "1",
        ORDER,
    ]);
    assert_eq!((member.trim(), wrong(&server)), ("1", "missing 500".to_owned()));
    // A lease also checks 15 entries that it does not lease.
    assert_eq!(lease(&mut *store, 1), [0]);
    assert_eq!(wrong(&server), "");
    assert_eq!(lease(&mut *store, 3), [500, 1, 2]);
}

#[test]
fn surplus_entries_of_the_order_are_dropped() {
    let server = RedisServer::start();
    let mut store = store_on(&server);
    add(&mut *store, &(0..40).map(|n| numbered(n, n)).collect::<Vec<_>>());
    // Now the store is as if the previous release had leased or deleted the first thirty jobs, and had changed the due
    // time of another job.
    for n in 0..30 {
        server.cli(&["zrem", READY, &format!("{n:03}")]);
    }
    server.cli(&["zadd", READY, "1000", "035"]);
    assert_eq!(wrong(&server).matches("surplus").count(), 31);
    assert_eq!(lease(&mut *store, 2), [30, 31]);
    // The lease made an entry for the new due time. This entry comes before the entry for the old due time.
    assert_eq!(lease(&mut *store, 4), [32, 33, 34, 35]);
    assert_eq!(wrong(&server), "surplus 035");
    assert_eq!(lease(&mut *store, 1), [36]);
    assert_eq!(wrong(&server), "");
    assert_eq!(lease(&mut *store, 9), [37, 38, 39]);
    assert_eq!(number_of(&server, &["exists", ORDER]), 0);
}

#[test]
fn very_many_surplus_entries_hold_no_lease_back() {
    let server = RedisServer::start();
    let mut store = store_on(&server);
    add(&mut *store, &[numbered(1, 9)]);
    let fill = "for i = 1, 5000 do redis.call('ZADD', KEYS[1], 1, struct.pack('>I6I7I2', i, i, 0) .. i) end";
    server.cli(&["eval", fill, "1", ORDER]);
    assert_eq!(lease(&mut *store, 1), [1], "although its entry is far behind");
    assert_eq!(number_of(&server, &["exists", ORDER]), 0, "no job with a number is ready any more");
}

/// Jobs without numbers need no more commands than in the release before numbers.
#[test]
fn jobs_with_levels_need_no_further_command() {
    let server = RedisServer::start();
    let mut store = store_on(&server);
    let job = |n: u32, level: Priority| NewJob { priority: level.into(), ..numbered(n, 0) };
    let levels = [Priority::High, Priority::Normal, Priority::Low];
    let mut round = |jobs: &[NewJob]| {
        let topic = TopicName::new("t").unwrap();
        add(&mut *store, jobs);
        let wanted = LeaseRequest {
            topic,
            max: 9,
            hold: 60 * SECOND,
            max_leased: None,
            is_own_ttr: false,
            max_attempts: 3,
        };
        let leased = store.lease(&[wanted], 9, None).unwrap().jobs;
        let outcomes = [Outcome::Ack, Outcome::Retry(Due::In(Duration::ZERO)), Outcome::HandBack];
        let one = |(n, job): (usize, &store::LeasedJob)| Settlement {
            key: job.key.clone(),
            token: job.token.clone(),
            outcome: outcomes[n % 3].clone(),
            attempt: None,
        };
        let settlements: Vec<_> = leased.iter().enumerate().map(one).collect();
        assert!(store.settle(&settlements).iter().all(Result::is_ok));
        let keys: Vec<_> = jobs.iter().map(|job| job.key.clone()).collect();
        assert!(store.delete(&keys).iter().all(Result::is_ok));
    };
    let commands = || {
        let output = server.cli(&["info", "commandstats"]);
        let count = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let is_own = !matches!(name, "info" | "time" | "evalsha" | "ping");
            Some((name.to_owned(), rest.split(',').next()?.parse::<u64>().ok()?)).filter(|_| is_own)
        };
        output.lines().filter_map(count).collect::<std::collections::BTreeMap<_, _>>()
    };
    let jobs: Vec<NewJob> = (0..6).map(|n| job(n, levels[n as usize % 3])).collect();
    round(&jobs);
    let before = commands();
    round(&jobs);
    let after = commands();
    let made: std::collections::BTreeMap<&str, u64> = after
        .iter()
        .map(|(name, n)| (name.as_str(), n - before.get(name).copied().unwrap_or(0)))
        .filter(|(_, n)| *n > 0)
        .collect();
    println!("{made:?}");
    for name in ["zrandmember", "unlink", "zcount"] {
        assert_eq!(made.get(name), None, "{made:?}");
    }
    assert_eq!(made.values().sum::<u64>(), MADE_BEFORE, "{made:?}");
}

/// In the release before numbers, the scripts of one round made 74 commands. Now they make three commands less: one
/// command reads both the set of nodes and whether bytes are counted. And they make one command more: if jobs are
/// handed back, it reads the circuit of their topic, because one of them may be its probe.
const MADE_BEFORE: u64 = 72;

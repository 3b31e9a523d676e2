//! What every store promises: one suite for all stores. To test a further store, add a [`Fixture`], and a line at the
//! end of this file.

use crate::support::{eventually, new_job, outcomes, redis};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Once};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::flow::LimitName;
use model::headers::Headers;
use model::job::{Attempt, Body, Due, JobId, JobKey, NewJob, OnConflict, Priority, State, TopicName};
use model::letters::RedrivePace;
use model::quota::{AddRate, OverQuota, Quota, QuotaLimit};
use model::settings;
use model::topic::Rate;
use store::{
    Added, Bell, BellKind, Change, Changed, CircuitOpening, CircuitState, Counts, DeadLetterKey,
    DeadLetterOperation, DeadLetterSelection, Deleted, HELD_MS, LEASE_BYTES, Lanes, LeaseRequest,
    LeaseResult, LeasedJob, LimitQuery, LimitUse, OUTAGE, Outcome, OwnerTag, PermitRequest, Reserver, Ring,
    Settled, Settlement, Store, StoreError, Token,
};

mod bulk;
mod named_leases;
pub(crate) mod numbered;
mod outbox;
mod records;
mod tags;
mod time_to_run;

use self::bulk::{
    a_listed_job_is_changed_only_as_it_was_listed, a_listed_job_is_deleted_and_leaves_a_record,
    each_state_is_listed_without_bodies, jobs_are_listed_forward_and_backward_without_a_gap,
    many_listed_jobs_are_changed_at_once,
};
use self::named_leases::{
    a_lease_shows_the_client_that_has_it, a_named_job_is_leased_although_others_come_first,
    a_named_lease_ends_with_its_owner_or_at_its_deadline,
};
use self::numbered::{
    a_settlement_may_change_the_priority, jobs_of_one_number_come_by_due_time_and_arrival,
    numbers_and_levels_have_one_order, random_changes_keep_the_order_of_ready_jobs,
    the_number_of_a_job_stays_in_all_states,
};
use self::outbox::{
    a_job_that_ends_otherwise_is_followed_by_nothing, each_end_makes_an_event_where_it_is_asked_for,
    several_senders_add_each_follower_once, what_follows_is_added_once_and_when_its_job_is_accepted,
    what_follows_stays_with_a_job_and_leaves_its_links,
};
use self::records::{
    a_delivered_job_leaves_a_record_with_all_its_attempts, a_job_that_is_replaced_leaves_a_record,
    a_record_goes_when_it_is_too_old, a_topic_keeps_as_many_records_as_it_says,
    all_records_together_have_a_bound_and_the_largest_topic_gives, each_way_to_end_leaves_one_record,
    records_are_listed_the_last_first, records_keep_tags_with_a_body_and_without_one,
    records_of_an_id_are_erased_when_it_is_asked_for,
};
use self::tags::{tags_change_without_headers_and_path_and_back, tags_stay_with_a_job_in_all_states};
use self::time_to_run::{
    a_kept_id_is_unique_also_while_its_job_is_leased, the_time_to_run_changes_and_the_expiry_stays,
};

struct Bells(Vec<Box<dyn Bell>>);

impl Bells {
    fn answer(&self) -> std::io::Result<bool> {
        self.0.iter().map(|bell| bell.answer()).try_fold(false, |any, one| Ok(any | one?))
    }
}

/// Each test has its own store, and opens as many handles to it as it needs.
trait Fixture {
    fn new() -> Self;
    fn settings(&self) -> settings::StoreSettings;
    fn run_dir(&self) -> &Path;
    /// The number of shards with jobs of a topic. With one shard, a test knows exactly when the timer's bell rings.
    const SHARDS: usize;

    fn open(&self) -> Box<dyn Store> {
        store::open(&self.settings(), self.run_dir()).unwrap()
    }
    /// Whether it is the embedded store.
    const IS_EMBEDDED: bool = false;

    /// Hangs a bell on each lane.
    fn bell(&self, kind: BellKind) -> Bells {
        self.bell_named(kind, "test")
    }
    fn bell_named(&self, kind: BellKind, name: &str) -> Bells {
        let settings = self.settings();
        let lanes = Lanes::new(&settings).unwrap().count();
        let hang = |lane| store::hang_bell(&settings, self.run_dir(), lane, kind, name).unwrap();
        Bells((0..lanes).map(hang).collect())
    }
}

struct Embedded {
    dir: tempfile::TempDir,
}

impl Fixture for Embedded {
    fn new() -> Embedded {
        Embedded { dir: tempfile::tempdir().unwrap() }
    }
    fn settings(&self) -> settings::StoreSettings {
        let path: PathBuf = self.dir.path().join("dq.db");
        settings::StoreSettings::Embedded { path, min_free: 0 }
    }
    fn run_dir(&self) -> &Path {
        self.dir.path()
    }
    const SHARDS: usize = 1;
    const IS_EMBEDDED: bool = true;
}

/// At the end of each test, the counts in the rows of the topics must agree with the rows of the jobs.
impl Drop for Embedded {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let Ok(db) = rusqlite::Connection::open(self.dir.path().join("dq.db")) else { return };
        let counted = "SELECT name, delayed, ready, leased, dead, bytes FROM topic ORDER BY name";
        let Ok(mut counted) = db.prepare(counted) else { return };
        let real = "SELECT name, coalesce(sum(state = 1), 0), coalesce(sum(state = 2), 0), coalesce(sum(state = 3), 0),
                           coalesce(sum(state = 4), 0),
                           coalesce(sum(octet_length(id) + octet_length(body) + coalesce(octet_length(headers), 0)), 0)
                    FROM topic LEFT JOIN job USING (tid) GROUP BY tid ORDER BY name";
        let rows = |statement: &mut rusqlite::Statement<'_>| -> Vec<(String, [i64; 5])> {
            let read = |row: &rusqlite::Row<'_>| {
                let counts = [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?];
                Ok((row.get(0)?, counts))
            };
            statement.query_map([], read).unwrap().collect::<rusqlite::Result<_>>().unwrap()
        };
        assert_eq!(rows(&mut counted), rows(&mut db.prepare(real).unwrap()));
    }
}

/// Makes jobs with limits, one for each id.
fn limited(quota: &Quota, ids: impl Iterator<Item = u32>, body: &str) -> Vec<NewJob> {
    let quota = std::sync::Arc::new(quota.clone());
    let job = |n| NewJob { quota: Some(quota.clone()), ..new_job("t", &format!("j{n}"), body, later()) };
    ids.map(job).collect()
}

/// A due time that does not come during a test.
fn later() -> Due {
    Due::In(Duration::from_secs(3600))
}

/// Returns how many adds were accepted, and the limits that refused the others.
fn accepted(added: &[store::Result<Added>]) -> (usize, Vec<OverQuota>) {
    let over = |one: &store::Result<Added>| match one {
        Err(StoreError::OverQuota(over)) => Some(*over),
        Err(e) => panic!("{e}"),
        Ok(_) => None,
    };
    let refused: Vec<OverQuota> = added.iter().filter_map(over).collect();
    (added.len() - refused.len(), refused)
}

fn counts_of(store: &mut dyn Store, topic: &str) -> Counts {
    store.counts().unwrap().into_iter().find(|one| one.topic.as_str() == topic).unwrap()
}

fn a_topic_holds_no_more_jobs_than_its_quota<F: Fixture>(f: &F) {
    let mut store = f.open();
    let most = 4 * F::SHARDS;
    let quota = Quota { max_pending: Some(most as u32), ..Quota::default() };
    let many = 40 * F::SHARDS as u32;
    let (taken, refused) = accepted(&store.add(&limited(&quota, 0..many, "1")));
    assert_eq!((taken, counts_of(&mut *store, "t").pending()), (most, most as u64));
    assert!(refused.iter().all(|over| over.limit == QuotaLimit::Pending), "{refused:?}");
    // When an existing job is replaced, the replacement takes no new place.
    let there: Vec<u32> =
        (0..many).filter(|n| store.get(&key("t", &format!("j{n}"))).unwrap().is_some()).collect();
    let replaced = store.add(&limited(&quota, there.iter().copied(), "22"));
    assert_eq!(accepted(&replaced).0, most);
    assert!(replaced.iter().all(|one| matches!(one, Ok(Added::Replaced { .. }))), "{replaced:?}");
    let absent = (0..many).find(|n| !there.contains(n)).unwrap();
    assert_eq!(accepted(&store.add(&limited(&quota, absent..=absent, "1"))).0, 0);
    // After jobs are deleted, another job can use a free place.
    let keys: Vec<JobKey> = there.iter().map(|n| key("t", &format!("j{n}"))).collect();
    store.delete(&keys).into_iter().for_each(|one| assert_eq!(one, Ok(Deleted::Done)));
    assert_eq!(accepted(&store.add(&limited(&quota, absent..=absent, "1"))).0, 1);
    // Without limits, no job is refused.
    let free: Vec<NewJob> =
        limited(&quota, 0..many, "1").into_iter().map(|job| NewJob { quota: None, ..job }).collect();
    assert_eq!(accepted(&store.add(&free)).0, many as usize);
}

fn a_topic_holds_no_more_bytes_than_its_quota<F: Fixture>(f: &F) {
    let mut store = f.open();
    let body = format!("\"{}\"", "x".repeat(998));
    let most = 10_000 * F::SHARDS as u64;
    let quota = Quota { max_bytes: Some(most), ..Quota::default() };
    let many = 60 * F::SHARDS as u32;
    let (taken, refused) = accepted(&store.add(&limited(&quota, 0..many, &body)));
    assert_eq!(taken, 9 * F::SHARDS, "each shard has room for nine of a little more than a thousand bytes");
    assert!(refused.iter().all(|over| over.limit == QuotaLimit::Bytes), "{refused:?}");
    let bytes = counts_of(&mut *store, "t").bytes.unwrap();
    assert!(bytes <= most && bytes > most * 9 / 10, "{bytes}");
    // A replacement or a change with a larger body is refused. A change with a smaller body is accepted.
    let there = (0..many).find(|n| store.get(&key("t", &format!("j{n}"))).unwrap().is_some()).unwrap();
    let big = format!("\"{}\"", "x".repeat(5000));
    assert_eq!(accepted(&store.add(&limited(&quota, there..=there, &big))).0, 0);
    let change = |text: &str| Change {
        body: Some(Body::parse(text).unwrap()),
        max_bytes: Some(most),
        ..Change::default()
    };
    let job = key("t", &format!("j{there}"));
    assert!(matches!(store.change(&job, &change(&big)), Err(StoreError::OverQuota(_))));
    assert_eq!(store.change(&job, &change("1")), Ok(Changed::Done));
    assert_eq!(accepted(&store.add(&limited(&quota, there..=there, &body))).0, 1);
}

fn the_bytes_of_a_topic_stay_exact<F: Fixture>(f: &F) {
    let mut store = f.open();
    let quota = Quota { max_bytes: Some(1 << 40), ..Quota::default() };
    store.add(&limited(&quota, 1000..1020, "\"they stay\""));
    let before = counts_of(&mut *store, "t").bytes.unwrap();
    assert!(before >= 20 * 11);
    let now = |ids: std::ops::Range<u32>, body: &str| -> Vec<NewJob> {
        let due = Due::In(Duration::ZERO);
        limited(&quota, ids, body).into_iter().map(|job| NewJob { due, ..job }).collect()
    };
    for round in 0..3_u32 {
        let body = format!("\"{}\"", "b".repeat(10 + 300 * round as usize));
        store.add(&now(0..40, &body));
        // Some jobs are replaced, some of them twice in one call, and some without limits.
        store.add(&now(0..10, "7"));
        let twice: Vec<NewJob> = now(5..8, "88").into_iter().chain(now(5..8, "\"999\"")).collect();
        store.add(&twice);
        let free: Vec<NewJob> =
            now(8..12, "\"free\"").into_iter().map(|job| NewJob { quota: None, ..job }).collect();
        store.add(&free);
        let change = Change { body: Some(Body::parse("\"changed\"").unwrap()), ..Change::default() };
        store.change(&key("t", "j30"), &change).unwrap();
        store.delete(&[key("t", "j31"), key("t", "j32")]);
        // Leased jobs are accepted, become dead letters or are retried. Some are replaced while they are leased.
        let leased = lease(&mut *store, "t", 100);
        assert!(leased.len() > 20, "{}", leased.len());
        store.add(&now(0..3, "\"replaced while leased\""));
        for (n, job) in leased.iter().enumerate() {
            let outcome = match n % 3 {
                0 => Outcome::Ack,
                1 => Outcome::DeadLetter,
                _ => Outcome::Retry(later()),
            };
            settle(&mut *store, job, outcome);
        }
    }
    // Some ids have several dead letters. The first letter, a letter in the middle and the last letter of the list are
    // removed.
    let topic = topic("t");
    let dead = store.list(&topic, State::Dead, None, 500).unwrap().jobs;
    assert!(dead.len() > 20, "{}", dead.len());
    let some = |n: usize| DeadLetterKey { id: dead[n].key.id.clone(), died_ms: dead[n].until_ms.unwrap() };
    store.purge_letters(&topic, &[some(0), some(dead.len() / 2), some(dead.len() - 1)]).unwrap();
    store.redrive(&topic, &DeadLetterSelection::All, 5, RedrivePace::default()).unwrap();
    for state in [State::Dead, State::Leased, State::Ready] {
        while store.purge(&topic, state, 500).unwrap() > 0 {}
    }
    let rest: Vec<JobKey> = (0..40).map(|n| key("t", &format!("j{n}"))).collect();
    store.delete(&rest);
    let after = counts_of(&mut *store, "t");
    assert_eq!((after.pending(), after.dead, after.bytes), (20, 0, Some(before)));
}

fn a_rate_of_adds_is_kept<F: Fixture>(f: &F) {
    let mut store = f.open();
    let jobs = 5 * F::SHARDS as u32;
    let rate = |limit, name: &str, jobs| AddRate {
        limit,
        name: name.to_owned(),
        rate: Rate { jobs, per: Duration::from_secs(3600) },
    };
    let topic = rate(QuotaLimit::TopicRate, "topic:t", jobs);
    let quota = Quota { rates: vec![topic.clone()], ..Quota::default() };
    let many = 60 * F::SHARDS as u32;
    let (taken, refused) = accepted(&store.add(&limited(&quota, 0..many, "1")));
    assert_eq!(taken as u32, jobs);
    for over in refused {
        assert_eq!(over.limit, QuotaLimit::TopicRate);
        assert!((600..730).contains(&over.wait.as_secs()), "{:?}", over.wait);
    }
    // If a job has two rates, both limit it. A job that one rate refuses does not count for the other rate.
    let token = rate(QuotaLimit::TokenRate, "token:shop", 2 * F::SHARDS as u32);
    let wide = rate(QuotaLimit::TopicRate, "topic:u", 1000 * F::SHARDS as u32);
    let both = Quota { rates: vec![wide, token], ..Quota::default() };
    let (taken, refused) = accepted(&store.add(&limited(&both, 1000..1000 + many, "1")));
    assert_eq!(taken, 2 * F::SHARDS);
    assert!(refused.iter().all(|over| over.limit == QuotaLimit::TokenRate));
}

/// Servers that all tests share. Each test has its own prefix.
static PAIR: LazyLock<[redis::RedisServer; 2]> =
    LazyLock::new(|| [redis::RedisServer::start_for_all(), redis::RedisServer::start_for_all()]);
static SENTINELS: LazyLock<redis::SentinelGroup> = LazyLock::new(|| redis::SentinelGroup::start(1, &[]));
static CLUSTER: LazyLock<redis::ClusterGroup> = LazyLock::new(redis::ClusterGroup::start);

const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the settings of a new store on shared nodes. The first call starts all servers at once.
fn on_redis(nodes: impl FnOnce() -> Vec<settings::NodeSettings>) -> settings::StoreSettings {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        std::thread::spawn(|| LazyLock::force(&PAIR));
        std::thread::spawn(|| LazyLock::force(&SENTINELS));
        std::thread::spawn(|| LazyLock::force(&CLUSTER));
    });
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("dq{}", NEXT.fetch_add(1, Ordering::Relaxed));
    settings::StoreSettings::Redis(settings::RedisSettings::of_nodes(prefix, TIMEOUT, 8, nodes()))
}

/// A store on `NODES` servers with `SHARDS` shards each.
struct Redis<const NODES: usize, const SHARDS: u32> {
    dir: tempfile::TempDir,
    settings: settings::StoreSettings,
}

impl<const NODES: usize, const SHARDS: u32> Fixture for Redis<NODES, SHARDS> {
    fn new() -> Self {
        let node = |n: usize| settings::NodeSettings::server(format!("r{n}"), PAIR[n].url(), SHARDS);
        let settings = on_redis(|| (0..NODES).map(node).collect());
        Redis { dir: tempfile::tempdir().unwrap(), settings }
    }
    fn settings(&self) -> settings::StoreSettings {
        self.settings.clone()
    }
    fn run_dir(&self) -> &Path {
        self.dir.path()
    }
    const SHARDS: usize = NODES * SHARDS as usize;
}

/// A store on a master that sentinels know.
struct Sentinel(tempfile::TempDir, settings::StoreSettings);

impl Fixture for Sentinel {
    fn new() -> Self {
        let at = || settings::NodeAddress::Sentinel {
            sentinels: SENTINELS.urls(),
            master_name: redis::MASTER.into(),
            url: "redis://master/".into(),
        };
        Sentinel(tempfile::tempdir().unwrap(), on_redis(|| vec![settings::NodeSettings::new("s", at(), 2)]))
    }
    fn settings(&self) -> settings::StoreSettings {
        self.1.clone()
    }
    fn run_dir(&self) -> &Path {
        self.0.path()
    }
    const SHARDS: usize = 2;
}

/// A store on a Cluster, with its usual number of shards.
struct Cluster(tempfile::TempDir, settings::StoreSettings);

impl Fixture for Cluster {
    fn new() -> Self {
        let node = || {
            let seeds = CLUSTER.urls()[..1].to_vec();
            settings::NodeSettings::new("c", settings::NodeAddress::Cluster { seeds }, Self::SHARDS as u32)
        };
        Cluster(tempfile::tempdir().unwrap(), on_redis(|| vec![node()]))
    }
    fn settings(&self) -> settings::StoreSettings {
        self.1.clone()
    }
    fn run_dir(&self) -> &Path {
        self.0.path()
    }
    const SHARDS: usize = 64;
}

const HOLD: Duration = Duration::from_secs(60);
const LONG: Due = Due::In(Duration::from_secs(3600));
const NOW: Due = Due::In(Duration::ZERO);

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn key(t: &str, id: &str) -> JobKey {
    JobKey { topic: topic(t), id: JobId::new(id).unwrap() }
}

fn job(t: &str, id: &str, due: Due) -> NewJob {
    new_job(t, id, &format!("{{\"id\": \"{}\"}}", id.len()), due)
}

fn want(t: &str, max: u32) -> LeaseRequest {
    LeaseRequest { topic: topic(t), max, hold: HOLD, max_leased: None, is_own_ttr: false, max_attempts: 3 }
}

fn owner(name: &str) -> OwnerTag {
    OwnerTag(name.to_owned())
}

fn lease(store: &mut dyn Store, t: &str, max: u32) -> Vec<LeasedJob> {
    store.lease(&[want(t, max)], max as usize, Some(&owner("me"))).unwrap().jobs
}

fn lease_one(store: &mut dyn Store, t: &str) -> LeasedJob {
    let mut jobs = lease(store, t, 1);
    assert_eq!(jobs.len(), 1, "a ready job in {t}");
    jobs.remove(0)
}

fn settlement(job: &LeasedJob, outcome: Outcome) -> Settlement {
    Settlement { key: job.key.clone(), token: job.token.clone(), outcome, attempt: None }
}

fn settle(store: &mut dyn Store, job: &LeasedJob, outcome: Outcome) -> Settled {
    store.settle(&[settlement(job, outcome)]).remove(0).unwrap()
}

/// Returns the results of a batch. Fails if one of them is an error.
fn all<T>(results: Vec<store::Result<T>>) -> Vec<T> {
    results.into_iter().map(Result::unwrap).collect()
}

fn add(store: &mut dyn Store, jobs: &[NewJob]) -> Vec<Added> {
    all(store.add(jobs))
}

fn counts(store: &mut dyn Store, t: &str) -> [u64; 4] {
    let all = store.counts().unwrap();
    let found = all.into_iter().find(|c| c.topic.as_str() == t);
    let Some(Counts { delayed, ready, leased, dead, oldest_ready_ms, .. }) = found else { return [0; 4] };
    let waiting = store.list(&topic(t), State::Ready, None, 100_000).unwrap().jobs;
    assert_eq!(
        oldest_ready_ms,
        waiting.iter().map(|view| view.due_ms).min(),
        "the oldest that is ready of {t}"
    );
    // The counts must agree with the lists.
    for (state, n) in State::ALL.into_iter().zip([delayed, ready, leased, dead]) {
        assert_eq!(
            store.list(&topic(t), state, None, 100_000).unwrap().jobs.len() as u64,
            n,
            "{state} of {t}"
        );
    }
    [delayed, ready, leased, dead]
}

fn state(store: &mut dyn Store, t: &str, id: &str) -> Option<State> {
    store.get(&key(t, id)).unwrap().map(|v| v.state)
}

/// Whether a bell rings soon.
fn rings(bell: &Bells) -> bool {
    let until = std::time::Instant::now() + Duration::from_secs(3);
    while !bell.answer().unwrap() {
        if std::time::Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Whether a bell stays silent for a moment.
fn is_silent(bell: &Bells) -> bool {
    std::thread::sleep(Duration::from_millis(100));
    !bell.answer().unwrap()
}

/// Waits until a bell is silent for a moment. It has then rung for everything that happened before.
fn quiet(bell: &Bells) {
    while !is_silent(bell) {}
}

fn sleep_past(at_ms: i64) {
    while now_ms() <= at_ms {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn an_added_job_is_read_back_by_every_handle<F: Fixture>(f: &F) {
    let (mut a, mut b) = (f.open(), f.open());
    let before = now_ms();
    let mut new = job("t", "i:1/中", Due::In(Duration::from_millis(90_000)));
    new.priority = Priority::High.into();
    new.max_attempts = Some(7);
    assert_eq!(outcomes(&add(&mut *a, &[new.clone()])), ["new"]);
    let view = b.get(&new.key).unwrap().unwrap();
    assert_eq!((view.key, view.body, view.state), (new.key, new.body, State::Delayed));
    assert_eq!((view.priority, view.max_attempts, view.attempts), (Priority::High.into(), Some(7), 0));
    assert!(view.due_ms >= before + 90_000 && view.due_ms <= now_ms() + 90_001);
    assert!(view.stamp_us / 1000 >= before && view.stamp_us / 1000 <= now_ms());
    assert_eq!(b.get(&key("t", "other")).unwrap(), None);
    assert_eq!(b.get(&key("other", "i:1/中")).unwrap(), None);
}

fn a_due_job_is_ready_at_once<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "now", NOW), job("t", "past", Due::At(5)), job("t", "later", LONG)]);
    assert_eq!(counts(&mut *s, "t"), [1, 2, 0, 0]);
    let ids: BTreeSet<_> = lease(&mut *s, "t", 9).into_iter().map(|l| l.key.id.to_string()).collect();
    assert_eq!(ids, BTreeSet::from(["past", "now"].map(str::to_owned)));
}

fn a_job_that_is_added_late_is_due_from_its_add<F: Fixture>(f: &F) {
    let mut s = f.open();
    let past = now_ms() - 3_600_000;
    let begun = now_ms();
    let jobs = [job("t", "a", Due::At(past)), job("t", "b", NOW), job("u", "a", Due::At(past))];
    for outcome in ["new", "replaced"] {
        let added = add(&mut *s, &jobs);
        assert_eq!(outcomes(&added), [outcome; 3]);
        for (job, added) in jobs.iter().zip(added) {
            let due_ms = s.get(&job.key).unwrap().unwrap().due_ms;
            assert_eq!(added.due_ms(), Some(due_ms));
            assert!((begun - 1..=now_ms()).contains(&due_ms), "{due_ms}");
        }
    }
    let oldest = s.counts().unwrap().into_iter().map(|counts| counts.oldest_ready_ms);
    assert!(oldest.into_iter().all(|due_ms| due_ms.is_some_and(|due_ms| due_ms >= begun - 1)));
}

fn no_job_is_promoted_early_and_none_is_forgotten<F: Fixture>(f: &F) {
    let mut s = f.open();
    let base = now_ms();
    let jobs: Vec<NewJob> =
        (0..300).map(|i| job(&format!("t{}", i % 7), &i.to_string(), Due::At(base + 30 + i % 90))).collect();
    add(&mut *s, &jobs);
    let mut leased = 0;
    let mut next = s.promote(10).unwrap();
    while let Some(next_ms) = next.next_ms {
        if next.jobs == 0 {
            assert!(next_ms > base);
            sleep_past(next_ms - 1);
        }
        next = s.promote(10).unwrap();
        for i in 0..7 {
            for job in lease(&mut *s, &format!("t{i}"), 300) {
                assert!(job.due_ms <= now_ms(), "{} is early", job.key);
                leased += 1;
            }
        }
    }
    assert_eq!(leased, 300);
    assert_eq!(s.promote(10).unwrap().next_ms, None);
}

fn a_promotion_is_bounded_and_tells_when_to_come_again<F: Fixture>(f: &F) {
    let mut s = f.open();
    // There are so many jobs that no shard can promote all its jobs in the first call, which promotes three. They are
    // due late enough, so that all are added before.
    let (jobs, at) = (25 * F::SHARDS, now_ms() + 500 + 20 * F::SHARDS as i64);
    add(&mut *s, &(0..jobs).map(|i| job("t", &i.to_string(), Due::At(at))).collect::<Vec<_>>());
    add(&mut *s, &[job("u", "x", Due::At(at + 100_000))]);
    let first = s.promote(10).unwrap();
    assert_eq!((first.jobs, first.next_ms), (0, Some(at)));
    sleep_past(at);
    let full = s.promote(3).unwrap();
    assert!((3..=3 * F::SHARDS).contains(&full.jobs) && full.next_ms == Some(at), "{full:?}");
    assert_eq!(s.promote(100).unwrap().jobs, jobs - full.jobs);
    assert_eq!(s.promote(10).unwrap().next_ms, Some(at + 100_000));
    all(s.delete(&[key("u", "x")]));
    assert_eq!(counts(&mut *s, "t"), [0, jobs as u64, 0, 0]);
}

fn a_topic_with_very_many_due_jobs_delays_no_other<F: Fixture>(f: &F) {
    let mut s = f.open();
    let at = now_ms() + 500;
    let jobs =
        |topic: &str, n: usize, at| (0..n).map(move |i| job(topic, &i.to_string(), Due::At(at))).collect();
    let (flood, others): (Vec<_>, Vec<_>) =
        (jobs("flood", 100 * F::SHARDS, at), ["a", "b", "c"].map(|t| jobs(t, 1, at + 1)).concat());
    add(&mut *s, &flood);
    add(&mut *s, &others);
    sleep_past(at + 1);
    let first = s.promote(20).unwrap();
    assert!(
        first.jobs >= 20 && first.next_ms == Some(at),
        "the rest goes to the topic with many jobs: {first:?}"
    );
    assert_eq!(["a", "b", "c"].map(|t| counts(&mut *s, t)), [[0, 1, 0, 0]; 3]);
    // Very many topics with due jobs, more than a batch has room for, do not delay another topic either.
    let at = now_ms() + 2000;
    let backlog: Vec<_> = (0..150).flat_map(|t| jobs(&format!("flood{t}"), 2 * F::SHARDS, at)).collect();
    add(&mut *s, &backlog);
    add(&mut *s, &jobs("d", 1, at + 1));
    while s.promote(100).unwrap().jobs > 0 {}
    sleep_past(at + 1);
    s.promote(10).unwrap();
    assert_eq!(counts(&mut *s, "d"), [0, 1, 0, 0]);
}

fn an_id_that_is_taken_goes_by_on_conflict<F: Fixture>(f: &F) {
    let mut s = f.open();
    let with = |on_conflict, body: &str, due| NewJob {
        on_conflict,
        body: Body::parse(body).unwrap(),
        ..job("t", "i", due)
    };
    let added = add(
        &mut *s,
        &[
            with(OnConflict::Reject, "1", LONG),
            with(OnConflict::Reject, "2", NOW),
            with(OnConflict::Keep, "3", NOW),
        ],
    );
    assert_eq!(outcomes(&added), ["new", "rejected", "kept"]);
    let view = s.get(&key("t", "i")).unwrap().unwrap();
    assert_eq!((view.body.as_str(), view.state), ("1", State::Delayed));
    assert_eq!(outcomes(&add(&mut *s, &[with(OnConflict::Replace, "4", NOW)])), ["replaced"]);
    let view = s.get(&key("t", "i")).unwrap().unwrap();
    assert_eq!((view.body.as_str(), view.state), ("4", State::Ready));
    assert_eq!(counts(&mut *s, "t"), [0, 1, 0, 0]);
    let other = add(&mut *s, &[job("u", "i", LONG)]);
    assert_eq!(outcomes(&other), ["new"], "ids are unique in their topic only");
}

fn an_add_tells_when_the_job_is_due<F: Fixture>(f: &F) {
    let mut s = f.open();
    let due = |s: &mut dyn Store, id: &str| s.get(&key("t", id)).unwrap().unwrap().due_ms;
    let far = Due::At(now_ms() + 3_600_000);
    // Equal and different due times; delayed jobs, ready jobs, and jobs with their own limit.
    for (n, dues) in [[LONG, LONG], [NOW, NOW], [LONG, far], [NOW, far]].into_iter().enumerate() {
        for limit in [None, Some(3)] {
            let ids = [0, 1].map(|i| format!("{n}-{i}-{limit:?}"));
            let jobs = [0, 1].map(|i| NewJob { max_attempts: limit, ..job("t", &ids[i], dues[i]) });
            for outcome in ["new", "replaced"] {
                let added = add(&mut *s, &jobs);
                assert_eq!(outcomes(&added), [outcome; 2]);
                for (id, added) in ids.iter().zip(added) {
                    assert_eq!(added.due_ms(), Some(due(&mut *s, id)), "{id}");
                }
            }
            let keep = jobs.map(|job| NewJob { on_conflict: OnConflict::Keep, due: Due::At(5), ..job });
            for (id, added) in ids.iter().zip(add(&mut *s, &keep)) {
                assert_eq!(added.due_ms(), Some(due(&mut *s, id)), "{id}");
            }
        }
    }
    let stays = |id: &str, on_conflict, due| NewJob { on_conflict, ..job("u", id, due) };
    let twice = [stays("i", OnConflict::Replace, far), stays("i", OnConflict::Keep, NOW)];
    let added = add(&mut *s, &twice);
    assert_eq!((outcomes(&added), added[0].due_ms()), (vec!["new", "kept"], added[1].due_ms()));
    // A leased job, and a leased job with a replacement that waits.
    add(&mut *s, &[stays("i", OnConflict::Replace, NOW)]);
    let was_due = s.get(&key("u", "i")).unwrap().unwrap().due_ms;
    lease_one(&mut *s, "u");
    assert_eq!(add(&mut *s, &[stays("i", OnConflict::Keep, LONG)])[0].due_ms(), Some(was_due));
    let replaced = add(&mut *s, &[stays("i", OnConflict::Replace, far)])[0];
    assert_eq!(Due::At(replaced.due_ms().unwrap()), far);
    assert_eq!(add(&mut *s, &[stays("i", OnConflict::Keep, LONG)])[0].due_ms(), replaced.due_ms());
    assert_eq!(add(&mut *s, &[stays("i", OnConflict::Reject, LONG)])[0].due_ms(), None);
}

fn a_replacement_resets_the_attempts<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", NOW)]);
    let held = lease_one(&mut *s, "t");
    settle(&mut *s, &held, Outcome::Retry(NOW));
    assert_eq!(lease_one(&mut *s, "t").attempt, 2);
    let mut s2 = f.open();
    s2.expire(10).unwrap();
    add(&mut *s, &[job("t", "i", NOW)]);
    assert_eq!(s.get(&key("t", "i")).unwrap().unwrap().attempts, 0);
}

fn a_leased_job_that_is_replaced_settles_nothing_and_comes_after_its_lease<F: Fixture>(f: &F) {
    let mut s = f.open();
    for outcome in [Outcome::Ack, Outcome::Retry(LONG), Outcome::DeadLetter, Outcome::HandBack] {
        add(&mut *s, &[job("t", "i", NOW)]);
        let held = lease_one(&mut *s, "t");
        let new = NewJob { body: Body::parse("\"new\"").unwrap(), ..job("t", "i", NOW) };
        assert_eq!(outcomes(&add(&mut *s, &[new])), ["replaced"]);
        assert_eq!(lease(&mut *s, "t", 9), [], "not while the old lease holds");
        assert_eq!(counts(&mut *s, "t"), [0, 0, 1, 0]);
        assert_eq!(settle(&mut *s, &held, Outcome::Extend(HOLD)), Settled::Stale);
        assert_eq!(settle(&mut *s, &held, outcome), Settled::Stale);
        let new = lease_one(&mut *s, "t");
        assert_eq!((new.body.as_str(), new.attempt), ("\"new\"", 1));
        assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Stale);
        assert_eq!(settle(&mut *s, &new, Outcome::Ack), Settled::Done);
    }
    // A delayed replacement keeps its due time.
    add(&mut *s, &[job("t", "i", NOW)]);
    let held = lease_one(&mut *s, "t");
    add(&mut *s, &[job("t", "i", LONG)]);
    settle(&mut *s, &held, Outcome::Ack);
    assert_eq!(counts(&mut *s, "t"), [1, 0, 0, 0]);
    assert!(s.promote(9).unwrap().next_ms.unwrap() > now_ms() + 3_500_000);
}

fn a_deleted_job_is_gone_from_every_state<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "dead", NOW)]);
    let dead = lease_one(&mut *s, "t");
    settle(&mut *s, &dead, Outcome::DeadLetter);
    add(&mut *s, &[job("t", "leased", NOW)]);
    let held = lease_one(&mut *s, "t");
    add(&mut *s, &[job("t", "ready", NOW), job("t", "delayed", LONG)]);
    assert_eq!(counts(&mut *s, "t"), [1, 1, 1, 1]);
    let keys: Vec<_> = ["delayed", "ready", "leased", "dead", "none"].map(|id| key("t", id)).into();
    let gone = Deleted::Done;
    assert_eq!(all(s.delete(&keys)), [gone, gone, gone, gone, Deleted::NotFound]);
    assert_eq!(counts(&mut *s, "t"), [0; 4]);
    assert_eq!(settle(&mut *s, &held, Outcome::Retry(NOW)), Settled::Stale);
    assert_eq!(all(s.delete(&[key("t", "delayed"), key("nobody", "x")])), [Deleted::NotFound; 2]);
    assert_eq!(s.promote(9).unwrap().jobs, 0);
    assert_eq!(lease(&mut *s, "t", 9), []);
}

fn settling_needs_the_token<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", NOW)]);
    let held = lease_one(&mut *s, "t");
    let mut wrong = held.clone();
    *wrong.token.0.first_mut().unwrap() ^= 1;
    for token in [wrong.token.clone(), Token(Box::new([])), Token(Box::new([0; 24]))] {
        let forged = LeasedJob { token, ..held.clone() };
        for outcome in
            [Outcome::Ack, Outcome::Retry(NOW), Outcome::DeadLetter, Outcome::Extend(HOLD), Outcome::HandBack]
        {
            assert_eq!(settle(&mut *s, &forged, outcome), Settled::Stale);
        }
    }
    assert_eq!(counts(&mut *s, "t"), [0, 0, 1, 0]);
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Stale);
    assert_eq!(counts(&mut *s, "t"), [0; 4]);
}

fn a_retry_comes_again_and_keeps_its_attempts<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", NOW)]);
    for number in 1..=12 {
        let held = lease_one(&mut *s, "t");
        assert_eq!(held.attempt, number);
        let attempt = Attempt {
            number,
            at_ms: now_ms(),
            took_ms: 5,
            status: Some(500),
            answer: "no".into(),
            error: "status 500".into(),
            late: None,
        };
        let settlement = Settlement { attempt: Some(attempt), ..settlement(&held, Outcome::Retry(NOW)) };
        assert_eq!(all(s.settle(&[settlement])), [Settled::Done]);
        assert_eq!(counts(&mut *s, "t"), [0, 1, 0, 0]);
    }
    let view = s.get(&key("t", "i")).unwrap().unwrap();
    let numbers: Vec<u32> = view.attempts_log.iter().map(|a| a.number).collect();
    let kept: Vec<u32> = [1, 2].into_iter().chain(5..=12).collect();
    assert_eq!(numbers, kept, "the first two and the last eight are kept");
    let held = lease_one(&mut *s, "t");
    settle(&mut *s, &held, Outcome::Retry(LONG));
    let view = s.get(&key("t", "i")).unwrap().unwrap();
    assert_eq!((view.state, view.attempts), (State::Delayed, 13));
    assert!(view.due_ms > now_ms() + 3_500_000);
}

fn a_buried_job_stays_until_it_is_redriven_or_purged<F: Fixture>(f: &F) {
    let mut s = f.open();
    for id in ["a", "b", "c"] {
        add(&mut *s, &[job("t", id, NOW)]);
        let held = lease_one(&mut *s, "t");
        assert_eq!(settle(&mut *s, &held, Outcome::DeadLetter), Settled::Done);
    }
    assert_eq!(counts(&mut *s, "t"), [0, 0, 0, 3]);
    let again = add(&mut *s, &[NewJob { on_conflict: OnConflict::Reject, ..job("t", "a", LONG) }]);
    assert_eq!(outcomes(&again), ["new"]);
    assert_eq!(state(&mut *s, "t", "a"), Some(State::Delayed), "the live one is seen first");
    assert_eq!(
        s.redrive(&topic("t"), &DeadLetterSelection::All, 10, RedrivePace::default()).unwrap(),
        2,
        "the id of `a` is taken"
    );
    assert_eq!(counts(&mut *s, "t"), [1, 2, 0, 1]);
    assert_eq!(lease_one(&mut *s, "t").attempt, 1);
    all(s.delete(&[key("t", "a")]));
    assert_eq!(state(&mut *s, "t", "a"), Some(State::Dead));
    let which = DeadLetterSelection::Ids(vec![JobId::new("a").unwrap(), JobId::new("nobody").unwrap()]);
    assert_eq!(s.redrive(&topic("t"), &which, 10, RedrivePace::default()).unwrap(), 1);
    assert_eq!(s.purge(&topic("t"), State::Ready, 1).unwrap(), 1);
    assert_eq!(s.purge(&topic("t"), State::Ready, 10).unwrap(), 1);
    assert_eq!(counts(&mut *s, "t"), [0, 0, 1, 0]);
}

fn all_dead_letters_are_redriven_whatever_their_number_and_their_ids<F: Fixture>(f: &F) {
    let mut s = f.open();
    let bury_all = |s: &mut dyn Store, ids: &[String]| {
        let jobs: Vec<_> = ids.iter().map(|id| job("t", id, NOW)).collect();
        add(s, &jobs);
        let leased = lease(s, "t", 10_000);
        let every: Vec<_> = leased.iter().map(|l| settlement(l, Outcome::DeadLetter)).collect();
        assert!(all(s.settle(&every)).iter().all(|r| *r == Settled::Done));
    };
    let ids: Vec<String> = (0..600).map(|i| i.to_string()).collect();
    bury_all(&mut *s, &ids);
    bury_all(&mut *s, &ids[..3]);
    assert_eq!(counts(&mut *s, "t"), [0, 0, 0, 603]);
    assert_eq!(
        s.redrive(&topic("t"), &DeadLetterSelection::All, 10_000, RedrivePace::default()).unwrap(),
        600
    );
    assert_eq!(counts(&mut *s, "t"), [0, 600, 0, 3], "the second of an id stays until the first is gone");
    assert_eq!(s.purge(&topic("t"), State::Ready, 10_000).unwrap(), 600);
    let twice = DeadLetterSelection::Ids(vec![JobId::new("0").unwrap(), JobId::new("0").unwrap()]);
    assert_eq!(s.redrive(&topic("t"), &twice, 10, RedrivePace::default()).unwrap(), 1);
    assert_eq!(counts(&mut *s, "t"), [0, 1, 0, 2]);
}

fn a_token_settles_its_own_job_only<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "a", NOW), job("t", "b", LONG), job("u", "a", LONG)]);
    let held = lease_one(&mut *s, "t");
    for key in [key("t", "b"), key("u", "a"), key("nobody", "a")] {
        for outcome in [Outcome::Ack, Outcome::DeadLetter] {
            let forged = Settlement { key: key.clone(), ..settlement(&held, outcome) };
            assert_eq!(all(s.settle(&[forged])), [Settled::Stale]);
        }
    }
    assert_eq!(counts(&mut *s, "t"), [1, 0, 1, 0]);
    assert_eq!(counts(&mut *s, "u"), [1, 0, 0, 0]);
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
}

fn a_handle_that_is_opened_rings_once<F: Fixture>(f: &F) {
    let bells = [f.bell(BellKind::Push), f.bell(BellKind::Timer)];
    bells.iter().for_each(quiet);
    let mut s = f.open();
    assert!(bells.iter().all(rings));
    bells.iter().for_each(quiet);
    s.announce();
    assert!(bells.iter().all(rings));
}

fn a_lease_that_runs_out_counts_and_ends_in_the_dead_letters<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", NOW), job("t", "long", NOW)]);
    let short = |max| LeaseRequest { hold: Duration::from_millis(20), max_attempts: 2, ..want("t", max) };
    let long = s.lease(&[want("t", 1)], 1, None).unwrap().jobs.remove(0);
    let other = if long.key.id.as_str() == "i" { "long" } else { "i" };
    for attempt in 1..=2 {
        let held = s.lease(&[short(1)], 1, None).unwrap().jobs.remove(0);
        assert_eq!((held.attempt, held.key.id.as_str()), (attempt, other));
        let early = s.expire(10).unwrap();
        assert!(early.jobs == 0 || now_ms() >= held.deadline_ms);
        sleep_past(held.deadline_ms);
        let moved = s.expire(10).unwrap();
        assert_eq!(moved.jobs + early.jobs, 1);
        assert_eq!(moved.next_ms, Some(long.deadline_ms));
        assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Stale);
    }
    assert_eq!(counts(&mut *s, "t"), [0, 0, 1, 1]);
    assert_eq!(s.take_dead_letter_topics(), [topic("t")]);
    assert_eq!(s.take_dead_letter_topics(), []);
    let view = s.get(&key("t", other)).unwrap().unwrap();
    assert_eq!((view.state, view.attempts), (State::Dead, 2));
    assert_eq!(view.attempts_log.len(), 2);
}

fn a_lease_lasts_for_the_own_ttr_of_its_job<F: Fixture>(f: &F) {
    let mut s = f.open();
    let ttr = |ms| Headers::default().with_ttr(Some(Duration::from_millis(ms)));
    let own = |id, ms| NewJob { headers: ttr(ms), ..job("t", id, NOW) };
    add(&mut *s, &[own("short", 20), job("t", "plain", NOW), own("long", 3_600_000)]);
    let by_id = |jobs: Vec<LeasedJob>| -> BTreeMap<String, i64> {
        jobs.iter().map(|job| (job.key.id.to_string(), job.deadline_ms - job.leased_ms)).collect()
    };
    // Without `is_own_ttr`, only the time of the request counts, and not the job's own `ttr`.
    let held = lease(&mut *s, "t", 3);
    let hold_ms = HOLD.as_millis() as i64;
    assert!(by_id(held.clone()).values().all(|ms| (hold_ms..=hold_ms + 1).contains(ms)));
    for job in &held {
        settle(&mut *s, job, Outcome::HandBack);
    }
    let wanted = LeaseRequest { is_own_ttr: true, ..want("t", 3) };
    let held = s.lease(&[wanted], 3, None).unwrap().jobs;
    let spans = by_id(held.clone());
    for (id, ms) in [("short", 20), ("plain", hold_ms), ("long", 3_600_000)] {
        assert!((ms..=ms + 1).contains(&spans[id]), "{id}: {spans:?}");
    }
    let short = held.iter().find(|job| job.key.id.as_str() == "short").unwrap();
    let plain = held.iter().find(|job| job.key.id.as_str() == "plain").unwrap();
    sleep_past(short.deadline_ms);
    let moved = s.expire(10).unwrap();
    assert_eq!(moved.jobs, 1);
    assert!(moved.next_ms.is_some_and(|next| next <= plain.deadline_ms));
    assert_eq!(counts(&mut *s, "t"), [0, 1, 2, 0]);
    assert_eq!(settle(&mut *s, short, Outcome::Ack), Settled::Stale);
    assert_eq!(settle(&mut *s, plain, Outcome::Ack), Settled::Done);
}

fn an_extended_lease_holds_longer<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", NOW)]);
    let short = LeaseRequest { hold: Duration::from_millis(20), ..want("t", 1) };
    let held = s.lease(&[short], 1, None).unwrap().jobs.remove(0);
    assert_eq!(settle(&mut *s, &held, Outcome::Extend(HOLD)), Settled::Done);
    sleep_past(held.deadline_ms);
    let moved = s.expire(10).unwrap();
    assert_eq!(moved.jobs, 0);
    assert!(moved.next_ms.unwrap() > now_ms() + 50_000);
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
}

fn a_job_handed_back_unused_has_its_attempt_back<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", NOW)]);
    for _ in 0..5 {
        let held = lease_one(&mut *s, "t");
        assert_eq!(held.attempt, 1);
        assert_eq!(settle(&mut *s, &held, Outcome::HandBack), Settled::Done);
    }
}

fn a_postponed_job_is_due_later_and_has_its_attempt_back<F: Fixture>(f: &F) {
    let mut s = f.open();
    let headers = model::headers::Headers::parse(r#"{"a": "1"}"#).unwrap();
    let new = NewJob { headers: headers.clone(), priority: Priority::High.into(), ..job("t", "i", NOW) };
    add(&mut *s, &[new]);
    let held = lease_one(&mut *s, "t");
    let attempt = Attempt {
        number: 1,
        at_ms: 1,
        took_ms: 1,
        status: None,
        answer: String::new(),
        error: "no".into(),
        late: None,
    };
    let retry = Settlement { attempt: Some(attempt), ..settlement(&held, Outcome::Retry(NOW)) };
    assert_eq!(all(s.settle(&[retry])), [Settled::Done]);
    // The job has failed once, and it has headers and a priority. A postpone changes none of this.
    for _ in 0..3 {
        let held = lease_one(&mut *s, "t");
        assert_eq!((held.key.id.as_str(), held.attempt), ("i", 2));
        let due_ms = now_ms() + 100;
        assert_eq!(settle(&mut *s, &held, Outcome::Postpone(Due::At(due_ms))), Settled::Done);
        let view = s.get(&key("t", "i")).unwrap().unwrap();
        assert_eq!((view.state, view.due_ms, view.attempts), (State::Delayed, due_ms, 1));
        assert_eq!(
            (view.attempts_log.len(), &view.headers, view.priority),
            (1, &headers, Priority::High.into())
        );
        sleep_past(due_ms);
        assert_eq!(s.promote(9).unwrap().jobs, 1);
    }
    let held = lease_one(&mut *s, "t");
    assert_eq!(settle(&mut *s, &held, Outcome::Postpone(Due::At(1))), Settled::Done);
    assert_eq!(lease_one(&mut *s, "t").attempt, 2, "a moment that has passed means now");
    // If a leased job was replaced, a postpone does not delay the replacement.
    add(&mut *s, &[job("u", "i", NOW)]);
    let held = lease_one(&mut *s, "u");
    add(&mut *s, &[job("u", "i", NOW)]);
    assert_eq!(settle(&mut *s, &held, Outcome::Postpone(LONG)), Settled::Stale);
    assert_eq!(lease_one(&mut *s, "u").attempt, 1);
}

fn permits_of_a_host_are_not_those_of_a_topic<F: Fixture>(f: &F) {
    let (mut a, mut b) = (f.open(), f.open());
    let host = |want| PermitRequest { name: LimitName::from_host("t"), ..ask("t", 0, want) };
    assert_eq!(granted(&mut *a, "a", host(3)), 3);
    assert_eq!(granted(&mut *b, "b", host(9)), 2);
    assert_eq!(granted(&mut *b, "b", ask("t", 0, 9)), 5);
    assert_eq!(b.hand_back(&owner("a")).unwrap(), 0);
    assert_eq!(granted(&mut *b, "b", PermitRequest { held: 2, ..host(9) }), 3, "a dead process holds none");
}

fn the_use_of_limits_is_shown_and_not_changed<F: Fixture>(f: &F) {
    let (mut a, mut b) = (f.open(), f.open());
    let slow = Rate { jobs: 6, per: Duration::from_secs(60) };
    let host = LimitName::from_host("h:80");
    let query = |name: &LimitName, rate| LimitQuery { name: name.clone(), rate };
    let queries = [
        query(&LimitName::from(&topic("t")), Some(slow)),
        query(&LimitName::from(&topic("u")), None),
        query(&host, Some(slow)),
    ];
    let mut used = || b.limit_use(&queries).into_iter().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(used(), [LimitUse::default(); 3]);
    assert_eq!(granted(&mut *a, "a", PermitRequest { rate: Some(slow), ..ask("t", 0, 2) }), 1);
    assert_eq!(granted(&mut *a, "a", PermitRequest { name: host.clone(), ..ask("t", 0, 3) }), 3);
    assert_eq!(granted(&mut *a, "b", PermitRequest { name: host, ..ask("t", 0, 1) }), 1);
    for _ in 0..2 {
        let [t, u, h] = used()[..] else { panic!() };
        assert_eq!((t.held, u, h), (1, LimitUse::default(), LimitUse { held: 4, again: None }));
        let again = t.again.unwrap();
        assert!(again > Duration::from_secs(5) && again <= Duration::from_secs(10), "{again:?}");
    }
}

fn the_leases_of_a_dead_owner_come_back_and_a_poison_job_ends<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", NOW)]);
    add(&mut *s, &(0..700).map(|i| job("u", &i.to_string(), NOW)).collect::<Vec<_>>());
    let (me, other) = (owner("me"), owner("other"));
    assert_eq!(s.lease(&[want("u", 300)], 300, Some(&other)).unwrap().jobs.len(), 300);
    assert_eq!(s.lease(&[want("u", 400)], 400, Some(&me)).unwrap().jobs.len(), 400);
    assert_eq!(s.hand_back(&me).unwrap(), 400);
    assert_eq!(s.hand_back(&me).unwrap(), 0);
    assert_eq!(counts(&mut *s, "u"), [0, 400, 300, 0]);
    // The first three leases that are handed back do not count as attempts. Later leases count. The topic's limit is 3.
    let mut seen = Vec::new();
    while state(&mut *s, "t", "i") == Some(State::Ready) {
        seen.push(lease_one(&mut *s, "t").attempt);
        assert_eq!(s.hand_back(&me).unwrap(), 1);
    }
    assert_eq!(seen, [1, 1, 1, 1, 2, 3]);
    assert_eq!(s.take_dead_letter_topics(), [topic("t")]);
    assert_eq!(state(&mut *s, "t", "i"), Some(State::Dead));
}

fn a_forecast_counts_delayed_jobs_by_when_they_become_due<F: Fixture>(f: &F) {
    let mut store = f.open();
    let store = store.as_mut();
    let begin_ms = now_ms() + 60_000;
    let at = |n: i64| Due::At(begin_ms + n);
    let jobs: Vec<NewJob> = [("t", 0), ("t", 999), ("t", 1000), ("u", 1000), ("u", 5000)]
        .into_iter()
        .enumerate()
        .map(|(i, (topic, n))| job(topic, &format!("j{i}"), at(n)))
        .chain([job("t", "ready", NOW)])
        .collect();
    add(store, &jobs);
    let edges = [0, begin_ms, begin_ms + 1000, begin_ms + 5000];
    let topics = |names: &[&str]| names.iter().map(|name| TopicName::new(name).unwrap()).collect::<Vec<_>>();
    let mut forecast = |names: &[&str]| store.forecast(&topics(names), &edges).unwrap();
    let counts = forecast(&["t", "u", "never"]);
    // A moment belongs to the span that begins with it.
    assert_eq!((counts.jobs, counts.is_capped), (vec![0, 2, 2], false));
    assert_eq!(forecast(&["u"]).jobs, [0, 0, 1]);
    assert_eq!(forecast(&[]).jobs, [0, 0, 0]);
}

fn an_exchange_settles_and_then_leases<F: Fixture>(f: &F) {
    let mut store = f.open();
    let store = store.as_mut();
    let jobs: Vec<NewJob> =
        (0..4).map(|n| job("t", &format!("j{n}"), NOW)).chain([job("u", "x", NOW)]).collect();
    add(store, &jobs);
    let mut held: Vec<LeasedJob> = Vec::new();
    for _ in 0..4 {
        held.push(lease_one(store, "t"));
    }
    let stale = Settlement { token: held[3].token.clone(), ..settlement(&held[2], Outcome::Ack) };
    let settlements = [
        settlement(&held[0], Outcome::Ack),
        stale,
        settlement(&held[1], Outcome::HandBack),
        settlement(&held[2], Outcome::Retry(LONG)),
    ];
    let wanted = [want("t", 5), want("u", 5)];
    let (settled, leased) = store.exchange(&settlements, &wanted, 9, Some(&owner("me")));
    assert_eq!(all(settled), [Settled::Done, Settled::Stale, Settled::Done, Settled::Done]);
    // The leased jobs include those that the settlements have made ready.
    let mut got: Vec<String> = leased.unwrap().jobs.iter().map(|job| job.key.to_string()).collect();
    got.sort();
    assert_eq!(got, [held[1].key.to_string(), key("u", "x").to_string()]);
    assert_eq!((counts(store, "t"), counts(store, "u")), ([1, 0, 2, 0], [0, 0, 1, 0]));
    // A call with nothing to settle, and then a call with nothing to lease.
    let (settled, leased) = store.exchange(&[], &wanted, 9, None);
    assert_eq!((settled.len(), leased.unwrap().jobs.len()), (0, 0));
    let (settled, leased) = store.exchange(&[settlement(&held[3], Outcome::Ack)], &[], 9, None);
    assert_eq!((all(settled), leased.unwrap().jobs.len()), (vec![Settled::Done], 0));
    assert_eq!(counts(store, "t"), [1, 0, 1, 0]);
}

fn a_job_has_its_own_limit_of_attempts<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[NewJob { max_attempts: Some(1), ..job("t", "i", NOW) }]);
    let short = LeaseRequest { hold: Duration::from_millis(1), ..want("t", 1) };
    let held = s.lease(&[short], 1, None).unwrap().jobs.remove(0);
    assert_eq!(held.max_attempts, Some(1));
    sleep_past(held.deadline_ms);
    assert_eq!(s.expire(10).unwrap().jobs, 1);
    assert_eq!(state(&mut *s, "t", "i"), Some(State::Dead));
}

fn without_a_limit_no_expired_lease_is_the_last<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[NewJob { attempts: 40, ..job("t", "i", NOW) }]);
    let short = LeaseRequest { hold: Duration::from_millis(1), max_attempts: u32::MAX, ..want("t", 1) };
    let held = s.lease(&[short], 1, None).unwrap().jobs.remove(0);
    assert_eq!(held.attempt, 41);
    sleep_past(held.deadline_ms);
    assert_eq!(s.expire(10).unwrap().jobs, 1);
    assert_eq!(state(&mut *s, "t", "i"), Some(State::Ready));
}

fn attempts_that_were_made_before_count<F: Fixture>(f: &F) {
    let mut s = f.open();
    let with = |id: &str, attempts| NewJob { attempts, ..job("t", id, NOW) };
    let added = add(&mut *s, &[with("a", 2), with("b", 0), with("c", 1)]);
    assert_eq!(outcomes(&added), ["new"; 3]);
    let attempts = |s: &mut dyn Store, id: &str| s.get(&key("t", id)).unwrap().unwrap().attempts;
    assert_eq!([attempts(&mut *s, "a"), attempts(&mut *s, "b"), attempts(&mut *s, "c")], [2, 0, 1]);
    let kept = add(&mut *s, &[NewJob { on_conflict: OnConflict::Keep, ..with("b", 5) }, with("a", 1)]);
    assert_eq!(outcomes(&kept), ["kept", "replaced"]);
    let mut leased = lease(&mut *s, "t", 3);
    leased.sort_by(|x, y| x.key.id.as_str().cmp(y.key.id.as_str()));
    assert_eq!(leased.iter().map(|j| j.attempt).collect::<Vec<_>>(), [2, 1, 2]);
    add(&mut *s, &[with("d", 2), with("e", 9)]);
    let last = LeaseRequest { hold: Duration::from_millis(1), ..want("t", 2) };
    let held = s.lease(&[last], 2, None).unwrap().jobs;
    // Each shard has its own clock, and its own deadline.
    sleep_past(held.iter().map(|job| job.deadline_ms).max().unwrap());
    assert_eq!(s.expire(10).unwrap().jobs, 2);
    assert_eq!([state(&mut *s, "t", "d"), state(&mut *s, "t", "e")], [Some(State::Dead); 2]);
}

fn a_job_keeps_its_headers_as_long_as_it_lives_and_no_other_has_them<F: Fixture>(f: &F) {
    let mut s = f.open();
    let headers = |json: &str| model::headers::Headers::parse(json).unwrap();
    let path = model::destination::Destination::from_path("/m/7?x='1,:'").ok();
    let (some, none) = (
        headers(
            r#"{"x-a": "h\"{\\", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#,
        )
        .with_destination(path),
        headers("{}"),
    );
    let with = |id: &str, headers: &model::headers::Headers| NewJob {
        headers: headers.clone(),
        ..job("t", id, NOW)
    };
    let view = |s: &mut dyn Store| s.get(&key("t", "i")).unwrap().unwrap();
    let attempt = |number| Attempt {
        number,
        at_ms: 1,
        took_ms: 5,
        status: Some(500),
        answer: "h no".into(),
        error: "status 500".into(),
        late: None,
    };
    // Each job has its own headers, even when jobs are added and leased together.
    add(&mut *s, &[with("i", &some), with("j", &none), with("k", &headers(r#"{"b": "7"}"#))]);
    let mut leased = lease(&mut *s, "t", 9);
    leased.sort_by_key(|l| l.key.clone());
    let of: Vec<_> = leased.iter().map(|l| l.headers.clone()).collect();
    assert_eq!(of, [some.clone(), none.clone(), headers(r#"{"b": "7"}"#)]);
    assert!(leased.iter().all(|l| l.attempt == 1));
    settle(&mut *s, &leased[1], Outcome::Ack);
    settle(&mut *s, &leased[2], Outcome::Ack);
    // The job is retried more often than its log of attempts keeps.
    let mut held = leased.remove(0);
    for number in 1..=12 {
        let retry = Settlement { attempt: Some(attempt(number)), ..settlement(&held, Outcome::Retry(NOW)) };
        assert_eq!(all(s.settle(&[retry])), [Settled::Done]);
        assert_eq!(
            (view(&mut *s).headers, view(&mut *s).attempts_log.len()),
            (some.clone(), 10.min(number as usize))
        );
        held = lease_one(&mut *s, "t");
        assert_eq!((&held.headers, held.attempt), (&some, number + 1));
    }
    assert_eq!(settle(&mut *s, &held, Outcome::HandBack), Settled::Done);
    // The headers survive the death of the consumer, the death of the job, and a redrive.
    s.lease(&[want("t", 1)], 1, Some(&owner("dies"))).unwrap();
    assert_eq!(s.hand_back(&owner("dies")).unwrap(), 1);
    held = lease_one(&mut *s, "t");
    assert_eq!(held.headers, some);
    settle(&mut *s, &held, Outcome::DeadLetter);
    let dead = view(&mut *s);
    assert_eq!((dead.state, &dead.headers, dead.attempts_log.len()), (State::Dead, &some, 10));
    assert_eq!(s.list(&topic("t"), State::Dead, None, 9).unwrap().jobs, [dead]);
    assert_eq!(s.redrive(&topic("t"), &DeadLetterSelection::All, 9, RedrivePace::default()).unwrap(), 1);
    let redriven = view(&mut *s);
    assert_eq!((redriven.attempts, &redriven.headers, redriven.attempts_log.len()), (0, &some, 10));
    // The headers are changed and removed, and the log of attempts stays.
    let change = |headers: model::headers::Headers| Change {
        destination: Some(headers.destination().cloned()),
        headers: Some(headers.with_destination(None)),
        ..Change::default()
    };
    assert_eq!(s.change(&key("t", "i"), &change(headers(r#"{"c": "1"}"#))).unwrap(), Changed::Done);
    assert_eq!((view(&mut *s).headers, view(&mut *s).attempts_log.len()), (headers(r#"{"c": "1"}"#), 10));
    assert_eq!(s.change(&key("t", "i"), &change(none.clone())).unwrap(), Changed::Done);
    assert_eq!((view(&mut *s).headers, view(&mut *s).attempts_log.len()), (none.clone(), 10));
    assert_eq!(s.change(&key("t", "i"), &change(some.clone())).unwrap(), Changed::Done);
    // A replacement has its own headers or none, even if the job is leased.
    add(&mut *s, &[job("t", "i", NOW)]);
    assert_eq!((view(&mut *s).headers, view(&mut *s).attempts_log), (none.clone(), vec![]));
    assert_eq!(s.change(&key("t", "i"), &change(some.clone())).unwrap(), Changed::Done);
    assert_eq!(s.change(&key("t", "i"), &change(none.clone())).unwrap(), Changed::Done);
    let held = lease_one(&mut *s, "t");
    assert_eq!((held.attempt, &held.headers), (1, &none));
    add(&mut *s, &[with("i", &some)]);
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Stale);
    let held = lease_one(&mut *s, "t");
    assert_eq!((held.attempt, &held.headers), (1, &some));
    add(&mut *s, &[job("t", "i", NOW)]);
    assert_eq!(settle(&mut *s, &held, Outcome::Retry(LONG)), Settled::Stale);
    let held = lease_one(&mut *s, "t");
    assert_eq!((held.attempt, &held.headers), (1, &none));
    assert_eq!(settle(&mut *s, &held, Outcome::Ack), Settled::Done);
    assert_eq!(counts(&mut *s, "t"), [0; 4]);
}

fn headers_and_the_path_of_a_job_change_one_without_the_other<F: Fixture>(f: &F) {
    let mut s = f.open();
    let headers = |json: &str| model::headers::Headers::parse(json).unwrap();
    let path = |text: &str| Some(model::destination::Destination::from_path(text).unwrap());
    let (a, b) = (headers(r##"{"#a": "1", "x-b": "\":,}"}"##), headers(r#"{"c": "3"}"#));
    let to_headers = |to: &model::headers::Headers| Change { headers: Some(to.clone()), ..Change::default() };
    let to_path =
        |to: Option<model::destination::Destination>| Change { destination: Some(to), ..Change::default() };
    let url = model::destination::Destination::from_url("https://[::1]:9/a?x='1',").ok();
    let again = url.clone();
    add(&mut *s, &[job("t", "i", LONG)]);
    for (change, expected) in [
        (to_path(path("/1")), headers("{}").with_destination(path("/1"))),
        (to_headers(&a), a.clone().with_destination(path("/1"))),
        (to_path(path("?x=2")), a.clone().with_destination(path("?x=2"))),
        (to_headers(&b), b.clone().with_destination(path("?x=2"))),
        (to_headers(&headers("{}")), headers("{}").with_destination(path("?x=2"))),
        (to_headers(&a), a.clone().with_destination(path("?x=2"))),
        (to_path(url.clone()), a.clone().with_destination(url.clone())),
        (to_headers(&b), b.clone().with_destination(url)),
        (to_headers(&a), a.clone().with_destination(again)),
        (to_path(None), a.clone()),
        (to_path(None), a.clone()),
        (Change { destination: Some(path("/3")), ..to_headers(&b) }, b.clone().with_destination(path("/3"))),
        (
            Change { priority: Some(Priority::High.into()), ..Change::default() },
            b.with_destination(path("/3")),
        ),
        (Change { destination: Some(None), ..to_headers(&headers("{}")) }, headers("{}")),
    ] {
        assert_eq!(s.change(&key("t", "i"), &change), Ok(Changed::Done));
        assert_eq!(s.get(&key("t", "i")).unwrap().unwrap().headers, expected, "{change:?}");
    }
}

fn a_lease_that_is_answered_later_is_nobodys_and_is_settled_by_its_token<F: Fixture>(f: &F) {
    let mut s = f.open();
    let later = |ms| Outcome::Later(Duration::from_millis(ms));
    add(&mut *s, &["a", "b", "c", "d", "e"].map(|id| job("t", id, NOW)));
    let mut leased = lease(&mut *s, "t", 9);
    leased.sort_by_key(|l| l.key.clone());
    for held in &leased[..4] {
        assert_eq!(settle(&mut *s, held, later(3_600_000)), Settled::Done);
    }
    let view = s.get(&key("t", "a")).unwrap().unwrap();
    assert_eq!((view.state, view.attempts), (State::Leased, 1));
    assert!(view.until_ms.unwrap() > now_ms() + 3_500_000, "{view:?}");
    // If the job is answered later, the end of its consumer does not affect the lease, whether the consumer drained or
    // was killed.
    assert_eq!(s.hand_back(&owner("me")).unwrap(), 1, "what was not answered so");
    assert_eq!(counts(&mut *s, "t"), [0, 1, 4, 0]);
    // Another process settles it.
    let mut other = f.open();
    assert_eq!(settle(&mut *other, &leased[0], Outcome::Ack), Settled::Done);
    assert_eq!(settle(&mut *other, &leased[0], Outcome::Ack), Settled::Stale);
    let attempt = Attempt {
        number: 1,
        at_ms: 1,
        took_ms: 5,
        status: Some(202),
        answer: String::new(),
        error: "no".into(),
        late: None,
    };
    let nack = Settlement { attempt: Some(attempt.clone()), ..settlement(&leased[1], Outcome::Retry(LONG)) };
    assert_eq!(all(other.settle(&[nack])), [Settled::Done]);
    assert_eq!(s.get(&key("t", "b")).unwrap().unwrap().attempts_log, [attempt]);
    assert_eq!(settle(&mut *other, &leased[2], Outcome::Extend(Duration::from_millis(1))), Settled::Done);
    sleep_past(now_ms() + 2);
    assert_eq!(s.expire(9).unwrap().jobs, 1);
    let view = s.get(&key("t", "c")).unwrap().unwrap();
    assert_eq!(
        (view.state, view.attempts, &*view.attempts_log[0].error),
        (State::Ready, 1, "the lease ran out")
    );
    // If a job is replaced before its receiver answers "later", this answer ends the lease, and the replacement takes
    // the job's place. If a job is replaced after this answer, the replacement waits for the outcome.
    add(&mut *s, &[job("t", "d", NOW)]);
    assert_eq!(state(&mut *s, "t", "d"), Some(State::Leased));
    assert_eq!(settle(&mut *s, &leased[3], Outcome::Ack), Settled::Stale);
    assert_eq!(state(&mut *s, "t", "d"), Some(State::Ready));
    let held = lease(&mut *s, "t", 9).into_iter().find(|l| l.key.id.as_str() == "e").unwrap();
    add(&mut *s, &[job("t", "e", NOW)]);
    assert_eq!(settle(&mut *s, &held, later(3_600_000)), Settled::Stale);
    assert_eq!(state(&mut *s, "t", "e"), Some(State::Ready));
}

fn all_handles_have_one_secret_a_lane<F: Fixture>(f: &F) {
    let lanes = Lanes::new(&f.settings()).unwrap();
    for lane in 0..lanes.count() {
        let secret = f.open().secret(lane).unwrap();
        let mut own = store::open_lane(&f.settings(), f.run_dir(), lane).unwrap();
        assert_eq!(own.secret(lane).unwrap(), secret);
        assert_eq!(f.open().secret(lane).unwrap(), secret);
        let others = (0..lanes.count()).filter(|other| *other != lane);
        assert!(others.into_iter().all(|other| own.secret(other).unwrap() != secret));
    }
    let mut s = f.open();
    add(&mut *s, &(0..20).map(|n| job("t", &n.to_string(), NOW)).collect::<Vec<_>>());
    for held in lease(&mut *s, "t", 99) {
        assert_eq!(lanes.of_token(&held.token), Some(lanes.lane_of(&held.key)));
    }
}

fn a_letter_is_redriven_or_removed_and_the_others_of_its_id_stay<F: Fixture>(f: &F) {
    let mut s = f.open();
    let die = |s: &mut dyn Store, id: &str, body: &str| {
        add(s, &[NewJob { body: Body::parse(body).unwrap(), ..job("t", id, NOW) }]);
        let held = lease_one(s, "t");
        settle(s, &held, Outcome::DeadLetter);
        // The dead letters of one id need different times of death.
        sleep_past(now_ms() + 1);
    };
    for n in 0..7 {
        die(&mut *s, "a", &n.to_string());
    }
    die(&mut *s, "b", "7");
    let t = topic("t");
    let dead = |s: &mut dyn Store| s.list(&topic("t"), State::Dead, None, 99).unwrap().jobs;
    let letters = dead(&mut *s);
    let letter =
        |n: usize| DeadLetterKey { id: letters[n].key.id.clone(), died_ms: letters[n].until_ms.unwrap() };
    let bodies = |s: &mut dyn Store| dead(s).iter().map(|v| v.body.as_str().to_owned()).collect::<Vec<_>>();
    let nobody = DeadLetterKey { died_ms: 1, ..letter(0) };
    // A letter in the middle (named twice), the oldest, the latest, and a letter that does not exist.
    let gone = [letter(3), letter(0), letter(6), letter(3), nobody.clone()];
    assert_eq!(s.purge_letters(&t, &gone).unwrap(), 3);
    assert_eq!(bodies(&mut *s), ["1", "2", "4", "5", "7"]);
    assert_eq!(counts(&mut *s, "t"), [0, 0, 0, 5]);
    assert_eq!(s.letters(&t, &[JobId::new("a").unwrap()], DeadLetterOperation::Count).unwrap(), 4);
    let which = |letters: &[DeadLetterKey]| DeadLetterSelection::Letters(letters.to_vec());
    assert_eq!(s.redrive(&t, &which(&[nobody]), 9, RedrivePace::default()).unwrap(), 0);
    // Two letters of the same id: after the first is redriven, the id has a live job, so the second is not redriven.
    assert_eq!(s.redrive(&t, &which(&[letter(2), letter(4)]), 9, RedrivePace::default()).unwrap(), 1);
    assert_eq!(bodies(&mut *s), ["1", "4", "5", "7"]);
    let held = lease_one(&mut *s, "t");
    assert_eq!((held.body.as_str(), held.attempt), ("2", 1));
    settle(&mut *s, &held, Outcome::Ack);
    assert_eq!(s.get(&key("t", "a")).unwrap().unwrap().body.as_str(), "5", "the latest is shown");
    assert_eq!(s.redrive(&t, &which(&[letter(5), letter(7)]), 9, RedrivePace::default()).unwrap(), 2);
    assert_eq!(bodies(&mut *s), ["1", "4"]);
    // The remaining letters are numbered without a gap, as always.
    lease(&mut *s, "t", 9)
        .iter()
        .for_each(|held| assert_eq!(settle(&mut *s, held, Outcome::Ack), Settled::Done));
    die(&mut *s, "a", "8");
    assert_eq!(s.letters(&t, &[JobId::new("a").unwrap()], DeadLetterOperation::Count).unwrap(), 3);
    assert_eq!(all(s.delete(&[key("t", "a")])), [Deleted::Done]);
    assert_eq!(counts(&mut *s, "t"), [0; 4]);
}

fn all_letters_that_are_named_are_redriven_however_many<F: Fixture>(f: &F) {
    let mut s = f.open();
    let t = topic("t");
    let die = |s: &mut dyn Store| {
        let leased = s.lease(&[want("t", 600)], 600, None).unwrap().jobs;
        let bury: Vec<_> = leased.iter().map(|held| settlement(held, Outcome::DeadLetter)).collect();
        assert_eq!(all(s.settle(&bury)), [Settled::Done; 600]);
    };
    add(&mut *s, &(0..600).map(|n| job("t", &n.to_string(), NOW)).collect::<Vec<_>>());
    die(&mut *s);
    let dead = s.list(&t, State::Dead, None, 999).unwrap().jobs;
    let letters = dead.iter().map(|v| DeadLetterKey { id: v.key.id.clone(), died_ms: v.until_ms.unwrap() });
    let named = DeadLetterSelection::Letters(letters.collect());
    assert_eq!(s.redrive(&t, &named, 600, RedrivePace::default()).unwrap(), 600);
    assert_eq!(counts(&mut *s, "t"), [0, 600, 0, 0]);
    die(&mut *s);
    let named = DeadLetterSelection::Ids(dead.iter().map(|v| v.key.id.clone()).collect());
    assert_eq!(s.redrive(&t, &named, 500, RedrivePace::default()).unwrap(), 500);
    assert_eq!(counts(&mut *s, "t"), [0, 500, 0, 100]);
}

fn redriven_letters_are_due_one_after_the_other_at_their_pace<F: Fixture>(f: &F) {
    let mut s = f.open();
    let t = topic("t");
    add(&mut *s, &(0..600).map(|n| job("t", &n.to_string(), NOW)).collect::<Vec<_>>());
    let leased = s.lease(&[want("t", 600)], 600, None).unwrap().jobs;
    assert_eq!(leased.len(), 600);
    let bury: Vec<_> = leased.iter().map(|held| settlement(held, Outcome::DeadLetter)).collect();
    assert!(all(s.settle(&bury)).iter().all(|settled| *settled == Settled::Done));
    let pace = RedrivePace { after: Duration::from_secs(100), every: Duration::from_micros(10_500) };
    let before = now_ms();
    assert_eq!(s.redrive(&t, &DeadLetterSelection::All, 500, pace).unwrap(), 500);
    assert_eq!(counts(&mut *s, "t"), [500, 0, 0, 100]);
    let ids: Vec<JobId> =
        s.list(&t, State::Dead, None, 999).unwrap().jobs.into_iter().map(|v| v.key.id).collect();
    assert_eq!(
        s.redrive(&t, &DeadLetterSelection::Ids(ids), 999, pace.behind(500, Duration::ZERO)).unwrap(),
        100
    );
    assert_eq!(counts(&mut *s, "t"), [600, 0, 0, 0]);
    let due: Vec<i64> =
        s.list(&t, State::Delayed, None, 999).unwrap().jobs.iter().map(|v| v.due_ms).collect();
    let late = now_ms() - before;
    for (n, due) in due.iter().enumerate() {
        let at = before + 100_000 + n as i64 * 10_500 / 1000;
        assert!((at..=at + late + 2).contains(due), "the {n}th: {} after {at}, {late}", due - at);
    }
    // The timer learns when the first of these jobs is due.
    let next_ms = s.promote(9).unwrap().next_ms.unwrap();
    assert!(next_ms <= due[0] && next_ms > before + 90_000);
}

fn dead_letters_that_were_kept_long_enough_go_and_the_oldest_first<F: Fixture>(f: &F) {
    let mut s = f.open();
    let t = topic("t");
    let die = |s: &mut dyn Store, ids: &[&str]| {
        for id in ids {
            add(s, &[job("t", id, NOW)]);
            let held = lease_one(s, "t");
            settle(s, &held, Outcome::DeadLetter);
        }
    };
    die(&mut *s, &["a", "b", "a", "c"]);
    let until = now_ms() + 10;
    // Each request takes some time, and the store counts an age back from the moment at which the request arrives.
    sleep_past(until + 5000);
    die(&mut *s, &["a", "d"]);
    // The age that selects the letters that died up to `until`.
    let age = || Duration::from_millis((now_ms() - until) as u64);
    assert_eq!(s.retire(&t, Duration::from_secs(3600), 99).unwrap(), 0);
    assert_eq!(s.retire(&topic("nobody"), age(), 99).unwrap(), 0);
    let mut gone = 0;
    while let some @ 1.. = s.retire(&t, age(), 1).unwrap() {
        assert!(some <= F::SHARDS, "a batch is bounded");
        gone += some;
    }
    assert_eq!((gone, counts(&mut *s, "t")), (4, [0, 0, 0, 2]));
    assert_eq!(s.letters(&t, &[JobId::new("a").unwrap()], DeadLetterOperation::Count).unwrap(), 1);
}

fn a_lease_keeps_to_its_quotas_and_tells_what_is_left<F: Fixture>(f: &F) {
    let mut s = f.open();
    for t in ["a", "b", "c"] {
        add(&mut *s, &(0..10).map(|i| job(t, &i.to_string(), NOW)).collect::<Vec<_>>());
    }
    let batch = s.lease(&[want("a", 2), want("b", 4), want("nobody", 4), want("c", 9)], 8, None).unwrap();
    let of = |batch: &LeaseResult, t: &str| batch.jobs.iter().filter(|j| j.key.topic.as_str() == t).count();
    assert_eq!([of(&batch, "a"), of(&batch, "b"), of(&batch, "c")], [2, 4, 2]);
    let mut left = batch.left;
    left.sort();
    assert_eq!(left, [(topic("a"), 8), (topic("b"), 6), (topic("c"), 8)]);
    let none = s.lease(&[want("nobody", 5)], 5, None).unwrap();
    assert_eq!((none.jobs.len(), none.left.len()), (0, 3));
    assert_eq!(s.lease(&[want("a", 5)], 0, None).unwrap().jobs, []);
}

fn a_lease_of_none_reports_how_many_jobs_are_ready<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &(0..3).map(|i| job("a", &i.to_string(), NOW)).collect::<Vec<_>>());
    for _ in 0..2 {
        let batch = s.lease(&[want("a", 0), want("nobody", 0)], 9, Some(&owner("me"))).unwrap();
        assert_eq!((batch.jobs.len(), batch.left), (0, vec![(topic("a"), 3)]));
    }
    assert_eq!(lease(&mut *s, "a", 9).len(), 3);
}

fn leases_go_by_priority_and_then_by_due_time<F: Fixture>(f: &F) {
    let mut s = f.open();
    let base = now_ms() + 50;
    let with = |id: &str, priority: Priority, due| NewJob {
        priority: priority.into(),
        ..job("t", id, Due::At(base + due))
    };
    add(
        &mut *s,
        &[
            with("low", Priority::Low, 1),
            with("n2", Priority::Normal, 20),
            with("n1", Priority::Normal, 10),
            with("high", Priority::High, 30),
        ],
    );
    eventually(5 * Duration::from_secs(1), "all jobs due", || (now_ms() > base + 31).then_some(()));
    s.promote(9).unwrap();
    let ids: Vec<_> = lease(&mut *s, "t", 9).into_iter().map(|l| l.key.id.to_string()).collect();
    assert_eq!(ids, ["high", "n1", "n2", "low"]);
}

fn reschedule_and_run_move_what_is_not_leased<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &[job("t", "i", LONG)]);
    let at = now_ms() + 40;
    assert_eq!(s.reschedule(&key("t", "i"), Due::At(at)).unwrap(), Changed::Done);
    assert_eq!(s.promote(9).unwrap().next_ms, Some(at));
    assert_eq!(s.run(&key("t", "i")).unwrap(), Changed::Done);
    assert_eq!(counts(&mut *s, "t"), [0, 1, 0, 0]);
    assert_eq!(s.reschedule(&key("t", "i"), LONG).unwrap(), Changed::Done);
    assert_eq!(counts(&mut *s, "t"), [1, 0, 0, 0]);
    s.run(&key("t", "i")).unwrap();
    let held = lease_one(&mut *s, "t");
    assert_eq!(s.run(&key("t", "i")).unwrap(), Changed::Conflict);
    assert_eq!(s.reschedule(&key("t", "i"), LONG).unwrap(), Changed::Conflict);
    settle(&mut *s, &held, Outcome::DeadLetter);
    assert_eq!(s.run(&key("t", "i")).unwrap(), Changed::NotFound);
    assert_eq!(s.run(&key("nobody", "i")).unwrap(), Changed::NotFound);
}

fn a_held_back_job_waits_until_it_is_released<F: Fixture>(f: &F) {
    let mut s = f.open();
    let (later, held) = (now_ms() + 90_000, Due::At(HELD_MS));
    let high = NewJob { priority: Priority::High.into(), attempts: 3, ..job("t", "now", held) };
    add(&mut *s, &[high, job("t", "past", held), job("u", "later", held), job("t", "own", LONG)]);
    let own = s.get(&key("t", "own")).unwrap();
    s.promote(10).unwrap();
    assert_eq!((counts(&mut *s, "t"), counts(&mut *s, "u")), ([3, 0, 0, 0], [1, 0, 0, 0]));
    let release = [
        (key("t", "now"), NOW),
        (key("u", "later"), Due::At(later)),
        (key("t", "own"), NOW),
        (key("t", "past"), Due::At(5)),
        (key("t", "unknown"), NOW),
        (key("never-seen", "x"), NOW),
    ];
    let before = now_ms();
    assert_eq!(all(s.release(&release)), [true, true, false, true, false, false]);
    assert_eq!(all(s.release(&release)), [false; 6], "once");
    assert_eq!(s.get(&key("t", "own")).unwrap(), own);
    assert_eq!(s.get(&key("t", "past")).unwrap().unwrap().state, State::Delayed, "a timer decides about it");
    let released = s.get(&key("u", "later")).unwrap().unwrap();
    assert_eq!((released.due_ms, released.state), (later, State::Delayed));
    assert!(s.promote(10).unwrap().next_ms.is_some_and(|next| next <= later), "a timer knows of it");
    let leased = lease(&mut *s, "t", 9);
    let ids: Vec<_> = leased.iter().map(|l| (l.key.id.as_str(), l.attempt)).collect();
    assert_eq!(ids, [("now", 4), ("past", 1)], "they have their priorities and attempts");
    assert!((before..=now_ms()).contains(&leased[0].due_ms) && leased[1].due_ms == 5);
    assert_eq!(all(s.release(&release)), [false; 6], "what is leased is not held back");
    assert_eq!((counts(&mut *s, "t"), counts(&mut *s, "u")), ([1, 0, 2, 0], [1, 0, 0, 0]));
}

fn a_paused_topic_is_not_leased_until_it_is_resumed<F: Fixture>(f: &F) {
    let (mut a, mut b) = (f.open(), f.open());
    let bell = f.bell(BellKind::Push);
    add(&mut *a, &(0..20).map(|n| job("t", &format!("{n}"), NOW)).collect::<Vec<_>>());
    let held = lease_one(&mut *a, "t");
    a.pause(&topic("t"), true).unwrap();
    // A topic can be paused before it has ever had a job.
    b.pause(&topic("u"), true).unwrap();
    assert_eq!(b.paused().unwrap(), [topic("t"), topic("u")]);
    add(
        &mut *b,
        &[
            job("t", "new", NOW),
            job("t", "soon", Due::In(Duration::from_millis(5))),
            job("u", "i", NOW),
            job("v", "i", NOW),
        ],
    );
    let soon = b.get(&key("t", "soon")).unwrap().unwrap().due_ms;
    sleep_past(soon);
    a.promote(100).unwrap();
    quiet(&bell);
    let batch = b.lease(&[want("t", 9), want("u", 9), want("v", 9)], 20, None).unwrap();
    assert_eq!(batch.jobs.iter().map(|j| j.key.clone()).collect::<Vec<_>>(), [key("v", "i")]);
    assert_eq!(batch.left, []);
    assert_eq!(b.lease(&[want("v", 9)], 20, None).unwrap().left, [], "what is paused is not reported");
    assert_eq!(counts(&mut *b, "t"), [0, 21, 1, 0]);
    // While the topic is paused, a leased job can be settled. A job that is retried waits like the other jobs.
    assert_eq!(settle(&mut *b, &held, Outcome::Retry(NOW)), Settled::Done);
    assert_eq!(lease(&mut *a, "t", 9), []);
    quiet(&bell);
    b.pause(&topic("t"), false).unwrap();
    assert!(rings(&bell), "the bell of a process that waits rings");
    assert_eq!(a.paused().unwrap(), [topic("u")]);
    assert_eq!(lease(&mut *a, "t", 100).len(), 22);
    assert_eq!(lease(&mut *a, "u", 100), []);
    // A repeated pause or resume has the same effect as a single one.
    a.pause(&topic("u"), true).unwrap();
    a.pause(&topic("u"), false).unwrap();
    a.pause(&topic("u"), false).unwrap();
    assert_eq!(lease(&mut *b, "u", 100).len(), 1);
    assert_eq!(b.paused().unwrap(), []);
}

fn a_change_of_body_priority_or_limit_keeps_the_job_and_its_due_time<F: Fixture>(f: &F) {
    let mut s = f.open();
    let at = now_ms() + 3_600_000;
    add(&mut *s, &[job("t", "i", Due::At(at)), job("t", "j", NOW), job("t", "k", NOW)]);
    let body = |text: &str| Change { body: Some(Body::parse(text).unwrap()), ..Change::default() };
    let view = |s: &mut dyn Store, id: &str| s.get(&key("t", id)).unwrap().unwrap();
    let before = view(&mut *s, "i");
    assert_eq!(s.change(&key("t", "i"), &body("[2]")).unwrap(), Changed::Done);
    let expected = store::StoredJob { body: Body::parse("[2]").unwrap(), ..before };
    assert_eq!(view(&mut *s, "i"), expected);
    let all_else =
        Change { priority: Some(Priority::High.into()), max_attempts: Some(Some(3)), ..Change::default() };
    assert_eq!(s.change(&key("t", "i"), &all_else).unwrap(), Changed::Done);
    let expected = store::StoredJob { priority: Priority::High.into(), max_attempts: Some(3), ..expected };
    assert_eq!(view(&mut *s, "i"), expected);
    // A change of the body, and the removal of the limit of attempts. The due time stays.
    assert_eq!(s.change(&key("t", "i"), &body("{\"a\":3}")).unwrap(), Changed::Done);
    let none = Change { max_attempts: Some(None), ..Change::default() };
    assert_eq!(s.change(&key("t", "i"), &none).unwrap(), Changed::Done);
    let expected =
        store::StoredJob { body: Body::parse("{\"a\":3}").unwrap(), max_attempts: None, ..expected };
    assert_eq!(view(&mut *s, "i"), expected);
    assert_eq!(s.promote(9).unwrap().next_ms, Some(at));

    // A ready job stays ready. If it gets high priority, it comes before the other jobs.
    let ready = Change { priority: Some(Priority::High.into()), ..body("7") };
    assert_eq!(s.change(&key("t", "k"), &ready).unwrap(), Changed::Done);
    assert_eq!(counts(&mut *s, "t"), [1, 2, 0, 0]);
    if F::SHARDS == 1 {
        assert_eq!(lease_one(&mut *s, "t").key.id.as_str(), "k");
    } else {
        lease(&mut *s, "t", 9);
    }
    assert_eq!(view(&mut *s, "k").body, Body::parse("7").unwrap());
    assert_eq!(s.change(&key("t", "k"), &body("8")).unwrap(), Changed::Conflict);
    assert_eq!(view(&mut *s, "k").body, Body::parse("7").unwrap());
    assert_eq!(s.change(&key("t", "nobody"), &body("8")).unwrap(), Changed::NotFound);

    // After a change to a large body, the whole body is delivered.
    let large = format!("\"{}\"", "x".repeat(200_000));
    let now = Change { due: Some(NOW), ..body(&large) };
    assert_eq!(s.change(&key("t", "i"), &now).unwrap(), Changed::Done);
    let leased = lease(&mut *s, "t", 9);
    let one = leased.iter().find(|l| l.key.id.as_str() == "i").unwrap();
    assert_eq!((one.body.as_str(), one.attempt, one.stamp_us), (&*large, 1, expected.stamp_us));
}

fn dead_letters_of_some_ids_are_counted_and_removed_and_live_jobs_stay<F: Fixture>(f: &F) {
    let mut s = f.open();
    let ids = |all: &[&str]| all.iter().map(|id| JobId::new(*id).unwrap()).collect::<Vec<_>>();
    for id in ["a", "a", "a", "b", "c"] {
        add(&mut *s, &[job("t", id, NOW)]);
        let held = lease_one(&mut *s, "t");
        assert_eq!(settle(&mut *s, &held, Outcome::DeadLetter), Settled::Done);
    }
    add(&mut *s, &[job("t", "a", LONG), job("t", "d", LONG)]);
    let some = ids(&["a", "b", "d", "nobody"]);
    assert_eq!(s.letters(&topic("t"), &some, DeadLetterOperation::Count).unwrap(), 4);
    assert_eq!(counts(&mut *s, "t"), [2, 0, 0, 5]);
    assert_eq!(s.letters(&topic("t"), &some, DeadLetterOperation::Remove).unwrap(), 4);
    assert_eq!(counts(&mut *s, "t"), [2, 0, 0, 1], "what is live again stays, and what was not named");
    assert_eq!(state(&mut *s, "t", "a"), Some(State::Delayed));
    assert_eq!(s.letters(&topic("t"), &some, DeadLetterOperation::Count).unwrap(), 0);
    assert_eq!(s.letters(&topic("nobody"), &some, DeadLetterOperation::Remove).unwrap(), 0);
    assert_eq!(s.redrive(&topic("t"), &DeadLetterSelection::All, 9, RedrivePace::default()).unwrap(), 1);
}

fn the_latest_dead_letters_are_told_with_why_they_died<F: Fixture>(f: &F) {
    let mut s = f.open();
    assert_eq!(s.dead_since(&topic("t"), 0, 9).unwrap(), []);
    let mut died = Vec::new();
    for n in 0..6 {
        add(&mut *s, &[job("t", &n.to_string(), NOW)]);
        let held = lease_one(&mut *s, "t");
        let attempt = Attempt {
            number: 1,
            at_ms: now_ms(),
            took_ms: 1,
            status: Some(500),
            answer: "no".into(),
            error: format!("why {n}"),
            late: None,
        };
        let settlement = Settlement { attempt: Some(attempt), ..settlement(&held, Outcome::DeadLetter) };
        assert_eq!(s.settle(&[settlement]).remove(0).unwrap(), Settled::Done);
        died.push(s.get(&key("t", &n.to_string())).unwrap().unwrap().until_ms.unwrap());
        sleep_past(died[n]);
    }
    let mut describe = |since_ms, limit| -> Vec<String> {
        let dead = s.dead_since(&topic("t"), since_ms, limit).unwrap();
        assert!(dead.iter().all(|v| v.state == State::Dead && v.until_ms >= Some(since_ms)));
        dead.iter().map(|v| format!("{}: {}", v.key.id.as_str(), v.attempts_log[0].error)).collect()
    };
    assert_eq!(describe(0, 3), ["5: why 5", "4: why 4", "3: why 3"]);
    assert_eq!(describe(died[4], 9), ["5: why 5", "4: why 4"]);
    assert_eq!(describe(died[5] + 1, 9), Vec::<String>::new());
    assert_eq!(s.dead_since(&topic("nobody"), 0, 9).unwrap(), []);
}

fn a_list_is_paged_in_its_order<F: Fixture>(f: &F) {
    let mut s = f.open();
    let base = now_ms() + 1_000_000;
    let jobs: Vec<_> = (0..25).map(|i| job("t", &format!("{i:02}"), Due::At(base + 1000 - i / 3))).collect();
    add(&mut *s, &jobs);
    add(
        &mut *s,
        &[
            NewJob { priority: Priority::Low.into(), ..job("t", "r1", Due::At(1)) },
            job("t", "r2", Due::At(2)),
        ],
    );
    for (state, sum) in [(State::Delayed, 25), (State::Ready, 2)] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page = s.list(&topic("t"), state, cursor.as_deref(), 4).unwrap();
            seen.extend(page.jobs);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen.len(), sum);
        assert!(seen.iter().all(|v| v.state == state));
        assert!(seen.windows(2).all(|w| (w[0].priority, w[0].due_ms) <= (w[1].priority, w[1].due_ms)));
    }
    assert_eq!(s.list(&topic("t"), State::Ready, Some("nonsense"), 4).unwrap().jobs, []);
    assert_eq!(s.list(&topic("nobody"), State::Ready, None, 4).unwrap().jobs, []);
}

fn delayed_jobs_are_listed_from_a_due_time<F: Fixture>(f: &F) {
    let mut s = f.open();
    let base = now_ms() + 3_600_000;
    let with = |n: i64| {
        let priority = [Priority::High, Priority::Normal, Priority::Low][n as usize % 3];
        NewJob { priority: priority.into(), ..job("t", &format!("{n:02}"), Due::At(base + n / 2)) }
    };
    add(&mut *s, &(0..20).map(with).collect::<Vec<_>>());
    for from in [-1, 0, 1, 5, 9, 10, i64::MAX >> 12] {
        let (mut ids, mut cursor) = (Vec::new(), Some(s.delayed_from(&topic("t"), base + from).unwrap()));
        while let Some(place) = cursor {
            let page = s.list(&topic("t"), State::Delayed, Some(&place), 3).unwrap();
            assert!(page.jobs.is_sorted_by_key(|view| view.due_ms));
            ids.extend(page.jobs.iter().map(|view| view.key.id.to_string()));
            cursor = page.next;
        }
        ids.sort();
        let expected: Vec<String> = (0..20).filter(|n| n / 2 >= from).map(|n| format!("{n:02}")).collect();
        assert_eq!(ids, expected, "from {from}");
    }
    let none = s.delayed_from(&topic("none"), base).unwrap();
    assert_eq!(s.list(&topic("none"), State::Delayed, Some(&none), 9).unwrap().jobs, []);
}

fn the_rings_of_a_pulled_topic_reach_every_process<F: Fixture>(f: &F) {
    let bells = [f.bell(BellKind::Pull), f.bell_named(BellKind::Pull, "other")];
    let mut s = f.open();
    s.ring_pull(&[topic("t")]).unwrap();
    let mut n = 0;
    let mut heard = [false, false];
    let is_of = |ring: &Ring| match ring {
        Ring::Of(ring) => ring.topic == topic("t"),
        // The embedded store rings without a topic.
        Ring::All => F::IS_EMBEDDED,
    };
    eventually(Duration::from_secs(10), "rings in both", || {
        n += 1;
        add(&mut *s, &[job("t", &format!("j{n}"), NOW), job("u", &format!("j{n}"), NOW)]);
        std::thread::sleep(Duration::from_millis(20));
        for (bells, heard) in bells.iter().zip(&mut heard) {
            for bell in &bells.0 {
                if bell.answer().unwrap() {
                    *heard |= bell.rings().iter().any(is_of);
                }
            }
        }
        (heard == [true, true]).then_some(())
    });
    // For a topic that no client waits for, no bell rings.
    add(&mut *s, &[job("u", "last", NOW)]);
    for bell in bells.iter().flat_map(|bells| &bells.0) {
        let of_u = |ring: &Ring| matches!(ring, Ring::Of(ring) if ring.topic == topic("u"));
        assert!(!bell.rings().iter().any(of_u));
    }
}

fn no_more_jobs_are_leased_than_the_limit_allows<F: Fixture>(f: &F) {
    let mut s = f.open();
    let jobs: Vec<NewJob> = (0..20).map(|n| job("t", &format!("j{n}"), NOW)).collect();
    add(&mut *s, &jobs);
    let limited = |most| LeaseRequest { max_leased: Some(most), ..want("t", 10) };
    let first = s.lease(&[limited(4)], 10, None).unwrap();
    assert_eq!(first.jobs.len(), 4);
    let none = s.lease(&[limited(4)], 10, None).unwrap();
    assert_eq!(none.jobs.len(), 0);
    assert!(none.left.iter().any(|(t, n)| *t == topic("t") && *n > 0), "{:?}", none.left);
    let done = Settlement {
        key: first.jobs[0].key.clone(),
        token: first.jobs[0].token.clone(),
        outcome: Outcome::Ack,
        attempt: None,
    };
    assert_eq!(s.settle(&[done]), [Ok(Settled::Done)]);
    assert_eq!(s.lease(&[limited(4)], 10, None).unwrap().jobs.len(), 1);
    assert_eq!(s.lease(&[limited(6)], 10, None).unwrap().jobs.len(), 2);
    assert_eq!(s.lease(&[want("t", 10)], 10, None).unwrap().jobs.len(), 10, "without a limit");
}

fn bells_ring_when_there_is_work<F: Fixture>(f: &F) {
    let (push, timer) = (f.bell(BellKind::Push), f.bell(BellKind::Timer));
    let mut s = f.open();
    let rang = rings;
    // With several shards, a shard may not know of the earlier due time, and then it rings.
    let silent = |bell: &Bells| F::SHARDS > 1 || is_silent(bell);
    quiet(&push);
    quiet(&timer);
    add(&mut *s, &[job("t", "now", NOW)]);
    assert!(rang(&push), "an add that is due rings the consumers");
    let at = now_ms() + 1000;
    add(&mut *s, &[job("t", "soon", Due::At(at))]);
    assert!(rang(&timer), "the first delayed job rings the timer");
    add(&mut *s, &[job("t", "later", LONG)]);
    assert!(silent(&timer), "a later one does not");
    add(&mut *s, &[job("u", "sooner", Due::At(at - 20))]);
    assert!(rang(&timer), "an earlier one does");
    assert!(is_silent(&push));
    sleep_past(at);
    s.promote(10).unwrap();
    assert!(rang(&push), "a promotion rings the consumers");
    let held = lease_one(&mut *s, "t");
    assert!(rang(&timer), "the first lease tells the timer of its deadline");
    settle(&mut *s, &held, Outcome::Retry(NOW));
    assert!(rang(&push), "a retry that is due rings the consumers");
    lease_one(&mut *s, "t");
    s.hand_back(&owner("me")).unwrap();
    assert!(rang(&push), "a lease handed back rings the consumers");
    let held = lease_one(&mut *s, "t");
    settle(&mut *s, &held, Outcome::DeadLetter);
    quiet(&push);
    s.redrive(&topic("t"), &DeadLetterSelection::All, 10, RedrivePace::default()).unwrap();
    assert!(rang(&push), "a redrive rings the consumers");
    quiet(&timer);
    s.run(&key("t", "later")).unwrap();
    assert!(rang(&push), "run rings the consumers");
    assert!(silent(&timer));
    s.reschedule(&key("t", "later"), Due::At(now_ms() + 5000)).unwrap();
    assert!(rang(&timer), "a reschedule that is earlier than all others rings the timer");
}

/// Many threads with their own handles add, promote, lease and settle jobs at the same time. At the end, every job was
/// acknowledged exactly once.
fn many_handles_at_once_lose_and_double_nothing<F: Fixture + Sync>(f: &F) {
    const ADDERS: usize = 3;
    const EACH: usize = 400;
    let acked = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for adder in 0..ADDERS {
            scope.spawn(move || {
                let mut s = f.open();
                for chunk in 0..EACH / 20 {
                    let jobs: Vec<_> = (0..20)
                        .map(|i| {
                            let id = format!("{adder}-{}", chunk * 20 + i);
                            job(["a", "b"][i % 2], &id, Due::In(Duration::from_millis((i % 5) as u64 * 10)))
                        })
                        .collect();
                    assert!(outcomes(&all(s.add(&jobs))).iter().all(|a| *a == "new"));
                }
            });
        }
        for consumer in 0..3 {
            let acked = &acked;
            scope.spawn(move || {
                let mut s = f.open();
                let me = owner(&format!("c{consumer}"));
                let until = std::time::Instant::now() + Duration::from_secs(60);
                while acked.lock().unwrap().len() < ADDERS * EACH {
                    assert!(
                        std::time::Instant::now() < until,
                        "only {} arrived",
                        acked.lock().unwrap().len()
                    );
                    s.promote(50).unwrap();
                    let batch = s.lease(&[want("a", 20), want("b", 20)], 30, Some(&me)).unwrap();
                    let settlements: Vec<_> = batch
                        .jobs
                        .iter()
                        .map(|j| {
                            let again = j.attempt == 1 && j.key.id.as_str().ends_with('7');
                            settlement(j, if again { Outcome::Retry(NOW) } else { Outcome::Ack })
                        })
                        .collect();
                    assert!(all(s.settle(&settlements)).iter().all(|r| *r == Settled::Done));
                    let done = settlements.into_iter().filter(|s| s.outcome == Outcome::Ack);
                    acked.lock().unwrap().extend(done.map(|s| s.key));
                }
            });
        }
    });
    let mut acked = acked.into_inner().unwrap();
    acked.sort();
    acked.dedup();
    assert_eq!(acked.len(), ADDERS * EACH);
    let mut s = f.open();
    assert_eq!([counts(&mut *s, "a"), counts(&mut *s, "b")], [[0; 4]; 2]);
}

fn a_store_outlives_its_handles<F: Fixture>(f: &F) {
    let mut s = f.open();
    add(&mut *s, &(0..2000).map(|i| job("t", &i.to_string(), LONG)).collect::<Vec<_>>());
    s.maintain().unwrap();
    add(&mut *s, &[job("t", "last", NOW)]);
    s.health().unwrap();
    drop(s);
    let mut s = f.open();
    assert_eq!(counts(&mut *s, "t"), [2000, 1, 0, 0]);
    s.maintain().unwrap();
    assert_eq!(counts(&mut *s, "t"), [2000, 1, 0, 0]);
}

fn ask(t: &str, held: u32, want: u32) -> PermitRequest {
    PermitRequest {
        name: LimitName::from(&topic(t)),
        held,
        want,
        max_in_flight: Some(5),
        rate: None,
        unused: 0,
    }
}

fn granted(store: &mut dyn Store, who: &str, ask: PermitRequest) -> u32 {
    one(store.permits(&owner(who), &[ask])).granted
}

fn one(mut permits: Vec<store::Result<store::Permit>>) -> store::Permit {
    assert_eq!(permits.len(), 1);
    permits.remove(0).unwrap()
}

fn permits_of_all_processes_together_are_never_more_than_the_topic_allows<F: Fixture>(f: &F) {
    let (mut a, mut b) = (f.open(), f.open());
    assert_eq!(granted(&mut *a, "a", ask("t", 0, 9)), 5);
    assert_eq!(granted(&mut *b, "b", ask("t", 0, 3)), 0);
    // A request for permits that is repeated because its answer was lost counts once.
    assert_eq!(granted(&mut *a, "a", ask("t", 0, 9)), 5);
    assert_eq!(granted(&mut *a, "a", ask("t", 5, 1)), 0);
    let three = [ask("u", 0, 9), ask("t", 5, 0), ask("v", 0, 2)];
    let permit = one(b.permits(&owner("c"), &three[..1]));
    assert_eq!(permit.granted, 5, "each topic has its own");
    let permits = a.permits(&owner("a"), &three).into_iter();
    assert_eq!(permits.map(|p| p.unwrap().granted).collect::<Vec<_>>(), [0, 0, 2]);
    assert_eq!(granted(&mut *a, "a", ask("t", 2, 0)), 0);
    assert_eq!(granted(&mut *b, "b", ask("t", 0, 9)), 3);
    assert_eq!(granted(&mut *a, "a", ask("t", 2, 1)), 0);
    // A process that is gone holds no permits.
    a.hand_back(&owner("b")).unwrap();
    assert_eq!(granted(&mut *a, "a", ask("t", 2, 9)), 3);
    // After a limit is lowered, a process gets permits only when fewer are held than the new limit allows.
    let lower = PermitRequest { max_in_flight: Some(2), ..ask("t", 4, 1) };
    assert_eq!(granted(&mut *a, "a", lower), 0);
}

fn a_rate_is_shared_by_all_processes<F: Fixture>(f: &F) {
    let (mut a, mut b) = (f.open(), f.open());
    let ask = |want, unused| PermitRequest {
        name: LimitName::from(&topic("t")),
        held: 0,
        want,
        max_in_flight: None,
        rate: Some(Rate { jobs: 600, per: Duration::from_secs(60) }),
        unused,
    };
    let first = one(a.permits(&owner("a"), &[ask(64, 0)]));
    assert_eq!(first.granted, 1);
    assert!(first.again.is_some_and(|again| again <= Duration::from_millis(100)), "{first:?}");
    assert_eq!(one(b.permits(&owner("b"), &[ask(1, 0)])).granted, 0);
    assert_eq!(one(b.permits(&owner("b"), &[ask(1, 1)])).granted, 1, "what was not used is there");
    let started = std::time::Instant::now();
    let mut sum = 0;
    while sum < 10 {
        for store in [&mut a, &mut b] {
            let permit = one(store.permits(&owner("a"), &[ask(64, 0)]));
            sum += permit.granted;
            std::thread::sleep(permit.again.unwrap_or_default() / 2);
        }
    }
    let took = started.elapsed();
    // A rate is never exceeded. The upper bound is generous, because the machine may be busy.
    assert!((900..20_000).contains(&took.as_millis()), "10 came within {took:?}");
    // If a callback has two limits and one of them refuses the permit, the other limit is not used up.
    let both = PermitRequest { max_in_flight: Some(1), ..ask(5, 0) };
    let other = PermitRequest { name: LimitName::from(&topic("u")), ..both.clone() };
    assert_eq!(granted(&mut *a, "a", other.clone()), 1);
    assert_eq!(granted(&mut *b, "b", other), 0);
}

fn opening(t: &str, pause_ms: u64, opens: u32) -> CircuitOpening {
    CircuitOpening {
        topic: topic(t),
        pause: Duration::from_millis(pause_ms),
        opens,
        reason: "status 500".into(),
    }
}

fn an_open_circuit_holds_jobs_back_and_lets_one_a_shard_through_when_its_pause_is_over<F: Fixture>(f: &F) {
    let (mut a, mut b) = (f.open(), f.open());
    let bell = f.bell(BellKind::Push);
    add(&mut *a, &(0..60).map(|n| job("t", &format!("{n}"), NOW)).collect::<Vec<_>>());
    add(&mut *a, &[job("u", "i", NOW)]);
    assert_eq!(a.circuits().unwrap(), []);
    assert!(a.open_circuit(&opening("t", 60_000, 1)).unwrap(), "it was closed");
    assert!(!b.open_circuit(&opening("t", 70_000, 1)).unwrap(), "two found out");
    quiet(&bell);
    let batch = b.lease(&[want("t", 9), want("u", 9)], 20, None).unwrap();
    assert_eq!(batch.jobs.iter().map(|j| j.key.clone()).collect::<Vec<_>>(), [key("u", "i")]);
    assert_eq!(batch.left, []);
    let [(waits, again)] = &batch.waiting[..] else { panic!("{batch:?}") };
    assert!(*waits == topic("t") && (50_000..=60_000).contains(&again.as_millis()), "{again:?}");
    assert_eq!(b.lease(&[], 20, None).unwrap().waiting.len(), 1, "also to whoever does not ask for it");
    let seen = a.circuits().unwrap();
    assert_eq!((&seen[0].topic, seen[0].state, seen[0].opens), (&topic("t"), CircuitState::Open, 1));
    assert!(seen.len() == 1 && seen[0].reason == "status 500" && seen[0].until_ms > now_ms() + 50_000);
    assert!((now_ms() - 5000..=now_ms()).contains(&seen[0].since_ms));
    assert_eq!(counts(&mut *a, "t"), [0, 60, 0, 0]);
    // The circuit is opened for the second time, for a short time.
    assert!(!a.open_circuit(&opening("t", 30, 2)).unwrap());
    let until = a.circuits().unwrap()[0].until_ms;
    quiet(&bell);
    sleep_past(until + 5);
    assert_eq!(a.circuits().unwrap()[0].state, CircuitState::HalfOpen);
    assert_eq!(b.lease(&[], 20, None).unwrap().left.len(), 1, "it is reported without being asked for");
    let brief = LeaseRequest { hold: Duration::from_millis(400), ..want("t", 50) };
    let most = F::SHARDS.min(60);
    let first = b.lease(std::slice::from_ref(&brief), 256, Some(&owner("b"))).unwrap();
    assert!((1..=most).contains(&first.jobs.len()), "{} of {most}", first.jobs.len());
    assert!(first.jobs.iter().all(|j| j.probe == Some(2)));
    assert!(first.left.is_empty() && first.waiting.len() == 1);
    assert!(first.waiting[0].1 <= Duration::from_millis(400));
    let second = a.lease(&[want("t", 50)], 256, None).unwrap();
    assert_eq!((second.jobs.len(), second.left.len(), second.waiting.len()), (0, 0, 1));
    // Nobody reports the outcome of the probe, so another probe is let through.
    sleep_past(first.jobs.iter().map(|j| j.deadline_ms).max().unwrap() + 5);
    let third = a.lease(&[want("t", 50)], 256, None).unwrap();
    assert!(!third.jobs.is_empty() && third.jobs.iter().all(|j| j.probe == Some(2)));
    // The probe failed, and the circuit is opened for longer.
    assert!(!a.open_circuit(&opening("t", 60_000, 3)).unwrap());
    assert!(!b.open_circuit(&opening("t", 1, 3)).unwrap(), "another found out as well");
    assert_eq!((b.circuits().unwrap()[0].opens, lease(&mut *b, "t", 9)), (3, vec![]));
    quiet(&bell);
    assert!(b.close_circuit(&topic("t")).unwrap());
    assert!(rings(&bell), "the bell of a process that waits rings");
    assert!(!b.close_circuit(&topic("t")).unwrap() && !b.close_circuit(&topic("nobody")).unwrap());
    assert_eq!(a.circuits().unwrap(), []);
    let rest = lease(&mut *a, "t", 100);
    assert!(
        rest.len() >= 60_usize.saturating_sub(2 * most) && rest.iter().all(|j| j.probe.is_none()),
        "{}",
        rest.len()
    );
}

fn a_probe_that_is_handed_back_lets_the_next_job_through<F: Fixture>(f: &F) {
    let mut s = f.open();
    let bell = f.bell(BellKind::Push);
    add(&mut *s, &(0..60).map(|n| job("t", &n.to_string(), NOW)).collect::<Vec<_>>());
    s.open_circuit(&opening("t", 1, 1)).unwrap();
    sleep_past(s.circuits().unwrap()[0].until_ms + 5);
    let probes = |s: &mut dyn Store, who: &str| {
        let leased = s.lease(&[want("t", 50)], 256, Some(&owner(who))).unwrap().jobs;
        assert!(leased.iter().all(|job| job.probe == Some(1)), "{who}");
        leased
    };
    let first = probes(&mut *s, "a");
    assert!(!first.is_empty() && probes(&mut *s, "b").is_empty());
    quiet(&bell);
    // The process that made the callback dies.
    assert_eq!(s.hand_back(&owner("a")).unwrap(), first.len());
    assert!(rings(&bell));
    let second = probes(&mut *s, "b");
    assert_eq!(second.len(), first.len());
    // The process that makes the callback ends, and hands back what is not finished.
    second.iter().for_each(|job| assert_eq!(settle(&mut *s, job, Outcome::HandBack), Settled::Done));
    let third = probes(&mut *s, "b");
    assert_eq!(third.len(), first.len());
    // The end of a job that is not the probe lets nobody through.
    s.close_circuit(&topic("t")).unwrap();
    let other = lease_one(&mut *s, "t");
    s.open_circuit(&opening("t", 1, 1)).unwrap();
    sleep_past(s.circuits().unwrap()[0].until_ms + 5);
    assert!(!probes(&mut *s, "b").is_empty());
    assert_eq!(settle(&mut *s, &other, Outcome::HandBack), Settled::Done);
    assert!(F::SHARDS > 1 || probes(&mut *s, "b").is_empty());
}

fn a_circuit_and_a_pause_hold_each_by_itself<F: Fixture>(f: &F) {
    let mut s = f.open();
    // A circuit can be opened before the topic has ever had a job.
    assert!(s.open_circuit(&opening("t", 60_000, 1)).unwrap());
    add(&mut *s, &[job("t", "i", NOW)]);
    s.pause(&topic("t"), true).unwrap();
    assert_eq!(s.lease(&[want("t", 9)], 9, None).unwrap(), LeaseResult::default());
    s.close_circuit(&topic("t")).unwrap();
    assert_eq!(s.lease(&[want("t", 9)], 9, None).unwrap(), LeaseResult::default());
    s.open_circuit(&opening("t", 60_000, 1)).unwrap();
    s.pause(&topic("t"), false).unwrap();
    assert_eq!((lease(&mut *s, "t", 9), s.circuits().unwrap().len()), (vec![], 1));
    s.close_circuit(&topic("t")).unwrap();
    assert_eq!(lease(&mut *s, "t", 9).len(), 1);
}

fn a_few_of_many_topics_can_be_asked_and_the_others_are_told_of_by_and_by<F: Fixture>(f: &F) {
    const MANY: usize = 150;
    let mut s = f.open();
    let names: Vec<String> = (0..MANY).map(|n| format!("t{n}")).collect();
    add(&mut *s, &names.iter().flat_map(|t| [job(t, "i", NOW), job(t, "j", NOW)]).collect::<Vec<_>>());
    s.pause(&topic("t1"), true).unwrap();
    s.open_circuit(&opening("t2", 60_000, 1)).unwrap();
    let asked = [want("t0", 9), want("t1", 9), want("t2", 9), want("t3", 1), want("none", 9)];
    let batch = s.lease(&asked, 20, None).unwrap();
    let leased = |t: &str| batch.jobs.iter().filter(|j| j.key.topic == topic(t)).count();
    assert_eq!((leased("t0"), leased("t3"), batch.jobs.len()), (2, 1, 3));
    assert!(batch.left.contains(&(topic("t3"), 1)) && batch.waiting.iter().any(|(t, _)| *t == topic("t2")));
    let mut known: BTreeSet<TopicName> = BTreeSet::new();
    for _ in 0..300 {
        let leased_jobs = s.lease(&[want("t3", 1)], 0, None).unwrap();
        assert!(leased_jobs.left.iter().all(|(_, n)| (1..=2).contains(n)), "{leased_jobs:?}");
        assert!(leased_jobs.waiting.iter().all(|(t, _)| *t == topic("t2")), "{leased_jobs:?}");
        known.extend(leased_jobs.left.into_iter().map(|(t, _)| t));
    }
    let all = names.iter().map(|t| topic(t)).filter(|t| !["t0", "t1", "t2"].contains(&t.as_str()));
    assert_eq!(known, all.collect());
    s.pause(&topic("t1"), false).unwrap();
    s.close_circuit(&topic("t2")).unwrap();
    let batch = s.lease(&asked, 20, None).unwrap();
    assert_eq!((batch.jobs.len(), batch.waiting), (5, vec![]));
}

fn jobs_that_were_forgotten_in_an_outage_are_spread_once<F: Fixture>(f: &F) {
    let mut s = f.open();
    let long_ago = OUTAGE + Duration::from_secs(5);
    // Jobs that are due when they are added are ready at once. So the test adds delayed jobs, and lets time pass
    // without a promotion.
    let due = now_ms() + 300;
    let jobs = |t: &str| (0..200).map(|n| job(t, &format!("{n}"), Due::At(due))).collect::<Vec<_>>();
    add(&mut *s, &jobs("t"));
    add(&mut *s, &jobs("u"));
    sleep_past(due + long_ago.as_millis() as i64);
    let (before, span) = (now_ms(), Duration::from_secs(600));
    let (mut sum, mut found) = (0, 0);
    loop {
        let (moved, spread) = s.promote_or_spread(64, &[(topic("t"), span)]).unwrap();
        sum += moved.jobs;
        found += spread.iter().map(|(t, n)| if *t == topic("t") { *n } else { 0 }).sum::<usize>();
        if moved.jobs == 0 {
            assert!(moved.next_ms.is_some_and(|at| at > before), "{moved:?}");
            break;
        }
    }
    assert_eq!(found, 200);
    let [delayed, ready, ..] = counts(&mut *s, "t");
    assert_eq!((delayed + ready, counts(&mut *s, "u")), (200, [0, 200, 0, 0]));
    // Some of the spread jobs may become due in the meantime.
    assert!((400..=410).contains(&sum) && ready < 10, "{sum} moved, {ready} are ready");
    let page = s.list(&topic("t"), State::Delayed, None, 300).unwrap();
    let due: Vec<i64> = page.jobs.iter().map(|view| view.due_ms).collect();
    assert!(due.iter().all(|at| (before..=now_ms() + 601_000).contains(at)));
    let early = due.iter().filter(|at| **at < before + 300_000).count();
    assert!((60..140).contains(&early), "{early} of 200 in the first half");
}

fn a_lease_call_brings_few_large_bodies<F: Fixture>(f: &F) {
    let mut s = f.open();
    let large = |id: &str, bytes: usize| NewJob {
        body: Body::parse(&format!("\"{}\"", "x".repeat(bytes))).unwrap(),
        ..job("t", id, NOW)
    };
    let jobs: Vec<NewJob> = (0..7).map(|n| large(&n.to_string(), LEASE_BYTES / 4)).collect();
    jobs.iter().for_each(|job| drop(add(&mut *s, std::slice::from_ref(job))));
    // With several shards, the last job of a call can be too long.
    let counts: Vec<usize> = (0..4).map(|_| lease(&mut *s, "t", 100).len()).collect();
    assert!(counts.iter().all(|count| *count <= 4) && counts.iter().sum::<usize>() == 7, "{counts:?}");
    // A job that is longer than `LEASE_BYTES` is leased alone.
    for id in ["a", "b"] {
        add(&mut *s, &[large(id, LEASE_BYTES + 1)]);
    }
    let counts: Vec<usize> = (0..2).map(|_| lease(&mut *s, "t", 100).len()).collect();
    assert_eq!(counts, [1, 1]);
}

macro_rules! contract {
    ($($name:ident)*) => {
        contract! { @ embedded, super::Embedded: $($name)* }
        contract! { @ redis_with_one_shard, super::Redis<1, 1>: $($name)* }
        contract! { @ one_redis, super::Redis<1, 2>: $($name)* }
        contract! { @ two_redis, super::Redis<2, 2>: $($name)* }
        contract! { @ sentinel, super::Sentinel: $($name)* }
        contract! { @ cluster, super::Cluster: $($name)* }
    };
    (@ $store:ident, $fixture:ty: $($name:ident)*) => {
        mod $store {
            $(#[test] fn $name() { super::$name::<$fixture>(&<$fixture as super::Fixture>::new()) })*
        }
    };
}

contract! {
    the_rings_of_a_pulled_topic_reach_every_process
    no_more_jobs_are_leased_than_the_limit_allows
    an_added_job_is_read_back_by_every_handle
    a_due_job_is_ready_at_once
    a_job_that_is_added_late_is_due_from_its_add
    no_job_is_promoted_early_and_none_is_forgotten
    a_promotion_is_bounded_and_tells_when_to_come_again
    a_topic_with_very_many_due_jobs_delays_no_other
    an_id_that_is_taken_goes_by_on_conflict
    an_add_tells_when_the_job_is_due
    a_replacement_resets_the_attempts
    a_leased_job_that_is_replaced_settles_nothing_and_comes_after_its_lease
    a_deleted_job_is_gone_from_every_state
    settling_needs_the_token
    a_retry_comes_again_and_keeps_its_attempts
    a_buried_job_stays_until_it_is_redriven_or_purged
    all_dead_letters_are_redriven_whatever_their_number_and_their_ids
    a_token_settles_its_own_job_only
    a_handle_that_is_opened_rings_once
    a_lease_that_runs_out_counts_and_ends_in_the_dead_letters
    a_lease_lasts_for_the_own_ttr_of_its_job
    an_extended_lease_holds_longer
    a_job_handed_back_unused_has_its_attempt_back
    a_postponed_job_is_due_later_and_has_its_attempt_back
    permits_of_a_host_are_not_those_of_a_topic
    the_use_of_limits_is_shown_and_not_changed
    the_leases_of_a_dead_owner_come_back_and_a_poison_job_ends
    an_exchange_settles_and_then_leases
    a_forecast_counts_delayed_jobs_by_when_they_become_due
    a_job_has_its_own_limit_of_attempts
    without_a_limit_no_expired_lease_is_the_last
    attempts_that_were_made_before_count
    a_job_keeps_its_headers_as_long_as_it_lives_and_no_other_has_them
    headers_and_the_path_of_a_job_change_one_without_the_other
    a_lease_that_is_answered_later_is_nobodys_and_is_settled_by_its_token
    all_handles_have_one_secret_a_lane
    a_letter_is_redriven_or_removed_and_the_others_of_its_id_stay
    all_letters_that_are_named_are_redriven_however_many
    redriven_letters_are_due_one_after_the_other_at_their_pace
    dead_letters_that_were_kept_long_enough_go_and_the_oldest_first
    a_lease_keeps_to_its_quotas_and_tells_what_is_left
    a_named_job_is_leased_although_others_come_first
    a_lease_shows_the_client_that_has_it
    a_named_lease_ends_with_its_owner_or_at_its_deadline
    a_lease_of_none_reports_how_many_jobs_are_ready
    leases_go_by_priority_and_then_by_due_time
    numbers_and_levels_have_one_order
    jobs_of_one_number_come_by_due_time_and_arrival
    the_number_of_a_job_stays_in_all_states
    a_settlement_may_change_the_priority
    random_changes_keep_the_order_of_ready_jobs
    reschedule_and_run_move_what_is_not_leased
    a_held_back_job_waits_until_it_is_released
    a_paused_topic_is_not_leased_until_it_is_resumed
    a_change_of_body_priority_or_limit_keeps_the_job_and_its_due_time
    dead_letters_of_some_ids_are_counted_and_removed_and_live_jobs_stay
    the_latest_dead_letters_are_told_with_why_they_died
    a_list_is_paged_in_its_order
    delayed_jobs_are_listed_from_a_due_time
    bells_ring_when_there_is_work
    many_handles_at_once_lose_and_double_nothing
    a_store_outlives_its_handles
    permits_of_all_processes_together_are_never_more_than_the_topic_allows
    a_rate_is_shared_by_all_processes
    an_open_circuit_holds_jobs_back_and_lets_one_a_shard_through_when_its_pause_is_over
    a_probe_that_is_handed_back_lets_the_next_job_through
    a_circuit_and_a_pause_hold_each_by_itself
    a_few_of_many_topics_can_be_asked_and_the_others_are_told_of_by_and_by
    jobs_that_were_forgotten_in_an_outage_are_spread_once
    a_topic_holds_no_more_jobs_than_its_quota
    a_topic_holds_no_more_bytes_than_its_quota
    the_bytes_of_a_topic_stay_exact
    a_rate_of_adds_is_kept
    a_delivered_job_leaves_a_record_with_all_its_attempts
    each_way_to_end_leaves_one_record
    a_job_that_is_replaced_leaves_a_record
    records_are_listed_the_last_first
    a_topic_keeps_as_many_records_as_it_says
    a_record_goes_when_it_is_too_old
    all_records_together_have_a_bound_and_the_largest_topic_gives
    records_of_an_id_are_erased_when_it_is_asked_for
    records_keep_tags_with_a_body_and_without_one
    what_follows_is_added_once_and_when_its_job_is_accepted
    a_job_that_ends_otherwise_is_followed_by_nothing
    each_end_makes_an_event_where_it_is_asked_for
    several_senders_add_each_follower_once
    what_follows_stays_with_a_job_and_leaves_its_links
    tags_change_without_headers_and_path_and_back
    tags_stay_with_a_job_in_all_states
    the_time_to_run_changes_and_the_expiry_stays
    a_lease_call_brings_few_large_bodies
    a_kept_id_is_unique_also_while_its_job_is_leased
    jobs_are_listed_forward_and_backward_without_a_gap
    each_state_is_listed_without_bodies
    a_listed_job_is_changed_only_as_it_was_listed
    a_listed_job_is_deleted_and_leaves_a_record
    many_listed_jobs_are_changed_at_once
}

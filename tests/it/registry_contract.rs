//! The rules of every registry, and what the registry in the PHP daemon's tables does in addition.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use crate::support::mariadb::{Database, MariaDb};
use crate::support::redis::RedisServer;
use model::audit::{self, AuditEntry};
use model::bulk::{
    BulkCounts, BulkEnd, BulkFilter, BulkOperation, BulkProgress, BulkRequest, PlannedJobChange, RUNNING_MAX,
    StoredBulkOperation,
};
use model::job::{Priority, TopicName};
use model::metrics::{MetricSubject, PageSums, Sums};
use model::password::StoredPassword;
use model::retry::Retry;
use model::scope::{Scope, ScopeTopics};
use model::settings;
use model::token::{Token, TokenCredential, TokenName, TokenSecret};
use model::topic::{DeliveryMode, Method, Payload, Rate, Success, Topic, TopicStatus};
use mysql::prelude::Queryable;
use registry::{BulkClaim, BulkSave, CopySummary, Expected, Registry, RegistryError, Revision, open};
use serde_json::json;

/// Runs a test on a fresh registry of each kind.
fn on_each(test: impl Fn(&settings::RegistrySettings)) {
    let dir = tempfile::tempdir().unwrap();
    test(&settings::RegistrySettings::Sqlite { path: dir.path().join("new/registry.db") });
    test(&MariaDb::shared().database().settings());
    let server = RedisServer::start();
    test(&on_redis(&server));
}

/// Returns the settings of a registry on a store of one node.
fn on_redis(server: &RedisServer) -> settings::RegistrySettings {
    let node = settings::NodeSettings::server("a", server.url(), 2);
    settings::RegistrySettings::Store(settings::RedisSettings::of_nodes(
        "dq",
        Duration::from_secs(5),
        4,
        vec![node],
    ))
}

fn redis_command(nodes: &settings::RedisSettings, words: &[&str]) {
    let settings::NodeAddress::Server { url } = &nodes.nodes[0].at else { panic!("it is one server") };
    let mut connection = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
}

fn name(n: &str) -> TopicName {
    TopicName::new(n).unwrap()
}

fn topic(n: &str) -> Topic {
    Topic::new(name(n), format!("http://127.0.0.1:9000/{n}"))
}

/// Returns a topic with a value in every field.
fn full() -> Topic {
    Topic {
        title: "关闭订单".into(),
        mode: DeliveryMode::Push,
        method: Method::Post,
        payload: Payload::Json,
        headers: [("x-shop".to_owned(), "7".to_owned())].into(),
        delay: Duration::from_millis(1500),
        timeout: Duration::from_millis(750),
        success: Success::Status,
        re_notify_flag: "{res.code} != 0".into(),
        retry: Retry::List(vec![Duration::from_secs(1), Duration::from_millis(2500)]),
        max_attempts: 4,
        max_in_flight: Some(8),
        rate: Some(Rate::per_second(100)),
        priority: Priority::High,
        alert: vec!["a@example.com".into(), "b@example.com".into()],
        creator: "张三".into(),
        status: TopicStatus::Offline,
        secrets: vec!["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".into(), "another secret".into()],
        keep_dead: Duration::from_secs(3600),
        ..topic("full")
    }
}

fn names(registry: &mut dyn Registry) -> Vec<String> {
    let mut names: Vec<String> =
        registry.list().unwrap().topics.iter().map(|r| r.topic.name.to_string()).collect();
    names.sort();
    names
}

#[test]
fn a_topic_is_read_as_it_was_written_with_all_of_its_fields() {
    on_each(|settings| {
        let mut registry = open(settings).unwrap();
        assert_eq!(registry.list().unwrap().topics, []);
        let revision = registry.put(&full(), Expected::Absent).unwrap();
        registry.put(&topic("plain"), Expected::Any).unwrap();
        let read = open(settings).unwrap().get(&name("full")).unwrap().unwrap();
        assert_eq!((read.topic, read.revision), (full(), revision));
        assert_eq!(names(registry.as_mut()), ["full", "plain"]);
        let listing = registry.list().unwrap();
        assert!(listing.unusable.is_empty());
        assert_eq!(listing.revision, registry.revision().unwrap());
        assert_eq!(registry.get(&name("other")).unwrap(), None);
        let wrong = Topic { callback: "nowhere".into(), ..topic("wrong") };
        let refused = registry.put(&wrong, Expected::Any).unwrap_err();
        assert!(matches!(&refused, RegistryError::InvalidTopic(u) if u.field == "callback"), "{refused}");
        assert_eq!(names(registry.as_mut()), ["full", "plain"]);
    });
}

#[test]
fn the_revision_changes_with_each_change_and_with_nothing_else() {
    on_each(|settings| {
        let (mut writer, mut reader) = (open(settings).unwrap(), open(settings).unwrap());
        let mut seen = Vec::new();
        let mut look = |what: &str, changed: bool| {
            let revision = reader.revision().unwrap();
            assert_eq!(revision, reader.revision().unwrap(), "{what}");
            assert_eq!(!seen.contains(&revision), changed, "{what}");
            seen.push(revision);
        };
        look("the beginning", true);
        writer.put(&topic("a"), Expected::Any).unwrap();
        look("a new topic", true);
        writer.put(&Topic { title: "x".into(), ..topic("a") }, Expected::Any).unwrap();
        look("a changed one", true);
        writer.put(&Topic { rate: Some(Rate::per_second(3)), ..topic("a") }, Expected::Any).unwrap();
        look("a changed field that PHP does not have", true);
        writer.set_status(&name("a"), TopicStatus::Offline).unwrap();
        look("a status", true);
        writer.get(&name("a")).unwrap();
        writer.put(&topic("a"), Expected::Absent).unwrap_err();
        look("nothing", false);
        writer.put(&topic("b"), Expected::Any).unwrap();
        look("another topic", true);
        writer.delete(&name("a"), Expected::Any).unwrap();
        look("a deleted one", true);
    });
}

/// Returns a token with this name. All bytes of its secret are `random`.
fn token(n: &str, random: u8) -> Token {
    Token {
        name: TokenName::new(n).unwrap(),
        proof: TokenCredential::Secret(TokenSecret::new([random; 32]).digest()),
        scopes: vec![
            Scope::Read(ScopeTopics::All),
            "produce:orders".parse().unwrap(),
            "consume:*".parse().unwrap(),
        ],
        created_ms: 1_796_140_250_000,
        expires_ms: Some(1_796_140_250_001),
        creator: "运维".into(),
        add_rate: None,
    }
}

#[test]
fn a_token_is_read_as_written_and_each_change_is_a_new_revision() {
    on_each(|settings| {
        let (mut registry, mut reader) = (open(settings).unwrap(), open(settings).unwrap());
        let mut seen = vec![registry.revision().unwrap()];
        let mut changed = |what: &str| {
            let revision = reader.revision().unwrap();
            assert!(!seen.contains(&revision), "{what}");
            assert_eq!(revision, reader.list().unwrap().revision, "{what}");
            seen.push(revision);
        };
        assert_eq!(registry.tokens().unwrap(), []);
        registry.put_token(&token("ops", 1)).unwrap();
        changed("a token");
        let plain =
            Token { scopes: vec![Scope::Admin], expires_ms: None, creator: "".into(), ..token("Ops", 2) };
        registry.put_token(&plain).unwrap();
        changed("another one");
        assert_eq!(registry.tokens().unwrap(), [plain.clone(), token("ops", 1)]);
        let mut listed = registry.list().unwrap().tokens;
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(listed, [plain, token("ops", 1)]);
        assert_eq!(names(registry.as_mut()), [] as [String; 0]);

        let taken = registry.put_token(&token("ops", 3)).unwrap_err();
        assert!(matches!(&taken, RegistryError::TokenExists(n) if n.as_str() == "ops"), "{taken}");
        assert_eq!(registry.tokens().unwrap()[1].proof, token("ops", 1).proof);
        registry.delete_token(&TokenName::new("ops").unwrap()).unwrap();
        changed("one that is gone");
        let gone = registry.delete_token(&TokenName::new("ops").unwrap()).unwrap_err();
        assert!(matches!(&gone, RegistryError::NoToken(_)), "{gone}");
        registry.put_token(&token("ops", 3)).unwrap();
        changed("one of a name that is free again");
    });
}

#[test]
fn a_new_account_replaces_the_old_one_and_leaves_tokens_alone() {
    on_each(|settings| {
        let mut registry = open(settings).unwrap();
        let account = |name: &str, password: &str| Token {
            name: TokenName::of_account(name).unwrap(),
            proof: TokenCredential::Password(StoredPassword::new(password, [5; 16]).unwrap()),
            scopes: vec![Scope::Admin],
            ..token(name, 0)
        };
        let first = account("ann", "the first password");
        registry.put_account(&first).unwrap();
        assert_eq!(registry.tokens().unwrap(), [first]);
        let before = registry.revision().unwrap();
        let second =
            Token { scopes: vec![Scope::Read(ScopeTopics::All)], ..account("ann", "the second password") };
        registry.put_account(&second).unwrap();
        assert_ne!(registry.revision().unwrap(), before);
        assert_eq!(registry.tokens().unwrap(), std::slice::from_ref(&second));
        // To end the sessions of an account, the registry changes the stored time at which the password was set.
        let before = registry.revision().unwrap();
        registry.end_sessions(&second.name).unwrap();
        assert_ne!(registry.revision().unwrap(), before);
        let ended = Token { created_ms: second.created_ms + 1, ..second.clone() };
        assert_eq!(registry.tokens().unwrap(), [ended]);
        registry.end_sessions(&TokenName::of_account("nobody").unwrap()).unwrap_err();
        registry.put_token(&token("ann", 1)).unwrap();
        registry.put_account(&account("shop", "a third password")).unwrap();
        let kept: Vec<String> = registry.tokens().unwrap().iter().map(|token| token.name.stored()).collect();
        assert_eq!(kept, ["ann", "@ann", "@shop"]);
        registry.delete_token(&second.name).unwrap();
        registry.delete_token(&TokenName::new("shop").unwrap()).unwrap_err();
        let kept: Vec<String> = registry.tokens().unwrap().iter().map(|token| token.name.stored()).collect();
        assert_eq!(kept, ["ann", "@shop"]);
    });
}

#[test]
fn a_copy_has_all_and_replaces_what_differs_only_if_asked() {
    on_each(|settings| {
        let dir = tempfile::tempdir().unwrap();
        let file = settings::RegistrySettings::Sqlite { path: dir.path().join("a.db") };
        let there = |settings: &_| registry::open_existing(settings).unwrap();
        let mut source = open(settings).unwrap();
        source.put(&full(), Expected::Any).unwrap();
        source.put(&topic("both"), Expected::Any).unwrap();
        source.put_token(&token("shop", 1)).unwrap();
        let ann = TokenName::of_account("ann").unwrap();
        let proof = TokenCredential::Password(StoredPassword::new("a password", [5; 16]).unwrap());
        source.put_account(&Token { name: ann, proof, ..token("ann", 2) }).unwrap();
        assert!(there(settings).is_some() && there(&file).is_none());
        let mut other = open(&file).unwrap();
        assert!(there(&file).is_some());
        let own = Topic { title: "my own".into(), ..topic("both") };
        other.put(&own, Expected::Any).unwrap();
        other.put_token(&token("shop", 3)).unwrap();
        other.put_token(&token("own", 4)).unwrap();
        // If a topic or token differs in the two registries, the copy is refused, and nothing is copied.
        let refused = registry::copy(source.as_mut(), other.as_mut(), false).unwrap();
        assert_eq!(refused.different, ["topic both", "token shop"]);
        assert_eq!((refused.topics, refused.tokens, refused.accounts), (0, 0, 0));
        assert_eq!(names(other.as_mut()), ["both"]);
        assert_eq!(other.tokens().unwrap(), [token("own", 4), token("shop", 3)]);
        let copied = registry::copy(source.as_mut(), other.as_mut(), true).unwrap();
        assert_eq!((copied.topics, copied.tokens, copied.accounts), (2, 1, 1));
        assert_eq!(copied.only_there, ["token own"]);
        for topic in [full(), topic("both")] {
            assert_eq!(other.get(&topic.name).unwrap().unwrap().topic, topic);
        }
        other.delete_token(&TokenName::new("own").unwrap()).unwrap();
        assert_eq!(other.tokens().unwrap(), source.tokens().unwrap());
        // A second copy, and a copy in the other direction, have nothing left to do.
        let again = registry::copy(source.as_mut(), other.as_mut(), false).unwrap();
        assert_eq!(again, CopySummary::default());
        assert_eq!(registry::copy(other.as_mut(), source.as_mut(), false).unwrap(), again);
        // Some entries of the first registry are deleted. A copy in the other direction brings them back.
        source.delete(&name("full"), Expected::Any).unwrap();
        source.delete_token(&TokenName::new("shop").unwrap()).unwrap();
        let copied = registry::copy(other.as_mut(), source.as_mut(), false).unwrap();
        assert_eq!((copied.topics, copied.tokens), (1, 1));
        assert_eq!(source.get(&name("full")).unwrap().unwrap().topic, full());
    });
}

#[test]
fn the_audit_log_is_paged_from_its_end_and_drops_old_entries() {
    on_each(|settings| {
        let mut registry = open(settings).unwrap();
        let before = registry.revision().unwrap();
        let kept_ms = audit::KEPT.as_millis() as i64;
        let entry = |at_ms: i64, target: &str| AuditEntry {
            at_ms,
            who: "account 安".into(),
            action: "dead.purge".into(),
            target: target.into(),
            detail: "全部".into(),
            jobs: (target != "b").then_some(u64::from(u32::MAX) * 9),
        };
        for (at_ms, target) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
            registry.note(&entry(at_ms, target)).unwrap();
        }
        let targets =
            |page: &[(u64, AuditEntry)]| page.iter().map(|(_, e)| e.target.clone()).collect::<String>();
        let page = registry.audit(None, 3).unwrap();
        assert_eq!((page[0].1.clone(), targets(&page)), (entry(4, "d"), "dcb".to_owned()));
        assert_eq!(page[2].1, entry(2, "b"));
        assert_eq!(targets(&registry.audit(Some(page[2].0), 3).unwrap()), "a");
        registry.note(&entry(kept_ms + 3, &"x".repeat(1000))).unwrap();
        let page = registry.audit(None, 9).unwrap();
        assert_eq!((page.len(), page[0].1.target.chars().count()), (3, audit::LONGEST));
        assert_eq!(targets(&page[1..]), "dc");
        // An entry of a host whose clock is far ahead does not empty the log.
        (0..12).for_each(|_| registry.note(&entry(kept_ms + 3, "e")).unwrap());
        registry.note(&entry(9 * kept_ms, "f")).unwrap();
        assert_eq!(targets(&registry.audit(None, 9).unwrap()), "feeeee");
        assert_eq!(registry.revision().unwrap(), before, "no process has to read it again");
    });
}

#[test]
fn of_many_that_make_a_token_of_one_name_one_does() {
    on_each(|settings| {
        let barrier = Barrier::new(4);
        let made = std::thread::scope(|scope| {
            let each = (0..4).map(|n| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut registry = open(settings).unwrap();
                    barrier.wait();
                    match registry.put_token(&token("ops", n)) {
                        Ok(()) => 1,
                        Err(RegistryError::TokenExists(_)) => 0,
                        Err(e) => panic!("{e}"),
                    }
                })
            });
            each.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).sum::<u32>()
        });
        assert_eq!((made, open(settings).unwrap().tokens().unwrap().len()), (1, 1));
    });
}

#[test]
fn a_row_that_is_no_token_lets_nobody_in_and_is_told() {
    on_each(|settings| {
        let mut registry = open(settings).unwrap();
        registry.put_token(&token("good", 1)).unwrap();
        let digest = String::from(token("x", 2).proof);
        for (name, digest, scopes) in
            [("a b", &*digest, "read"), ("later", &*digest, "read fly:*"), ("broken", "123", "admin")]
        {
            let values = format!("VALUES ('{name}', '{digest}', '{scopes}', 1)");
            match settings {
                settings::RegistrySettings::Sqlite { path } => {
                    let insert = format!("INSERT INTO token (name, digest, scopes, created_ms) {values}");
                    rusqlite::Connection::open(path).unwrap().execute(&insert, ()).unwrap();
                }
                settings::RegistrySettings::Mysql(server) => {
                    let insert = format!("INSERT INTO dq_token (name, digest, scopes, created_ms) {values}");
                    mysql::Conn::new(mysql::Opts::from_url(&server.url).unwrap())
                        .unwrap()
                        .query_drop(insert)
                        .unwrap();
                }
                settings::RegistrySettings::Store(nodes) => {
                    let row = json!({"name": name, "digest": digest, "scopes": scopes, "created_ms": 1,
                        "expires_ms": null, "creator": ""});
                    let field = format!("token:{name}");
                    redis_command(nodes, &["HSET", "dq:{a.0}:registry", &field, &row.to_string()]);
                }
            }
        }
        let listing = registry.list().unwrap();
        assert_eq!(listing.tokens, [token("good", 1)]);
        let problems: Vec<String> = listing.unusable.iter().map(ToString::to_string).collect();
        for part in ["token \"a b\": ", "token \"later\": scope \"fly:*\"", "token \"broken\": digest"] {
            assert!(problems.iter().any(|t| t.contains(part)), "{part}: {problems:?}");
        }
    });
}

#[test]
fn a_change_of_what_somebody_else_has_changed_is_refused() {
    on_each(|settings| {
        let (mut a, mut b) = (open(settings).unwrap(), open(settings).unwrap());
        let first = a.put(&topic("t"), Expected::Absent).unwrap();
        let second = b.put(&Topic { title: "b".into(), ..topic("t") }, Expected::At(first)).unwrap();
        assert_ne!(first, second);
        let late = a.put(&Topic { title: "a".into(), ..topic("t") }, Expected::At(first));
        assert!(matches!(late, Err(RegistryError::Changed(_))), "{late:?}");
        assert!(matches!(a.delete(&name("t"), Expected::At(first)), Err(RegistryError::Changed(_))));
        assert!(matches!(a.put(&topic("t"), Expected::Absent), Err(RegistryError::Exists(_))));
        assert_eq!(a.get(&name("t")).unwrap().unwrap().topic.title, "b");
        a.delete(&name("t"), Expected::At(second)).unwrap();
        assert!(matches!(b.put(&topic("t"), Expected::At(second)), Err(RegistryError::NotFound(_))));
        assert!(matches!(b.delete(&name("t"), Expected::Any), Err(RegistryError::NotFound(_))));
        assert!(matches!(b.set_status(&name("t"), TopicStatus::Online), Err(RegistryError::NotFound(_))));
    });
}

#[test]
fn of_many_that_change_a_topic_at_once_each_one_counts() {
    on_each(|settings| {
        let (writers, each) = (4, 10);
        open(settings).unwrap().put(&topic("t"), Expected::Absent).unwrap();
        let created = std::sync::atomic::AtomicUsize::new(0);
        let (created, barrier) = (&created, &Barrier::new(writers));
        std::thread::scope(|scope| {
            for _ in 0..writers {
                scope.spawn(move || {
                    let mut registry = open(settings).unwrap();
                    barrier.wait();
                    if registry.put(&topic("new"), Expected::Absent).is_ok() {
                        created.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    for _ in 0..each {
                        loop {
                            let mut read = registry.get(&name("t")).unwrap().unwrap();
                            read.topic.max_attempts += 1;
                            match registry.put(&read.topic, Expected::At(read.revision)) {
                                Ok(_) => break,
                                Err(RegistryError::Changed(_)) => {}
                                Err(e) => panic!("{e}"),
                            }
                        }
                    }
                });
            }
        });
        let read = open(settings).unwrap().get(&name("t")).unwrap().unwrap();
        assert_eq!(read.topic.max_attempts as usize, 10 + writers * each);
        assert_eq!(created.load(std::sync::atomic::Ordering::Relaxed), 1, "one of them was the first");
        assert_eq!(names(open(settings).unwrap().as_mut()), ["new", "t"]);
    });
}

#[test]
fn eight_that_migrate_at_once_do_so_once() {
    for _ in 0..3 {
        on_each(|settings| {
            let barrier = Barrier::new(8);
            let revisions: Vec<Revision> = std::thread::scope(|scope| {
                let open_one = || {
                    barrier.wait();
                    open(settings).unwrap().revision().unwrap()
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(open_one)).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(revisions.iter().map(|r| r.0).collect::<HashSet<_>>().len(), 1);
        });
    }
}

#[test]
fn what_a_later_release_has_written_beside_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.db");
    let mut registry = open(&settings::RegistrySettings::Sqlite { path: path.clone() }).unwrap();
    registry.put(&topic("t"), Expected::Absent).unwrap();
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute("UPDATE topic SET spec = json_set(spec, '$.of_later', 5)", []).unwrap();
    registry.put(&Topic { title: "x".into(), ..topic("t") }, Expected::Any).unwrap();
    let kept: i64 = db.query_row("SELECT spec ->> '$.of_later' FROM topic", [], |r| r.get(0)).unwrap();
    assert_eq!(kept, 5);

    let database = MariaDb::shared().database();
    let mut registry = open(&database.settings()).unwrap();
    registry.put(&topic("t"), Expected::Absent).unwrap();
    let mut console = database.console();
    console.query_drop("UPDATE dq_topic SET dq_spec = JSON_SET(dq_spec, '$.of_later', 5)").unwrap();
    registry.put(&Topic { title: "x".into(), ..topic("t") }, Expected::Any).unwrap();
    let kept: Option<i64> =
        console.query_first("SELECT JSON_VALUE(dq_spec, '$.of_later') FROM dq_topic").unwrap();
    assert_eq!(kept, Some(5));
}

#[test]
fn a_topic_that_is_wrong_is_not_written_and_a_pull_topic_is() {
    on_each(|settings| {
        let mut registry = open(settings).unwrap();
        let wrong = Topic { method: Method::Other("PUT".into()), ..topic("t") };
        let refused = registry.put(&wrong, Expected::Any);
        assert!(
            matches!(&refused, Err(RegistryError::InvalidTopic(unfit)) if unfit.field == "method"),
            "{refused:?}"
        );
        assert!(registry.get(&name("t")).unwrap().is_none());
        let ttr = Duration::from_secs(7);
        let pulled = Topic { mode: DeliveryMode::Pull, callback: String::new(), ttr, ..topic("t") };
        registry.put(&pulled, Expected::Absent).unwrap();
        let read = registry.get(&name("t")).unwrap().unwrap().topic;
        assert_eq!((read.mode, read.ttr, read.callback.as_str()), (DeliveryMode::Pull, ttr, ""));
        assert_eq!(read.problem(), None);
    });
}

#[test]
fn a_row_of_sqlite_that_is_no_topic_is_told_and_harms_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.db");
    let mut registry = open(&settings::RegistrySettings::Sqlite { path: path.clone() }).unwrap();
    registry.put(&topic("good"), Expected::Absent).unwrap();
    let db = rusqlite::Connection::open(&path).unwrap();
    for (n, spec) in
        [("bad name", "{}"), ("no-url", "{}"), ("odd", "{\"payload\":\"smoke signals\"}"), ("list", "[]")]
    {
        db.execute("INSERT INTO topic (name, spec) VALUES (?1, ?2)", (n, spec)).unwrap();
    }
    let listing = registry.list().unwrap();
    assert_eq!(names(registry.as_mut()), ["good"]);
    let problems: Vec<String> = listing.unusable.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 4, "{problems:?}");
    for hint in ["\"bad name\"", "callback", "smoke signals"] {
        assert!(problems.iter().any(|t| t.contains(hint)), "{hint}: {problems:?}");
    }
    assert!(matches!(registry.get(&name("no-url")), Err(RegistryError::Unusable(_))));
    // An unusable topic can be repaired or removed.
    registry.put(&topic("no-url"), Expected::Any).unwrap();
    registry.delete(&name("odd"), Expected::Any).unwrap();
    assert_eq!(names(registry.as_mut()), ["good", "no-url"]);
}

#[test]
fn a_file_is_private_and_takes_no_changes_once_it_is_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.db");
    let settings = settings::RegistrySettings::Sqlite { path: path.clone() };
    let mut registry = open(&settings).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::rename(&path, dir.path().join("old.db")).unwrap();
    assert!(matches!(registry.put(&topic("t"), Expected::Any), Err(RegistryError::Away(_))));
    let mut other = open(&settings).unwrap();
    assert!(matches!(registry.revision(), Err(RegistryError::Away(_))));
    other.put(&topic("t"), Expected::Absent).unwrap();
}

fn load(database: &Database, dumps: &[&str]) {
    let mut console = database.console();
    for dump in dumps {
        let text = std::fs::read_to_string(Path::new("tests/php").join(dump)).unwrap();
        for statement in text.split(";\n") {
            console.query_drop(statement).unwrap_or_else(|e| {
                assert!(statement.trim().is_empty(), "{statement}: {e}");
            });
        }
    }
}

/// A new topic, as the PHP daemon's console inserts it.
const CONSOLE_INSERT: &str = "INSERT INTO dq_topic (t_name, delay, callback, timeout, email, topic, re_notify_flag, createor, \
    status, method) VALUES ('新', '5', 'http://127.0.0.1:9000/new', '2000', 'c@example.com', 'by_console', '', 'wang', '1', 'GET')";

#[test]
fn a_php_database_is_taken_over_and_still_serves_its_console() {
    for dumps in [&["old.sql"][..], &["old.sql", "new.sql"]] {
        let database = MariaDb::shared().database_of("CHARACTER SET utf8");
        load(&database, dumps);
        let mut registry = open(&database.settings()).unwrap();
        let listing = registry.list().unwrap();
        assert_eq!(names(registry.as_mut()), ["order_close", "order_openvip_checker"]);
        let problems: Vec<String> = listing.unusable.iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), 3, "{problems:?}");
        for hint in [
            "row 3, topic \"nowhere\": callback",
            "row 4, topic \"order_close\": row 1",
            "row 5, topic \"order close\"",
        ] {
            assert!(problems.iter().any(|t| t.contains(hint)), "{hint}: {problems:?}");
        }
        let close = registry.get(&name("order_close")).unwrap().unwrap();
        let as_php_does = |n: &str| Topic {
            payload: Payload::Form,
            success: Success::NonEmpty,
            retry: Retry::TwoNPlusOne,
            max_attempts: 12,
            ..topic(n)
        };
        let priority = if dumps.len() == 2 { Priority::High } else { Priority::Normal };
        let wanted = Topic {
            title: "关闭订单".into(),
            callback: "http://127.0.0.1:9000/close".into(),
            delay: Duration::from_secs(1800),
            timeout: Duration::from_secs(3),
            alert: vec!["a@example.com".into(), "b@example.com".into()],
            re_notify_flag: "{res.code} != 0".into(),
            creator: "张三".into(),
            priority,
            ..as_php_does("order_close")
        };
        assert_eq!(close.topic, wanted);
        let vip = registry.get(&name("order_openvip_checker")).unwrap().unwrap();
        let wanted = Topic {
            title: "vip".into(),
            callback: "http://127.0.0.1:9000/vip?k=1".into(),
            method: Method::Get,
            delay: Duration::from_secs(60),
            timeout: Duration::from_millis(500),
            creator: "li".into(),
            status: TopicStatus::Offline,
            ..as_php_does("order_openvip_checker")
        };
        assert_eq!(vip.topic, wanted, "what the schema says of a flag is no flag");

        // The registry also reads the other tables.
        let nodes = registry.php_nodes().unwrap();
        assert_eq!(nodes.iter().map(|n| (n.id, n.name.as_str())).collect::<Vec<_>>(), [(1, "一"), (2, "二")]);
        assert_eq!(nodes[0].content, "10.0.0.1:6379:pw,10.0.0.9:6379:pw");
        let alert = registry.php_alert().unwrap().unwrap();
        assert_eq!(
            (alert.host.as_str(), alert.port, alert.password.as_str()),
            ("smtp.example.com", 465, "s3cret")
        );

        // The console inserts, changes and deletes as before, and each change is noticed.
        let mut console = database.console();
        let mut revision = registry.revision().unwrap();
        let mut changed = |registry: &mut dyn Registry| {
            let before = std::mem::replace(&mut revision, registry.revision().unwrap());
            assert_ne!(before, revision);
        };
        console.query_drop(CONSOLE_INSERT).unwrap();
        changed(registry.as_mut());
        let new = registry.get(&name("by_console")).unwrap().unwrap().topic;
        assert_eq!(
            (new.payload, new.delay, new.title.as_str()),
            (Payload::Form, Duration::from_secs(5), "新")
        );
        assert_eq!(new.priority, Priority::Normal);
        console.query_drop("UPDATE dq_topic SET status = 2 WHERE topic = 'by_console'").unwrap();
        changed(registry.as_mut());
        assert_eq!(registry.get(&name("by_console")).unwrap().unwrap().topic.status, TopicStatus::Offline);
        // If its flag is invalid, the topic is held, and the listing reports the topic.
        console
            .query_drop(
                "UPDATE dq_topic SET re_notify_flag = 'system({res.code})' WHERE topic = 'by_console'",
            )
            .unwrap();
        changed(registry.as_mut());
        let held = |registry: &mut dyn Registry| {
            let listing = registry.list().unwrap();
            let topic = listing.topics.into_iter().find(|t| t.topic.name.as_str() == "by_console");
            topic.unwrap().topic.held()
        };
        let about = "re_notify_flag: \"system({res.code})\" is no expression: at character 1";
        assert!(held(registry.as_mut()).unwrap().contains(about));
        let set = "UPDATE dq_topic SET re_notify_flag = '', method = 'PUT' WHERE topic = 'by_console'";
        console.query_drop(set).unwrap();
        changed(registry.as_mut());
        assert!(held(registry.as_mut()).unwrap().contains("method: \"PUT\""));
        console.query_drop("UPDATE dq_topic SET method = 'get' WHERE topic = 'by_console'").unwrap();
        changed(registry.as_mut());
        assert_eq!(held(registry.as_mut()), None);
        console
            .query_drop("INSERT INTO dq_stat (u_key, num, create_time) VALUES ('1:total_notfiy', 1, NOW())")
            .unwrap();
        assert_eq!(revision, registry.revision().unwrap());

        // Settings of dq that the console does not know survive changes by the console.
        let mine = Topic { name: name("full2"), ..full() };
        let written = registry.put(&mine, Expected::Absent).unwrap();
        console.query_drop("UPDATE dq_topic SET t_name = 'x', delay = 2 WHERE topic = 'full2'").unwrap();
        let read = registry.get(&name("full2")).unwrap().unwrap();
        assert_eq!(
            read.topic,
            Topic { title: "x".into(), delay: Duration::from_millis(1500), ..mine.clone() }
        );
        let late = registry.put(&mine, Expected::At(written));
        assert!(matches!(late, Err(RegistryError::Changed(_))), "the console's change counts: {late:?}");
        console.query_drop("UPDATE dq_topic SET delay = 9 WHERE topic = 'full2'").unwrap();
        assert_eq!(registry.get(&name("full2")).unwrap().unwrap().topic.delay, Duration::from_secs(9));
        let shown: Option<(String, i64, String, i64)> = console
            .query_first("SELECT email, status, method, priority FROM dq_topic WHERE topic = 'full2'")
            .unwrap();
        assert_eq!(shown, Some(("a@example.com,b@example.com".into(), 2, "POST".into(), 1)));

        // A duplicate row of a topic does not appear when the first row is removed.
        registry.delete(&name("order_close"), Expected::Any).unwrap();
        assert!(registry.get(&name("order_close")).unwrap().is_none());
        drop(registry);
        open(&database.settings()).unwrap();
    }
}

#[test]
fn a_php_row_keeps_the_limit_of_the_configuration() {
    let database = MariaDb::shared().database_of("CHARACTER SET utf8");
    load(&database, &["old.sql"]);
    let with = |limit: Option<u32>| {
        let settings::RegistrySettings::Mysql(server) = database.settings() else { unreachable!() };
        open(&settings::RegistrySettings::Mysql(settings::MysqlServer { max_attempts: limit, ..server }))
            .unwrap()
    };
    let limit =
        |registry: &mut dyn Registry| registry.get(&name("order_close")).unwrap().unwrap().topic.max_attempts;
    assert_eq!(limit(with(None).as_mut()), 12, "as in the PHP daemon");
    assert_eq!(limit(with(Some(5)).as_mut()), 5);
    // A change of another setting does not write the limit into the row.
    let mut registry = with(None);
    let mut topic = registry.get(&name("order_close")).unwrap().unwrap().topic;
    topic.timeout = Duration::from_secs(7);
    registry.put(&topic, Expected::Any).unwrap();
    assert_eq!([limit(with(None).as_mut()), limit(with(Some(5)).as_mut())], [12, 5]);
    topic.max_attempts = 3;
    registry.put(&topic, Expected::Any).unwrap();
    topic.max_attempts = 12;
    registry.put(&topic, Expected::Any).unwrap();
    assert_eq!([limit(with(None).as_mut()), limit(with(Some(5)).as_mut())], [12, 12]);
}

#[test]
fn a_timeout_of_the_console_is_usable_and_stays() {
    let database = MariaDb::shared().database_of("CHARACTER SET utf8");
    load(&database, &["old.sql"]);
    let mut registry = open(&database.settings()).unwrap();
    let mut console = database.console();
    for (column, ms) in [(0, 3_600_000), (5, 10), (9_000_000, 3_600_000), (-1, 3000), (10, 10), (3000, 3000)]
    {
        let set = format!("UPDATE dq_topic SET timeout = {column} WHERE topic = 'order_close'");
        console.query_drop(set).unwrap();
        let mut topic = registry.get(&name("order_close")).unwrap().unwrap().topic;
        assert_eq!(topic.timeout, Duration::from_millis(ms), "{column}");
        topic.title = "changed".into();
        registry.put(&topic, Expected::Any).unwrap();
        let read = "SELECT timeout FROM dq_topic WHERE topic = 'order_close' ORDER BY id LIMIT 1";
        assert_eq!(console.query_first::<i64, _>(read).unwrap(), Some(column), "it means the same");
    }
    let mut topic = registry.get(&name("order_close")).unwrap().unwrap().topic;
    topic.timeout = Duration::from_millis(700);
    registry.put(&topic, Expected::Any).unwrap();
    assert_eq!(registry.get(&name("order_close")).unwrap().unwrap().topic.timeout, topic.timeout);
}

#[test]
fn the_document_names_every_table_of_mysql() {
    let text = std::fs::read_to_string("docs/REGISTRY.md").unwrap();
    let mut tables = Vec::new();
    for entry in std::fs::read_dir("migrations/registry/mysql").unwrap() {
        let sql = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let made = sql.split("CREATE TABLE IF NOT EXISTS ").skip(1);
        tables.extend(made.map(|rest| rest.split([' ', '(']).next().unwrap().to_owned()));
    }
    assert!(tables.len() > 8, "{tables:?}");
    for table in tables {
        let row = text.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{table}`")));
        assert!(row.is_some(), "{table} is not in the table of docs/REGISTRY.md");
    }
}

/// The statement of docs/REGISTRY.md that repairs a column.
fn repair(table: &str, column: &str) -> String {
    let text = std::fs::read_to_string("docs/REGISTRY.md").unwrap();
    let start = text.find("UPDATE dq_topic SET t_name").expect("the document has the statement");
    let (statement, _) = text[start..].split_once(';').unwrap();
    statement.replace("dq_topic", table).replace("t_name", column)
}

#[test]
fn texts_that_came_over_latin1_connections_are_read_right() {
    let database = MariaDb::shared().database_of("CHARACTER SET utf8");
    load(&database, &["old.sql"]);
    // This is like a connection without `SET NAMES`, on a server with the default latin1.
    let mut php = database.console();
    php.query_drop("SET NAMES latin1").unwrap();
    php.query_drop(
        CONSOLE_INSERT
            .replace("'新'", "'新名杏が'")
            .replace("'wang'", "'张三 – é'")
            .replace("''", "'重试标记'"),
    )
    .unwrap();
    php.query_drop("UPDATE dq_redis SET t_name = '三' WHERE id = 1").unwrap();
    php.query_drop("UPDATE dq_alert SET user = 'dq@例.com', ext = '{\"redis\":\"a@例.com\"}'").unwrap();
    let over = |connection: &mut mysql::Conn| -> (String, String, String, String) {
        let query = "SELECT t_name, createor, email, re_notify_flag FROM dq_topic WHERE topic = 'by_console'";
        let row: (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>) = connection.query_first(query).unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(row.0), text(row.1), text(row.2), text(row.3))
    };
    assert_ne!(over(&mut database.console()).0, "新名杏が", "the table has it encoded twice");

    let mut registry = open(&database.settings()).unwrap();
    let read = |registry: &mut dyn Registry| registry.get(&name("by_console")).unwrap().unwrap().topic;
    let mut topic = read(registry.as_mut());
    assert_eq!((topic.title.as_str(), topic.creator.as_str()), ("新名杏が", "张三 – é"));
    assert_eq!((topic.re_notify_flag.as_str(), topic.held()), ("", None), "the schema's default is no flag");
    assert_eq!(registry.php_nodes().unwrap()[0].name, "三");
    let alert = registry.php_alert().unwrap().unwrap();
    assert_eq!((alert.user.as_str(), alert.ext.contains("a@例.com")), ("dq@例.com", true));
    let close = registry.get(&name("order_close")).unwrap().unwrap().topic;
    assert_eq!(
        (close.title.as_str(), close.creator.as_str()),
        ("关闭订单", "张三"),
        "others are as they were"
    );

    // The PHP console reads over latin1 what dq has written, also in a column that had only ASCII characters.
    topic.title = "新的名杏が".into();
    topic.alert = vec!["王 <c@example.com>".into()];
    topic.re_notify_flag = "{res.msg} == '等'".into();
    registry.put(&topic, Expected::Any).unwrap();
    assert_eq!(read(registry.as_mut()), topic);
    let shown = ("新的名杏が", "张三 – é", "王 <c@example.com>", "{res.msg} == '等'");
    let shown = (shown.0.to_owned(), shown.1.to_owned(), shown.2.to_owned(), shown.3.to_owned());
    assert_eq!(over(&mut php), shown);
    // An encoded text has more characters, so this title is too long.
    topic.title = "中".repeat(400);
    assert!(
        matches!(registry.put(&topic, Expected::Any), Err(RegistryError::InvalidTopic(e)) if e.field == "title")
    );
    topic.title = "新的名杏が".into();

    // The repair changes only texts that are encoded twice. It may be repeated.
    let mut console = database.console();
    console.query_drop("SET SESSION sql_mode = ''").unwrap();
    console.query_drop("UPDATE dq_topic SET createor = 'Zoë' WHERE topic = 'order_openvip_checker'").unwrap();
    for _ in 0..2 {
        for column in ["t_name", "callback", "email", "re_notify_flag", "createor"] {
            console.query_drop(repair("dq_topic", column)).unwrap();
        }
        for (table, column) in [("dq_redis", "t_name"), ("dq_alert", "user"), ("dq_alert", "ext")] {
            console.query_drop(repair(table, column)).unwrap();
        }
        assert_eq!(over(&mut console), shown);
        assert_eq!(read(registry.as_mut()), topic);
        assert_eq!(registry.get(&name("order_close")).unwrap().unwrap().topic, close);
        let vip = registry.get(&name("order_openvip_checker")).unwrap().unwrap().topic;
        assert_eq!(vip.creator, "Zoë");
        assert_eq!(registry.php_nodes().unwrap()[0].name, "三");
        assert_eq!(registry.php_alert().unwrap().unwrap().ext, alert.ext);
    }
    topic.creator = "李四".into();
    registry.put(&topic, Expected::Any).unwrap();
    assert_eq!(over(&mut console).1, "李四", "it stays repaired");
}

#[test]
fn a_migration_that_died_half_way_is_finished_by_the_next_one() {
    let database = MariaDb::shared().database_of("CHARACTER SET utf8");
    load(&database, &["old.sql"]);
    let mut console = database.console();
    console.query_drop("ALTER TABLE dq_topic ADD COLUMN priority INT NOT NULL DEFAULT 2").unwrap();
    let mut registry = open(&database.settings()).unwrap();
    assert_eq!(names(registry.as_mut()), ["order_close", "order_openvip_checker"]);
    let columns: Option<u32> = console
        .query_first("SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'dq_topic'")
        .unwrap();
    assert_eq!(columns, Some(13));
    let history: Vec<i64> = console.query("SELECT version FROM dq_schema_history").unwrap();
    let files =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/registry/mysql")).unwrap().count();
    assert_eq!(history, (1..=files as i64).collect::<Vec<_>>());
}

#[test]
fn a_failed_statement_leaves_the_whole_migration_undone() {
    let database = MariaDb::shared().database();
    let mut console = database.console();
    // The first statements succeed: they create only the tables that are missing. Then the statement that alters
    // dq_topic fails, because dq_topic is a view.
    console.query_drop("CREATE TABLE rows_of_php (id INT, topic VARCHAR(255))").unwrap();
    console.query_drop("CREATE VIEW dq_topic AS SELECT * FROM rows_of_php").unwrap();
    let failed = open(&database.settings()).unwrap_err();
    assert!(failed.to_string().contains("VIEW") || failed.to_string().contains("BASE TABLE"), "{failed}");
    let history: Vec<i64> = console.query("SELECT version FROM dq_schema_history").unwrap();
    assert_eq!(history, [0_i64; 0]);
    console.query_drop("DROP VIEW dq_topic").unwrap();
    open(&database.settings()).unwrap();
}

#[test]
fn a_user_without_schema_rights_is_enough_for_current_tables() {
    let database = MariaDb::shared().database();
    let mut console = database.console();
    let user = format!("u{}", database.name);
    console.query_drop(format!("CREATE USER {user}@localhost IDENTIFIED BY 'pw'")).unwrap();
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {}.* TO {user}@localhost", database.name);
    console.query_drop(grant).unwrap();
    let settings::RegistrySettings::Mysql(mut server) = database.settings() else { panic!("it is MySQL") };
    server.url = server.url.replace("root@", &format!("{user}:pw@"));
    let settings = settings::RegistrySettings::Mysql(server);
    let refused = open(&settings).unwrap_err().to_string();
    assert!(refused.contains("CREATE command denied") && !refused.contains("pw@"), "{refused}");
    open(&database.settings()).unwrap();
    let mut registry = open(&settings).unwrap();
    let revision = registry.put(&topic("t"), Expected::Absent).unwrap();
    registry.delete(&name("t"), Expected::At(revision)).unwrap();
}

#[test]
fn names_that_mysql_takes_for_one_are_two() {
    let database = MariaDb::shared().database_of("CHARACTER SET utf8");
    let mut registry = open(&database.settings()).unwrap();
    registry.put(&topic("orders"), Expected::Absent).unwrap();
    registry.put(&topic("Orders"), Expected::Absent).unwrap();
    registry.delete(&name("orders"), Expected::Any).unwrap();
    assert_eq!(names(registry.as_mut()), ["Orders"]);
    let long = Topic { title: "x".repeat(1025), ..topic("long") };
    let refused = registry.put(&long, Expected::Absent).unwrap_err();
    assert!(
        matches!(&refused, RegistryError::InvalidTopic(u) if u.field == "title" && u.problem.contains("1024")),
        "{refused}"
    );
}

fn topic_sums(name: &str, written: u64, failed: u64) -> (MetricSubject, Sums) {
    (MetricSubject::Topic(name.into()), Sums { written, failed, delivered: written / 2, ..Sums::default() })
}

#[test]
fn what_pages_say_is_carried_once_whoever_carries_it_again() {
    on_each(|settings| {
        let (mut a, mut b) = (open(settings).unwrap(), open(settings).unwrap());
        let page = |page, sums: &[(MetricSubject, Sums)]| PageSums { page, sums: sums.to_vec() };
        let node = (MetricSubject::Node("r1".into()), Sums { written: 4, ..Sums::default() });
        let first =
            [page(1, &[topic_sums("t", 10, 1), node.clone()]), page(u64::MAX, &[topic_sums("t", 5, 0)])];
        assert_eq!(a.carry("2026-11-21", &first).unwrap(), 3);
        // A process that does not know that these sums were carried carries them again. Then two processes do this at
        // the same time, one of them with older sums.
        assert_eq!(b.carry("2026-11-21", &first).unwrap(), 0);
        let later = [page(1, &[topic_sums("t", 30, 3)])];
        std::thread::scope(|scope| {
            for (registry, pages) in [(&mut a, &later[..]), (&mut b, &first[..])] {
                scope.spawn(move || registry.carry("2026-11-22", pages).unwrap());
            }
        });
        a.carry("2026-11-22", &first).unwrap();
        let statistics = b.statistics("2026-11-21").unwrap();
        let (totals, days) = &statistics.0[&MetricSubject::Topic("t".into())];
        assert_eq!((totals.written, totals.failed, totals.delivered), (35, 3, 17));
        let written: Vec<_> = days.iter().map(|d| (d.day.as_str(), d.sums.written)).collect();
        assert_eq!(written, [("2026-11-21", 15), ("2026-11-22", 20)]);
        assert_eq!(statistics.0[&MetricSubject::Node("r1".into())].0.written, 4);
        let (_, days) = &b.statistics("2026-11-22").unwrap().0[&MetricSubject::Topic("t".into())];
        assert_eq!(days.len(), 1);
        // A page with another number is a new page. Its sums begin at 0.
        assert_eq!(a.carry("2026-11-22", &[page(2, &[topic_sums("t", 1, 0)])]).unwrap(), 1);
        assert_eq!(a.statistics("9").unwrap().0[&MetricSubject::Topic("t".into())].0.written, 36);
        // There are so many sums that they need several statements.
        let many: Vec<_> = (0..600).map(|n| topic_sums(&format!("t{n}"), n + 1, 0)).collect();
        assert_eq!(a.carry("2026-11-22", &[page(3, &many)]).unwrap(), 600);
        assert_eq!(b.statistics("9").unwrap().0[&MetricSubject::Topic("t599".into())].0.written, 600);
        // A sum that is too large stays at its maximum, and stops nothing.
        for (n, late_us) in [(4, i64::MAX as u64 - 5), (5, 7), (6, u64::MAX)] {
            let late = Sums { written: 1, late_us, ..Sums::default() };
            a.carry("2026-11-22", &[page(n, &[(MetricSubject::Topic("late".into()), late)])]).unwrap();
        }
        let late = b.statistics("9").unwrap().0[&MetricSubject::Topic("late".into())].0;
        assert!(late.written == 3 && late.late_us >= i64::MAX as u64, "{late:?}");
    });
}

#[test]
fn the_php_console_finds_its_numbers_where_it_looks_for_them() {
    let database = MariaDb::shared().database_of("CHARACTER SET utf8");
    load(&database, &["old.sql", "new.sql"]);
    let mut registry = open(&database.settings()).unwrap();
    let mut console = database.console();
    console.query_drop("INSERT INTO dq_stat (u_key, num) VALUES ('2:total_write', 2147483647)").unwrap();
    let all = Sums { written: 9, delivered: 5, failed: 2, deleted: 1, ..Sums::default() };
    let sums = vec![
        (MetricSubject::Topic("order_close".into()), all),
        (MetricSubject::Topic("order_openvip_checker".into()), all),
        (MetricSubject::Topic("only_in_the_file".into()), all),
        (MetricSubject::Node("一".into()), all),
        (MetricSubject::Node("embedded".into()), all),
    ];
    registry.carry("2026-11-21", &[PageSums { page: 7, sums: sums.clone() }]).unwrap();
    registry.carry("2026-11-21", &[PageSums { page: 7, sums }]).unwrap();
    let numbers: Vec<(String, i64)> =
        console.query("SELECT u_key, num FROM dq_stat WHERE u_key NOT LIKE '2:%' ORDER BY u_key").unwrap();
    let numbers: Vec<(&str, i64)> = numbers.iter().map(|(key, n)| (key.as_str(), *n)).collect();
    assert_eq!(
        numbers,
        [
            ("1:tdel:20261121", 1),
            ("1:te:20261121", 2),
            ("1:tn:20261121", 5),
            ("1:total_del", 1),
            ("1:total_notfiy", 5),
            // This number was 7 before.
            ("1:total_write", 16),
            ("1:tw:20261121", 9),
            ("redis:1:dq_del_total_nums", 1),
            ("redis:1:dq_notify_total_nums", 5),
            ("redis:1:dq_write_total_nums", 9),
        ]
    );
    let full: Option<i64> =
        console.query_first("SELECT num FROM dq_stat WHERE u_key = '2:total_write'").unwrap();
    assert_eq!(full, Some(2_147_483_656));
}

fn shift(n: &str) -> BulkRequest {
    let filter = BulkFilter { id_prefix: "安".into(), status: None, ..BulkFilter::default() };
    BulkRequest {
        topic: name(n),
        operation: BulkOperation::Shift { by_ms: -5 },
        filter,
        rate: 7,
        hides_answers: false,
    }
}

#[test]
fn an_operation_on_many_jobs_has_one_runner_at_a_time() {
    on_each(|settings| {
        let mut registry = open(settings).unwrap();
        let revision = registry.revision().unwrap();
        let claim = |runner, now_ms| BulkClaim { runner, now_ms, until_ms: now_ms + 10 };
        assert_eq!(registry.claim_bulk(&claim("a", 1)).unwrap(), None);
        let first = registry.begin_bulk(&shift("t"), "account 安", 100).unwrap().unwrap();
        let second = registry.begin_bulk(&shift("u"), "root", 101).unwrap().unwrap();
        assert!(second > first);
        let row = registry.claim_bulk(&claim("a", 1)).unwrap().unwrap();
        assert_eq!((row.number, &row.request, row.who.as_str()), (first, &shift("t"), "account 安"));
        assert_eq!((row.started_ms, row.is_stopping, row.ended), (100, false, None));
        // No other runner gets the operation before the claim ends.
        assert_eq!(registry.claim_bulk(&claim("b", 1)).unwrap().unwrap().number, second);
        assert_eq!(registry.claim_bulk(&claim("b", 10)).unwrap(), None);
        let plan = vec![
            PlannedJobChange("id \"安\"".into(), 5, 6, Some(7)),
            PlannedJobChange("x".into(), 1, 2, None),
        ];
        let counts = BulkCounts { looked_at: 4, changed: 3, skipped: 1, unclear: 0 };
        let progress = BulkProgress { plan, counts, cursor: Some("5.5".into()), ..BulkProgress::default() };
        let save = BulkSave {
            number: first,
            runner: "a",
            progress: &progress,
            until_ms: 20,
            gives_up: false,
            ended: None,
        };
        assert_eq!(registry.save_bulk(&save).unwrap(), Some(false));
        assert_eq!(registry.claim_bulk(&claim("c", 19)).unwrap().unwrap().number, second);
        let taken = registry.claim_bulk(&claim("c", 20)).unwrap().unwrap();
        assert_eq!((taken.number, taken.progress), (first, progress.clone()));
        // The runner that had the operation before can no longer save anything.
        let other = BulkProgress::default();
        assert_eq!(registry.save_bulk(&BulkSave { progress: &other, ..save }).unwrap(), None);
        assert_eq!(registry.bulk(first).unwrap().unwrap().progress, progress);
        // The operation is stopped, and ends with an entry in the audit log.
        assert!(registry.stop_bulk(first).unwrap() && !registry.stop_bulk(99).unwrap());
        let save = BulkSave { runner: "c", ..save };
        assert_eq!(registry.save_bulk(&save).unwrap(), Some(true));
        let given_up = BulkSave { gives_up: true, until_ms: 30, ..save };
        assert_eq!(registry.save_bulk(&given_up).unwrap(), Some(true));
        assert_eq!(registry.save_bulk(&save).unwrap(), None);
        assert_eq!(registry.claim_bulk(&claim("d", 28)).unwrap(), None);
        assert!(registry.claim_bulk(&claim("d", 30)).unwrap().unwrap().is_stopping);
        let entry = AuditEntry {
            at_ms: 1_000,
            who: "root".into(),
            action: "bulk.end".into(),
            target: "t".into(),
            detail: String::new(),
            jobs: Some(3),
        };
        let end = BulkSave { runner: "d", gives_up: true, ended: Some((BulkEnd::Stopped, &entry)), ..save };
        assert_eq!(registry.save_bulk(&end).unwrap(), Some(true));
        assert_eq!(registry.save_bulk(&end).unwrap(), None, "it has ended, and has one entry");
        assert_eq!(registry.audit(None, 9).unwrap().len(), 1);
        assert_eq!(registry.bulk(first).unwrap().unwrap().ended, Some((BulkEnd::Stopped, 1_000)));
        assert!(!registry.stop_bulk(first).unwrap());
        let numbers =
            |rows: Vec<StoredBulkOperation>| rows.into_iter().map(|row| row.number).collect::<Vec<_>>();
        assert_eq!(numbers(registry.bulks(None, 9).unwrap()), [second, first]);
        assert_eq!(numbers(registry.bulks(Some(second), 9).unwrap()), [first]);
        // There is a limit for the number of running operations.
        for _ in 1..RUNNING_MAX {
            registry.begin_bulk(&shift("v"), "", 1).unwrap().unwrap();
        }
        assert_eq!(registry.begin_bulk(&shift("v"), "", 1).unwrap(), None);
        assert_eq!(registry.revision().unwrap(), revision, "no process has to read it again");
    });
}

//! What `dq import php-dq` checks before it begins: whether a PHP daemon runs, and what the registry says.

use std::path::Path;

use crate::support::mariadb::{Database, MariaDb};
use crate::support::php::{Php, PhpDaemon, Target, YEAR_2033, all, connection, import, nameless};
use crate::support::redis::RedisServer;
use mysql::prelude::Queryable;
use serde_json::Value;

fn texts(json: &Value, name: &str) -> Vec<String> {
    let texts = json[name].as_array().unwrap_or_else(|| panic!("{name} of {json}"));
    texts.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn nothing_is_taken_while_the_php_daemon_runs() {
    let (php, target) = (Php::start(), Target::embedded());
    for n in 0..300 {
        php.waits(&format!("orders:{n}"), "1", YEAR_2033);
    }
    let before = all(&php.server);
    let daemon = PhpDaemon::start(&php, 2);
    let output = target.import(&php, &[]);
    assert_eq!(output.code, 1, "{}", output.out);
    for part in ["PHP daemon seems to run", "somebody used dq_bucket_", "last command was zrange", "--anyway"]
    {
        assert!(
            output.err.contains(part) || output.out.contains(part),
            "{part}: {}{}",
            output.out,
            output.err
        );
    }
    assert!(!target.has_begun() && all(&php.server) == before, "nothing was begun");

    let output = target.import(&php, &["--dry-run"]);
    output.counts(&[("jobs", 300), ("waiting", 300), ("taken", 300)]);
    assert_eq!((output.code, texts(&output.json(), "running").len()), (0, 2), "{}", output.out);
    let output = import(&target.config(), &["--from", &php.url(), "--dry-run"]);
    assert!(output.out.contains("will refuse to begin"), "{}", output.out);

    let output = target.import(&php, &["--anyway"]);
    output.counts(&[("jobs", 300), ("waiting", 300), ("taken", 300)]);
    assert_eq!(texts(&output.json(), "running").len(), 2, "{}", output.out);

    drop(daemon);
    let output = target.import(&php, &[]);
    output.counts(&[("jobs", 300), ("waiting", 300), ("already", 300)]);
    assert_eq!((output.code, texts(&output.json(), "running").len()), (0, 0), "{}", output.out);
}

#[test]
fn a_daemon_on_one_of_several_servers_is_enough() {
    let (quiet, busy, target) = (Php::start(), Php::start(), Target::embedded());
    quiet.waits("orders:1", "1", YEAR_2033);
    busy.waits("orders:2", "1", YEAR_2033);
    let _daemon = PhpDaemon::start(&busy, 2);
    let output = import(&target.config(), &["--from", &quiet.url(), "--from", &busy.url()]);
    assert!(output.code == 1 && output.err.contains(&busy.url()), "{}", output.err);
    assert!(!output.err.contains(&quiet.url()), "{}", output.err);
}

#[test]
fn a_hanging_consumer_is_noticed_and_a_monitor_is_not() {
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:1", "1", YEAR_2033);
    let mut monitor = nameless(&php.server);
    redis::cmd("INFO").exec(&mut monitor).unwrap();
    let mut other_database = nameless(&php.server);
    redis::cmd("SELECT").arg(1).exec(&mut other_database).unwrap();
    redis::cmd("LPOP").arg("dq_1ready_queue").exec(&mut other_database).unwrap();
    let mut with_a_name = connection(&php.server);
    redis::cmd("LPOP").arg("dq_1ready_queue").exec(&mut with_a_name).unwrap();
    assert_eq!(texts(&target.import(&php, &["--dry-run"]).json(), "running"), [""; 0]);

    // This is the last command of a consumer of the PHP daemon before its callback.
    let mut consumer = nameless(&php.server);
    redis::cmd("ZREM").arg("dq_bucket_0").arg("orders:9").exec(&mut consumer).unwrap();
    let output = target.import(&php, &[]);
    assert!(output.code == 1 && output.err.contains("last command was zrem"), "{}{}", output.out, output.err);
    drop(consumer);
    target.import(&php, &[]).counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
}

#[test]
fn what_moves_counts_where_clients_are_hidden() {
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:1", "1", YEAR_2033);
    let port = php.listen();
    php.run::<()>(&["ACL", "SETUSER", "importer", "on", ">secret", "~*", "&*", "+@all", "-client"]);
    let url = format!("redis://importer:secret@127.0.0.1:{port}");
    let run = |more: &[&str]| import(&target.config(), &[&["--from", &url, "--json"], more].concat());
    let quiet = run(&["--dry-run"]).json();
    assert_eq!(texts(&quiet, "running"), [""; 0]);
    assert!(texts(&quiet, "notes")[0].contains("who is connected is not known"), "{quiet}");

    let daemon = PhpDaemon::start(&php, 2);
    let busy = run(&["--dry-run"]).json();
    assert!(texts(&busy, "running").iter().any(|sign| sign.contains("somebody used dq_bucket_")), "{busy}");
    // If Redis also does not report when a key was last used, the import counts the calls of commands.
    php.run::<()>(&["ACL", "SETUSER", "importer", "-object"]);
    let output = run(&[]);
    assert_eq!(output.code, 1, "{}", output.out);
    assert!((output.err + &output.out).contains("was called"), "the calls of timers are counted");
    drop(daemon);
    let output = run(&[]);
    output.counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
}

#[test]
fn another_import_that_runs_is_noticed() {
    let (php, target) = (Php::start(), Target::embedded());
    php.waits("orders:1", "1", YEAR_2033);
    let mut other = nameless(&php.server);
    redis::cmd("CLIENT").arg("SETNAME").arg("dq-import:1-0").exec(&mut other).unwrap();
    let output = target.import(&php, &[]);
    assert!(output.code == 1 && output.err.contains("another import runs"), "{}{}", output.out, output.err);
    assert!(!target.has_begun());
}

/// Returns the tables of a PHP daemon, and a user who may only read them.
pub fn php_database() -> (Database, String) {
    let database = MariaDb::shared().database();
    let text = std::fs::read_to_string(Path::new("tests/php/old.sql")).unwrap();
    let mut db = database.console();
    let mut results = db.query_iter(text).unwrap();
    while let Some(set) = results.iter() {
        set.for_each(|row| drop(row.unwrap()));
    }
    drop(results);
    let user = format!("reader_{}", database.name);
    db.query_drop(format!("CREATE USER {user}@localhost IDENTIFIED BY 'secret'")).unwrap();
    db.query_drop(format!("GRANT SELECT ON {}.* TO {user}@localhost", database.name)).unwrap();
    let url = database.url().replace("root@", &format!("{user}:secret@"));
    (database, url)
}

fn columns(database: &Database) -> Vec<(String, String)> {
    let query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE() \
                 ORDER BY 1, 2";
    database.console().query(query).unwrap()
}

#[test]
fn a_dry_run_only_reads_the_registry() {
    let (php, target) = (Php::start(), Target::with(vec![RedisServer::start()]));
    for (n, topic) in ["order_close", "order_openvip_checker", "nowhere", "else"].iter().enumerate() {
        php.waits(&format!("{topic}:{n}"), "1", YEAR_2033);
    }
    let (database, url) = php_database();
    let port = php.listen();
    let row = format!("INSERT INTO dq_redis VALUES (3,'三','localhost:{port}:')");
    database.console().query_drop(row).unwrap();
    target.add_section(&format!("[registry]\nurl = \"{url}\"\n"));
    let before = columns(&database);
    let from = format!("127.0.0.1:{port}");
    let output = import(&target.config(), &["--from", &from, "--dry-run", "--json"]);
    let json = output.json();
    // The row of `nowhere` has no callback URL.
    assert_eq!(
        json["unregistered"],
        serde_json::json!({"else": 1, "nowhere": 1}),
        "{}{}",
        output.out,
        output.err
    );
    assert_eq!(
        texts(&json, "unnamed_nodes"),
        ["dq_redis row 1 (一) at 10.0.0.1:6379", "dq_redis row 2 (二) at 10.0.0.2:6379"]
    );
    assert_eq!((output.code, json["taken"].as_u64()), (1, Some(4)), "an import without them is not whole");
    let notes = texts(&json, "notes");
    assert!(notes.iter().all(|note| note.starts_with("dq leaves out of the registry: ")), "{notes:?}");
    let same = notes.iter().find(|note| note.contains("row 4, topic \"order_close\""));
    assert!(same.is_some_and(|note| note.contains("the PHP daemon uses the last of them")), "{notes:?}");
    for named in ["nowhere", "order close"] {
        assert!(notes.iter().any(|note| note.contains(&format!("topic \"{named}\""))), "{notes:?}");
    }
    assert_eq!((notes.len(), columns(&database)), (3, before.clone()));

    // All servers must be named by --from. The import does not extend the tables. Only the daemon extends them.
    let output = import(&target.config(), &["--from", &from]);
    assert!(output.code == 1 && output.out.contains("not named by --from"), "{}{}", output.out, output.err);
    assert!(output.out.contains("(二) at 10.0.0.2:6379") && !output.out.contains(":pw"), "{}", output.out);
    database.console().query_drop("DELETE FROM dq_redis WHERE id < 3").unwrap();
    let output = import(&target.config(), &["--from", &from, "--json"]);
    assert_eq!(
        (output.code, output.json()["already"].as_u64()),
        (0, Some(4)),
        "{}{}",
        output.out,
        output.err
    );
    assert_eq!(columns(&database), before);
}

#[test]
fn an_import_goes_on_without_the_registry() {
    let (php, target) = (Php::start(), Target::with(vec![RedisServer::start()]));
    php.waits("orders:1", "1", YEAR_2033);
    target.add_section("[registry]\nurl = \"mysql://u:secret@127.0.0.1:1/dq\"\n");
    let output = target.import(&php, &[]);
    output.counts(&[("jobs", 1), ("waiting", 1), ("taken", 1)]);
    // The jobs are imported, but it is not known whether --from names all Redis servers.
    let why = output.json()["unread_registry"].clone();
    assert!(output.code == 1 && why.as_str().is_some_and(|why| why.contains("127.0.0.1")), "{why}");
    assert!(!output.out.contains("secret"), "{}", output.out);
}

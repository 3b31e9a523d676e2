//! `dq backup` and `dq restore`: the real commands, a real daemon under load, and every reason to refuse.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, add, eventually, free_port, on_redis, topic};
use cli::HandlerAnswer;
use rusqlite::Connection;
use serde_json::{Value, json};

/// Runs a command with the configuration of a folder. Returns its exit code, and what it wrote to stdout and stderr.
fn run(dir: &Path, words: &[&str]) -> (i32, String, String) {
    let (command, more) = words.split_first().unwrap();
    let mut dq = Command::new(env!("CARGO_BIN_EXE_dq"));
    output_texts(dq.arg(command).arg("--config").arg(dir.join("dq.toml")).args(more).output().unwrap())
}

fn output_texts(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn refuses(dir: &Path, words: &[&str], why: &str) {
    let (code, out, err) = run(dir, words);
    assert!(code == 1 && err.contains(why), "{code}, and not {why:?}: {out}{err}");
}

/// Makes a backup in the folder of a daemon. The daemon may run or not. Returns the path of the backup.
fn backup(dir: &Path, name: &str) -> String {
    let file = dir.join(name).display().to_string();
    let (code, out, err) = run(dir, &["backup", &file]);
    assert_eq!(code, 0, "{out}{err}");
    file
}

/// Returns a folder with a configuration like that of a daemon, and no other files. Also returns the port.
fn fresh(more: &str) -> (Arc<tempfile::TempDir>, u16) {
    let (dir, port) = (Arc::new(tempfile::tempdir().unwrap()), free_port());
    Daemon::write_config(dir.path(), port, free_port(), more);
    (dir, port)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    // The lock files of the store stay, so they are not compared.
    names.retain(|name| !name.ends_with("-gate") && !name.ends_with("-turn"));
    names.sort();
    names
}

#[test]
fn a_backup_under_load_has_every_acknowledged_job() {
    if on_redis() {
        return;
    }
    let holds = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&holds);
    let sink = Sink::answering(move |call| {
        let is_slow = call.header("dq-job-id") == "slow" && held.load(Ordering::SeqCst);
        HandlerAnswer::new(200, "ok").after(if is_slow { 60 * SECOND } else { SECOND / 1000 })
    });
    let config = topic("t", &sink, "timeout = \"2m\"");
    let mut daemon = Daemon::start(&config);
    let mut http = Http::tcp(&daemon);
    http.ask("PUT", "/v1/topics/registered", &json!({"callback": sink.url()})).is(201);
    http.ask("POST", "/v1/topics/registered/jobs", &json!({"id": "later", "delay": "1h", "body": 1})).is(201);
    // One job is being delivered at the moment of the backup.
    assert_eq!(daemon.client().ask(&add("t", "slow", 0)).unwrap()["code"], 1);
    eventually(10 * SECOND, "a callback in flight", || (!sink.calls().is_empty()).then_some(()));

    let ends = Arc::new(AtomicBool::new(false));
    let (mut client, stop) = (daemon.client(), Arc::clone(&ends));
    let (tell, acknowledged) = std::sync::mpsc::channel();
    let adds = std::thread::spawn(move || {
        for n in 0.. {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            // Every second job is due at once, so it is delivered during the backup.
            let (id, delay_ms) = (format!("job-{n}"), if n % 2 == 0 { 3_600_000 } else { 0 });
            match client.ask(&add("t", &id, delay_ms)) {
                Ok(answer) if answer["code"] == 1 => drop(tell.send((id, delay_ms))),
                _ => return,
            }
        }
    });
    let mut before = HashSet::new();
    while before.len() < 500 {
        let (id, delay_ms) = acknowledged.recv_timeout(20 * SECOND).unwrap();
        if delay_ms > 0 {
            before.insert(id);
        }
    }
    before.extend(acknowledged.try_iter().filter(|(_, delay_ms)| *delay_ms > 0).map(|(id, _)| id));
    let file = backup(daemon.dir.path(), "the-backup");
    let during = acknowledged.try_iter().count();
    assert!(during > 0, "the adds went on");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let key = std::fs::read(daemon.dir.path().join("var/run/session-key")).unwrap();
    ends.store(true, Ordering::SeqCst);
    adds.join().unwrap();
    daemon.kill_all();

    let (dir, port) = fresh(&config);
    // The snapshot of a registry that is replaced must not be used any more.
    let snapshot = dir.path().join("var/run/registry/topics.json");
    std::fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
    std::fs::write(&snapshot, "{}").unwrap();
    let (code, out, err) = run(dir.path(), &["restore", &file]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(!snapshot.exists());
    assert!(out.contains("are delivered again") && out.contains("jobs are due now"), "{out}");
    let var = dir.path().join("var");
    assert_eq!(names(&var), ["dq.db", "registry.db", "run"], "no staging folder is left");
    assert_eq!(std::fs::read(var.join("run/session-key")).unwrap(), key);
    for file in ["dq.db", "registry.db", "run/session-key"] {
        let mode = std::fs::metadata(var.join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let db = Connection::open(var.join("dq.db")).unwrap();
    let restored: HashSet<String> = db
        .prepare("SELECT id FROM job")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let missing: Vec<_> = before.difference(&restored).collect();
    assert!(missing.is_empty(), "{} of {} jobs are missing: {missing:?}", missing.len(), before.len());
    let tables: i64 = db
        .query_row("SELECT count(*) FROM sqlite_master WHERE name LIKE 'dq_backup%'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 0);
    let pragma =
        |name: &str| -> i64 { db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).unwrap() };
    assert_eq!((pragma("auto_vacuum"), pragma("freelist_count")), (2, 0), "it can give pages back");
    drop(db);

    holds.store(false, Ordering::SeqCst);
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq-master"));
    command.arg("--config").arg(dir.path().join("dq.toml"));
    let again = Daemon::run(dir, port, 0, command);
    again.wait_ready();
    // The job that was being delivered is delivered again at once, before the deadline of its lease.
    eventually(20 * SECOND, &format!("the slow job; log:\n{}", again.log()), || {
        sink.deliveries().contains_key("slow").then_some(())
    });
    let (_, shown, _) = run_at(&again, &["topics", "list", "--json"]);
    assert!(shown.contains("\"registered\""), "{shown}");
    assert!(!again.log().contains("wait until the topic is registered"), "its topic comes with the registry");
    let (code, shown, _) = run_at(&again, &["get", "t", before.iter().next().unwrap(), "--json"]);
    assert_eq!(code, 0, "{shown}");
}

/// Runs a command that asks a daemon.
fn run_at(daemon: &Daemon, words: &[&str]) -> (i32, String, String) {
    let mut dq = Command::new(env!("CARGO_BIN_EXE_dq"));
    output_texts(dq.args(words).arg("--run-dir").arg(daemon.dir.path().join("var/run")).output().unwrap())
}

#[test]
fn a_backup_refuses_what_it_cannot_do() {
    let (dir, _) = fresh("");
    let (config, out) = (dir.path().join("dq.toml"), dir.path().join("b").display().to_string());
    let text = std::fs::read_to_string(&config).unwrap();
    if !text.contains("[store]") {
        refuses(dir.path(), &["backup", &out], "cannot open");
        let redis =
            "\n[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\nurl = \"redis://127.0.0.1:1\"\n";
        std::fs::write(&config, text + redis).unwrap();
    }
    refuses(dir.path(), &["backup", &out], "redis-cli --rdb");
    refuses(dir.path(), &["restore", &out], "redis-cli --rdb");
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_backup_never_overwrites_and_leaves_no_half_file() {
    if on_redis() {
        return;
    }
    let mut daemon = Daemon::start(&topic("t", &Sink::start(), ""));
    let body = "x".repeat(100_000);
    for n in 0..30 {
        let job =
            json!({"cmd": "add", "topic": "t", "id": n.to_string(), "body": body, "delay_ms": 3_600_000});
        daemon.client().ask(&job).unwrap();
    }
    daemon.kill_all();
    let dir = daemon.dir.path();
    let file = backup(dir, "b");
    let made = std::fs::read(&file).unwrap();
    refuses(dir, &["backup", &file], "exists already");
    assert!(std::fs::read(&file).unwrap() == made);
    // A disk of 1 MB has no room for 3 MB.
    let disk = dir.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=1m none \"$1\" && \"$2\" backup --config \"$3\" \"$1/b\"; echo \"code $?\"; ls -A \"$1\"";
    let mut command = Command::new("unshare");
    command.args(if nix::unistd::geteuid().is_root() { &["-m"][..] } else { &["-r", "-m"] });
    command
        .args(["sh", "-c", script, "sh"])
        .arg(&disk)
        .arg(env!("CARGO_BIN_EXE_dq"))
        .arg(dir.join("dq.toml"));
    let (_, out, err) = output_texts(command.output().unwrap());
    assert_eq!(out, "code 1\n", "nothing is left: {err}");
    assert!(err.contains("is full"), "{err}");
    // If the store is damaged, no backup is made.
    let store = dir.join("var/dq.db");
    let db = Connection::open(&store).unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(db);
    let mut bytes = std::fs::read(&store).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 20_000].fill(0xff);
    std::fs::write(&store, bytes).unwrap();
    let other = dir.join("other").display().to_string();
    refuses(dir, &["backup", &other], "damaged");
    assert!(!Path::new(&other).exists());
}

#[test]
fn a_restore_follows_the_link_of_a_store() {
    if on_redis() {
        return;
    }
    let mut daemon = Daemon::start(&topic("t", &Sink::start(), ""));
    daemon.client().ask(&add("t", "a", 3_600_000)).unwrap();
    daemon.kill_all();
    let (dir, store) = (daemon.dir.path(), daemon.dir.path().join("var/dq.db"));
    let disk = dir.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let file = backup(dir, "b");
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(dir.join(format!("var/dq.db{suffix}")));
    }
    std::fs::rename(&store, disk.join("jobs.db")).unwrap();
    std::os::unix::fs::symlink("../disk/jobs.db", &store).unwrap();
    // The jobs were moved to another store, which was lost later. The mark must not keep dq from the restored jobs.
    std::fs::write(dir.join("var/dq.db-moved"), "left redis under dq\n").unwrap();
    let (code, out, err) = run(dir, &["restore", "--replace", &file]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(dir.join("var/dq.db.before-restore-moved").exists() && !dir.join("var/dq.db-moved").exists());
    assert!(store.symlink_metadata().unwrap().is_symlink(), "{out}");
    assert!(disk.join("jobs.db.before-restore").exists() && disk.join("jobs.db").is_file(), "{out}");
    let db = Connection::open(&store).unwrap();
    assert_eq!(db.query_row("SELECT id FROM job", [], |row| row.get(0)), Ok("a".to_owned()));
}

#[test]
fn a_restore_refuses_what_would_lose_something() {
    if on_redis() {
        return;
    }
    let config = topic("t", &Sink::start(), "");
    let mut daemon = Daemon::start(&config);
    let mut job = add("t", "a", 3_600_000);
    job["body"] = json!("registry-of-a");
    assert_eq!(daemon.client().ask(&job).unwrap()["code"], 1);
    let dir = Arc::clone(&daemon.dir);
    let (dir, var) = (dir.path(), dir.path().join("var"));
    let file = backup(dir, "b");
    assert_eq!(daemon.client().ask(&add("t", "later", 3_600_000)).unwrap()["code"], 1);
    refuses(dir, &["restore", &file], "a daemon runs in");
    refuses(dir, &["restore", "--replace", &file], "a daemon runs in");
    daemon.kill_all();
    // The files of the daemon still exist, so a restore is refused.
    refuses(dir, &["restore", &file], "registry.db exists");
    let text = dir.join("text");
    std::fs::write(&text, "no backup").unwrap();
    refuses(dir, &["restore", &text.display().to_string()], "is not a backup");
    let db = var.join("dq.db").display().to_string();
    refuses(dir, &["restore", &db], "is not a backup");
    // If an earlier restore was killed, a new restore is refused, and a daemon does not open the store.
    let note = var.join("dq.db-replacing");
    std::fs::write(&note, "").unwrap();
    refuses(dir, &["restore", "--replace", &file], "a restore of");
    let opened = store::SqliteStore::open(Path::new(&db), &var.join("run"), 0);
    assert!(opened.is_err_and(|e| e.to_string().contains("did not end")));
    std::fs::remove_file(&note).unwrap();
    // The store takes part in a move.
    let mark = var.join("dq.db-moved");
    std::fs::write(&mark, "leaves redis under dq\n").unwrap();
    refuses(dir, &["restore", "--replace", &file], "its jobs are being moved to redis under dq");
    std::fs::remove_file(&mark).unwrap();
    // Another process has the store open.
    let import = Connection::open(&db).unwrap();
    import.query_row("SELECT count(*) FROM job", [], |_| Ok(())).unwrap();
    refuses(dir, &["restore", "--replace", &file], "another process uses");
    drop(import);
    // The folder has only an old log.
    let (bare, _) = fresh(&config);
    std::fs::create_dir(bare.path().join("var")).unwrap();
    let wal = bare.path().join("var/dq.db-wal");
    std::fs::write(&wal, "old").unwrap();
    refuses(bare.path(), &["restore", &file], "an old log would be applied");
    assert_eq!(names(&bare.path().join("var")), ["dq.db-wal"]);
    // A damaged backup is refused.
    let mut bytes = std::fs::read(&file).unwrap();
    let end = bytes.len() - 30_000;
    bytes[end..end + 20_000].fill(0xff);
    let damaged = dir.join("damaged").display().to_string();
    std::fs::write(&damaged, bytes).unwrap();
    std::fs::remove_file(&wal).unwrap();
    refuses(bare.path(), &["restore", &damaged], "damaged");
    // If one byte of a name has changed, only the checksum finds it.
    let mut bytes = std::fs::read(&file).unwrap();
    let of_topic = b"registry-of-a";
    let at = bytes.windows(of_topic.len()).position(|some| some == of_topic).unwrap();
    bytes[at] = b'R';
    std::fs::write(&damaged, bytes).unwrap();
    refuses(bare.path(), &["restore", &damaged], "another checksum");
    assert_eq!(names(&bare.path().join("var")), [""; 0]);
    let check = |file: &str| {
        let mut dq = Command::new(env!("CARGO_BIN_EXE_dq"));
        output_texts(dq.args(["restore", "--check", file]).output().unwrap())
    };
    let (code, out, err) = check(&damaged);
    assert!(code == 1 && err.contains("another checksum"), "{out}{err}");
    let (code, out, err) = check(&file);
    assert!(code == 0 && out.contains("1 jobs as of") && out.contains("checksum are right"), "{out}{err}");
    // A changed bit is found at each place, also outside of rows. A backup without its last line is refused, too.
    let whole = std::fs::read(&file).unwrap();
    for n in 0..40 {
        let mut bytes = whole.clone();
        let at = (bytes.len() - 1) * n / 39;
        bytes[at] ^= 1 << (n % 8);
        std::fs::write(&damaged, bytes).unwrap();
        let (code, out, err) = check(&damaged);
        assert!(code == 1 && err.contains("damaged"), "byte {at}: {out}{err}");
    }
    let pages = whole.len() - whole.len() % 4096;
    std::fs::write(&damaged, &whole[..pages]).unwrap();
    let (code, out, err) = check(&damaged);
    assert!(code == 1 && err.contains("its last line is missing"), "{out}{err}");
    // The old files keep their contents under another name.
    let (code, out, err) = run(dir, &["restore", "--replace", &file]);
    assert_eq!(code, 0, "{out}{err}");
    let ids = |name: &str| -> Vec<String> {
        let db = Connection::open(var.join(name)).unwrap();
        let mut ids = db.prepare("SELECT id FROM job ORDER BY id").unwrap();
        ids.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(ids("dq.db"), ["a"]);
    assert_eq!(ids("dq.db.before-restore"), ["a", "later"]);
    refuses(dir, &["restore", "--replace", &file], "from an earlier restore");
    // A session key that is already there does not stop a restore if it is the same as in the backup.
    let shown: Value = {
        let (bare, _) = fresh(&config);
        std::fs::create_dir_all(bare.path().join("var/run")).unwrap();
        std::fs::copy(var.join("run/session-key"), bare.path().join("var/run/session-key")).unwrap();
        let (code, out, err) = run(bare.path(), &["restore", "--json", &file]);
        assert_eq!(code, 0, "{out}{err}");
        serde_json::from_str(&out).unwrap()
    };
    assert_eq!((&shown["jobs"], &shown["due"]), (&json!(1), &json!(0)));
}

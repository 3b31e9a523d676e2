//! Records of ended jobs, while processes of the daemon are killed: each ended job has exactly one record.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cli::{HandlerAnswer, TcpClient};
use protocol::dq::Framing;

use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, add, eventually, pending, topic};
use model::job::{JobId, JobKey, TopicName};
use model::record::Ending;
use model::settings::{self, StoreSettings};
use store::Store;

const KILLS: usize = 30;

/// The processes that are killed, one after the other.
const ROLES: [&str; 6] =
    ["dq-consume-0", "dq-server", "dq-consume-1", "dq-timer-0", "dq-timer-1", "dq-http-server"];

/// Returns the endings of each of these jobs.
fn endings(store: &mut dyn Store, ids: &[String]) -> HashMap<String, Vec<Ending>> {
    let t = TopicName::new("t").unwrap();
    let records = |id: &String| {
        let key = JobKey { topic: t.clone(), id: JobId::new(id.as_str()).unwrap() };
        store.records(&key).unwrap().iter().map(|record| record.ending).collect()
    };
    ids.iter().map(records).zip(ids).map(|(endings, id)| (id.clone(), endings)).collect()
}

/// Adds jobs while processes are killed. The receiver refuses some of the jobs for good, and some are deleted. Then
/// compares the records with the answers.
fn play(daemon: &Daemon, open: impl FnOnce(&Path) -> Box<dyn Store>) {
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    // `added`: the acknowledged jobs that are not deleted. `deleted`: the jobs with an acknowledged deletion.
    let (added, deleted) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client: Option<TcpClient> = None;
            // Each id is used once, so that it can have only one ended job.
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (id, is_late) = (n.to_string(), n % 10 == 7);
                let ask = |client: &mut Option<TcpClient>, request: &serde_json::Value| {
                    let answer = client.as_mut().and_then(|c| c.ask(request).ok());
                    if answer.is_none() {
                        *client = TcpClient::connect(daemon.address(), Framing::Digits).ok();
                    }
                    answer.is_some_and(|answer| answer["code"] == 1)
                };
                let delay = if is_late { 3_600_000 } else { n % 40 };
                if !ask(&mut client, &add("t", &id, delay)) {
                    continue;
                }
                let delete = serde_json::json!({"cmd": "del", "topic": "t", "id": id});
                if is_late {
                    // If the deletion was not answered, the job still waits, or was deleted.
                    if ask(&mut client, &delete) {
                        deleted.lock().unwrap().push(id);
                    }
                } else {
                    added.lock().unwrap().push(id);
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        for kill in 0..KILLS {
            let before = done.load(Ordering::Relaxed);
            daemon.kill_child(ROLES[kill % ROLES.len()]);
            eventually(20 * SECOND, "further adds", || {
                (done.load(Ordering::Relaxed) >= before + 20).then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (added, deleted) = (added.into_inner().unwrap(), deleted.into_inner().unwrap());
    let mut store = open(daemon.dir.path());
    let mut lacking = Vec::new();
    eventually(60 * SECOND, "an end of each job", || {
        lacking = endings(&mut *store, &added).into_iter().filter(|(_, ended)| ended.is_empty()).collect();
        lacking.is_empty().then_some(())
    });
    let mut client = daemon.client();
    eventually(20 * SECOND, "no job in flight", || {
        let stats = crate::support::stats(&mut client, "t");
        (stats["ready"] + stats["leased"] == 0).then_some(())
    });
    assert!(pending(&mut client, "t") < 40);
    let ended = endings(&mut *store, &added);
    let is_refused = |id: &String| id.ends_with('3');
    for (id, ended) in &ended {
        let expected = if is_refused(id) { Ending::Dead } else { Ending::Delivered };
        assert_eq!(*ended, [expected], "job {id}");
    }
    for (id, ended) in endings(&mut *store, &deleted) {
        assert_eq!(ended, [Ending::Deleted], "job {id}");
    }
    println!("{} jobs delivered or dead, {} deleted", added.len(), deleted.len());
    assert!(added.len() > KILLS && !deleted.is_empty());
}

/// A receiver that refuses each tenth job for good.
fn sink() -> Sink {
    Sink::answering(|call| {
        let status = if call.header("dq-job-id").ends_with('3') { 410 } else { 200 };
        HandlerAnswer::new(status, "ok").after(Duration::from_millis(10))
    })
}

/// A refused job is not tried again.
const ONCE: &str = "max_attempts = 100\nretry_on = [\"connect\", \"timeout\", \"broken\"]";

#[test]
fn each_ended_job_has_one_record_over_thirty_kills() {
    let sink = sink();
    let daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{}", topic("t", &sink, ONCE)));
    play(&daemon, |dir| {
        let settings = StoreSettings::Embedded { path: dir.join("var/dq.db"), min_free: 0 };
        store::open(&settings, &dir.join("var/run")).unwrap()
    });
}

#[test]
fn each_ended_job_has_one_record_on_redis_over_kills() {
    let (sink, server) = (sink(), RedisServer::start());
    let node =
        format!("[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n", server.url());
    let daemon = Daemon::start(&format!("{node}{}", topic("t", &sink, ONCE)));
    play(&daemon, |dir| {
        let node = settings::NodeSettings::server("r0".to_owned(), server.url(), 2);
        let redis = settings::RedisSettings::of_nodes("dq", 5 * SECOND, 2, vec![node]);
        store::open(&StoreSettings::Redis(redis), &dir.join("var/run")).unwrap()
    });
}

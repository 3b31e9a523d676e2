//! The answer to a lease call never comes. So no callback is made, and no attempt counts.

use std::path::Path;
use std::time::Duration;

use cli::HandlerAnswer;

use crate::support::proxy::{Proxy, Way};
use crate::support::redis::{RedisServer, TcpServer};
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, eventually, new_job, stats, topic};
use model::job::{Due, JobKey, State};
use model::settings;
use store::{self, Lanes, LeaseRequest, OwnerTag, SetChangeRequest, Store, StoreError};

/// A node behind a proxy, with one ready job.
struct Stage {
    server: TcpServer,
    proxy: Proxy,
    store: Box<dyn Store>,
    key: JobKey,
}

impl Stage {
    fn start() -> Stage {
        let server = TcpServer::start(&[]);
        let proxy = Proxy::to(server.address());
        let node = settings::NodeSettings::server("r0", format!("redis://{}", proxy.address), 1);
        let (prefix, timeout) = ("dq", Duration::from_millis(300));
        let redis = settings::RedisSettings::of_nodes(prefix, timeout, 4, vec![node]);
        let store = store::open(&settings::StoreSettings::Redis(redis), Path::new("/nowhere")).unwrap();
        let job = new_job("t", "once", "1", Due::In(Duration::ZERO));
        let mut stage = Stage { server, proxy, store, key: job.key.clone() };
        // (After this call, the server knows the script.)
        assert!(stage.lease().unwrap().is_empty());
        stage.store.add(&[job]).remove(0).unwrap();
        stage
    }

    /// Leases jobs of a topic that allows one attempt. Returns their attempts.
    fn lease(&mut self) -> store::Result<Vec<u32>> {
        let wanted = LeaseRequest {
            topic: self.key.topic.clone(),
            max: 9,
            hold: 60 * SECOND,
            max_leased: None,
            is_own_ttr: false,
            max_attempts: 1,
        };
        let batch = self.store.lease(&[wanted], 9, Some(&OwnerTag("me".into())))?;
        Ok(batch.jobs.iter().map(|job| job.attempt).collect())
    }

    fn state(&mut self) -> (State, u32) {
        let view = eventually(10 * SECOND, "an answer", || self.store.get(&self.key).ok()).unwrap();
        (view.state, view.attempts)
    }

    fn take_back(&mut self) {
        eventually(10 * SECOND, "that it is taken back", || self.store.take_back_unanswered().ok());
    }

    /// Returns how many scripts the server has run.
    fn scripts(&self) -> u64 {
        let output = self.server.cli(&["info", "commandstats"]);
        let calls = output.lines().find_map(|l| l.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
        calls.map_or(0, |n| n.parse().unwrap())
    }
}

#[test]
fn a_lease_whose_answer_was_lost_is_taken_back() {
    let mut stage = Stage::start();
    stage.proxy.hold(Way::Answers);
    assert!(matches!(stage.lease(), Err(StoreError::Unknown(_))));
    stage.take_back();
    assert_eq!(stage.state(), (State::Ready, 0), "nobody was called");
    assert_eq!(stage.lease().unwrap(), [1], "its only attempt");
}

#[test]
fn a_lease_that_arrives_after_it_was_taken_back_takes_nothing() {
    let mut stage = Stage::start();
    stage.proxy.hold(Way::Requests);
    assert!(matches!(stage.lease(), Err(StoreError::Unknown(_))));
    stage.take_back();
    let before = stage.scripts();
    stage.proxy.let_go();
    eventually(10 * SECOND, "the late call", || (stage.scripts() > before).then_some(()));
    assert_eq!(stage.state(), (State::Ready, 0), "nobody was called");
    assert_eq!(stage.lease().unwrap(), [1], "its only attempt");
}

#[test]
fn a_shard_with_a_lease_without_an_answer_gives_no_other() {
    let mut stage = Stage::start();
    stage.proxy.hold(Way::Answers);
    assert!(matches!(stage.lease(), Err(StoreError::Unknown(_))));
    stage.server.hang(true);
    for _ in 0..20 {
        assert!(stage.lease().is_err() && stage.store.take_back_unanswered().is_err());
    }
    stage.server.hang(false);
    // Before the store leases jobs, it takes back the jobs that it may have leased in the calls without an answer.
    let leased = eventually(10 * SECOND, "a lease", || stage.lease().ok());
    assert_eq!(leased, [1], "its only attempt");
}

#[test]
fn leases_are_taken_back_where_nodes_answer() {
    let servers = [TcpServer::start(&[]), TcpServer::start(&[]), TcpServer::start(&[])];
    let proxy = Proxy::to(servers[0].address());
    let settings = |first: &str, pool| {
        let urls = [first.to_owned(), servers[1].url(), servers[2].url()];
        let nodes = urls.into_iter().enumerate();
        let nodes = nodes.map(|(n, url)| settings::NodeSettings::server(format!("r{n}"), url, 1)).collect();
        let timeout = Duration::from_millis(300);
        settings::StoreSettings::Redis(settings::RedisSettings::of_nodes("dq", timeout, pool, nodes))
    };
    let own = settings(&format!("redis://{}", proxy.address), 4);
    let (mut store, lanes) = (store::open(&own, Path::new("/nowhere")).unwrap(), Lanes::new(&own).unwrap());
    let ids = (0..100).map(|n| new_job("t", &n.to_string(), "1", Due::In(Duration::ZERO)));
    let job = ids.into_iter().find(|job| lanes.lane_of(&job.key) == 0).unwrap();
    let wanted = LeaseRequest {
        topic: job.key.topic.clone(),
        max: 9,
        hold: 60 * SECOND,
        max_leased: None,
        is_own_ttr: false,
        max_attempts: 1,
    };
    let mut lane = store::open_lane(&own, Path::new("/nowhere"), 0).unwrap();
    let mut lease = || lane.lease(std::slice::from_ref(&wanted), 9, Some(&OwnerTag("me".into())));
    assert!(lease().unwrap().jobs.is_empty());
    store.add(std::slice::from_ref(&job)).remove(0).unwrap();
    proxy.hold(Way::Answers);
    assert!(matches!(lease(), Err(StoreError::Unknown(_))));
    proxy.let_go();
    // The set of nodes changes, so that the lease may be on any node. Then one of these nodes is away.
    let mover = Lanes::new(&settings(&servers[0].url(), 5)).unwrap();
    let ask = SetChangeRequest { empty: vec!["r2".to_owned()], ..SetChangeRequest::default() };
    mover.redis().unwrap().move_jobs(&ask, |_| {}).unwrap().unwrap();
    servers[1].kill();
    let leased = eventually(10 * SECOND, "a lease from the node that answers", || {
        lease().ok().filter(|batch| !batch.jobs.is_empty())
    });
    assert_eq!(leased.jobs[0].attempt, 1, "its only attempt");
}

#[test]
fn a_job_with_one_attempt_is_called_for_although_its_node_hangs() {
    const JOBS: usize = 4000;
    let (sink, server) = (Sink::start(), RedisServer::start());
    let store = format!(
        "[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n",
        server.url()
    );
    let daemon = Daemon::start(&format!("{store}{}", topic("t", &sink, "max_attempts = 1")));
    daemon.wait_all_up(SLOTS);
    let mut client = daemon.client();
    for n in 0..JOBS {
        assert_eq!(client.ask(&add("t", &n.to_string(), 3000)).unwrap()["code"], 1);
    }
    // The server hangs again and again while the jobs are leased.
    for round in 1.. {
        let come = sink.deliveries().len();
        eventually(20 * SECOND, "some more", || (sink.deliveries().len() > come).then_some(()));
        server.hang(true);
        let stopped = std::time::Instant::now();
        eventually(10 * SECOND, "the end of a hang", || {
            (stopped.elapsed() > Duration::from_millis(2200)).then_some(())
        });
        server.hang(false);
        if round == 3 {
            break;
        }
    }
    // The jobs come sooner than any lease would expire.
    eventually(10 * SECOND, &format!("all of them; log:\n{}", daemon.log()), || {
        (sink.deliveries().len() == JOBS).then_some(())
    });
    eventually(20 * SECOND, "an empty store", || {
        let left = stats(&mut client, "t");
        assert_eq!(left["dead"], 0, "log:\n{}", daemon.log());
        (left.values().sum::<u64>() == 0).then_some(())
    });
}

/// A lease call of a consumer that was killed can reach the node after a timer has handed back the consumer's leases.
#[test]
fn a_lease_of_a_dead_consumer_that_arrives_late_is_handed_back() {
    let (sink, server) =
        (Sink::answering(|_| HandlerAnswer::new(200, "ok").after(60 * SECOND)), RedisServer::start());
    let node =
        format!("[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n", server.url());
    let topics =
        format!("{}[[topic]]\nname = \"u\"\nmode = \"pull\"\n", topic("t", &sink, "timeout = \"90s\""));
    let daemon = Daemon::start(&format!("[consume]\nprocesses = 1\n{node}{topics}"));
    let mut client = daemon.client();
    for name in ["t", "u"] {
        assert_eq!(client.ask(&add(name, "1", 0)).unwrap()["code"], 1);
    }
    sink.wait_for(1, 20 * SECOND);
    let pid = daemon.child("dq-consume-0").to_string();
    let owners = std::fs::read_dir(daemon.dir.path().join("var/run/owners")).unwrap();
    let mut owners = owners.map(|file| file.unwrap().path());
    let file = owners.find(|file| std::fs::read_to_string(file).unwrap() == pid).unwrap();
    let tag = file.file_name().unwrap().to_str().unwrap().to_owned();
    daemon.kill_child("dq-consume-0");
    eventually(10 * SECOND, "the leases are handed back", || {
        daemon.log().contains(&format!("leases of {tag} are handed back")).then_some(())
    });
    let node = settings::NodeSettings::server("r0", server.url(), 2);
    let redis = settings::RedisSettings::of_nodes("dq", 5 * SECOND, 2, vec![node]);
    let mut store = store::open(&settings::StoreSettings::Redis(redis), Path::new("/nowhere")).unwrap();
    let wanted = LeaseRequest {
        topic: new_job("u", "1", "1", Due::In(Duration::ZERO)).key.topic,
        max: 1,
        hold: 600 * SECOND,
        max_leased: None,
        is_own_ttr: false,
        max_attempts: 9,
    };
    eventually(10 * SECOND, "the late lease", || {
        let leased = store.lease(std::slice::from_ref(&wanted), 1, Some(&OwnerTag(tag.clone()))).ok()?;
        (leased.jobs.len() == 1).then_some(())
    });
    eventually(20 * SECOND, "the job is ready again", || {
        (stats(&mut client, "u")["ready"] == 1).then_some(())
    });
    eventually(20 * SECOND, "the owner's file is removed", || (!file.exists()).then_some(()));
}

//! Clocks that differ from the host's.

use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, eventually, stats, topic};

fn node(server: &RedisServer) -> String {
    format!(
        "[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n[[store.node]]\nname = \"a\"\nurl = \"{}\"\n",
        server.url()
    )
}

#[test]
fn a_job_is_too_old_by_its_nodes_clock_and_not_by_the_hosts() {
    let server = RedisServer::start_with_clock(-90_000);
    server.wait_until_old(3);
    let sink = Sink::start();
    let skip = topic("t", &sink, "catch_up = \"skip older than 1m\"");
    let daemon = Daemon::start(&(node(&server) + &skip));
    let mut client = daemon.client();
    for n in 0..20 {
        assert_eq!(client.ask(&add("t", &n.to_string(), 1000)).unwrap()["code"], 1);
    }
    eventually(10 * SECOND, "an end of all jobs", || {
        let stats = stats(&mut client, "t");
        (stats.values().sum::<u64>() == stats.get("dead").copied().unwrap_or(0)).then_some(())
    });
    let dead = stats(&mut client, "t").get("dead").copied().unwrap_or(0);
    assert_eq!((sink.deliveries().len(), dead), (20, 0), "all of them were due a moment ago");
}

//! The port for clients of beanstalkd: the table of conversations that a real beanstalkd follows too, a client from
//! PyPI, and what happens when clients and processes end.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, SLOTS, all_new, eventually, free_port, on_redis};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

#[path = "../beanstalk/conversation.rs"]
mod conversation;

use conversation::{Conversation, Server, play, table};

const MS: Duration = Duration::from_millis(1);

/// A daemon with a port for clients of beanstalkd.
struct Beanstalk {
    daemon: Daemon,
    port: u16,
    /// The Redis server that only this daemon uses. None: the daemon shares Redis servers, or has no Redis.
    _redis: Option<RedisServer>,
}

impl Beanstalk {
    /// Starts a daemon. On Redis, there is no registry for new topics, so these topics are in the configuration file.
    fn start(section: &str, topics: &[&str]) -> Beanstalk {
        Beanstalk::start_on(None, section, topics)
    }

    /// Starts a daemon with a store of one shard, so that all jobs of a topic have one order.
    fn start_ordered(topics: &[&str]) -> Beanstalk {
        Beanstalk::start_on(on_redis().then(RedisServer::start), "", topics)
    }

    fn start_on(redis: Option<RedisServer>, section: &str, topics: &[&str]) -> Beanstalk {
        let store = redis.as_ref().map_or(String::new(), |server| {
            let url = server.url();
            format!(
                "[store]\nbackend = \"redis\"\nshards_per_node = 1\n[[store.node]]\nname = \"a\"\nurl = \"{url}\"\n"
            )
        });
        let port = free_port();
        let (create, topics) = match on_redis() {
            false => ("create = true\n", String::new()),
            true => {
                let topic = |name: &&str| format!("[[topic]]\nname = \"{name}\"\nmode = \"pull\"\n");
                ("", topics.iter().map(topic).collect())
            }
        };
        let text = format!("[beanstalk]\nlisten = \"127.0.0.1:{port}\"\n{create}{section}\n{store}{topics}");
        Beanstalk { daemon: Daemon::start(&text), port, _redis: redis }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    fn client(&self) -> Client {
        let stream = self.connect();
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { lines: BufReader::new(stream) }
    }

    /// Removes all jobs of a tube.
    fn clear(&self, tube: &str) {
        let mut client = self.client();
        client.ask(&format!("use {tube}"));
        eventually(20 * SECOND, "an empty tube", || {
            for peek in ["peek-ready", "peek-delayed", "peek-buried"] {
                while let Some((number, _)) = client.job(peek) {
                    client.ask(&format!("delete {number}"));
                }
            }
            let stats = client.stats(&format!("stats-tube {tube}"));
            let count = |name: &str| stats[&format!("current-jobs-{name}")] == "0";
            ["ready", "reserved", "delayed", "buried"].into_iter().all(count).then_some(())
        });
    }
}

struct Client {
    lines: BufReader<TcpStream>,
}

impl Client {
    fn send(&mut self, text: &str) {
        self.lines.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Returns the next line. Empty: the connection is closed.
    fn line(&mut self) -> String {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return String::new(),
            read => read.unwrap(),
        };
        line.trim_end().to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(&format!("{command}\r\n"));
        self.line()
    }

    /// Asks like `ask`, on a connection that may be closed. Empty: the connection is closed.
    fn try_ask(&mut self, command: &str) -> String {
        let _ = self.lines.get_mut().write_all(format!("{command}\r\n").as_bytes());
        self.line()
    }

    /// Asks for a job. Returns its number and its body.
    fn job(&mut self, command: &str) -> Option<(u64, Vec<u8>)> {
        let line = self.ask(command);
        self.read_job(&line)
    }

    fn read_job(&mut self, line: &str) -> Option<(u64, Vec<u8>)> {
        let words: Vec<&str> = line.split(' ').collect();
        let ["RESERVED" | "FOUND", number, size] = words[..] else { return None };
        let size: usize = size.parse().unwrap();
        let mut body = vec![0; size + 2];
        self.lines.read_exact(&mut body).unwrap();
        body.truncate(size);
        Some((number.parse().unwrap(), body))
    }

    fn reserve(&mut self, timeout_s: u64) -> Option<(u64, Vec<u8>)> {
        self.job(&format!("reserve-with-timeout {timeout_s}"))
    }

    fn put(&mut self, priority: u32, delay_s: u32, ttr_s: u32, body: &str) -> u64 {
        let line = self.ask(&format!("put {priority} {delay_s} {ttr_s} {}\r\n{body}", body.len()));
        line.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{line}")).parse().unwrap()
    }

    fn stats(&mut self, command: &str) -> HashMap<String, String> {
        let line = self.ask(command);
        let size: usize = line.strip_prefix("OK ").unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        let mut yaml = vec![0; size + 2];
        self.lines.read_exact(&mut yaml).unwrap();
        let text = String::from_utf8(yaml).unwrap();
        let pair = |line: &str| line.split_once(": ").map(|(k, v)| (k.to_owned(), v.to_owned()));
        text.lines().filter_map(pair).collect()
    }
}

/// The topics that exist when a conversation begins. Two conversations list or count tubes as on a new server, so they
/// begin without the topic `t`.
fn topics_of(conversation: &Conversation) -> &'static [&'static str] {
    match conversation.name.as_str() {
        "statistics of the server" => &["default"],
        "tubes are used and watched" => &["default", "tube--jobs-2fa-2bb-3bc.-24_-281-29-2d"],
        _ => &["default", "t"],
    }
}

#[test]
fn the_port_follows_the_table_of_conversations() {
    let mut groups: HashMap<&[&str], Vec<Conversation>> = HashMap::new();
    for conversation in table() {
        groups.entry(topics_of(&conversation)).or_default().push(conversation);
    }
    let mut failed = Vec::new();
    for (topics, conversations) in groups {
        let server = Beanstalk::start_ordered(topics);
        for conversation in conversations {
            if let Err(why) = play(&conversation, Server::Dq, || server.connect()) {
                failed.push(why);
            }
            server.clear("default");
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_client_from_pypi_works_unchanged() {
    let server = Beanstalk::start("", &["default", "mail"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("target/tools/python/bin/python");
    assert!(python.exists(), "{} is not there: make tools", python.display());
    let script = root.join("tests/beanstalk/client.py");
    let output = Command::new(python).arg(script).arg(server.port.to_string()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).ends_with("good\n"), "{}", text(&output.stdout));
}

#[test]
fn a_delay_of_a_second_is_a_second() {
    let server = Beanstalk::start("", &["default"]);
    let (mut client, mut other) = (server.client(), server.client());
    for _ in 0..5 {
        client.send("reserve\r\n");
        let put = Instant::now();
        let number = other.put(0, 1, 60, "x");
        let line = client.line();
        assert_eq!(client.read_job(&line).unwrap().0, number);
        let took = put.elapsed();
        assert!((SECOND..SECOND + 900 * MS).contains(&took), "{took:?}");
        let released = Instant::now();
        assert_eq!(client.ask(&format!("release {number} 0 1")), "RELEASED");
        assert_eq!(client.reserve(10).unwrap().0, number);
        assert!(released.elapsed() >= SECOND, "{:?}", released.elapsed());
        assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
    }
}

#[test]
fn a_ttr_is_as_long_as_the_client_says() {
    let server = Beanstalk::start_ordered(&["default"]);
    let (mut client, mut other) = (server.client(), server.client());
    let number = client.put(0, 0, 3, "x");
    // The topic of a new tube has the TTR of its first job. This job has another TTR.
    let short = client.put(0, 0, 2, "y");
    assert_eq!(client.reserve(0).unwrap().0, number);
    let reserved = Instant::now();
    assert_eq!(other.reserve(0).unwrap().0, short);
    assert_eq!(other.ask("reserve-with-timeout 30"), "DEADLINE_SOON");
    let warned = reserved.elapsed();
    assert!((SECOND - 100 * MS..2 * SECOND).contains(&warned), "{warned:?}");
    assert_eq!(other.ask(&format!("touch {short}")), "TOUCHED");
    assert_eq!(other.ask(&format!("delete {short}")), "DELETED");
    assert_eq!(client.ask(&format!("touch {number}")), "TOUCHED");
    let touched = Instant::now();
    assert_eq!(other.reserve(30).unwrap().0, number);
    let took = touched.elapsed();
    assert!((3 * SECOND - 50 * MS..6 * SECOND).contains(&took), "{took:?}");
    assert_eq!(client.ask(&format!("release {number} 0 0")), "NOT_FOUND");
    let stats = other.stats(&format!("stats-job {number}"));
    assert_eq!((&*stats["reserves"], &*stats["timeouts"]), ("2", "1"));
}

#[test]
fn a_closed_connection_gives_back_its_jobs() {
    let server = Beanstalk::start("", &["default"]);
    let mut client = server.client();
    for round in 0..10 {
        let number = client.put(0, 0, 3600, "x");
        let mut worker = server.client();
        assert_eq!(worker.job("reserve").unwrap().0, number);
        drop(worker);
        assert_eq!(client.reserve(10).unwrap().0, number, "round {round}");
        assert_eq!(
            client.stats(&format!("stats-job {number}"))["reserves"],
            "1",
            "the attempt is not counted"
        );
        assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
        // A client that disconnects while it waits gets no job.
        let mut waiting = server.client();
        waiting.send("list-tube-used\r\nreserve\r\n");
        assert_eq!(waiting.line(), "USING default");
        drop(waiting);
        let number = client.put(0, 0, 3600, "y");
        assert_eq!(client.reserve(10).unwrap().0, number, "round {round}");
        assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
    }
    assert_eq!(client.reserve(0), None);
}

#[test]
fn a_client_that_sends_no_more_gets_its_answers() {
    let server = Beanstalk::start("", &["default"]);
    for (sent, expected) in [
        ("reserve\r\nlist-tube-used\r\nreserve\r\n", "TIMED_OUT\r\nUSING default\r\nTIMED_OUT\r\n"),
        (
            "put 0 0 60 1\r\nx\r\nreserve\r\nlist-tube-used\r\n",
            "INSERTED N\r\nRESERVED N 1\r\nx\r\nUSING default\r\n",
        ),
    ] {
        let mut stream = server.connect();
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).unwrap();
        let number = got.split(['\r', ' ']).nth(1).filter(|_| got.starts_with("INSERTED")).unwrap_or("N");
        assert_eq!(got.replace(number, "N"), expected);
    }
    // The client has disconnected, so its job is handed back.
    assert!(server.client().reserve(10).is_some());
}

#[test]
fn a_killed_process_loses_no_job_and_repeats_no_delete() {
    let server = Beanstalk::start("", &["default"]);
    let mut inserted: HashSet<u64> = HashSet::new();
    let mut deleted: HashSet<u64> = HashSet::new();
    for _ in 0..3 {
        let mut client = server.client();
        for _ in 0..30 {
            inserted.insert(client.put(0, 0, 3600, "x"));
        }
        for turn in 0..20 {
            let (number, _) = client.job("reserve").unwrap();
            assert!(!deleted.contains(&number), "{number} comes again");
            if turn % 2 == 0 {
                assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
                deleted.insert(number);
            }
        }
        let before = server.daemon.wait_all_up(SLOTS);
        kill(before["dq-http-server"], Signal::SIGKILL).unwrap();
        assert_eq!(client.line(), "", "the connection ends");
        eventually(20 * SECOND, "another process", || {
            let now = server.daemon.wait_all_up(SLOTS);
            now.get("dq-http-server").filter(|pid| **pid != before["dq-http-server"]).map(drop)
        });
    }
    // The jobs that were reserved have a TTR of an hour. They are ready again at once, because their owner is dead.
    let mut client = server.client();
    for _ in 0..inserted.len() - deleted.len() {
        let (number, _) = client.reserve(10).expect("no job is lost");
        assert!(inserted.contains(&number) && deleted.insert(number), "{number} comes again");
        assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
    }
    assert_eq!(client.reserve(0), None);
    assert_eq!(inserted, deleted);
}

/// Begins a rolling restart, and waits until all processes are new.
fn restart(server: &Beanstalk) {
    let before = server.daemon.wait_all_up(SLOTS);
    server.daemon.signal(Signal::SIGUSR2);
    all_new(&server.daemon, &before);
}

#[test]
fn a_restart_keeps_connections_and_what_they_have() {
    let server = Beanstalk::start_ordered(&["default", "t"]);
    let [mut worker, mut waiting, mut timed, mut idle, mut half, mut body, mut piped] =
        std::array::from_fn(|_| server.client());
    let mut http = Http::tcp(&server.daemon);
    let (first, second) = (worker.put(1, 0, 3600, "1"), worker.put(2, 0, 3600, "2"));
    // The process gives a number to this job, because the job was added over HTTP.
    let job = json!({"id": "foreign", "body": 5, "delay": 0, "priority": 0});
    http.ask("POST", "/v1/topics/default/jobs", &job).is(201);
    let short = worker.put(3, 0, 20, "3");
    let foreign = worker.job("reserve").unwrap().0;
    for expected in [first, second, short] {
        assert_eq!(worker.job("reserve").unwrap().0, expected);
    }
    waiting.send("use t\r\nwatch t\r\nignore default\r\nreserve\r\nlist-tube-used\r\n");
    assert_eq!([waiting.line(), waiting.line(), waiting.line()], ["USING t", "WATCHING 2", "WATCHING 1"]);
    timed.send("ignore default\r\nreserve-with-timeout 12\r\n");
    assert_eq!(timed.line(), "NOT_IGNORED");
    let asked = Instant::now();
    assert_eq!(idle.ask("list-tube-used"), "USING default");
    half.send("list-tube-used\r\nlist-tu");
    body.send("list-tube-used\r\nput 9 30 60 5\r\nab");
    assert_eq!((half.line(), body.line()), ("USING default".to_owned(), "USING default".to_owned()));
    let pid = |client: &mut Client| client.stats("stats")["pid"].clone();
    let old = pid(&mut idle);
    assert_eq!(idle.ask("pause-tube t 1000"), "PAUSED");
    restart(&server);
    let left = |client: &mut Client| client.stats("stats-tube t")["pause-time-left"].parse::<u64>().unwrap();
    assert!((900..1000).contains(&left(&mut idle)), "the tube is still paused");
    half.send("be-used\r\n");
    body.send("cde\r\n");
    assert_eq!(half.line(), "USING default");
    assert!(body.line().starts_with("INSERTED "));
    assert_eq!(timed.line(), "TIMED_OUT");
    let took = asked.elapsed();
    assert!((12 * SECOND..20 * SECOND).contains(&took), "the timeout counts from its begin: {took:?}");
    let new = pid(&mut idle);
    assert_ne!(old, new, "the connection is with the new process");
    assert_eq!(worker.ask(&format!("touch {short}")), "TOUCHED");
    assert_eq!(worker.ask(&format!("delete {first}")), "DELETED");
    assert_eq!(worker.ask(&format!("release {foreign} 0 0")), "RELEASED");
    assert_eq!(worker.reserve(5).unwrap().0, foreign, "a number of the process before is kept");
    // The leases are passed to a second process, and then to a third one.
    let reserved_here = worker.put(0, 0, 3600, "6");
    assert_eq!(worker.reserve(5).unwrap().0, reserved_here);
    piped.send(&"put 5 100 60 1\r\nx\r\n".repeat(2000));
    restart(&server);
    for _ in 0..2000 {
        assert!(piped.line().starts_with("INSERTED "));
    }
    assert_ne!(new, pid(&mut worker));
    assert_eq!(worker.stats("stats")["draining"], "false");
    assert_eq!(worker.ask(&format!("delete {second}")), "DELETED");
    assert_eq!(worker.ask(&format!("delete {reserved_here}")), "DELETED");
    // The client that has waited since before the first restart gets its job, and its next command is answered.
    idle.ask("use t");
    let late = idle.put(0, 0, 60, "late");
    assert!((900..1000).contains(&left(&mut idle)), "after two restarts");
    assert_eq!(idle.ask("pause-tube t 0"), "PAUSED");
    let line = waiting.line();
    assert_eq!(waiting.read_job(&line).unwrap(), (late, b"late".to_vec()));
    assert_eq!(waiting.line(), "USING t");
    // If a process is killed, the leases that it took over from earlier processes are handed back.
    let before = server.daemon.wait_all_up(SLOTS);
    kill(before["dq-http-server"], Signal::SIGKILL).unwrap();
    assert_eq!(worker.line(), "");
    eventually(20 * SECOND, "another process", || {
        let now = server.daemon.wait_all_up(SLOTS);
        now.get("dq-http-server").filter(|pid| **pid != before["dq-http-server"]).map(drop)
    });
    let mut client = server.client();
    let mut back = HashSet::new();
    back.extend([client.reserve(10).unwrap().1, client.reserve(10).unwrap().1]);
    assert_eq!(back, HashSet::from([b"5".to_vec(), b"3".to_vec()]));
}

#[test]
fn kills_during_a_restart_lose_no_job_and_repeat_no_delete() {
    const CLIENTS: usize = 60;
    let server = Beanstalk::start("", &["default"]);
    let (mut alive, mut deleted, mut unsure) = (HashSet::new(), HashSet::new(), HashSet::new());
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..6 {
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
        for client in &mut clients {
            alive.insert(client.put(0, 0, 3600, "x"));
        }
        let held: Vec<u64> = clients.iter_mut().map(|client| client.reserve(20).unwrap().0).collect();
        assert!(held.iter().all(|number| alive.contains(number)), "round {round}: a deleted job is back");
        let before = server.daemon.wait_all_up(SLOTS);
        server.daemon.signal(Signal::SIGUSR2);
        // While connections are passed on, the old process or the new process is killed.
        let victim = match round % 2 {
            0 => before["dq-http-server"],
            _ => eventually(20 * SECOND, "a new process", || {
                let is_new = |pid: &Pid| {
                    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                    name.trim() == "dq-http-server" && *pid != before["dq-http-server"]
                };
                server.daemon.processes().into_iter().find(is_new)
            }),
        };
        // The process is killed at a random moment.
        std::thread::sleep(random.u32(0..1500) * MS);
        let _ = kill(victim, Signal::SIGKILL);
        for (client, number) in clients.iter_mut().zip(&held) {
            match client.try_ask(&format!("delete {number}")).as_str() {
                "DELETED" => assert!(alive.remove(number) && deleted.insert(*number)),
                // The lease has ended with the process, or another client has leased the job.
                "NOT_FOUND" => {}
                "INTERNAL_ERROR" | "" => drop(unsure.insert(*number)),
                other => panic!("round {round}: {other}"),
            }
        }
        drop(clients);
        server.daemon.wait_all_up(SLOTS);
    }
    // The TTR of the jobs is an hour. But the jobs are ready again soon, even if a killed process had taken over their
    // leases from another process.
    let mut back = HashSet::new();
    let mut client = server.client();
    let until = Instant::now() + 60 * SECOND;
    // If the answer to a delete was lost, the delete may have been done.
    while !alive.iter().all(|number| back.contains(number) || unsure.contains(number)) {
        assert!(
            Instant::now() < until,
            "{} of {} are back; log:\n{}",
            back.len(),
            alive.len(),
            server.daemon.log()
        );
        let Some((number, _)) = client.reserve(1) else { continue };
        assert!(!deleted.contains(&number), "{number} comes again");
        assert!(alive.contains(&number) && back.insert(number), "{number} comes twice");
        assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
    }
}

#[test]
fn without_a_new_process_clients_finish_their_jobs() {
    let server = Beanstalk::start_ordered(&["default"]);
    let (mut worker, mut waiting, mut idle) = (server.client(), server.client(), server.client());
    let (first, second) = (worker.put(0, 0, 3600, "1"), worker.put(0, 0, 3600, "2"));
    assert_eq!(worker.job("reserve").unwrap().0, first);
    assert_eq!(worker.job("reserve").unwrap().0, second);
    waiting.send("list-tube-used\r\nreserve\r\n");
    assert_eq!(waiting.line(), "USING default");
    assert_eq!(idle.ask("list-tube-used"), "USING default");
    let before = server.daemon.wait_all_up(SLOTS);
    kill(before["dq-http-server"], Signal::SIGTERM).unwrap();
    assert_eq!((waiting.line(), idle.line()), (String::new(), String::new()), "these connections are closed");
    assert_eq!(worker.ask(&format!("delete {first}")), "DELETED", "this one still has jobs");
    assert_eq!(worker.ask("put 0 0 1 1\r\nx"), "DRAINING");
    assert_eq!(worker.stats("stats")["draining"], "true");
    assert_eq!(worker.ask("reserve"), "", "it is closed instead of waiting");
    eventually(20 * SECOND, "another process", || {
        let now = server.daemon.wait_all_up(SLOTS);
        now.get("dq-http-server").filter(|pid| **pid != before["dq-http-server"]).map(drop)
    });
    let mut client = server.client();
    assert_eq!(client.reserve(10).unwrap().0, second, "its job is given back");
    assert_eq!(client.ask(&format!("delete {second}")), "DELETED");
    assert_eq!(server.client().reserve(0), None);
}

#[test]
fn a_node_that_is_down_loses_no_job_of_this_port() {
    const JOBS: usize = 60;
    let (a, mut b) = (RedisServer::start(), RedisServer::start());
    let nodes: String = [("a", a.url()), ("b", b.url())]
        .map(|(name, url)| format!("[[store.node]]\nname = \"{name}\"\nurl = \"{url}\"\n"))
        .concat();
    let port = free_port();
    let text = format!(
        "[beanstalk]\nlisten = \"127.0.0.1:{port}\"\n[store]\nbackend = \"redis\"\n{nodes}\
         [[topic]]\nname = \"default\"\nmode = \"pull\"\n"
    );
    let server = Beanstalk { daemon: Daemon::start(&text), port, _redis: None };
    let mut client = server.client();
    let put = |client: &mut Client, body: &str| {
        client.ask(&format!("put 5 0 3600 {}\r\n{body}", body.len())).split(' ').next().unwrap().to_owned()
    };
    // The jobs that must come, and the jobs that may come, because their put was not answered with success.
    let (mut stored, mut perhaps): (HashSet<Vec<u8>>, HashSet<Vec<u8>>) = Default::default();
    for n in 0..2 * JOBS {
        assert_eq!(put(&mut client, &format!("before {n}")), "INSERTED");
        stored.insert(format!("before {n}").into_bytes());
    }
    let (mut worker, mut leaver) = (server.client(), server.client());
    let mut held: Vec<(u64, Vec<u8>)> = (0..JOBS).map(|_| worker.reserve(20).unwrap()).collect();
    for _ in 0..JOBS / 2 {
        leaver.reserve(20).unwrap();
    }
    b.kill();
    for n in 0..JOBS {
        let body = format!("while down {n}");
        match put(&mut client, &body).as_str() {
            "INSERTED" => stored.insert(body.into_bytes()),
            "INTERNAL_ERROR" => perhaps.insert(body.into_bytes()),
            other => panic!("{other}"),
        };
    }
    assert!(perhaps.len() < JOBS / 2, "{} puts failed, although a node answers", perhaps.len());
    held.retain(|(number, body)| match worker.ask(&format!("delete {number}")).as_str() {
        "DELETED" => !stored.remove(body),
        "INTERNAL_ERROR" => true,
        other => panic!("{other}"),
    });
    assert!(!held.is_empty() && held.len() < JOBS, "{} jobs are on the node that is down", held.len());
    // The jobs of this client on the killed node cannot be handed back now.
    drop(leaver);
    let mut others = 0;
    while let Some((number, body)) = client.reserve(2) {
        assert!(stored.contains(&body) || perhaps.contains(&body));
        if client.ask(&format!("delete {number}")) == "DELETED" {
            stored.remove(&body);
            others += 1;
        }
    }
    assert!(others > 0, "jobs of the other node come");
    b.start_again();
    // The jobs that could not be deleted are still reserved by this connection.
    eventually(20 * SECOND, "the node", || {
        held.retain(|(number, body)| match worker.ask(&format!("delete {number}")).as_str() {
            "DELETED" => !stored.remove(body),
            "INTERNAL_ERROR" => true,
            other => panic!("{other}"),
        });
        held.is_empty().then_some(())
    });
    let until = Instant::now() + 60 * SECOND;
    while !stored.is_empty() {
        assert!(Instant::now() < until, "{} jobs are not back; log:\n{}", stored.len(), server.daemon.log());
        let Some((number, body)) = client.reserve(1) else { continue };
        assert!(stored.remove(&body) || perhaps.remove(&body), "{} comes again", body.escape_ascii());
        assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
    }
}

#[test]
fn a_silent_client_whose_lease_has_ended_is_idle() {
    let server = Beanstalk::start("idle_timeout = \"1s\"", &["default"]);
    let mut worker = server.client();
    worker.put(0, 0, 1, "x");
    worker.job("reserve").unwrap();
    let began = Instant::now();
    assert_eq!(worker.line(), "", "the connection ends");
    assert!(began.elapsed() > 2 * SECOND, "a connection with a lease is not idle");
}

#[test]
fn what_a_client_makes_grow_is_bounded() {
    let server = Beanstalk::start(
        "max_job_size = 100\nmax_connections_per_source = 3\nidle_timeout = \"2s\"",
        &["default"],
    );
    let mut client = server.client();
    assert_eq!(client.ask(&format!("put 0 0 60 101\r\n{}", "x".repeat(101))), "JOB_TOO_BIG");
    for n in 2..=32 {
        assert_eq!(client.ask(&format!("watch t{n}")), format!("WATCHING {n}"));
    }
    assert_eq!(client.ask("watch t33"), "OUT_OF_MEMORY");
    assert_eq!(client.ask("watch t32"), "WATCHING 32");
    for _ in 0..10 {
        let puts = "put 0 0 600 1\r\nx\r\n".repeat(100);
        client.send(&puts);
        for _ in 0..100 {
            assert!(client.line().starts_with("INSERTED "));
        }
    }
    let last = client.put(0, 0, 600, "x");
    let mut worker = server.client();
    for _ in 0..1000 {
        worker.job("reserve").unwrap();
    }
    assert_eq!(worker.ask("reserve"), "OUT_OF_MEMORY");
    assert_eq!(worker.ask(&format!("reserve-job {last}")), "OUT_OF_MEMORY");
    // A connection with jobs is not idle.
    let mut third = server.client();
    assert_eq!(third.ask("list-tube-used"), "USING default");
    assert_eq!(server.client().line(), "", "a fourth connection is closed");
    assert_eq!((client.line(), third.line()), (String::new(), String::new()), "they are idle");
    assert_eq!(worker.ask("list-tube-used"), "USING default");
    drop(worker);
    let mut client = server.client();
    assert!(client.reserve(10).is_some());
}

#[test]
fn scopes_bound_what_clients_do() {
    let topics = "[[topic]]\nname = \"a\"\nmode = \"pull\"\n[[topic]]\nname = \"b\"\nmode = \"pull\"\n\
                  [[topic]]\nname = \"c\"\nmode = \"pull\"\n[[topic]]\nname = \"push\"\ncallback = \"http://127.0.0.1:9/\"\n";
    let port = free_port();
    let text = format!(
        "[beanstalk]\nlisten = \"127.0.0.1:{port}\"\nscopes = [\"produce:a\", \"consume:b\", \"produce:push\", \
         \"produce:none\"]\n{topics}"
    );
    let server = Beanstalk { daemon: Daemon::start(&text), port, _redis: None };
    let mut http = Http::tcp(&server.daemon);
    for topic in ["a", "b", "c"] {
        let job = json!({"id": "one", "body": {"of": topic}, "delay": 0});
        http.ask("POST", &format!("/v1/topics/{topic}/jobs"), &job).is(201);
    }
    let mut client = server.client();
    for (tube, answer) in [
        ("a", "INSERTED"),
        ("b", "INTERNAL_ERROR"),
        ("c", "INTERNAL_ERROR"),
        ("push", "INTERNAL_ERROR"),
        ("none", "INTERNAL_ERROR"),
    ] {
        client.ask(&format!("use {tube}"));
        // The job that was added over HTTP has the priority 2147483648, and comes before this job.
        let line = client.ask("put 4294967295 0 60 1\r\nx");
        assert!(line.starts_with(answer), "{tube}: {line}");
        client.ask(&format!("watch {tube}"));
    }
    // The log names a tube without a topic once, and says what to do.
    client.ask("use none");
    assert!(client.ask("put 0 0 60 1\r\nx").starts_with("INTERNAL_ERROR"));
    let log = server.daemon.log();
    assert_eq!(log.matches("add it with `dq topics set none --mode pull`").count(), 1, "{log}");
    // Jobs that were added over HTTP have numbers, too. Their body is their JSON text.
    let (number, body) = client.reserve(0).unwrap();
    assert_eq!(body, br#"{"of":"b"}"#);
    assert_eq!(client.stats(&format!("stats-job {number}"))["tube"], "b");
    assert_eq!(client.reserve(0), None, "the jobs of a and c may not be reserved");
    // Only a producer may delete or kick a job that this connection has not reserved.
    http.ask("POST", "/v1/topics/b/jobs", &json!({"id": "two", "body": 2, "delay": "1h"})).is(201);
    client.ask("use b");
    let delayed = client.job("peek-delayed").unwrap().0;
    for command in [format!("delete {delayed}"), format!("kick-job {delayed}"), "kick 1".to_owned()] {
        assert_eq!(client.ask(&command), "INTERNAL_ERROR", "{command}");
    }
    assert_eq!(http.get("/v1/topics/b/jobs/two").is(200)["state"], "delayed");
    assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
    http.get("/v1/topics/b/jobs/one").is_problem(404, "not_found", None);
    client.ask("use a");
    assert_eq!(client.job("peek-ready").unwrap().1, br#"{"of":"a"}"#);
    client.ask("use c");
    assert_eq!(client.ask("peek-ready"), "NOT_FOUND");
    assert_eq!(client.ask("stats-tube c").split(' ').next(), Some("OK"), "it is used");
}

#[test]
fn a_job_is_seen_over_http_as_it_is_stored() {
    let server = Beanstalk::start("", &["default", "tube--jobs-2fa"]);
    let mut client = server.client();
    assert_eq!(client.ask("use jobs/a"), "USING jobs/a");
    let (text, bytes) = (client.put(7, 100, 30, "caf\u{e9} \"1\""), {
        client.lines.get_mut().write_all(b"put 8 0 40 3\r\n\0\xff\n\r\n").unwrap();
        client.line().strip_prefix("INSERTED ").unwrap().parse::<u64>().unwrap()
    });
    let mut http = Http::tcp(&server.daemon);
    let job = http.get(&format!("/v1/topics/tube--jobs-2fa/jobs/{text}")).is(200);
    assert_eq!(job["body"], "caf\u{e9} \"1\"");
    assert_eq!(job["headers"], json!({"beanstalk-ttr": "30", "beanstalk-delay": "100"}));
    assert_eq!(job["priority"], 7);
    let job = http.get(&format!("/v1/topics/tube--jobs-2fa/jobs/{bytes}")).is(200);
    assert_eq!((&job["body"], &job["headers"]["beanstalk-body"]), (&json!("AP8K"), &json!("base64")));
    if !on_redis() {
        assert_eq!(http.get("/v1/topics/tube--jobs-2fa").is(200)["title"], "jobs/a");
    }
    client.ask("watch jobs/a");
    assert_eq!(client.reserve(5).unwrap(), (bytes, b"\0\xff\n".to_vec()));
    assert_eq!(client.ask(&format!("bury {bytes} 9")), "BURIED");
    let job = http.get(&format!("/v1/topics/tube--jobs-2fa/jobs/{bytes}")).is(200);
    assert_eq!((&job["state"], &job["priority"]), (&json!("dead"), &json!(9)));
    assert_eq!(job["log"][0]["error"], "buried with priority 9");
}

#[test]
fn pipelined_puts_come_out_in_their_order() {
    let server = Beanstalk::start_ordered(&["default"]);
    let mut client = server.client();
    let puts: String = (0..500).map(|n| format!("put 0 0 60 3\r\n{n:03}\r\n")).collect();
    client.send(&puts);
    let numbers: HashSet<String> = (0..500).map(|_| client.line()).collect();
    assert_eq!(numbers.len(), 500);
    for n in 0..500 {
        let (number, body) = client.reserve(5).unwrap();
        assert_eq!(body, format!("{n:03}").into_bytes());
        assert_eq!(client.ask(&format!("delete {number}")), "DELETED");
    }
}

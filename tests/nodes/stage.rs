//! The stage of a test: the servers, a daemon that uses them, and the clients. The functions here cause the faults, and
//! inspect the store at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::change::{Running, Set};
use crate::clients::{Clients, Line, exchange};
use crate::ledger::{Census, Count, Found, History, Id, Micros, Operation, OperationKind, Outcome, Span};
use crate::requests::{Ask, Fate};
use crate::schedule::{Fault, Schedule};
use crate::servers::{Lag, Node};
use crate::sink::Sink;
use crate::support::{Daemon, SECOND, SLOTS, eventually};

/// How long the test waits until no job is ready or leased any more. Jobs with abandoned leases come last.
pub const SETTLE: Duration = Duration::from_secs(20);

/// The servers, the daemon, the clients, and the history of all of them.
pub struct Stage {
    pub nodes: Vec<Node>,
    pub set: Set,
    pub config: PathBuf,
    pub sink: Sink,
    pub clients: Clients,
    pub history: History,
    running: Option<(usize, Running)>,
    /// The stopped processes: the name, the process id, and the time when it was stopped.
    stopped: Vec<(String, Pid, Micros)>,
    /// The node whose replica lags or was promoted, its servers, and the time since which it lags.
    lag: Option<(usize, Lag, Micros)>,
    pub daemon: Daemon,
}

impl Stage {
    /// Starts a daemon on these nodes. `away`: the nodes that its configuration does not name yet. `more`: additional
    /// lines for the topic `t`.
    pub fn start(nodes: Vec<Node>, away: &[usize], more: &str) -> Stage {
        let begun = Instant::now();
        let sink = Sink::start(begun);
        let sections =
            nodes.iter().enumerate().map(|(n, node)| (format!("r{n}"), node.section(&format!("r{n}"))));
        let set = Set::new(sections.collect(), away, sink.topics(more));
        let daemon = Daemon::start(&set.config());
        let clients = Clients::new(begun, daemon.port, daemon.http);
        let config = daemon.dir.path().join("dq.toml");
        Stage {
            nodes,
            set,
            config,
            sink,
            clients,
            daemon,
            history: History::default(),
            running: None,
            stopped: Vec::new(),
            lag: None,
        }
    }

    /// Returns the history, with all callbacks that the sink got.
    pub fn end(self) -> History {
        let mut history = self.history;
        history.deliveries = self.sink.deliveries();
        history
    }

    /// Plays the schedule: clients send requests, and faults occur. Returns the requests.
    pub fn disturb(&mut self, schedule: &Schedule) -> Vec<Operation> {
        let clients = Clients::new(self.clients.begun, self.daemon.port, self.daemon.http);
        let from = clients.now();
        std::thread::scope(|scope| {
            let tcp = schedule.lines.iter().map(|batches| scope.spawn(|| clients.play_tcp(batches)));
            let mut players: Vec<_> = tcp.collect();
            players.extend(schedule.http.iter().map(|batches| scope.spawn(|| clients.play_http(batches))));
            for (at, fault) in &schedule.faults {
                self.wait_until(from + at);
                self.act(*fault);
            }
            self.wait_until(from + schedule.length);
            clients.is_over.store(true, Ordering::SeqCst);
            self.let_all_go_on();
            players.into_iter().flat_map(|player| player.join().unwrap()).collect()
        })
    }

    fn wait_until(&mut self, at: Micros) {
        while self.clients.now() < at {
            self.follow_command();
            std::thread::sleep(Duration::from_micros((at - self.clients.now().min(at)).min(10_000)));
        }
    }

    /// Removes a node from the configuration after the command has emptied the node.
    fn follow_command(&mut self) {
        let Some((node, running)) = &mut self.running else { return };
        if let Some(well) = running.ended() {
            if well {
                self.set.is_taken_out(*node);
                self.set.write(&self.daemon);
                self.signal_master(Signal::SIGHUP);
            }
            self.running = None;
        }
    }

    pub fn act(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(n) => self.nodes[n].kill(),
            Fault::Start(n) => self.nodes[n].start(),
            Fault::Stop(n) => {
                self.nodes[n].hang(true);
                self.stopped.push((format!("r{n}"), Pid::from_raw(0), self.clients.now()));
            }
            Fault::Continue(n) => {
                self.nodes[n].hang(false);
                self.is_going_on(&format!("r{n}"));
            }
            Fault::KillProcess(role) => self.signal_child(role, Signal::SIGKILL),
            Fault::StopProcess(role) => {
                if let Some(pid) = self.daemon.children().get(role).copied() {
                    let _ = kill(pid, Signal::SIGSTOP);
                    self.stopped.push((role.to_owned(), pid, self.clients.now()));
                }
            }
            Fault::ContinueProcess(role) => self.is_going_on(role),
            Fault::KillMaster => self.replace_master(),
            Fault::Hup => self.signal_master(Signal::SIGHUP),
            Fault::Usr2 => self.signal_master(Signal::SIGUSR2),
            Fault::Lag(n) => self.lag = self.nodes[n].lag().map(|lag| (n, lag, self.clients.now())),
            Fault::Promote(_) => {
                if let Some((n, lag, _)) = self.lag {
                    self.nodes[n].promote(lag);
                }
            }
            Fault::Rejoin(_) => self.rejoin(),
            Fault::TakeOut(n) => {
                let command = self.set.take_out(n, &self.config);
                self.running = Some((n, Running::start(command)));
            }
            Fault::BreakOff => self.running = None,
            Fault::BringBack(n) => {
                self.running = None;
                self.bring_back(n);
            }
        }
    }

    fn signal_master(&self, signal: Signal) {
        let _ = kill(self.daemon.pid(), signal);
    }

    fn signal_child(&self, role: &str, signal: Signal) {
        if let Some(pid) = self.daemon.children().get(role) {
            let _ = kill(*pid, signal);
        }
    }

    fn is_going_on(&mut self, what: &str) {
        let now = self.clients.now();
        for (_, pid, from) in self.stopped.extract_if(.., |(name, ..)| name == what) {
            if pid.as_raw() > 0 {
                let _ = kill(pid, Signal::SIGCONT);
            }
            self.history.stops.push(Span { from, to: now });
        }
    }

    /// Lets all stopped processes continue.
    fn let_all_go_on(&mut self) {
        self.nodes.iter().for_each(|node| node.hang(false));
        let all: Vec<String> = self.stopped.iter().map(|(name, ..)| name.clone()).collect();
        all.iter().for_each(|name| self.is_going_on(name));
    }

    /// Kills the master, and starts another one in its folder.
    fn replace_master(&mut self) {
        self.daemon.kill_master();
        self.daemon = Daemon::again(&self.daemon);
    }

    fn rejoin(&mut self) {
        let Some((node, lag, since)) = self.lag.take() else { return };
        let now = self.clients.now();
        if !self.nodes[node].is_promoted(lag) {
            eventually(20 * SECOND, "a promoted replica", || self.nodes[node].is_promoted(lag).then_some(()));
        }
        // A change that was acknowledged just before the replica was lost may not have reached the replica.
        let to = now.max(self.clients.now()) + 1_000_000;
        self.history.weak.push(Span { from: since.saturating_sub(1_000_000), to });
        self.nodes[node].rejoin(lag);
    }

    fn bring_back(&mut self, node: usize) {
        self.set.name(node);
        self.set.write(&self.daemon);
        self.signal_master(Signal::SIGHUP);
        Running::start(self.set.bring_back(node, &self.config)).wait_or_kill(2 * SECOND);
    }

    /// Repairs everything.
    pub fn mend(&mut self) {
        self.running = None;
        if let Some((node, lag, _)) = self.lag
            && !self.nodes[node].is_promoted(lag)
        {
            self.nodes[node].promote(lag);
        }
        self.rejoin();
        for node in &mut self.nodes {
            if let Some(server) = node.server()
                && server.cli(&["ping"]).trim() != "PONG"
            {
                server.start_again();
            }
        }
        // If the processes of the old master held the port for too long, the new master has ended.
        if !crate::support::lives(self.daemon.pid()) {
            self.replace_master();
        }
        for node in 0..self.nodes.len() {
            self.set.name(node);
        }
        self.set.write(&self.daemon);
        self.signal_master(Signal::SIGHUP);
        eventually(30 * SECOND, "nodes that are looked at", || {
            Running::start(self.set.look(&self.config)).wait_or_kill(10 * SECOND).then_some(())
        });
        for node in 0..self.nodes.len() {
            eventually(20 * SECOND, "a node that is brought back", || {
                Running::start(self.set.bring_back(node, &self.config))
                    .wait_or_kill(10 * SECOND)
                    .then_some(())
            });
        }
        self.daemon.wait_ready();
        self.daemon.wait_all_up(SLOTS);
    }

    /// Waits until the spool of the host is empty.
    fn wait_for_spool(&mut self) {
        let settings = model::settings::SpoolSettings {
            path: self.daemon.dir.path().join("var/spool.db"),
            bytes: 1 << 30,
        };
        let spool = store::Spool::open(&settings).unwrap();
        let is_empty = || spool.is_empty().is_ok_and(|is_empty| is_empty).then_some(());
        eventually(30 * SECOND, &format!("an empty spool; log:\n{}", self.daemon.log()), is_empty);
        self.history.spools_empty_at.get_or_insert(self.clients.now());
    }

    /// Returns the calls that took a server more than 10 ms since it was last started: how many, and the longest in ms.
    pub fn slow_calls(&mut self) -> (usize, u64) {
        let (mut calls, mut longest) = (0, 0);
        for server in self.nodes.iter_mut().filter_map(Node::server) {
            let asked = redis::Client::open(server.url()).and_then(|client| {
                let mut connection = client.get_connection()?;
                redis::cmd("SLOWLOG").arg("GET").arg(128).query::<Vec<Vec<redis::Value>>>(&mut connection)
            });
            for call in asked.unwrap_or_default() {
                calls += 1;
                if let Some(redis::Value::Int(us)) = call.get(2) {
                    longest = longest.max(*us as u64 / 1000);
                }
            }
        }
        (calls, longest)
    }

    /// Redrives all dead letters of a topic, so that they are due after this delay. Returns how many were redriven.
    pub fn redrive_all(&mut self, topic: &str, delay: &str) -> u64 {
        let sent = self.clients.now();
        let path = format!("/v1/topics/{topic}/dead/redrive");
        let body = serde_json::json!({"delay": delay, "limit": 100_000});
        let Ok((200, answer)) = exchange(self.clients.http, "POST", &path, &body) else { return 0 };
        let answered = self.clients.now();
        let ids: Vec<Id> = self.ids().into_iter().filter(|id| id.topic() == topic).collect();
        for (n, id) in ids.into_iter().enumerate() {
            let (line, number) = (u64::MAX, n as u64);
            let (operation_kind, outcome) = (OperationKind::Redrive, Outcome::Done);
            self.history.operations.push(Operation {
                id,
                line,
                number,
                operation_kind,
                sent,
                answered,
                outcome,
            });
        }
        answer["redriven"].as_u64().unwrap_or(0)
    }

    /// Sends these requests on one new connection, a hundred at once, and records the answers.
    pub fn ask(&mut self, asks: &[Ask]) -> Vec<Outcome> {
        let mut line = Line::new(&self.clients);
        for some in asks.chunks(100) {
            line.play(&some.iter().map(|ask| vec![*ask]).collect::<Vec<_>>());
        }
        let outcomes = line.noted.iter().map(|o| o.outcome.clone()).collect();
        self.history.operations.append(&mut line.noted);
        outcomes
    }

    /// Returns all ids that were ever asked for.
    fn ids(&self) -> BTreeSet<Id> {
        self.history.operations.iter().map(|o| o.id).collect()
    }

    /// Asks for each id until each is answered, or until the deadline.
    pub fn find(&mut self, deadline: Instant) -> BTreeMap<Id, Found> {
        let (mut left, mut found): (Vec<Id>, _) = (self.ids().into_iter().collect(), BTreeMap::new());
        while !left.is_empty() {
            let ask = |id: &Id| Ask { id: *id, operation_kind: OperationKind::Get, fate: Fate::Accepted };
            let outcomes = self.ask(&left.iter().map(ask).collect::<Vec<_>>());
            let is_over = Instant::now() > deadline;
            let mut again = Vec::new();
            for (id, outcome) in left.into_iter().zip(outcomes) {
                let what = match outcome {
                    Outcome::Shown(version) if matches!(id, Id::Failing(_)) && self.is_dead(id) => {
                        Found::Dead(version)
                    }
                    Outcome::Shown(version) => Found::Pending(version),
                    Outcome::NotFound => Found::Nothing,
                    other if is_over => Found::NoAnswer(format!("{other:?}")),
                    _ => {
                        again.push(id);
                        continue;
                    }
                };
                found.insert(id, what);
            }
            left = again;
        }
        found
    }

    /// Whether an id has a dead letter, and no pending job. (Over TCP, a get does not say this.) A job of a failing id
    /// may still be pending: if it was moved to a server with a clock that is behind, its second attempt comes late.
    fn is_dead(&self, id: Id) -> bool {
        let path = format!("/v1/topics/{}/jobs/{id}", id.topic());
        let answer = exchange(self.clients.http, "GET", &path, &serde_json::Value::Null);
        matches!(answer, Ok((200, job)) if job["state"] == "dead")
    }

    /// Returns the store's counts, and whether no job is ready or leased. `None`: the store cannot answer now.
    pub fn reported_count(&self) -> Option<(Count, bool)> {
        let mut client = cli::TcpClient::connect(self.clients.tcp, protocol::dq::Framing::Binary).ok()?;
        let (mut count, mut is_quiet) = (Count::default(), true);
        for topic in ["t", "failing", "pulled"] {
            let answer = client.ask(&serde_json::json!({"cmd": "stats", "topic": topic})).ok()?;
            let counts = &answer["data"][topic];
            (answer["code"] == 1).then_some(())?;
            let of = |state: &str| counts[state].as_u64().unwrap_or(0);
            count.pending += of("delayed") + of("ready") + of("leased");
            count.dead += of("dead");
            is_quiet &= of("ready") + of("leased") == 0;
        }
        Some((count, is_quiet))
    }

    /// Waits until no job is ready or leased, and compares the store's counts with the jobs that can be found.
    pub fn look(&mut self, when: &'static str, patience: Duration) {
        self.wait_for_spool();
        let deadline = Instant::now() + patience;
        loop {
            let is_last = Instant::now() > deadline;
            let reported = self.reported_count();
            if let Some((reported, is_quiet)) = reported
                && (is_quiet || is_last)
            {
                let found = self.find(deadline);
                let count = |is: fn(&Found) -> bool| found.values().filter(|found| is(found)).count() as u64;
                let counted = Count {
                    pending: count(|found| matches!(found, Found::Pending(_))),
                    dead: count(|found| matches!(found, Found::Dead(_))),
                };
                if counted == reported || is_last {
                    self.history.censuses.push(Census { when, reported, found: counted });
                    self.history.left = found;
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Makes all jobs due, and waits until they are delivered. Each of these two steps may take the time `patience`.
    pub fn release(&mut self, patience: Duration) {
        self.sink.accept_all();
        let left = self.history.left.iter().filter(|(_, found)| **found != Found::Nothing).map(|(id, _)| *id);
        let (dead, mut pending): (Vec<Id>, Vec<Id>) =
            left.partition(|id| matches!(self.history.left[id], Found::Dead(_)));
        for id in dead {
            let asked = self.clients.ask_http(&Ask {
                id,
                operation_kind: OperationKind::Redrive,
                fate: Fate::Accepted,
            });
            self.history.operations.push(asked);
        }
        let deadline = Instant::now() + patience;
        while !pending.is_empty() && Instant::now() < deadline {
            let ask = |id: &Id| Ask { id: *id, operation_kind: OperationKind::Run, fate: Fate::Accepted };
            let asked = self.ask(&pending.iter().map(ask).collect::<Vec<_>>());
            let again = |(_, outcome): &(&Id, Outcome)| match outcome {
                Outcome::Refused(why) => why != "conflict",
                outcome => *outcome == Outcome::Unknown,
            };
            pending = pending.iter().zip(asked).filter(again).map(|(id, _)| *id).collect();
        }
        self.look("after all was delivered", patience);
    }
}

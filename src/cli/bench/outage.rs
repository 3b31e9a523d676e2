//! Measures adds to one of several Redis nodes, with all nodes and while another node is down.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::daemon::{BenchDaemon, Store};
use super::load::{LoadTarget, SendMode, StopCondition, Workload, fire};
use super::report::{BenchReport, median};
use super::workloads::TcpAddWorkload;
use super::works::{BenchResult, DAY_MS, ROUNDS, jobs};
use super::{BenchOutage, OutageKind};
use model::job::{JobId, JobKey, TopicName};
use store::Lanes;

/// How long a node may take until it accepts adds again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Adds of jobs over TCP. All of these jobs have the same home node.
struct HomeNodeAddWorkload<'a> {
    adds: TcpAddWorkload,
    lanes: &'a Lanes,
    node: usize,
    next: u64,
}

impl HomeNodeAddWorkload<'_> {
    fn home(&self, number: u64) -> usize {
        let TcpAddWorkload(jobs) = &self.adds;
        let topic = TopicName::new(&jobs.topic(number)).expect("the measurement's own topic");
        let id = JobId::new(jobs.id(number)).expect("the measurement's own id");
        self.lanes.lane_of(&JobKey { topic, id })
    }
}

impl Workload for HomeNodeAddWorkload<'_> {
    fn ask(&mut self, _: u64, out: &mut Vec<u8>) {
        while self.home(self.next) != self.node {
            self.next += 1;
        }
        self.adds.ask(self.next, out);
        self.next += 1;
    }

    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
        let spooled = br#""spooled":true"#;
        let answer = self.adds.answer(bytes)?;
        Ok(answer
            .map(|(end, done)| (end, done && !bytes[..end].windows(spooled.len()).any(|w| w == spooled))))
    }
}

pub(super) fn run(outage: &BenchOutage) -> BenchResult {
    let BenchOutage { clients, depth, time, absence, daemon } = outage;
    if daemon.store != Store::Redis || daemon.nodes < 2 {
        bail!("an outage of a node needs --store redis and --nodes 2 or more");
    }
    let mut stage = BenchDaemon::start(daemon)?;
    let settings = super::super::settings(&stage.folder().join("dq.toml"))?;
    let lanes = Lanes::new(&settings.store)?;
    let (stays, goes) = (0, 1);
    let (send_mode, until) =
        (SendMode::Closed { depth: *depth as usize }, StopCondition::Time(*time / ROUNDS));
    let to_node = |run: String, node| {
        let adds = TcpAddWorkload(jobs(&run, daemon.topics, clients.size, (DAY_MS, DAY_MS)));
        HomeNodeAddWorkload { adds, lanes: &lanes, node, next: 0 }
    };
    let measure = |stage: &BenchDaemon, run: String| -> Result<f64> {
        let target = LoadTarget::new(stage.server, clients.connections);
        let volley = fire(target, send_mode, until, &mut to_node(run, stays))?;
        if volley.failed > 0 {
            bail!("{} adds were not taken by their node, although it is up", volley.failed);
        }
        Ok(volley.per_second())
    };
    // The first adds to an empty node are much faster than all later ones. So this measurement is not used.
    measure(&stage, "first-".to_owned())?;
    let mut with = vec![measure(&stage, "w-".to_owned())?];
    let mut without = Vec::new();
    for round in 0..ROUNDS {
        stage.take_node_away(goes, *absence)?;
        without.push(measure(&stage, format!("o{round}-"))?);
        stage.bring_node_back(goes, *absence)?;
        let begun = Instant::now();
        let mut one = to_node(format!("b{round}-"), goes);
        while fire(LoadTarget::new(stage.server, 1), send_mode, StopCondition::Count(1), &mut one)?.done == 0
        {
            if begun.elapsed() > PATIENCE {
                bail!("the node that was away does not take adds again");
            }
        }
        with.push(measure(&stage, format!("w{round}-"))?);
    }
    let settings = format!(
        "{} nodes, of which one {}, {} connections, {depth} in flight each, {} bytes",
        daemon.nodes,
        match absence {
            OutageKind::Killed => "is killed",
            OutageKind::Hung => "hangs",
        },
        clients.connections,
        clients.size
    );
    // A node adds more slowly the more jobs it has: the time for an add grows by a nearly constant amount. So the time
    // for an add in an outage is compared with the mean of the times before and after the outage.
    let ratio = |(with, without): (&[f64], &f64)| without * (1.0 / with[0] + 1.0 / with[1]) / 2.0;
    let ratios = with.windows(2).zip(&without).map(ratio).collect();
    let mut report = BenchReport::new("outage", settings);
    report.figure("adds with all nodes", median(with), "/s");
    report.figure("adds without one", median(without), "/s");
    report.ratio("ratio", median(ratios), 1.0, "adds with all nodes");
    Ok((report, true))
}

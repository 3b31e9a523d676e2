//! Checks the nodes of the store: whether they answer, their settings, and their clocks.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::judge::CheckResult;
use super::judge_node::{self, DurabilityRequirements, RedisServerReport};
use model::settings::Settings;
use store::{Lanes, ServerQuery, StoreError};

/// Checks the nodes of the store, if it is Redis.
pub(super) fn check(settings: &Settings) -> Vec<CheckResult> {
    let lanes = match Lanes::new(&settings.store) {
        Ok(lanes) => lanes,
        Err(e) => return vec![CheckResult::fail("nodes", e.to_string())],
    };
    lanes.set_topics(&super::topics::known(settings));
    let asked =
        DurabilityRequirements { levels: lanes.asked_levels(), allows_snapshots: lanes.allows_snapshots() };
    // Each node has its own thread, so that a node that hangs does not delay the others.
    let looks: Vec<_> = (0..lanes.count())
        .map(|lane| {
            let (lanes, asked) = (lanes.clone(), asked.clone());
            std::thread::spawn(move || of(&lanes, lane, &asked))
        })
        .collect();
    looks.into_iter().flat_map(|look| look.join().unwrap_or_default()).collect()
}

fn of(lanes: &Lanes, lane: usize, asked: &DurabilityRequirements) -> Vec<CheckResult> {
    let name = lanes.name(lane).unwrap_or_default();
    let mut servers: BTreeMap<String, RedisServerReport> = BTreeMap::new();
    let (asked_at, begun) = (SystemTime::now(), Instant::now());
    for probed in lanes.probe(lane, ServerQuery::Time) {
        let server = servers.entry(probed.server).or_default();
        match probed.values {
            Ok(values) => {
                let now_us = values.get("us").and_then(|us| us.parse().ok());
                server.ahead_ms =
                    now_us.map_or(0, |us| ahead_ms(us, asked_at, begun.elapsed().as_micros() as i128));
            }
            Err(StoreError::NodeDown(why)) => server.down = Some(why),
            Err(e) => server.down = Some(e.to_string()),
        }
    }
    for (probe, is_info) in [(ServerQuery::Info, true), (ServerQuery::Config, false)] {
        for probed in lanes.probe(lane, probe) {
            if let (Some(server), Ok(values)) = (servers.get_mut(&probed.server), probed.values) {
                *(if is_info { &mut server.info } else { &mut server.config }) = values;
            }
        }
    }
    let is_one = servers.len() < 2;
    let named = |at: &str| if is_one { name.to_owned() } else { format!("{name} at {at}") };
    servers.iter().flat_map(|(at, server)| judge_node::node(&named(at), server, asked)).collect()
}

/// Returns by how many milliseconds a server's clock is ahead. `way_us` is the time between the request and the answer.
/// The server read its clock within this time. So a difference from 0 to `way_us` counts as 0.
fn ahead_ms(now_us: i128, asked: SystemTime, way_us: i128) -> i64 {
    let asked_us = asked.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i128);
    let off = now_us - asked_us;
    let beyond = if off < 0 { off } else { (off - way_us).max(0) };
    (beyond / 1000) as i64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_the_way_explains_is_no_difference() {
        let asked = UNIX_EPOCH + Duration::from_secs(1000);
        for (us, off) in [(0, 0), (80_000, 0), (100_000, 20), (-70_000, -70)] {
            assert_eq!(ahead_ms(1_000_000_000 + us, asked, 80_000), off, "{us}");
        }
    }
}

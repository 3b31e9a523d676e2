//! Finds the processes that are started again and again. Pure: it judges what dq-master reports of each slot.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::finding_kind::FindingKind;
use super::findings::FoundConditions;
use model::status::DaemonStatus;

/// A process with this number of restarts within the configured time is a finding. The finding closes when the same
/// time has passed without a restart.
const MOST: usize = 3;

/// The restarts of each slot. They are kept when this process itself restarts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Restarts {
    /// When the master that reported these restarts was started.
    master_ms: i64,
    slots: BTreeMap<String, SlotRestarts>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct SlotRestarts {
    /// How many restarts the slot has had in all.
    seen: u32,
    /// When the last restarts were, in Unix milliseconds.
    at_ms: Vec<i64>,
    /// The reason of the last restart.
    reason: String,
    is_open: bool,
}

impl Restarts {
    /// Takes the master's present status. Returns what is wrong now.
    pub(super) fn check(&mut self, status: &DaemonStatus, within: Duration, now_ms: i64) -> FoundConditions {
        let text = humantime::format_duration(within);
        let within = within.as_millis() as i64;
        if self.master_ms != status.started_ms {
            // A new master counts from 0.
            *self = Restarts { master_ms: status.started_ms, slots: BTreeMap::new() };
        }
        // If there are several generations, only the generation that serves counts.
        for process in status.processes.iter().filter(|p| p.generation == status.generation) {
            let is_known = self.slots.contains_key(&process.name);
            let slot = self.slots.entry(process.name.clone()).or_default();
            let new = process.restarts.saturating_sub(slot.seen) as usize;
            slot.seen = process.restarts;
            let end =
                process.last_end.as_ref().filter(|end| new > 0 && (is_known || now_ms - end.at_ms < within));
            if let Some(end) = end {
                slot.at_ms.extend(std::iter::repeat_n(end.at_ms, new.min(MOST)));
                slot.reason.clone_from(&end.reason);
            }
            slot.at_ms.retain(|at| (now_ms - at).abs() < within);
            slot.is_open = slot.at_ms.len() >= MOST || slot.is_open && !slot.at_ms.is_empty();
        }
        self.slots.retain(|name, _| status.processes.iter().any(|p| p.name == *name));
        let describe = |(name, slot): (&String, &SlotRestarts)| {
            let detail = format!("{} times within {text}, at last: {}", slot.at_ms.len(), slot.reason);
            slot.is_open.then(|| (FindingKind::ProcessRestarting(name.clone()), detail))
        };
        self.slots.iter().filter_map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::status::{MasterPhase, Process, ProcessState, UnexpectedExit};

    fn status(started_ms: i64, restarts: u32, at_ms: i64) -> DaemonStatus {
        let process = Process {
            name: "dq-timer-0".into(),
            generation: 1,
            state: ProcessState::Up,
            pid: None,
            started_ms: None,
            overdue_ms: 0,
            restarts,
            last_end: (restarts > 0).then(|| UnexpectedExit { at_ms, reason: "was ended by SIGKILL".into() }),
            memory_bytes: None,
            cpu_ms: None,
        };
        DaemonStatus {
            version: String::new(),
            instance: String::new(),
            pid: 1,
            started_ms,
            phase: MasterPhase::Steady,
            generation: 1,
            renewal: None,
            listening: Vec::new(),
            store: String::new(),
            processes: vec![process],
            findings: Vec::new(),
        }
    }

    const MINUTE: i64 = 60_000;
    const WITHIN: Duration = Duration::from_secs(300);

    #[test]
    fn three_restarts_in_five_minutes_are_reported_until_quiet() {
        let mut restarts = Restarts::default();
        let mut look = |n, at_ms, now_ms| !restarts.check(&status(0, n, at_ms), WITHIN, now_ms).is_empty();
        assert!(!look(0, 0, MINUTE));
        assert!(!look(1, MINUTE, MINUTE));
        assert!(!look(2, 4 * MINUTE, 4 * MINUTE));
        // The first restart is too long ago.
        assert!(!look(3, 6 * MINUTE + 1, 6 * MINUTE + 1));
        assert!(look(4, 7 * MINUTE, 7 * MINUTE));
        assert!(look(4, 7 * MINUTE, 12 * MINUTE - 1));
        assert!(!look(4, 7 * MINUTE, 12 * MINUTE));
        assert!(!look(5, 13 * MINUTE, 13 * MINUTE));
    }

    #[test]
    fn a_restarted_checker_continues_and_a_new_master_counts_anew() {
        let mut restarts = Restarts::default();
        assert!(restarts.check(&status(0, 2, MINUTE), WITHIN, MINUTE).is_empty());
        let mut next: Restarts = serde_json::from_str(&serde_json::to_string(&restarts).unwrap()).unwrap();
        assert_eq!(next.check(&status(0, 3, 2 * MINUTE), WITHIN, 2 * MINUTE).len(), 1);
        assert!(next.check(&status(5, 1, 2 * MINUTE), WITHIN, 2 * MINUTE).is_empty());
        // Restarts that happened long before this worker began are not reported.
        assert!(Restarts::default().check(&status(0, 30, MINUTE), WITHIN, 60 * MINUTE).is_empty());
    }
}

//! What the master remembers besides its present processes: when it was started, how often and why the process of each
//! slot ended unexpectedly, and the outcome of the last rolling restart. The next image gets all of this in the
//! hand-over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::restart::RestartKind;
use host::now_ms;
use model::slot::Slot;
use model::status::{Renewal, UnexpectedExit};

/// What has happened so far. Times are Unix milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MasterHistory {
    /// When the master was started.
    pub started_ms: i64,
    /// The unexpected ends, by slot.
    slots: BTreeMap<String, UnexpectedExits>,
    /// The last rolling restart that came to an end.
    pub renewal: Option<Renewal>,
}

/// The unexpected ends of a slot's processes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UnexpectedExits {
    /// How often another process was started in the place of a process that ended, or could not be started.
    pub restarts: u32,
    /// The last end.
    pub last: Option<UnexpectedExit>,
}

impl MasterHistory {
    /// Returns the history of a master that starts now.
    pub fn begin() -> MasterHistory {
        MasterHistory { started_ms: now_ms(), slots: BTreeMap::new(), renewal: None }
    }

    /// Notes that the process of a slot ended unexpectedly, or could not be started. `again`: another process is
    /// started.
    pub fn ended(&mut self, slot: Slot, reason: String, again: bool) {
        let ends = self.slots.entry(slot.to_string()).or_default();
        ends.restarts += u32::from(again);
        ends.last = Some(UnexpectedExit { at_ms: now_ms(), reason });
    }

    /// Returns what is known of a slot.
    pub fn ends(&self, slot: Slot) -> UnexpectedExits {
        self.slots.get(&slot.to_string()).cloned().unwrap_or_default()
    }

    /// Notes the outcome of a rolling restart. `refused`: why it failed.
    pub fn renewed(&mut self, kind: RestartKind, refused: Option<String>) {
        let kind = match kind {
            RestartKind::Configuration => "configuration",
            RestartKind::Executable => "executable",
        };
        self.renewal = Some(Renewal { at_ms: now_ms(), kind: kind.to_owned(), refused });
    }
}

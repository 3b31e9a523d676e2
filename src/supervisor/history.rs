//! What the master remembers beyond the processes that it is about: when it was started, how often each slot's process ended
//! unasked and why, how the last rolling restart came out. It goes over to the next image.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::restart::Kind;
use crate::process::now_ms;
use crate::slot::Slot;
use crate::status::{End, Renewal};

/// What happened so far. Moments are Unix milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct History {
    /// When the master was started.
    pub started_ms: i64,
    /// The unasked ends, by slot.
    slots: BTreeMap<String, Ends>,
    /// The last rolling restart that came to an end.
    pub renewal: Option<Renewal>,
}

/// How often, and the last one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Ends {
    /// How often another process was started in its place.
    pub restarts: u32,
    /// The last end.
    pub last: Option<End>,
}

impl History {
    /// Of a master that starts now.
    pub fn begin() -> History {
        History { started_ms: now_ms(), slots: BTreeMap::new(), renewal: None }
    }

    /// Notes that a slot's process ended unasked, and whether another takes its place.
    pub fn ended(&mut self, slot: Slot, reason: String, again: bool) {
        let ends = self.slots.entry(slot.to_string()).or_default();
        ends.restarts += u32::from(again);
        ends.last = Some(End { at_ms: now_ms(), reason });
    }

    /// What is known of a slot.
    pub fn of(&self, slot: Slot) -> Ends {
        self.slots.get(&slot.to_string()).cloned().unwrap_or_default()
    }

    /// Notes how a rolling restart came out.
    pub fn renewed(&mut self, kind: Kind, refused: Option<String>) {
        let kind = match kind {
            Kind::Configuration => "configuration",
            Kind::Executable => "executable",
        };
        self.renewal = Some(Renewal { at_ms: now_ms(), kind: kind.to_owned(), refused });
    }
}

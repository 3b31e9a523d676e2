//! The state of a topic that a caller expects. A change that gives the expected state is refused if the topic is in
//! another state. So two callers that change a topic at the same time do not overwrite each other's change.

use super::{RegistryError, Result, Revision};
use model::job::TopicName;

/// The condition for a change: what the registry must have under the name of the topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The change is made whether a topic with that name is registered or not.
    Any,
    /// The registry must have no topic with that name.
    Absent,
    /// The registered topic must still have this revision.
    At(Revision),
}

impl Expected {
    /// Checks that the registered topic is as expected. `found`: the revision of the topic, if there is one.
    pub(crate) fn check(self, name: &TopicName, found: Option<Revision>) -> Result<()> {
        match (self, found) {
            (Expected::Any, _) | (Expected::Absent, None) => Ok(()),
            (Expected::Absent, Some(_)) => Err(RegistryError::Exists(name.clone())),
            (Expected::At(revision), Some(found)) if found == revision => Ok(()),
            (Expected::At(_), Some(_)) => Err(RegistryError::Changed(name.clone())),
            (Expected::At(_), None) => Err(RegistryError::NotFound(name.clone())),
        }
    }
}

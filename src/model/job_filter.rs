//! Selects jobs that have not ended, and dead letters, for a search, or for a change of many jobs. Pure.

use crate::headers::Headers;
use crate::job::State;
use crate::tags::Tag;

/// A filter of jobs that have not ended, and of dead letters. A job must meet all conditions that are set. An empty
/// filter selects all jobs. The topic is not a part of the filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// The states. Empty: any.
    pub states: Vec<State>,
    /// The text that the id begins with. Empty: any.
    pub id_prefix: String,
    /// A tag of the job.
    pub tag: Option<Tag>,
    /// The job is due at this time or later, in Unix milliseconds.
    pub due_since_ms: Option<i64>,
    /// The job is due before this time, in Unix milliseconds.
    pub due_until_ms: Option<i64>,
}

impl JobFilter {
    /// Returns whether the filter selects a job in this state, with this id, due time and headers.
    pub fn selects(&self, state: State, id: &str, due_ms: i64, headers: &Headers) -> bool {
        (self.states.is_empty() || self.states.contains(&state))
            && id.starts_with(&self.id_prefix)
            && self.tag.as_ref().is_none_or(|tag| headers.tags().has(tag))
            && self.due_since_ms.is_none_or(|at| due_ms >= at)
            && self.due_until_ms.is_none_or(|at| due_ms < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::Tags;

    #[test]
    fn a_filter_selects_what_has_all_that_it_asks_for() {
        let headers = Headers::default().with_tags(Tags::new(["shop:7"]).unwrap());
        let all = JobFilter {
            states: vec![State::Delayed, State::Dead],
            id_prefix: "order-".into(),
            tag: Some(Tag::new("shop:7").unwrap()),
            due_since_ms: Some(10),
            due_until_ms: Some(11),
        };
        let selects = |filter: &JobFilter| filter.selects(State::Delayed, "order-42", 10, &headers);
        assert!(selects(&all) && selects(&JobFilter::default()));
        let others = [
            JobFilter { states: vec![State::Ready], ..all.clone() },
            JobFilter { id_prefix: "rder".into(), ..all.clone() },
            JobFilter { tag: Some(Tag::new("shop").unwrap()), ..all.clone() },
            JobFilter { due_since_ms: Some(11), ..all.clone() },
            JobFilter { due_until_ms: Some(10), ..all },
        ];
        assert!(!others.iter().any(selects));
    }
}

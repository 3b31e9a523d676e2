//! The headers `If-Match` and `If-None-Match` of a request that changes a topic (RFC 9110, section 13.1).

use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName};

use super::problem::Problem;
use model::job::TopicName;
use registry::{RegistryError, Revision};

/// Which revision of a topic a request is meant for.
#[derive(Debug, Clone, Default)]
pub(super) struct RevisionCondition {
    /// From `If-Match`: one of these revisions. An empty list: any revision, but the topic must exist.
    of: Option<Vec<String>>,
    /// From `If-None-Match: *`: the topic must not exist.
    absent: bool,
}

impl RevisionCondition {
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<RevisionCondition, Problem> {
        let tags = |name: HeaderName| -> Result<Option<Vec<String>>, Problem> {
            let values: Vec<_> = headers.get_all(&name).iter().collect();
            if values.is_empty() {
                return Ok(None);
            }
            let mut tags = Vec::new();
            for value in values.iter().flat_map(|v| v.as_bytes().split(|b| *b == b',')) {
                let tag = std::str::from_utf8(value).unwrap_or_default().trim();
                match tag.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
                    Some(tag) => tags.push(tag.to_owned()),
                    None if tag == "*" => tags.push("*".to_owned()),
                    None => {
                        let detail =
                            format!("{name} is {tag:?}, and not an ETag such as \"1a2b\", in quotes, or *");
                        return Err(Problem::field(name.as_str(), detail));
                    }
                }
            }
            Ok(Some(tags))
        };
        let absent = match tags(IF_NONE_MATCH)? {
            None => false,
            Some(tags) if tags == ["*"] => true,
            Some(_) => return Err(Problem::field("if-none-match", "if-none-match can only be *")),
        };
        let of = tags(IF_MATCH)?.map(|tags| if tags.contains(&"*".to_owned()) { Vec::new() } else { tags });
        Ok(RevisionCondition { of, absent })
    }

    /// Makes the condition that the topic has this revision.
    pub(super) fn at(revision: Revision) -> RevisionCondition {
        RevisionCondition { of: Some(vec![revision.to_string()]), absent: false }
    }

    pub(super) fn is_any(&self) -> bool {
        self.of.is_none() && !self.absent
    }

    /// Checks the condition. `there` is none if the topic does not exist. If the topic exists, the inner value is its
    /// revision, or none if the revision is not known.
    pub(super) fn check(
        &self,
        name: &TopicName,
        there: Option<Option<Revision>>,
    ) -> Result<(), RegistryError> {
        let changed = || RegistryError::Changed(name.clone());
        if self.absent && there.is_some() {
            return Err(changed());
        }
        match (&self.of, there) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(changed()),
            (Some(tags), Some(_)) if tags.is_empty() => Ok(()),
            (Some(tags), Some(Some(revision))) if tags.contains(&revision.to_string()) => Ok(()),
            (Some(_), Some(_)) => Err(changed()),
        }
    }
}

//! The texts that a store keeps about the followers of a job, and about the job that a follower follows. The module
//! `follow` says what these texts mean. Pure.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as TEXT;

use crate::job_parts::{JobId, JobKey, TopicName};

/// The followers of a job, as a store keeps them: two texts without white space, quotation marks or backslashes.
/// Scripts split the first text at its dots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Then {
    /// The jobs, with dots between them. Each job is the base64url form of a JSON `StoredFollower`. Empty: there are no
    /// followers, or the store keeps only `links`.
    pub(crate) full: Box<str>,
    /// Only topics and ids: the base64url form of a JSON list of `[topic, id]`. A record without a body has only this
    /// text.
    pub(crate) links: Box<str>,
}

impl Then {
    /// Makes a [`Then`] from the texts of a store.
    pub fn trusted(full: Option<String>, links: Option<String>) -> Then {
        Then { full: full.unwrap_or_default().into(), links: links.unwrap_or_default().into() }
    }

    /// Returns whether there are no followers.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Returns the text of the followers. Empty: there are no followers, or the store keeps only their topics and ids.
    pub fn full(&self) -> &str {
        &self.full
    }

    /// Returns the text with the topics and ids of the followers.
    pub fn links(&self) -> &str {
        &self.links
    }

    /// Returns only the topics and ids.
    pub fn only_links(&self) -> Then {
        Then { full: Box::default(), links: self.links.clone() }
    }

    /// Returns the text of each follower. No texts: there are no followers, or the store keeps only their topics and
    /// ids.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.full.split('.').filter(|text| !text.is_empty())
    }
}

/// Returns the text that a store keeps for the job that another job follows.
pub(crate) fn key_text(key: &JobKey) -> String {
    TEXT.encode(key.to_string())
}

/// Returns the topic and id of the job from a text that [`key_text`] made. None: the text does not name a job.
pub(crate) fn key_of(text: &str) -> Option<JobKey> {
    let text = String::from_utf8(TEXT.decode(text).ok()?).ok()?;
    let (topic, id) = text.split_once(':')?;
    Some(JobKey { topic: TopicName::new(topic).ok()?, id: JobId::new(id).ok()? })
}

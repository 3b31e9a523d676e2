//! Topics: what a registered kind of job is called back with, and by which rules. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::TopicName;
use crate::retry::RetryPolicy;

/// The HTTP method of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// Fields go into the query.
    #[serde(rename = "GET")]
    Get,
    /// Fields, or the JSON text, go into the request's body.
    #[serde(rename = "POST")]
    Post,
}

/// How a job's body travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The body as it was given, `application/json`.
    Json,
    /// A field for each top-level key of the body, as the PHP daemon sends it.
    Form,
}

/// Which answers accept a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Success {
    /// Any status of 200 to 299.
    Status,
    /// Any answer whose body is not empty, whatever its status: the PHP daemon's rule.
    NonEmpty,
}

/// Whether a topic takes new jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It does.
    #[default]
    Online,
    /// Adds are refused; what is stored is still delivered.
    Offline,
}

/// A registered kind of job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Its name.
    pub name: TopicName,
    /// What people call it.
    pub title: String,
    /// The URL that is called, `http` or `https`.
    pub callback: String,
    /// How it is called.
    pub method: Method,
    /// What it is sent.
    pub payload: Payload,
    /// Which answers accept a job.
    pub success: Success,
    /// When a job is due whose add does not say.
    pub delay: Duration,
    /// The longest that one callback may take, all in all.
    pub timeout: Duration,
    /// When a failed delivery comes again.
    pub retry: RetryPolicy,
    /// How many deliveries are tried before the job is a dead letter.
    pub max_attempts: u32,
    /// Whether it takes new jobs.
    pub status: Status,
}

/// All topics that a process knows, by name. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Topics(Arc<HashMap<TopicName, Arc<Topic>>>);

impl Topics {
    /// The topic of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<Topic>> {
        self.0.get(name)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.0.values()
    }
}

impl FromIterator<Topic> for Topics {
    fn from_iter<I: IntoIterator<Item = Topic>>(topics: I) -> Topics {
        Topics(Arc::new(topics.into_iter().map(|t| (t.name.clone(), Arc::new(t))).collect()))
    }
}

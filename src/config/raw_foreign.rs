//! The sections of the ports for clients of other programs, as the configuration file has them.

use serde::{Deserialize, Serialize};

use super::units::{ByteCount, ConfigDuration};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Gmq {
    pub listen: String,
    pub allow: Vec<String>,
    pub scopes: Vec<String>,
    pub max_connections: usize,
    pub max_connections_per_source: usize,
    pub idle_timeout: ConfigDuration,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Beanstalk {
    pub listen: String,
    pub allow: Vec<String>,
    pub scopes: Vec<String>,
    pub create: bool,
    pub max_connections: usize,
    pub max_connections_per_source: usize,
    pub idle_timeout: ConfigDuration,
    pub max_job_size: ByteCount,
}

impl Default for Gmq {
    fn default() -> Gmq {
        Gmq {
            listen: String::new(),
            allow: Vec::new(),
            scopes: vec!["produce:*".into(), "consume:*".into()],
            max_connections: 1000,
            max_connections_per_source: 0,
            idle_timeout: ConfigDuration(Duration::from_secs(600)),
        }
    }
}

impl Default for Beanstalk {
    fn default() -> Beanstalk {
        Beanstalk {
            listen: String::new(),
            allow: Vec::new(),
            scopes: vec!["produce:*".into(), "consume:*".into()],
            create: false,
            max_connections: 1000,
            max_connections_per_source: 0,
            idle_timeout: ConfigDuration(Duration::from_secs(3600)),
            max_job_size: ByteCount(65_535),
        }
    }
}

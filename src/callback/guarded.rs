//! An agent for requests that are no callbacks, and go by the same guard.

use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;

use super::resolve::Cached;
use crate::guard::Rules;

/// An agent that keeps no connections, follows no redirects, and calls nobody whom the rules deny. `timeout` is of a whole request.
pub fn guarded_agent(rules: Rules, timeout: Duration) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_global(Some(timeout))
        .max_idle_connections(0)
        .user_agent(concat!("dq/", env!("CARGO_PKG_VERSION")))
        .proxy(None)
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .build();
    Agent::with_parts(config, DefaultConnector::default(), Cached::new(rules))
}

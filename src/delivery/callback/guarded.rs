//! An HTTP client for requests that are not callbacks. The client may call only the addresses that callbacks may go to.

use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;

use super::resolve::CachedResolver;
use model::guard::GuardRules;

/// Makes an agent that keeps no connections, follows no redirects, and calls no address that the rules deny. `timeout`
/// covers a whole request.
pub fn guarded_agent(rules: GuardRules, timeout: Duration) -> Agent {
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
    Agent::with_parts(config, DefaultConnector::default(), CachedResolver::new(rules))
}

//! From a host's name to addresses that may be called: cached, and guarded at the moment of the call. What is resolved
//! here is what is connected to, so that a name cannot be checked as one address and called as another.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::guard::Rules;

/// How long a name's addresses are kept.
const FRESH: Duration = Duration::from_secs(10);

/// How many names are kept before the stale ones are thrown out.
const NAMES: usize = 1000;

/// A caching, guarding resolver. The default one, which starts a thread for each look-up, is asked for what is not in
/// the cache.
#[derive(Debug)]
pub(super) struct Cached {
    rules: Rules,
    names: Mutex<HashMap<String, (Instant, Vec<SocketAddr>)>>,
    resolver: DefaultResolver,
}

/// Why a name is not called.
#[derive(Debug, thiserror::Error)]
#[error("{address} is not called: {why} (callback.guard)")]
struct Denied {
    address: IpAddr,
    why: &'static str,
}

impl Cached {
    pub(super) fn new(rules: Rules) -> Cached {
        Cached { rules, names: Mutex::default(), resolver: DefaultResolver::default() }
    }

    fn addresses(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<Vec<SocketAddr>, Error> {
        let host = uri.host().ok_or(Error::HostNotFound)?;
        let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(default_port);
        if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let key = format!("{host}:{port}");
        let now = Instant::now();
        let fresh = |at: &Instant| now.duration_since(*at) < FRESH;
        let names = || self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = names().get(&key).filter(|(at, _)| fresh(at)) {
            return Ok(found.clone());
        }
        let found = self.resolver.resolve(uri, config, timeout)?.to_vec();
        let mut names = names();
        if names.len() >= NAMES {
            names.retain(|_, (at, _)| fresh(at));
        }
        names.insert(key, (now, found.clone()));
        Ok(found)
    }
}

impl Resolver for Cached {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let mut allowed = self.empty();
        let mut denied = None;
        for address in self.addresses(uri, config, timeout)? {
            match self.rules.denies(address.ip()) {
                None => allowed.push(address),
                Some(why) => denied = Some(Denied { address: address.ip(), why }),
            }
        }
        match denied {
            _ if !allowed.is_empty() => Ok(allowed),
            Some(denied) => Err(Error::Other(Box::new(denied))),
            None => Err(Error::HostNotFound),
        }
    }
}

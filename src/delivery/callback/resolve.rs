//! Finds the addresses of a host that may be called. The addresses are cached, and the guard checks them at the moment
//! of the call. dq connects to the same addresses that were checked, so a name cannot pass the check with one address
//! and be called at another.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use model::guard::GuardRules;

/// How long the addresses of a name are kept.
const FRESH: Duration = Duration::from_secs(10);

/// How many names are kept before old ones are removed.
const NAMES: usize = 1000;

/// How many addresses of a name are used.
const ADDRESSES: usize = 16;

/// Why a name has no address that may be called.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAddress {
    #[error("{address} is not called: {why} (callback.guard)")]
    Denied { address: IpAddr, why: &'static str },
    #[error("{host} has no address: {why}")]
    Unknown { host: String, why: String },
    #[error("{host} was not resolved in time")]
    Late { host: String },
}

type LookupFunction = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// A resolver with a cache and a guard. Only one lookup of a name runs at a time, on a thread of its own. All threads
/// and tasks that need the name wait for this lookup, each until its own time limit.
#[derive(Clone)]
pub(super) struct CachedResolver {
    rules: GuardRules,
    shared: Arc<ResolverState>,
}

struct ResolverState {
    names: Mutex<HashMap<String, ResolvedName>>,
    /// When a lookup has ended, `found` wakes threads, and `found_for_tasks` wakes tasks.
    found: Condvar,
    found_for_tasks: Notify,
    look_up: Box<LookupFunction>,
}

/// What is known about a host name.
#[derive(Default)]
struct ResolvedName {
    /// Whether a lookup is under way.
    asked: bool,
    /// The result of the last lookup, and when it ended.
    answer: Option<(Instant, Result<Vec<IpAddr>, String>)>,
}

impl ResolvedName {
    fn is_fresh(&self, now: Instant) -> bool {
        self.answer.as_ref().is_some_and(|(at, answer)| answer.is_ok() && now.duration_since(*at) < FRESH)
    }
}

impl fmt::Debug for CachedResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl ResolverState {
    fn names(&self) -> MutexGuard<'_, HashMap<String, ResolvedName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the system for the addresses of a host.
fn ask_system(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

impl CachedResolver {
    pub(super) fn new(rules: GuardRules) -> CachedResolver {
        CachedResolver::by(rules, Box::new(ask_system))
    }

    fn by(rules: GuardRules, look_up: Box<LookupFunction>) -> CachedResolver {
        CachedResolver {
            rules,
            shared: Arc::new(ResolverState {
                names: Mutex::default(),
                found: Condvar::new(),
                found_for_tasks: Notify::new(),
                look_up,
            }),
        }
    }

    /// Returns the addresses of a host that may be called. The list is never empty.
    pub(super) fn allowed(&self, host: &str, within: Option<Duration>) -> Result<Vec<IpAddr>, NoAddress> {
        self.guarded(host, self.addresses(host, within)?)
    }

    /// Returns the same as `allowed`, but for tasks: it does not block a thread while it waits.
    pub(super) async fn allowed_soon(&self, host: &str, within: Duration) -> Result<Vec<IpAddr>, NoAddress> {
        let begun = Instant::now();
        let found = async {
            loop {
                // The wait begins before the check, so that no notification is missed.
                let found = self.shared.found_for_tasks.notified();
                if let Some(known) = self.known(&mut self.shared.names(), host, begun) {
                    return known;
                }
                found.await;
            }
        };
        let addresses = tokio::time::timeout(within, found).await;
        self.guarded(host, addresses.unwrap_or_else(|_| Err(NoAddress::Late { host: host.to_owned() }))?)
    }

    fn guarded(&self, host: &str, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, NoAddress> {
        let mut denied = None;
        let mut allowed = Vec::new();
        for address in addresses {
            match self.rules.denies_host(host, address) {
                None => allowed.push(address),
                Some(why) => denied = Some(NoAddress::Denied { address, why }),
            }
        }
        allowed.truncate(ADDRESSES);
        let none = || NoAddress::Unknown { host: host.to_owned(), why: "the lookup found none".to_owned() };
        if allowed.is_empty() { Err(denied.unwrap_or_else(none)) } else { Ok(allowed) }
    }

    fn addresses(&self, host: &str, within: Option<Duration>) -> Result<Vec<IpAddr>, NoAddress> {
        let begun = Instant::now();
        let until = within.and_then(|within| begun.checked_add(within));
        let mut names = self.shared.names();
        loop {
            if let Some(known) = self.known(&mut names, host, begun) {
                return known;
            }
            names = match until {
                None => self.shared.found.wait(names).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(NoAddress::Late { host: host.to_owned() });
                    }
                    self.shared.found.wait_timeout(names, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Returns the kept addresses of a host, or the result of a lookup that ended since `begun`. None: there is no such
    /// result, and a lookup is under way. (This function starts the lookup if no lookup of this host is under way.)
    fn known(
        &self,
        names: &mut HashMap<String, ResolvedName>,
        host: &str,
        begun: Instant,
    ) -> Option<Result<Vec<IpAddr>, NoAddress>> {
        if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
            return Some(Ok(vec![address]));
        }
        let unknown =
            |why: &dyn fmt::Display| NoAddress::Unknown { host: host.to_owned(), why: why.to_string() };
        if names.len() >= NAMES {
            names.retain(|_, name| name.asked || name.is_fresh(begun));
        }
        let name = names.entry(host.to_owned()).or_default();
        match &name.answer {
            Some((_, Ok(addresses))) if name.is_fresh(begun) => return Some(Ok(addresses.clone())),
            Some((at, answer)) if *at >= begun => return Some(answer.clone().map_err(|why| unknown(&why))),
            _ => {}
        }
        if !name.asked {
            let (shared, wanted) = (Arc::clone(&self.shared), host.to_owned());
            let thread = std::thread::Builder::new().name("resolver".to_owned());
            let asked = thread.spawn(move || {
                let answer = (shared.look_up)(&wanted).map_err(|e| e.to_string());
                let name = ResolvedName { asked: false, answer: Some((Instant::now(), answer)) };
                shared.names().insert(wanted, name);
                shared.found.notify_all();
                shared.found_for_tasks.notify_waiters();
            });
            if let Err(e) = asked {
                return Some(Err(unknown(&e)));
            }
            name.asked = true;
        }
        None
    }
}

impl Resolver for CachedResolver {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().ok_or(Error::HostNotFound)?;
        let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(default_port);
        let within = (!timeout.after.is_not_happening()).then_some(*timeout.after);
        let allowed = self.allowed(host, within).map_err(|e| Error::Other(Box::new(e)))?;
        let mut resolved = self.empty();
        allowed.into_iter().for_each(|address| resolved.push(SocketAddr::new(address, port)));
        Ok(resolved)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;
    use model::settings::{CallbackSettings, GuardLevel, TlsClientSettings};

    const SECOND: Option<Duration> = Some(Duration::from_secs(1));

    fn rules(guard: GuardLevel) -> GuardRules {
        GuardRules::new(&CallbackSettings { guard, allow: Vec::new(), tls: TlsClientSettings::default() })
    }

    #[test]
    fn what_the_system_makes_of_a_host_is_what_is_guarded() {
        let cached = CachedResolver::new(rules(GuardLevel::Metadata));
        // The system and the guard read these texts as addresses. So no name is looked up on the network here.
        for host in [
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
            "169.254.43518",
            "[fe80::1]",
            "0",
            "[::ffff:a9fe:a9fe]",
        ] {
            let refused = cached.allowed(host, SECOND).unwrap_err();
            assert!(matches!(refused, NoAddress::Denied { .. }), "{host}: {refused}");
        }
        for (host, expected) in [("0x7f.1", "127.0.0.1"), ("0177.0.0.1", "127.0.0.1"), ("[::1]", "::1")] {
            assert_eq!(
                cached.allowed(host, SECOND).unwrap(),
                [expected.parse::<IpAddr>().unwrap()],
                "{host}"
            );
            let strict = CachedResolver::new(rules(GuardLevel::Strict));
            assert!(matches!(strict.allowed(host, SECOND), Err(NoAddress::Denied { .. })), "{host}");
        }
    }

    #[test]
    fn of_a_name_only_what_is_allowed_is_called() {
        let both = |_: &str| Ok(vec!["10.0.0.1".parse().unwrap(), "8.8.8.8".parse().unwrap()]);
        let cached = CachedResolver::by(rules(GuardLevel::Strict), Box::new(both));
        assert_eq!(cached.allowed("h", SECOND).unwrap(), ["8.8.8.8".parse::<IpAddr>().unwrap()]);
        let inner = |_: &str| Ok(vec!["10.0.0.1".parse().unwrap()]);
        let refused =
            CachedResolver::by(rules(GuardLevel::Strict), Box::new(inner)).allowed("h", SECOND).unwrap_err();
        assert_eq!(refused.to_string(), "10.0.0.1 is not called: private (callback.guard)");
    }

    #[test]
    fn a_name_that_is_pointed_to_loopback_is_not_called() {
        let inward = |_: &str| Ok(vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]);
        let cached = CachedResolver::by(rules(GuardLevel::Metadata), Box::new(inward));
        let refused = cached.allowed("shop.example", SECOND).unwrap_err();
        assert!(matches!(refused, NoAddress::Denied { .. }), "{refused}");
        assert_eq!(cached.allowed("localhost", SECOND).unwrap().len(), 2);
    }

    #[test]
    fn a_hanging_lookup_runs_once_and_each_wait_is_limited() {
        let (asked, (go, gone)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel::<()>());
        let (count, gone) = (Arc::clone(&asked), Mutex::new(gone));
        let hangs = move |_: &str| {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = gone.lock().unwrap().recv();
            Ok(vec!["8.8.8.8".parse().unwrap()])
        };
        let cached = CachedResolver::by(rules(GuardLevel::Metadata), Box::new(hangs));
        for _ in 0..3 {
            let begun = Instant::now();
            let late = cached.allowed("h", Some(Duration::from_millis(50))).unwrap_err();
            assert!(matches!(late, NoAddress::Late { .. }), "{late}");
            let took = begun.elapsed();
            assert!(took >= Duration::from_millis(50) && took < Duration::from_secs(1), "{took:?}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        drop(go);
        cached.allowed("h", Some(Duration::from_secs(10))).unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_failed_lookup_reaches_its_waiters_and_is_tried_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let fails_once = move |_: &str| match count.fetch_add(1, Ordering::SeqCst) {
            0 => Err(io::Error::other("no such name")),
            _ => Ok(vec!["8.8.8.8".parse().unwrap()]),
        };
        let cached = CachedResolver::by(rules(GuardLevel::Metadata), Box::new(fails_once));
        let unknown = cached.allowed("h", SECOND).unwrap_err();
        assert_eq!(unknown.to_string(), "h has no address: no such name");
        cached.allowed("h", SECOND).unwrap();
        cached.allowed("h", SECOND).unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2, "what is found is kept");
    }
}

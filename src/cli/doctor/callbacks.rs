//! Checks the hosts and ports of callbacks: whether each has an address, may be called, and accepts a connection.
//! Nothing is sent.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::http::Uri;

use super::judge::{self, CheckResult, ReceiverConnectResult};
use delivery::callback::GuardRules;
use model::settings::Settings;
use model::topic::{DeliveryMode, Topic};
use registry::Snapshot;

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(1);

/// How long all connections together may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many places (hosts with a port) are tried at the same time.
const AT_ONCE: usize = 16;

/// Checks the callbacks of the topics that are known on this host.
pub(super) fn check(settings: &Settings) -> Vec<CheckResult> {
    let snapshot = Snapshot::read(&settings.run_dir).ok().flatten().map(|(snapshot, _)| snapshot.topics);
    let places = places(settings.topics.iter().chain(snapshot.iter().flatten()));
    let reached = reach_all(places.keys().cloned().collect(), &GuardRules::new(&settings.callback));
    let late = || ReceiverConnectResult::No(format!("no answer within {} s", PATIENCE.as_secs()));
    let line = |(place, topics): (&(String, u16), &Vec<String>)| {
        let name = format!("{}:{}", place.0, place.1);
        judge::callback(&name, topics, &reached.get(place).cloned().unwrap_or_else(late))
    };
    places.iter().map(line).collect()
}

/// Returns the hosts and ports of callbacks, each with the topics that use it.
fn places<'a>(topics: impl Iterator<Item = &'a Topic>) -> BTreeMap<(String, u16), Vec<String>> {
    let mut places: BTreeMap<(String, u16), Vec<String>> = BTreeMap::new();
    for topic in topics.filter(|topic| topic.mode == DeliveryMode::Push) {
        let Ok(uri) = topic.callback.parse::<Uri>() else { continue };
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
        if let Some(host) = uri.host() {
            let names = places.entry((host.to_owned(), port)).or_default();
            // A topic may be both in the file and in the snapshot. Such a topic is named only once.
            if !names.iter().any(|name| *name == topic.name.as_str()) {
                names.push(topic.name.to_string());
            }
        }
    }
    places
}

/// Tries all places. A place without a result in time is left out.
fn reach_all(
    places: Vec<(String, u16)>,
    rules: &GuardRules,
) -> BTreeMap<(String, u16), ReceiverConnectResult> {
    let (tell, results) = channel();
    let (count, queue) = (places.len(), Arc::new(Mutex::new(places)));
    for _ in 0..AT_ONCE.min(count) {
        let (queue, tell, rules) = (Arc::clone(&queue), tell.clone(), rules.clone());
        // These threads are not joined, so that a resolver that hangs does not delay the command.
        std::thread::spawn(move || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let Some(place) = next else { return };
                let reached = reach(&place, &rules);
                if tell.send((place, reached)).is_err() {
                    return;
                }
            }
        });
    }
    drop(tell);
    let until = Instant::now() + PATIENCE;
    let mut reached = BTreeMap::new();
    while let Ok((place, how)) = results.recv_timeout(until.saturating_duration_since(Instant::now())) {
        reached.insert(place, how);
    }
    reached
}

fn reach((host, port): &(String, u16), rules: &GuardRules) -> ReceiverConnectResult {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = match (bare, *port).to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(e) => return ReceiverConnectResult::NoName(e.to_string()),
    };
    let mut why = ReceiverConnectResult::NoName("there is none".to_owned());
    for address in addresses {
        if let Some(denied) = rules.denies_host(bare, address.ip()) {
            why = ReceiverConnectResult::Denied(format!("{} is {denied}", address.ip()));
            continue;
        }
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(_) => return ReceiverConnectResult::Yes,
            Err(e) => why = ReceiverConnectResult::No(e.to_string()),
        }
    }
    why
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use model::job::TopicName;
    use model::settings::{CallbackSettings, GuardLevel, TlsClientSettings};

    #[test]
    fn a_place_is_tried_once_for_all_of_its_topics() {
        let topic = |name: &str, url: &str| Topic::new(TopicName::new(name).unwrap(), url);
        let pull = Topic { mode: DeliveryMode::Pull, ..topic("pull", "") };
        let topics = [
            topic("a", "http://h/x"),
            topic("b", "http://h:80/y"),
            topic("c", "https://h/"),
            topic("a", "http://h/"),
            pull,
        ];
        let expected = [
            (("h".to_owned(), 80), vec!["a".to_owned(), "b".to_owned()]),
            (("h".to_owned(), 443), vec!["c".to_owned()]),
        ];
        assert_eq!(places(topics.iter()), BTreeMap::from(expected));
    }

    #[test]
    fn a_place_is_reached_or_it_is_told_why_not() {
        let rules = GuardRules::new(&CallbackSettings {
            guard: GuardLevel::Metadata,
            allow: Vec::new(),
            tls: TlsClientSettings::default(),
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(reach(&("127.0.0.1".into(), port), &rules), ReceiverConnectResult::Yes);
        drop(listener);
        assert!(matches!(reach(&("127.0.0.1".into(), port), &rules), ReceiverConnectResult::No(_)));
        assert!(matches!(reach(&("169.254.169.254".into(), 80), &rules), ReceiverConnectResult::Denied(_)));
        let strict = GuardRules::new(&CallbackSettings {
            guard: GuardLevel::Strict,
            allow: Vec::new(),
            tls: TlsClientSettings::default(),
        });
        assert!(matches!(reach(&("[::1]".into(), port), &strict), ReceiverConnectResult::Denied(_)));
        let all = reach_all(vec![("127.0.0.1".into(), port), ("[::1]".into(), port)], &strict);
        assert_eq!(all.len(), 2);
    }
}

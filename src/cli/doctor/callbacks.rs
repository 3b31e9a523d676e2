//! Whether the places that callbacks go to have an address, may be called, and accept a connection. Nothing is sent.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::http::Uri;

use super::judge::{self, Line, Reached};
use crate::callback::Rules;
use crate::registry::Snapshot;
use crate::settings::Settings;
use crate::topic::{Mode, Topic};

/// How long a connection may take to be made, and all of them together.
const CONNECT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

/// How many places are tried at the same time.
const AT_ONCE: usize = 16;

/// The callbacks of the topics that are known on this host.
pub(super) fn look(settings: &Settings) -> Vec<Line> {
    let snapshot = Snapshot::read(&settings.run_dir).ok().flatten().map(|(snapshot, _)| snapshot.topics);
    let places = places(settings.topics.iter().chain(snapshot.iter().flatten()));
    let reached = reach_all(places.keys().cloned().collect(), &Rules::new(&settings.callback));
    let late = || Reached::No(format!("no answer within {} s", PATIENCE.as_secs()));
    let line = |(place, topics): (&(String, u16), &Vec<String>)| {
        let name = format!("{}:{}", place.0, place.1);
        judge::callback(&name, topics, &reached.get(place).cloned().unwrap_or_else(late))
    };
    places.iter().map(line).collect()
}

/// Where topics are called, and which.
fn places<'a>(topics: impl Iterator<Item = &'a Topic>) -> BTreeMap<(String, u16), Vec<String>> {
    let mut places: BTreeMap<(String, u16), Vec<String>> = BTreeMap::new();
    for topic in topics.filter(|topic| topic.mode == Mode::Push) {
        let Ok(uri) = topic.callback.parse::<Uri>() else { continue };
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
        if let Some(host) = uri.host() {
            let names = places.entry((host.to_owned(), port)).or_default();
            // Of two topics of a name, the file's counts.
            if !names.iter().any(|name| *name == topic.name.as_str()) {
                names.push(topic.name.to_string());
            }
        }
    }
    places
}

/// Tries all of them; one of which nothing was heard in time is left out.
fn reach_all(places: Vec<(String, u16)>, rules: &Rules) -> BTreeMap<(String, u16), Reached> {
    let (tell, told) = channel();
    let (count, queue) = (places.len(), Arc::new(Mutex::new(places)));
    for _ in 0..AT_ONCE.min(count) {
        let (queue, tell, rules) = (Arc::clone(&queue), tell.clone(), rules.clone());
        // A resolver that hangs is not waited for.
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
    while let Ok((place, how)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        reached.insert(place, how);
    }
    reached
}

fn reach((host, port): &(String, u16), rules: &Rules) -> Reached {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = match (bare, *port).to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(e) => return Reached::NoName(e.to_string()),
    };
    let mut why = Reached::NoName("there is none".to_owned());
    for address in addresses {
        if let Some(denied) = rules.denies(address.ip()) {
            why = Reached::Denied(format!("{} is {denied}", address.ip()));
            continue;
        }
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(_) => return Reached::Yes,
            Err(e) => why = Reached::No(e.to_string()),
        }
    }
    why
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::job::TopicName;
    use crate::settings::{Callback, Guard, Tls};

    #[test]
    fn a_place_is_tried_once_for_all_of_its_topics() {
        let topic = |name: &str, url: &str| Topic::new(TopicName::new(name).unwrap(), url);
        let pull = Topic { mode: Mode::Pull, ..topic("pull", "") };
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
        let rules = Rules::new(&Callback { guard: Guard::Metadata, allow: Vec::new(), tls: Tls::default() });
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(reach(&("127.0.0.1".into(), port), &rules), Reached::Yes);
        drop(listener);
        assert!(matches!(reach(&("127.0.0.1".into(), port), &rules), Reached::No(_)));
        assert!(matches!(reach(&("169.254.169.254".into(), 80), &rules), Reached::Denied(_)));
        let strict = Rules::new(&Callback { guard: Guard::Strict, allow: Vec::new(), tls: Tls::default() });
        assert!(matches!(reach(&("[::1]".into(), port), &strict), Reached::Denied(_)));
        let all = reach_all(vec![("127.0.0.1".into(), port), ("[::1]".into(), port)], &strict);
        assert_eq!(all.len(), 2);
    }
}

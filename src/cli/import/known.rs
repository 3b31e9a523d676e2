//! The topics and the PHP daemon's nodes that are known from the configuration, the snapshot and the registry.

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, ToSocketAddrs as _};

use redis::ConnectionAddr;

use super::address::RedisAddress;
use super::pending::display_name;
use model::job::TopicName;
use model::php_node::{self, PhpNode};
use model::settings::{self, Settings};
use model::topic::Topic;
use registry::{self, RegistryError, Snapshot};

/// The known topics and nodes.
#[derive(Debug, Default)]
pub struct TopicsAndPhpNodes {
    /// The topics that dq has, or will have when it runs.
    pub topics: HashMap<TopicName, Topic>,
    /// The rows of the PHP daemon's table `dq_redis`, if its database is the registry.
    pub nodes: Vec<PhpNode>,
    /// The names in the PHP daemon's table `dq_topic`. `None`: its database is not the registry.
    pub php_topics: Option<HashSet<String>>,
    /// The rows of the registry that dq leaves out.
    pub problems: Vec<String>,
    /// Why the registry could not be read. Then topics and nodes may be missing here.
    pub unread: Option<String>,
}

impl TopicsAndPhpNodes {
    /// Reads the topics and nodes. A registry in MySQL is only read. A registry in another database is not opened in a
    /// dry run, because opening it would run its migrations.
    pub fn read(settings: &Settings, is_trial: bool) -> TopicsAndPhpNodes {
        let mut known = TopicsAndPhpNodes::default();
        if let Some(at) = &settings.registry {
            known.read_registry(at, settings, is_trial);
        }
        // If two topics have the same name, the topic of the configuration file counts.
        known.add(settings.topics.iter().cloned());
        known
    }

    fn add(&mut self, topics: impl IntoIterator<Item = Topic>) {
        self.topics.extend(topics.into_iter().map(|topic| (topic.name.clone(), topic)));
    }

    fn read_registry(&mut self, at: &settings::RegistrySettings, settings: &Settings, is_trial: bool) {
        let snapshot =
            Snapshot::read(&settings.run_dir).ok().flatten().filter(|(it, _)| it.source == at.to_string());
        self.add(snapshot.into_iter().flat_map(|(it, _)| it.topics));
        if let Err(e) = self.ask(at, is_trial) {
            self.unread = Some(e.to_string());
        }
    }

    fn ask(&mut self, at: &settings::RegistrySettings, is_trial: bool) -> Result<(), RegistryError> {
        let registered = match registry::read_as_it_is(at)? {
            Some(reading) => {
                self.nodes = reading.nodes;
                self.php_topics = Some(reading.names);
                let unusable = reading.unusable.iter();
                self.problems.extend(unusable.map(|row| format!("dq leaves out of the registry: {row}")));
                reading.topics
            }
            None if is_trial => Vec::new(),
            None => registry::open(at)?.list()?.topics,
        };
        self.add(registered.into_iter().map(|registered| registered.topic));
        Ok(())
    }

    /// Returns the nodes that have none of these addresses, as texts for people.
    pub fn nodes_without(&self, addresses: &[RedisAddress]) -> Vec<String> {
        let named: Vec<NetworkAddress> = addresses.iter().filter_map(NetworkAddress::from_address).collect();
        let is_named = |node: &&PhpNode| {
            let master = php_node::master(&node.content);
            master.is_some_and(|(host, port, _)| named.iter().any(|place| place.is(host, port)))
        };
        self.nodes.iter().filter(|node| !is_named(node)).map(describe).collect()
    }

    /// Returns where these addresses differ from the rows of `dq_redis`, as texts for people. The PHP daemon finds the
    /// Redis of a job by the order of the rows. So the address of each row must be at the same position.
    pub fn differences(&self, addresses: &[RedisAddress]) -> Vec<String> {
        if self.php_topics.is_none() {
            return Vec::new();
        }
        let mut differences = Vec::new();
        for place in 0..self.nodes.len().max(addresses.len()) {
            match (self.nodes.get(place), addresses.get(place)) {
                (Some(node), address) if !address.is_some_and(|address| leads_to(address, node)) => {
                    let given = address.map_or("nothing".to_owned(), |address| address.shown.clone());
                    differences.push(format!(
                        "--to number {} is {given}, and there is {}",
                        place + 1,
                        describe(node)
                    ));
                }
                (None, Some(address)) => differences.push(format!(
                    "--to number {} is {}, and there is no such row of dq_redis",
                    place + 1,
                    address.shown
                )),
                _ => {}
            }
        }
        differences
    }
}

/// Returns whether an address is the address of a node.
fn leads_to(address: &RedisAddress, node: &PhpNode) -> bool {
    let place = NetworkAddress::from_address(address);
    place.zip(php_node::master(&node.content)).is_some_and(|(place, (host, port, _))| place.is(host, port))
}

fn describe(node: &PhpNode) -> String {
    let row = format!("dq_redis row {} ({})", node.id, display_name(node.name.as_bytes()));
    match php_node::master(&node.content) {
        Some((host, port, _)) => format!("{row} at {}:{port}", display_name(host.as_bytes())),
        None => format!("{row}, whose content is not host:port:password"),
    }
}

/// The address of a source on the network.
struct NetworkAddress {
    host: String,
    port: u16,
    found: Vec<SocketAddr>,
}

impl NetworkAddress {
    /// Returns the address of a source. `None`: the source is at a Unix socket, which a row of `dq_redis` never names.
    fn from_address(address: &RedisAddress) -> Option<NetworkAddress> {
        let ConnectionAddr::Tcp(host, port) = address.info.addr() else { return None };
        Some(NetworkAddress { host: host.clone(), port: *port, found: resolve(host, *port) })
    }

    /// Returns whether the source is at this host and port: the ports are the same, and the host names are the same or
    /// have an address in common.
    fn is(&self, host: &str, port: u16) -> bool {
        self.port == port
            && (self.host.eq_ignore_ascii_case(host)
                || resolve(host, port).iter().any(|at| self.found.contains(at)))
    }
}

fn resolve(host: &str, port: u16) -> Vec<SocketAddr> {
    (host, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: i64, content: &str) -> PhpNode {
        PhpNode { id, name: "二".to_owned(), content: content.to_owned() }
    }

    #[test]
    fn nodes_without_an_address_are_named() {
        let contents = [
            "127.0.0.1:6379:pw,10.0.0.9:6379:pw",
            "10.0.0.2:6379:secret",
            "10.0.0.1:6380",
            "nonsense secret",
        ];
        let nodes = (1..).zip(contents).map(|(id, content)| node(id, content)).collect();
        let known = TopicsAndPhpNodes { nodes, ..TopicsAndPhpNodes::default() };
        let without = |from: &[&str]| {
            let addresses: Vec<RedisAddress> =
                from.iter().map(|text| RedisAddress::parse(text).unwrap()).collect();
            known.nodes_without(&addresses)
        };
        let [first, second, third, unlike] = [
            "dq_redis row 1 (二) at 127.0.0.1:6379",
            "dq_redis row 2 (二) at 10.0.0.2:6379",
            "dq_redis row 3 (二) at 10.0.0.1:6380",
            "dq_redis row 4 (二), whose content is not host:port:password",
        ];
        assert_eq!(without(&["redis+unix:///run/r.sock"]), [first, second, third, unlike]);
        assert_eq!(without(&["redis://:pw@localhost:6379/0", "10.0.0.1:6380"]), [second, unlike]);
        assert_eq!(without(&["10.0.0.1:6379", "10.0.0.2:6379:x"]), [first, third, unlike]);
    }

    #[test]
    fn each_address_is_compared_with_the_row_at_its_place() {
        let nodes = vec![node(1, "127.0.0.1:6379:pw"), node(4, "10.0.0.2:6379")];
        let known =
            TopicsAndPhpNodes { nodes, php_topics: Some(HashSet::new()), ..TopicsAndPhpNodes::default() };
        let differences = |known: &TopicsAndPhpNodes, to: &[&str]| {
            let addresses: Vec<RedisAddress> =
                to.iter().map(|text| RedisAddress::parse(text).unwrap()).collect();
            known.differences(&addresses)
        };
        assert_eq!(differences(&known, &["127.0.0.1:6379", "10.0.0.2:6379:x"]), [""; 0]);
        assert_eq!(
            differences(&known, &["10.0.0.2:6379", "127.0.0.1:6379", "redis://h:1"]),
            [
                "--to number 1 is redis://10.0.0.2:6379, and there is dq_redis row 1 (二) at 127.0.0.1:6379",
                "--to number 2 is redis://127.0.0.1:6379, and there is dq_redis row 4 (二) at 10.0.0.2:6379",
                "--to number 3 is redis://h:1, and there is no such row of dq_redis",
            ]
        );
        let missing = differences(&known, &["127.0.0.1:6379"]);
        assert_eq!(missing, ["--to number 2 is nothing, and there is dq_redis row 4 (二) at 10.0.0.2:6379"]);
        assert_eq!(differences(&TopicsAndPhpNodes::default(), &["h:1"]), [""; 0], "another registry");
    }
}

//! A proxy between dq and a server. The proxy can stop forwarding while its connections stay open.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// A proxy to one server.
pub struct Proxy {
    pub address: SocketAddr,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

/// Says which bytes the proxy does not forward now.
#[derive(Default)]
struct Gate {
    hangs: bool,
    /// How many connections there have been so far.
    connections: usize,
    held: Option<Held>,
}

/// On connections with a number below `older_than`, the proxy holds the bytes of one direction.
struct Held {
    older_than: usize,
    way: Way,
}

/// A direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Requests,
    Answers,
}

impl Gate {
    fn is_shut(&self, connection: usize, way: Way) -> bool {
        let is_held = |held: &Held| connection < held.older_than && way == held.way;
        self.hangs || self.held.as_ref().is_some_and(is_held)
    }
}

impl Proxy {
    /// Starts a proxy to a server.
    pub fn to(server: String) -> Proxy {
        Proxy::with_words(server, Vec::new())
    }

    /// Starts a proxy that makes a Valkey look like a Redis 8. dq relies on the WAITAOF of a Redis 8.
    pub fn as_redis_8(valkey: String) -> Proxy {
        let words =
            [("redis_version:7.2.4", "redis_version:8.0.0"), ("server_name:valkey", "server_name:redis ")];
        Proxy::with_words(valkey, words.to_vec())
    }

    /// Starts a proxy that replaces some words by other words of the same length, in both directions.
    fn with_words(server: String, words: Vec<(&'static str, &'static str)>) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, gate) = (listener.local_addr().unwrap(), Arc::<(Mutex<Gate>, Condvar)>::default());
        let of_all = Arc::clone(&gate);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let number = of_all.0.lock().unwrap().connections;
                of_all.0.lock().unwrap().connections += 1;
                for (from, to, way) in [(&client, &server, Way::Requests), (&server, &client, Way::Answers)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (gate, words) = (Arc::clone(&of_all), words.clone());
                    std::thread::spawn(move || forward(from, to, &gate, (number, way), &words));
                }
            }
        });
        Proxy { address, gate }
    }

    /// `true`: stops forwarding. `false`: continues, and forwards first what has arrived in the meantime.
    pub fn hang(&self, hangs: bool) {
        self.gate.0.lock().unwrap().hangs = hangs;
        self.gate.1.notify_all();
    }

    /// Holds what arrives in this direction on the connections that exist now. New connections are forwarded.
    pub fn hold(&self, way: Way) {
        let mut gate = self.gate.0.lock().unwrap();
        gate.held = Some(Held { older_than: gate.connections, way });
    }

    /// Forwards the bytes that were held.
    pub fn let_go(&self) {
        self.gate.0.lock().unwrap().held = None;
        self.gate.1.notify_all();
    }
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    gate: &(Mutex<Gate>, Condvar),
    (connection, way): (usize, Way),
    words: &[(&'static str, &'static str)],
) {
    let mut bytes = [0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let shut = gate.0.lock().unwrap();
        drop(gate.1.wait_while(shut, |gate| gate.is_shut(connection, way)).unwrap());
        for (old, new) in words {
            while let Some(at) = bytes[..n].windows(old.len()).position(|some| some == old.as_bytes()) {
                bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
            }
        }
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

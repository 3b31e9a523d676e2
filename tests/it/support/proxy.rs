//! A proxy between dq and a server, which can stop to forward and closes nothing then.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// Forwards to one server.
pub struct Proxy {
    pub address: SocketAddr,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Proxy {
    /// Begins to forward.
    pub fn to(server: String) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, gate) = (listener.local_addr().unwrap(), Arc::<(Mutex<bool>, Condvar)>::default());
        let of_all = Arc::clone(&gate);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let ways = [(&client, &server), (&server, &client)];
                for (from, to) in ways.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    let gate = Arc::clone(&of_all);
                    std::thread::spawn(move || forward(from, to, &gate));
                }
            }
        });
        Proxy { address, gate }
    }

    /// Stops to forward, or goes on with what it has meanwhile been given.
    pub fn hang(&self, hangs: bool) {
        *self.gate.0.lock().unwrap() = hangs;
        self.gate.1.notify_all();
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, gate: &(Mutex<bool>, Condvar)) {
    let mut bytes = [0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let hangs = gate.0.lock().unwrap();
        drop(gate.1.wait_while(hangs, |hangs| *hangs).unwrap());
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

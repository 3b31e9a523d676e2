//! A receiver that follows a script byte by byte. It can also do what no receiver should do.
#![allow(dead_code, missing_docs)]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A connection to the receiver, as the script sees it.
pub struct Line {
    pub stream: TcpStream,
    /// The number of this connection, from 1.
    pub number: usize,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
    gone: Arc<AtomicBool>,
}

impl Line {
    /// Returns the next request as a whole. `None`: the other side has closed the connection.
    pub fn request(&mut self) -> Option<Vec<u8>> {
        let request = read_request(&mut self.stream)?;
        self.requests.lock().unwrap().push(request.clone());
        Some(request)
    }

    pub fn say(&mut self, text: &str) {
        let _ = self.stream.write_all(text.as_bytes());
    }

    /// Answers with success, and keeps the connection.
    pub fn answer(&mut self, body: &str) {
        self.say(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    }

    /// Sends nothing more. Returns when the other side closes the connection, or when the test ends.
    pub fn hang(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        while !self.gone.load(Ordering::Relaxed) {
            match self.stream.read(&mut [0; 4096]) {
                Ok(0) => return,
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return,
                _ => {}
            }
        }
    }

    /// Sends the same piece again and again, with this pause, until the other side has closed the connection or the
    /// test ends.
    pub fn go_on(&mut self, piece: &str, pause: Duration) {
        while !self.gone.load(Ordering::Relaxed) && self.stream.write_all(piece.as_bytes()).is_ok() {
            std::thread::sleep(pause);
        }
    }

    /// Ends the connection with a RST.
    pub fn reset(self) {
        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        nix::sys::socket::setsockopt(&self.stream, nix::sys::socket::sockopt::Linger, &linger).unwrap();
    }

    pub fn close(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Reads one request, with the body length from its content-length. The stream may be a TLS stream.
pub fn read_request(stream: &mut impl Read) -> Option<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), [0; 65536]);
    loop {
        if let Some(head) = all.windows(4).position(|w| w == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&all[..head]).to_ascii_lowercase();
            let length = text.split("content-length: ").nth(1).and_then(|t| t.lines().next()?.parse().ok());
            if all.len() >= head + 4 + length.unwrap_or(0) {
                return Some(all);
            }
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
}

/// The running receiver, and the requests that it has got.
pub struct Raw {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
    connections: Arc<AtomicUsize>,
    gone: Arc<AtomicBool>,
}

impl Raw {
    pub fn start(script: impl Fn(Line) + Send + Sync + 'static) -> Raw {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let raw = Raw {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            connections: Arc::default(),
            gone: Arc::default(),
        };
        let (requests, connections, gone) =
            (Arc::clone(&raw.requests), Arc::clone(&raw.connections), Arc::clone(&raw.gone));
        let script = Arc::new(script);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if gone.load(Ordering::Relaxed) {
                    return;
                }
                let number = connections.fetch_add(1, Ordering::SeqCst) + 1;
                let (requests, gone, script) =
                    (Arc::clone(&requests), Arc::clone(&gone), Arc::clone(&script));
                let line = Line { stream: stream.unwrap(), number, requests, gone };
                std::thread::spawn(move || script(line));
            }
        });
        raw
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.requests.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

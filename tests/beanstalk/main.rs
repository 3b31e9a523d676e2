//! beanstalkd's protocol: a table of conversations, which a real beanstalkd and the codec of dq must both follow.
#![allow(missing_docs)]

mod codec;
mod conversation;

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use conversation::{Server, play, table};
use protocol::beanstalk::{BeanstalkResponse, JobStats, ServerStats, TubeStats};

/// A beanstalkd with its own address.
struct Beanstalkd {
    process: Child,
    address: SocketAddr,
}

impl Beanstalkd {
    /// Starts a server, and waits until it takes connections.
    fn start() -> Beanstalkd {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/beanstalkd/usr/bin/beanstalkd");
        let program = if own.exists() { own.as_path() } else { Path::new("beanstalkd") };
        let address = own_address();
        let mut process = Command::new(program)
            .args(["-l", &address.ip().to_string(), "-p", &address.port().to_string()])
            .stderr(Stdio::null())
            .spawn()
            .expect("beanstalkd, which `make tools` gets");
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).is_err() {
            assert!(process.try_wait().unwrap().is_none(), "beanstalkd has ended");
            assert!(Instant::now() < deadline, "beanstalkd takes no connections");
            std::thread::sleep(Duration::from_millis(5));
        }
        Beanstalkd { process, address }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a free port on an address of the loopback network that belongs to this process alone.
fn own_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(11_300);
    let pid = std::process::id();
    let host = Ipv4Addr::new(127, 64 + (pid >> 16) as u8, (pid >> 8) as u8, pid as u8);
    SocketAddr::from((host, NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Reads all responses that a client got, and checks that the codec writes them with the same bytes.
fn read_and_write(bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (response, length) = BeanstalkResponse::parse(rest).unwrap().expect("whole responses");
        let mut written = Vec::new();
        response.append(&mut written);
        assert_eq!(written.escape_ascii().to_string(), rest[..length].escape_ascii().to_string());
        if let BeanstalkResponse::Ok(document) = &response {
            let typed = [
                JobStats::from_document(document).map(|stats| stats.to_document()),
                TubeStats::from_document(document).map(|stats| stats.to_document()),
                ServerStats::from_document(document).map(|stats| stats.to_document()),
            ];
            let typed: Vec<_> = typed.into_iter().flatten().collect();
            let is_list = document.to_yaml().starts_with("---\n- ");
            assert!(if is_list { typed.is_empty() } else { typed == [document.clone()] }, "{document:?}");
        }
        rest = &rest[length..];
    }
}

#[test]
fn a_real_beanstalkd_follows_the_table() {
    let conversations = table();
    let failed = std::sync::Mutex::new(Vec::new());
    // Some conversations wait for a second. It takes less time if they wait at the same time.
    for some in conversations.chunks(8) {
        std::thread::scope(|scope| {
            for conversation in some {
                scope.spawn(|| {
                    let server = Beanstalkd::start();
                    match play(conversation, Server::Beanstalkd, || server.connect()) {
                        Ok(got) => got.values().for_each(|bytes| read_and_write(bytes)),
                        Err(error) => failed.lock().unwrap().push(error),
                    }
                });
            }
        });
    }
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

//! A line to a server on a Unix socket. The line can be slow, can hold requests back, or can be cut. A cut line loses
//! everything that is on it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Default)]
struct State {
    delay_ms: AtomicU64,
    holds: AtomicBool,
    /// When a request has at least this many bytes, the line begins to hold all requests back. 0: no request starts
    /// this.
    holds_from: AtomicU64,
    /// How often the line was cut.
    cuts: AtomicU64,
    /// How many bytes went to the server.
    sent: AtomicU64,
    open: Mutex<Vec<UnixStream>>,
}

/// A line to one server.
pub struct SlowLine {
    dir: tempfile::TempDir,
    state: Arc<State>,
}

impl SlowLine {
    /// Starts a line without delay.
    pub fn to(server: PathBuf) -> SlowLine {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("line.sock")).unwrap();
        let state: Arc<State> = Arc::default();
        let of_all = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&server) else { continue };
                let clone = |stream: &UnixStream| stream.try_clone().unwrap();
                of_all.open.lock().unwrap().extend([clone(&client), clone(&server)]);
                let (there, back) = ((clone(&client), clone(&server)), (server, client));
                let [first, second] = [Arc::clone(&of_all), Arc::clone(&of_all)];
                std::thread::spawn(move || forward(there.0, there.1, &first, true));
                std::thread::spawn(move || forward(back.0, back.1, &second, false));
            }
        });
        SlowLine { dir, state }
    }

    pub fn socket(&self) -> PathBuf {
        Path::new(self.dir.path()).join("line.sock")
    }

    /// Sets how long each request takes on the line.
    pub fn slow(&self, delay: Duration) {
        self.state.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// Holds back the next request that has at least this many bytes, and all later requests, until the line is cut.
    pub fn hold_from(&self, bytes: u64) {
        self.state.holds_from.store(bytes, Ordering::SeqCst);
    }

    /// Whether the line holds requests back.
    pub fn holds(&self) -> bool {
        self.state.holds.load(Ordering::SeqCst)
    }

    /// Closes all connections. What was on its way to the server is lost.
    pub fn cut(&self) {
        self.state.cuts.fetch_add(1, Ordering::SeqCst);
        self.state.holds_from.store(0, Ordering::SeqCst);
        self.state.holds.store(false, Ordering::SeqCst);
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Returns how many bytes have gone to the server so far.
    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }
}

fn forward(mut from: UnixStream, mut to: UnixStream, state: &State, is_request: bool) {
    let mut bytes = vec![0; 256 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        if is_request {
            let cuts = state.cuts.load(Ordering::SeqCst);
            let is_cut = || state.cuts.load(Ordering::SeqCst) != cuts;
            std::thread::sleep(Duration::from_millis(state.delay_ms.load(Ordering::SeqCst)));
            let from = state.holds_from.load(Ordering::SeqCst);
            if from > 0 && n as u64 >= from {
                state.holds.store(true, Ordering::SeqCst);
            }
            while state.holds.load(Ordering::SeqCst) && !is_cut() {
                std::thread::sleep(Duration::from_millis(1));
            }
            if is_cut() {
                break;
            }
            state.sent.fetch_add(n as u64, Ordering::SeqCst);
        }
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

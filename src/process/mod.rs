//! The Unix kit: signals, sockets that are handed down, sealed memory, spawning, locks, logs. No business, no policy.

mod ask;
mod changes;
mod exec;
mod inherit;
mod link;
mod lock;
mod logs;
mod owner;
mod pass;
mod sealed;
mod service;
mod signals;
mod sockets;
mod spawn;
mod usage;

pub use ask::{AskError, ask_master, findings, whole_status};
pub use changes::Changes;
pub use exec::{HandedOver, in_place as exec_in_place, unblock_signals};
pub use inherit::Inherited;
pub use link::{Link, Received, ToChild, ToMaster};
pub use lock::{RunDir, RunDirError};
pub use logs::{reopen as reopen_logs, start as start_logs};
pub use owner::{DeadOwner, Owner, Owners, random_name};
pub use pass::{PASSED_MAX, PassListener, Passage};
pub use sealed::{read_shared, seal};
pub use service::{NotifyState, notify, sockets_from_service_manager, watchdog_period};
pub use signals::Signals;
pub use sockets::{bind_tcp, bind_unix};
pub use spawn::{Exit, Spawn, own_executable, reap};
pub use usage::{Usage, state_of, usage_of, waits_of};

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

/// Waits until one of the descriptors is readable (or closed), or until the moment has come. Tells for each whether it
/// is.
pub fn wait_readable(fds: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    loop {
        let timeout = match until {
            None => PollTimeout::NONE,
            // A part of a millisecond more, so that the moment has come when poll says so.
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            }
        };
        match nix::poll::poll(&mut polled, timeout) {
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => return Ok(polled.iter().map(|p| p.revents().is_some_and(|r| !r.is_empty())).collect()),
        }
    }
}

/// Gives the calling process the name that `ps` and `pkill -x` see: its first 15 bytes.
pub fn set_process_name(name: &str) -> io::Result<()> {
    let short: Vec<u8> = name.bytes().take(15).collect();
    let name = std::ffi::CString::new(short)?;
    Ok(nix::sys::prctl::set_name(&name)?)
}

/// Has this process, and those that it starts, use small pages of memory alone. An allocator that asks for huge ones makes each of
/// the daemon's processes hold 15 MB of which it uses two.
pub fn use_small_pages() {
    // A kernel that has no huge pages has nothing to refuse.
    let _ = nix::sys::prctl::set_thp_disable(true);
}

/// The host's clock, Unix milliseconds: for moments that are shown, never for waiting.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// What dq-master and a small dq-server need.
const DESCRIPTORS_MIN: u64 = 512;

/// Raises the limit of open descriptors to what the system allows this process.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    if hard < DESCRIPTORS_MIN {
        return Err(io::Error::other(format!(
            "{hard} are allowed (ulimit -n); at least {DESCRIPTORS_MIN} are needed"
        )));
    }
    Ok(hard)
}

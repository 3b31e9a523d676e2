//! What dq needs from Unix: signals, inherited sockets, sealed memory, the start of processes, locks, logs, the service
//! manager.
//!
//! This crate owns all code of dq that talks to the kernel about processes, and most of the `unsafe` code. It knows
//! nothing about jobs or topics, and it contains no policy: it does not decide which process starts or ends.
//!
//! Begin with [`spawn`](Spawn) (how the master starts a child) and [`ChildInheritance`] (what the child gets).

mod ask;
mod changes;
mod exec;
mod inherit;
mod link;
mod lock;
mod log_line;
mod logs;
mod owner;
mod pass;
mod privacy;
mod sealed;
mod service;
mod signals;
mod sockets;
mod spawn;
mod usage;
mod used_file;

pub use ask::{AskError, ask_master, findings, whole_status};
pub use changes::{FileVersion, FileWatcher, draft_of, version_of};
pub use exec::{HandOverMemory, in_place as exec_in_place, unblock_signals};
pub use inherit::ChildInheritance;
pub use link::{Link, Received, ToChild, ToMaster};
pub use lock::{RunDirError, RunDirLock, has_lock, is_run_dir_taken, make_folder_in_run_dir};
pub use logs::{reopen as reopen_logs, start as start_logs, start_with_fallback as start_logs_with_fallback};
pub use owner::{DeadOwner, Owner, Owners, random_name};
pub use pass::{PASSED_MAX, PassListener, PassSocket};
pub use privacy::{keep_new_files_private, keep_old_files_private};
pub use sealed::{read_shared, seal};
pub use service::{NotifyState, notify, sockets_from_service_manager, watchdog_period};
pub use signals::Signals;
pub use sockets::{bind_tcp, bind_unix, find_lost_clients};
pub use spawn::{Exit, Spawn, own_executable, reap};
pub use usage::{Usage, state_of, usage_of, waits_of};
pub use used_file::{FileId, file_at, use_file, used_file};

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

/// Waits until one of the descriptors is readable (or closed), or until the time `until` has come. Returns for each
/// descriptor whether it is readable.
pub fn wait_readable(fds: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    loop {
        let timeout = match until {
            None => PollTimeout::NONE,
            // The timeout is rounded up to whole milliseconds, so that poll does not time out before `until`.
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

/// Sets the name that `ps` and `pkill -x` see for the calling process: the first 15 bytes of `name`.
pub fn set_process_name(name: &str) -> io::Result<()> {
    let short: Vec<u8> = name.bytes().take(15).collect();
    let name = std::ffi::CString::new(short)?;
    Ok(nix::sys::prctl::set_name(&name)?)
}

/// Makes this process, and the processes that it starts, use only small memory pages. With huge pages, each process of
/// the daemon occupies 15 MB because of the allocator, but uses only 2 MB.
pub fn use_small_pages() {
    // A kernel that does not know this call refuses it. This does no harm.
    let _ = nix::sys::prctl::set_thp_disable(true);
}

/// Gives the memory that this thread has freed back to the operating system. Without this call, the allocator gives
/// memory back only when a thread asks the allocator for more memory.
pub fn give_memory_back() {
    // SAFETY: mi_collect may be called by any thread at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Returns the time of the host's clock in Unix milliseconds. Use it for times that are shown, never for waiting.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// How many descriptors dq-master and a small dq-server need.
const DESCRIPTORS_MIN: u64 = 512;

/// Raises the limit of open descriptors to the maximum that the system allows this process. Returns the new limit. A
/// maximum below `DESCRIPTORS_MIN` is an error.
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

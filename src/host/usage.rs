//! What a process uses, as /proc shows it.

use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};

/// What a process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The memory of the process in bytes (PSS): the memory that no other process uses, and a share of the memory that
    /// several processes use. If dq may not read the PSS, this is all memory of the process (RSS).
    pub memory_bytes: u64,
    /// The processor time that the process has used since it was started.
    pub cpu: Duration,
}

/// Returns what the process with this pid uses. None: there is no such process. Only tools for people should call this
/// function, because the kernel may need a long time to answer.
pub fn usage_of(pid: i32) -> Option<Usage> {
    let fields = stat_of(pid)?;
    // The fields after the name: state is field 3 of proc_pid_stat(5), utime and stime are 14 and 15, rss is 24.
    let number = |field: usize| fields.get(field - 3).and_then(|f| f.parse::<u64>().ok());
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100).max(1) as u64;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as u64;
    let cpu = Duration::from_millis((number(14)? + number(15)?) * 1000 / ticks);
    let memory_bytes = pss_bytes(pid).or_else(|| Some(number(24)? * page))?;
    Some(Usage { memory_bytes, cpu })
}

/// Returns the letter of the process's state: R running, S asleep, D in a system call that cannot be interrupted, T
/// stopped.
pub fn state_of(pid: i32) -> Option<char> {
    stat_of(pid)?.first()?.chars().next()
}

/// Returns how many times the threads of a process have slept until something woke them. None: there is no such
/// process. (Threads that have ended are not counted.)
pub fn waits_of(pid: i32) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let waits = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    Some(threads.flatten().filter_map(waits).sum())
}

fn stat_of(pid: i32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the process is in parentheses, and may itself contain parentheses. So the last `)` ends the name.
    Some(stat.rsplit_once(") ")?.1.split_whitespace().map(str::to_owned).collect())
}

fn pss_bytes(pid: i32) -> Option<u64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|l| l.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    #[test]
    fn the_own_process_uses_some_memory_and_runs() {
        let pid = std::process::id() as i32;
        let usage = usage_of(pid).unwrap();
        assert!((1 << 16..1 << 36).contains(&usage.memory_bytes), "{usage:?}");
        assert!(matches!(state_of(pid), Some('R' | 'S')));
        assert_eq!((usage_of(i32::MAX), waits_of(i32::MAX)), (None, None));
    }

    #[test]
    fn a_process_that_waits_is_seen_to_wait() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = cat.id() as i32;
        let (mut to, mut from) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        let before = waits_of(pid).unwrap();
        // `cat` waits for each byte, unless the byte is already there when `cat` begins to read.
        let seen = (0..1000).any(|_| {
            to.write_all(b"a").unwrap();
            from.read_exact(&mut [0]).unwrap();
            waits_of(pid).unwrap() > before
        });
        drop(to);
        cat.wait().unwrap();
        assert!(seen);
    }
}

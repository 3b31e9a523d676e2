//! Logs: to stderr, or to files with the names that users of the PHP daemon know.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Zoned;
use log::{Level, Log, Metadata, Record};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use model::excerpt;

/// The length of the longest message of a line, in characters.
const LONGEST: usize = 2000;

/// What is logged if RUST_LOG is not set: from libraries, only warnings and errors.
const DEFAULT_FILTER: &str = "warn,dq=info,request=info,notify=info";

/// Starts logging for this process; `name` stands in each line. RUST_LOG says how much is logged. A panic becomes an
/// error line, and still ends its thread.
pub fn start(name: &str, folder: Option<&Path>) -> io::Result<()> {
    let mut builder =
        env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(DEFAULT_FILTER));
    let (own, pid) = (name.to_owned(), std::process::id());
    builder.format(move |out, record| out.write_all(line(&own, pid, record).as_bytes()));
    match folder {
        None => {
            let out = NonBlockingWriter { out: io::stderr(), lost: 0 };
            let target = env_logger::Target::Pipe(Box::new(out));
            builder.target(target).try_init().map_err(io::Error::other)?;
        }
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            let filter = builder.build();
            log::set_max_level(filter.filter());
            let files = Files {
                name: name.to_owned(),
                pid,
                filter,
                folder: folder.to_owned(),
                open: Mutex::default(),
            };
            log::set_boxed_logger(Box::new(files)).map_err(io::Error::other)?;
        }
    }
    std::panic::set_hook(Box::new(|panic| log::error!("panic: {panic}")));
    Ok(())
}

/// Writes whole lines if that does not block: a reader that has stopped reading must not stop the process that logs.
struct NonBlockingWriter<W> {
    out: W,
    /// How many lines were not written.
    lost: u64,
}

impl<W: Write + AsFd> Write for NonBlockingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut polled = [PollFd::new(self.out.as_fd(), PollFlags::POLLOUT)];
        // A pipe is not writable if it may have less room than the longest line needs.
        let writable = poll(&mut polled, PollTimeout::ZERO).is_ok_and(|n| n > 0);
        if !writable {
            self.lost += 1;
            return Ok(bytes.len());
        }
        if self.lost > 0 {
            writeln!(self.out, "({} lines are lost here: nobody read them)", std::mem::take(&mut self.lost))?;
        }
        self.out.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn line(name: &str, pid: u32, record: &Record<'_>) -> String {
    let now = Zoned::now().strftime("%Y-%m-%d %H:%M:%S%.3f");
    format!("{now} {:<5} {name}[{pid}] {}\n", record.level(), message(&record.args().to_string()))
}

/// Returns the text of a record as one line of bounded length, with any control characters escaped. Text from outside
/// is an [`Excerpt`](model::excerpt::Excerpt), and is much shorter.
fn message(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LONGEST));
    for (n, c) in text.chars().enumerate() {
        match c {
            _ if n == LONGEST => {
                line.push('…');
                break;
            }
            '\t' => line.push(c),
            '\n' | '\r' => line.push(' '),
            c if excerpt::is_escaped(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// Returns which file a record goes to.
fn kind(record: &Record<'_>) -> &'static str {
    match record.target() {
        "request" => "request",
        "notify" => "notify",
        _ if record.level() <= Level::Warn => "err",
        _ => "dq",
    }
}

/// Reopens the log files at the next line, for example because they were moved away.
pub fn reopen() {
    REOPEN.store(true, Ordering::Relaxed);
}

static REOPEN: AtomicBool = AtomicBool::new(false);

struct Files {
    name: String,
    pid: u32,
    filter: env_logger::Logger,
    folder: PathBuf,
    /// The open file of each kind, with its name, which contains the date.
    open: Mutex<std::collections::HashMap<&'static str, (String, File)>>,
}

impl Files {
    fn write(&self, record: &Record<'_>) -> io::Result<()> {
        let kind = kind(record);
        let file_name = format!("{kind}_{}.txt", Zoned::now().strftime("%Y%m%d"));
        let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if REOPEN.swap(false, Ordering::Relaxed) {
            open.clear();
        }
        if open.get(kind).is_none_or(|(name, _)| *name != file_name) {
            let file = OpenOptions::new().create(true).append(true).open(self.folder.join(&file_name))?;
            open.insert(kind, (file_name, file));
        }
        // One write per line, because several processes append to one file.
        (&open[kind].1).write_all(line(&self.name, self.pid, record).as_bytes())
    }
}

impl Log for Files {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.filter.matches(record)
            && let Err(e) = self.write(record)
        {
            eprintln!("cannot log: {e}: {}", line(&self.name, self.pid, record).trim_end());
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        assert_eq!(message("a\tb\r\nc\u{1b}[2J\u{202e}d"), "a\tb  c\\u{1b}[2J\\u{202e}d");
        let long = message(&"订".repeat(60_000));
        assert_eq!(long, "订".repeat(LONGEST) + "…");
        assert_eq!(message(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
    }

    #[test]
    fn a_slow_log_reader_blocks_nobody_and_sees_a_loss_count() {
        let (reader, writer) = UnixStream::pair().unwrap();
        let mut out = NonBlockingWriter { out: writer, lost: 0 };
        let line = [b'x'; 1000];
        // Much more than the socket has room for.
        (0..10_000).for_each(|_| assert_eq!(out.write(&line).unwrap(), line.len()));
        let lost = out.lost;
        assert!(lost > 1000, "{lost}");
        let mut some = vec![0; 1_000_000];
        reader.set_nonblocking(true).unwrap();
        while (&reader).read(&mut some).is_ok() {}
        out.write_all(b"again\n").unwrap();
        let n = (&reader).read(&mut some).unwrap() + (&reader).read(&mut some[100..]).unwrap_or(0);
        let text = String::from_utf8_lossy(&some[..n + 100]).into_owned();
        assert!(text.contains(&format!("{lost} lines are lost")) && text.contains("again"), "{text}");
    }
}

//! Logs: to stderr, or to files with the names that users of the PHP daemon know.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Zoned;
use log::{Level, Log, Metadata, Record};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::log_line::{LogLineFormatter, is_journal};
use model::settings::LogSettings;

/// What is logged if RUST_LOG is not set: from libraries, only warnings and errors.
const DEFAULT_FILTER: &str = "warn,dq=info,request=info,notify=info";

/// Starts logging for this process; each line contains `name`. RUST_LOG says how much is logged. A panic becomes an
/// error line, and still ends its thread.
pub fn start(name: &str, folder: Option<&Path>, settings: LogSettings) -> io::Result<()> {
    let mut builder =
        env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(DEFAULT_FILTER));
    let to_journal = folder.is_none() && is_journal(io::stderr());
    let lines = LogLineFormatter {
        name: name.to_owned(),
        pid: std::process::id(),
        format: settings.format,
        to_journal,
    };
    match folder {
        None => {
            let out = NonBlockingWriter { out: io::stderr(), lost: 0 };
            let target = env_logger::Target::Pipe(Box::new(out));
            builder.format(move |out, record| out.write_all(lines.line(record).as_bytes()));
            builder.target(target).try_init().map_err(io::Error::other)?;
        }
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            let filter = builder.build();
            log::set_max_level(filter.filter());
            let files = FileLogger {
                lines,
                filter,
                folder: folder.to_owned(),
                settings,
                open: Mutex::default(),
                stderr: Mutex::new(NonBlockingWriter { out: io::stderr(), lost: 0 }),
            };
            log::set_boxed_logger(Box::new(files)).map_err(io::Error::other)?;
        }
    }
    std::panic::set_hook(Box::new(|panic| log::error!("panic: {panic}")));
    Ok(())
}

/// Does the same as [`start`]. But if the folder is gone and cannot be made again, logs to stderr, because a daemon
/// that serves already needs no log for its work.
pub fn start_with_fallback(name: &str, folder: Option<&Path>, settings: LogSettings) -> io::Result<()> {
    let unusable = folder.and_then(|folder| Some((folder, std::fs::create_dir_all(folder).err()?)));
    start(name, folder.filter(|_| unusable.is_none()), settings)?;
    if let Some((folder, e)) = unusable {
        log::warn!("cannot log in {}: {e}; logging to stderr", folder.display());
    }
    Ok(())
}

/// Writes a line only if the write does not block. Otherwise, the line is lost, because a reader that has stopped
/// reading must not stop the process that logs.
struct NonBlockingWriter<W> {
    out: W,
    /// How many lines were not written.
    lost: u64,
}

impl<W: Write + AsFd> Write for NonBlockingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut polled = [PollFd::new(self.out.as_fd(), PollFlags::POLLOUT)];
        // `poll` reports a pipe as writable only if the pipe has room for at least 4096 bytes. So only the write of a
        // longer line may block.
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

struct FileLogger {
    lines: LogLineFormatter,
    filter: env_logger::Logger,
    folder: PathBuf,
    settings: LogSettings,
    /// The open file of each kind.
    open: Mutex<HashMap<&'static str, OpenLogFile>>,
    /// Gets the lines that cannot be written to a file.
    stderr: Mutex<NonBlockingWriter<io::Stderr>>,
}

/// A log file that is written to.
struct OpenLogFile {
    date: String,
    /// 1 for the first file of a day.
    part: u32,
    file: File,
    /// How many bytes may be written before the length of the file is checked again. Other processes write to the file
    /// as well.
    unchecked: u64,
}

/// The length of a log file is checked again when this number of bytes has been written.
const CHECK_AFTER: u64 = 16 << 10;

/// Returns the name of a log file.
fn file_name(kind: &str, date: &str, part: u32) -> String {
    match part {
        0 | 1 => format!("{kind}_{date}.txt"),
        _ => format!("{kind}_{date}-{part}.txt"),
    }
}

/// Returns the date and the part in the name of a log file of this kind.
fn date_and_part<'a>(name: &'a str, kind: &str) -> Option<(&'a str, u32)> {
    let rest = name.strip_prefix(kind)?.strip_prefix('_')?.strip_suffix(".txt")?;
    let (date, part) =
        rest.split_once('-').map_or(Some((rest, 1)), |(date, part)| Some((date, part.parse().ok()?)))?;
    (date.len() == 8 && date.bytes().all(|b| b.is_ascii_digit())).then_some((date, part))
}

impl FileLogger {
    fn write(&self, record: &Record<'_>) -> io::Result<()> {
        let kind = kind(record);
        let date = Zoned::now().strftime("%Y%m%d").to_string();
        let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if REOPEN.swap(false, Ordering::Relaxed) {
            open.clear();
        }
        let line = self.lines.line(record);
        let length = line.len() as u64;
        let file = match open.entry(kind) {
            Entry::Occupied(mut entry) => {
                let known = entry.get();
                let is_new_day = known.date != date;
                if is_new_day
                    || known.unchecked < length && known.file.metadata()?.len() >= self.settings.max_size
                {
                    let after = if is_new_day { 0 } else { known.part };
                    entry.insert(self.open(kind, date, after + 1)?);
                } else if known.unchecked < length {
                    entry.get_mut().unchecked = CHECK_AFTER;
                }
                entry.into_mut()
            }
            Entry::Vacant(entry) => entry.insert(self.open(kind, date, 1)?),
        };
        file.unchecked = file.unchecked.saturating_sub(length);
        // One write per line, because several processes append to one file.
        file.file.write_all(line.as_bytes())
    }

    /// Opens the first file of the day that is not full. A day may have several files, which are numbered. The search
    /// begins with number `part`, or with the last file of the day, because the earlier ones are full or were removed.
    /// Also removes old files.
    fn open(&self, kind: &'static str, date: String, part: u32) -> io::Result<OpenLogFile> {
        let of_day = self.files(kind).into_iter().filter(|(day, _)| *day == date);
        let mut part = of_day.map(|(_, part)| part).fold(part, u32::max);
        loop {
            let path = self.folder.join(file_name(kind, &date, part));
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            if file.metadata()?.len() < self.settings.max_size {
                self.remove_old(kind, (date.as_str(), part));
                return Ok(OpenLogFile { date, part, file, unchecked: CHECK_AFTER });
            }
            part += 1;
        }
    }

    /// Returns the dates and the parts of all files of a kind. If the folder cannot be read, returns none.
    fn files(&self, kind: &str) -> Vec<(String, u32)> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names
            .filter_map(|name| date_and_part(&name, kind).map(|(date, part)| (date.to_owned(), part)))
            .collect()
    }

    /// Removes the oldest files of a kind, but never the file `open`. (After an error of the clock, files of later days
    /// may exist.) Another process may do the same at the same time, so an error is ignored.
    fn remove_old(&self, kind: &str, open: (&str, u32)) {
        if self.settings.keep == 0 {
            return;
        }
        let mut files = self.files(kind);
        files.retain(|(date, part)| (date.as_str(), *part) != open);
        files.sort_unstable();
        for (date, part) in files.iter().rev().skip(self.settings.keep - 1) {
            let _ = std::fs::remove_file(self.folder.join(file_name(kind, date, *part)));
        }
    }
}

impl Log for FileLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.filter.matches(record)
            && let Err(e) = self.write(record)
        {
            let line = format!("cannot log: {e}: {}", self.lines.line(record));
            let mut stderr = self.stderr.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // If stderr does not work either, the line is lost. (`eprintln!` would panic, and the panic would be logged
            // again.)
            let _ = stderr.write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use model::settings::LogFormat;

    /// Returns the logger of a process that begins to log.
    fn logger(folder: &Path, keep: usize) -> FileLogger {
        FileLogger {
            lines: LogLineFormatter {
                name: "dq-test".into(),
                pid: 1,
                format: LogFormat::Text,
                to_journal: false,
            },
            filter: env_logger::Builder::new().parse_filters("info").build(),
            folder: folder.to_owned(),
            settings: LogSettings { max_size: 64 << 10, keep, ..LogSettings::default() },
            open: Mutex::default(),
            stderr: Mutex::new(NonBlockingWriter { out: io::stderr(), lost: 0 }),
        }
    }

    fn log_line(files: &FileLogger, text: &str) {
        files.log(&Record::builder().level(Level::Info).args(format_args!("{text}")).build());
    }

    #[test]
    fn the_log_file_that_is_written_is_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let names = || -> Vec<String> {
            let entries = std::fs::read_dir(folder.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let kept = |line: &str| {
            let read = |name: &String| std::fs::read_to_string(folder.path().join(name)).unwrap();
            names().iter().any(|name| read(name).contains(line))
        };
        let first = logger(folder.path(), 2);
        let text = "x".repeat(1000);
        // The day has more files than are kept, so its first file is removed.
        (0..300).for_each(|_| log_line(&first, &text));
        let today = Zoned::now().strftime("%Y%m%d").to_string();
        assert!(!names().contains(&file_name("dq", &today, 1)), "{:?}", names());
        log_line(&logger(folder.path(), 2), "of a process that starts now");
        assert!(kept("of a process that starts now"), "{:?}", names());
        // The clock was wrong once.
        for name in ["dq_29990101.txt", "dq_29990102.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        log_line(&logger(folder.path(), 2), "beside files of later days");
        assert!(kept("beside files of later days"), "{:?}", names());
        assert_eq!(names().len(), 2, "{:?}", names());
    }

    #[test]
    fn log_files_are_bounded_in_length_and_number() {
        let folder = tempfile::tempdir().unwrap();
        let files = logger(folder.path(), 3);
        for name in
            ["dq_20200101.txt", "dq_20200102-2.txt", "dq_20200102-10.txt", "err_20200101.txt", "dq_notes.txt"]
        {
            std::fs::write(folder.path().join(name), "old").unwrap();
        }
        let text = "x".repeat(1000);
        (0..300).for_each(|_| log_line(&files, &text));
        let mut left: Vec<(String, u64)> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|one| one.unwrap())
            .map(|one| (one.file_name().into_string().unwrap(), one.metadata().unwrap().len()))
            .collect();
        left.sort();
        let today = Zoned::now().strftime("%Y%m%d").to_string();
        let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
        let dq = names.iter().filter(|name| name.starts_with(&format!("dq_{today}"))).count();
        assert!(
            dq == 3 && names.contains(&"err_20200101.txt") && names.contains(&"dq_notes.txt"),
            "{names:?}"
        );
        assert!(!names.iter().any(|name| name.starts_with("dq_2020")), "{names:?}");
        assert!(left.iter().all(|(_, length)| *length < (64 << 10) + CHECK_AFTER + 2000), "{left:?}");
    }

    #[test]
    fn a_slow_log_reader_blocks_nobody_and_sees_a_loss_count() {
        let (reader, writer) = UnixStream::pair().unwrap();
        let mut out = NonBlockingWriter { out: writer, lost: 0 };
        let line = [b'x'; 1000];
        // These lines need much more room than the socket has.
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

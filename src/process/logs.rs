//! Logs: to stderr, or to the files that the PHP daemon's users know.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Zoned;
use log::{Level, Log, Metadata, Record};

/// What is logged where RUST_LOG does not say: of libraries, only what is wrong.
const DEFAULT_FILTER: &str = "warn,dq=info,request=info,notify=info";

/// Starts logging for this process, which lines call `name`. How much is logged is said by RUST_LOG.
/// A panic becomes an error line, and still ends its thread.
pub fn start(name: &str, folder: Option<&Path>) -> io::Result<()> {
    let mut builder =
        env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(DEFAULT_FILTER));
    let (own, pid) = (name.to_owned(), std::process::id());
    builder.format(move |out, record| out.write_all(line(&own, pid, record).as_bytes()));
    match folder {
        None => builder.try_init().map_err(io::Error::other)?,
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

fn line(name: &str, pid: u32, record: &Record<'_>) -> String {
    let now = Zoned::now().strftime("%Y-%m-%d %H:%M:%S%.3f");
    format!("{now} {:<5} {name}[{pid}] {}\n", record.level(), record.args())
}

/// Which file a record goes to.
fn kind(record: &Record<'_>) -> &'static str {
    match record.target() {
        "request" => "request",
        "notify" => "notify",
        _ if record.level() <= Level::Warn => "err",
        _ => "dq",
    }
}

/// Opens the log files anew at the next line, as after they were moved away.
pub fn reopen() {
    REOPEN.store(true, Ordering::Relaxed);
}

static REOPEN: AtomicBool = AtomicBool::new(false);

struct Files {
    name: String,
    pid: u32,
    filter: env_logger::Logger,
    folder: PathBuf,
    /// The open file of each kind, and its name, which holds the date.
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
        // One write a line: several processes append to one file.
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

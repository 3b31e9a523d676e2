//! A MariaDB server for one test, or a server that all tests of a process share. Each test has its own database.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use model::settings::{MysqlServer, RegistrySettings};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts};

/// A server that ends with the test.
pub struct MariaDb {
    dir: tempfile::TempDir,
    process: Mutex<Child>,
}

/// A database on a server.
pub struct Database {
    pub name: String,
    url: String,
}

impl MariaDb {
    pub fn start() -> MariaDb {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mut install = Command::new("mariadb-install-db");
        install.arg("--no-defaults").arg(format!("--datadir={}", data.display())).arg(user());
        install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        let made = install.arg("--innodb-log-file-size=4M").output().expect("mariadb-server is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let process = Mutex::new(spawn(dir.path()));
        let server = MariaDb { dir, process };
        server.wait();
        server
    }

    /// Returns the server that lives as long as this process.
    pub fn shared() -> &'static MariaDb {
        static SHARED: LazyLock<MariaDb> = LazyLock::new(|| {
            let (started, start) = std::sync::mpsc::channel();
            // The server ends with the thread that started it. This thread never ends before the process does.
            std::thread::spawn(move || {
                let server = MariaDb::start();
                sweep_at_exit(server.dir.path());
                let _ = started.send(server);
                loop {
                    std::thread::park();
                }
            });
            start.recv().unwrap()
        });
        &SHARED
    }

    /// Creates a new, empty database with these defaults.
    pub fn database_of(&self, defaults: &str) -> Database {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let socket = self.dir.path().join("db.sock");
        let url = |name: &str| format!("mysql://root@localhost/{name}?socket={}", socket.display());
        let mut db = Conn::new(Opts::from_url(&url("mysql")).unwrap()).unwrap();
        db.query_drop(format!("CREATE DATABASE {name} {defaults}")).unwrap();
        Database { url: url(&name), name }
    }

    pub fn database(&self) -> Database {
        self.database_of("CHARACTER SET utf8mb4")
    }

    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    pub fn start_again(&self) {
        *self.process.lock().unwrap() = spawn(self.dir.path());
        self.wait();
    }

    /// `true`: stops the process of the server. Its connections stay open, but get no answers. `false`: lets the
    /// process continue.
    pub fn hang(&self, hangs: bool) {
        use nix::sys::signal::{Signal, kill};
        let signal = if hangs { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(nix::unistd::Pid::from_raw(self.process.lock().unwrap().id() as i32), signal).unwrap();
    }

    fn wait(&self) {
        let socket = self.dir.path().join("db.sock");
        let url = format!("mysql://root@localhost/mysql?socket={}", socket.display());
        let until = Instant::now() + Duration::from_secs(30);
        while Conn::new(Opts::from_url(&url).unwrap()).is_err() {
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "mariadbd does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        // This also ends a server that hangs, or that the test has killed.
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }
}

impl Database {
    /// Opens a connection with the same settings as the console of the PHP daemon.
    pub fn console(&self) -> Conn {
        let mut db = Conn::new(Opts::from_url(&self.url).unwrap()).unwrap();
        db.query_drop("SET NAMES utf8").unwrap();
        db.query_drop("SET SESSION sql_mode = ''").unwrap();
        db
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn settings(&self) -> RegistrySettings {
        RegistrySettings::Mysql(MysqlServer {
            name: format!("mysql://localhost:3306/{}", self.name),
            url: self.url.clone(),
            max_attempts: None,
        })
    }
}

fn user() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap();
    format!("--user={}", user.name)
}

fn spawn(dir: &Path) -> Child {
    let mut command = Command::new("mariadbd");
    let file = |name: &str| dir.join(name).display().to_string();
    command
        .arg("--no-defaults")
        .arg(user())
        .args([format!("--datadir={}", file("data")), format!("--socket={}", file("db.sock"))])
        .args([format!("--pid-file={}", file("pid")), format!("--log-error={}", file("log"))])
        .args(["--skip-networking", "--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M"])
        .args(["--innodb-flush-log-at-trx-commit=0", "--performance-schema=OFF"]);
    let ends = || Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?);
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(ends) };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Removes a folder when this process ends. (A static is never dropped, so its folder would stay.)
fn sweep_at_exit(dir: &Path) {
    static DIR: Mutex<Option<PathBuf>> = Mutex::new(None);
    extern "C" fn sweep() {
        if let Some(dir) = DIR.lock().ok().and_then(|mut d| d.take()) {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
    *DIR.lock().unwrap() = Some(dir.to_owned());
    // SAFETY: the function uses only a static.
    unsafe { nix::libc::atexit(sweep) };
}

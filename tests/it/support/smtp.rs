//! A real mail server for one test: aiosmtpd, installed by `make tools`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::{SECOND, eventually};

/// A server that ends with the test.
pub struct Smtp {
    pub port: u16,
    mails: Arc<Mutex<Vec<Value>>>,
    process: Child,
}

impl Smtp {
    pub fn start(port: u16) -> Smtp {
        Smtp::run("127.0.0.1", port, &[])
    }

    /// Starts a server that requires STARTTLS and a login, on this process's own address. The certificate and the key
    /// are in `folder`.
    pub fn strict(port: u16, folder: &Path, user: &str, password: &str) -> Smtp {
        let file = |name: &str| folder.join(name).display().to_string();
        Smtp::run(
            &super::redis::own_host().to_string(),
            port,
            &[&file("server.pem"), &file("server.key"), user, password],
        )
    }

    fn run(host: &str, port: u16, more: &[&str]) -> Smtp {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = root.join("target/tools/python/bin/python");
        assert!(python.exists(), "{} is not there: make tools", python.display());
        let mut command = Command::new(python);
        command.arg(root.join("tests/it/support/smtp.py")).args([host, &port.to_string()]).args(more);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        lines.next().expect("aiosmtpd starts").unwrap();
        let mails: Arc<Mutex<Vec<Value>>> = Arc::default();
        let kept = Arc::clone(&mails);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Smtp { port, mails, process }
    }

    pub fn mails(&self) -> Vec<Value> {
        self.mails.lock().unwrap().clone()
    }

    /// Returns the mails to this recipient that contain this text.
    pub fn of(&self, to: &str, what: &str) -> Vec<Value> {
        let has = |m: &Value, what: &str| {
            ["subject", "text"].iter().any(|key| m[*key].as_str().unwrap().contains(what))
        };
        self.mails().into_iter().filter(|m| m["to"][0] == to && has(m, what)).collect()
    }

    /// Waits for a mail to this recipient that contains this text.
    pub fn wait_for(&self, to: &str, what: &str, log: impl Fn() -> String) -> Value {
        eventually(60 * SECOND, &format!("a mail to {to} that says {what:?}; log:\n{}", log()), || {
            self.of(to, what).into_iter().next()
        })
    }
}

impl Drop for Smtp {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

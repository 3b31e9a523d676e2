//! A beanstalkd that is started for a measurement, beside dq.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, anyhow};

use super::super::super::own_daemon::{free_port, local};
use super::super::daemon::await_start;

/// A running beanstalkd. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Beanstalkd {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Beanstalkd {
    /// Starts a beanstalkd. With a folder, each change is on the disk before it is answered (`-b FOLDER -f0`). Without
    /// a folder, jobs are in memory only. The output of beanstalkd is not shown, because it has a line for each client
    /// that has left.
    pub(super) fn start(log: Option<&Path>) -> Result<Beanstalkd> {
        let address = local(free_port()?);
        let mut command = Command::new("beanstalkd");
        command.args(["-l", &address.ip().to_string(), "-p", &address.port().to_string()]);
        if let Some(folder) = log {
            std::fs::create_dir_all(folder)?;
            command.arg("-b").arg(folder).arg("-f0");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| match e.kind() {
            ErrorKind::NotFound => anyhow!(
                "no beanstalkd is in PATH, and dq is compared with it; install the package beanstalkd"
            ),
            _ => anyhow::Error::new(e).context("cannot start beanstalkd"),
        })?;
        let mut server = Beanstalkd { child, address };
        await_start(
            "beanstalkd",
            || Ok(server.child.try_wait()?.is_some()),
            || TcpStream::connect(address).map(drop).context("it does not accept connections"),
        )?;
        Ok(server)
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

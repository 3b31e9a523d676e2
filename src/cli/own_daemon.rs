//! A daemon that a command starts for itself, in a new folder that is removed afterwards. The demo and the measurements
//! use it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use model::slot::MASTER;

/// Returns a loopback address.
pub(super) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Returns a port that is free at this moment.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(local(0)).context("no port is free")?.local_addr()?.port())
}

/// A folder that is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct TemporaryFolder(pub PathBuf);

impl TemporaryFolder {
    /// Creates the folder `dq-<what>-<random>` in `parent`, or else in the host's folder for temporary files.
    pub(super) fn fresh(what: &str, parent: Option<PathBuf>) -> Result<TemporaryFolder> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let path = parent.join(format!("dq-{what}-{}", host::random_name()?));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(TemporaryFolder(path))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {e}", self.0.display());
        }
    }
}

/// A dq-master with the configuration `dq.toml` of a folder.
#[derive(Debug)]
pub(super) struct DaemonProcess(Option<Child>);

impl DaemonProcess {
    /// Starts this executable as dq-master.
    pub(super) fn start(folder: &TemporaryFolder) -> Result<DaemonProcess> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(&program);
        command.arg0(MASTER);
        // The variables `DQ_…` of the user's environment are meant for another daemon.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"DQ_")) {
            command.env_remove(name);
        }
        let child = command
            .arg("--config")
            .arg(folder.0.join("dq.toml"))
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "error".into()))
            // An interrupt from the terminal must reach only the command, which then ends the daemon.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(DaemonProcess(Some(child)))
    }

    /// Returns the process id of the master. `None`: it has been stopped.
    pub(super) fn pid(&self) -> Option<u32> {
        self.0.as_ref().map(Child::id)
    }

    pub(super) fn has_ended(&mut self) -> Result<bool> {
        Ok(match &mut self.0 {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        })
    }

    /// Drains the daemon, and waits until it has ended.
    pub(super) fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.0.take() else { return Ok(()) };
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).context("cannot end dq-master")?;
        let status = child.wait()?;
        if !status.success() {
            bail!("dq-master ended with {status}");
        }
        Ok(())
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        if let Err(e) = self.stop() {
            eprintln!("{e:#}");
        }
    }
}

//! A daemon of a command's own, in a fresh folder that is gone afterwards: for the demo and the measurements.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// An address of this host alone.
pub(super) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A port that nobody has at this moment.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(local(0)).context("no port is free")?.local_addr()?.port())
}

/// A folder that is gone when it is dropped.
#[derive(Debug)]
pub(super) struct Folder(pub PathBuf);

impl Folder {
    /// `dq-<what>-<random>` among the host's temporary files, or where it is said.
    pub(super) fn fresh(what: &str, parent: Option<PathBuf>) -> Result<Folder> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let path = parent.join(format!("dq-{what}-{}", crate::process::random_name()?));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {e}", self.0.display());
        }
    }
}

/// A dq-master with the configuration `dq.toml` of a folder.
#[derive(Debug)]
pub(super) struct Daemon(Option<Child>);

impl Daemon {
    /// Starts the dq-master that lies beside this executable.
    pub(super) fn start(folder: &Folder) -> Result<Daemon> {
        let program = std::env::current_exe()?.with_file_name("dq-master");
        let mut command = Command::new(&program);
        // What the user has set for a daemon of their own is not for this one.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"DQ_")) {
            command.env_remove(name);
        }
        let child = command
            .arg("--config")
            .arg(folder.0.join("dq.toml"))
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "error".into()))
            // An interrupt from the terminal is for the command, which then ends the daemon.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Daemon(Some(child)))
    }

    /// The master's process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.0.as_ref().map(Child::id)
    }

    pub(super) fn has_ended(&mut self) -> Result<bool> {
        Ok(match &mut self.0 {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        })
    }

    /// Drains and waits.
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

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(e) = self.stop() {
            eprintln!("{e:#}");
        }
    }
}

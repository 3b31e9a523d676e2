//! After USR2, the running master continues as the new `dq`. But the next start of the daemon executes the `dq-master`
//! that is beside this `dq`. A new executable is accepted only if this `dq-master` works too and is of the same
//! release. Otherwise, a wrong `dq-master` would be found only at the next start, perhaps after months.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use host::wait_readable;
use model::slot::MASTER;

/// How long dq-master may take to print its version.
const PATIENCE: Duration = Duration::from_secs(5);

/// Checks that the `dq-master` beside this executable prints the version of this release. If there is no `dq-master`
/// beside it, the daemon was started in another way, and nothing is checked.
pub(super) fn check_dq_master(executable: &Path) -> Result<()> {
    let dq_master = executable.with_file_name(MASTER);
    // This code runs in the trial run of the new executable. If this executable is `dq-master` itself, its trial run
    // already shows that it works. So no check is needed.
    if dq_master == executable || !dq_master.exists() {
        return Ok(());
    }
    let shown = dq_master.display();
    let install = "install dq and dq-master of the same release in one folder";
    let wanted = format!("{MASTER} {}", env!("CARGO_PKG_VERSION"));
    match version(&dq_master) {
        Ok(version) if version == wanted => Ok(()),
        Ok(version) => bail!("{shown} is {version:?} and not {wanted:?}: {install}"),
        Err(e) => bail!("cannot execute {shown}: {e}. {install}"),
    }
}

/// Returns the first line that `--version` prints.
fn version(program: &Path) -> io::Result<String> {
    let mut command = Command::new(program);
    // The environment is cleared: its variables may be meant for this process alone.
    command.arg("--version").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let output = match child.stdout.take() {
        Some(mut output) => read_all(&mut output, Instant::now() + PATIENCE),
        None => Err(io::Error::other("no pipe")),
    };
    // The process has ended, or took too long.
    let _ = child.kill();
    let end = child.wait()?;
    let output = String::from_utf8_lossy(&output?).into_owned();
    match output.lines().next() {
        Some(line) if end.success() => Ok(line.chars().take(100).collect()),
        _ => Err(io::Error::other(format!("{end}"))),
    }
}

/// Reads all that a process prints, until it closes its output. Fails if the output is still open at the moment
/// `until`.
pub(super) fn read_all(output: &mut ChildStdout, until: Instant) -> io::Result<Vec<u8>> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if !wait_readable(&[output.as_fd()], Some(until))?[0] {
            return Err(io::Error::other("no answer in time"));
        }
        match output.read(&mut piece)? {
            0 => return Ok(bytes),
            n => bytes.extend(&piece[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_dq_master_that_does_not_work_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (dq, dq_master) = (dir.path().join("dq"), dir.path().join(MASTER));
        assert!(check_dq_master(&dq).is_ok(), "there is none");
        let version = env!("CARGO_PKG_VERSION");
        for (text, mode, refusal) in [
            (format!("#!/bin/sh\necho {MASTER} {version}\n"), 0o755, None),
            (format!("#!/bin/sh\necho {MASTER} {version}\n"), 0o644, Some("Permission denied")),
            ("#!/bin/sh\necho dq-master 0.0.1\n".to_owned(), 0o755, Some("\"dq-master 0.0.1\" and not")),
            ("#!/bin/sh\nexit 127\n".to_owned(), 0o755, Some("exit status: 127")),
            ("\x7fELF\x02\x01\x01".to_owned(), 0o755, Some("Exec format error")),
            (String::new(), 0o755, Some("")),
        ] {
            // Each time, a new file replaces the file of this name. So no file is executed while it is open for
            // writing.
            let draft = dir.path().join("draft");
            std::fs::write(&draft, &text).unwrap();
            std::fs::set_permissions(&draft, PermissionsExt::from_mode(mode)).unwrap();
            std::fs::rename(&draft, &dq_master).unwrap();
            let result = check_dq_master(&dq).map_err(|e| e.to_string());
            match refusal {
                None => assert_eq!(result, Ok(())),
                Some(part) => {
                    assert!(result.as_ref().is_err_and(|e| e.contains(part)), "{text:?}: {result:?}")
                }
            }
        }
        assert!(check_dq_master(&dq_master).is_ok(), "it is the file that is being tried");
    }
}

//! `store.nodes_from_registry`: a process of its own is asked for the nodes, since the master opens no database. Of one that is
//! away the nodes count that it had when it last answered.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::php_node::PhpNode;
use crate::process::wait_readable;
use crate::settings::Registry;

/// What the process is called that is asked.
pub const NAME: &str = "dq-nodes";

/// How long it may take. The master does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// The nodes that stand in the registry; `is_kept`: they are noted for a time when it does not answer.
pub(super) fn ask(registry: &Registry, run_dir: &Path, is_kept: bool) -> Result<Vec<PhpNode>, String> {
    let file = known(run_dir);
    let why = match ask_process(registry) {
        Ok(Ok(nodes)) => {
            if is_kept && let Err(e) = keep(&file, registry, &nodes) {
                log::warn!("cannot write {}: {e}", file.display());
            }
            return Ok(nodes);
        }
        Ok(Err(why)) => why,
        Err(e) => e.to_string(),
    };
    match read(&file, registry) {
        Some(nodes) => {
            log::warn!("{registry}: {why}; going on with the nodes that it had");
            Ok(nodes)
        }
        None => Err(format!("the registry does not tell its nodes: {why}")),
    }
}

fn ask_process(registry: &Registry) -> io::Result<Result<Vec<PhpNode>, String>> {
    let mut command = Command::new("/proc/self/exe");
    // What stands in the environment may be for this process alone.
    command.arg0(NAME).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let answer = || -> io::Result<Vec<u8>> {
        let (Some(mut ask), Some(mut told)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        ask.write_all(&serde_json::to_vec(registry)?)?;
        drop(ask);
        let until = Instant::now() + PATIENCE;
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            if !wait_readable(&[told.as_fd()], Some(until))?[0] {
                return Err(io::Error::other(format!("no answer within {PATIENCE:?}")));
            }
            match told.read(&mut piece)? {
                0 => return Ok(bytes),
                n => bytes.extend(&piece[..n]),
            }
        }
    }();
    // It has ended, or is to.
    let _ = child.kill();
    child.wait()?;
    Ok(serde_json::from_slice(&answer?)?)
}

/// Where the nodes are kept that were told last, with their passwords.
fn known(run_dir: &Path) -> PathBuf {
    run_dir.join("registry/nodes.json")
}

fn keep(file: &Path, registry: &Registry, nodes: &[PhpNode]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let draft = file.with_extension(format!("draft-{}", std::process::id()));
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    out.write_all(&serde_json::to_vec(&(registry.to_string(), nodes))?)?;
    out.sync_all()?;
    std::fs::rename(draft, file)
}

/// What was told last by that registry.
fn read(file: &Path, registry: &Registry) -> Option<Vec<PhpNode>> {
    let (of, nodes): (String, Vec<PhpNode>) = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    (of == registry.to_string()).then_some(nodes)
}

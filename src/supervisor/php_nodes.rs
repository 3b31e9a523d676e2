//! `store.nodes_from_registry`: the nodes that the PHP daemon's registry lists. The master opens no database, so it
//! asks a separate process. If the registry does not answer, the nodes of its last answer are used.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::name_check::read_all;
use model::php_node::PhpNode;
use model::settings::RegistrySettings;

/// The name of the process that is asked.
pub const NAME: &str = "dq-nodes";

/// How long that process may take. The master does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the nodes that the registry lists. With `is_kept`, saves the nodes for times when the registry does not
/// answer.
pub(super) fn ask(
    registry: &RegistrySettings,
    run_dir: &Path,
    is_kept: bool,
) -> Result<Vec<PhpNode>, String> {
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
            log::warn!("{registry}: {why}; using the nodes of its last answer");
            Ok(nodes)
        }
        None => Err(format!("cannot get the nodes from the registry: {why}")),
    }
}

fn ask_process(registry: &RegistrySettings) -> io::Result<Result<Vec<PhpNode>, String>> {
    let mut command = Command::new("/proc/self/exe");
    // The environment is cleared: its variables may be meant for this process alone.
    command.arg0(NAME).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let answer = || -> io::Result<Vec<u8>> {
        let (Some(mut ask), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        ask.write_all(&serde_json::to_vec(registry)?)?;
        drop(ask);
        read_all(&mut output, Instant::now() + PATIENCE)
    }();
    // The process has ended, or took too long.
    let _ = child.kill();
    child.wait()?;
    Ok(serde_json::from_slice(&answer?)?)
}

/// Returns the path of the file that keeps the nodes of the last answer, with their passwords.
fn known(run_dir: &Path) -> PathBuf {
    run_dir.join("registry/nodes.json")
}

fn keep(file: &Path, registry: &RegistrySettings, nodes: &[PhpNode]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let draft = host::draft_of(file);
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    out.write_all(&serde_json::to_vec(&(registry.to_string(), nodes))?)?;
    out.sync_all()?;
    std::fs::rename(draft, file)
}

/// Returns the nodes of the last answer of that registry.
fn read(file: &Path, registry: &RegistrySettings) -> Option<Vec<PhpNode>> {
    let (of, nodes): (String, Vec<PhpNode>) = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    (of == registry.to_string()).then_some(nodes)
}

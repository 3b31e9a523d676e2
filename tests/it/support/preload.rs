//! Small libraries that the C compiler builds. Processes of a test load them before all other libraries.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Returns the library of a source file. The path of the source file is relative to the project. Each library is built
/// once in each run.
pub fn library(source: &'static str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<&str, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap();
    built.get_or_insert_default().entry(source).or_insert_with(|| build(source)).clone()
}

fn build(source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&dir).unwrap();
    let name = source.file_stem().unwrap().to_str().unwrap();
    let draft = dir.join(format!("{name}-{}.so", std::process::id()));
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&draft).arg(&source).output();
    let made = made.expect("cc can be run");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let library = dir.join(format!("{name}.so"));
    std::fs::rename(draft, &library).unwrap();
    library
}

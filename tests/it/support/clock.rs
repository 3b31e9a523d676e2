//! A clock that is wrong, for one process: a small library, built by the C compiler, that is loaded before all others.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The library that shifts a clock. It is built once a run.
fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nodes/clock.c");
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        std::fs::create_dir_all(&dir).unwrap();
        let draft = dir.join(format!("clock-{}.so", std::process::id()));
        let made =
            Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&draft).arg(source).output();
        let made = made.expect("cc can be run");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let library = dir.join("clock.so");
        std::fs::rename(draft, &library).unwrap();
        library
    };
    BUILT.get_or_init(build).clone()
}

/// The process that this command starts, and all that it starts, have a clock that is so far ahead.
pub fn shift(command: &mut Command, offset_ms: i64) {
    if offset_ms != 0 {
        command.env("LD_PRELOAD", library()).env("CLOCK_OFFSET_MS", offset_ms.to_string());
    }
}

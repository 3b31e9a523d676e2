//! A wrong clock for one process.

use std::process::Command;

use super::preload::library;

/// Gives the process that this command starts, and all its children, a clock that is ahead by `offset_ms`. If
/// `offset_ms` is negative, the clock is behind.
pub fn shift(command: &mut Command, offset_ms: i64) {
    if offset_ms != 0 {
        let library = library("tests/nodes/clock.c");
        command.env("LD_PRELOAD", library).env("CLOCK_OFFSET_MS", offset_ms.to_string());
    }
}

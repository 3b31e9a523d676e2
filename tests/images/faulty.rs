//! A dq-master with a fault: it uses the same library, but does one thing wrong. A file `fault` beside its
//! configuration file names the fault. Only for tests.
//!
//! | fault | what goes wrong |
//! |---|---|
//! | `unready` | its children never report ready |
//! | `version` | its preflight finds a hand-over of a version that it does not know |
//! | `adopt` | it finds a hand-over of an unknown version, but only after it has replaced the old executable |
//! | `crash` | it ends as soon as it has replaced the old executable |
//! | `spin NAME` | the child NAME reports ready, and then loops without end |
//! | `hang NAME` | the child NAME reports ready, and then stays in a system call |
//! | `deaf NAME` | the child NAME reports ready, and then ignores the master |

use std::process::ExitCode;
use std::time::Duration;

use host::{ChildInheritance, HandOverMemory, ToMaster, set_process_name};

fn main() -> ExitCode {
    let handed_over = HandOverMemory::take().expect("a hand-over or none");
    let inherited = ChildInheritance::take().expect("an inheritance or none");
    let fault = fault();
    match (handed_over, inherited) {
        (Some(mut from), _) => {
            match fault.as_str() {
                "adopt" => spoil(&mut from.bytes),
                "crash" => std::process::abort(),
                _ => {}
            }
            supervisor::resume(from)
        }
        (_, Some(mut inherited)) if inherited.slot == supervisor::PREFLIGHT => {
            if fault == "version" {
                spoil(&mut inherited.settings);
            }
            supervisor::preflight(&inherited)
        }
        (_, Some(inherited)) => child(inherited, &fault),
        (None, None) => supervisor::main(),
    }
}

/// Returns the text of the file `fault`. An environment variable names the folder of this file.
fn fault() -> String {
    let folder = std::env::var_os("TEST_FOLDER_OF_DQ").expect("a folder");
    let path = std::path::Path::new(&folder).join("fault");
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn spoil(bytes: &mut Vec<u8>) {
    let text = String::from_utf8(std::mem::take(bytes)).expect("JSON");
    assert!(text.starts_with("{\"version\":1,"), "{text}");
    *bytes = text.replacen("\"version\":1", "\"version\":999", 1).into_bytes();
}

fn child(inherited: ChildInheritance, fault: &str) -> ExitCode {
    let (kind, name) = fault.split_once(' ').unwrap_or((fault, ""));
    if kind != "unready" && name != inherited.slot {
        return roles::main(inherited);
    }
    set_process_name(&inherited.slot).expect("a name");
    if kind != "unready" {
        inherited.link.send(&ToMaster::Ready).expect("a link");
    }
    loop {
        match kind {
            "spin" => std::hint::spin_loop(),
            "deaf" => std::thread::sleep(Duration::from_millis(10)),
            // "hang", and children that never report ready.
            _ => std::thread::sleep(Duration::MAX),
        }
    }
}

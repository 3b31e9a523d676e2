//! Starts the daemon: executes the `dq` in the folder of this executable, under the name `dq-master`. `dq` contains the
//! whole daemon. The other arguments, the environment, the descriptors and the blocked signals stay as they are.

use std::ffi::{CString, OsStr, c_char, c_int};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::ptr;

unsafe extern "C" {
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
}

fn main() -> ExitCode {
    let path = std::env::current_exe().map(|own| own.with_file_name("dq"));
    let error = path.as_deref().map_or_else(|e| io::Error::from(e.kind()), execute);
    let path = path.as_deref().unwrap_or(Path::new("dq"));
    eprintln!("dq-master: cannot execute {}: {error}", path.display());
    ExitCode::from(127)
}

/// Executes `dq`. Returns only if this fails. `std::process::Command` cannot be used here: it would unblock signals,
/// and a signal that arrives during an upgrade would then end the daemon.
fn execute(dq: &Path) -> io::Error {
    let attempt = || -> io::Result<io::Error> {
        let inode = |file: Metadata| (file.dev(), file.ino());
        let file = dq.metadata()?;
        if file.is_dir() {
            return Err(io::Error::other("it is a folder"));
        }
        if inode(file) == inode(Path::new("/proc/self/exe").metadata()?) {
            return Err(io::Error::other("it is dq-master itself, and not dq"));
        }
        let c_string = |text: &OsStr| CString::new(text.as_bytes());
        let path = c_string(dq.as_os_str())?;
        let arguments = std::env::args_os().skip(1).map(|a| c_string(&a));
        let arguments: Vec<CString> =
            [Ok(c"dq-master".to_owned())].into_iter().chain(arguments).collect::<Result<_, _>>()?;
        let pointers: Vec<_> = arguments.iter().map(|a| a.as_ptr()).chain([ptr::null()]).collect();
        // SAFETY: each string ends with zero, and the list of the strings ends with null. All of them outlive the call.
        unsafe { execv(path.as_ptr(), pointers.as_ptr()) };
        Ok(io::Error::last_os_error())
    };
    attempt().unwrap_or_else(|error| error)
}

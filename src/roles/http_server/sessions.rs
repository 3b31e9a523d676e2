//! The key that signs the sessions of the console, and its file.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use model::session::{self, KEY_LEAST, SessionKey};
use model::settings::Settings;

/// The longest key that is read, in bytes.
const KEY_MOST: u64 = 4096;

/// How sessions are recognized.
pub(super) struct SessionSettings {
    pub key: SessionKey,
    /// The name of the cookie.
    pub cookie: String,
    /// Whether browsers send the cookie only over TLS.
    pub is_secure: bool,
}

impl SessionSettings {
    /// Reads the key. If the configuration names no file for the key, and there is no key yet, dq makes a key. None:
    /// there is no console.
    pub(super) fn load(settings: &Settings) -> Result<Option<SessionSettings>> {
        let http = &settings.http;
        if !http.console {
            return Ok(None);
        }
        let key = match &http.session_key_file {
            Some(path) => read(path).with_context(|| format!("http.session_key_file {}", path.display()))?,
            None => {
                let path = settings.session_key_path();
                read_or_make(&path).with_context(|| format!("cannot use {}", path.display()))?
            }
        };
        let is_secure = http.tls.is_some();
        Ok(Some(SessionSettings { key, cookie: session::cookie(http.listen, is_secure), is_secure }))
    }
}

/// Reads a key from a file that only its owner may read.
fn read(path: &Path) -> Result<SessionKey> {
    let file = fs::File::open(path)?;
    let found = file.metadata()?;
    if found.mode() & 0o077 != 0 {
        bail!("others may read or write it (mode {:o}): chmod 600 it", found.mode() & 0o777);
    }
    let mut bytes = Vec::new();
    file.take(KEY_MOST).read_to_end(&mut bytes)?;
    let length = bytes.len();
    SessionKey::new(bytes).with_context(|| format!("it has {length} bytes, and needs at least {KEY_LEAST}"))
}

/// Reads the key, or makes a key. Another process may make a key at the same time.
fn read_or_make(path: &Path) -> Result<SessionKey> {
    match read(path) {
        Err(e) if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::NotFound) => {}
        key => return key,
    }
    let mut random = [0; KEY_LEAST];
    getrandom::fill(&mut random).context("the system gives no random bytes")?;
    // The key is written completely before the file gets its final name.
    let made = path.with_extension(std::process::id().to_string());
    let _ = fs::remove_file(&made);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&made)?;
    file.write_all(&random)?;
    let linked = fs::hard_link(&made, path);
    fs::remove_file(&made)?;
    match linked {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e.into()),
        _ => read(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_made_once_and_refused_if_others_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session-key");
        let key = read_or_make(&path).unwrap();
        assert!(read_or_make(&path).unwrap() == key);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read_or_make(&path).unwrap_err().to_string().contains("mode 640"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("5 bytes"));
    }
}

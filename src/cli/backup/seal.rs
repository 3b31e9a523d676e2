//! The seal of a backup: its last line, with the digest of all bytes before it. SQLite reads a file only up to the size
//! in the header, so it does not see this line. The checksum covers only the rows. The seal also covers indexes, the
//! schema, and unused parts of pages.
//!
//! A sealed backup also says in its table that it has a seal. So a backup that has lost its last line is noticed, too.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest, Sha256};

/// How the last line begins.
const PREFIX: &[u8] = b"dq-backup sha256 ";

/// How many bytes the last line has.
const LINE: u64 = PREFIX.len() as u64 + 64 + 1;

/// Appends the line to a backup that is otherwise complete.
pub(super) fn write(path: &Path) -> Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    let length = file.metadata()?.len();
    let digest = digest(&mut file, length)?;
    let line = [PREFIX, digest.as_bytes(), b"\n"].concat();
    file.write_all(&line)?;
    Ok(())
}

/// Compares a backup with its seal. Returns false if the backup has no seal. Fails if the seal differs.
pub(super) fn check(path: &Path, what: &str) -> Result<bool> {
    let mut file = File::open(path).with_context(|| format!("cannot open {what}"))?;
    let Some(length) = file.metadata()?.len().checked_sub(LINE) else { return Ok(false) };
    let mut line = Vec::new();
    file.seek(SeekFrom::Start(length))?;
    file.read_to_end(&mut line)?;
    let Some(noted) = line.strip_prefix(PREFIX) else { return Ok(false) };
    if noted != format!("{}\n", digest(&mut file, length)?).as_bytes() {
        bail!(
            "{what} is damaged: its bytes have another checksum than when it was made. Take another backup"
        );
    }
    Ok(true)
}

/// Returns the digest of the first bytes of a file, in hexadecimal digits.
fn digest(file: &mut File, length: u64) -> Result<String> {
    let mut digest = Sha256::new();
    file.seek(SeekFrom::Start(0))?;
    let (mut left, mut buffer) = (file.take(length), vec![0; 1 << 20]);
    loop {
        match left.read(&mut buffer)? {
            0 => break,
            read => digest.update(&buffer[..read]),
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_changed_bit_is_found_or_takes_the_seal_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        std::fs::write(&path, "the pages of a store").unwrap();
        assert!(!check(&path, "it").unwrap(), "it is of an earlier release");
        write(&path).unwrap();
        assert!(check(&path, "it").unwrap());
        let sealed = std::fs::read(&path).unwrap();
        let line = sealed.len() - LINE as usize;
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, damaged).unwrap();
            let is_prefix = (line..line + PREFIX.len()).contains(&(bit / 8));
            match check(&path, "it") {
                Ok(is_sealed) => assert!(!is_sealed && is_prefix, "bit {bit}"),
                Err(e) => assert!(e.to_string().contains("is damaged") && !is_prefix, "bit {bit}: {e}"),
            }
        }
    }
}

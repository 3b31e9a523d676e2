//! Passwords of people, as dq stores them: hashed with Argon2id, in the PHC string format. Pure: salts are arguments.
//! To hash or to check a password takes about 20 ms and 19 MiB, so that guessing is expensive. The caller must do this
//! work in a thread where no other work waits.

use std::fmt;
use std::sync::{Arc, LazyLock};

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use argon2::{ARGON2ID_IDENT, Argon2};

/// The least and the greatest number of characters of a password.
pub const LENGTHS: [usize; 2] = [8, 256];

/// The error for a password of the wrong length. Holds the number of characters of the password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has {0} characters, and not {min} to {max}", min = LENGTHS[0], max = LENGTHS[1])]
pub struct PasswordLengthError(usize);

/// The hash of a password, which is what dq stores.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredPassword(Arc<str>);

impl StoredPassword {
    /// Hashes a new password. The salt must be random.
    pub fn new(password: &str, salt: [u8; 16]) -> Result<StoredPassword, PasswordLengthError> {
        let length = password.chars().count();
        if !(LENGTHS[0]..=LENGTHS[1]).contains(&length) {
            return Err(PasswordLengthError(length));
        }
        let hash = Argon2::default()
            .hash_password_with_salt(password.as_bytes(), &salt)
            .expect("Argon2's own parameters, and a salt of 16 bytes, are right");
        Ok(StoredPassword(hash.to_string().into()))
    }

    /// Reads a hash from its text. None: the text is not a hash made by Argon2id.
    pub fn parse(text: &str) -> Option<StoredPassword> {
        let hash = PasswordHash::new(text).ok()?;
        (hash.algorithm == ARGON2ID_IDENT && hash.hash.is_some()).then(|| StoredPassword(text.into()))
    }

    /// Returns the text of the hash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the hash was made from this password.
    pub fn is_of(&self, password: &str) -> bool {
        // A text that is too long for any password is not hashed.
        let fits = password.chars().count() <= LENGTHS[1];
        let hash = PasswordHash::new(&self.0);
        fits && hash.is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
    }
}

/// Takes as long as the check of an account's password. Call this function when the named account does not exist, so
/// that the time of the answer does not show whether an account exists.
pub fn check_nobodys(password: &str) {
    static NOBODYS: LazyLock<Option<StoredPassword>> =
        LazyLock::new(|| StoredPassword::new("nobody's password", [0; 16]).ok());
    if let Some(hashed) = &*NOBODYS {
        let _ = hashed.is_of(password);
    }
}

/// Hides the hash.
impl fmt::Debug for StoredPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashed(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_known_by_its_hash_alone() {
        let hashed = StoredPassword::new("correct horse", [7; 16]).unwrap();
        assert!(hashed.is_of("correct horse") && !hashed.is_of("correct horsf") && !hashed.is_of(""));
        assert!(hashed.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", hashed.as_str());
        assert_eq!(StoredPassword::parse(hashed.as_str()), Some(hashed.clone()));
        assert_ne!(StoredPassword::new("correct horse", [8; 16]).unwrap(), hashed);
        assert!(!format!("{hashed:?}").contains("argon2"));
        for wrong in
            ["", "correct horse", "$argon2id$", "$argon2i$v=19$m=19456,t=2,p=1$BwcHBwcHBwc$AAAAAAAAAAAAAAAA"]
        {
            assert_eq!(StoredPassword::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_password_has_8_to_256_characters_of_any_script() {
        assert_eq!(StoredPassword::new("seven77", [0; 16]), Err(PasswordLengthError(7)));
        assert_eq!(StoredPassword::new(&"x".repeat(257), [0; 16]), Err(PasswordLengthError(257)));
        assert!(StoredPassword::new("正确的马电池订书钉", [0; 16]).unwrap().is_of("正确的马电池订书钉"));
    }
}

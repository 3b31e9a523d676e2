//! Names of tubes. (A tube is beanstalkd's word for a topic.)

use std::fmt;

/// The longest name of a tube, in bytes.
pub const TUBE_MAX: usize = 200;

/// A valid name of a tube: 1 to 200 letters, digits and `-+/;.$_()`. It does not begin with `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TubeName(Box<str>);

impl TubeName {
    /// Checks a name. None: the name is not valid.
    pub fn new(name: &[u8]) -> Option<TubeName> {
        let is_valid = (1..=TUBE_MAX).contains(&name.len())
            && name[0] != b'-'
            && name.iter().all(|byte| is_name_byte(*byte));
        let name = std::str::from_utf8(name).ok().filter(|_| is_valid)?;
        Some(TubeName(name.into()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TubeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if a name may hold this byte.
pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&byte)
}

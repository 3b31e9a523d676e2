//! Cursors of listings. The store's own cursor may contain any characters. dq encodes it for clients with characters
//! that every URL allows.

use std::fmt::Write;

/// Encodes the store's cursor for a client.
pub(super) fn write(words: &str) -> String {
    words.bytes().fold(String::with_capacity(words.len() * 2), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Decodes a client's cursor. None: the text is not a valid cursor.
pub(super) fn read(shown: &str) -> Option<String> {
    if !shown.len().is_multiple_of(2) || !shown.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let byte = |at| u8::from_str_radix(shown.get(at..at + 2)?, 16).ok();
    String::from_utf8((0..shown.len()).step_by(2).map(byte).collect::<Option<_>>()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_was() {
        for words in ["", "2.17.3", "[[1,\"a b&c\"],null]", "中"] {
            assert_eq!(read(&write(words)).as_deref(), Some(words));
        }
        for wrong in ["2", "2.", "zz", "+1", "ff", "中中"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

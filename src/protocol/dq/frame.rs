//! Finds where a frame ends and appends frames, in both framings.

use std::ops::Range;

/// How many bytes give a frame's length.
pub const HEADER: usize = 4;

/// The longest frame that 4 digits can announce.
pub const DIGITS_MAX: usize = 9999;

/// How a connection's frames give their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// 4 ASCII digits.
    Digits,
    /// 4 bytes, big-endian. The first byte is 0, because no frame is 16 MiB long.
    Binary,
}

/// Why the beginning of the next frame is unknown. The bytes that follow cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first bytes are not a length.
    #[error("a frame begins with 4 digits or 4 big-endian bytes of length, not with \"{}\"", .0.escape_ascii())]
    NoLength([u8; HEADER]),
    /// The frame is longer than allowed. Both lengths are in bytes.
    #[error("a frame of {length} bytes is longer than max_frame, {most}")]
    TooLong {
        /// The length that the frame announced.
        length: usize,
        /// The longest length that is allowed.
        most: usize,
    },
}

impl Framing {
    /// Returns the framing of a connection that begins with this byte. None: no framing begins with this byte.
    pub fn from_first_byte(first: u8) -> Option<Framing> {
        match first {
            b'0'..=b'9' => Some(Framing::Digits),
            0 => Some(Framing::Binary),
            _ => None,
        }
    }

    /// Returns where the JSON of the first frame lies in `bytes`. None: the frame has not arrived in full.
    pub fn frame(self, bytes: &[u8], max_frame: usize) -> Result<Option<Range<usize>>, FrameError> {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let length = match self {
            Framing::Binary => u32::from_be_bytes(*header) as usize,
            Framing::Digits if header.iter().all(u8::is_ascii_digit) => {
                header.iter().fold(0, |n, d| n * 10 + usize::from(d - b'0'))
            }
            Framing::Digits => return Err(FrameError::NoLength(*header)),
        };
        if length > max_frame {
            return Err(FrameError::TooLong { length, most: max_frame });
        }
        Ok((bytes.len() >= HEADER + length).then_some(HEADER..HEADER + length))
    }

    /// Appends a frame. Returns false and appends nothing if the JSON is too long for this framing.
    #[must_use]
    pub fn append(self, json: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Framing::Digits if json.len() > DIGITS_MAX => return false,
            Framing::Digits => {
                let digit = |of: usize| b'0' + (json.len() / of % 10) as u8;
                out.extend_from_slice(&[digit(1000), digit(100), digit(10), digit(1)]);
            }
            Framing::Binary => match u32::try_from(json.len()) {
                Ok(length) => out.extend_from_slice(&length.to_be_bytes()),
                Err(_) => return false,
            },
        }
        out.extend_from_slice(json);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_appended_in_its_framing() {
        let mut out = Vec::new();
        assert!(Framing::Digits.append(b"{}", &mut out) && Framing::Binary.append(b"[]", &mut out));
        assert_eq!(out, b"0002{}\0\0\0\x02[]");
        assert!(!Framing::Digits.append(&[b' '; 10_000], &mut out));
        assert_eq!(out.len(), 12);
    }

    #[test]
    fn frames_are_cut_where_they_end() {
        assert_eq!(Framing::Digits.frame(b"000", 10), Ok(None));
        assert_eq!(Framing::Digits.frame(b"0003{}", 10), Ok(None));
        assert_eq!(Framing::Digits.frame(b"0002{}00", 10), Ok(Some(4..6)));
        assert_eq!(Framing::Binary.frame(b"\0\0\0\0\0", 10), Ok(Some(4..4)));
        assert_eq!(Framing::Digits.frame(b"00x2{}", 10), Err(FrameError::NoLength(*b"00x2")));
        assert_eq!(
            Framing::Binary.frame(b"\0\x01\0\0", 10),
            Err(FrameError::TooLong { length: 65536, most: 10 })
        );
        assert_eq!(Framing::from_first_byte(b'{'), None);
    }
}

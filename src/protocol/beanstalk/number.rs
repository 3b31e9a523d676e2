//! Numbers, as beanstalkd reads them. Most of them are strict ([`unsigned`]). `kick` and `reserve-with-timeout` read
//! their numbers with C's `strtoul` and `strtol` ([`strtoul`], [`strtol`]). These functions accept signs, white space,
//! and any text after the digits.

/// Reads a number of at most `max`, and moves `text` to the first byte after it. Blanks may stand before the number,
/// but a sign may not. None: there is no digit, or the number is too large.
pub(super) fn unsigned(text: &mut &[u8], max: u64) -> Option<u64> {
    let begin = text.iter().take_while(|byte| **byte == b' ').count();
    let (magnitude, rest) = digits(&text[begin..])?;
    *text = rest;
    magnitude.filter(|number| *number <= max)
}

/// Reads a number of at most 32 bits. See [`unsigned`].
pub(super) fn unsigned_32(text: &mut &[u8]) -> Option<u32> {
    unsigned(text, u64::from(u32::MAX))?.try_into().ok()
}

/// Reads a number of 64 bits. A negative number is converted modulo 2^64. None: there is no digit, or the number is too
/// large.
pub(super) fn strtoul(text: &[u8]) -> Option<u64> {
    let (is_negative, text) = sign(text);
    let magnitude = digits(text)?.0?;
    Some(if is_negative { magnitude.wrapping_neg() } else { magnitude })
}

/// Reads a signed number of 64 bits. Without a digit, the result is 0. None: the number does not fit.
pub(super) fn strtol(text: &[u8]) -> Option<i64> {
    let (is_negative, text) = sign(text);
    let Some((magnitude, _)) = digits(text) else { return Some(0) };
    let magnitude = i128::from(magnitude?);
    i64::try_from(if is_negative { -magnitude } else { magnitude }).ok()
}

/// Skips C's white space and one sign. Returns whether the sign is `-`, and the text after the sign.
fn sign(text: &[u8]) -> (bool, &[u8]) {
    let begin = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    match &text[begin..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    }
}

/// Reads digits. Returns the number and the text after the digits. The number is None if it has more than 64 bits. The
/// result is None if there is no digit.
fn digits(text: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let (digits, rest) = text.split_at(count);
    let add = |number: u64, digit: &u8| number.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    Some((digits.iter().try_fold(0, add), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_numbers_have_no_sign_and_a_bound() {
        let read = |text: &str, max| {
            let mut rest = text.as_bytes();
            unsigned(&mut rest, max).map(|number| (number, rest.len()))
        };
        assert_eq!(read("12", 12), Some((12, 0)));
        assert_eq!(read("  007 x", 12), Some((7, 2)));
        for bad in ["", " ", "13", "-1", "+1", "\t1", "x", "99999999999999999999"] {
            assert_eq!(read(bad, 12), None, "{bad:?}");
        }
        assert_eq!(read("18446744073709551615", u64::MAX), Some((u64::MAX, 0)));
        assert_eq!(read("18446744073709551616", u64::MAX), None);
        assert_eq!(unsigned_32(&mut &b"4294967295"[..]), Some(u32::MAX));
        assert_eq!(unsigned_32(&mut &b"4294967296"[..]), None);
    }

    #[test]
    fn lenient_numbers_are_those_of_c() {
        assert_eq!(strtoul(b" \t+12abc"), Some(12));
        assert_eq!(strtoul(b"-1"), Some(u64::MAX));
        assert_eq!(strtoul(b"-18446744073709551615"), Some(1));
        assert_eq!(strtoul(b"-18446744073709551616"), None);
        assert_eq!(strtoul(b"+-1"), None);
        assert_eq!(strtoul(b""), None);
        assert_eq!(strtol(b""), Some(0));
        assert_eq!(strtol(b"x"), Some(0));
        assert_eq!(strtol(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(strtol(b"9223372036854775808"), None);
        assert_eq!(strtol(b"99999999999999999999"), None);
    }
}

//! Texts that a program wrote over a connection with the character set latin1. (The connections of the PHP console have
//! this character set if it is the default of the server.) The program sent UTF-8, and the server treated each byte as
//! one character of latin1. So the text is encoded twice. Pure.

/// The characters of MySQL's latin1 that differ from ISO 8859-1: the characters of the bytes from 0x80 to 0x9F in
/// Windows-1252. Five of these bytes have no character in Windows-1252. In MySQL, these bytes stand for the control
/// characters with the same number.
const WINDOWS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}',
    '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// A text of a column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DecodedText {
    /// What the text says.
    pub text: String,
    /// Whether the text in the column is encoded twice.
    pub is_doubly_encoded: bool,
}

impl DecodedText {
    /// Reads a column. Its text counts as encoded twice if it meets two conditions: latin1 has all characters of the
    /// text, and the bytes of these characters are valid UTF-8 that is not only ASCII. A text that is encoded once
    /// almost never meets both conditions.
    pub(super) fn from_column(column: String) -> DecodedText {
        match decoded(&column) {
            Some(text) => DecodedText { text, is_doubly_encoded: true },
            None => DecodedText { text: column, is_doubly_encoded: false },
        }
    }

    /// Returns the form in which the text `new` is written to the column that has this text now. If this text is
    /// encoded twice, `new` is encoded twice, too. If this text has only ASCII characters, it does not show how it is
    /// encoded. In this case, `row_is` decides: whether any column of the row is encoded twice.
    pub(super) fn to_column(&self, new: &str, row_is: bool) -> String {
        match self.is_doubly_encoded || row_is && self.text.is_ascii() {
            true => encoded(new),
            false => new.to_owned(),
        }
    }
}

/// Decodes a text that is encoded twice. None: it is not encoded twice.
pub(super) fn decoded(column: &str) -> Option<String> {
    if column.is_ascii() {
        return None;
    }
    let bytes: Vec<u8> = column.chars().map(byte).collect::<Option<_>>()?;
    String::from_utf8(bytes).ok()
}

/// Returns a text, encoded twice.
fn encoded(text: &str) -> String {
    text.bytes().map(character).collect()
}

fn byte(character: char) -> Option<u8> {
    match WINDOWS.iter().position(|known| *known == character) {
        Some(at) => u8::try_from(0x80 + at).ok(),
        None => u8::try_from(u32::from(character)).ok().filter(|byte| !(0x80..0xA0).contains(byte)),
    }
}

fn character(byte: u8) -> char {
    match byte {
        0x80..0xA0 => WINDOWS[usize::from(byte - 0x80)],
        other => char::from(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_one_character() {
        for n in 0..=255_u8 {
            assert_eq!(byte(character(n)), Some(n));
        }
        // MySQL and MariaDB: SELECT HEX(CONVERT('€Ÿ' USING latin1)), CONVERT(0x81 USING latin1).
        assert_eq!([byte('€'), byte('Ÿ'), byte('\u{81}'), byte('é')], [0x80, 0x9F, 0x81, 0xE9].map(Some));
        assert_eq!([byte('\u{80}'), byte('\u{9f}'), byte('中')], [None; 3]);
    }

    #[test]
    fn only_a_text_that_is_encoded_twice_is_decoded() {
        for text in ["关闭订单", "Zoë", "a – b", "😀", "重试标记"] {
            assert_eq!(decoded(&encoded(text)).as_deref(), Some(text));
            assert_eq!(decoded(text), None, "{text}");
        }
        assert_eq!(encoded("中"), "ä¸\u{ad}");
        for plain in ["", "orders", "a\u{7f}", "é", "Zoë – Ÿ", "中文", "ä¸"] {
            assert_eq!(
                DecodedText::from_column(plain.into()),
                DecodedText { text: plain.into(), is_doubly_encoded: false }
            );
        }
    }

    #[test]
    fn a_column_is_written_as_it_was_and_ascii_follows_its_row() {
        let of = |column: &str| DecodedText::from_column(column.to_owned());
        assert_eq!(of(&encoded("中")).to_column("文", false), encoded("文"));
        assert_eq!(
            [of("a").to_column("文", true), of("a").to_column("文", false)],
            [encoded("文"), "文".into()]
        );
        assert_eq!([of("中").to_column("文", true), of("").to_column("b", true)], ["文", "b"]);
    }
}

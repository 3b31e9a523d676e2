//! Formats output for people: tables that stay aligned with any content, moments, spans, colours.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use model::excerpt::is_escaped;
use serde::Serialize;
use serde_json::value::RawValue;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The text of a cell without a value.
pub(super) const NOTHING: &str = "-";

/// Returns this text, or [`NOTHING`] if the text is empty.
pub(super) fn or_nothing(text: &str) -> String {
    if text.is_empty() { NOTHING.to_owned() } else { text.to_owned() }
}

/// Returns a number with its noun: `1 topic`, `2 topics`.
pub(super) fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Rows of cells. Each column is as wide as its widest cell.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// For each column, whether its cells are right-aligned.
    numbers: Vec<bool>,
}

impl Table {
    /// Returns a table with these words as its head. A `>` before a word right-aligns its column, for numbers.
    pub(super) fn new(head: &[&str]) -> Table {
        let numbers = head.iter().map(|word| word.starts_with('>')).collect();
        let words = head.iter().map(|word| word.trim_start_matches('>').to_owned()).collect();
        Table { rows: vec![words], numbers }
    }

    /// Adds a row.
    pub(super) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let plain = |cell: S| plain(&cell.into());
        self.rows.push(cells.into_iter().map(plain).collect());
    }

    /// Returns the lines of the table.
    pub(super) fn text(&self) -> String {
        let columns = self.numbers.len();
        let width = |c: usize| self.rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.width()).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate().take(columns) {
                let gap = " ".repeat(widths[c] - cell.width());
                let space = if c == 0 { "" } else { "  " };
                let [before, after] = if self.numbers[c] { [gap.as_str(), ""] } else { ["", gap.as_str()] };
                line = line + space + before + cell + after;
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Returns names and values, one pair a line.
pub(super) fn lines<S: AsRef<str>>(pairs: &[(&str, S)]) -> String {
    let wide = pairs.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
    let line = |(name, value): &(&str, S)| format!("{name:wide$}  {}\n", plain(value.as_ref()));
    pairs.iter().map(line).collect()
}

/// Returns a text in which some characters are escaped: the characters that would change the terminal, end the line, or
/// change the direction of writing.
pub(super) fn plain(text: &str) -> String {
    if !text.chars().any(is_escaped) {
        return text.to_owned();
    }
    text.chars().map(|c| if is_escaped(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Returns the part of a text that fits into `columns` columns.
pub(super) fn cut(text: &str, columns: usize) -> String {
    let text = plain(text);
    if text.width() <= columns {
        return text;
    }
    let (mut kept, mut wide) = (String::new(), 1);
    for c in text.chars() {
        wide += c.width().unwrap_or(0);
        if wide > columns {
            break;
        }
        kept.push(c);
    }
    kept + "…"
}

/// Returns a span of time in its two largest units.
pub(super) fn span(ms: i64) -> String {
    let seconds = Duration::from_secs(ms.max(0) as u64 / 1000);
    let text = humantime::format_duration(seconds).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Returns a span of time in one fitting unit, with at most one decimal if the number is below 10: `7 ms`, `1.5 s`,
/// `57 min`.
pub(super) fn short_span(ms: f64) -> String {
    const UNITS: [(&str, f64); 5] =
        [("ms", 1.0), ("s", 1000.0), ("min", 60_000.0), ("h", 3_600_000.0), ("d", 86_400_000.0)];
    // A value that would be rounded up to the next unit is written in that unit: `1 s`, not `1000 ms`.
    let fits = |next: f64| ms + 0.5 * next / 1000.0 < next;
    let at = UNITS.windows(2).position(|two| fits(two[1].1)).unwrap_or(UNITS.len() - 1);
    let (unit, size) = UNITS[at];
    let value = ms / size;
    let text = if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{} {unit}", text.trim_end_matches(".0"))
}

/// Returns a moment in this host's time zone.
pub(super) fn moment(ms: i64) -> String {
    at_zone(ms, TimeZone::system())
}

fn at_zone(ms: i64, zone: TimeZone) -> String {
    let text_of = |at: Timestamp| at.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S%:z").to_string();
    Timestamp::from_millisecond(ms).map_or_else(|_| model::json_time::rfc3339(ms), text_of)
}

/// Returns a moment, and how far from now it is.
pub(super) fn moment_from(ms: i64, now_ms: i64) -> String {
    let away = match ms - now_ms {
        0..1000 => "now".to_owned(),
        ahead @ 1000.. => format!("in {}", span(ahead)),
        ago => format!("{} ago", span(-ago)),
    };
    format!("{} ({away})", moment(ms))
}

/// Prints a value as one line of JSON.
pub(super) fn json_line(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

/// Prints JSON values as the API has sent them, one a line.
pub(super) fn raw_lines(all: &[Box<RawValue>]) {
    all.iter().for_each(|one| println!("{}", one.get()));
}

/// Colours of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TerminalColour {
    Red = 31,
    Green = 32,
    Yellow = 33,
}

/// Returns a text in a colour, if stdout is a terminal and `NO_COLOR` is unset or empty.
pub(super) fn paint(text: &str, colour: TerminalColour) -> String {
    let asked = std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    match asked && std::io::stdout().is_terminal() {
        true => format!("\x1b[{}m{text}\x1b[0m", colour as u8),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_whatever_stands_in_it() {
        let mut table = Table::new(&["NAME", ">JOBS", "WHAT"]);
        table.row(["订单", "7", "é"]);
        table.row(["orders", "1200", "a\x1b[2Jb"]);
        assert_eq!(
            table.text(),
            "NAME    JOBS  WHAT\n\
             订单       7  é\n\
             orders  1200  a\\u{1b}[2Jb\n"
        );
        assert_eq!(lines(&[("a", "1"), ("long", "2")]), "a     1\nlong  2\n");
    }

    #[test]
    fn what_turns_the_direction_of_writing_is_escaped() {
        let id = "a\u{202e}b\u{2066}c\u{61c}d\u{2028}e";
        let shown = "a\\u{202e}b\\u{2066}c\\u{61c}d\\u{2028}e";
        let mut table = Table::new(&["ID"]);
        table.row([id]);
        assert_eq!(table.text(), format!("ID\n{shown}\n"));
        assert_eq!(lines(&[("id", id)]), format!("id  {shown}\n"));
        assert_eq!(cut(id, 100), shown);
    }

    #[test]
    fn a_text_is_cut_by_what_it_takes_on_the_screen() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "long…");
        assert_eq!(cut("中文字", 5), "中文…");
        assert_eq!(cut("中文字", 4), "中…");
    }

    #[test]
    fn a_short_span_has_a_unit_that_fits() {
        let text_of = |ms: f64| short_span(ms);
        assert_eq!(
            [0.0, 0.44, 9.96, 57.3, 999.4].map(text_of),
            ["0 ms", "0.4 ms", "10 ms", "57 ms", "999 ms"]
        );
        assert_eq!([999.6, 1250.0, 59_400.0].map(text_of), ["1 s", "1.2 s", "59 s"]);
        assert_eq!([90_000.0, 3_435_000.0, 3_599_999.0].map(text_of), ["1.5 min", "57 min", "1 h"]);
        assert_eq!([86_000_000.0, 86_400_000.0, 217_000_000_000.0].map(text_of), ["24 h", "1 d", "2512 d"]);
    }

    #[test]
    fn spans_and_moments_are_told() {
        assert_eq!(
            (span(65_000), span(-5), span(3_600_000 * 25)),
            ("1m 5s".into(), "0s".into(), "1day 1h".into())
        );
        assert_eq!(at_zone(0, TimeZone::UTC), "1970-01-01 00:00:00+00:00");
        assert!(moment_from(10_000, 4_000).ends_with("(in 6s)"));
        assert!(moment_from(4_000, 10_000).ends_with("(6s ago)"));
    }
}

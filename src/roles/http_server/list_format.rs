//! The forms of a list: JSON, lines of JSON, or CSV (RFC 4180). Pure.

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;

use super::api_response::ApiResponse;

/// The form of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListFormat {
    Json,
    /// One JSON object a line.
    Ndjson,
    Csv,
}

impl ListFormat {
    const ALL: [ListFormat; 3] = [ListFormat::Json, ListFormat::Ndjson, ListFormat::Csv];

    fn content_type(self) -> &'static str {
        match self {
            ListFormat::Json => "application/json",
            ListFormat::Ndjson => "application/x-ndjson",
            ListFormat::Csv => "text/csv; charset=utf-8",
        }
    }

    /// Returns the format with this name.
    pub(super) fn from_word(word: &str) -> Option<ListFormat> {
        match word {
            "json" => Some(ListFormat::Json),
            "ndjson" => Some(ListFormat::Ndjson),
            "csv" => Some(ListFormat::Csv),
            _ => None,
        }
    }

    /// Returns the format for a request that does not name one.
    pub(super) fn from_headers(headers: &HeaderMap) -> ListFormat {
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        accept.and_then(ListFormat::from_accept).unwrap_or(ListFormat::Json)
    }

    /// Returns the first format that an `Accept` header names. None: it names none of them.
    fn from_accept(accept: &str) -> Option<ListFormat> {
        let kind = |text: &str| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let format = |part: &str| ListFormat::ALL.into_iter().find(|f| kind(f.content_type()) == kind(part));
        accept.split(',').find_map(format)
    }

    /// Makes the answer. `page` is the whole list as JSON, `rows` are its parts. Where the form has no place for it,
    /// headers say how the search went.
    pub(super) fn response<T: Serialize, const N: usize>(
        self,
        page: &impl Serialize,
        rows: &[T],
        table: TableForm<T, N>,
        end: ListEnd<'_>,
    ) -> ApiResponse {
        let text = match self {
            ListFormat::Json => return ApiResponse::new(StatusCode::OK, page),
            ListFormat::Ndjson => {
                let line = |row| serde_json::to_string(row).expect("answers are plain values") + "\n";
                rows.iter().map(line).collect()
            }
            ListFormat::Csv => {
                let line = |row| (table.cells)(row).map(|cell| csv_cell(&cell)).join(",") + "\r\n";
                std::iter::once(table.columns.join(",") + "\r\n").chain(rows.iter().map(line)).collect()
            }
        };
        let ListEnd { looked_at, next, away } = end;
        let mut headers = vec![("dq-count", rows.len().to_string()), ("dq-looked-at", looked_at.to_string())];
        headers.extend(next.map(|next| ("dq-next", next.to_owned())));
        headers.extend((!away.is_empty()).then(|| ("dq-away", away.join(", "))));
        ApiResponse::text(self.content_type(), text, headers)
    }
}

/// The columns of a table, and what the cells of a row are.
pub(super) struct TableForm<T, const N: usize> {
    pub columns: [&'static str; N],
    pub cells: fn(&T) -> [String; N],
}

/// Where a list ended.
pub(super) struct ListEnd<'a> {
    /// How many items were looked at.
    pub looked_at: usize,
    /// The cursor of the next page.
    pub next: Option<&'a str>,
    /// The nodes that could not be asked.
    pub away: &'a [String],
}

/// Writes a cell. A spreadsheet would take a text that begins like a formula for one, and could run it. An apostrophe
/// before it prevents this.
fn csv_cell(text: &str) -> String {
    const FORMULA: [char; 10] = ['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠'];
    let is_formula = text.trim_start_matches([' ', '\n']).starts_with(FORMULA);
    match is_formula || text.contains([',', '"', '\r', '\n', ';', '\t', '\'']) {
        false => text.to_owned(),
        true => format!("\"{}{}\"", if is_formula { "'" } else { "" }, text.replace('"', "\"\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_looks_like_a_formula_is_text() {
        for (text, cell) in [
            ("a b", "a b"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("say \"hi\"\n", "\"say \"\"hi\"\"\n\""),
            ("=HYPERLINK(\"http://x\")", "\"'=HYPERLINK(\"\"http://x\"\")\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("\t=1", "\"'\t=1\""),
            (" =1", "\"' =1\""),
            ("＝1", "\"'＝1\""),
            ("1-1", "1-1"),
        ] {
            assert_eq!(csv_cell(text), cell, "{text:?}");
        }
    }

    #[test]
    fn the_first_known_type_of_an_accept_header_counts() {
        for (accept, format) in [
            ("text/csv", Some(ListFormat::Csv)),
            ("text/html, Application/X-NDJSON;q=0.9, text/csv", Some(ListFormat::Ndjson)),
            ("application/json", Some(ListFormat::Json)),
            ("*/*", None),
            ("", None),
        ] {
            assert_eq!(ListFormat::from_accept(accept), format, "{accept}");
        }
    }
}

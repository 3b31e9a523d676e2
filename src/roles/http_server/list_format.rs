//! The forms of a list: JSON, lines of JSON, or CSV (RFC 4180). Pure.

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;

use super::api_response::ApiResponse;

/// The form of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListFormat {
    Json,
    /// One JSON object on each line.
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
        let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|one| one.to_str().ok()).collect();
        ListFormat::from_accept(&accept.join(",")).unwrap_or(ListFormat::Json)
    }

    /// Returns the format that an `Accept` header prefers (RFC 9110, 12.5.1). This is the format with the highest
    /// weight. If the weights are equal, the format that the header names most exactly wins. If there is still more
    /// than one, the format that the header names first wins. None: the header accepts no format.
    fn from_accept(accept: &str) -> Option<ListFormat> {
        let ranges: Vec<MediaRange> = accept.split(',').map(MediaRange::parse).collect();
        let mut best: Option<(ListFormat, Preference)> = None;
        for format in ListFormat::ALL {
            let Some(preference) = Preference::find(format.content_type(), &ranges) else { continue };
            if best.is_none_or(|(_, known)| preference > known) {
                best = Some((format, preference));
            }
        }
        best.map(|(format, _)| format)
    }

    /// Makes the answer. `page` is the whole list as JSON, `rows` are its parts. The JSON says where the search ended.
    /// In the other forms, headers say where it ended.
    pub(super) fn response<T: Serialize, const N: usize>(
        self,
        page: &impl Serialize,
        rows: &[T],
        table: CsvColumns<T, N>,
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

/// A part of an `Accept` header: a type, `text/*` or `*/*`, and its weight in thousandths.
struct MediaRange {
    kind: String,
    weight: u16,
}

impl MediaRange {
    fn parse(text: &str) -> MediaRange {
        let mut parts = text.split(';').map(|part| part.trim().to_ascii_lowercase());
        let kind = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=").map(str::to_owned));
        // A weight that is not a number is ignored.
        let weight = weight.and_then(|weight| weight.trim().parse::<f32>().ok()).filter(|w| !w.is_nan());
        MediaRange { kind, weight: (weight.unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0).round() as u16 }
    }

    /// Returns how exactly the range names a type. None: the range does not name the type.
    fn precision(&self, content_type: &str) -> Option<u8> {
        let kind = content_type.split(';').next().unwrap_or_default();
        let group = kind.split('/').next().unwrap_or_default();
        match self.kind.strip_suffix("/*") {
            _ if self.kind == kind => Some(2),
            Some(named) if named == group => Some(1),
            Some("*") => Some(0),
            _ => None,
        }
    }
}

/// How much a client prefers a type. Of two preferences, the greater one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    weight: u16,
    precision: u8,
    /// The place of the range in the header.
    place: std::cmp::Reverse<usize>,
}

impl Preference {
    /// Returns the preference for a type, from the range that names it most exactly. None: the type is not accepted.
    fn find(content_type: &str, ranges: &[MediaRange]) -> Option<Preference> {
        let of_range = |(place, range): (usize, &MediaRange)| {
            let place = std::cmp::Reverse(place);
            range.precision(content_type).map(|precision| (precision, place, range.weight))
        };
        let (precision, place, weight) = ranges.iter().enumerate().filter_map(of_range).max()?;
        (weight > 0).then_some(Preference { weight, precision, place })
    }
}

/// The columns of a table, and the function that makes the cells of a row.
pub(super) struct CsvColumns<T, const N: usize> {
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

/// Writes a cell. If a text begins like a formula, a spreadsheet would treat it as a formula and could run it. An
/// apostrophe before the text prevents this.
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
    fn the_type_that_a_client_prefers_is_chosen() {
        use ListFormat::{Csv, Json, Ndjson};
        for (accept, format) in [
            ("text/csv", Some(Csv)),
            ("text/html, Application/X-NDJSON, text/csv", Some(Ndjson)),
            ("text/html, Application/X-NDJSON;q=0.9, text/csv", Some(Csv)),
            ("text/csv;q=0.1, application/json", Some(Json)),
            ("text/csv;q=0.1, application/json;q=0.2, application/x-ndjson; Q=0.3", Some(Ndjson)),
            ("text/csv;q=0, application/json;q=0.1", Some(Json)),
            ("text/csv;q=0", None),
            ("text/csv;header=present;q=0.5, application/x-ndjson;q=0.6", Some(Ndjson)),
            ("text/csv;q=0.5, */*", Some(Json)),
            ("text/csv, */*", Some(Csv)),
            ("text/*", Some(Csv)),
            ("text/*, text/csv;q=0", None),
            ("application/*;q=0.5, text/csv;q=0.4", Some(Json)),
            ("application/json;q=0, */*;q=0.5", Some(Ndjson)),
            ("text/csv;q=x, application/json;q=NaN", Some(Csv)),
            ("application/json", Some(Json)),
            ("*/*", Some(Json)),
            ("image/png", None),
            ("", None),
        ] {
            assert_eq!(ListFormat::from_accept(accept), format, "{accept}");
        }
    }
}

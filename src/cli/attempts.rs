//! The table of a job's attempts, and why some began late. Pure.

use super::show::{NOTHING, Table, moment, or_nothing, short_span};
use model::job::Attempt;

/// Returns the table of attempts, and below it a line for each attempt that began late.
pub(super) fn attempts(log: &[Attempt]) -> String {
    let mut table = Table::new(&[">ATTEMPT", "BEGAN", ">TOOK", ">STATUS", "REASON", "ANSWER"]);
    let mut before = None;
    for attempt in log {
        if before.is_some_and(|number| attempt.number > number + 1) {
            // The attempts between this row and the row before it are not kept.
            table.row(["…"]);
        }
        before = Some(attempt.number);
        table.row([
            attempt.number.to_string(),
            moment(attempt.at_ms),
            short_span(attempt.took_ms as f64),
            attempt.status.map_or(NOTHING.to_owned(), |status| status.to_string()),
            or_nothing(&attempt.error),
            or_nothing(&attempt.answer),
        ]);
    }
    let late = log.iter().filter_map(|attempt| Some((attempt.number, attempt.late?)));
    let lines: String = late.map(|(number, late)| format!("attempt {number} {late}\n")).collect();
    table.text() + &lines
}

//! The result of a measurement: lines of figures, as a table or as JSON.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::super::show::{self, Table};

/// One figure.
#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    /// The floor: the same work without dq. The figure is a ratio to the floor. `None`: the figure is not a ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<String>,
}

/// The result of one run.
#[derive(Debug, Serialize)]
pub(super) struct BenchReport {
    work: &'static str,
    /// The options of the run, as a text.
    settings: String,
    figures: Vec<Figure>,
}

impl BenchReport {
    pub(super) fn new(work: &'static str, settings: String) -> BenchReport {
        BenchReport { work, settings, figures: Vec::new() }
    }

    pub(super) fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.figures.push(Figure { name: name.into(), value, unit, of: None });
    }

    /// Adds a value as a ratio to its floor, which was measured in the same run.
    pub(super) fn ratio(&mut self, name: &str, value: f64, floor: f64, of: &str) {
        let ratio = value / floor.max(1e-9);
        self.figures.push(Figure { name: name.to_owned(), value: ratio, unit: "x", of: Some(of.to_owned()) });
    }

    /// Adds the percentiles of a histogram of microseconds, in milliseconds.
    pub(super) fn percentiles(&mut self, of: &str, us: &Histogram<u64>) {
        for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
            self.figure(format!("{of} {name}"), us.value_at_quantile(quantile) as f64 / 1000.0, "ms");
        }
        self.figure(format!("{of} max"), us.max() as f64 / 1000.0, "ms");
    }

    pub(super) fn print(&self, as_json: bool) -> Result<()> {
        if as_json {
            return show::json_line(self);
        }
        println!("{} ({})", self.work, self.settings);
        let mut table = Table::new(&["", ">", "", ""]);
        for figure in &self.figures {
            let digits = if figure.value.abs() >= 1000.0 { 0 } else { 2 };
            let of = figure.of.as_ref().map_or(String::new(), |of| format!("of {of}"));
            table.row([
                figure.name.clone(),
                format!("{:.digits$}", figure.value),
                figure.unit.to_owned(),
                of,
            ]);
        }
        print!("{}", table.text());
        Ok(())
    }
}

/// Returns the median.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

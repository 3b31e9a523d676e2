//! Writes metrics as text: in the format of Prometheus (0.0.4), or OpenMetrics 1.0.

use std::fmt::Write;

use super::Histogram;

/// The kind of a family of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that never falls while the counted thing exists. Its name ends in `_total`.
    Counter,
    /// A current value, which may rise and fall.
    Gauge,
    /// How many values are in each range.
    Histogram,
}

/// The text of metrics, written family by family.
#[derive(Debug)]
pub struct MetricsText {
    out: String,
    is_open_metrics: bool,
    /// The name, the kind and the help text of the family (metric) to which the next samples belong. `is_introduced`
    /// says whether these three values were already written. They are written with the first sample, so a family
    /// without samples is left out.
    family: (&'static str, MetricKind, &'static str),
    is_introduced: bool,
}

impl MetricsText {
    /// Makes an empty text.
    pub fn new(is_open_metrics: bool) -> MetricsText {
        MetricsText {
            out: String::new(),
            is_open_metrics,
            family: ("", MetricKind::Gauge, ""),
            is_introduced: true,
        }
    }

    /// Returns the content type of the text.
    pub fn content_type(is_open_metrics: bool) -> &'static str {
        match is_open_metrics {
            true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            false => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Begins a family of metrics.
    pub fn family(&mut self, name: &'static str, kind: MetricKind, help: &'static str) {
        self.family = (name, kind, help);
        self.is_introduced = false;
    }

    /// Writes a value of the family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }

    /// Writes a histogram of the family, if it has any values.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram<'_>) {
        self.buckets(labels, histogram, histogram.up_to());
    }

    /// Writes a histogram like [`MetricsText::histogram`], but only with the bounds in `shown`.
    pub(super) fn coarse_histogram(
        &mut self,
        labels: &[(&str, &str)],
        histogram: &Histogram<'_>,
        shown: &[u64],
    ) {
        self.buckets(labels, histogram, histogram.up_to_shown(shown));
    }

    fn buckets(
        &mut self,
        labels: &[(&str, &str)],
        histogram: &Histogram<'_>,
        buckets: impl Iterator<Item = (u64, u64)>,
    ) {
        let count = histogram.count();
        if count == 0 {
            return;
        }
        for (bound_us, n) in buckets {
            self.line("_bucket", labels, Some(&format!("{:?}", seconds(bound_us))), n as f64);
        }
        self.line("_bucket", labels, Some("+Inf"), count as f64);
        self.line("_sum", labels, None, seconds(histogram.sum_us()));
        self.line("_count", labels, None, count as f64);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], le: Option<&str>, value: f64) {
        let (name, kind, help) = self.family;
        if !std::mem::replace(&mut self.is_introduced, true) {
            let kind_name = match kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let bare = name.strip_suffix("_total").filter(|_| self.is_open_metrics).unwrap_or(name);
            let _ = writeln!(self.out, "# HELP {bare} {help}\n# TYPE {bare} {kind_name}");
        }
        self.out.push_str(name);
        self.out.push_str(suffix);
        let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
        for (n, (label, text)) in all.enumerate() {
            self.out.push(if n == 0 { '{' } else { ',' });
            let _ = write!(self.out, "{label}=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    c => self.out.push(c),
                }
            }
            self.out.push('"');
        }
        if !labels.is_empty() || le.is_some() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    /// Returns the whole text.
    pub fn end(mut self) -> String {
        if self.is_open_metrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_a_family_without_values_is_left_out() {
        let mut text = MetricsText::new(false);
        text.family("dq_empty_total", MetricKind::Counter, "Nothing.");
        text.family("dq_x_total", MetricKind::Counter, "Some.");
        text.sample(&[("a", "q\"b\\n\n")], 3.0);
        text.sample(&[], 0.5);
        assert_eq!(
            text.end(),
            "# HELP dq_x_total Some.\n# TYPE dq_x_total counter\ndq_x_total{a=\"q\\\"b\\\\n\\n\"} 3\ndq_x_total 0.5\n"
        );
        let mut text = MetricsText::new(true);
        text.family("dq_x_total", MetricKind::Counter, "Some.");
        text.sample(&[], 1.0);
        assert_eq!(text.end(), "# HELP dq_x Some.\n# TYPE dq_x counter\ndq_x_total 1\n# EOF\n");
    }

    #[test]
    fn a_histogram_is_told_with_its_sum_and_its_count() {
        let cells = [1, 0, 2, 1, 2_500_000];
        let bounds = [1000, 10_000, 1_000_000];
        let mut text = MetricsText::new(false);
        text.family("dq_h_seconds", MetricKind::Histogram, "H.");
        text.histogram(&[("t", "x")], &Histogram::new(&cells, &bounds));
        let page = text.end();
        let mut coarse = MetricsText::new(false);
        coarse.family("dq_h_seconds", MetricKind::Histogram, "H.");
        coarse.coarse_histogram(&[("t", "x")], &Histogram::new(&cells, &bounds), &[1_000_000]);
        assert_eq!(coarse.end().matches("_bucket").count(), 2, "the shown bound, and +Inf");
        for line in [
            "dq_h_seconds_bucket{t=\"x\",le=\"0.001\"} 1",
            "dq_h_seconds_bucket{t=\"x\",le=\"0.01\"} 1",
            "dq_h_seconds_bucket{t=\"x\",le=\"1.0\"} 3",
            "dq_h_seconds_bucket{t=\"x\",le=\"+Inf\"} 4",
            "dq_h_seconds_sum{t=\"x\"} 2.5",
            "dq_h_seconds_count{t=\"x\"} 4",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in {page}");
        }
    }
}

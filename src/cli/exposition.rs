//! Reads the page of `/metrics`, for `dq status` and `dq top`.

use std::collections::BTreeMap;

/// A line of the page.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Returns the samples of a page. Lines that are not samples are left out.
pub(super) fn read(page: &str) -> Vec<Sample> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let line = line.trim();
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        while !rest.starts_with('}') {
            let (label, behind) = rest.split_once("=\"")?;
            let (value, behind) = quoted(behind)?;
            labels.insert(label.trim().to_owned(), value);
            rest = behind.trim_start().trim_start_matches(',').trim_start();
        }
        rest = &rest[1..];
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Returns the text before the next quote, unescaped, and the rest after the quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

/// Returns the sum of all samples with this name and this topic. `None`: there is no such sample.
pub(super) fn sum(samples: &[Sample], name: &str, topic: &str) -> Option<f64> {
    let of = |s: &&Sample| s.name == name && s.labels.get("topic").is_some_and(|t| t == topic);
    let mut values = samples.iter().filter(of).map(|s| s.value).peekable();
    values.peek()?;
    Some(values.sum())
}

/// A cumulative histogram: each pair is a bound, and how many values are at most this bound.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Histogram(Vec<(f64, f64)>);

/// Returns the histogram of how late the deliveries of a topic began, in seconds.
pub(super) fn lateness(samples: &[Sample], topic: &str) -> Histogram {
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    let of = |s: &&Sample| {
        s.name == "dq_schedule_lateness_seconds_bucket" && s.labels.get("topic").is_some_and(|t| t == topic)
    };
    for sample in samples.iter().filter(of) {
        let Some(most) = sample.labels.get("le").and_then(|le| le.parse().ok()) else { continue };
        match buckets.iter_mut().find(|(known, _)| *known == most) {
            Some((_, count)) => *count += sample.value,
            None => buckets.push((most, sample.value)),
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    Histogram(buckets)
}

impl Histogram {
    /// Returns the values that were added since an earlier histogram.
    pub(super) fn since(&self, before: &Histogram) -> Histogram {
        let was = |most: f64| before.0.iter().find(|(m, _)| *m == most).map_or(0.0, |(_, count)| *count);
        Histogram(self.0.iter().map(|(most, count)| (*most, (count - was(*most)).max(0.0))).collect())
    }

    /// Returns the value that this part of all values does not exceed, as exactly as the buckets allow. `None`: there
    /// are no values.
    pub(super) fn quantile(&self, part: f64) -> Option<f64> {
        let all = self.0.last()?.1;
        if all <= 0.0 {
            return None;
        }
        let (mut low, mut below) = (0.0, 0.0);
        for (most, count) in &self.0 {
            if *count >= part * all {
                // Nothing is known about values above the last finite bound, so this bound is returned.
                let within = if most.is_finite() { most - low } else { 0.0 };
                return Some(low + within * ((part * all - below) / (count - below).max(f64::MIN_POSITIVE)));
            }
            (low, below) = (*most, *count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP dq_adds_total Jobs.\n# TYPE dq_adds_total counter\n\
        dq_adds_total{topic=\"a\\\"b,}\",outcome=\"new\"} 3\n\
        dq_adds_total{topic=\"a\\\"b,}\",outcome=\"replaced\",} 4 1700000000000\n\
        up 1\nnonsense\nbad{x} 1\n\
        dq_schedule_lateness_seconds_bucket{topic=\"t\",le=\"0.001\"} 50\n\
        dq_schedule_lateness_seconds_bucket{topic=\"t\",le=\"0.01\"} 90\n\
        dq_schedule_lateness_seconds_bucket{topic=\"t\",le=\"+Inf\"} 100\n";

    #[test]
    fn samples_are_read_with_their_labels_and_added_up_by_topic() {
        let samples = read(PAGE);
        assert_eq!(samples.len(), 6);
        assert_eq!(sum(&samples, "dq_adds_total", "a\"b,}"), Some(7.0));
        assert_eq!(sum(&samples, "dq_adds_total", "t"), None);
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let late = lateness(&read(PAGE), "t");
        assert_eq!(late.quantile(0.5), Some(0.001));
        assert_eq!(late.quantile(0.7).map(|s| (s * 1e6).round()), Some(5500.0));
        assert_eq!(late.quantile(0.99), Some(0.01));
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(late.since(&late).quantile(0.5), None);
        assert_eq!(late.since(&Histogram::default()), late);
    }
}

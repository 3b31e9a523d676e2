//! Reads the page of `/metrics`, for `dq status` and `dq top`.

use std::collections::BTreeMap;

/// A line of the page.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MetricSample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Returns the samples of a page. Lines that are not samples are left out.
pub(super) fn read(page: &str) -> Vec<MetricSample> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

fn sample(line: &str) -> Option<MetricSample> {
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
    Some(MetricSample { name: name.to_owned(), labels, value })
}

/// Returns the text before the next quote, unescaped, and the text after the quote.
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
pub(super) fn sum(samples: &[MetricSample], name: &str, topic: &str) -> Option<f64> {
    let of = |s: &&MetricSample| s.name == name && s.labels.get("topic").is_some_and(|t| t == topic);
    let mut values = samples.iter().filter(of).map(|s| s.value).peekable();
    values.peek()?;
    Some(values.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP dq_adds_total Jobs.\n# TYPE dq_adds_total counter\n\
        dq_adds_total{topic=\"a\\\"b,}\",outcome=\"new\"} 3\n\
        dq_adds_total{topic=\"a\\\"b,}\",outcome=\"replaced\",} 4 1700000000000\n\
        up 1\nnonsense\nbad{x} 1\n";

    #[test]
    fn samples_are_read_with_their_labels_and_added_up_by_topic() {
        let samples = read(PAGE);
        assert_eq!(samples.len(), 3);
        assert_eq!(sum(&samples, "dq_adds_total", "a\"b,}"), Some(7.0));
        assert_eq!(sum(&samples, "dq_adds_total", "t"), None);
    }
}

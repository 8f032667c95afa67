//! Reads metrics in the text formats of Prometheus 0.0.4 and of OpenMetrics.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

/// A sample of a series. Timestamps and exemplars are ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name of the metric, with suffixes such as `_total` and `_count`.
    pub name: &'a str,
    /// Labels, in the order of the text.
    pub labels: Vec<(&'a str, Cow<'a, str>)>,
    /// Value.
    pub value: f64,
}

impl<'a> Sample<'a> {
    /// Reads a line. Returns `None` for a comment, an empty line and a line that is not valid.
    pub fn parse(line: &'a str) -> Option<Sample<'a>> {
        let (name, rest) = line.split_at(line.find(['{', ' ', '\t'])?);
        if name.is_empty() || name.starts_with('#') {
            return None;
        }
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        Some(Sample { name, labels, value: rest.split_whitespace().next()?.parse().ok()? })
    }

    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_ref())
    }
}

/// Returns all valid samples, in the order of the text.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter_map(Sample::parse)
}

/// Returns the sum of the samples that have this name and all of these labels; `None` if there are none.
pub fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let named = text.lines().filter(|line| line.starts_with(name)).filter_map(Sample::parse);
    let has_all =
        |sample: &Sample<'_>| labels.iter().all(|(label, value)| sample.label(label) == Some(*value));
    let values = named.filter(|sample| sample.name == name && has_all(sample)).map(|sample| sample.value);
    values.reduce(|sum, value| sum + value)
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// Reads labels and the brace after them. Returns them and the rest of the line.
fn labels(mut rest: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let end = end_of_quoted(quoted)?;
        labels.push((name.trim_end(), unescaped(&quoted[..end])));
        rest = &quoted[end + 1..];
    }
}

/// Returns the position of the quote that ends a value.
fn end_of_quoted(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let (mut value, mut chars) = (String::with_capacity(text.len()), text.chars());
    while let Some(char) = chars.next() {
        match char {
            '\\' => value.extend(chars.next().map(|escaped| if escaped == 'n' { '\n' } else { escaped })),
            plain => value.push(plain),
        }
    }
    Cow::Owned(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the description of the format at prometheus.io.
    const TEXT: &str = r#"# HELP http_requests_total The total number of HTTP requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="post",code="400"}    3 1395066363000

# Escaping in label values:
msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""} 1.458255915e9
metric_without_timestamp_and_labels 12.47
something_weird{problem="division by zero"} +Inf -3982045
http_request_duration_seconds_bucket{le="+Inf"} 144320
rpc_duration_seconds{quantile="0.01"} 3102 # {trace_id="1"} 2
"#;

    #[test]
    fn samples_of_the_formats_description_are_read() {
        let found: Vec<_> =
            samples(TEXT).map(|sample| (sample.name, sample.labels.len(), sample.value)).collect();
        let expected = [
            ("http_requests_total", 2, 1027.0),
            ("http_requests_total", 2, 3.0),
            ("msdos_file_access_time_seconds", 2, 1_458_255_915.0),
            ("metric_without_timestamp_and_labels", 0, 12.47),
            ("something_weird", 1, f64::INFINITY),
            ("http_request_duration_seconds_bucket", 1, 144_320.0),
            ("rpc_duration_seconds", 1, 3102.0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn escapes_in_labels_are_resolved() {
        let sample = samples(TEXT).nth(2).unwrap();
        assert_eq!(sample.label("path"), Some(r"C:\DIR\FILE.TXT"));
        assert_eq!(sample.label("error"), Some("Cannot find file:\n\"FILE.TXT\""));
        assert_eq!(sample.label("code"), None);
    }

    #[test]
    fn samples_are_summed_by_their_whole_name_and_their_labels() {
        let total = |labels: &[(&str, &str)]| sum(TEXT, "http_requests_total", labels);
        assert_eq!(total(&[]), Some(1030.0));
        assert_eq!(total(&[("code", "400"), ("method", "post")]), Some(3.0));
        assert_eq!(total(&[("code", "40")]), None);
        assert_eq!(sum(TEXT, "http_requests", &[]), None);
    }

    #[test]
    fn a_line_that_is_not_valid_is_no_sample() {
        for line in ["", "a", "a b", "a{b=\"c\" 1", "a{b=\"c} 1", "a{b} 1", "# a 1", "{a=\"b\"} 1", "a{} x"] {
            assert_eq!(Sample::parse(line), None, "{line}");
        }
    }
}

//! Merges the engine's metrics with the sidecar's. Names are passed through: vLLM itself measured all under `vllm:`.

use std::fmt::Write;

use sluice_common::metrics_text::sum;

use super::engine::EngineClient;

/// Reads the engine's metrics.
#[derive(Clone, Debug)]
pub struct EngineMetrics(pub(super) EngineClient);

impl EngineMetrics {
    /// Returns the sidecar's metrics, converted from OpenMetrics, followed by the engine's, which every engine writes
    /// in the older Prometheus text. An engine that does not respond adds none.
    pub async fn merge_with(&self, own: &str) -> String {
        let mut text = to_prometheus_text(own);
        match self.0.metrics().await {
            Ok(engine) => append_engine_lines(&engine, &mut text),
            Err(error) => tracing::debug!(%error, "could not read the metrics of the engine"),
        }
        text
    }
}

/// Converts OpenMetrics to Prometheus text 0.0.4, which declares a counter by its full name and has no end marker.
fn to_prometheus_text(open_metrics: &str) -> String {
    let lines: Vec<_> = open_metrics.lines().collect();
    let counters: Vec<&str> = lines.iter().filter_map(|line| counter_name(line)).collect();
    let mut text = String::with_capacity(open_metrics.len() + 64 * counters.len());
    for line in lines.into_iter().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let comment =
            ["# HELP ", "# TYPE "].into_iter().find_map(|kind| Some((kind, line.strip_prefix(kind)?)));
        let parts = comment.and_then(|(kind, rest)| Some((kind, rest.split_once(' ')?)));
        let _ = match parts {
            Some((kind, (name, rest))) if counters.contains(&name) => {
                writeln!(text, "{kind}{name}_total {rest}")
            }
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

fn counter_name(line: &str) -> Option<&str> {
    line.strip_prefix("# TYPE ")?.strip_suffix(" counter")
}

/// Appends the engine's lines whose name has a prefix such as `vllm:` or `sglang:`. Others (Python, process) would be
/// mistaken for the sidecar's.
fn append_engine_lines(engine: &str, text: &mut String) {
    for line in engine.lines().filter(|line| metric_name(line).is_some_and(has_prefix)) {
        text.push_str(line);
        text.push('\n');
    }
}

fn has_prefix(name: &str) -> bool {
    name.split_once(':').is_some_and(|(prefix, _)| prefix != "sluice")
}

/// Returns the metric name of a line.
fn metric_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
    rest.split(['{', ' ']).next().filter(|name| !name.starts_with('#'))
}

/// Returns the sum of a gauge's samples; `None` = there are none.
pub(super) fn gauge(engine: &str, wanted: &str) -> Option<u64> {
    sum(engine, wanted, &[]).map(|value| value.max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: &str = "# HELP vllm:num_requests_waiting Waiting.\n# TYPE vllm:num_requests_waiting gauge\n\
        vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3.0\n\
        vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 4.0\n\
        # TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 9.5\nsluice:own 1\n";

    #[test]
    fn engine_metrics_pass_and_process_metrics_do_not() {
        let mut text = String::new();
        append_engine_lines(ENGINE, &mut text);
        assert_eq!(text, ENGINE.lines().take(4).map(|line| format!("{line}\n")).collect::<String>());
        assert_eq!(gauge(ENGINE, "vllm:num_requests_waiting"), Some(7));
        assert_eq!(gauge(ENGINE, "vllm:num_requests_running"), None);
    }

    #[test]
    fn counters_are_declared_in_prometheus_text_format() {
        let own =
            "# HELP a_b Help, a_b.\n# TYPE a_b counter\na_b_total{x=\"1\"} 2\n# TYPE g gauge\ng 1\n# EOF\n";
        let wanted = "# HELP a_b_total Help, a_b.\n# TYPE a_b_total counter\na_b_total{x=\"1\"} 2\n# TYPE g gauge\ng 1\n";
        assert_eq!(to_prometheus_text(own), wanted);
    }
}

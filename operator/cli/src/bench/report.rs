//! Percentiles and attainment over all records.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use sluice_common::statistics::{percentile, percentile_of_sorted};

use super::RequestRecord;

/// A distribution, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Distribution {
    /// Computes percentiles by nearest rank. Returns `None` for an empty input.
    pub fn of(values: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut ms: Vec<f64> = values.into_iter().map(|d| d.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let max = ms.last().copied()?;
        let mean = ms.iter().sum::<f64>() / ms.len() as f64;
        let rank = |permille| percentile_of_sorted(&ms, permille);
        Some(Distribution { mean, p50: rank(500)?, p90: rank(900)?, p99: rank(990)?, max })
    }
}

/// The report of one run.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// Requests answered.
    pub completed: usize,
    /// Requests that failed.
    pub failed: usize,
    /// Failures by message.
    pub errors: BTreeMap<String, usize>,
    /// Message of the first failed request.
    pub first_error: Option<String>,
    /// From the first request to the last answer, seconds.
    pub duration_s: f64,
    /// Requests answered per second.
    pub requests_per_s: f64,
    /// Tokens generated per second.
    pub output_tokens_per_s: f64,
    /// Tokens of prompts and outputs per second.
    pub total_tokens_per_s: f64,
    /// Tokens per second of requests that met both targets.
    pub goodput_tokens_per_s: f64,
    /// Mean number of tokens per chunk of a stream; `None` = no chunk arrived.
    pub tokens_per_chunk: Option<f64>,
    /// From sending to the first chunk, over requests.
    pub ttft_ms: Option<Distribution>,
    /// Time between two chunks of a stream, over all gaps: the inter-token latency of vLLM's benchmark.
    pub tbt_ms: Option<Distribution>,
    /// Time from the first chunk to the last one, divided by the tokens after the first, over requests with more than
    /// one.
    pub tpot_ms: Option<Distribution>,
    /// From sending to the end of the answer, over requests.
    pub e2e_ms: Option<Distribution>,
    /// Target of the time to the first chunk, milliseconds.
    pub slo_ttft_ms: u64,
    /// Target of the time between chunks, milliseconds.
    pub slo_tbt_ms: u64,
    /// Share of all requests whose first chunk arrived in time.
    pub ttft_attainment: f64,
    /// Share of gaps within the target; `None` = there were none.
    pub tbt_attainment: Option<f64>,
    /// Share of all requests that met both targets.
    pub slo_attainment: f64,
}

impl BenchReport {
    /// Summarizes `records`. Targets are in milliseconds.
    pub fn of(records: &[RequestRecord], slo_ttft_ms: u64, slo_tbt_ms: u64) -> BenchReport {
        let (ttft, tbt) = (Duration::from_millis(slo_ttft_ms), Duration::from_millis(slo_tbt_ms));
        let good: Vec<_> = records.iter().filter(|r| r.error.is_none()).collect();
        let mut errors = BTreeMap::new();
        for error in records.iter().filter_map(|r| r.error.clone()) {
            *errors.entry(error).or_insert(0) += 1;
        }
        let start = records.iter().map(|r| r.sent_at).min().unwrap_or_default();
        let end = records.iter().map(|r| r.ended_at).max().unwrap_or_default();
        let duration_s = (end - start).as_secs_f64().max(f64::MIN_POSITIVE);
        let met: Vec<_> = good.iter().filter(|r| meets_slo(r, ttft, tbt)).collect();
        let output: u64 = good.iter().map(|r| r.output_tokens).sum();
        let prompt: u64 = good.iter().map(|r| r.prompt_tokens).sum();
        let gaps = || good.iter().flat_map(|r| r.inter_chunk_gaps.iter().copied());
        let chunks: usize = good.iter().map(|r| r.chunks()).sum();
        let in_time = good.iter().filter(|r| r.ttft.is_some_and(|t| t <= ttft)).count();
        BenchReport {
            slo_ttft_ms,
            slo_tbt_ms,
            completed: good.len(),
            failed: records.len() - good.len(),
            errors,
            first_error: first_error(records),
            duration_s,
            requests_per_s: good.len() as f64 / duration_s,
            output_tokens_per_s: output as f64 / duration_s,
            total_tokens_per_s: (output + prompt) as f64 / duration_s,
            goodput_tokens_per_s: met.iter().map(|r| r.output_tokens).sum::<u64>() as f64 / duration_s,
            tokens_per_chunk: (chunks > 0).then(|| output as f64 / chunks as f64),
            ttft_ms: Distribution::of(good.iter().filter_map(|r| r.ttft)),
            tbt_ms: Distribution::of(gaps()),
            tpot_ms: Distribution::of(good.iter().filter_map(|r| tpot(r))),
            e2e_ms: Distribution::of(good.iter().map(|r| r.ended_at - r.sent_at)),
            ttft_attainment: ratio(in_time, records.len()),
            tbt_attainment: gaps()
                .next()
                .map(|_| ratio(gaps().filter(|g| *g <= tbt).count(), gaps().count())),
            slo_attainment: ratio(met.len(), records.len()),
        }
    }
}

fn first_error(records: &[RequestRecord]) -> Option<String> {
    records.iter().filter(|r| r.error.is_some()).min_by_key(|r| r.ended_at)?.error.clone()
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn meets_slo(record: &RequestRecord, ttft: Duration, tbt: Duration) -> bool {
    let p99 = percentile(&mut record.inter_chunk_gaps.clone(), 990);
    record.ttft.is_some_and(|t| t <= ttft) && p99.is_none_or(|gap| gap <= tbt)
}

/// Covers the same time as the gaps, so that TBT and TPOT differ only by tokens that arrived in one chunk.
fn tpot(record: &RequestRecord) -> Option<Duration> {
    let after_first = u32::try_from(record.output_tokens.checked_sub(1)?).ok().filter(|n| *n > 0)?;
    Some(record.inter_chunk_gaps.iter().sum::<Duration>() / after_first)
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "requests     {} answered, {} failed, {:.1} s",
            self.completed, self.failed, self.duration_s
        )?;
        for (error, count) in &self.errors {
            writeln!(f, "  {count} x {error}")?;
        }
        if self.completed == 0 {
            // The errors are above, and the first is in the error of the run.
            return writeln!(f, "no request succeeded, so there are no figures");
        }
        writeln!(
            f,
            "throughput   {:.2} requests/s   {:.1} output tokens/s   {:.1} tokens/s   goodput {:.1} tokens/s",
            self.requests_per_s, self.output_tokens_per_s, self.total_tokens_per_s, self.goodput_tokens_per_s
        )?;
        self.fmt_latencies(f)?;
        if let Some(tokens) = self.tokens_per_chunk {
            writeln!(f, "stream       {tokens:.2} tokens a chunk (TBT is between chunks, TPOT a token)")?;
        }
        writeln!(
            f,
            "SLO          TTFT within {} ms: {:.1} %   TBT within {} ms: {} of gaps   both: {:.1} % of requests",
            self.slo_ttft_ms,
            self.ttft_attainment * 100.0,
            self.slo_tbt_ms,
            self.tbt_attainment.map_or("none".into(), |share| format!("{:.1} %", share * 100.0)),
            self.slo_attainment * 100.0
        )
    }
}

impl BenchReport {
    fn fmt_latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "milliseconds {:>10} {:>10} {:>10} {:>10} {:>10}", "mean", "p50", "p90", "p99", "max")?;
        for (name, distribution) in [
            ("TTFT", &self.ttft_ms),
            ("TBT", &self.tbt_ms),
            ("TPOT", &self.tpot_ms),
            ("end to end", &self.e2e_ms),
        ] {
            match distribution {
                Some(d) => writeln!(
                    f,
                    "  {name:<10} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                    d.mean, d.p50, d.p90, d.p99, d.max
                )?,
                None => writeln!(f, "  {name:<10} {:>10}", "no sample")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ttft_ms: u64, gaps_ms: &[u64]) -> RequestRecord {
        let gaps: Vec<_> = gaps_ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
        let total = Duration::from_millis(ttft_ms) + gaps.iter().sum::<Duration>();
        RequestRecord {
            ttft: Some(Duration::from_millis(ttft_ms)),
            output_tokens: gaps.len() as u64 + 1,
            inter_chunk_gaps: gaps,
            ended_at: total,
            ..RequestRecord::default()
        }
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let d = Distribution::of((1..=100).map(Duration::from_millis)).unwrap();
        assert_eq!((d.p50, d.p90, d.p99, d.max), (50.0, 90.0, 99.0, 100.0));
    }

    #[test]
    fn tbt_is_per_chunk_and_tpot_is_per_token() {
        // 13 tokens in 4 chunks: 60 ms from the first chunk to the last one. The time after the last chunk counts for
        // neither.
        let several = RequestRecord { output_tokens: 13, ..record(100, &[10, 20, 30]) };
        let several = RequestRecord { ended_at: several.ended_at + Duration::from_millis(500), ..several };
        let report = BenchReport::of(&[several], 500, 50);
        let mean = |distribution: Option<Distribution>| distribution.unwrap().mean;
        assert_eq!((mean(report.tbt_ms), mean(report.tpot_ms)), (20.0, 5.0));
        assert_eq!((report.tokens_per_chunk, mean(report.e2e_ms)), (Some(3.25), 660.0));
    }

    #[test]
    fn one_token_per_chunk_makes_mean_tbt_equal_tpot() {
        let report = BenchReport::of(&[record(100, &[10, 20, 60])], 500, 50);
        assert_eq!(report.tbt_ms.unwrap().mean, report.tpot_ms.unwrap().mean);
    }

    #[test]
    fn missing_samples_have_no_figure() {
        let report = BenchReport::of(&[record(100, &[])], 500, 50);
        assert_eq!((report.tbt_ms, report.tpot_ms, report.tbt_attainment), (None, None, None));
        let text = report.to_string();
        assert!(
            text.contains("TBT         no sample") && text.contains("TBT within 50 ms: none of gaps"),
            "{text}"
        );
    }

    #[test]
    fn report_without_answers_has_no_table() {
        let failed = |error: &str, ended| {
            let (error, ended) = (Some(error.into()), Duration::from_millis(ended));
            RequestRecord { error, ended_at: ended, ..RequestRecord::default() }
        };
        let report = BenchReport::of(&[failed("a", 9), failed("b", 3), failed("a", 5)], 500, 50);
        assert_eq!(report.first_error.as_deref(), Some("b"));
        let lines = report.to_string();
        let lines: Vec<_> = lines.lines().skip(1).collect();
        assert_eq!(lines[..2], ["  2 x a", "  1 x b"]);
        assert!(lines.len() == 3 && lines[2] == "no request succeeded, so there are no figures", "{lines:?}");
    }

    #[test]
    fn goodput_counts_only_requests_that_met_both_targets() {
        let records = [record(100, &[10; 9]), record(100, &[10, 10, 500]), record(900, &[10; 9])];
        let report = BenchReport::of(&records, 500, 50);
        assert!((report.slo_attainment - 1.0 / 3.0).abs() < 1e-9);
        assert!((report.goodput_tokens_per_s * report.duration_s - 10.0).abs() < 1e-6);
        assert!((report.ttft_attainment - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn failures_are_counted_by_message() {
        let failed = RequestRecord { error: Some("429: full".into()), ..RequestRecord::default() };
        let report = BenchReport::of(&[failed.clone(), failed, record(1, &[])], 10, 10);
        assert_eq!((report.completed, report.failed, report.errors["429: full"]), (1, 2, 2));
    }
}

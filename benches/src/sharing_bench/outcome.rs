//! What one rule did with a load.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_common::metrics_text::sum;

use super::delays::{self, Delays};
use super::setting::Setting;
use super::tenants::TENANTS;
use crate::client::ClientReport;
use crate::tenant::Up;

/// The most that was seen while the load ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    lent_bytes: u64,
    lent_layers: u64,
    running: u64,
}

impl Observed {
    /// Takes the states of all tenants in.
    pub fn look(&mut self, states: &[Value]) {
        let each = |path: &str| {
            let path = path.to_owned();
            states.iter().map(move |state| state.pointer(&path).and_then(Value::as_u64).unwrap_or(0))
        };
        self.lent_bytes = self.lent_bytes.max(each("/peers/lent_bytes").sum());
        self.lent_layers = self.lent_layers.max(each("/activity/lent_layers").sum());
        self.running = self.running.max(each("/queue/running").max().unwrap_or(0));
    }
}

/// Figures of one run over all tenants. Times in milliseconds.
#[derive(Clone, Debug)]
pub struct SharingRunFigures {
    /// Output tokens per second.
    pub throughput: f64,
    /// Those of requests that met both objectives.
    pub goodput: f64,
    /// P99 of the time to the first token, at the clients.
    pub ttft_p99: f64,
    /// P99 of the time between tokens as the clients got them, of the burst that had it worst.
    pub tbt_p99: f64,
    /// Preemptions.
    pub preempted: u64,
    /// Tokens computed again after a preemption.
    pub recomputed: u64,
    /// Chunks that peers lent, over all loans.
    pub chunks_lent: u64,
    /// Most chunks that were lent at a time, as far as was seen.
    pub chunks_lent_most: u64,
    /// Maximum of weight layers lent to peers at a time, over all polls.
    pub layers_lent: u64,
    /// Most requests in a tenant's batch at a time, as far as was seen.
    pub running: u64,
    /// Bytes copied to the device, loading included.
    pub copied_bytes: u64,
    /// Delays that peers caused each other.
    pub delays: Delays,
    /// Every request's text, round by round.
    pub outputs: Vec<Vec<u8>>,
}

impl SharingRunFigures {
    pub(super) fn read(
        up: &Up<'_>,
        setting: &Setting,
        rounds: &[Vec<ClientReport>],
        mut seen: Observed,
    ) -> Result<SharingRunFigures> {
        let states = up.states()?;
        seen.look(&states);
        SharingRunFigures::new(setting, rounds, &states, lent_bytes(up)?, seen)
    }

    fn new(
        setting: &Setting,
        rounds: &[Vec<ClientReport>],
        states: &[Value],
        lent_bytes: u64,
        seen: Observed,
    ) -> Result<SharingRunFigures> {
        let chunk_bytes = setting.device.chunk_bytes;
        let total = |name: &str| {
            let of = |state| figure(state, &format!("/figures/{name}")).map(|number| number as u64);
            states.iter().map(of).sum::<Result<u64>>()
        };
        Ok(SharingRunFigures {
            throughput: rate(rounds, "/output_tokens_per_s")?,
            goodput: rate(rounds, "/goodput_tokens_per_s")?,
            ttft_p99: worst(rounds, "/ttft_ms/p99")?,
            tbt_p99: worst(rounds, "/tbt_ms/p99")?,
            preempted: total("preemptions_total")?,
            recomputed: total("recomputed_tokens_total")?,
            chunks_lent: lent_bytes / chunk_bytes,
            chunks_lent_most: seen.lent_bytes / chunk_bytes,
            layers_lent: seen.lent_layers,
            running: seen.running,
            copied_bytes: total("copied_bytes_total")?,
            delays: delays::read(states),
            outputs: rounds.iter().flatten().map(|report| report.outputs.clone()).collect(),
        })
    }

    /// All but the texts.
    pub fn to_json(&self) -> Value {
        json!({
            "output_tokens_per_s": self.throughput,
            "goodput_tokens_per_s": self.goodput,
            "ttft_p99_ms": self.ttft_p99,
            "delivered_tbt_p99_ms": self.tbt_p99,
            "requests_preempted": self.preempted,
            "tokens_recomputed": self.recomputed,
            "chunks_lent": self.chunks_lent,
            "chunks_lent_most": self.chunks_lent_most,
            "layers_lent_most": self.layers_lent,
            "requests_running": self.running,
            "bytes_copied": self.copied_bytes,
            "delays": delays::to_json(&self.delays),
        })
    }
}

/// Bytes that tenants lent, over the whole run.
fn lent_bytes(up: &Up<'_>) -> Result<u64> {
    let of = |tenant| {
        let lent = sum(&up.metrics(tenant)?, "sluice_moved_bytes_total", &[("reason", "lend")]);
        Ok(lent.unwrap_or(0.0) as u64)
    };
    (0..TENANTS.len()).map(of).sum()
}

fn figure(value: &Value, path: &str) -> Result<f64> {
    value.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path} in {value}"))
}

/// Tokens per second over all rounds: each lasts as long as its longest stream.
fn rate(rounds: &[Vec<ClientReport>], path: &str) -> Result<f64> {
    let (mut tokens, mut seconds) = (0.0, 0.0);
    for round in rounds {
        let mut longest: f64 = 0.0;
        for ClientReport { figures, .. } in round {
            let duration_s = figure(figures, "/duration_s")?;
            tokens += figure(figures, path)? * duration_s;
            longest = longest.max(duration_s);
        }
        seconds += longest;
    }
    Ok(tokens / seconds)
}

/// The largest over all streams. For a P99 over no more than 100 requests, this is the P99 over all of them.
fn worst(rounds: &[Vec<ClientReport>], path: &str) -> Result<f64> {
    rounds.iter().flatten().try_fold(0.0, |most: f64, report| Ok(most.max(figure(&report.figures, path)?)))
}

#[cfg(test)]
mod tests {
    use super::super::setting::tests::setting;
    use super::*;

    fn report(tokens_per_s: f64, duration_s: f64, p99: f64) -> ClientReport {
        let figures = json!({"output_tokens_per_s": tokens_per_s, "goodput_tokens_per_s": tokens_per_s / 2.0,
            "duration_s": duration_s, "ttft_ms": {"p99": p99}, "tbt_ms": {"p99": p99 / 10.0}});
        ClientReport { figures, outputs: vec![1] }
    }

    #[test]
    fn an_outcome_is_over_all_rounds_and_tenants() {
        // 100 tokens in 1 s; then 200 and 20 tokens at the same time, in 2 s.
        let rounds =
            [vec![report(100.0, 1.0, 30.0)], vec![report(100.0, 2.0, 40.0), report(20.0, 1.0, 50.0)]];
        let state = json!({"figures": {"preemptions_total": 2, "recomputed_tokens_total": 3, "copied_bytes_total": 4},
            "peers": {"lent_bytes": 5 << 16}, "activity": {"lent_layers": 6}, "queue": {"running": 7}});
        let states = [state.clone(), state];
        let mut seen = Observed::default();
        seen.look(&states);
        let found = SharingRunFigures::new(&setting(), &rounds, &states, 8 << 16, seen).unwrap();
        assert_eq!((found.throughput, found.goodput), (320.0 / 3.0, 160.0 / 3.0));
        assert_eq!((found.ttft_p99, found.tbt_p99), (50.0, 5.0));
        assert_eq!((found.preempted, found.recomputed, found.copied_bytes), (4, 6, 8));
        assert_eq!((found.chunks_lent, found.chunks_lent_most, found.layers_lent), (8, 10, 12));
        assert_eq!((found.running, found.outputs.len()), (7, 3));
    }

    #[test]
    fn a_report_without_a_figure_is_an_error() {
        let broken = [vec![ClientReport { figures: json!({}), outputs: vec![] }]];
        assert!(rate(&broken, "/output_tokens_per_s").is_err() && worst(&broken, "/ttft_ms/p99").is_err());
    }
}

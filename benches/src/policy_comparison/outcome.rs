//! What one policy did with a load.

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The most that was seen while the load ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    remapped: u64,
    running: u64,
}

impl Observed {
    /// Takes a state in.
    pub fn look(&mut self, state: &Value) {
        let number = |path: &str| state.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        self.remapped = self.remapped.max(number("/remap/alpha"));
        self.running = self.running.max(number("/queue/running"));
    }
}

/// Figures of one run. Times in milliseconds.
#[derive(Clone, Debug)]
pub struct PolicyRunFigures {
    /// Output tokens per second.
    pub throughput: f64,
    /// P99 of the time to the first token, at the client.
    pub ttft_p99: f64,
    /// P99 of the time between tokens as the client got them.
    pub delivered_tbt_p99: f64,
    /// P99 of the time between tokens as the engine made them.
    pub engine_tbt_p99: f64,
    /// r = T_T / T_c as the sidecar measured it.
    pub ratio: Option<f64>,
    /// Most layers whose memory served KV at a time.
    pub remapped: u64,
    /// Most requests in the batch at a time.
    pub running: u64,
    /// Times that own layers were given to KV.
    pub remappings: u64,
    /// Times that this was declined because copies would not hide behind compute.
    pub declined: u64,
    /// Preemptions.
    pub preempted: u64,
    /// Tokens computed again after a preemption.
    pub recomputed: u64,
    /// Bytes copied to the device, loading included.
    pub copied_bytes: u64,
    /// Every request's text.
    pub outputs: Vec<u8>,
}

impl PolicyRunFigures {
    pub(super) fn new(
        report: &Value,
        state: &Value,
        seen: Observed,
        outputs: Vec<u8>,
    ) -> Result<PolicyRunFigures> {
        let figure = |value: &Value, path: &str| {
            value.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path} in {value}"))
        };
        let total = |name: &str| figure(state, &format!("/figures/{name}")).map(|number| number as u64);
        let events = |reason: &str| {
            let reasons = state["figures"]["moves_total"].as_array().into_iter().flatten();
            let counts = reasons.filter(|event| event["reason"] == reason);
            counts.filter_map(|event| event["count"].as_u64()).sum()
        };
        Ok(PolicyRunFigures {
            throughput: figure(report, "/output_tokens_per_s")?,
            ttft_p99: figure(report, "/ttft_ms/p99")?,
            delivered_tbt_p99: figure(report, "/tbt_ms/p99")?,
            engine_tbt_p99: figure(state, "/figures/engine_tbt/p99_ns")? / 1e6,
            ratio: figure(state, "/figures/r_permille").ok().map(|permille| permille / 1e3),
            remapped: seen.remapped,
            running: seen.running,
            remappings: events("remap_own"),
            declined: events("declined_stall"),
            preempted: total("preemptions_total")?,
            recomputed: total("recomputed_tokens_total")?,
            copied_bytes: total("copied_bytes_total")?,
            outputs,
        })
    }

    /// All but the texts.
    pub fn to_json(&self) -> Value {
        json!({
            "output_tokens_per_s": self.throughput,
            "ttft_p99_ms": self.ttft_p99,
            "delivered_tbt_p99_ms": self.delivered_tbt_p99,
            "engine_tbt_p99_ms": self.engine_tbt_p99,
            "r": self.ratio,
            "layers_remapped": self.remapped,
            "requests_running": self.running,
            "remappings": self.remappings,
            "remappings_declined": self.declined,
            "requests_preempted": self.preempted,
            "tokens_recomputed": self.recomputed,
            "bytes_copied": self.copied_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_joins_what_client_and_sidecar_measured() {
        let report = json!({"output_tokens_per_s": 5.5, "ttft_ms": {"p99": 7.0}, "tbt_ms": {"p99": 9.0}});
        let figures = json!({"engine_tbt": {"p99_ns": 2_000_000}, "r_permille": 7500, "preemptions_total": 3,
            "recomputed_tokens_total": 4, "copied_bytes_total": 5,
            "moves_total": [{"reason": "remap_own", "count": 6}, {"reason": "load", "count": 7}]});
        let mut seen = Observed::default();
        seen.look(&json!({"remap": {"alpha": 6}, "queue": {"running": 2}}));
        seen.look(&json!({"remap": {"alpha": 1}, "queue": {"running": 3}}));
        let found =
            PolicyRunFigures::new(&report, &json!({"figures": figures}), seen, vec![1]).unwrap().to_json();
        assert_eq!((&found["engine_tbt_p99_ms"], &found["r"]), (&json!(2.0), &json!(7.5)));
        assert_eq!((&found["layers_remapped"], &found["requests_running"]), (&json!(6), &json!(3)));
        assert_eq!((&found["remappings"], &found["remappings_declined"]), (&json!(6), &json!(0)));
        let error = PolicyRunFigures::new(&json!({}), &json!({}), seen, vec![]).unwrap_err().to_string();
        assert!(error.contains("/output_tokens_per_s"), "{error}");
    }
}

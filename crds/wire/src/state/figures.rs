//! Measurements in a state. Counters run from the sidecar's start; percentiles are over recent samples.

use serde::{Deserialize, Serialize};

/// Measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Time between a sequence's tokens as the engine produces them.
    pub engine_tbt: Percentiles,
    /// Time between a stream's tokens as they are written to the client.
    pub delivered_tbt: Percentiles,
    /// Time from a request's arrival to its first token.
    pub ttft: Percentiles,
    /// Prompt tokens computed.
    pub prefill_tokens_total: u64,
    /// Tokens generated.
    pub decode_tokens_total: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens_total: u64,
    /// Preemptions.
    pub preemptions_total: u64,
    /// Requests that were paused with their KV.
    pub pauses_total: u64,
    /// Time that steps waited for KV from the host tier, ns.
    pub kv_stall_ns_total: u64,
    /// Steps that the engine has finished.
    pub steps_total: u64,
    /// Moves of memory by reason; a reason that has not occurred is left out.
    #[serde(alias = "remap_events_total")]
    pub moves_total: Vec<ReasonCount>,
    /// Messages between sidecar and engine, both ways, after the handshakes; over all engines.
    pub link_messages_total: u64,
    /// Bytes copied from host to device.
    pub copied_bytes_total: u64,
    /// Measured bandwidth of the link, bytes per second; `None` = nothing has been copied yet.
    pub link_bytes_per_second: Option<u64>,
    /// Time to fill a slot with one layer (T_T), ns, average; `None` = none has been filled yet.
    pub t_transfer_ns: Option<u64>,
    /// Time to compute one layer in decode (T_c), ns, average; `None` = no step yet.
    pub t_compute_ns: Option<u64>,
    /// r = T_T / T_c, permille; `None` = one of them is not known.
    pub r_permille: Option<u64>,
}

/// Percentiles of a duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Percentiles {
    /// Samples that these are over; 0 = nothing measured, and then the others are 0.
    pub samples: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
}

/// How often a reason occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReasonCount {
    /// The label of the policy's `Reason`.
    pub reason: String,
    /// How often.
    pub count: u64,
}

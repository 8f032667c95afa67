//! Metrics exposed to Prometheus, with their names and labels.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use sluice_policy::peers::wait_time::WaitKind;

use super::by_wait_kind::ByWaitKind;
use super::histogram::DurationHistogram;
use super::objectives::Attainment;

/// Gauge of a ratio or a rate.
pub(super) type RatioGauge = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ByReason {
    pub reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ByFinish {
    pub finished_reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ByOwner {
    pub owner: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ByCredentials {
    pub credentials: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ByObjective {
    pub objective: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct TenantLabels {
    pub namespace: String,
    pub tenant: String,
    pub gpu: String,
    pub uuid: String,
}

/// Upper bounds of a plan's proven gap, as ratios of its time. Plans that are proven optimal have their own bucket.
const GAP_BUCKETS: [f64; 9] = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0];

/// Histogram of proven gaps.
#[derive(Clone, Debug)]
pub(super) struct GapHistogram(pub Histogram);

impl Default for GapHistogram {
    fn default() -> Self {
        GapHistogram(Histogram::new(GAP_BUCKETS))
    }
}

/// Metrics under vLLM's names.
#[derive(Debug, Default)]
pub(super) struct VllmMetrics {
    pub running: Gauge,
    pub waiting: Gauge,
    pub kv_usage: RatioGauge,
    pub ttft: DurationHistogram,
    pub inter_token: DurationHistogram,
    pub e2e: DurationHistogram,
    pub queue_time: DurationHistogram,
    pub prompt_tokens: Counter,
    pub generation_tokens: Counter,
    pub preemptions: Counter,
    pub success: Family<ByFinish, Counter>,
    pub prefix_queries: Counter,
    pub prefix_hits: Counter,
}

/// Metrics under Sluice's own names.
#[derive(Debug, Default)]
pub(super) struct OwnMetrics {
    pub tenant: Family<TenantLabels, Gauge>,
    pub owner_bytes: Family<ByOwner, Gauge>,
    pub capacity_bytes: Gauge,
    pub layers_remapped: Gauge,
    pub layers_lent: Gauge,
    pub moves: Family<ByReason, Counter>,
    pub moved_bytes: Family<ByReason, Counter>,
    pub copied_bytes: Counter,
    pub kv_fetched_bytes: Counter,
    pub kv_written_back_bytes: Counter,
    pub offloaded_prompts: Counter,
    pub prompt_buffer_bytes: Gauge,
    pub link_bandwidth: Gauge,
    pub steps: Counter,
    pub prefill_tokens: Counter,
    pub recomputed_tokens: Counter,
    pub stall: Counter<f64, AtomicU64>,
    pub kv_stall: Counter<f64, AtomicU64>,
    pub engine_tbt: DurationHistogram,
    pub delivered_tbt: DurationHistogram,
    pub write_lateness: DurationHistogram,
    pub engine_losses: Counter,
    pub engine_hangs: Counter,
    pub sidecar_hangs: Counter,
    pub slice_takeovers: Counter,
    pub slice_skips: Counter,
    pub time_slice_losses: Counter,
    pub slice_holder_overdue: RatioGauge,
    pub plan_gap: GapHistogram,
    pub held: DurationHistogram,
    pub resent: Counter,
    pub waits: ByWaitKind<DurationHistogram>,
    pub slo: SloMetrics,
    pub credentials: Family<ByCredentials, Gauge>,
}

/// Attainment metrics by objective.
#[derive(Debug, Default)]
pub(super) struct SloMetrics {
    ratio: Family<ByObjective, RatioGauge>,
    overdue: Family<ByObjective, Gauge>,
    tokens: Family<ByObjective, Counter>,
    missed: Family<ByObjective, Counter>,
}

impl SloMetrics {
    /// Copies the current attainment. Counters only grow, in any order of concurrent scrapes.
    pub(super) fn update(&self, objective: &'static str, now: &Attainment) {
        let label = ByObjective { objective };
        match now.permille {
            Some(permille) => {
                self.ratio.get_or_create(&label).set(f64::from(permille) / 1000.0);
            }
            // An objective without a token in the window is neither met nor missed.
            None => drop(self.ratio.remove(&label)),
        }
        self.overdue.get_or_create(&label).set(i64::from(now.overdue));
        self.tokens.get_or_create(&label).inner().fetch_max(now.tokens, Ordering::Relaxed);
        self.missed.get_or_create(&label).inner().fetch_max(now.missed, Ordering::Relaxed);
    }

    fn register(&self, names: &mut MetricRegistrar) {
        names.add(
            "sluice_slo_attainment_ratio",
            "Share of tokens in time, over the window of the SLO",
            self.ratio.clone(),
        );
        names.add(
            "sluice_overdue_tokens",
            "Tokens that are not written yet although their objective has passed",
            self.overdue.clone(),
        );
        names.add("sluice_slo_tokens", "Tokens written or overdue", self.tokens.clone());
        names.add(
            "sluice_slo_missed_tokens",
            "Tokens written late, overdue, or never generated",
            self.missed.clone(),
        );
    }
}

/// Registers metrics under shared labels.
pub(super) struct MetricRegistrar(pub Registry);

impl MetricRegistrar {
    pub(super) fn add(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.0.register(name, help, metric);
    }
}

impl VllmMetrics {
    pub(super) fn register(&self, names: &mut MetricRegistrar) {
        names.add("vllm:num_requests_running", "Requests in the running batch", self.running.clone());
        names.add("vllm:num_requests_waiting", "Requests that wait for admission", self.waiting.clone());
        names.add("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 1 = all", self.kv_usage.clone());
        names.add(
            "vllm:time_to_first_token_seconds",
            "Time from arrival to the first token",
            self.ttft.clone(),
        );
        names.add(
            "vllm:inter_token_latency_seconds",
            "Time between tokens as the engine generates them",
            self.inter_token.clone(),
        );
        names.add(
            "vllm:e2e_request_latency_seconds",
            "Time from arrival to the end of the request",
            self.e2e.clone(),
        );
        names.add(
            "vllm:request_queue_time_seconds",
            "Time from arrival to the first admission",
            self.queue_time.clone(),
        );
        // The encoder adds `_total` to counters.
        names.add("vllm:prompt_tokens", "Prompt tokens", self.prompt_tokens.clone());
        names.add("vllm:generation_tokens", "Tokens generated", self.generation_tokens.clone());
        names.add("vllm:num_preemptions", "Preemptions", self.preemptions.clone());
        names.add("vllm:request_success", "Ended requests, by finish reason", self.success.clone());
        names.add(
            "vllm:prefix_cache_queries",
            "Tokens looked up in the prefix cache",
            self.prefix_queries.clone(),
        );
        names.add("vllm:prefix_cache_hits", "Tokens found in the prefix cache", self.prefix_hits.clone());
    }
}

impl VllmMetrics {
    /// Registers the metrics of a proxied engine's requests under Sluice's names, because the engine uses vLLM's.
    pub(super) fn register_as_own(&self, names: &mut MetricRegistrar) {
        names.add(
            "sluice_ttft_seconds",
            "Time from arrival to the first written token, of streams",
            self.ttft.clone(),
        );
        names.add("sluice_request_seconds", "Time from arrival to the end of the request", self.e2e.clone());
        names.add("sluice_prompt_tokens", "Prompt tokens", self.prompt_tokens.clone());
        names.add("sluice_generation_tokens", "Tokens generated", self.generation_tokens.clone());
        names.add("sluice_requests", "Ended requests, by finish reason", self.success.clone());
    }
}

impl OwnMetrics {
    /// Registers the metrics that exist without device memory managed by Sluice.
    pub(super) fn register_proxied(&self, names: &mut MetricRegistrar) {
        names.add("sluice_tenant_info", "Tenant and GPU of a model_name; value 1", self.tenant.clone());
        names.add(
            "sluice_engine_tbt_seconds",
            "Time between tokens as the engine generates them",
            self.engine_tbt.clone(),
        );
        names.add(
            "sluice_delivered_tbt_seconds",
            "Time between tokens as written to clients",
            self.delivered_tbt.clone(),
        );
        names.add(
            "sluice_write_lateness_seconds",
            "Time from the due time of a paced token to its write",
            self.write_lateness.clone(),
        );
        names.add("sluice_engine_losses", "Engines that were lost", self.engine_losses.clone());
        names.add("sluice_held_seconds", "Requests held while the engine is absent", self.held.clone());
        names.add("sluice_resent_requests", "Requests sent to the engine again", self.resent.clone());
        names.add(
            "sluice_wake_seconds",
            "Time from the order to wake until the engine is awake",
            self.waits[WaitKind::Wake].clone(),
        );
        self.slo.register(names);
        names.add(
            "sluice_credentials_last_reload_successful",
            "1 = the current files of credentials are in use, 0 = they are not valid and older ones are in use",
            self.credentials.clone(),
        );
    }

    pub(super) fn register(&self, names: &mut MetricRegistrar) {
        names.add("sluice_tenant_info", "Tenant and GPU of a model_name; value 1", self.tenant.clone());
        self.register_memory(names);
        self.register_kv(names);
        self.register_steps(names);
        self.register_waits(names);
        self.register_hangs(names);
        self.slo.register(names);
        names.add(
            "sluice_credentials_last_reload_successful",
            "1 = the current files of credentials are in use, 0 = they are not valid and older ones are in use",
            self.credentials.clone(),
        );
    }

    fn register_memory(&self, names: &mut MetricRegistrar) {
        names.add("sluice_memory_bytes", "Device memory by owner of its chunks", self.owner_bytes.clone());
        names.add(
            "sluice_memory_capacity_bytes",
            "Device memory of this tenant",
            self.capacity_bytes.clone(),
        );
        names.add("sluice_layers_remapped", "Own layers whose memory holds KV", self.layers_remapped.clone());
        names.add(
            "sluice_layers_lent",
            "Layers that are not on the GPU because their memory is lent to peers",
            self.layers_lent.clone(),
        );
        names.add("sluice_moves", "Memory events by reason", self.moves.clone());
        names.add(
            "sluice_moved_bytes",
            "Bytes of memory that changed their owner, by reason",
            self.moved_bytes.clone(),
        );
        names.add("sluice_copied_bytes", "Bytes copied from host to device", self.copied_bytes.clone());
        names.add(
            "sluice_link_bytes_per_second",
            "Measured bandwidth of copies between host and device",
            self.link_bandwidth.clone(),
        );
    }

    fn register_steps(&self, names: &mut MetricRegistrar) {
        names.add("sluice_steps", "Steps of the engine", self.steps.clone());
        names.add("sluice_prefill_tokens", "Prompt tokens computed", self.prefill_tokens.clone());
        names.add(
            "sluice_recomputed_tokens",
            "Tokens computed again after preemption",
            self.recomputed_tokens.clone(),
        );
        names.add(
            "sluice_stall_seconds",
            "Time that steps waited for copies of moving layers",
            self.stall.clone(),
        );
        names.add(
            "sluice_engine_tbt_seconds",
            "Time between tokens as the engine generates them",
            self.engine_tbt.clone(),
        );
        names.add(
            "sluice_delivered_tbt_seconds",
            "Time between tokens as written to clients",
            self.delivered_tbt.clone(),
        );
        names.add(
            "sluice_write_lateness_seconds",
            "Time from the due time of a paced token to its write",
            self.write_lateness.clone(),
        );
        names.add("sluice_engine_losses", "Engines that were lost", self.engine_losses.clone());
        names.add(
            "sluice_plan_gap_ratio",
            "Upper bound of how much faster than the plan for KV placement a step can be, as a share of the \
             planned time",
            self.plan_gap.0.clone(),
        );
    }

    fn register_waits(&self, names: &mut MetricRegistrar) {
        let waits = &self.waits;
        names.add(
            "sluice_time_slice_wait_seconds",
            "Time from joining the time-slice queue to getting a time slice",
            waits[WaitKind::TimeSlice].clone(),
        );
        names.add(
            "sluice_time_slice_handover_seconds",
            "Time from the release of the time slice by a peer to getting it",
            waits.handover.clone(),
        );
        let (grant, revoke, wake) =
            (&waits[WaitKind::Grant], &waits[WaitKind::Revoke], &waits[WaitKind::Wake]);
        names.add(
            "sluice_grant_seconds",
            "Time from KV shortage until the memory of a peer is mapped",
            grant.clone(),
        );
        names.add(
            "sluice_revoke_seconds",
            "Time from the decision to revoke a loan until its memory is returned",
            revoke.clone(),
        );
        names.add(
            "sluice_wake_seconds",
            "Time from the return of memory until every layer is loaded",
            wake.clone(),
        );
    }

    fn register_hangs(&self, names: &mut MetricRegistrar) {
        names.add("sluice_engine_hangs", "Engines that exceeded a deadline", self.engine_hangs.clone());
        names.add(
            "sluice_sidecar_hangs",
            "Sidecars of this tenant that hung and were killed",
            self.sidecar_hangs.clone(),
        );
        names.add(
            "sluice_time_slice_skips",
            "Peers that this tenant skipped in the time-slice queue because they did not take their time slice",
            self.slice_skips.clone(),
        );
        names.add(
            "sluice_time_slice_takeovers",
            "Time slices that this tenant took over from a peer past its deadline",
            self.slice_takeovers.clone(),
        );
        names.add(
            "sluice_time_slice_losses",
            "Time slices that a peer took over because this tenant was past its deadline",
            self.time_slice_losses.clone(),
        );
        names.add(
            "sluice_time_slice_holder_overdue_seconds",
            "Time by which the holder of the time slice is past its deadline",
            self.slice_holder_overdue.clone(),
        );
    }

    fn register_kv(&self, names: &mut MetricRegistrar) {
        names.add(
            "sluice_kv_fetch_bytes",
            "KV copied from host memory for the steps that read it",
            self.kv_fetched_bytes.clone(),
        );
        names.add(
            "sluice_kv_writeback_bytes",
            "KV copied to host memory while steps run",
            self.kv_written_back_bytes.clone(),
        );
        names.add(
            "sluice_kv_stall_seconds",
            "Time that steps waited for copies of KV",
            self.kv_stall.clone(),
        );
        names.add(
            "sluice_offloaded_prompts",
            "Requests whose prompts were computed with their KV in host memory",
            self.offloaded_prompts.clone(),
        );
        names.add(
            "sluice_prompt_buffer_bytes",
            "Host memory for KV that prompts may use (eLLM)",
            self.prompt_buffer_bytes.clone(),
        );
    }
}

//! Metrics of one sidecar in OpenMetrics format.
//!
//! Names under `vllm:` are those of vLLM's own metrics and have the same meaning. All others are `sluice_*`. The time
//! between tokens has one metric for the engine and one for the client, because pacing makes them differ.

mod by_wait_kind;
mod families;
mod hangs;
mod histogram;
mod objectives;
mod pending_token;
mod sliding_percentiles;
mod updown_gauge;
mod window;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_memory::KvCopyStats;
use sluice_policy::peers::wait_time::{WaitKind, WaitSpan};
use sluice_scheduler::event::StepOutput;
use sluice_wire::State;
use sluice_wire::config::SloConfig;
use sluice_wire::state::{Percentiles, SloState, Streams};
use tokio::sync::watch;

use crate::directive::{ActiveDirective, DirectiveStore};

use self::by_wait_kind::ByWaitKind;
use self::families::{
    ByCredentials, ByFinish, ByOwner, ByReason, MetricRegistrar, OwnMetrics, TenantLabels, VllmMetrics,
};
use self::objectives::{Attainment, Objectives, TokenLatency};
pub use self::pending_token::PendingToken;
use self::sliding_percentiles::SlidingPercentiles;
pub use self::updown_gauge::UpDownGauge;

/// Finish reasons of requests, as in vLLM. Any other reason counts as `error`.
const FINISH_REASONS: [&str; 4] = ["stop", "length", "abort", "error"];
/// Maximum number of reasons of memory events with their own label. The policy has fewer.
const MOVE_REASONS_MAX: usize = 48;
/// All metrics of a sidecar. Updates are cheap from any thread.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    slo: SloConfig,
    recent: Mutex<RecentStats>,
    /// Tokens generated and not yet written to clients, over all streams.
    pub deposits: UpDownGauge,
    /// Open requests, streamed or not.
    pub open_requests: UpDownGauge,
    /// Open requests that are held for a proxied engine.
    pub held_requests: UpDownGauge,
    vllm: VllmMetrics,
    own: OwnMetrics,
    /// Provides the UUID of the GPU.
    directive: Option<watch::Receiver<Option<ActiveDirective>>>,
}

/// Recent statistics for the state message.
#[derive(Debug)]
struct RecentStats {
    engine_tbt: SlidingPercentiles,
    delivered_tbt: SlidingPercentiles,
    ttft: SlidingPercentiles,
    objectives: Objectives,
    move_reasons: BTreeSet<String>,
    /// Waits for peers, since the start.
    waits: ByWaitKind<SlidingPercentiles>,
}

impl Metrics {
    /// Creates empty metrics. `slo` sets the objectives and their window.
    pub fn new(model_name: &str, slo: &SloConfig) -> Self {
        Metrics::registered(model_name, slo, |metrics, names| {
            metrics.vllm.register(names);
            metrics.own.register(names);
        })
    }

    /// Creates the metrics of a tenant whose engine is proxied. The engine exposes its own metrics, so this adds none
    /// under `vllm:`.
    pub fn proxied(model_name: &str, slo: &SloConfig) -> Self {
        Metrics::registered(model_name, slo, |metrics, names| {
            metrics.vllm.register_as_own(names);
            metrics.own.register_proxied(names);
            names.add(
                "sluice_held_requests",
                "Requests held while the engine is absent",
                metrics.held_requests.gauge(),
            );
        })
    }

    /// Adds the source of the GPU's UUID: the directives.
    #[must_use]
    pub fn with_directives(self, directives: &DirectiveStore) -> Metrics {
        Metrics { directive: Some(directives.watch()), ..self }
    }

    fn registered(
        model_name: &str,
        slo: &SloConfig,
        register: impl Fn(&Metrics, &mut MetricRegistrar),
    ) -> Self {
        let label = (Cow::from("model_name"), Cow::from(model_name.to_owned()));
        let mut metrics = Metrics {
            registry: Registry::default(),
            slo: slo.clone(),
            recent: Mutex::new(RecentStats::new(slo)),
            deposits: UpDownGauge::default(),
            open_requests: UpDownGauge::default(),
            held_requests: UpDownGauge::default(),
            vllm: VllmMetrics::default(),
            own: OwnMetrics::default(),
            directive: None,
        };
        let mut names = MetricRegistrar(Registry::with_labels([label].into_iter()));
        register(&metrics, &mut names);
        names.add(
            "sluice_deposit_tokens",
            "Tokens generated and not yet written to clients",
            metrics.deposits.gauge(),
        );
        names.add("sluice_open_requests", "Open requests", metrics.open_requests.gauge());
        for reason in FINISH_REASONS {
            let _ = metrics.vllm.success.get_or_create(&ByFinish { finished_reason: reason });
        }
        metrics.registry = names.0;
        metrics
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, RecentStats> {
        // A panic elsewhere leaves plain counters consistent.
        self.recent.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Records `count` tokens of a response that were written together: the first one waited, the others did not.
    fn on_written(&self, key: usize, now: Instant, count: u32) {
        let mut recent = self.recent();
        match recent.objectives.on_written(key, now, count) {
            TokenLatency::First(after) => {
                self.vllm.ttft.record(after, 1);
                recent.ttft.record(now, after, 1);
            }
            TokenLatency::Next(gap) => {
                let rest = u64::from(count.saturating_sub(1));
                self.own.delivered_tbt.record(gap, 1);
                self.own.delivered_tbt.record(Duration::ZERO, rest);
                recent.delivered_tbt.record(now, gap, 1);
                recent.delivered_tbt.record(now, Duration::ZERO, rest);
            }
        }
    }

    /// Records the prompt of a request whose first token has arrived.
    pub fn record_prompt(&self, tokens: u32) {
        self.vllm.prompt_tokens.inc_by(u64::from(tokens));
        self.vllm.prefix_queries.inc_by(u64::from(tokens));
    }

    /// Records a token of a request, `gap` after its last one. `None` for the first token.
    pub fn record_generated_token(&self, gap: Option<Duration>) {
        self.vllm.generation_tokens.inc();
        if let Some(gap) = gap {
            self.vllm.inter_token.record(gap, 1);
        }
    }

    /// Records how long after its due time a held token was written.
    pub fn record_write_lateness(&self, ns: u64) {
        self.own.write_lateness.record(Duration::from_nanos(ns), 1);
    }

    /// Records the end of a request: `stop`, `length`, `abort` (its client disconnected) or `error`.
    pub fn on_request_ended(&self, reason: &str, after: Duration) {
        let finished_reason = FINISH_REASONS.into_iter().find(|end| *end == reason).unwrap_or("error");
        self.vllm.success.get_or_create(&ByFinish { finished_reason }).inc();
        self.vllm.e2e.record(after, 1);
    }

    /// Records a finished step of the engine.
    pub fn on_step(&self, step: &StepOutput) {
        self.own.steps.inc();
        self.own.prefill_tokens.inc_by(u64::from(step.prefill_tokens));
        self.own.recomputed_tokens.inc_by(u64::from(step.recomputed_tokens));
        self.own.stall.inc_by(Duration::from_nanos(step.stall_ns).as_secs_f64());
        self.own.kv_stall.inc_by(Duration::from_nanos(step.kv_stall_ns).as_secs_f64());
        let (elapsed, decodes) = (Duration::from_nanos(step.elapsed_ns), u64::from(step.decodes));
        self.own.engine_tbt.record(elapsed, decodes);
        self.recent().engine_tbt.record(Instant::now(), elapsed, decodes);
    }

    /// Records an admitted request. `queued_ns` is `None` if the request ran before. Then its second prefix lookup does
    /// not count, as in vLLM.
    pub fn on_admitted(&self, queued_ns: Option<u64>, cached_tokens: u32) {
        let Some(queued_ns) = queued_ns else { return };
        self.vllm.queue_time.record(Duration::from_nanos(queued_ns), 1);
        self.vllm.prefix_hits.inc_by(u64::from(cached_tokens));
    }

    /// Records a preemption. Its cost counts when the request is recomputed ([`Metrics::on_step`]).
    pub fn on_preempted(&self, _dropped_tokens: u32) {
        self.vllm.preemptions.inc();
    }

    /// Records a plan with its proven gap.
    pub fn on_planned(&self, gap_permille: u32) {
        self.own.plan_gap.0.observe(f64::from(gap_permille) / 1000.0);
    }

    /// Records a wait for peers.
    pub fn record_wait(&self, span: &WaitSpan) {
        let time = Duration::from_nanos(span.ns());
        self.own.waits[span.kind].record(time, 1);
        self.recent().waits[span.kind].record(Instant::now(), time, 1);
    }

    /// Records the duration of a hand-over of the time slice from another tenant.
    pub fn record_handover(&self, time: Duration) {
        self.own.waits.handover.record(time, 1);
        self.recent().waits.handover.record(Instant::now(), time, 1);
    }

    /// Returns the durations of these waits since the start.
    pub fn wait_percentiles(&self, awaited: WaitKind) -> Percentiles {
        self.recent().waits[awaited].percentiles(Instant::now())
    }

    /// Returns the durations of time-slice hand-overs since the start.
    pub fn handover_percentiles(&self) -> Percentiles {
        self.recent().waits.handover.percentiles(Instant::now())
    }

    /// Records how long a request was held for a proxied engine.
    pub fn record_hold(&self, time: Duration) {
        self.own.held.record(time, 1);
    }

    /// Records a request that was sent to a proxied engine again.
    pub fn on_resent(&self) {
        self.own.resent.inc();
    }

    /// Records a token of a proxied engine, `gap` after the previous token of the same sequence.
    pub fn record_token_gap(&self, gap: Duration) {
        self.own.engine_tbt.record(gap, 1);
        self.recent().engine_tbt.record(Instant::now(), gap, 1);
    }

    /// Records the prompt and completion tokens of a request to a proxied engine.
    pub fn record_token_usage(&self, prompt_tokens: u32, tokens: u32) {
        self.vllm.prompt_tokens.inc_by(u64::from(prompt_tokens));
        self.vllm.generation_tokens.inc_by(u64::from(tokens));
    }

    /// Returns the prompt and completion tokens so far.
    pub fn tokens(&self) -> (u64, u64) {
        (self.vllm.prompt_tokens.get(), self.vllm.generation_tokens.get())
    }

    /// Sets whether the current files of these credentials can be used.
    pub fn set_credentials_valid(&self, credentials: &'static str, good: bool) {
        self.own.credentials.get_or_create(&ByCredentials { credentials }).set(i64::from(good));
    }

    /// Records a lost engine.
    pub fn on_engine_lost(&self) {
        self.own.engine_losses.inc();
    }

    /// Records that memory changed its owner `times` times for one reason, `bytes` in all.
    pub fn record_moves(&self, reason: &str, times: u64, bytes: u64) {
        let reason = self.bounded_reason(reason);
        self.own.moves.get_or_create(&reason).inc_by(times);
        self.own.moved_bytes.get_or_create(&reason).inc_by(bytes);
    }

    /// Sets the KV bytes copied concurrently with steps since the start.
    pub fn set_kv_copied(&self, total: KvCopyStats) {
        let grow = |counter: &Counter, total| counter.inner().fetch_max(total, Ordering::Relaxed);
        grow(&self.own.kv_fetched_bytes, total.fetched_bytes);
        grow(&self.own.kv_written_back_bytes, total.written_back_bytes);
    }

    /// Sets the number of requests whose prompts were computed with their KV in the host tier since the start, and the
    /// host-tier bytes that prompts may use.
    pub fn set_offloaded_prompts(&self, total: u64, buffer_bytes: u64) {
        self.own.offloaded_prompts.inner().fetch_max(total, Ordering::Relaxed);
        self.own.prompt_buffer_bytes.set(buffer_bytes.min(i64::MAX as u64) as i64);
    }

    fn bounded_reason(&self, reason: &str) -> ByReason {
        let known = &mut self.recent().move_reasons;
        if known.len() < MOVE_REASONS_MAX {
            known.insert(reason.to_owned());
        }
        ByReason { reason: if known.contains(reason) { reason.into() } else { "other".into() } }
    }
}

impl Metrics {
    /// Returns the recent times between a sequence's tokens as the engine generated them.
    pub fn engine_tbt(&self) -> Percentiles {
        self.recent().engine_tbt.percentiles(Instant::now())
    }

    /// Returns the recent times between a stream's tokens as they were written.
    pub fn delivered_tbt(&self) -> Percentiles {
        self.recent().delivered_tbt.percentiles(Instant::now())
    }

    /// Returns the recent times to the first token.
    pub fn ttft(&self) -> Percentiles {
        self.recent().ttft.percentiles(Instant::now())
    }

    /// Returns the streams for the state message. The gauges are read one after the other, so negative values are
    /// clamped.
    pub fn streams(&self) -> Streams {
        let open = u32::try_from(self.open_requests.get().max(0)).unwrap_or(u32::MAX);
        let deposit_tokens = u64::try_from(self.deposits.get()).unwrap_or(0);
        Streams { open, deposit_tokens }
    }

    /// Returns the objectives and the share of the window's tokens that met them. Tokens that are overdue now count as
    /// missed. A token after the first is in time within 110 % of its objective.
    pub fn slo(&self) -> SloState {
        let ns = |milliseconds: u32| u64::from(milliseconds) * 1_000_000;
        let (ttft, tbt) = self.attainments();
        SloState {
            ttft_target_ns: ns(self.slo.ttft_milliseconds),
            tbt_target_ns: ns(self.slo.tbt_milliseconds),
            window_seconds: self.slo.window_seconds,
            allowed_miss_permille: self.slo.allowed_miss_permille,
            ttft_attained_permille: ttft.permille,
            tbt_attained_permille: tbt.permille,
            ttft_overdue: ttft.overdue,
            tbt_overdue: tbt.overdue,
            ttft_window: ttft.window,
            tbt_window: tbt.window,
        }
    }

    /// Sets whether the tenant sleeps by command. Tokens that are late during the sleep count as `asleep`.
    pub fn set_asleep(&self, asleep: bool) {
        self.recent().objectives.set_asleep(asleep);
    }

    fn attainments(&self) -> (Attainment, Attainment) {
        self.recent().objectives.attainments(Instant::now())
    }

    /// Copies values from the state. Counters only grow: a state older than the last one changes none.
    pub fn set_state(&self, state: &State) {
        let level = |gauge: &Gauge, value: u64| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        level(&self.vllm.running, u64::from(state.queue.running));
        level(&self.vllm.waiting, u64::from(state.queue.waiting));
        self.vllm.kv_usage.set(f64::from(state.kv.utilisation_permille) / 1000.0);
        level(&self.own.capacity_bytes, state.memory.capacity_bytes);
        for (owner, bytes) in state.memory.owners.by_name() {
            level(&self.own.owner_bytes.get_or_create(&ByOwner { owner }), bytes);
        }
        level(&self.own.layers_remapped, u64::from(state.remap.alpha));
        level(&self.own.layers_lent, u64::from(state.activity.lent_layers));
        level(&self.own.link_bandwidth, state.figures.link_bytes_per_second.unwrap_or(0));
        self.own.copied_bytes.inner().fetch_max(state.figures.copied_bytes_total, Ordering::Relaxed);
        let tenant = &state.tenant;
        let (namespace, gpu, uuid) = (tenant.namespace.clone(), tenant.gpu.clone(), self.gpu_uuid());
        let labels = TenantLabels { namespace, tenant: tenant.name.clone(), gpu, uuid };
        if self.own.tenant.get(&labels).is_none() {
            // A join by this metric needs exactly one series.
            self.own.tenant.clear();
        }
        self.own.tenant.get_or_create(&labels).set(1);
    }

    /// Returns the GPU's UUID. Empty until a directive provides it.
    fn gpu_uuid(&self) -> String {
        let directive = self
            .directive
            .as_ref()
            .and_then(|directive| directive.borrow().as_ref()?.directive.gpu_uuid.clone());
        directive.unwrap_or_default()
    }

    /// Returns the metrics as text for Prometheus (OpenMetrics 1.0).
    pub fn encode(&self) -> String {
        let (ttft, tbt) = self.attainments();
        self.own.slo.update("ttft", &ttft);
        self.own.slo.update("tbt", &tbt);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("a String takes all text");
        text
    }
}

impl RecentStats {
    fn new(slo: &SloConfig) -> Self {
        let recent = || SlidingPercentiles::new(Instant::now());
        RecentStats {
            engine_tbt: recent(),
            delivered_tbt: recent(),
            ttft: recent(),
            objectives: Objectives::new(Instant::now(), slo),
            move_reasons: BTreeSet::new(),
            waits: ByWaitKind::from_fn(|| SlidingPercentiles::cumulative(Instant::now())),
        }
    }
}

#[cfg(test)]
mod tests;

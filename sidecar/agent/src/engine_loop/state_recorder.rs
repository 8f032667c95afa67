//! Builds the state message and records the memory moves that it lists.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use sluice_memory::DeviceMemory;
use sluice_policy::chunk_table::Owner;
use sluice_policy::ids::LayerId;
use sluice_policy::memory_manager::{MemoryManager, SleepState};
use sluice_policy::reason::Reason;
use sluice_policy::step_model::Layout;
use sluice_ports::Memory;
use sluice_scheduler::{Driver, Scheduler, Snapshot};
use sluice_wire::state::{
    EngineState, Figures, KvState, MAX_MOVES, MemoryState, Move, OwnerBytes, Phase, Queue, ReasonCount,
    RemapState, Residency, Tenant,
};

use super::backend::EngineCompute;
use crate::clock::unix_ms;
use crate::metrics::Metrics;

/// History for the state message: times, counters and the last memory moves.
#[derive(Debug)]
pub struct StateRecorder {
    tenant: Tenant,
    policy: String,
    phase: Phase,
    phase_since: SystemTime,
    idle_since: Option<SystemTime>,
    /// Set while the tenant sleeps because of a command.
    is_sleep_ordered: bool,
    /// Time without requests after which the tenant counts as idle.
    idle_after: Duration,
    engine_since: Option<SystemTime>,
    engine_lost_at: Option<SystemTime>,
    inactive_since: Option<SystemTime>,
    last_used: Option<SystemTime>,
    resident_since: Option<SystemTime>,
    steps: u64,
    engine_restarts: u64,
    moving: Vec<LayerId>,
    /// Per reason: how often it had applied at the last observation, and the bytes moved for it.
    seen_counts: Vec<u64>,
    seen_bytes: Vec<u64>,
    moves: VecDeque<Move>,
    /// How often the last move's reason has applied in a row. 0 if its entry takes no repeats.
    repeats: u64,
}

/// Returns the phase of a tenant that can serve and has had no request since `idle_since`.
fn idle_phase(idle_since: Option<SystemTime>, now: SystemTime, idle_after: Duration) -> Phase {
    // If the wall clock was set back, the tenant counts as just idle.
    let idle_for = |since| now.duration_since(since).unwrap_or_default();
    let idle = idle_since.is_some_and(|since| idle_for(since) >= idle_after);
    if idle { Phase::Idle } else { Phase::Active }
}

fn is_thought(label: &str) -> bool {
    Reason::ALL.iter().any(|reason| reason.is_thought() && reason.label() == label)
}

/// Whether a reason decides only which layers move. Each such decision has its own entry, which states its result.
const fn is_layout_reason(reason: Reason) -> bool {
    matches!(reason, Reason::RemapOwn | Reason::RemapStalls | Reason::Revert | Reason::Forced)
}

/// Sets `known` to `now` and returns the increase.
const fn delta(known: &mut u64, now: u64) -> u64 {
    now - std::mem::replace(known, now)
}

impl StateRecorder {
    /// Creates a recorder without moves.
    pub fn new(tenant: Tenant, policy: String) -> Self {
        StateRecorder {
            tenant,
            policy,
            phase: Phase::Loading,
            phase_since: SystemTime::now(),
            idle_since: None,
            is_sleep_ordered: false,
            idle_after: Duration::ZERO,
            engine_since: None,
            inactive_since: None,
            last_used: None,
            resident_since: None,
            steps: 0,
            engine_lost_at: None,
            engine_restarts: 0,
            moving: Vec::new(),
            seen_counts: vec![0; Reason::ALL.len()],
            seen_bytes: vec![0; Reason::ALL.len()],
            moves: VecDeque::new(),
            repeats: 0,
        }
    }

    /// Returns since when the tenant has been inactive, in milliseconds since the Unix epoch.
    pub fn inactive_since_unix_ms(&self) -> Option<u64> {
        self.inactive_since.map(unix_ms)
    }

    /// Returns the time of the last step, in milliseconds since the Unix epoch.
    pub fn last_used_unix_ms(&self) -> Option<u64> {
        self.last_used.map(unix_ms)
    }

    /// Returns since when all layers have memory, in milliseconds since the Unix epoch.
    pub fn resident_since_unix_ms(&self) -> Option<u64> {
        self.resident_since.map(unix_ms)
    }

    fn observe_activity(&mut self, core: &Scheduler, snapshot: &Snapshot) {
        let now = SystemTime::now();
        let active = core.holds_slice() && snapshot.running + snapshot.waiting > 0;
        self.inactive_since = if active { None } else { self.inactive_since.or(Some(now)) };
        if snapshot.counters.steps != self.steps {
            (self.steps, self.last_used) = (snapshot.counters.steps, Some(now));
        }
        let whole = core.manager().status().is_loaded() && core.manager().status().absent_layers() == 0;
        self.resident_since = if whole { self.resident_since.or(Some(now)) } else { None };
    }

    /// Records that an engine attached.
    pub fn on_engine_attached(&mut self, at: SystemTime) {
        self.engine_since = Some(at);
    }

    /// Records that the engine was lost.
    pub fn on_engine_lost(&mut self, at: SystemTime) {
        (self.engine_since, self.engine_lost_at) = (None, Some(at));
        self.engine_restarts += 1;
    }

    /// Sets the time without requests after which the tenant counts as idle.
    pub fn set_idle_after(&mut self, idle_after: Duration) {
        self.idle_after = idle_after;
    }

    /// Records the changes since the last call.
    pub fn observe(&mut self, core: &Scheduler, metrics: &Metrics) {
        let snapshot = core.snapshot();
        self.observe_phase(&snapshot, core.manager());
        self.observe_activity(core, &snapshot);
        // A directive may have changed the policy.
        let policy = core.manager().params().policy.name();
        if self.policy != policy {
            policy.clone_into(&mut self.policy);
        }
        let asleep = snapshot.is_sleep_requested && snapshot.sleep_state != SleepState::Awake;
        if asleep != std::mem::replace(&mut self.is_sleep_ordered, asleep) {
            metrics.set_asleep(asleep);
        }
        self.observe_moves(core.manager(), metrics);
    }

    fn observe_phase(&mut self, snapshot: &Snapshot, manager: &MemoryManager) {
        let busy = snapshot.running + snapshot.waiting > 0;
        let now = SystemTime::now();
        self.idle_since = if busy { None } else { self.idle_since.or(Some(now)) };
        let phase = match (manager.status().is_loaded(), snapshot.engine_attached) {
            _ if manager.status().failed().is_some() => Phase::Failed,
            (true, false) => Phase::EngineLost,
            (false, _) => Phase::Loading,
            (true, true) if snapshot.sleep_state == SleepState::Asleep => Phase::Hibernated,
            (true, true) if snapshot.sleep_state == SleepState::Waking => Phase::Waking,
            (true, true) => idle_phase(self.idle_since, now, self.idle_after),
        };
        if phase != self.phase {
            (self.phase, self.phase_since) = (phase, now);
        }
    }

    /// Records every reason that has applied since the last call, except [`Reason::Stream`], and all memory moved for
    /// it.
    fn observe_moves(&mut self, manager: &MemoryManager, metrics: &Metrics) {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            let times = delta(&mut self.seen_counts[index], manager.figures().counted(*reason));
            let bytes = delta(&mut self.seen_bytes[index], manager.figures().moved_bytes(*reason));
            if *reason == Reason::Stream || (times, bytes) == (0, 0) {
                continue;
            }
            metrics.record_moves(reason.label(), times, bytes);
            self.record_move(*reason, (times, bytes), manager.figures().layout());
        }
        if manager.figures().layout().moving != self.moving {
            self.on_relayout(manager.figures().layout_reason(), manager.figures().layout());
        }
    }

    /// Records that `reason` has applied `times` times since the last call, and that `bytes` changed their owner for
    /// it. If `times` is 0, the bytes belong to an earlier decision.
    fn record_move(&mut self, reason: Reason, (times, bytes): (u64, u64), layout: &Layout) {
        if times == 0 {
            self.last_move_of(reason).into_iter().for_each(|decided| decided.bytes += bytes);
        } else if reason.is_refusal() {
            tracing::debug!(reason = reason.label(), times, "answered a request for a loan");
        } else {
            self.push_move(reason, times, layout, bytes);
        }
    }

    fn last_move_of(&mut self, reason: Reason) -> Option<&mut Move> {
        self.moves.iter_mut().rfind(|moved| moved.reason == reason.label())
    }

    /// Records a new layout: the move that led to it gets the moving layers, and the layout if the reason is a layout
    /// reason.
    fn on_relayout(&mut self, reason: Reason, layout: &Layout) {
        self.moving.clone_from(&layout.moving);
        let Some(moved) = self.last_move_of(reason) else { return };
        moved.layers = layout.moving.iter().map(|layer| layer.0).collect();
        if is_layout_reason(reason) {
            moved.detail = format!("alpha {}, beta {}", layout.alpha(), layout.beta);
        }
        tracing::info!(reason = moved.reason, detail = moved.detail, bytes = moved.bytes, "memory moved");
    }

    /// Adds a move. A repeated reason extends the last entry, so that a run of evictions does not displace all other
    /// moves.
    fn push_move(&mut self, reason: Reason, times: u64, layout: &Layout, bytes: u64) {
        tracing::debug!(reason = reason.label(), times, bytes, "memory decision");
        let at_unix_ms = unix_ms(SystemTime::now());
        if let Some(last) =
            self.moves.back_mut().filter(|last| last.reason == reason.label() && self.repeats > 0)
        {
            self.repeats += times;
            last.at_unix_ms = at_unix_ms;
            last.detail = format_times(self.repeats);
            last.bytes += bytes;
            return;
        }
        if self.moves.len() == MAX_MOVES {
            // Decisions that moved no memory are dropped first.
            let thought = self.moves.iter().position(|event| is_thought(&event.reason));
            self.moves.remove(thought.unwrap_or(0));
        }
        self.repeats = if is_layout_reason(reason) { 0 } else { times };
        let layers = layout.moving.iter().map(|layer| layer.0).collect();
        let (reason, detail) = (reason.label().into(), format_times(times));
        self.moves.push_back(Move { at_unix_ms, reason, detail, layers, bytes });
    }
}

fn format_times(times: u64) -> String {
    if times == 1 { "once".into() } else { format!("{times} times") }
}

/// Builds the current state message.
pub fn build_state(
    driver: &mut Driver<DeviceMemory, EngineCompute>,
    diary: &StateRecorder,
    metrics: &Metrics,
) -> sluice_wire::State {
    let used_bytes = driver.memory().used_bytes();
    let link_messages_total = driver.compute().messages();
    let core = driver.scheduler();
    let (manager, snapshot) = (core.manager(), core.snapshot());
    sluice_wire::State {
        at_unix_ms: unix_ms(SystemTime::now()),
        tenant: diary.tenant.clone(),
        phase: diary.phase,
        phase_since_unix_ms: unix_ms(diary.phase_since),
        sleep_ordered: snapshot.is_sleep_requested,
        idle_since_unix_ms: diary.idle_since.map(unix_ms),
        policy: diary.policy.clone(),
        remap: remap(manager),
        layers: layers(manager),
        memory: memory(manager, used_bytes),
        kv: kv(manager),
        queue: Queue { waiting: snapshot.waiting, running: snapshot.running, preempted: snapshot.preempted },
        streams: metrics.streams(),
        figures: Figures { link_messages_total, ..figures(manager, &snapshot, metrics) },
        slo: metrics.slo(),
        engine: engine(manager, &snapshot, diary),
        moves: diary.moves.iter().cloned().collect(),
        ..sluice_wire::State::default()
    }
}

fn remap(manager: &MemoryManager) -> RemapState {
    let layout = manager.figures().layout();
    RemapState {
        alpha: layout.alpha(),
        beta: layout.beta,
        moving_layers: layout.moving.iter().map(|layer| layer.0).collect(),
        cap_layers: manager.figures().cap_layers(),
    }
}

fn layers(manager: &MemoryManager) -> Vec<Residency> {
    let one = |r: sluice_policy::memory_manager::Residency| match (r.slot, r.present) {
        (Some(slot), _) => Residency::Moving { slot: slot.0 },
        (None, true) => Residency::Resident,
        (None, false) => Residency::Loading,
    };
    manager.figures().residency().into_iter().map(one).collect()
}

/// Returns the memory by owner from the chunk table. The free bytes come from the device, so the sum balances only if
/// both count the same chunks, except those in transit.
fn memory(manager: &MemoryManager, used_bytes: u64) -> MemoryState {
    let (ledger, chunk_bytes) = (manager.figures().ledger(), manager.geometry().chunk_bytes);
    let mut owners = OwnerBytes::default();
    for (owner, count) in ledger.counts() {
        let bytes = u64::from(count) * chunk_bytes;
        *match owner {
            Owner::Free => &mut owners.free_bytes,
            Owner::WeightsGlobal => &mut owners.weights_global_bytes,
            Owner::WeightsLayer(_) => &mut owners.weights_layers_bytes,
            Owner::Slot(_) => &mut owners.slots_bytes,
            Owner::Kv => &mut owners.kv_bytes,
            Owner::Activation => &mut owners.activation_bytes,
            Owner::Staging => &mut owners.staging_bytes,
            Owner::Earmarked(_) => &mut owners.earmarked_bytes,
        } += bytes;
    }
    // On a shared GPU, the capacity is the tenant's current budget.
    let capacity_bytes = u64::from(manager.loans().budget_chunks().min(ledger.capacity())) * chunk_bytes;
    owners.free_bytes += capacity_bytes.saturating_sub(used_bytes);
    // Host memory has no driver and no context.
    let overhead_bytes = 0;
    let in_transit_bytes = u64::from(manager.loans().moving_chunks()) * chunk_bytes;
    MemoryState { capacity_bytes, chunk_bytes, overhead_bytes, owners, in_transit_bytes }
}

fn kv(manager: &MemoryManager) -> KvState {
    let (counts, geometry) = (manager.figures().kv_counts(), manager.geometry());
    let cached = u64::from(counts.idle_kv_blocks) * u64::from(geometry.layers());
    let (total, held) = (u64::from(counts.total_layer_blocks), u64::from(counts.used_layer_blocks));
    let used = held.saturating_sub(cached);
    KvState {
        layer_blocks_total: total,
        layer_blocks_used: used,
        layer_blocks_cached: cached,
        // Includes blocks of draining chunks, which cannot be allocated any more.
        layer_blocks_free: total - held,
        layer_block_bytes: geometry.layer_block_bytes,
        draining_chunks: counts.draining_kv_chunks,
        fragmentation_permille: counts.fragmentation_permille,
        utilisation_permille: (used * 1000).checked_div(total).unwrap_or(0) as u32,
        host_layer_blocks_used: u64::from(counts.host_kv_blocks) * u64::from(geometry.layers()),
        host_layer_blocks_limit: u64::from(counts.host_limit_kv_blocks) * u64::from(geometry.layers()),
    }
}

fn figures(manager: &MemoryManager, snapshot: &Snapshot, metrics: &Metrics) -> Figures {
    let (measures, counters) = (manager.timing().step_stats(), &snapshot.counters);
    let mean =
        |times: Vec<u64>| (times.iter().sum::<u64>()).checked_div(times.len() as u64).filter(|ns| *ns > 0);
    let reasons = Reason::ALL.iter().map(|reason| (reason.label(), manager.figures().counted(*reason)));
    let events = reasons.filter(|(_, count)| *count > 0);
    Figures {
        engine_tbt: metrics.engine_tbt(),
        delivered_tbt: metrics.delivered_tbt(),
        ttft: metrics.ttft(),
        prefill_tokens_total: counters.prefill_tokens,
        decode_tokens_total: counters.decode_tokens,
        recomputed_tokens_total: counters.recomputed_tokens,
        preemptions_total: counters.preemptions,
        pauses_total: counters.pauses,
        kv_stall_ns_total: counters.kv_stall_ns,
        steps_total: counters.steps,
        moves_total: events.map(|(reason, count)| ReasonCount { reason: reason.into(), count }).collect(),
        copied_bytes_total: measures.copied_bytes(),
        link_bytes_per_second: Some(measures.link_bytes_per_second()),
        t_transfer_ns: mean(measures.transfer_ns()),
        t_compute_ns: mean(measures.compute_ns()),
        r_permille: measures.ratio_permille(),
        ..Figures::default()
    }
}

fn engine(manager: &MemoryManager, snapshot: &Snapshot, diary: &StateRecorder) -> EngineState {
    EngineState {
        pid: snapshot.engine_pid,
        restarts: diary.engine_restarts,
        attempt: diary.engine_restarts + u64::from(snapshot.engine_attached),
        up_since_unix_ms: diary.engine_since.map(unix_ms),
        lost_unix_ms: diary.engine_lost_at.map(unix_ms),
        failure: manager.status().failed().map(|failure| failure.to_string()),
        ..EngineState::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(moving: &[u16]) -> Layout {
        Layout { moving: moving.iter().map(|layer| LayerId(*layer)).collect(), beta: 1 }
    }

    /// Returns reason, detail, layers and bytes of each move.
    fn moves_of(diary: &StateRecorder) -> Vec<(&str, &str, &[u16], u64)> {
        let all = diary.moves.iter();
        all.map(|one| (&*one.reason, &*one.detail, &*one.layers, one.bytes)).collect()
    }

    #[test]
    fn layout_and_bytes_belong_to_their_decision() {
        let (mut diary, resident) =
            (StateRecorder::new(Tenant::default(), String::new()), Layout::resident());
        diary.record_move(Reason::RemapOwn, (1, 0), &resident);
        diary.record_move(Reason::FreeChunks, (1, 64), &resident);
        diary.record_move(Reason::RemapOwn, (0, 256), &layout(&[1, 3]));
        diary.on_relayout(Reason::RemapOwn, &layout(&[1, 3]));
        let remapped = ("remap_own", "alpha 1, beta 1", &[1, 3][..], 256);
        assert_eq!(moves_of(&diary), [remapped, ("free_chunks", "once", &[], 64)]);
        diary.record_move(Reason::Hibernate, (1, 0), &layout(&[1, 3]));
        diary.on_relayout(Reason::Hibernate, &resident);
        diary.record_move(Reason::Hibernate, (2, 4096), &resident);
        assert_eq!(moves_of(&diary)[0], remapped);
        assert_eq!(
            moves_of(&diary)[2],
            ("hibernate", "3 times", &[][..], 4096),
            "no word of layers that all have gone"
        );
    }

    #[test]
    fn late_bytes_of_expired_decision_are_not_misattributed() {
        let mut diary = StateRecorder::new(Tenant::default(), String::new());
        diary.record_move(Reason::Borrow, (1, 8), &Layout::resident());
        diary.record_move(Reason::Lend, (0, 16), &Layout::resident());
        assert_eq!(moves_of(&diary), [("borrow", "once", &[][..], 8)]);
    }

    #[test]
    fn tenant_is_idle_after_directive_time() {
        let (after, now) = (Duration::from_secs(30), SystemTime::now());
        let phase = |idle_for: Option<u64>, after| {
            idle_phase(idle_for.map(|seconds| now - Duration::from_secs(seconds)), now, after)
        };
        assert_eq!(phase(None, after), Phase::Active, "it has requests");
        assert_eq!(phase(Some(29), after), Phase::Active);
        assert_eq!(phase(Some(30), after), Phase::Idle);
        assert_eq!(phase(Some(0), Duration::ZERO), Phase::Idle, "no time was given");
        let set_back = idle_phase(Some(now + after), now, after);
        assert_eq!(set_back, Phase::Active);
    }
}

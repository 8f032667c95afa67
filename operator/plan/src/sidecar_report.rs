//! Converts sidecar states to the reports that decisions and statuses need.

use sluice_types::Quantity;
use sluice_types::tenant::{SlotState, TenantMemoryStatus};
use sluice_wire::state::{Phase, State, TenantReport, TimeSliceState};

use crate::observed::{LateHolder, SidecarReport};

/// Prefixes of the reasons for which layers are evicted or restored.
const REMAP_REASONS: [&str; 2] = ["remap", "revert"];

/// A holder less than this past its deadline, milliseconds, is about to lose the time slice and is not reported.
const LATE_HOLDER_MS: u64 = 1_000;

/// Returns the reports of a GPU's tenants, by name, without tenants that did not answer: their last report stays
/// valid.
pub fn reports(tenants: &[TenantReport]) -> impl Iterator<Item = (&str, SidecarReport)> {
    tenants.iter().filter_map(|tenant| match tenant {
        TenantReport::State(state) => Some((state.tenant.name.as_str(), report(state))),
        TenantReport::Unreachable { .. } => None,
    })
}

/// Returns the floor that a tenant has determined, bytes; `None` = not known yet.
pub fn floor_bytes(state: &State) -> Option<u64> {
    state.peers.as_ref().map(|place| place.floor_bytes).filter(|bytes| *bytes > 0)
}

/// Returns the device memory that a tenant owns, bytes: all that is not free.
pub fn owned_bytes(state: &State) -> u64 {
    let owners = &state.memory.owners;
    owners.total().unwrap_or(u64::MAX).saturating_sub(owners.free_bytes)
}

/// Converts the state of a slot's sidecar.
pub fn report(state: &State) -> SidecarReport {
    SidecarReport {
        state: slot_state(state.phase),
        wait_reason: wait_reason(state),
        failure: state.engine.failure.clone(),
        engine_lost_ms: state.engine.lost_unix_ms.and_then(|at| i64::try_from(at).ok()),
        engine_hang: state.engine.last_hang.clone(),
        sidecar_hangs: state.sidecar_hangs.clone(),
        late_holder: late_holder(state),
        takeover: time_slice(state).and_then(|slice| slice.last_takeover.clone()),
        skip: time_slice(state).and_then(|slice| slice.last_skip.clone()),
        idle_since: state.idle_since_unix_ms.map(seconds),
        last_remap: last_remap(state),
        activity: state.activity.clone(),
        memory: memory_status(state),
    }
}

fn time_slice(state: &State) -> Option<&TimeSliceState> {
    state.peers.as_ref()?.time_slice.as_ref()
}

fn late_holder(state: &State) -> Option<LateHolder> {
    let slice = time_slice(state).filter(|slice| slice.holder_overdue_ms >= LATE_HOLDER_MS)?;
    let since_ms = i64::try_from(state.at_unix_ms.saturating_sub(slice.holder_overdue_ms)).ok()?;
    Some(LateHolder { name: slice.holder.clone()?, since_ms })
}

fn slot_state(phase: Phase) -> SlotState {
    match phase {
        Phase::Loading => SlotState::Loading,
        Phase::Idle => SlotState::Idle,
        Phase::Hibernated => SlotState::Hibernated,
        // A waking tenant has a request; one that has lost its engine, drains or failed may still have requests.
        Phase::Active | Phase::Waking | Phase::EngineLost | Phase::Draining | Phase::Failed => {
            SlotState::Active
        }
    }
}

/// Returns what a loading tenant waits for. A serving tenant may wait for more of its share, which is no error.
fn wait_reason(state: &State) -> Option<String> {
    let place = state.peers.as_ref().filter(|_| state.phase == Phase::Loading)?;
    place.waits_for.clone()
}

fn last_remap(state: &State) -> Option<i64> {
    let moves =
        state.moves.iter().filter(|one| REMAP_REASONS.iter().any(|begin| one.reason.starts_with(begin)));
    moves.map(|one| one.at_unix_ms).max().map(seconds)
}

fn memory_status(state: &State) -> TenantMemoryStatus {
    let owners = &state.memory.owners;
    let sum = |parts: &[u64]| parts.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
    let weights = [owners.weights_global_bytes, owners.weights_layers_bytes, owners.slots_bytes];
    TenantMemoryStatus {
        weights: Quantity::from_bytes(sum(&weights)),
        kv: Quantity::from_bytes(owners.kv_bytes),
        host_kv: Quantity::from_bytes(
            state.kv.host_layer_blocks_used.saturating_mul(state.kv.layer_block_bytes),
        ),
        remapped_layers: i32::from(state.remap.alpha) + i32::from(state.activity.lent_layers),
    }
}

fn seconds(unix_ms: u64) -> i64 {
    i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX)
}

//! Conversion of sidecar states for statuses.

use sluice_plan::sidecar_report::{floor_bytes, owned_bytes, report, reports};
use sluice_types::tenant::SlotState;
use sluice_wire::State;
use sluice_wire::state::{Phase, SharingState, TenantReport};

const GOLDEN: &str = include_str!("../../../crds/wire/tests/golden/state-v2.json");

fn state() -> State {
    State::from_json(GOLDEN.as_bytes()).expect("golden")
}

#[test]
fn state_is_converted_to_slot_report() {
    let found = report(&state());
    assert_eq!(
        (found.state, found.wait_reason, found.failure),
        (SlotState::Active, None, state().engine.failure)
    );
    let memory = found.memory;
    assert_eq!(memory.weights.bytes(), 8_388_608 + 16_777_216 + 8_388_608);
    assert_eq!((memory.kv.bytes(), memory.host_kv.bytes()), (50_331_648, 96 * 8192));
    assert_eq!(memory.remapped_layers, 1 + 3, "its own slots' and those that peers have");
    assert_eq!(found.last_remap, Some(1_764_000_030));
    assert_eq!(found.idle_since, state().idle_since_unix_ms.map(|ms| ms as i64 / 1000));
}

#[test]
fn every_phase_is_a_state_of_a_slot() {
    let of = |phase| report(&State { phase, ..state() }).state;
    let phases =
        [Phase::Loading, Phase::Idle, Phase::Hibernated, Phase::Waking, Phase::EngineLost, Phase::Failed];
    let states =
        [SlotState::Loading, SlotState::Idle, SlotState::Hibernated, SlotState::Active, SlotState::Active];
    assert_eq!(phases.map(of)[..5], states);
    assert_eq!(of(Phase::Failed), SlotState::Active);
}

#[test]
fn only_loading_tenant_waits_for_memory() {
    let waits_for = Some("5 of the 9 bytes of its floor, which peers hold".to_owned());
    let place = Some(SharingState { waits_for: waits_for.clone(), ..SharingState::default() });
    let of = |phase| report(&State { phase, peers: place.clone(), ..state() }).wait_reason;
    assert_eq!((of(Phase::Loading), of(Phase::Active)), (waits_for, None));
}

#[test]
fn floor_is_reported_while_waiting_and_while_serving() {
    let place = Some(SharingState { floor_bytes: 12, ..SharingState::default() });
    for phase in [Phase::Loading, Phase::Active] {
        assert_eq!(floor_bytes(&State { phase, peers: place.clone(), ..state() }), Some(12));
        assert_eq!(floor_bytes(&State { phase, peers: None, ..state() }), None);
    }
}

#[test]
fn all_memory_that_is_not_free_is_owned() {
    let owners = &state().memory.owners;
    assert_eq!(
        owned_bytes(&state()),
        state().memory.capacity_bytes - state().memory.overhead_bytes - owners.free_bytes
    );
    assert!(
        owners.free_bytes > 0 && owners.activation_bytes + owners.staging_bytes > 0,
        "the golden state has them"
    );
}

#[test]
fn unreachable_tenant_has_no_report() {
    let gone =
        TenantReport::Unreachable { namespace: "ns".into(), name: "gone".into(), reason: "late".into() };
    let all = [TenantReport::State(Box::new(state())), gone];
    let names: Vec<_> = reports(&all).map(|(name, _)| name.to_owned()).collect();
    assert_eq!(names, [state().tenant.name]);
}

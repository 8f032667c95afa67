//! What sidecars tell, as statuses need it.

use sluice_plan::told::{floor_bytes, owned_bytes, report, reports};
use sluice_types::tenant::SlotState;
use sluice_wire::State;
use sluice_wire::state::{Neighbourhood, Phase, TenantReport};

const GOLDEN: &str = include_str!("../../../crds/wire/tests/golden/state-v1.json");

fn state() -> State {
    State::from_json(GOLDEN.as_bytes()).expect("golden")
}

#[test]
fn a_state_becomes_what_a_slots_status_says() {
    let told = report(&state());
    assert_eq!((told.state, told.waits, told.failure), (SlotState::Active, None, state().engine.failure));
    let memory = told.memory;
    assert_eq!(memory.weights.bytes(), 8_388_608 + 16_777_216 + 8_388_608);
    assert_eq!((memory.kv.bytes(), memory.host_kv.bytes()), (50_331_648, 96 * 8192));
    assert_eq!(memory.remapped_layers, 1 + 3, "its own slots' and those that neighbours have");
    assert_eq!(told.last_remap, Some(1_764_000_030));
    assert_eq!(told.idle_since, state().idle_since_unix_ms.map(|ms| ms as i64 / 1000));
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
fn only_who_is_loading_waits_for_memory() {
    let waits_for = Some("5 of the 9 bytes of its floor, which neighbours hold".to_owned());
    let place = Some(Neighbourhood { waits_for: waits_for.clone(), ..Neighbourhood::default() });
    let of = |phase| report(&State { phase, neighbourhood: place.clone(), ..state() }).waits;
    assert_eq!((of(Phase::Loading), of(Phase::Active)), (waits_for, None));
}

#[test]
fn a_floor_is_told_by_who_waits_and_by_who_serves() {
    let place = Some(Neighbourhood { floor_bytes: 12, ..Neighbourhood::default() });
    for phase in [Phase::Loading, Phase::Active] {
        assert_eq!(floor_bytes(&State { phase, neighbourhood: place.clone(), ..state() }), Some(12));
        assert_eq!(floor_bytes(&State { phase, neighbourhood: None, ..state() }), None);
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
        "the golden state tells them"
    );
}

#[test]
fn who_gave_no_answer_tells_nothing() {
    let gone =
        TenantReport::Unreachable { namespace: "ns".into(), name: "gone".into(), reason: "late".into() };
    let all = [TenantReport::State(Box::new(state())), gone];
    let names: Vec<_> = reports(&all).map(|(name, _)| name.to_owned()).collect();
    assert_eq!(names, [state().tenant.name]);
}

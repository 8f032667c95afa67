//! Shares of a GPU, from planned and reported floors.

use serde_json::json;
use sluice_plan::observed::{ObservedPool, ObservedSlot};
use sluice_plan::pool_plan::plan;
use sluice_types::ModelTenant;

use super::fixtures::{self, MIB, host_pool, inspected, placed_and_ready, plan_context};

/// Returns the shares of equal tenants, bytes, on a GPU of `capacity` bytes, whose sidecars report these floors, in
/// any order.
fn shares_for_floors(capacity: u64, floors: &[u64]) -> Vec<u64> {
    let pool = host_pool();
    let mut seen = placed_and_ready(&pool);
    seen.claims[0].device.as_mut().unwrap().capacity_bytes = Some(capacity);
    let names: Vec<String> = (0..floors.len()).map(|at| format!("t{at}")).collect();
    let tenant = |name: &String| {
        let mut tenant = inspected();
        tenant.metadata.name = Some(name.clone());
        tenant
    };
    let tenants: Vec<ModelTenant> = names.iter().map(tenant).collect();
    let slot = |name: &String| ObservedSlot { tenant: name.clone(), index: 0, claim: "p-chat-0-e4".into() };
    seen.slots = names.iter().map(slot).collect();
    let tells = |(name, floor): (&String, &u64)| ((name.clone(), "p-chat-0".to_owned()), *floor);
    seen.floors = names.iter().zip(floors).map(tells).collect();
    let tenants: Vec<&ModelTenant> = tenants.iter().collect();
    let plan = plan(&plan_context(&pool, &tenants, &seen));
    assert!(plan.tenants.iter().all(|tenant| tenant.slots[0].is_share_assigned), "{:?}", plan.tenants);
    plan.tenants.iter().map(|tenant| tenant.slots[0].share_bytes).collect()
}

/// Returns the shares of two tenants on a GPU of 96 MiB, all in MiB.
fn shares_of_two(floors: [u64; 2]) -> [u64; 2] {
    let dealt = shares_for_floors(96 * MIB, &floors.map(|floor| floor * MIB));
    [dealt[0] / MIB, dealt[1] / MIB]
}

#[test]
fn context_memory_is_not_assigned_to_any_share() {
    /// Chunk of a CUDA device, MiB.
    const CHUNK: u64 = 16;
    let mut tenant = inspected();
    tenant.spec.engine =
        serde_json::from_value(json!({"kind": "Vllm", "image": "example.org/vllm:1"})).unwrap();
    let dealt = |reserve: &str| {
        let device = json!({"contextReserve": reserve});
        let spec = json!({"deviceClassName": "gpu.nvidia.com", "device": device, "hostMemoryPerGPU": "64Gi"});
        let pool = fixtures::pool(spec);
        let mut seen = placed_and_ready(&pool);
        seen.claims[0].device.as_mut().unwrap().capacity_bytes = Some(96 * CHUNK * MIB);
        let tenants = [&tenant];
        let plan = plan(&plan_context(&pool, &tenants, &seen));
        let slot = &plan.tenants[0].slots[0];
        assert!(slot.is_share_assigned, "{slot:?}");
        slot.share_bytes / MIB / CHUNK
    };
    assert_eq!((dealt("128Mi"), dealt("256Mi")), (88, 80), "of 96 chunks");
}

#[test]
fn directive_carries_reported_floors_of_peers() {
    let pool = host_pool();
    let mut seen = placed_and_ready(&pool);
    let tenant = inspected();
    let floor =
        |seen: &ObservedPool| plan(&plan_context(&pool, &[&tenant], seen)).tenants[0].slots[0].floor_bytes;
    let foreseen = floor(&seen);
    let chunk = 64 << 10;
    seen.floors.insert(("t".to_owned(), "p-chat-0".to_owned()), foreseen + chunk);
    assert_eq!(floor(&seen), foreseen + chunk);
    seen.floors.insert(("t".to_owned(), "p-chat-0".to_owned()), 1);
    assert_eq!(floor(&seen), foreseen);
}

#[test]
fn reported_floors_are_assigned() {
    assert_eq!(shares_of_two([0, 0]), [48, 48], "what was foreseen is less");
    assert_eq!((shares_of_two([60, 20]), shares_of_two([20, 60])), ([60, 36], [36, 60]));
    assert_eq!(shares_of_two([90, 90]), [48, 48], "as far as it goes");
    assert_eq!(shares_of_two([96, 0]), shares_of_two([1 << 30, 0]), "whatever it says");
}

#[test]
fn reported_floor_does_not_reduce_planned_floor_of_others() {
    let (pool, tenant) = (host_pool(), inspected());
    let foreseen =
        plan(&plan_context(&pool, &[&tenant], &placed_and_ready(&pool))).tenants[0].slots[0].floor_bytes;
    assert!(foreseen > 0);
    for capacity in [96 * MIB, 96 * MIB + 1000] {
        for floors in [[u64::MAX, 0, 0], [60 * MIB, 60 * MIB, 0], [u64::MAX, 60 * MIB, u64::MAX]] {
            let dealt = shares_for_floors(capacity, &floors);
            assert!(
                dealt.iter().all(|share| *share >= foreseen),
                "{foreseen} each, of {capacity}: {dealt:?}"
            );
            assert!(dealt.iter().sum::<u64>() <= capacity, "{capacity}: {dealt:?}");
        }
    }
}

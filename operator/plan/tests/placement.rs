//! Placement, case by case.

use std::collections::BTreeMap;

use serde_json::json;
use sluice_plan::gpu::{Gpu, GpuSizes, gpus};
use sluice_plan::gpu_settings::GpuSettings;
use sluice_plan::placement::{Slot, SmallerFloor, UnplacedReason, place};
use sluice_plan::resource_demand::Demand;
use sluice_types::GpuPool;
use sluice_types::pool::{Policy, Sharing, SharingMode};

use super::fixtures::{first_gpu, host_pool, tenant};

pub fn gpu(name: &str, group: &str, mode: SharingMode) -> Gpu {
    let sharing = Sharing { mode, ..Sharing::default() };
    let settings = GpuSettings { sharing, ..first_gpu(&host_pool()).settings };
    Gpu {
        name: name.into(),
        group: group.into(),
        settings,
        capacity_bytes: Some(100),
        last_known_bytes: None,
        host_bytes: 1000,
        node_bytes: None,
        is_draining: false,
    }
}

fn temporal_gpu(name: &str) -> Gpu {
    gpu(name, "chat", SharingMode::Temporal)
}

pub fn takes(floor_bytes: u64, host_bytes: u64) -> Demand {
    Demand { floor_bytes, host_bytes, ..Demand::default() }
}

pub fn slot(tenant: &str, floor_bytes: u64) -> Slot {
    Slot {
        tenant: tenant.into(),
        index: 0,
        group: None,
        priority: 100,
        created: 0,
        demand: Some(takes(floor_bytes, 100)),
        demand_by_gpu: BTreeMap::new(),
        smaller_floor: SmallerFloor::default(),
        is_exclusive: false,
        is_admitted: false,
        is_serving: false,
        reported_floor_bytes: 0,
        is_floor_unknown: false,
        current_gpu: None,
    }
}

fn with_current_gpu(gpu: &str, slot: Slot) -> Slot {
    Slot { current_gpu: Some(gpu.into()), ..slot }
}

fn of<'a>(
    placement: &'a sluice_plan::placement::SlotPlacement,
    tenant: &str,
) -> Result<&'a str, &'a UnplacedReason> {
    placement[&(tenant.to_owned(), 0)].as_deref()
}

#[test]
fn slots_spread_to_where_most_memory_is_left() {
    let placement =
        place(&[temporal_gpu("a"), temporal_gpu("b")], &[slot("x", 50), slot("y", 20), slot("z", 20)]);
    assert_eq!(of(&placement, "x"), Ok("a"));
    assert_eq!(of(&placement, "y"), Ok("b"));
    assert_eq!(of(&placement, "z"), Ok("b"));
}

#[test]
fn a_slot_stays_though_another_gpu_is_empty() {
    let placement = place(
        &[temporal_gpu("a"), temporal_gpu("b")],
        &[with_current_gpu("a", slot("x", 60)), with_current_gpu("a", slot("y", 40))],
    );
    assert_eq!((of(&placement, "x"), of(&placement, "y")), (Ok("a"), Ok("a")));
}

#[test]
fn a_slot_moves_when_its_gpu_is_gone_or_too_small() {
    let important = Slot { priority: 200, ..with_current_gpu("a", slot("x", 70)) };
    let slots = [important, with_current_gpu("a", slot("y", 40)), with_current_gpu("gone", slot("z", 10))];
    let placement = place(&[temporal_gpu("a"), temporal_gpu("b")], &slots);
    assert_eq!(of(&placement, "x"), Ok("a"));
    assert_eq!(of(&placement, "y"), Ok("b"));
    assert_eq!(of(&placement, "z"), Ok("b"));
}

#[test]
fn new_slot_uses_reported_floors_and_placed_slot_stays() {
    let with_reported_floor = |reported_floor_bytes, floor| Slot {
        reported_floor_bytes,
        ..with_current_gpu("a", slot("x", floor))
    };
    let gpus = [temporal_gpu("a"), temporal_gpu("b")];
    let beside = |floor| Slot { priority: 1, ..slot("new", floor) };
    let of_new = |x: Slot, new| of(&place(&gpus[..1], &[x, beside(new)]), "new").map(str::to_owned).ok();
    assert_eq!(of_new(with_reported_floor(0, 30), 70), Some("a".into()));
    assert_eq!(of_new(with_reported_floor(31, 30), 70), None, "it would never have the rest");
    assert_eq!(of_new(with_reported_floor(31, 30), 69), Some("a".into()));
    assert_eq!(of_new(with_reported_floor(20, 30), 71), None, "what was foreseen counts where it is more");
    let slots = [with_reported_floor(90, 30), with_current_gpu("a", slot("y", 60)), slot("z", 10)];
    let placement = place(&gpus, &slots);
    assert_eq!(["x", "y"].map(|name| of(&placement, name)), [Ok("a"), Ok("a")], "elsewhere it is no smaller");
    assert_eq!(of(&placement, "z"), Ok("b"));
}

#[test]
fn gpu_with_unknown_floors_accepts_no_new_slot() {
    let gpus = [temporal_gpu("a"), temporal_gpu("b")];
    let there = |unheard| Slot { is_floor_unknown: unheard, ..with_current_gpu("a", slot("x", 30)) };
    let placed = |there: Slot, count: usize| {
        let placement = place(&gpus[..count], &[there, slot("new", 10)]);
        assert_eq!(of(&placement, "x"), Ok("a"), "who is there stays");
        placement[&("new".to_owned(), 0)].clone().map_err(|why| why.to_string())
    };
    assert_eq!(placed(there(false), 1), Ok("a".into()));
    let why = placed(there(true), 1).unwrap_err();
    assert!(why.contains("does not know the floors"), "{why}");
    assert_eq!(placed(there(true), 2), Ok("b".into()), "another GPU is not concerned");
}

#[test]
fn a_slot_leaves_a_gpu_of_another_group() {
    let gpus = [gpu("a", "chat", SharingMode::Temporal), gpu("b", "agents", SharingMode::Temporal)];
    let moved = Slot { group: Some("agents".into()), ..with_current_gpu("a", slot("x", 10)) };
    assert_eq!(of(&place(&gpus, &[moved]), "x"), Ok("b"));
}

#[test]
fn the_more_important_then_the_older_tenant_is_placed_first() {
    let slots = [
        Slot { created: 1, ..slot("old", 60) },
        Slot { created: 2, ..slot("young", 60) },
        Slot { created: 3, priority: 101, ..slot("important", 60) },
    ];
    let placement = place(&[temporal_gpu("a")], &slots);
    assert_eq!(of(&placement, "important"), Ok("a"));
    assert!(of(&placement, "old").is_err());
    let placement = place(&[temporal_gpu("a")], &slots[..2]);
    assert_eq!(of(&placement, "old"), Ok("a"));
}

#[test]
fn two_slots_of_a_tenant_never_share_a_gpu() {
    let slots = [slot("x", 10), Slot { index: 1, ..slot("x", 10) }];
    let placement = place(&[temporal_gpu("a")], &slots);
    let refused = placement[&("x".to_owned(), 1)].as_ref().unwrap_err();
    assert!(refused.to_string().contains("two slots of a tenant never share a GPU"), "{refused}");
}

#[test]
fn proxied_engine_needs_exclusive_gpu() {
    let proxied = Slot { is_exclusive: true, ..slot("v", 10) };
    let placement = place(&[temporal_gpu("a")], &[proxied.clone(), with_current_gpu("a", slot("x", 10))]);
    assert!(of(&placement, "v").is_err());
    let placement = place(&[temporal_gpu("a")], &[with_current_gpu("a", proxied), slot("x", 10)]);
    assert!(of(&placement, "x").is_err());
}

#[test]
fn an_instance_takes_one_slot() {
    let gpus = [gpu("a", "iso", SharingMode::Isolated), gpu("b", "iso", SharingMode::Isolated)];
    let placement = place(&gpus, &[slot("x", 10), slot("y", 10), slot("z", 10)]);
    assert_eq!(placement.values().filter(|gpu| gpu.is_ok()).count(), 2);
    assert!(of(&placement, "z").unwrap_err().to_string().contains("its maximum number of tenants"));
}

#[test]
fn refusals_carry_the_numbers() {
    let refused = |gpus: &[Gpu], slots: &[Slot]| of(&place(gpus, slots), "z").unwrap_err().to_string();
    let large = refused(&[temporal_gpu("a")], &[slot("z", 101)]);
    assert!(large.contains("101 B") && large.contains("100 B"), "{large}");
    let full = refused(
        &[temporal_gpu("a"), temporal_gpu("b")],
        &[with_current_gpu("a", slot("x", 90)), with_current_gpu("b", slot("y", 70)), slot("z", 40)],
    );
    assert_eq!(
        full,
        "no room on 2 GPUs; the nearest is b: the floors of its tenants leave too little device memory: 10 B \
         are missing"
    );
    let host = Slot { demand: Some(takes(1, 1001)), ..slot("z", 1) };
    let host = refused(&[temporal_gpu("a")], &[host]);
    assert!(host.contains("too little host memory: 1 B are missing"), "{host}");
    let group = refused(&[temporal_gpu("a")], &[Slot { group: Some("agents".into()), ..slot("z", 1) }]);
    assert_eq!(group, "the pool has no group `agents`; its groups are chat");
}

#[test]
fn advice_names_only_fields_that_lower_the_floor() {
    let said = |spec: serde_json::Value, policy| {
        let smaller_floor = SmallerFloor::of(&tenant("z", spec).spec, policy);
        let large = Slot { smaller_floor, ..slot("z", 101) };
        of(&place(&[temporal_gpu("a")], &[large]), "z").unwrap_err().to_string()
    };
    let whole = "the tenant's floor of 101 B exceeds its largest usable GPU, which has 100 B";
    let all = json!({"memory": {"maxRemappedPercent": 100}});
    let kv = json!({"memory": {"guaranteedKv": "1Mi"}});
    let proxied = json!({"engine": {"kind": "Vllm"}});
    for (spec, policy, advice) in [
        (json!({}), Policy::Unified, "; raise memory.maxRemappedPercent"),
        (json!({}), Policy::Recompute, ""),
        (proxied, Policy::Unified, ""),
        (all, Policy::Oneiros, ""),
        (kv.clone(), Policy::Recompute, "; lower memory.guaranteedKv"),
        (kv, Policy::Oneiros, "; lower memory.guaranteedKv or raise memory.maxRemappedPercent"),
    ] {
        assert_eq!(said(spec, policy), format!("{whole}{advice}"));
    }
}

#[test]
fn uninspected_slot_waits_and_blocks_new_slots() {
    let unknown = Slot { demand: None, ..slot("u", 0) };
    assert_eq!(
        of(&place(&[temporal_gpu("a")], std::slice::from_ref(&unknown)), "u"),
        Err(&UnplacedReason::ModelNotInspected)
    );
    let placement = place(&[temporal_gpu("a")], &[with_current_gpu("a", unknown), slot("x", 10)]);
    assert_eq!(of(&placement, "u"), Ok("a"));
    assert!(of(&placement, "x").unwrap_err().to_string().contains("has not been inspected"));
}

#[test]
fn gpu_with_pending_update_accepts_slots_by_settings_in_force() {
    let gpus = [temporal_gpu("a"), Gpu { capacity_bytes: Some(50), ..temporal_gpu("b") }];
    let there = |floor_bytes| Some(takes(floor_bytes, 100));
    let with = |floor_bytes: u64, on: &str, demand| Slot {
        demand_by_gpu: BTreeMap::from([(on.to_owned(), demand)]),
        ..slot("x", floor_bytes)
    };
    let one = |slot: Slot| of(&place(&gpus, &[slot]), "x").map(str::to_owned).map_err(ToString::to_string);
    assert_eq!(one(with(120, "b", there(40))), Ok("b".to_owned()));
    assert_eq!(one(with(120, "a", there(100))), Ok("a".to_owned()));
    assert_eq!(one(with(60, "b", there(40))), Ok("a".to_owned()), "the other has more left");
    let nowhere = one(with(60, "a", None)).unwrap_err();
    assert!(nowhere.starts_with("no room on 2 GPUs"), "{nowhere}");
    assert!(one(with(120, "a", there(101))).unwrap_err().contains("exceeds its largest usable GPU"));
}

#[test]
fn pool_lists_gpus_of_groups_with_host_backed_capacity() {
    let pool: GpuPool = serde_json::from_str(
        r#"{
        "apiVersion": "sluice.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "p"},
        "spec": {
            "deviceClassName": "host.sluice.dev", "device": {"host": {"memory": "96Mi"}},
            "gpus": [{"name": "chat", "count": 2}, {"name": "agents", "sharing": {"mode": "Spatial"}}],
            "hostMemoryPerGPU": "2Gi"
        }
    }"#,
    )
    .unwrap();
    let small = |name: &str| GpuSizes {
        node_bytes: (name == "p-chat-1").then_some(7),
        capacity_bytes: Some(1),
        last_known_bytes: None,
    };
    let all = gpus(&pool, &small);
    let names: Vec<_> = all.iter().map(|gpu| gpu.name.as_str()).collect();
    assert_eq!(names, ["p-chat-0", "p-chat-1", "p-agents-0"]);
    assert!(all.iter().all(|gpu| gpu.capacity_bytes == Some(96 << 20)));
    assert!(all.iter().all(|gpu| gpu.host_bytes == 2 << 30));
    assert_eq!(all.iter().map(|gpu| gpu.node_bytes).collect::<Vec<_>>(), [None, Some(7), None]);
    assert_eq!(all[2].max_slots(), 20);
}

#[test]
fn admitted_slot_keeps_gpu_despite_other_pod_requests() {
    let gpu = Gpu { node_bytes: Some(90), ..temporal_gpu("a") };
    let mut demand = takes(10, 50);
    demand.pod.sidecar_bytes = 100;
    let slot = |admitted| Slot {
        demand: Some(demand),
        is_admitted: admitted,
        ..with_current_gpu("a", slot("t", 10))
    };
    assert_eq!(of(&place(std::slice::from_ref(&gpu), &[slot(true)]), "t"), Ok("a"));
    let refused = place(std::slice::from_ref(&gpu), &[slot(false)]);
    assert!(matches!(of(&refused, "t"), Err(UnplacedReason::NoCapacity { .. })), "{refused:?}");
    let elsewhere = place(&[Gpu { name: "b".into(), ..gpu }], &[slot(true)]);
    assert!(of(&elsewhere, "t").is_err(), "it was taken by another node");
}

fn serving(gpu: &str, slot: Slot) -> Slot {
    Slot { is_serving: true, is_admitted: true, ..with_current_gpu(gpu, slot) }
}

#[test]
fn serving_slot_keeps_gpu_when_other_floors_grow() {
    let gpus = [temporal_gpu("a"), temporal_gpu("b")];
    let grown = Slot { priority: 900, ..serving("a", slot("x", 90)) };
    let slots = [grown, serving("a", slot("y", 40)), Slot { priority: 999, ..slot("z", 10) }];
    let placement = place(&gpus[..1], &slots);
    assert_eq!(["x", "y"].map(|name| of(&placement, name)), [Ok("a"), Ok("a")]);
    assert!(
        matches!(of(&placement, "z"), Err(UnplacedReason::NoCapacity { .. })),
        "no new tenant, however important"
    );
    assert_eq!(of(&place(&gpus, &slots), "z"), Ok("b"));
    // The GPU must have the memory that the slot needs alone.
    let slots = [serving("a", slot("x", 101)), serving("a", slot("y", 40))];
    let placement = place(&gpus, &slots);
    assert!(matches!(of(&placement, "x"), Err(UnplacedReason::ModelLargerThanGpu { .. })));
    assert_eq!(of(&placement, "y"), Ok("a"));
    // A slot does not stay on a GPU that it may not use either.
    let elsewhere = Slot { group: Some("agents".into()), ..serving("a", slot("x", 10)) };
    assert!(of(&place(&gpus, &[elsewhere]), "x").is_err());
    let isolated = [gpu("a", "chat", SharingMode::Isolated)];
    let placement = place(&isolated, &[serving("a", slot("x", 1)), serving("a", slot("y", 1))]);
    assert_eq!(placement.values().filter(|gpu| gpu.is_ok()).count(), 1);
}

#[test]
fn starting_slot_is_relocated_when_other_floor_grows_or_waits() {
    let gpus = [temporal_gpu("a"), temporal_gpu("b")];
    let grown = Slot { priority: 1, ..serving("a", slot("x", 90)) };
    let starts = with_current_gpu("a", slot("y", 40));
    let all = [grown.clone(), starts.clone()];
    let placement = place(&gpus, &all);
    assert_eq!(["x", "y"].map(|name| of(&placement, name)), [Ok("a"), Ok("b")]);
    let placement = place(&gpus[..1], &all);
    assert_eq!(["x", "y"].map(|name| of(&placement, name)), [Ok("a"), Ok("a")]);
    // If no slot serves, the GPU is too small, and the slot with higher priority gets it.
    let nobody = [Slot { is_serving: false, ..grown }, starts.clone()];
    let placement = place(&gpus[..1], &nobody);
    assert_eq!((of(&placement, "x").is_ok(), of(&placement, "y")), (false, Ok("a")));
    let large = [serving("a", slot("x", 10)), Slot { demand: Some(takes(101, 1)), ..starts }];
    assert!(of(&place(&gpus[..1], &large), "y").is_err(), "it would not have room even alone");
}

#[test]
fn admitted_slot_keeps_gpu_with_less_host_memory() {
    let gpu = Gpu { host_bytes: 150, ..temporal_gpu("a") };
    let there = |admitted| {
        [
            with_current_gpu("a", slot("x", 10)),
            Slot { is_admitted: admitted, ..with_current_gpu("a", slot("y", 10)) },
        ]
    };
    let has = |slots: &[Slot]| of(&place(std::slice::from_ref(&gpu), slots), "y").is_ok();
    assert_eq!((has(&there(true)), has(&there(false))), (true, false));
    assert!(
        !has(&[with_current_gpu("a", slot("x", 10)), Slot { is_admitted: true, ..slot("y", 10) }]),
        "it is not there"
    );
}

#[test]
fn serving_slot_stays_while_peer_is_reinspected() {
    let unknown = |name: &str| Slot { demand: None, ..serving("a", slot(name, 0)) };
    let placement = place(&[temporal_gpu("a")], &[unknown("x"), unknown("y"), slot("z", 1)]);
    assert_eq!(["x", "y"].map(|name| of(&placement, name)), [Ok("a"), Ok("a")]);
    assert!(of(&placement, "z").is_err());
}

#[test]
fn displaced_slot_does_not_take_memory_of_another_displaced_slot() {
    let serves = |gpu, name, floor| Slot { is_serving: true, ..with_current_gpu(gpu, slot(name, floor)) };
    let gpus = [temporal_gpu("a"), temporal_gpu("b")];
    let important = Slot { priority: 1, ..with_current_gpu("a", slot("x", 40)) };
    let slots = [serves("a", "s", 70), serves("b", "t", 55), important, with_current_gpu("b", slot("y", 50))];
    let placement = place(&gpus, &slots);
    assert_eq!(["x", "y"].map(|name| of(&placement, name)), [Ok("a"), Ok("b")], "45 of b are spoken for");
    let fewer = [slots[0].clone(), slots[1].clone(), slots[2].clone()];
    assert_eq!(of(&place(&gpus, &fewer), "x"), Ok("b"));
}

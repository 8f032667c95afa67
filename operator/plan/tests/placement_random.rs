//! Placement of random tenants: invariants of every plan.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_plan::gpu::Gpu;
use sluice_plan::placement::{Slot, SlotPlacement, place};
use sluice_plan::resource_demand::{Demand, PodMemory};
use sluice_types::pool::SharingMode;

use super::placement::{gpu, slot, takes};

const GROUPS: [&str; 2] = ["chat", "agents"];

fn machines() -> impl Strategy<Value = Vec<Gpu>> {
    let mode =
        prop_oneof![Just(SharingMode::Temporal), Just(SharingMode::Spatial), Just(SharingMode::Isolated)];
    let one = (0..2_usize, mode, 50..200_u64, 100..600_u64, 100..900_u64);
    prop::collection::vec(one, 1..5).prop_map(|drawn| {
        let each = drawn.into_iter().enumerate().map(|(index, (group, mode, device, host, node))| Gpu {
            capacity_bytes: (device % 7 != 0).then_some(device),
            host_bytes: host,
            node_bytes: (node % 5 != 0).then_some(node),
            ..gpu(&format!("g{index}"), GROUPS[group], mode)
        });
        each.collect()
    })
}

fn pod(sidecar_bytes: u64) -> PodMemory {
    PodMemory { sidecar_bytes, ..PodMemory::default() }
}

fn tenants() -> impl Strategy<Value = Vec<Slot>> {
    let group = prop_oneof![Just(None), (0..2_usize).prop_map(|group| Some(GROUPS[group].to_owned()))];
    let host = (10..200_u64, 10..300_u64);
    let one = (group, 0..3_i32, 0..3_i64, 5..120_u64, host, 0..12_u8, 1..3_u32);
    prop::collection::vec(one, 0..14).prop_map(|drawn| {
        let each = drawn.into_iter().enumerate();
        each.flat_map(
            |(number, (group, priority, created, floor_bytes, (host_bytes, pod_bytes), odd, slots))| {
                (0..slots).map(move |index| Slot {
                    index,
                    group: group.clone(),
                    priority,
                    created,
                    demand: (odd != 1)
                        .then_some(Demand { pod: pod(pod_bytes), ..takes(floor_bytes, host_bytes) }),
                    is_exclusive: odd == 0,
                    is_admitted: false,
                    is_serving: false,
                    reported_floor_bytes: 0,
                    is_floor_unknown: false,
                    ..slot(&format!("t{number}"), 0)
                })
            },
        )
        .collect()
    })
}

/// Returns the slots, each on the GPU from `placement`.
fn settled(slots: &[Slot], placement: &SlotPlacement) -> Vec<Slot> {
    let on = |slot: &Slot| placement[&(slot.tenant.clone(), slot.index)].clone().ok();
    slots.iter().map(|slot| Slot { current_gpu: on(slot), ..slot.clone() }).collect()
}

fn by_gpu(slots: &[Slot]) -> BTreeMap<&str, Vec<&Slot>> {
    let mut slots_by_gpu: BTreeMap<&str, Vec<&Slot>> = BTreeMap::new();
    for slot in slots {
        if let Some(gpu) = &slot.current_gpu {
            slots_by_gpu.entry(gpu).or_default().push(slot);
        }
    }
    slots_by_gpu
}

/// Whether these slots may share `gpu`: a second implementation of the rules.
fn holds(gpu: &Gpu, slots: &[&Slot]) -> bool {
    let demand = |slot: &&&Slot| slot.demand.unwrap_or_default();
    let device: u64 = slots.iter().map(|slot| demand(&slot).floor_bytes).sum();
    let host: u64 = slots.iter().map(|slot| demand(&slot).host_bytes).sum();
    let pods: u64 = slots.iter().map(|slot| demand(&slot).pod.sidecar_bytes).sum();
    let mut tenants: Vec<_> = slots.iter().map(|slot| &slot.tenant).collect();
    tenants.sort();
    tenants.dedup();
    gpu.capacity_bytes.is_none_or(|capacity| device <= capacity)
        && host <= gpu.host_bytes
        && gpu.node_bytes.is_none_or(|node| pods <= node)
        && tenants.len() == slots.len()
        && (slots.len() == 1 || slots.iter().all(|slot| !slot.is_exclusive && slot.demand.is_some()))
        && (gpu.settings.sharing.mode != SharingMode::Isolated || slots.len() == 1)
        && slots.iter().all(|slot| slot.group.as_ref().is_none_or(|group| *group == gpu.group))
}

fn check(gpus: &[Gpu], slots: &[Slot]) {
    let slots_by_gpu = by_gpu(slots);
    for gpu in gpus {
        let here = slots_by_gpu.get(gpu.name.as_str()).cloned().unwrap_or_default();
        assert!(here.is_empty() || holds(gpu, &here), "{gpu:?} has {here:?}");
    }
}

fn unplaced(slots: &[Slot]) -> impl Iterator<Item = &Slot> {
    slots.iter().filter(|slot| slot.current_gpu.is_none() && slot.demand.is_some())
}

proptest! {
    #[test]
    fn gpu_memory_is_never_overcommitted(gpus in machines(), slots in tenants()) {
        check(&gpus, &settled(&slots, &place(&gpus, &slots)));
    }

    #[test]
    fn no_slot_waits_that_would_fit(gpus in machines(), slots in tenants()) {
        let slots = settled(&slots, &place(&gpus, &slots));
        let slots_by_gpu = by_gpu(&slots);
        for waiting in unplaced(&slots) {
            for gpu in &gpus {
                let mut with = slots_by_gpu.get(gpu.name.as_str()).cloned().unwrap_or_default();
                with.push(waiting);
                prop_assert!(!holds(gpu, &with), "{waiting:?} fits {gpu:?}");
            }
        }
    }

    #[test]
    fn no_slot_waits_for_lower_ranked_slot(gpus in machines(), slots in tenants()) {
        let slots = settled(&slots, &place(&gpus, &slots));
        let slots_by_gpu = by_gpu(&slots);
        for waiting in unplaced(&slots) {
            for gpu in &gpus {
                let here = slots_by_gpu.get(gpu.name.as_str()).cloned().unwrap_or_default();
                let mut with: Vec<_> = here.into_iter().filter(|slot| slot.priority >= waiting.priority).collect();
                with.push(waiting);
                prop_assert!(!holds(gpu, &with), "{waiting:?} stands behind lesser ones on {gpu:?}");
            }
        }
    }

    #[test]
    fn order_does_not_matter(gpus in machines(), slots in tenants()) {
        let (mut other, mut machines) = (slots.clone(), gpus.clone());
        other.reverse();
        machines.reverse();
        prop_assert_eq!(place(&gpus, &slots), place(&machines, &other));
    }

    #[test]
    fn placed_slot_stays_when_others_are_added_and_removed(
        gpus in machines(), slots in tenants(), gone in any::<prop::sample::Index>(), more in tenants(),
    ) {
        let before = settled(&slots, &place(&gpus, &slots));
        let mut after = before.clone();
        if !after.is_empty() {
            after.remove(gone.index(before.len()));
        }
        let new = more.into_iter().map(|slot| Slot { tenant: format!("n{}", slot.tenant), priority: 9, ..slot });
        after.extend(new);
        let after = settled(&after, &place(&gpus, &after));
        for slot in after.iter().filter(|slot| !slot.tenant.starts_with('n')) {
            let then = before.iter().find(|old| (&old.tenant, old.index) == (&slot.tenant, slot.index));
            let then = then.expect("it was there before");
            prop_assert!(then.current_gpu.is_none() || then.current_gpu == slot.current_gpu, "{then:?} became {slot:?}");
        }
        check(&gpus, &after);
    }

    /// Floors and host memory of placed slots, some of which serve, grow, and GPUs get less host memory.
    #[test]
    fn serving_slot_does_not_move_when_other_floors_grow(
        gpus in machines(), slots in tenants(), more in tenants(),
        grow in prop::collection::vec((any::<bool>(), 0..80_u64, 0..80_u64), 30), less in 0..100_u64,
    ) {
        let before = settled(&slots, &place(&gpus, &slots));
        let grown = before.iter().zip(grow.iter().cycle()).map(|(slot, (serves, device, host))| {
            let demand = slot.demand.map(|demand| takes(demand.floor_bytes + device, demand.host_bytes + host));
            let serves = *serves && slot.current_gpu.is_some();
            Slot { demand, is_serving: serves, is_admitted: serves, ..slot.clone() }
        });
        let mut grown: Vec<Slot> = grown.collect();
        let gpus: Vec<Gpu> = gpus.into_iter().map(|gpu| Gpu { host_bytes: gpu.host_bytes - less, ..gpu }).collect();
        let new = more.into_iter().map(|slot| Slot { tenant: format!("n{}", slot.tenant), priority: 9, ..slot });
        grown.extend(new);
        let placement = place(&gpus, &grown);
        let mut reversed = grown.clone();
        reversed.reverse();
        prop_assert_eq!(&placement, &place(&gpus, &reversed));
        let after = settled(&grown, &placement);
        let capacity = |name: &str| gpus.iter().find(|gpu| gpu.name == name).and_then(|gpu| gpu.capacity_bytes);
        let floor = |slot: &Slot| slot.demand.map_or(0, |demand| demand.floor_bytes);
        for (then, now) in grown.iter().zip(&after).filter(|(then, _)| then.is_serving) {
            let fits_unshared =
                capacity(then.current_gpu.as_ref().unwrap()).is_none_or(|all| floor(then) <= all);
            prop_assert!(!fits_unshared || then.current_gpu == now.current_gpu, "{then:?} became {now:?}");
        }
        let slots_by_gpu = by_gpu(&after);
        for (then, now) in grown.iter().zip(&after).filter(|(then, now)| now.current_gpu.is_some() && then.current_gpu != now.current_gpu) {
            let gpu = now.current_gpu.as_ref().unwrap();
            let sum: u64 = slots_by_gpu[gpu.as_str()].iter().map(|slot| floor(slot)).sum();
            prop_assert!(capacity(gpu).is_none_or(|all| sum <= all), "{then:?} came to {gpu}, which has no room");
        }
        // Without a serving slot the result equals that of new slots.
        for gpu in gpus.iter().filter(|gpu| !grown.iter().any(|slot| slot.is_serving && slot.current_gpu.as_ref() == Some(&gpu.name))) {
            let here = slots_by_gpu.get(gpu.name.as_str()).cloned().unwrap_or_default();
            prop_assert!(here.is_empty() || holds(gpu, &here), "{gpu:?} has {here:?}");
        }
    }
}

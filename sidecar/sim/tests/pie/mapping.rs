//! Tests the mapping table under any order of successful and failed swaps.

use proptest::prelude::*;
use sluice_sim::paper::pie::mapping::{Entry, Mapping, Operation, Side, Swap};
use sluice_sim::paper::pie::swapping::due;

/// Checks that every slot has at most one owner and every layer resides on one side.
fn check(mapping: &Mapping) {
    let entries = mapping.entries();
    for side in [|entry: &Entry| entry.device, |entry: &Entry| entry.host] {
        let mut slots: Vec<u16> = entries.iter().filter_map(side).collect();
        let all = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), all, "a slot has one owner");
    }
    for entry in entries {
        let there = match entry.resides {
            Side::Device => entry.device,
            Side::Host => entry.host,
        };
        assert!(there.is_some(), "a layer has a slot where it resides");
        let both = entry.device.is_some() && entry.host.is_some();
        let moving = matches!(entry.operation, Operation::SwapIn | Operation::SwapOut);
        assert_eq!(both, moving, "two slots only while it moves");
    }
}

#[derive(Clone, Debug)]
enum Act {
    Compute(u16),
    Commit(usize),
    Abandon(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (0..12_u16).prop_map(Act::Compute),
        (0..4_usize).prop_map(Act::Commit),
        (0..4_usize).prop_map(Act::Abandon),
    ];
    prop::collection::vec(act, 1..120)
}

fn end(mapping: &mut Mapping, running: &mut Vec<Swap>, index: usize, commit: bool) {
    if running.is_empty() {
        return;
    }
    let swap = running.remove(index % running.len());
    let from = mapping.entries()[usize::from(swap.layer)].resides;
    assert_ne!(from, swap.to, "it does not reside there before the copy is confirmed");
    assert!(!mapping.computable(swap.layer));
    if commit {
        mapping.commit(swap)
    } else {
        mapping.abandon(swap)
    }
    let resides = mapping.entries()[usize::from(swap.layer)].resides;
    assert_eq!(resides == swap.to, commit);
}

proptest! {
    #[test]
    fn no_order_of_swaps_loses_a_layer_or_shares_a_slot(
        layers in 1..12_u16, queue in 0..12_u16, acts in acts()
    ) {
        let queue = queue.min(layers);
        let mut mapping = Mapping::new(layers, (layers + 2 - queue).min(layers), queue);
        let mut running = Vec::new();
        for act in acts {
            match act {
                Act::Compute(layer) => running.extend(due(&mut mapping, layer % layers)),
                Act::Commit(index) => end(&mut mapping, &mut running, index, true),
                Act::Abandon(index) => end(&mut mapping, &mut running, index, false),
            }
            check(&mapping);
            for side in [Side::Device, Side::Host] {
                let ways = running.iter().filter(|swap| swap.to == side).count();
                prop_assert_eq!(ways > 0, mapping.swapping(side));
                prop_assert!(ways <= 1, "one each way at a time");
            }
        }
    }
}

#[test]
fn a_full_side_takes_nothing() {
    let mut mapping = Mapping::new(3, 2, 1);
    assert_eq!(mapping.begin(0, Side::Host), None);
    assert_eq!(mapping.begin(2, Side::Device), None);
    assert!(mapping.computable(0) && !mapping.computable(2));
    check(&mapping);
}

#[test]
#[should_panic(expected = "here for certain")]
fn a_layer_on_its_way_is_not_computed_with() {
    let mut mapping = Mapping::new(3, 3, 1);
    mapping.begin(0, Side::Host).expect("there is room");
    mapping.begin_compute(0);
}

use alloc::vec;
use alloc::vec::Vec;

use super::*;

/// Three resident layers.
fn resident(generations: &mut Generations) -> Weights {
    let mut weights = Weights::new(3);
    weights.place(placement(Layout::resident(), vec![LayerLocation::Resident; 3], vec![]), generations);
    weights
}

fn placement(
    layout: Layout,
    locations: Vec<LayerLocation>,
    preserved: Vec<(LayerId, Generation)>,
) -> Placement {
    Placement { layout, has_global: true, locations, preserved, reason: Reason::Load }
}

/// Orders and completes every copy that is due.
fn load(weights: &mut Weights, generations: &mut Generations) {
    for (target, generation) in weights.due() {
        weights.on_ordered(target);
        weights.on_filled(target, generation);
    }
    weights.extend_early(generations);
    for copy in weights.take_due_slots() {
        let target = FillTarget::Slot(copy.instance.slot, copy.instance.layer);
        weights.on_filled(target, copy.instance.generation);
    }
}

fn moving(layers: &[u16]) -> Layout {
    Layout { moving: layers.iter().map(|l| LayerId(*l)).collect(), beta: 1 }
}

#[test]
fn weights_without_memory_are_neither_loaded_nor_settled() {
    let weights = Weights::new(2);
    assert!(!weights.is_settled() && !weights.is_global_loaded());
    assert_eq!(weights.state(FillTarget::Resident(LayerId(0))), State::Idle);
}

#[test]
fn copies_are_due_global_first_and_once() {
    let mut generations = Generations::default();
    let mut weights = resident(&mut generations);
    let targets: Vec<_> = weights.due().into_iter().map(|(target, _)| target).collect();
    let layers = (0..3).map(|l| FillTarget::Resident(LayerId(l)));
    assert_eq!(targets, core::iter::once(FillTarget::Global).chain(layers).collect::<Vec<_>>());
    let (_, global) = weights.due()[0];
    weights.on_ordered(FillTarget::Global);
    assert_eq!(weights.due().len(), 3);
    assert_eq!(weights.state(FillTarget::Global), State::Filling(global));
    weights.on_filled(FillTarget::Global, global);
    load(&mut weights, &mut generations);
    assert!(weights.all_loaded() && weights.is_settled() && weights.due().is_empty());
    weights.check();
}

#[test]
fn lease_names_resident_layers_only_while_they_load() {
    let mut generations = Generations::default();
    let mut weights = resident(&mut generations);
    weights.begin_step(&mut generations);
    assert_eq!(weights.lease().len(), 3);
    assert_eq!(weights.leased(), [Generation(2), Generation(3), Generation(4)]);
    load(&mut weights, &mut generations);
    assert_eq!(weights.lease(), []);
}

#[test]
fn failed_copy_keeps_its_generation_only_within_a_step() {
    let mut generations = Generations::default();
    let mut weights = resident(&mut generations);
    let layer = FillTarget::Resident(LayerId(0));
    let first = weights.due()[1].1;
    weights.on_incomplete(layer, first, (false, true), &mut generations);
    assert_eq!(weights.due()[1], (layer, first), "a running step waits for this generation");
    weights.on_incomplete(layer, first, (false, false), &mut generations);
    assert!(weights.due()[1].1 > first);
    let stale = weights.due()[1].1;
    weights.on_incomplete(layer, first, (false, false), &mut generations);
    assert_eq!(weights.due()[1].1, stale, "the end of an older copy changes nothing");
}

#[test]
fn failure_limit_ends_retries_until_success() {
    let mut generations = Generations::default();
    let mut weights = resident(&mut generations);
    assert!((0..FILL_RETRIES).all(|_| weights.can_retry()));
    let (target, generation) = weights.due()[0];
    weights.on_filled(target, generation);
    assert!((0..FILL_RETRIES).all(|_| weights.can_retry()));
    assert!(!weights.can_retry());
    assert_eq!(weights.retries(), u64::from(2 * FILL_RETRIES + 1));
}

#[test]
fn preserved_layer_is_not_copied_again() {
    let mut generations = Generations::default();
    let mut weights = resident(&mut generations);
    load(&mut weights, &mut generations);
    let kept = weights.content_of(LayerId(0), None).expect("it is loaded");
    let slot = LayerLocation::Slot(SlotId(0));
    let locations = vec![LayerLocation::Resident, slot, slot];
    weights.place(placement(moving(&[1, 2]), locations, vec![(LayerId(0), kept)]), &mut generations);
    assert!(weights.is_settled(), "the layer that stays has its contents");
    assert_eq!(weights.content_of(LayerId(1), Some(SlotId(0))), None);
    assert!(!weights.is_resident(LayerId(1)) && weights.has_global());
    load(&mut weights, &mut generations);
    assert!(weights.content_of(LayerId(1), Some(SlotId(0))).is_some());
    weights.check();
}

#[test]
fn engine_loss_empties_slots_and_keeps_resident_layers() {
    let mut generations = Generations::default();
    let mut weights = Weights::new(2);
    let locations = vec![LayerLocation::Resident, LayerLocation::Slot(SlotId(0))];
    weights.place(placement(moving(&[1]), locations, vec![]), &mut generations);
    load(&mut weights, &mut generations);
    let loaded = weights.content_of(LayerId(0), None).expect("it is loaded");
    weights.on_engine_lost();
    assert_eq!(weights.content_of(LayerId(0), None), Some(loaded));
    assert_eq!(weights.content_of(LayerId(1), Some(SlotId(0))), None);
}

#[test]
fn lent_layer_has_no_contents() {
    let mut generations = Generations::default();
    let mut weights = Weights::new(2);
    let locations = vec![LayerLocation::Resident, LayerLocation::Absent];
    weights.place(placement(Layout::resident(), locations, vec![]), &mut generations);
    assert!(!weights.is_resident(LayerId(1)));
    assert_eq!(weights.state(FillTarget::Resident(LayerId(1))), State::Idle);
    load(&mut weights, &mut generations);
    assert!(weights.is_settled(), "nothing is due for it");
}

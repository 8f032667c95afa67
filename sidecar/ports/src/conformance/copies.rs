//! Rules of fills: order, readers, publication, drops.

use sluice_policy::action::{Address, Fill, FillTarget, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{Generation, LayerId, SlotId};

use super::backend::{Backend, SlabChunk};
use super::harness::{BackendTest, chunks, fill, map, map_layer, remap};

const A: LayerId = LayerId(1);
const B_LAYER: LayerId = LayerId(2);
const SLOT: SlotId = SlotId(0);

fn part(layer: LayerId, part: u32) -> Option<SlabChunk> {
    Some(SlabChunk { layer: Some(layer), chunk: part })
}

/// Global and resident fills, read through the engine's addresses; the bytes are counted and the size is
/// checked.
pub fn fill_copies_slab_chunks_in_order<B: Backend>() {
    let rule = "a fill puts each chunk of its slab in order";
    let mut trial = BackendTest::<B>::with_chunks(rule, 4);
    let mut ops = map_layer(A, 1);
    ops.push(map(Address::Global(0), 0));
    trial.succeed(remap(ops));
    let global =
        Fill { target: FillTarget::Global, generation: Generation(1), after: None, chunks: chunks(0..1) };
    trial.succeed(Work::Fill(global));
    let outcome = trial.run(fill(FillTarget::Resident(A), 2, 1, None));
    assert!(
        matches!(outcome, Outcome::Done { bytes, .. } if bytes == B::chunk_bytes() * 3 / 2),
        "{rule}: {outcome:?}"
    );
    assert_eq!(
        trial.backend.contents(Address::Global(0)),
        Some(SlabChunk { layer: None, chunk: 0 }),
        "{rule}"
    );
    assert_eq!(
        [0, 1].map(|p| trial.backend.contents(Address::Layer(A, p))),
        [part(A, 0), part(A, 1)],
        "{rule}"
    );
    trial.fail(fill(FillTarget::Resident(A), 3, 3, None), Failure::Refused);
}

/// `ready` shows a generation when its copy has succeeded, and never otherwise.
pub fn ready_is_published_with_the_completion<B: Backend>() {
    let rule = "ready is published with the completion";
    let mut trial = BackendTest::<B>::with_chunks(rule, 3);
    assert_eq!(trial.backend.ready(Some(A)), Generation(0), "{rule}");
    trial.succeed(fill(FillTarget::Slot(SLOT, A), 4, 0, None));
    assert_eq!(trial.backend.ready(Some(A)), Generation(4), "{rule}");
    assert_eq!(trial.backend.ready(Some(B_LAYER)), Generation(0), "{rule}");
    trial.fail(fill(FillTarget::Resident(B_LAYER), 5, 2, None), Failure::Refused);
    assert_eq!(trial.backend.ready(Some(B_LAYER)), Generation(0), "{rule}: a refused fill publishes nothing");
}

/// The slot keeps its bytes and `ready` its value until `done` has reached the generation; a fill elsewhere
/// runs.
pub fn fill_waits_for_its_reader<B: Backend>() {
    let rule = "a fill waits for the reader it names";
    let mut trial = BackendTest::<B>::with_chunks(rule, 4);
    let mut ops = map_layer(A, 0);
    ops.extend(map_layer(B_LAYER, 0));
    trial.succeed(remap(ops));
    trial.succeed(fill(FillTarget::Slot(SLOT, A), 4, 0, None));
    let waits = trial.submit(fill(FillTarget::Slot(SLOT, B_LAYER), 5, 0, Some((A, Generation(4)))));
    let free = trial.submit(fill(FillTarget::Resident(LayerId(3)), 6, 2, None));
    trial.settle_after(&[free]);
    assert!(matches!(trial.outcome(free), Some(Outcome::Done { .. })), "{rule}: others do not wait with it");
    trial.backend.set_done(A, Generation(3));
    trial.settle();
    assert_eq!(trial.outcome(waits), None, "{rule}");
    assert_eq!(trial.backend.ready(Some(B_LAYER)), Generation(0), "{rule}");
    assert_eq!(trial.backend.contents(Address::Layer(A, 0)), part(A, 0), "{rule}: the slot is untouched");
    trial.backend.set_done(A, Generation(4));
    assert!(matches!(trial.wait(waits), Outcome::Done { .. }), "{rule}");
    assert_eq!(
        trial.backend.contents(Address::Layer(A, 1)),
        part(B_LAYER, 1),
        "{rule}: both addresses show the slot"
    );
}

/// The second fill of a slot does not overtake the first, although only the first waits.
pub fn fills_of_one_slot_run_in_the_order_submitted<B: Backend>() {
    let rule = "fills of one slot run in the order submitted";
    let mut trial = BackendTest::<B>::with_chunks(rule, 2);
    trial.succeed(remap(map_layer(A, 0)));
    let after = Some((LayerId(0), Generation(1)));
    let first = trial.submit(fill(FillTarget::Slot(SLOT, A), 4, 0, after));
    let second = trial.submit(fill(FillTarget::Slot(SLOT, B_LAYER), 5, 0, None));
    trial.settle();
    assert_eq!((trial.outcome(first), trial.outcome(second)), (None, None), "{rule}");
    trial.backend.set_done(LayerId(0), Generation(1));
    trial.wait(second);
    assert!(trial.completion_index(first) < trial.completion_index(second), "{rule}");
    assert_eq!(trial.backend.contents(Address::Layer(A, 0)), part(B_LAYER, 0), "{rule}");
}

/// Waiting fills complete as dropped, then the drop itself. The slot and `ready` are unchanged, and later
/// fills run.
pub fn drop_fills_drops_waiting_fills<B: Backend>() {
    let rule = "dropping fills drops those that wait";
    let mut trial = BackendTest::<B>::with_chunks(rule, 2);
    let never = Some((LayerId(0), Generation(9)));
    let dropped = [(A, 4), (B_LAYER, 5)]
        .map(|(layer, generation)| trial.submit(fill(FillTarget::Slot(SLOT, layer), generation, 0, never)));
    let drop = trial.submit(Work::DropFills);
    assert!(matches!(trial.wait(drop), Outcome::Done { .. }), "{rule}");
    for id in dropped {
        assert_eq!(trial.outcome(id), Some(Outcome::Failed(Failure::Dropped)), "{rule}");
        assert!(trial.completion_index(id) < trial.completion_index(drop), "{rule}: the drop ends last");
    }
    trial.backend.set_done(LayerId(0), Generation(9));
    trial.settle();
    assert_eq!(trial.backend.ready(Some(A)), Generation(0), "{rule}: a dropped fill publishes nothing");
    trial.succeed(fill(FillTarget::Slot(SLOT, A), 6, 0, None));
    assert_eq!(trial.backend.ready(Some(A)), Generation(6), "{rule}");
}

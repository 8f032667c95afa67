//! Rules of KV that is copied concurrently with steps: fetches into buffers, and write-backs.

use sluice_policy::action::{Address, Fetch, LayerBlockMove, LayerBlockSwap, Transaction, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, Generation, KvChunkId, LayerBlockId, LayerId};

use super::backend::Backend;
use super::harness::{
    BackendTest, HOST_BLOCKS, LAYERS, geometry, map, remap, swap, swap_in, swap_out, unmap,
};

const KV_CHUNK: Address = Address::Kv(KvChunkId(0));
pub(super) const OTHER: Address = Address::Kv(KvChunkId(1));
const THIRD: Address = Address::Kv(KvChunkId(2));
pub(super) const A: LayerId = LayerId(1);
pub(super) const B_LAYER: LayerId = LayerId(2);

pub(super) type CopyOrder = Option<(LayerId, Generation)>;

pub(super) fn fetch(
    layer: LayerId,
    buffer: u8,
    generation: u64,
    after: CopyOrder,
    layer_blocks: &[LayerBlockSwap],
) -> Work {
    Work::Fetch(Fetch {
        layer,
        buffer,
        generation: Generation(generation),
        after,
        layer_blocks: layer_blocks.to_vec().into(),
    })
}

pub(super) fn write_back(swaps: &[LayerBlockSwap]) -> Work {
    Work::WriteBack(swaps.to_vec())
}

pub(super) fn after(layer: LayerId, generation: u64) -> CopyOrder {
    Some((layer, Generation(generation)))
}

/// Maps KV chunk 0 to chunk 0 and KV chunk 1 to chunk 1. Blocks 1, 2 and 8 contain their numbers, and so do host
/// blocks 1 and 2, with generations 5 and 6.
pub(super) fn with_offloaded_layer_blocks<B: Backend>(rule: &'static str) -> BackendTest<B> {
    let mut trial = BackendTest::<B>::with_chunks(rule, 3);
    trial.succeed(remap(vec![map(KV_CHUNK, 0), map(OTHER, 1)]));
    [1, 2, 8]
        .into_iter()
        .for_each(|layer_block| trial.backend.write_layer_block(LayerBlockId(layer_block), layer_block));
    trial.succeed(swap_out(&[swap(1, 0, 1, 5), swap(2, 0, 2, 6)]));
    trial
}

pub(super) fn layer_blocks<B: Backend, const N: usize>(
    trial: &mut BackendTest<B>,
    layer_blocks: [u32; N],
) -> [Option<u32>; N] {
    layer_blocks.map(|layer_block| trial.backend.layer_block(LayerBlockId(layer_block)))
}

pub(super) fn is_done(outcome: Option<Outcome>) -> bool {
    matches!(outcome, Some(Outcome::Done { .. }))
}

/// The layer's KV word shows the generation with the completion, the bytes are counted, and the weights'
/// words do not change. A fetch of no blocks changes only the KV word.
pub fn fetch_copies_host_block_contents<B: Backend>() {
    let rule = "a fetch brings what host blocks carry";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let outcome = trial.run(fetch(A, 0, 4, None, &[swap(9, 1, 2, 6), swap(12, 1, 1, 5)]));
    let bytes = 2 * geometry::<B>().layer_block_bytes;
    assert!(matches!(outcome, Outcome::Done { bytes: moved, .. } if moved == bytes), "{rule}: {outcome:?}");
    assert_eq!(layer_blocks(&mut trial, [9, 12, 8]), [Some(2), Some(1), Some(8)], "{rule}");
    let ready = |trial: &mut BackendTest<B>| [A, B_LAYER].map(|layer| trial.backend.kv_ready(layer));
    assert_eq!(ready(&mut trial), [4, 0].map(Generation), "{rule}");
    assert_eq!(trial.backend.ready(Some(A)), Generation(0), "{rule}");
    let outcome = trial.run(fetch(B_LAYER, 0, 6, None, &[]));
    assert!(matches!(outcome, Outcome::Done { bytes: 0, .. }), "{rule}: {outcome:?}");
    assert_eq!(ready(&mut trial), [4, 6].map(Generation), "{rule}");
    trial.succeed(swap_in(&[swap(3, 0, 1, 5)]));
    assert_eq!(layer_blocks(&mut trial, [3]), [Some(1)], "{rule}: the host's copies stay");
}

/// The buffer and the KV word are unchanged until the engine has finished reading the KV; finishing the
/// weights does not count.
pub fn a_fetch_waits_for_the_reader_of_the_buffer<B: Backend>() {
    let rule = "a fetch waits for the reader of the buffer";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    trial.succeed(fetch(A, 0, 4, None, &[swap(9, 1, 1, 5)]));
    let waits = trial.submit(fetch(B_LAYER, 0, 5, after(A, 4), &[swap(9, 1, 2, 6)]));
    trial.backend.set_done(A, Generation(9));
    trial.backend.set_kv_done(A, Generation(3));
    trial.settle();
    assert_eq!((trial.outcome(waits), trial.backend.kv_ready(B_LAYER)), (None, Generation(0)), "{rule}");
    assert_eq!(layer_blocks(&mut trial, [9]), [Some(1)], "{rule}: the buffer is untouched");
    trial.backend.set_kv_done(A, Generation(4));
    assert!(matches!(trial.wait(waits), Outcome::Done { .. }), "{rule}");
    assert_eq!(layer_blocks(&mut trial, [9]), [Some(2)], "{rule}");
}

/// The second fetch into a buffer does not overtake the first, although only the first waits; a fetch into
/// another buffer does. A layer's second fetch does not overtake its first.
pub fn fetches_into_one_buffer_run_in_the_order_submitted<B: Backend>() {
    let rule = "fetches into one buffer run in the order submitted";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let orders = [
        fetch(A, 0, 4, after(LayerId(0), 1), &[swap(9, 1, 1, 5)]),
        fetch(B_LAYER, 0, 5, None, &[swap(10, 1, 1, 5)]),
        fetch(A, 1, 6, None, &[swap(11, 1, 1, 5)]),
        fetch(LayerId(3), 2, 7, None, &[swap(12, 1, 1, 5)]),
    ];
    let [first, same_buffer, same_layer, free] = orders.map(|work| trial.submit(work));
    trial.settle_after(&[free]);
    assert!(is_done(trial.outcome(free)), "{rule}: others do not wait with it");
    assert_eq!([first, same_buffer, same_layer].map(|id| trial.outcome(id)), [None; 3], "{rule}");
    trial.backend.set_kv_done(LayerId(0), Generation(1));
    trial.wait(same_buffer);
    trial.wait(same_layer);
    assert!(trial.completion_index(first) < trial.completion_index(same_buffer), "{rule}");
    assert!(trial.completion_index(first) < trial.completion_index(same_layer), "{rule}");
    assert_eq!(trial.backend.kv_ready(A), Generation(6), "{rule}");
}

/// One wrong generation at the start of the copy makes the whole order fail, and nothing changes.
pub fn fetch_with_stale_generation_is_refused<B: Backend>() {
    let rule = "a fetch names what the host block carries";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let wanted = [swap(8, 1, 1, 5), swap(9, 1, 2, 6)];
    let waits = trial.submit(fetch(A, 0, 4, after(LayerId(0), 1), &wanted));
    trial.succeed(swap_out(&[swap(1, 0, 2, 7)]));
    trial.backend.set_kv_done(LayerId(0), Generation(1));
    assert_eq!(trial.wait(waits), Outcome::Failed(Failure::Refused), "{rule}");
    trial.fail(fetch(A, 0, 5, None, &wanted), Failure::Refused);
    assert_eq!(
        (layer_blocks(&mut trial, [8]), trial.backend.kv_ready(A)),
        ([Some(8)], Generation(0)),
        "{rule}"
    );
    trial.succeed(fetch(A, 0, 6, None, &[swap(8, 1, 1, 5), swap(9, 1, 2, 7)]));
    assert_eq!(layer_blocks(&mut trial, [8, 9]), [Some(1); 2], "{rule}");
}

/// With the completion the host block has the new generation and no longer the old one; the device keeps its
/// copy.
pub fn written_back_layer_block_is_fetched_by_generation<B: Backend>() {
    let rule = "what is written back is fetched under its name";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let outcome = trial.run(write_back(&[swap(8, 1, 1, 7), swap(2, 0, HOST_BLOCKS - 1, 8)]));
    let bytes = 2 * geometry::<B>().layer_block_bytes;
    assert!(matches!(outcome, Outcome::Done { bytes: moved, .. } if moved == bytes), "{rule}: {outcome:?}");
    assert_eq!(layer_blocks(&mut trial, [8, 2]), [Some(8), Some(2)], "{rule}");
    trial.fail(fetch(A, 0, 4, None, &[swap(9, 1, 1, 5)]), Failure::Refused);
    trial.succeed(fetch(A, 0, 4, None, &[swap(9, 1, 1, 7), swap(10, 1, HOST_BLOCKS - 1, 8)]));
    assert_eq!(layer_blocks(&mut trial, [9, 10]), [Some(8), Some(2)], "{rule}");
    trial.succeed(swap_in(&[swap(3, 0, 1, 7)]));
    assert_eq!(layer_blocks(&mut trial, [3]), [Some(8)], "{rule}: a swap-in reads what a write-back named");
}

/// Returns pairs of a valid swap and an invalid one: a nonexistent or foreign location, or a duplicate name.
pub(super) fn contradictions() -> [[LayerBlockSwap; 2]; 6] {
    let wrong = [
        swap(9, 1, HOST_BLOCKS, 6),
        swap(9, 0, 2, 6),
        swap(9, 9, 2, 6),
        swap(16, 2, 2, 6),
        swap(9, 1, 1, 5),
        swap(8, 1, 2, 6),
    ];
    wrong.map(|wrong| [swap(8, 1, 1, 5), wrong])
}

/// Nonexistent or foreign locations, nonexistent layers, and duplicate names.
pub fn inconsistent_kv_copy_is_refused<B: Backend>() {
    let rule = "a copy of KV that contradicts the table is refused";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    for swaps in contradictions() {
        trial.fail(fetch(A, 0, 4, None, &swaps), Failure::Refused);
        trial.fail(write_back(&swaps), Failure::Refused);
    }
    let right = [swap(8, 1, 1, 5)];
    trial.fail(fetch(LayerId(LAYERS), 0, 4, None, &right), Failure::Refused);
    trial.fail(fetch(A, 0, 4, after(LayerId(LAYERS), 0), &right), Failure::Refused);
    assert_eq!(
        (layer_blocks(&mut trial, [8]), trial.backend.kv_ready(A)),
        ([Some(8)], Generation(0)),
        "{rule}"
    );
    trial.succeed(fetch(A, 0, 4, None, &right));
    assert_eq!(layer_blocks(&mut trial, [8]), [Some(1)], "{rule}: a refused write-back takes nothing away");
}

/// Waiting fetches complete as dropped, then the drop itself; a write-back completes as usual.
pub fn drop_fills_drops_fetches_but_not_write_backs<B: Backend>() {
    let rule = "dropping fills drops fetches and no write-back";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let never = after(LayerId(0), 9);
    let dropped =
        [fetch(A, 0, 4, never, &[swap(9, 1, 1, 5)]), fetch(B_LAYER, 0, 5, None, &[swap(9, 1, 2, 6)])]
            .map(|work| trial.submit(work));
    let stays = trial.submit(write_back(&[swap(8, 1, 3, 7)]));
    let drop = trial.submit(Work::DropFills);
    assert!(matches!(trial.wait(drop), Outcome::Done { .. }), "{rule}");
    for id in dropped {
        assert_eq!(trial.outcome(id), Some(Outcome::Failed(Failure::Dropped)), "{rule}");
        assert!(trial.completion_index(id) < trial.completion_index(drop), "{rule}: the drop ends last");
    }
    assert!(matches!(trial.wait(stays), Outcome::Done { .. }), "{rule}");
    trial.backend.set_kv_done(LayerId(0), Generation(9));
    trial.settle();
    assert_eq!(trial.backend.kv_ready(A), Generation(0), "{rule}: a dropped fetch publishes nothing");
    trial.succeed(fetch(A, 0, 6, None, &[swap(9, 1, 3, 7)]));
    assert_eq!(layer_blocks(&mut trial, [9]), [Some(8)], "{rule}");
}

/// A KV chunk is backed, KV is swapped out, fetched into the KV chunk and written back from there. All orders are
/// submitted at once, while the engine delays its acknowledgement.
pub fn kv_copy_waits_for_earlier_operations<B: Backend>() {
    let rule = "a copy of KV waits for operations before it";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    trial.backend.hold_engine(true);
    let orders = [
        remap(vec![map(THIRD, 2)]),
        fetch(A, 0, 4, None, &[swap(16, 2, 1, 5)]),
        swap_out(&[swap(8, 1, 3, 7)]),
        fetch(B_LAYER, 1, 5, None, &[swap(17, 2, 3, 7)]),
        write_back(&[swap(20, 2, 4, 8)]),
    ];
    let ids = orders.map(|work| trial.submit(work));
    trial.settle();
    assert!(ids.iter().all(|id| trial.outcome(*id).is_none()), "{rule}");
    trial.backend.hold_engine(false);
    trial.settle_after(&ids);
    assert!(ids.iter().all(|id| is_done(trial.outcome(*id))), "{rule}");
    assert_eq!(layer_blocks(&mut trial, [16, 17]), [Some(1), Some(8)], "{rule}");
}

/// While a fetch waits, no other order may use its block or unmap its chunk; the chunk's other blocks are
/// available.
pub fn fetch_target_memory_cannot_be_reused<B: Backend>() {
    let rule = "memory that KV is fetched to stays";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let activation = Address::Activation(0);
    trial.succeed(remap(vec![map(activation, 1)]));
    trial.submit(fetch(A, 0, 4, after(LayerId(0), 1), &[swap(9, 1, 1, 5)]));
    // The chunk's address from before it was KV may be unmapped.
    trial.succeed(remap(vec![unmap(activation, 1)]));
    let moved = |from, to| {
        let (from, to) = (LayerBlockId(from), LayerBlockId(to));
        let chunk = |layer_block: LayerBlockId| ChunkId(layer_block.0 / 8);
        Work::MoveLayerBlocks(vec![LayerBlockMove { from, from_chunk: chunk(from), to, to_chunk: chunk(to) }])
    };
    let handed_over = Transaction { ops: Vec::new(), handed_over: vec![ChunkId(1)] };
    let wrong = [
        remap(vec![unmap(OTHER, 1)]),
        Work::Transaction(handed_over),
        moved(9, 10),
        moved(8, 9),
        swap_out(&[swap(9, 1, 3, 7)]),
        swap_in(&[swap(9, 1, 2, 6)]),
        write_back(&[swap(9, 1, 3, 7)]),
    ];
    for work in wrong {
        trial.fail(work, Failure::Refused);
    }
    trial.succeed(moved(8, 10));
    trial.succeed(swap_out(&[swap(10, 1, 3, 7)]));
    trial.succeed(write_back(&[swap(8, 1, 4, 8)]));
    trial.succeed(Work::DropFills);
    trial.succeed(remap(vec![unmap(OTHER, 1)]));
}

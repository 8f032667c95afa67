//! Rules of the host tier: generations, locations, order.

use sluice_policy::action::{Address, FillTarget, LayerBlockSwap, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{Generation, KvChunkId, LayerBlockId, LayerId};

use super::backend::Backend;
use super::harness::{
    BackendTest, HOST_BLOCKS, chunks, fill, geometry, map, remap, swap, swap_in, swap_out, unmap,
};
use crate::Memory;

const KV_CHUNK: Address = Address::Kv(KvChunkId(0));
const OTHER: Address = Address::Kv(KvChunkId(1));

/// Maps KV chunk 0 to chunk 0 and KV chunk 1 to chunk 1; each block listed in `written` contains its own number as
/// the tag.
fn two_kv_chunks<B: Backend>(rule: &'static str, written: &[u32]) -> BackendTest<B> {
    let mut trial = BackendTest::<B>::with_chunks(rule, 4);
    trial.succeed(remap(vec![map(KV_CHUNK, 0), map(OTHER, 1)]));
    written.iter().for_each(|tag| trial.backend.write_layer_block(LayerBlockId(*tag), *tag));
    trial
}

fn layer_blocks<B: Backend, const N: usize>(
    trial: &mut BackendTest<B>,
    layer_blocks: [u32; N],
) -> [Option<u32>; N] {
    layer_blocks.map(|layer_block| trial.backend.layer_block(LayerBlockId(layer_block)))
}

/// Swaps several blocks out and into other blocks of another chunk. Neither direction changes its source.
pub fn swapped_out_layer_blocks_swap_in_to_other_chunks<B: Backend>() {
    let rule = "what goes out comes back elsewhere";
    let mut trial = two_kv_chunks::<B>(rule, &[1, 2, 6]);
    let bytes = 3 * geometry::<B>().layer_block_bytes;
    let moved = |outcome| matches!(outcome, Outcome::Done { bytes: moved, .. } if moved == bytes);
    let last = HOST_BLOCKS - 1;
    let out = [swap(1, 0, last, 7), swap(2, 0, 0, 8), swap(6, 0, 3, 9)];
    let outcome = trial.run(swap_out(&out));
    assert!(moved(outcome), "{rule}: {outcome:?}");
    assert_eq!(layer_blocks(&mut trial, [1, 2, 6]), [1, 2, 6].map(Some), "{rule}: the device's stay");
    [1, 2, 6]
        .into_iter()
        .for_each(|layer_block| trial.backend.write_layer_block(LayerBlockId(layer_block), 99));
    let back = [swap(15, 1, 0, 8), swap(8, 1, last, 7), swap(12, 1, 3, 9)];
    let outcome = trial.run(swap_in(&back));
    assert!(moved(outcome), "{rule}: {outcome:?}");
    assert_eq!(layer_blocks(&mut trial, [15, 8, 12]), [2, 1, 6].map(Some), "{rule}");
    trial.succeed(swap_in(&[swap(3, 0, 0, 8)]));
    assert_eq!(layer_blocks(&mut trial, [3]), [Some(2)], "{rule}: the host's stay");
}

/// One wrong generation makes the whole order fail, and nothing changes.
pub fn swap_in_with_stale_generation_is_refused<B: Backend>() {
    let rule = "a swap in names what the host block carries";
    let mut trial = two_kv_chunks::<B>(rule, &[1, 2, 8, 9]);
    trial.succeed(swap_out(&[swap(1, 0, 0, 5), swap(2, 0, 1, 6)]));
    for (host, generation) in [(1, 5), (1, 7), (2, 6), (2, 0)] {
        trial.fail(swap_in(&[swap(8, 1, 0, 5), swap(9, 1, host, generation)]), Failure::Refused);
        assert_eq!(layer_blocks(&mut trial, [8, 9]), [8, 9].map(Some), "{rule}: {host}, {generation}");
    }
    trial.succeed(swap_in(&[swap(8, 1, 0, 5), swap(9, 1, 1, 6)]));
    assert_eq!(layer_blocks(&mut trial, [8, 9]), [1, 2].map(Some), "{rule}");
}

/// The old generation is refused, whichever of the two contents it would select.
pub fn rewritten_host_block_has_only_new_generation<B: Backend>() {
    let rule = "a host block written again answers to its new name only";
    let mut trial = two_kv_chunks::<B>(rule, &[1, 2, 8]);
    trial.succeed(swap_out(&[swap(1, 0, 4, 5)]));
    trial.succeed(swap_out(&[swap(2, 0, 4, 6)]));
    trial.fail(swap_in(&[swap(8, 1, 4, 5)]), Failure::Refused);
    assert_eq!(layer_blocks(&mut trial, [8]), [Some(8)], "{rule}");
    trial.succeed(swap_in(&[swap(8, 1, 4, 6)]));
    assert_eq!(layer_blocks(&mut trial, [8]), [Some(2)], "{rule}");
}

/// Nonexistent locations, KV chunks backed by another chunk or none, chunks under a fill and duplicate names are
/// refused in both directions as a whole. The host block that the first swap names keeps its contents.
pub fn inconsistent_swap_is_refused<B: Backend>() {
    let rule = "a swap that contradicts the table is refused";
    let mut trial = two_kv_chunks::<B>(rule, &[1, 2, 3, 8]);
    trial.succeed(remap(vec![map(Address::Kv(KvChunkId(3)), 2)]));
    trial.succeed(swap_out(&[swap(1, 0, 0, 5), swap(3, 0, 1, 6)]));
    let never = Some((LayerId(0), Generation(1)));
    let waits = trial.submit(fill(FillTarget::Resident(LayerId(1)), 1, 2, never));
    let wrong: [LayerBlockSwap; 8] = [
        swap(8, 1, HOST_BLOCKS, 6),
        swap(8, 1, u32::MAX, 6),
        swap(8, 0, 1, 6),
        swap(8, 9, 1, 6),
        swap(16, 1, 1, 6),
        swap(24, 2, 1, 6),
        swap(8, 1, 0, 5),
        swap(2, 0, 1, 6),
    ];
    for second in wrong {
        for work in [swap_out, swap_in] {
            trial.fail(work(&[swap(2, 0, 0, 5), second]), Failure::Refused);
        }
    }
    assert_eq!(layer_blocks(&mut trial, [2, 8]), [2, 8].map(Some), "{rule}");
    trial.succeed(swap_in(&[swap(8, 1, 0, 5)]));
    assert_eq!(layer_blocks(&mut trial, [8]), [Some(1)], "{rule}: a refused swap out takes nothing away");
    trial.succeed(Work::DropFills);
    assert_eq!(trial.outcome(waits), Some(Outcome::Failed(Failure::Dropped)), "{rule}");
    let mut without = BackendTest::<B>::with_tier(rule, 0);
    without.succeed(Work::Create(chunks(0..1)));
    without.succeed(remap(vec![map(KV_CHUNK, 0)]));
    without.fail(swap_out(&[swap(0, 0, 0, 1)]), Failure::Refused);
}

/// A block is swapped out, its chunk is unmapped, released, created again and mapped elsewhere, and the block
/// is swapped in there. All orders are submitted at once, while the engine delays its acknowledgement.
pub fn swap_waits_for_earlier_operations<B: Backend>() {
    let rule = "a swap waits for what came before";
    let mut trial = two_kv_chunks::<B>(rule, &[3]);
    trial.backend.hold_engine(true);
    let third = Address::Kv(KvChunkId(2));
    let orders = [
        swap_out(&[swap(3, 0, 2, 5)]),
        remap(vec![unmap(KV_CHUNK, 0)]),
        Work::Release(chunks(0..1)),
        swap_out(&[swap(3, 0, 2, 6)]),
        Work::Create(chunks(0..1)),
        remap(vec![map(third, 0)]),
        swap_in(&[swap(20, 0, 2, 5)]),
    ];
    let ids = orders.map(|work| trial.submit(work));
    trial.settle_after(&ids[..1]);
    let done = |trial: &BackendTest<B>| ids.map(|id| trial.outcome(id).is_some());
    assert_eq!(done(&trial), [true, false, false, false, false, false, false], "{rule}");
    trial.backend.hold_engine(false);
    trial.settle_after(&ids);
    let failed = |id| matches!(trial.outcome(id), Some(Outcome::Failed(_)));
    assert_eq!(done(&trial), [true; 7], "{rule}");
    assert_eq!(ids.map(failed), [false, false, false, true, false, false, false], "{rule}");
    assert!(ids.map(|id| trial.completion_index(id)).is_sorted(), "{rule}");
    assert_eq!(trial.completed_count(), 2 + ids.len(), "{rule}: each ends once");
    assert_eq!(layer_blocks(&mut trial, [20]), [Some(3)], "{rule}");
    assert_eq!(
        trial.backend.memory().used_bytes(),
        4 * B::chunk_bytes(),
        "{rule}: the tier is no device memory"
    );
}

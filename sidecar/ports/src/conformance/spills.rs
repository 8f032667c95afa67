//! Rules of spills: KV that is copied from a buffer after the step that writes it.

use sluice_policy::action::{LayerBlockSwap, Spill, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{Generation, LayerBlockId, LayerId};

use super::async_copies::{
    A, B_LAYER, OTHER, after, contradictions, fetch, is_done, layer_blocks, with_offloaded_layer_blocks,
    write_back,
};
use super::backend::Backend;
use super::harness::{LAYERS, remap, swap, swap_in, swap_out, unmap};

fn spill(layer: LayerId, buffer: u8, after: u64, layer_blocks: &[LayerBlockSwap]) -> Work {
    Work::Spill(Spill { layer, buffer, after: Generation(after), layer_blocks: layer_blocks.to_vec() })
}

/// A spill copies what the engine has written when the step is done. A fetch into the buffer waits for the
/// spill even if nothing else blocks it; other buffers do not wait.
pub fn spill_waits_for_step_and_layer_blocks_fetch_into_its_buffer<B: Backend>() {
    let rule = "a spill waits for the step, and what enters the buffer waits for it";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let leaves = trial.submit(spill(A, 0, 4, &[swap(9, 1, 3, 7)]));
    let enters = trial.submit(fetch(B_LAYER, 0, 5, None, &[swap(9, 1, 1, 5)]));
    let other = trial.submit(fetch(LayerId(3), 1, 6, None, &[swap(10, 1, 2, 6)]));
    trial.backend.set_done(A, Generation(9));
    trial.backend.set_kv_done(A, Generation(3));
    trial.settle_after(&[other]);
    assert!(is_done(trial.outcome(other)), "{rule}: others do not wait with it");
    assert_eq!([leaves, enters].map(|id| trial.outcome(id)), [None; 2], "{rule}");
    trial.backend.write_layer_block(LayerBlockId(9), 77);
    trial.backend.set_kv_done(A, Generation(4));
    assert!(matches!(trial.wait(enters), Outcome::Done { .. }), "{rule}");
    assert!(
        is_done(trial.outcome(leaves)) && trial.completion_index(leaves) < trial.completion_index(enters),
        "{rule}"
    );
    assert_eq!(layer_blocks(&mut trial, [9]), [Some(1)], "{rule}: the buffer is the next layer's");
    trial.succeed(swap_in(&[swap(3, 0, 3, 7)]));
    assert_eq!(layer_blocks(&mut trial, [3]), [Some(77)], "{rule}: what the step wrote is in the host tier");
    assert_eq!(trial.backend.kv_ready(A), Generation(0), "{rule}: a spill publishes nothing");
}

/// A fetch for the next step into the same buffer runs after the spill, may name the blocks that the spill
/// writes, and loads their new contents.
pub fn fetch_after_spill_reads_spilled_layer_blocks<B: Backend>() {
    let rule = "what was spilt is fetched from behind it";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let leaves = trial.submit(spill(A, 0, 4, &[swap(8, 1, 3, 7), swap(9, 1, 1, 8)]));
    let fetched = trial.submit(fetch(A, 0, 5, after(A, 4), &[swap(10, 1, 3, 7), swap(11, 1, 1, 8)]));
    trial.fail(fetch(B_LAYER, 1, 6, None, &[swap(12, 1, 3, 7)]), Failure::Refused);
    trial.fail(write_back(&[swap(1, 0, 3, 9)]), Failure::Refused);
    trial.fail(swap_out(&[swap(1, 0, 1, 9)]), Failure::Refused);
    trial.fail(swap_in(&[swap(1, 0, 1, 5)]), Failure::Refused);
    trial.fail(spill(B_LAYER, 1, 6, &[swap(12, 1, 3, 9)]), Failure::Refused);
    assert_eq!([leaves, fetched].map(|id| trial.outcome(id)), [None; 2], "{rule}");
    trial.backend.write_layer_block(LayerBlockId(9), 77);
    trial.backend.set_kv_done(A, Generation(4));
    assert!(matches!(trial.wait(fetched), Outcome::Done { .. }), "{rule}: {:?}", trial.outcome(fetched));
    assert_eq!(layer_blocks(&mut trial, [10, 11]), [Some(8), Some(77)], "{rule}");
    trial.fail(fetch(B_LAYER, 1, 6, None, &[swap(12, 1, 1, 5)]), Failure::Refused);
}

/// Nonexistent or foreign locations, nonexistent layers and duplicate names are refused. While a spill waits,
/// no other order may use its blocks or unmap their chunk.
pub fn inconsistent_spill_is_refused_and_memory_kept<B: Backend>() {
    let rule = "a spill that contradicts the table is refused, and its memory stays";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    for swaps in contradictions() {
        trial.fail(spill(A, 0, 0, &swaps), Failure::Refused);
    }
    trial.fail(spill(LayerId(LAYERS), 0, 0, &[swap(8, 1, 3, 7)]), Failure::Refused);
    let waits = trial.submit(spill(A, 0, 4, &[swap(8, 1, 3, 7)]));
    trial.fail(remap(vec![unmap(OTHER, 1)]), Failure::Refused);
    trial.fail(write_back(&[swap(8, 1, 4, 8)]), Failure::Refused);
    trial.fail(swap_in(&[swap(8, 1, 1, 5)]), Failure::Refused);
    trial.backend.set_kv_done(A, Generation(4));
    assert!(matches!(trial.wait(waits), Outcome::Done { .. }), "{rule}: what was refused left nothing");
    trial.succeed(remap(vec![unmap(OTHER, 1)]));
}

/// A waiting spill is dropped with the fetches behind it, and its host blocks keep their contents.
pub fn drop_fills_drops_spills_and_keeps_host_blocks<B: Backend>() {
    let rule = "dropping fills drops spills and takes nothing away";
    let mut trial = with_offloaded_layer_blocks::<B>(rule);
    let orders = [spill(A, 0, 4, &[swap(9, 1, 1, 7)]), fetch(B_LAYER, 0, 5, None, &[swap(9, 1, 2, 6)])];
    let dropped = orders.map(|work| trial.submit(work));
    let drop = trial.submit(Work::DropFills);
    assert!(matches!(trial.wait(drop), Outcome::Done { .. }), "{rule}");
    for id in dropped {
        assert_eq!(trial.outcome(id), Some(Outcome::Failed(Failure::Dropped)), "{rule}");
        assert!(trial.completion_index(id) < trial.completion_index(drop), "{rule}: the drop ends last");
    }
    trial.backend.set_kv_done(A, Generation(4));
    trial.settle();
    trial.succeed(fetch(A, 1, 6, None, &[swap(10, 1, 1, 5)]));
    assert_eq!(layer_blocks(&mut trial, [10]), [Some(1)], "{rule}");
    trial.succeed(write_back(&[swap(8, 1, 1, 9)]));
}

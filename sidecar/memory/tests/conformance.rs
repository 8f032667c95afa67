//! The suite of `sluice-ports`, rule by rule: on host memory, and on a GPU in processes that `cuda` starts.

use sluice_policy::action::Address;
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Generation, LayerBlockId, LayerId, Nanos};
use sluice_ports::conformance::{self, Backend, SlabChunk};

use super::engine_mapping::on_gpu;
use super::harness::Harness;

impl Backend for Harness {
    type Memory = sluice_memory::DeviceMemory;

    fn chunk_bytes() -> u64 {
        // The granularity of a GPU.
        if on_gpu() { 2 << 20 } else { 64 << 10 }
    }

    fn start(geometry: &Geometry, host_blocks: u32) -> Self {
        let host_kv_bytes = u64::from(host_blocks) * geometry.layer_block_bytes;
        Harness::with(geometry, |options| options.host_kv_bytes = host_kv_bytes)
    }

    fn memory(&mut self) -> &mut Self::Memory {
        &mut self.memory
    }

    fn now(&mut self) -> Nanos {
        Nanos(0)
    }

    fn advance(&mut self) -> bool {
        Harness::advance(self)
    }

    fn hold_engine(&mut self, held: bool) {
        Harness::hold_engine(self, held);
    }

    fn set_done(&mut self, layer: LayerId, generation: Generation) {
        self.page.set_done(layer, generation);
    }

    fn set_kv_done(&mut self, layer: LayerId, generation: Generation) {
        self.page.set_kv_done(layer, generation);
    }

    fn kv_ready(&mut self, layer: LayerId) -> Generation {
        self.page.kv_ready(layer)
    }

    fn ready(&mut self, layer: Option<LayerId>) -> Generation {
        self.page.ready(layer)
    }

    fn contents(&mut self, address: Address) -> Option<SlabChunk> {
        Harness::contents(self, address)
    }

    fn write_layer_block(&mut self, layer_block: LayerBlockId, tag: u32) {
        Harness::write_layer_block(self, layer_block, tag);
    }

    fn layer_block(&mut self, layer_block: LayerBlockId) -> Option<u32> {
        Harness::layer_block(self, layer_block)
    }
}

macro_rules! rules {
    ($($rule:ident),+ $(,)?) => {
        $(#[test] fn $rule() { conformance::$rule::<Harness>(); })+
    };
}

rules!(
    every_action_completes_exactly_once,
    create_beyond_capacity_creates_no_chunk,
    released_chunks_can_be_recreated,
    inconsistent_operation_is_refused,
    a_refused_transaction_changes_nothing,
    a_chunk_backs_many_addresses,
    chunk_is_remapped_before_old_address_is_unmapped,
    chunk_with_two_owners_is_refused,
    mapped_chunk_cannot_be_released,
    a_remap_waits_for_the_engine,
    operations_take_effect_in_order,
    a_moved_layer_block_keeps_its_contents,
    fill_copies_slab_chunks_in_order,
    ready_is_published_with_the_completion,
    fill_waits_for_its_reader,
    fills_of_one_slot_run_in_the_order_submitted,
    drop_fills_drops_waiting_fills,
    swapped_out_layer_blocks_swap_in_to_other_chunks,
    swap_in_with_stale_generation_is_refused,
    rewritten_host_block_has_only_new_generation,
    inconsistent_swap_is_refused,
    swap_waits_for_earlier_operations,
    inconsistent_kv_copy_is_refused,
    kv_copy_waits_for_earlier_operations,
    fetch_copies_host_block_contents,
    fetch_with_stale_generation_is_refused,
    a_fetch_waits_for_the_reader_of_the_buffer,
    drop_fills_drops_fetches_but_not_write_backs,
    fetches_into_one_buffer_run_in_the_order_submitted,
    fetch_target_memory_cannot_be_reused,
    written_back_layer_block_is_fetched_by_generation,
    spill_waits_for_step_and_layer_blocks_fetch_into_its_buffer,
    fetch_after_spill_reads_spilled_layer_blocks,
    inconsistent_spill_is_refused_and_memory_kept,
    drop_fills_drops_spills_and_keeps_host_blocks,
);

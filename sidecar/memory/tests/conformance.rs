//! The suite of `sluice-ports`, rule by rule, on host memory.

use sluice_policy::action::Address;
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{BlockId, Generation, LayerId, Nanos};
use sluice_ports::conformance::{self, Body, SlabPart};

use super::world::World;

impl Body for World {
    type Memory = sluice_memory::HostMemory;

    fn start(geometry: &Geometry, host_blocks: u32) -> Self {
        let host_kv_bytes = u64::from(host_blocks) * geometry.block_bytes;
        World::with(geometry, |options| options.host_kv_bytes = host_kv_bytes)
    }

    fn memory(&mut self) -> &mut Self::Memory {
        &mut self.memory
    }

    fn now(&mut self) -> Nanos {
        Nanos(0)
    }

    fn advance(&mut self) -> bool {
        World::advance(self)
    }

    fn hold_engine(&mut self, held: bool) {
        World::hold_engine(self, held);
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

    fn contents(&mut self, address: Address) -> Option<SlabPart> {
        World::contents(self, address)
    }

    fn write_block(&mut self, block: BlockId, tag: u32) {
        World::write_block(self, block, tag);
    }

    fn block(&mut self, block: BlockId) -> Option<u32> {
        World::block(self, block)
    }
}

macro_rules! rules {
    ($($rule:ident),+ $(,)?) => {
        $(#[test] fn $rule() { conformance::$rule::<World>(); })+
    };
}

rules!(
    every_action_completes_exactly_once,
    creation_beyond_the_capacity_leaves_nothing,
    created_chunks_come_back,
    what_contradicts_the_table_is_refused,
    a_refused_transaction_changes_nothing,
    a_chunk_backs_many_addresses,
    a_chunk_is_mapped_anew_before_its_old_address_goes,
    a_chunk_of_two_owners_is_refused,
    a_chunk_that_is_mapped_is_not_released,
    a_reback_waits_for_the_engine,
    operations_take_effect_in_order,
    a_moved_block_keeps_its_contents,
    a_fill_puts_each_chunk_of_its_slab_in_order,
    ready_is_published_with_the_completion,
    a_fill_waits_for_the_reader_it_names,
    fills_of_one_slot_run_in_the_order_submitted,
    dropping_fills_drops_those_that_wait,
    what_goes_out_comes_back_elsewhere,
    a_swap_in_names_what_the_host_block_carries,
    a_host_block_written_again_answers_to_its_new_name_only,
    a_swap_that_contradicts_the_table_is_refused,
    a_swap_waits_for_what_came_before,
    a_copy_of_kv_that_contradicts_the_table_is_refused,
    a_copy_of_kv_waits_for_operations_before_it,
    a_fetch_brings_what_host_blocks_carry,
    a_fetch_names_what_the_host_block_carries,
    a_fetch_waits_for_the_reader_of_the_buffer,
    dropping_fills_drops_fetches_and_no_write_back,
    fetches_into_one_buffer_run_in_the_order_submitted,
    memory_that_kv_is_fetched_to_stays,
    what_is_written_back_is_fetched_under_its_name,
    a_spill_waits_for_the_step_and_what_enters_the_buffer_waits_for_it,
    what_was_spilt_is_fetched_from_behind_it,
    a_spill_that_contradicts_the_table_is_refused_and_its_memory_stays,
    dropping_fills_drops_spills_and_takes_nothing_away,
);

//! The contract of [`crate::Memory`] as a suite that every backend passes. Each rule is a function of its own; a backend
//! implements [`Body`] and calls [`run_all`], or the rules one by one.

mod beside;
mod copies;
mod harness;
mod spills;
mod table;
mod tier;

use sluice_policy::action::Address;
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{BlockId, Generation, LayerId, Nanos};

use crate::Memory;

pub use beside::{
    a_copy_of_kv_that_contradicts_the_table_is_refused, a_copy_of_kv_waits_for_operations_before_it,
    a_fetch_brings_what_host_blocks_carry, a_fetch_names_what_the_host_block_carries,
    a_fetch_waits_for_the_reader_of_the_buffer, dropping_fills_drops_fetches_and_no_write_back,
    fetches_into_one_buffer_run_in_the_order_submitted, memory_that_kv_is_fetched_to_stays,
    what_is_written_back_is_fetched_under_its_name,
};
pub use copies::{
    a_fill_puts_each_chunk_of_its_slab_in_order, a_fill_waits_for_the_reader_it_names,
    dropping_fills_drops_those_that_wait, fills_of_one_slot_run_in_the_order_submitted,
    ready_is_published_with_the_completion,
};
pub use spills::{
    a_spill_that_contradicts_the_table_is_refused_and_its_memory_stays,
    a_spill_waits_for_the_step_and_what_enters_the_buffer_waits_for_it,
    dropping_fills_drops_spills_and_takes_nothing_away, what_was_spilt_is_fetched_from_behind_it,
};
pub use table::{
    a_chunk_backs_many_addresses, a_chunk_is_mapped_anew_before_its_old_address_goes,
    a_chunk_of_two_owners_is_refused, a_chunk_that_is_mapped_is_not_released,
    a_moved_block_keeps_its_contents, a_reback_waits_for_the_engine, a_refused_transaction_changes_nothing,
    created_chunks_come_back, creation_beyond_the_capacity_leaves_nothing,
    every_action_completes_exactly_once, operations_take_effect_in_order,
    what_contradicts_the_table_is_refused,
};

pub use tier::{
    a_host_block_written_again_answers_to_its_new_name_only, a_swap_in_names_what_the_host_block_carries,
    a_swap_that_contradicts_the_table_is_refused, a_swap_waits_for_what_came_before,
    what_goes_out_comes_back_elsewhere,
};

/// Which slab's bytes, and which chunk of it, lie somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabPart {
    /// The layer; `None` = embeddings, head and final norm.
    pub layer: Option<LayerId>,
    /// Chunk of the slab, front first.
    pub part: u32,
}

/// A backend under test together with an engine that sees its memory.
pub trait Body {
    /// The backend.
    type Memory: Memory;

    /// A fresh backend of this geometry with a host tier of so many layer-blocks: no chunk exists, no host block carries
    /// anything, an engine is attached, every `done` and `ready` is 0, of weights and of KV.
    fn start(geometry: &Geometry, host_blocks: u32) -> Self;

    /// The backend.
    fn memory(&mut self) -> &mut Self::Memory;

    /// The time.
    fn now(&mut self) -> Nanos;

    /// Lets time pass, the engine's part in it done: a simulated body goes to the next completion, a real one waits a
    /// moment. False when nothing more will end by itself (a real body: after a generous wait without any).
    fn advance(&mut self) -> bool;

    /// While held, the engine acknowledges no transaction.
    fn hold_engine(&mut self, held: bool);

    /// The engine has read `generation` of `layer` for the last time.
    fn set_done(&mut self, layer: LayerId, generation: Generation);

    /// The engine has read `generation` of the KV of `layer` for the last time.
    fn set_kv_done(&mut self, layer: LayerId, generation: Generation);

    /// What is published as ready of a layer's KV.
    fn kv_ready(&mut self, layer: LayerId) -> Generation;

    /// What is published as ready for a layer; `None` as the layer asks for the global slab.
    fn ready(&mut self, layer: Option<LayerId>) -> Generation;

    /// What the engine reads at `address`; `None` when nothing backs it or it is no slab's part.
    fn contents(&mut self, address: Address) -> Option<SlabPart>;

    /// The engine writes a recognisable block.
    fn write_block(&mut self, block: BlockId, tag: u32);

    /// The tag of the block that the engine reads; `None` when nothing backs it or no tag was written.
    fn block(&mut self, block: BlockId) -> Option<u32>;
}

/// Runs every rule against a body. A broken rule panics and names itself.
pub fn run_all<B: Body>() {
    every_action_completes_exactly_once::<B>();
    creation_beyond_the_capacity_leaves_nothing::<B>();
    created_chunks_come_back::<B>();
    what_contradicts_the_table_is_refused::<B>();
    a_refused_transaction_changes_nothing::<B>();
    a_chunk_backs_many_addresses::<B>();
    a_chunk_is_mapped_anew_before_its_old_address_goes::<B>();
    a_chunk_of_two_owners_is_refused::<B>();
    a_chunk_that_is_mapped_is_not_released::<B>();
    a_reback_waits_for_the_engine::<B>();
    operations_take_effect_in_order::<B>();
    a_moved_block_keeps_its_contents::<B>();
    a_fill_puts_each_chunk_of_its_slab_in_order::<B>();
    ready_is_published_with_the_completion::<B>();
    a_fill_waits_for_the_reader_it_names::<B>();
    fills_of_one_slot_run_in_the_order_submitted::<B>();
    dropping_fills_drops_those_that_wait::<B>();
    what_goes_out_comes_back_elsewhere::<B>();
    a_swap_in_names_what_the_host_block_carries::<B>();
    a_host_block_written_again_answers_to_its_new_name_only::<B>();
    a_swap_that_contradicts_the_table_is_refused::<B>();
    a_swap_waits_for_what_came_before::<B>();
    a_copy_of_kv_that_contradicts_the_table_is_refused::<B>();
    a_copy_of_kv_waits_for_operations_before_it::<B>();
    a_fetch_brings_what_host_blocks_carry::<B>();
    a_fetch_names_what_the_host_block_carries::<B>();
    a_fetch_waits_for_the_reader_of_the_buffer::<B>();
    dropping_fills_drops_fetches_and_no_write_back::<B>();
    fetches_into_one_buffer_run_in_the_order_submitted::<B>();
    memory_that_kv_is_fetched_to_stays::<B>();
    what_is_written_back_is_fetched_under_its_name::<B>();
    a_spill_waits_for_the_step_and_what_enters_the_buffer_waits_for_it::<B>();
    what_was_spilt_is_fetched_from_behind_it::<B>();
    a_spill_that_contradicts_the_table_is_refused_and_its_memory_stays::<B>();
    dropping_fills_drops_spills_and_takes_nothing_away::<B>();
}

//! The contract of [`crate::Memory`] as a suite that every backend passes. Each rule is a function; a backend
//! implements [`Backend`] and calls [`run_all`] or single rules.

mod async_copies;
mod backend;
mod copies;
mod harness;
mod spills;
mod table;
mod tier;

pub use async_copies::{
    a_fetch_waits_for_the_reader_of_the_buffer, drop_fills_drops_fetches_but_not_write_backs,
    fetch_copies_host_block_contents, fetch_target_memory_cannot_be_reused,
    fetch_with_stale_generation_is_refused, fetches_into_one_buffer_run_in_the_order_submitted,
    inconsistent_kv_copy_is_refused, kv_copy_waits_for_earlier_operations,
    written_back_layer_block_is_fetched_by_generation,
};
pub use backend::{Backend, SlabChunk};
pub use copies::{
    drop_fills_drops_waiting_fills, fill_copies_slab_chunks_in_order, fill_waits_for_its_reader,
    fills_of_one_slot_run_in_the_order_submitted, ready_is_published_with_the_completion,
};
pub use spills::{
    drop_fills_drops_spills_and_keeps_host_blocks, fetch_after_spill_reads_spilled_layer_blocks,
    inconsistent_spill_is_refused_and_memory_kept,
    spill_waits_for_step_and_layer_blocks_fetch_into_its_buffer,
};
pub use table::{
    a_chunk_backs_many_addresses, a_moved_layer_block_keeps_its_contents,
    a_refused_transaction_changes_nothing, a_remap_waits_for_the_engine,
    chunk_is_remapped_before_old_address_is_unmapped, chunk_with_two_owners_is_refused,
    create_beyond_capacity_creates_no_chunk, every_action_completes_exactly_once,
    inconsistent_operation_is_refused, mapped_chunk_cannot_be_released, operations_take_effect_in_order,
    released_chunks_can_be_recreated,
};

pub use tier::{
    inconsistent_swap_is_refused, rewritten_host_block_has_only_new_generation,
    swap_in_with_stale_generation_is_refused, swap_waits_for_earlier_operations,
    swapped_out_layer_blocks_swap_in_to_other_chunks,
};

/// Runs every rule against a backend. A broken rule panics with its name.
pub fn run_all<B: Backend>() {
    every_action_completes_exactly_once::<B>();
    create_beyond_capacity_creates_no_chunk::<B>();
    released_chunks_can_be_recreated::<B>();
    inconsistent_operation_is_refused::<B>();
    a_refused_transaction_changes_nothing::<B>();
    a_chunk_backs_many_addresses::<B>();
    chunk_is_remapped_before_old_address_is_unmapped::<B>();
    chunk_with_two_owners_is_refused::<B>();
    mapped_chunk_cannot_be_released::<B>();
    a_remap_waits_for_the_engine::<B>();
    operations_take_effect_in_order::<B>();
    a_moved_layer_block_keeps_its_contents::<B>();
    fill_copies_slab_chunks_in_order::<B>();
    ready_is_published_with_the_completion::<B>();
    fill_waits_for_its_reader::<B>();
    fills_of_one_slot_run_in_the_order_submitted::<B>();
    drop_fills_drops_waiting_fills::<B>();
    swapped_out_layer_blocks_swap_in_to_other_chunks::<B>();
    swap_in_with_stale_generation_is_refused::<B>();
    rewritten_host_block_has_only_new_generation::<B>();
    inconsistent_swap_is_refused::<B>();
    swap_waits_for_earlier_operations::<B>();
    inconsistent_kv_copy_is_refused::<B>();
    kv_copy_waits_for_earlier_operations::<B>();
    fetch_copies_host_block_contents::<B>();
    fetch_with_stale_generation_is_refused::<B>();
    a_fetch_waits_for_the_reader_of_the_buffer::<B>();
    drop_fills_drops_fetches_but_not_write_backs::<B>();
    fetches_into_one_buffer_run_in_the_order_submitted::<B>();
    fetch_target_memory_cannot_be_reused::<B>();
    written_back_layer_block_is_fetched_by_generation::<B>();
    spill_waits_for_step_and_layer_blocks_fetch_into_its_buffer::<B>();
    fetch_after_spill_reads_spilled_layer_blocks::<B>();
    inconsistent_spill_is_refused_and_memory_kept::<B>();
    drop_fills_drops_spills_and_keeps_host_blocks::<B>();
}

//! The fixed numbers of decisions, which each run records.

use crate::offload::write_back;

/// Fixed constants of decisions by name, recorded with each run. The names are part of the records, so they stay.
pub const CONSTANTS: [(&str, u64); 13] = [
    ("most_stall_permille", crate::reclaim::MAX_STALL_PERMILLE),
    ("decline_memory_steps", crate::transition::DECLINE_MEMORY_STEPS),
    ("write_piece_ns", write_back::WRITE_PIECE_NS),
    ("most_piece_bytes", write_back::MAX_PIECE_BYTES),
    ("most_wait_ns", write_back::MAX_WAIT_NS),
    ("retry_boundaries", crate::transition::RETRY_BOUNDARIES),
    ("regrow_boundaries", crate::loans::REGROW_BOUNDARIES),
    ("regrow_piece_bytes", crate::loans::REGROW_PIECE_BYTES),
    ("idle_boundaries", crate::loans::IDLE_BOUNDARIES as u64),
    ("waited_permille", crate::cost::WAITED_PERMILLE),
    ("least_moving", crate::offload::MIN_MOVING_LAYERS as u64),
    ("swap_piece_bytes", crate::offload::host_copies::SWAP_PIECE_BYTES),
    ("patience_ns", crate::copy_priority::BACKGROUND_DEADLINE_NS),
];

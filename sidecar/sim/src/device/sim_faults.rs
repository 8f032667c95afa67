//! [`SimFaults`].

/// Fault model: faults with a chance each, and six planted bugs for negative controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimFaults {
    /// Copies and swaps that fail, permille.
    pub copy_fails_permille: u64,
    /// Copies and swaps that take ten times as long, permille.
    pub copy_slow_permille: u64,
    /// Mapping transactions, block moves and swaps that are refused, permille.
    pub refused_permille: u64,
    /// Creations that fail although memory is free, permille.
    pub create_fails_permille: u64,
    /// Number of chunks beyond which creations fail although the capacity would hold them.
    pub create_limit: Option<u32>,
    /// Whether the next step that samples finds no candidate in its first row, as with NaN logits.
    pub no_candidate: bool,
    /// Planted bug: `ready` is published when a copy starts.
    pub publish_early: bool,
    /// Planted bug: fills and fetches do not wait for the previous reader of the slot or buffer.
    pub ignore_after: bool,
    /// Planted bug: spills do not wait for the step that writes their blocks.
    pub spill_early: bool,
    /// Planted bug: the next fill that completes has wrong contents.
    pub flip_next_fill: bool,
    /// Planted bug: a transaction skips unmaps of addresses that it does not map again, and ownership is not checked.
    pub keep_unmapped: bool,
    /// Planted bug: the first block of a swap-in or fetch has the contents of the next host block.
    pub swap_in_wrong_layer_block: bool,
}

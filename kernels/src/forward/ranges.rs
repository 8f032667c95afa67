//! The memory of a step: constant addresses that the sidecar backs with chunks.

/// Base addresses of the engine's ranges.
#[derive(Clone, Debug)]
pub struct RangeParts {
    /// Slab of embeddings, head and final norm.
    pub global: *const u8,
    /// Slab of each layer, first layer first.
    pub layers: Vec<*const u8>,
    /// KV arena. Block `b` is at `kv + (b / layer_blocks_per_chunk) * chunk_bytes + (b % layer_blocks_per_chunk) *
    /// layer_block_bytes`.
    pub kv: *mut u8,
    /// Blocks in the arena. Every block id is below this number.
    pub layer_blocks: u32,
    /// Activation arena.
    pub activations: *mut u8,
    /// Backed bytes of the activation arena.
    pub activation_limit_bytes: u64,
}

/// The engine's ranges, valid by the contract of [`Ranges::new`].
#[derive(Debug)]
pub struct Ranges {
    parts: RangeParts,
}

// SAFETY: the addresses are plain numbers; the contract of `Ranges::new` makes their use from any thread sound.
unsafe impl Send for Ranges {}

impl Ranges {
    /// Wraps the addresses, for which the caller vouches.
    ///
    /// # Safety
    /// While the value exists: all addresses are multiples of 64; whenever [`super::Model::run`] runs, the global slab,
    /// and each layer's slab from the return of its `before_layer` to its `after_layer`, are readable for the bytes of
    /// [`sluice_link::slab::slab_layout`] and not written; every block that the batch names, and the activation arena
    /// up to its limit, are readable and writable; no other thread or process writes a layer's blocks of the batch from
    /// the return of its `before_layer` to its `after_layer`, nor reads or writes the activations. A logits view ends
    /// before the arena is unmapped.
    pub unsafe fn new(parts: RangeParts) -> Self {
        Ranges { parts }
    }

    /// Returns the addresses.
    pub fn parts(&self) -> &RangeParts {
        &self.parts
    }

    /// Sets the number of backed bytes of the activation arena.
    ///
    /// # Safety
    /// As for [`Ranges::new`]: the bytes must be readable and writable whenever a step runs.
    pub unsafe fn set_activation_limit(&mut self, bytes: u64) {
        self.parts.activation_limit_bytes = bytes;
    }
}

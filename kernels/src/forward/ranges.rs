//! The memory of a step: constant addresses that the sidecar backs with chunks.

/// Base addresses of the engine's ranges.
#[derive(Clone, Debug)]
pub struct RangeParts {
    /// Slab of embeddings, head and final norm.
    pub global: *const u8,
    /// Slab of each layer, front first.
    pub layers: Vec<*const u8>,
    /// KV arena. Block `b` lies at `kv + (b / blocks_per_chunk) * chunk_bytes + (b % blocks_per_chunk) * block_bytes`.
    pub kv: *mut u8,
    /// Blocks of the arena; ids are below it.
    pub kv_blocks: u32,
    /// Activation arena.
    pub activations: *mut u8,
    /// Bytes of it that are backed.
    pub activation_limit_bytes: u64,
}

/// The engine's ranges, vouched for by [`Ranges::new`].
#[derive(Debug)]
pub struct Ranges {
    parts: RangeParts,
}

// SAFETY: the addresses are plain numbers; `Ranges::new`'s contract makes their use from any thread sound.
unsafe impl Send for Ranges {}

impl Ranges {
    /// Vouches for the addresses.
    ///
    /// # Safety
    /// For as long as the value lives: all addresses are multiples of 64; whenever [`super::Model::run`] runs, the
    /// global slab, and each layer's slab from the return of its `before_layer` to its `after_layer`, are readable
    /// for the bytes of [`sluice_link::slab::slab_layout`] and not written by anybody; every block named by the
    /// batch, and the activation arena up to its limit, are readable and writable; nobody else writes a layer's blocks
    /// of the batch from the return of its `before_layer` to its `after_layer`, nor reads or writes the activations. A
    /// logits view ends before the arena is unmapped.
    pub unsafe fn new(parts: RangeParts) -> Self {
        Ranges { parts }
    }

    /// The addresses.
    pub fn parts(&self) -> &RangeParts {
        &self.parts
    }

    /// Sets how many bytes of the activation arena are backed.
    ///
    /// # Safety
    /// As for [`Ranges::new`]: the bytes must be readable and writable whenever a step runs.
    pub unsafe fn set_activation_limit(&mut self, bytes: u64) {
        self.parts.activation_limit_bytes = bytes;
    }
}

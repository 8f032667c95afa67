//! Typed ids and times. Integers in newtypes, so that for example a layer cannot be passed as a chunk.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the id as an index into a table with one entry per id.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(/// A unit of physical device memory, `0..capacity_chunks`.
    ChunkId(u32));
id!(/// A transformer layer, front first.
    LayerId(u16));
id!(/// A slot: the chunks of one slab, which the moving layers share in sequence.
    SlotId(u8));
id!(/// A chunk-sized position of the KV arena's virtual range. A KV chunk is backed by one chunk or by none.
    KvChunkId(u32));
id!(/// A layer block: 16 tokens of one layer's KV. Its id is `kv_chunk * layer_blocks_per_chunk + position in the chunk`.
    LayerBlockId(u32));
id!(/// A block of the host tier: space for one layer block in host memory, `0..host_kv_bytes / layer_block_bytes`.
    HostBlockId(u32));
id!(/// A KV block, what vLLM calls a block: the layer blocks of the same 16 tokens in all layers.
    KvBlockId(u32));
id!(/// The contents of a slot or layer at one time. Never reused: a copy or a step that names an old generation can
    /// never read one layer's weights as another's.
    Generation(u64));
id!(/// An ordered action whose completion is pending.
    ActionId(u64));
id!(/// A request, in order of arrival.
    RequestId(u64));
id!(/// A step of the engine.
    StepId(u64));
id!(/// A row of the shared block table and token history: one for each running sequence.
    RowId(u32));

/// Nanoseconds since an origin that the caller chooses. The policy never reads a clock; times are arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the nanoseconds from `earlier` to `self`; 0 if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns this time plus `ns`.
    pub const fn plus(self, ns: u64) -> Nanos {
        Nanos(self.0.saturating_add(ns))
    }
}

//! Names of things. Plain integers in newtypes, so that a layer cannot be passed where a chunk is meant.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an index into a table that has one entry for each id.
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
id!(/// A slot: the chunks of one slab, shared in turn by the moving layers.
    SlotId(u8));
id!(/// A chunk-sized position of the KV arena's virtual range. A frame is backed by one chunk or by none.
    FrameId(u32));
id!(/// A layer-block: 16 tokens of one layer's KV. `block = frame * blocks_per_chunk + position in the frame`.
    BlockId(u32));
id!(/// A block of the host tier: room for one layer-block in host memory, `0..host_kv_bytes / block_bytes`.
    HostBlockId(u32));
id!(/// A block column: the layer-blocks of the same 16 tokens in all layers.
    ColumnId(u32));
id!(/// The contents of a slot or layer at one moment. Never reused: a copy or a step that names an old generation can
    /// never read one layer's weights as another's.
    Generation(u64));
id!(/// An action that the policy ordered and whose completion is awaited.
    ActionId(u64));
id!(/// A request, in order of arrival.
    RequestId(u64));
id!(/// A step of the engine.
    StepId(u64));
id!(/// A row of the shared block table and token history: one for each running sequence.
    RowId(u32));

/// Time since an origin that the caller chose, in nanoseconds. Never read here, always an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Nanoseconds from `earlier` to `self`; 0 when `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This moment moved on by `ns`.
    pub const fn plus(self, ns: u64) -> Nanos {
        Nanos(self.0.saturating_add(ns))
    }
}

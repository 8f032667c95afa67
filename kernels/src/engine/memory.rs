//! The engine's view of the memory that the sidecar lends it: constant address ranges and the chunks that back them.

use sluice_link::message::EngineSetup;
use sluice_link::vocabulary::{Address, ChunkId, KvChunkId, LayerId};
use sluice_memory::CudaMapping;
use sluice_memory::mapping::{Mapping, Range};
use thiserror::Error;

/// An address that a step would touch and that is not backed.
#[derive(Debug, Error)]
pub(super) enum UnmappedAddress {
    /// The global range: embeddings, head and norms.
    #[error("the global range is not fully backed")]
    Global,
    /// The slab of a layer.
    #[error("layer {0} is not fully backed")]
    Layer(u16),
    /// A layer block.
    #[error("block {layer_block} lies in KV chunk {kv_chunk}, which is not backed")]
    LayerBlock {
        /// Id of the block.
        layer_block: u32,
        /// KV chunk of the block.
        kv_chunk: u32,
    },
    /// The activation range.
    #[error("{limit_bytes} bytes of activations are announced, but {backed_bytes} are backed")]
    Activations {
        /// Bytes that the order claims.
        limit_bytes: u64,
        /// Bytes backed from the front by chunks that back no other address.
        backed_bytes: u64,
    },
}

/// Which chunk backs each address, on any device.
pub(super) trait BackedAddresses {
    /// Returns the chunk behind `address`, if any.
    fn chunk_at(&self, address: Address) -> Option<ChunkId>;
    /// As [`Mapping::backed_prefix_chunks`].
    fn backed_prefix_chunks(&self, range: Range) -> u64;
    /// As [`Mapping::exclusive_prefix_chunks`].
    fn exclusive_prefix_chunks(&self, range: Range) -> u64;
    /// Returns the size of a chunk, bytes.
    fn chunk_bytes(&self) -> u64;
}

macro_rules! backed_addresses {
    ($mapping:ty) => {
        impl BackedAddresses for $mapping {
            fn chunk_at(&self, address: Address) -> Option<ChunkId> {
                <$mapping>::chunk_at(self, address)
            }

            fn backed_prefix_chunks(&self, range: Range) -> u64 {
                <$mapping>::backed_prefix_chunks(self, range)
            }

            fn exclusive_prefix_chunks(&self, range: Range) -> u64 {
                <$mapping>::exclusive_prefix_chunks(self, range)
            }

            fn chunk_bytes(&self) -> u64 {
                <$mapping>::chunk_bytes(self)
            }
        }
    };
}

backed_addresses!(Mapping);
backed_addresses!(CudaMapping);

/// Reserved ranges, and what of them is backed.
pub(super) struct EngineMemory<M> {
    mapping: M,
    layers: u16,
    global_bytes: u64,
    layer_bytes: u64,
    kv_chunks: u32,
    layer_blocks_per_chunk: u32,
    /// Computed after each change of backing, so that a step does not check every chunk.
    weights: Result<(), UnmappedAddress>,
    activation_bytes: u64,
}

impl<M: BackedAddresses> EngineMemory<M> {
    /// Creates the view of ranges without backing.
    pub(super) fn new(setup: &EngineSetup, mapping: M) -> EngineMemory<M> {
        let layout = setup.layout();
        EngineMemory {
            mapping,
            layers: setup.spec.layers,
            global_bytes: layout.global.bytes,
            layer_bytes: layout.layer.bytes,
            kv_chunks: setup.kv_chunks,
            layer_blocks_per_chunk: setup.layer_blocks_per_chunk(),
            weights: Err(UnmappedAddress::Global),
            activation_bytes: 0,
        }
    }

    /// Returns the mapping.
    pub(super) fn mapping(&self) -> &M {
        &self.mapping
    }

    /// Returns the blocks of the KV arena.
    pub(super) fn layer_blocks(&self) -> u32 {
        self.kv_chunks * self.layer_blocks_per_chunk
    }

    /// Changes the mapping, then computes what is backed.
    pub(super) fn change<R>(&mut self, change: impl FnOnce(&mut M) -> R) -> R {
        let outcome = change(&mut self.mapping);
        self.weights = self.find_weights();
        // A chunk that became KV may still back its old address: no step may claim it as activations.
        let chunks = self.mapping.exclusive_prefix_chunks(Range::Activation);
        self.activation_bytes = chunks * self.mapping.chunk_bytes();
        outcome
    }

    fn find_weights(&self) -> Result<(), UnmappedAddress> {
        let backed = |range| self.mapping.backed_prefix_chunks(range) * self.mapping.chunk_bytes();
        if backed(Range::Global) < self.global_bytes {
            return Err(UnmappedAddress::Global);
        }
        let mut layers = 0..self.layers;
        match layers.find(|layer| backed(Range::Layer(LayerId(*layer))) < self.layer_bytes) {
            Some(layer) => Err(UnmappedAddress::Layer(layer)),
            None => Ok(()),
        }
    }

    /// Whether every weight is backed.
    pub(super) fn check_weights(&self) -> Result<(), UnmappedAddress> {
        match self.weights {
            Ok(()) => Ok(()),
            Err(UnmappedAddress::Layer(layer)) => Err(UnmappedAddress::Layer(layer)),
            Err(_) => Err(UnmappedAddress::Global),
        }
    }

    /// Whether `limit_bytes` of the activation range are backed.
    pub(super) fn check_activations(&self, limit_bytes: u64) -> Result<(), UnmappedAddress> {
        let backed_bytes = self.activation_bytes;
        if limit_bytes <= backed_bytes {
            Ok(())
        } else {
            Err(UnmappedAddress::Activations { limit_bytes, backed_bytes })
        }
    }

    /// Whether `layer_block` is backed.
    pub(super) fn check_layer_block(&self, layer_block: u32) -> Result<(), UnmappedAddress> {
        let kv_chunk = layer_block / self.layer_blocks_per_chunk;
        match self.mapping.chunk_at(Address::Kv(KvChunkId(kv_chunk))) {
            Some(_) if kv_chunk < self.kv_chunks => Ok(()),
            _ => Err(UnmappedAddress::LayerBlock { layer_block, kv_chunk }),
        }
    }
}

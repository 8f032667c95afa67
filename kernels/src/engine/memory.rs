//! The engine's view of the memory that the sidecar lends it: constant address ranges and the chunks that back them.

use std::os::fd::{AsFd, OwnedFd};

use sluice_link::message::EngineSetup;
use sluice_link::vocabulary::{Address, KvChunkId, LayerId, MapOp};
use sluice_memory::mapping::{Mapping, MappingError, Range, RangeSizes};
use thiserror::Error;

use crate::forward::{RangeParts, Ranges};

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

/// Reserved ranges, backed by the sidecar's pool.
pub(super) struct EngineMemory {
    mapping: Mapping,
    pool: OwnedFd,
    layers: u16,
    global_bytes: u64,
    layer_bytes: u64,
    kv_chunks: u32,
    layer_blocks_per_chunk: u32,
    /// Computed after each change of backing, so that a step does not check every chunk.
    weights: Result<(), UnmappedAddress>,
    activation_bytes: u64,
}

impl EngineMemory {
    /// Reserves the ranges of `setup` without backing them.
    pub(super) fn reserve(setup: &EngineSetup, pool: OwnedFd) -> Result<EngineMemory, MappingError> {
        let layout = setup.layout();
        let sizes = RangeSizes {
            global_chunks: setup.global_chunks(),
            layer_chunks: vec![setup.layer_chunks(); usize::from(setup.spec.layers)],
            kv_chunks: setup.kv_chunks,
            activation_chunks: setup.activation_chunks,
            staging_chunks: setup.staging_chunks,
        };
        Ok(EngineMemory {
            mapping: Mapping::reserve(setup.chunk_bytes, sizes)?,
            pool,
            layers: setup.spec.layers,
            global_bytes: layout.global.bytes,
            layer_bytes: layout.layer.bytes,
            kv_chunks: setup.kv_chunks,
            layer_blocks_per_chunk: setup.layer_blocks_per_chunk(),
            weights: Err(UnmappedAddress::Global),
            activation_bytes: 0,
        })
    }

    /// Returns the addresses that a model computes over.
    pub(super) fn ranges(&self) -> Ranges {
        let layers = (0..self.layers).map(|layer| self.mapping.address(Range::Layer(LayerId(layer))));
        let parts = RangeParts {
            global: self.mapping.address(Range::Global),
            layers: layers.map(<*mut u8>::cast_const).collect(),
            kv: self.mapping.address(Range::Kv),
            layer_blocks: self.kv_chunks * self.layer_blocks_per_chunk,
            activations: self.mapping.address(Range::Activation),
            activation_limit_bytes: 0,
        };
        // SAFETY: the addresses are page-aligned and constant while `self.mapping` exists, and the worker keeps it as
        // long as the ranges. Before each run the worker checks that weights, the batch's blocks and the activations up
        // to their limit are backed, and backing never changes during a run. The sidecar guarantees that no other
        // process writes them: it fills a slot only between `done` and `ready`.
        unsafe { Ranges::new(parts) }
    }

    /// Applies all of `ops`, in order, or none of them. After [`MappingError::RollbackFailed`] no step may run.
    pub(super) fn apply(&mut self, ops: &[MapOp]) -> Result<(), MappingError> {
        let outcome = self.mapping.apply_all(self.pool.as_fd(), ops);
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

    /// Fills the first `bytes` of the activation range with NaN (tests only). The caller has checked that they are
    /// backed.
    pub(super) fn poison_activations(&mut self, bytes: u64) {
        assert!(bytes <= self.activation_bytes, "only backed memory is poisoned");
        // SAFETY: the assertion checks that the bytes are backed, and this process does not use them between steps.
        unsafe { self.mapping.address(Range::Activation).write_bytes(0xff, bytes as usize) };
    }
}

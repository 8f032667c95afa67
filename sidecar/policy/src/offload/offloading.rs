//! The parts that carry out decisions about offloaded KV, and all that they may change.

use super::Offload;
use super::view::OffloadView;
use crate::chunks::Chunks;
use crate::cost::StepStats;
use crate::geometry::Geometry;
use crate::ids::{ChunkId, LayerBlockId};
use crate::kv::Kv;
use crate::orders::Orders;
use crate::params::Params;
use crate::sizes::Sizes;
use crate::slots::Generations;

/// KV, its offload, and the orders that move it. Each file of this folder adds the methods of one question.
#[derive(Debug)]
pub struct Offloading<'a> {
    pub kv: &'a mut Kv,
    pub offload: &'a mut Offload,
    pub orders: &'a mut Orders,
    pub generations: &'a mut Generations,
    pub step_stats: &'a mut StepStats,
    pub chunks: &'a Chunks,
    pub params: &'a Params,
    pub sizes: &'a Sizes,
    pub geometry: &'a Geometry,
    /// A change of chunks failed a moment ago.
    pub in_backoff: bool,
    /// The tenant has failed: no copy is ordered again.
    pub has_failed: bool,
}

impl Offloading<'_> {
    /// The same parts for decisions, which change nothing.
    pub fn view(&self) -> OffloadView<'_> {
        OffloadView {
            kv: self.kv,
            offload: self.offload,
            chunks: self.chunks,
            step_stats: self.step_stats,
            params: self.params,
            sizes: self.sizes,
            geometry: self.geometry,
            boundary: self.orders.boundaries(),
            in_backoff: self.in_backoff,
        }
    }

    /// The chunk of a layer block.
    pub(super) fn chunk_of(&self, layer_block: LayerBlockId) -> ChunkId {
        self.chunks.ownership().chunk_of(layer_block, self.sizes.layer_blocks_per_chunk)
    }
}

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
    /// The backend failed within the back-off.
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::chunks::tests::{geometry, loaded};
    use crate::ids::{KvChunkId, RequestId};
    use crate::kv::admissions::AdmissionEffects;
    use crate::reclaim::PolicyName;

    /// The parts of a tenant with four layers, two KV chunks of one KV block each, and a host tier of eight KV blocks.
    pub struct Parts {
        pub kv: Kv,
        pub offload: Offload,
        pub orders: Orders,
        generations: Generations,
        step_stats: StepStats,
        chunks: Chunks,
        params: Params,
        sizes: Sizes,
        geometry: Geometry,
    }

    impl Parts {
        pub fn new(policy: PolicyName) -> Parts {
            Parts::with(Params { policy, host_kv_bytes: 8 * 64, ..Params::default() })
        }

        pub fn with(params: Params) -> Parts {
            let geometry = geometry();
            let params =
                Params { max_model_tokens: 16, guaranteed_kv_bytes: 64, kv_limit_bytes: 128, ..params };
            let sizes = Sizes::new(&params, &geometry).unwrap();
            let mut kv = Kv::new(sizes.layers, 2, 4, sizes.host_kv_blocks, true);
            (0..2).for_each(|kv_chunk| kv.chunk_pool_mut().back(KvChunkId(kv_chunk)));
            Parts {
                kv,
                offload: Offload::new(&params, sizes.layers, sizes.host_kv_blocks),
                orders: Orders::new(true),
                generations: Generations::default(),
                step_stats: StepStats::new(&params, &geometry.slab_bytes),
                chunks: loaded(),
                params,
                sizes,
                geometry,
            }
        }

        pub fn parts(&mut self) -> Offloading<'_> {
            Offloading {
                kv: &mut self.kv,
                offload: &mut self.offload,
                orders: &mut self.orders,
                generations: &mut self.generations,
                step_stats: &mut self.step_stats,
                chunks: &self.chunks,
                params: &self.params,
                sizes: &self.sizes,
                geometry: &self.geometry,
                in_backoff: false,
                has_failed: false,
            }
        }

        /// Opens a request and computes `kv_blocks` full KV blocks of it.
        pub fn run(&mut self, request: RequestId, kv_blocks: u32) {
            let prefix = self.kv.cached_prefix(request.0, &[]);
            self.kv.open(request, &prefix);
            self.kv.allocate(&[(request, kv_blocks)], &mut self.generations);
            (0..kv_blocks).for_each(|_| self.kv.on_tokens_computed(request, &[0; 16]));
        }

        pub fn no_admissions() -> AdmissionEffects {
            AdmissionEffects::default()
        }
    }

    #[test]
    fn decisions_see_the_state_that_they_change() {
        let mut parts = Parts::new(PolicyName::OrbitFlow);
        parts.run(RequestId(1), 1);
        let spare = parts.parts().view().spare_layer_blocks();
        parts.run(RequestId(2), 1);
        let view = parts.parts();
        assert_eq!((spare, view.view().spare_layer_blocks(), view.view().running()), (4, 0, 2));
        assert!(view.view().kv_is_short(), "no block is free for the next tokens");
    }
}

//! Tracks the KV of requests: KV chunks, KV blocks and the prefix cache. The memory manager decides which KV chunks
//! have chunks.

use alloc::vec::Vec;

use crate::digest::Digest;
use crate::ids::{KvBlockId, RequestId};
use crate::slots::Generations;

pub mod admissions;
pub mod blocks;
pub mod cached_prefix;
mod check;
pub mod chunk_pool;
pub mod compact;
mod host_kv_pool;
pub mod layer_offload;
mod lost_requests;
mod missing_kv;
mod missing_layer_blocks;
mod plan_admissions;
mod prefix;
mod prefix_cache;
mod references;
pub mod request_kv;
mod requests;
mod swap;
pub mod table_change;
mod transfers;

use blocks::KvBlocks;
use chunk_pool::KvChunkPool;
use host_kv_pool::HostKvPool;
use layer_offload::LayerOffload;
use lost_requests::LostRequests;
use missing_layer_blocks::MissingLayerBlocks;
use prefix_cache::PrefixCache;
use requests::Requests;
pub use swap::Swap;
use table_change::TableChange;
use transfers::Transfers;

/// Statistics of KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// KV chunks with a chunk.
    pub kv_chunks: u32,
    /// KV chunks that accept no new blocks.
    pub draining_kv_chunks: u32,
    /// Blocks of all backed KV chunks.
    pub total_layer_blocks: u32,
    /// Blocks that may be allocated.
    pub free_layer_blocks: u32,
    /// Blocks held by KV blocks or reserved for moves.
    pub used_layer_blocks: u32,
    /// KV blocks that a request references.
    pub used_kv_blocks: u32,
    /// KV blocks on the device kept only as cache.
    pub idle_kv_blocks: u32,
    /// KV blocks in the prefix index, used or not, on the device or in the host tier.
    pub shareable_kv_blocks: u32,
    /// KV blocks in the host tier.
    pub host_kv_blocks: u32,
    /// Capacity of the host tier, KV blocks.
    pub host_limit_kv_blocks: u32,
    /// Free blocks in KV chunks that are not empty, permille of all free blocks.
    pub fragmentation_permille: u32,
}

/// The KV of all requests of a tenant.
///
/// Each part owns its state and knows nothing of the others. A method here needs several of them; questions of one part
/// are its own methods ([`Kv::requests`], [`Kv::layer_offload`] and others).
#[derive(Clone, Debug)]
pub struct Kv {
    layers: u32,
    /// Chunks of KV, and the layer blocks in them.
    chunk_pool: KvChunkPool,
    /// All KV blocks.
    kv_blocks: KvBlocks,
    /// Shareable KV blocks, and those on the device that are only cache.
    prefix_cache: PrefixCache,
    /// The host tier.
    host_pool: HostKvPool,
    /// KV blocks that running requests need on the device and that are not completely there.
    missing_layer_blocks: MissingLayerBlocks,
    /// KV blocks that are being copied to or from the host tier.
    transfers: Transfers,
    /// KV that is offloaded while its requests run.
    layer_offload: LayerOffload,
    /// The KV blocks of each request.
    requests: Requests,
    /// Requests whose KV was lost in a failed copy.
    lost_requests: LostRequests,
    history: Digest,
}

impl Kv {
    /// Returns KV with an arena of `kv_chunks` positions, for a model of `layers` layers, and a host tier of
    /// `host_kv_blocks` KV blocks.
    pub fn new(
        layers: u16,
        kv_chunks: u32,
        layer_blocks_per_chunk: u32,
        host_kv_blocks: u32,
        caching: bool,
    ) -> Kv {
        Kv {
            layers: u32::from(layers),
            chunk_pool: KvChunkPool::new(kv_chunks, layer_blocks_per_chunk),
            kv_blocks: KvBlocks::new(layers),
            prefix_cache: PrefixCache::new(caching),
            host_pool: HostKvPool::new(host_kv_blocks),
            missing_layer_blocks: MissingLayerBlocks::default(),
            transfers: Transfers::default(),
            layer_offload: LayerOffload::new(layers),
            requests: Requests::default(),
            lost_requests: LostRequests::default(),
            history: Digest::new(0),
        }
    }

    /// Returns the arena.
    pub fn chunk_pool(&self) -> &KvChunkPool {
        &self.chunk_pool
    }

    /// Returns the arena for changes of its chunks.
    pub fn chunk_pool_mut(&mut self) -> &mut KvChunkPool {
        &mut self.chunk_pool
    }

    /// Returns the KV blocks.
    pub fn blocks(&self) -> &KvBlocks {
        &self.kv_blocks
    }

    /// Returns the prefix cache.
    pub fn prefix_cache(&self) -> &PrefixCache {
        &self.prefix_cache
    }

    /// Returns the host tier.
    pub fn host_pool(&self) -> &HostKvPool {
        &self.host_pool
    }

    /// Returns the KV blocks that are being copied.
    pub fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    /// Returns the state of KV that is offloaded while its requests run.
    pub fn layer_offload(&self) -> &LayerOffload {
        &self.layer_offload
    }

    /// Returns the requests with KV.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Returns the number of layers, which is the number of blocks of a KV block.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Returns the KV chunks beyond `guaranteed` ones that could be emptied without dropping a block in use.
    pub fn idle_chunks_above(&self, guaranteed: u32) -> u32 {
        let idle = self.chunk_pool.free_layer_blocks() + self.evictable_layer_blocks();
        (idle / self.chunk_pool.layer_blocks_per_chunk()).min(self.chunk_pool.above(guaranteed))
    }

    /// Allocates new KV blocks to the requests. The caller ensures enough free blocks, and enough host places for
    /// offloaded prefills.
    pub fn allocate(&mut self, needs: &[(RequestId, u32)], generations: &mut Generations) {
        let mut layer_blocks = Vec::new();
        for (request, count) in needs {
            if self.layer_offload.is_spilling_prefill(*request) {
                self.allocate_out(*request, *count, generations);
                continue;
            }
            for _ in 0..*count {
                let id = self.kv_blocks.add();
                layer_blocks.clear();
                self.chunk_pool.take(self.layers, id, &mut layer_blocks);
                self.kv_blocks.set_layer_blocks(id, &layer_blocks);
                self.append(*request, id);
            }
        }
    }

    /// Closes a request. Shareable KV blocks stay as cache up to the first KV block that is partly in buffers and loses
    /// its last user: that one is evicted, and later KV blocks could not be found without it.
    pub fn close(&mut self, request: RequestId) {
        let Some(kv_blocks) = self.requests.close(request) else { return };
        self.history.word(!request.0);
        self.layer_offload.forget_request(request);
        let partial = |id: &KvBlockId| self.kv_blocks.has_layer_blocks(*id) && !self.kv_blocks.is_whole(*id);
        let discarded = |id: &KvBlockId| self.kv_blocks.get(*id).refs == 1 && partial(id);
        let kept = kv_blocks.iter().position(discarded).unwrap_or(kv_blocks.len());
        // Children first, so that the prefix cache evicts them before their parents.
        for (at, id) in kv_blocks.into_iter().enumerate().rev() {
            if at < kept { self.release_reference(id) } else { self.discard(id) }
        }
        // KV that only suspended requests use is not loaded.
        if !self.missing_layer_blocks.is_empty() {
            let running = self.requests.kv_blocks_of_running();
            self.missing_layer_blocks.retain(|id| running.contains(id));
        }
    }

    /// Returns every KV block of an open request whose blocks are new or moved since the last call.
    pub fn take_table_changes(&mut self) -> Vec<TableChange> {
        let (kv_blocks, offload) = (&self.kv_blocks, &self.layer_offload);
        let change = |((request, kv_block), id)| {
            let layer_blocks = offload.table_layer_blocks(id, kv_blocks);
            TableChange { request, kv_block, layer_blocks }
        };
        self.requests.take_changed_rows().map(change).collect()
    }

    /// Takes the requests whose KV was lost in a failed copy.
    pub fn take_lost_requests(&mut self) -> Vec<RequestId> {
        self.lost_requests.take()
    }

    /// Returns the statistics.
    pub fn counts(&self) -> KvCounts {
        let free = self.chunk_pool.free_layer_blocks();
        let whole = self.chunk_pool.empty()
            * self.chunk_pool.total_layer_blocks().checked_div(self.chunk_pool.backed()).unwrap_or(0);
        let scattered = u64::from(free - whole) * 1000;
        let live = self.kv_blocks.iter().count() as u32;
        KvCounts {
            kv_chunks: self.chunk_pool.backed(),
            draining_kv_chunks: self.chunk_pool.draining().len() as u32,
            total_layer_blocks: self.chunk_pool.total_layer_blocks(),
            free_layer_blocks: free,
            used_layer_blocks: self.chunk_pool.used_layer_blocks(),
            used_kv_blocks: live - self.prefix_cache.idle_count() - self.host_pool.idle(),
            idle_kv_blocks: self.prefix_cache.idle_count(),
            shareable_kv_blocks: self.prefix_cache.shareable(),
            host_kv_blocks: self.host_pool.used(),
            host_limit_kv_blocks: self.host_pool.kv_blocks(),
            fragmentation_permille: scattered.checked_div(u64::from(free)).unwrap_or(0) as u32,
        }
    }

    /// Returns a fingerprint of all KV operations.
    pub fn digest(&self) -> u64 {
        self.history.value()
    }
}

//! Tracks the KV of requests: frames, columns and the prefix cache. The memory manager decides which frames have
//! chunks.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::digest::Digest;
use crate::geometry::BLOCK_TOKENS;
use crate::ids::{BlockId, ColumnId, RequestId};
use crate::layer_set::LayerSet;
use crate::memory_manager::TableChange;
use crate::slots::Generations;

mod check;
pub mod columns;
pub mod compact;
pub mod frames;
mod host_kv_pool;
pub mod layer_offload;
mod missing_blocks;
mod prefix;
mod swap;

use columns::{Columns, Tokens};
use frames::Frames;
use host_kv_pool::HostKvPool;
use layer_offload::LayerOffload;
use missing_blocks::MissingBlocks;
pub use swap::Swap;

/// KV of one request.
#[derive(Clone, Debug)]
struct Sequence {
    salt: u64,
    columns: Vec<ColumnId>,
    /// Full columns with known tokens.
    full: u32,
    /// Columns already checked for write-back.
    written: u32,
    /// Whether it is suspended: it does not run, and its KV is kept.
    suspended: bool,
    /// Committed tokens after the last full column.
    tail: Vec<u32>,
    /// Name and hash of the last full column (0 and the salt's hash before the first). `None` if the chain is broken,
    /// so that no later column may be shared.
    chain: Option<(u64, u64)>,
}

/// Statistics of KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// Frames with a chunk.
    pub frames: u32,
    /// Frames that accept no new blocks.
    pub draining_frames: u32,
    /// Blocks of all backed frames.
    pub total_blocks: u32,
    /// Blocks that may be allocated.
    pub free_blocks: u32,
    /// Blocks held by columns or reserved for moves.
    pub used_blocks: u32,
    /// Columns that a request references.
    pub used_columns: u32,
    /// Columns on the device kept only as cache.
    pub idle_columns: u32,
    /// Columns in the prefix index, used or not, on the device or in the host tier.
    pub shareable_columns: u32,
    /// Columns in the host tier.
    pub host_columns: u32,
    /// Capacity of the host tier, columns.
    pub host_limit_columns: u32,
    /// Free blocks in frames that are not empty, permille of all free blocks.
    pub fragmentation_permille: u32,
}

/// The KV of all requests of a tenant.
#[derive(Clone, Debug)]
pub struct Kv {
    layers: u32,
    caching: bool,
    frames: Frames,
    columns: Columns,
    /// Shareable columns by hash.
    index: BTreeMap<u64, ColumnId>,
    /// Shareable columns on the device without references, least recently used first. A child is always older than its
    /// parent.
    idle: BTreeMap<u64, ColumnId>,
    /// The host tier.
    host_pool: HostKvPool,
    /// Columns that running requests need on the device and that are not completely there.
    missing_blocks: MissingBlocks,
    /// Columns being copied to or from the host tier between steps.
    moving_columns: Vec<ColumnId>,
    /// Columns being loaded from the host tier in parallel with steps; no step reads them yet.
    loading_swaps: BTreeSet<ColumnId>,
    /// KV that is offloaded while its requests run.
    layer_offload: LayerOffload,
    sequences: BTreeMap<RequestId, Sequence>,
    /// Columns whose current blocks the engine does not know.
    dirty: BTreeSet<(RequestId, u32)>,
    next_name: u64,
    next_stamp: u64,
    hash: fn(u64, &Tokens) -> u64,
    history: Digest,
}

impl Kv {
    /// Returns KV with an arena of `frames` positions, for a model of `layers` layers, and a host tier of
    /// `host_columns` columns.
    pub fn new(layers: u16, frames: u32, blocks_per_chunk: u32, host_columns: u32, caching: bool) -> Kv {
        Kv {
            layers: u32::from(layers),
            caching,
            frames: Frames::new(frames, blocks_per_chunk),
            columns: Columns::new(layers),
            index: BTreeMap::new(),
            idle: BTreeMap::new(),
            host_pool: HostKvPool::new(host_columns),
            missing_blocks: MissingBlocks::default(),
            moving_columns: Vec::new(),
            loading_swaps: BTreeSet::new(),
            layer_offload: LayerOffload::default(),
            sequences: BTreeMap::new(),
            dirty: BTreeSet::new(),
            next_name: 1,
            next_stamp: 0,
            hash: prefix::chained_hash,
            history: Digest::new(0),
        }
    }

    /// Returns the arena.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Returns the arena for changes of its chunks.
    pub fn frames_mut(&mut self) -> &mut Frames {
        &mut self.frames
    }

    /// Returns the number of layers, which is the number of blocks of a column.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Returns the columns that a request holds.
    pub fn columns(&self, request: RequestId) -> u32 {
        self.sequences.get(&request).map_or(0, |s| s.columns.len() as u32)
    }

    /// Returns the device blocks that evicting all unreferenced columns would free.
    pub fn evictable_blocks(&self) -> u32 {
        self.idle.len() as u32 * self.layers
    }

    /// Allocates new columns to the requests. The caller ensures enough free blocks, and enough host places for
    /// offloaded prefills.
    pub fn allocate(&mut self, needs: &[(RequestId, u32)], generations: &mut Generations) {
        let mut blocks = Vec::new();
        for (request, count) in needs {
            if self.is_spilling_prefill(*request) {
                self.allocate_out(*request, *count, generations);
                continue;
            }
            for _ in 0..*count {
                let id = self.columns.add();
                blocks.clear();
                self.frames.take(self.layers, id, &mut blocks);
                self.columns.set_blocks(id, &blocks);
                self.append(*request, id);
            }
        }
    }

    fn append(&mut self, request: RequestId, id: ColumnId) {
        let sequence = self.sequences.get_mut(&request).expect("columns go to an open request");
        let at = sequence.columns.len() as u32;
        sequence.columns.push(id);
        self.dirty.insert((request, at));
        self.history.word(request.0 << 32 ^ u64::from(id.0));
        self.history.word(u64::from(self.columns.blocks(id)[0].0));
    }

    /// Closes a request. Shareable columns stay as cache up to the first column that is partly in buffers and loses its
    /// last user: that one is evicted, and later columns could not be found without it.
    pub fn close(&mut self, request: RequestId) {
        let Some(sequence) = self.sequences.remove(&request) else { return };
        self.history.word(!request.0);
        self.layer_offload.forget_request(request);
        let stale: Vec<_> = self.dirty.range((request, 0)..=(request, u32::MAX)).copied().collect();
        stale.iter().for_each(|entry| {
            self.dirty.remove(entry);
        });
        let parted = |id: &ColumnId| self.columns.has_blocks(*id) && !self.columns.is_whole(*id);
        let going = |id: &ColumnId| self.columns.get(*id).refs == 1 && parted(id);
        let kept = sequence.columns.iter().position(going).unwrap_or(sequence.columns.len());
        // Children first, so that the prefix cache evicts them before their parents.
        for (at, id) in sequence.columns.into_iter().enumerate().rev() {
            if at < kept { self.release_reference(id) } else { self.discard(id) }
        }
    }

    /// Drops one reference; an unreferenced column is evicted.
    fn discard(&mut self, id: ColumnId) {
        let column = self.columns.get_mut(id);
        column.refs -= 1;
        self.missing_blocks.recheck(id);
        let column = self.columns.get(id);
        match (column.refs, &column.content) {
            (0, Some(_)) => self.evict_column(id),
            (0, None) => self.free(id),
            _ => {}
        }
    }

    /// Drops one reference; an unreferenced shareable column becomes cache.
    fn release_reference(&mut self, id: ColumnId) {
        let column = self.columns.get_mut(id);
        column.refs -= 1;
        if column.refs > 0 {
            return;
        }
        self.missing_blocks.recheck(id);
        let column = self.columns.get(id);
        let Some(parent) = column.content.as_ref().map(|content| content.parent) else {
            return self.free(id);
        };
        if !self.columns.has_blocks(id) {
            let stamp = self.stamp(id);
            return self.host_pool.keep(stamp, parent, id);
        }
        if !self.columns.is_whole(id) {
            return self.evict_column(id);
        }
        self.release_host_place(id);
        let stamp = self.stamp(id);
        self.idle.insert(stamp, id);
    }

    fn stamp(&mut self, id: ColumnId) -> u64 {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        self.columns.get_mut(id).stamp = stamp;
        stamp
    }

    /// Frees the column's place in the host tier, and its staging slot.
    fn release_host_place(&mut self, id: ColumnId) {
        let (seat, stowed) =
            (self.columns.set_staging_slot(id, None), self.columns.get_mut(id).host_location.take());
        self.missing_blocks.recheck(id);
        self.columns.get_mut(id).hosted_layers = LayerSet::NONE;
        if let Some(stowed) = stowed {
            self.pin_place(seat, stowed.place);
        }
    }

    fn free(&mut self, id: ColumnId) {
        self.release_host_place(id);
        self.frames.give(&self.columns.take_blocks(id));
        self.columns.remove(id);
    }

    /// Evicts the least recently used unreferenced column on the device, with all its descendants in the host tier.
    /// Returns whether there was one.
    pub fn evict(&mut self) -> bool {
        let Some((_, id)) = self.idle.pop_first() else { return false };
        self.evict_column(id);
        true
    }

    /// Evicts an unreferenced column. Its descendants in the host tier could never be found again and are evicted too.
    fn evict_column(&mut self, id: ColumnId) {
        let mut orphans = alloc::vec![id];
        while let Some(id) = orphans.pop() {
            let name = self.unpublish(id).expect("an idle column is shareable");
            self.free(id);
            orphans.extend(self.host_pool.take_children(name, &self.columns));
        }
    }

    /// Removes the column from the prefix index. Returns its name.
    fn unpublish(&mut self, id: ColumnId) -> Option<u64> {
        let content = self.columns.get_mut(id).content.take()?;
        self.index.remove(&content.hash);
        self.history.word(content.name);
        Some(content.name)
    }

    /// Returns every column of an open request whose blocks are new or moved since the last call.
    pub fn take_table_changes(&mut self) -> Vec<TableChange> {
        let dirty = core::mem::take(&mut self.dirty);
        let changes = dirty.into_iter().filter_map(|(request, column)| {
            let id = *self.sequences.get(&request)?.columns.get(column as usize)?;
            Some(TableChange { request, column, blocks: self.table_blocks(id) })
        });
        changes.collect()
    }

    /// Returns the blocks from which steps read a column: its own, or those of a buffer.
    fn table_blocks(&self, id: ColumnId) -> Vec<BlockId> {
        let mut blocks = self.columns.blocks(id).to_vec();
        if let Some(seat) = self.columns.get(id).staging_slot() {
            self.layer_offload.fill_table_blocks(seat, &mut blocks);
        }
        blocks
    }

    /// Returns the statistics.
    pub fn counts(&self) -> KvCounts {
        let free = self.frames.free_blocks();
        let whole =
            self.frames.empty() * self.frames.total_blocks().checked_div(self.frames.backed()).unwrap_or(0);
        let scattered = u64::from(free - whole) * 1000;
        let live = self.columns.iter().count() as u32;
        KvCounts {
            frames: self.frames.backed(),
            draining_frames: self.frames.draining().len() as u32,
            total_blocks: self.frames.total_blocks(),
            free_blocks: free,
            used_blocks: self.frames.used_blocks(),
            used_columns: live - self.idle.len() as u32 - self.host_pool.idle(),
            idle_columns: self.idle.len() as u32,
            shareable_columns: self.index.len() as u32,
            host_columns: self.host_pool.used(),
            host_limit_columns: self.host_pool.columns(),
            fragmentation_permille: scattered.checked_div(u64::from(free)).unwrap_or(0) as u32,
        }
    }

    /// Returns the number of requests with KV.
    pub fn open_requests(&self) -> u32 {
        self.sequences.len() as u32
    }

    /// Returns a fingerprint of all KV operations.
    pub fn digest(&self) -> u64 {
        self.history.value()
    }
}

/// Returns the number of full columns in `tokens` tokens.
const fn full_columns(tokens: usize) -> usize {
    tokens / BLOCK_TOKENS as usize
}

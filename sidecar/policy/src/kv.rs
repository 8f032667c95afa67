//! KV of requests: frames, columns, the prefix cache. Pure bookkeeping; the memory manager decides which frames have chunks.

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
    /// Full columns whose tokens are known.
    full: u32,
    /// Columns up to here were looked at for writing them back.
    written: u32,
    /// It does not run; its KV is kept.
    suspended: bool,
    /// Committed tokens after the last full column.
    tail: Vec<u32>,
    /// Name and hash of the last full column (0 and the salt's hash before the first); none when the chain is broken and nothing after it may be shared.
    chain: Option<(u64, u64)>,
}

/// Figures of KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCounts {
    /// Frames with a chunk.
    pub frames: u32,
    /// Frames that take no new blocks.
    pub draining_frames: u32,
    /// Blocks of all backed frames.
    pub total_blocks: u32,
    /// Blocks that may be taken.
    pub free_blocks: u32,
    /// Blocks held by columns or reserved for moves.
    pub used_blocks: u32,
    /// Columns that a request uses.
    pub used_columns: u32,
    /// Columns on the device that are kept only as cache.
    pub idle_columns: u32,
    /// Columns that can be found by prefix, used or not, on the device or in the host tier.
    pub shareable_columns: u32,
    /// Columns in the host tier.
    pub host_columns: u32,
    /// Columns that the host tier has room for.
    pub host_limit_columns: u32,
    /// Free blocks that lie in frames which are not empty, of all free blocks, permille.
    pub fragmentation_permille: u32,
}

/// KV of all requests of a tenant.
#[derive(Clone, Debug)]
pub struct Kv {
    layers: u32,
    caching: bool,
    frames: Frames,
    columns: Columns,
    /// Shareable columns by hash.
    index: BTreeMap<u64, ColumnId>,
    /// Shareable columns that nobody uses, longest unused first. A child is always older than its parent.
    idle: BTreeMap<u64, ColumnId>,
    /// The host tier.
    host_pool: HostKvPool,
    /// What running requests need on the device and is not there.
    missing_blocks: MissingBlocks,
    /// Columns on their way to or from the host tier between steps.
    moving_columns: Vec<ColumnId>,
    /// Columns on their way from the host tier beside steps: nobody reads them yet.
    loading_swaps: BTreeSet<ColumnId>,
    /// What is away while its requests run.
    layer_offload: LayerOffload,
    sequences: BTreeMap<RequestId, Sequence>,
    /// Columns of requests whose blocks the engine has not been told.
    dirty: BTreeSet<(RequestId, u32)>,
    next_name: u64,
    next_stamp: u64,
    hash: fn(u64, &Tokens) -> u64,
    history: Digest,
}

impl Kv {
    /// An arena of `frames` positions for a model of `layers` layers.
    /// Its host tier has room for `host_columns` columns.
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

    /// The arena.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// The arena, to change what backs it.
    pub fn frames_mut(&mut self) -> &mut Frames {
        &mut self.frames
    }

    /// Layers, which is blocks of a column.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Columns that a request holds.
    pub fn columns(&self, request: RequestId) -> u32 {
        self.sequences.get(&request).map_or(0, |s| s.columns.len() as u32)
    }

    /// Blocks on the device that giving up every unreferenced column would free.
    pub fn evictable_blocks(&self) -> u32 {
        self.idle.len() as u32 * self.layers
    }

    /// Gives every request its new columns. The caller has seen to it that there are enough free blocks, and places in the host
    /// tier for those that go there.
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

    /// Ends a request's KV. Columns that can be found stay as cache, but for those that follow one which lies partly in
    /// buffers: that one is gone with its last user, and nobody could find them without it.
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
        // Children first, so that the prefix cache gives them up before their parents.
        for (at, id) in sequence.columns.into_iter().enumerate().rev() {
            if at < kept { self.release_reference(id) } else { self.discard(id) }
        }
    }

    /// One reference less; without users it is not even cache.
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

    /// One reference less.
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

    /// The column has no place in the host tier any more, and no seat.
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

    /// Gives up the unreferenced column on the device that was unused for longest, with all that follow it in the host
    /// tier. Returns whether there was one.
    pub fn evict(&mut self) -> bool {
        let Some((_, id)) = self.idle.pop_first() else { return false };
        self.evict_column(id);
        true
    }

    /// Gives up a column that nobody uses. What follows it in the host tier could never be found again: it goes as well.
    fn evict_column(&mut self, id: ColumnId) {
        let mut orphans = alloc::vec![id];
        while let Some(id) = orphans.pop() {
            let name = self.unpublish(id).expect("an idle column is shareable");
            self.free(id);
            orphans.extend(self.host_pool.take_children(name, &self.columns));
        }
    }

    /// The column can be found by nobody any more. Returns its name.
    fn unpublish(&mut self, id: ColumnId) -> Option<u64> {
        let content = self.columns.get_mut(id).content.take()?;
        self.index.remove(&content.hash);
        self.history.word(content.name);
        Some(content.name)
    }

    /// Every column of an open request whose blocks are new or moved since last taken.
    pub fn take_table_changes(&mut self) -> Vec<TableChange> {
        let dirty = core::mem::take(&mut self.dirty);
        let changes = dirty.into_iter().filter_map(|(request, column)| {
            let id = *self.sequences.get(&request)?.columns.get(column as usize)?;
            Some(TableChange { request, column, blocks: self.table_blocks(id) })
        });
        changes.collect()
    }

    /// Where steps read a column: each block in its own place, or in a buffer.
    fn table_blocks(&self, id: ColumnId) -> Vec<BlockId> {
        let mut blocks = self.columns.blocks(id).to_vec();
        if let Some(seat) = self.columns.get(id).staging_slot() {
            self.layer_offload.fill_table_blocks(seat, &mut blocks);
        }
        blocks
    }

    /// Figures.
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

    /// Requests with KV.
    pub fn open_requests(&self) -> u32 {
        self.sequences.len() as u32
    }

    /// A fingerprint of everything that happened to KV.
    pub fn digest(&self) -> u64 {
        self.history.value()
    }
}

/// Full columns of which `tokens` tokens consist.
const fn full_columns(tokens: usize) -> usize {
    tokens / BLOCK_TOKENS as usize
}

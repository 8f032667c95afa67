//! KV copies in parallel with steps.

use sluice_policy::action::{Fetch, LayerBlockSwap, Spill};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::ids::{ActionId, ChunkId, HostBlockId, LayerBlockId};
use sluice_ports::fake_memory::{HostBlock, LayerBlockTokens};

use super::{Device, failed};

#[derive(Clone, Debug)]
enum Work {
    Fetch(Fetch),
    WriteBack(Vec<LayerBlockSwap>),
    Spill(Spill),
}

/// A fetch, a write-back or a spill, and its data once it runs.
#[derive(Clone, Debug)]
pub(super) struct KvCopy {
    id: ActionId,
    work: Work,
    copied: Option<Vec<LayerBlockTokens>>,
}

impl KvCopy {
    fn swaps(&self) -> &[LayerBlockSwap] {
        match &self.work {
            Work::Fetch(fetch) => &fetch.layer_blocks,
            Work::WriteBack(swaps) => swaps,
            Work::Spill(spill) => &spill.layer_blocks,
        }
    }

    fn is_fetch(&self) -> bool {
        matches!(self.work, Work::Fetch(_))
    }

    /// Whether it is a fetch or a spill, which are dropped with fills.
    pub(super) fn is_of_buffer(&self) -> bool {
        self.buffer().is_some()
    }

    fn buffer(&self) -> Option<u8> {
        match &self.work {
            Work::Fetch(fetch) => Some(fetch.buffer),
            Work::Spill(spill) => Some(spill.buffer),
            Work::WriteBack(_) => None,
        }
    }

    /// Whether it must start after an earlier copy of the same memory.
    fn follows(&self, earlier: &KvCopy) -> bool {
        match (&self.work, &earlier.work) {
            (Work::Fetch(this), Work::Fetch(that)) => {
                let layer_block = |swap: &LayerBlockSwap| {
                    that.layer_blocks.iter().any(|other| other.layer_block == swap.layer_block)
                };
                this.buffer == that.buffer
                    || this.layer == that.layer
                    || this.layer_blocks.iter().any(layer_block)
            }
            (Work::WriteBack(swaps), Work::Fetch(that)) => {
                let host =
                    |swap: &LayerBlockSwap| that.layer_blocks.iter().any(|other| other.host == swap.host);
                earlier.copied.is_some() && swaps.iter().any(host)
            }
            (Work::WriteBack(_), Work::WriteBack(_)) => true,
            (Work::Fetch(_) | Work::Spill(_), Work::WriteBack(_)) | (Work::WriteBack(_), Work::Spill(_)) => {
                false
            }
            (Work::Spill(_), _) | (_, Work::Spill(_)) => self.buffer() == earlier.buffer(),
        }
    }
}

impl Device {
    pub(super) fn queue_fetch(&mut self, id: ActionId, fetch: Fetch) {
        self.check_swaps(&fetch.layer_blocks, Some(fetch.buffer));
        fetch.layer_blocks.iter().for_each(|swap| self.check_unread(swap.layer_block));
        self.kv.push(KvCopy { id, work: Work::Fetch(fetch), copied: None });
    }

    pub(super) fn queue_write_back(&mut self, id: ActionId, swaps: Vec<LayerBlockSwap>) {
        self.check_swaps(&swaps, None);
        swaps.iter().for_each(|swap| self.check_read(swap.layer_block));
        self.kv.push(KvCopy { id, work: Work::WriteBack(swaps), copied: None });
    }

    pub(super) fn queue_spill(&mut self, id: ActionId, spill: Spill) {
        self.check_swaps(&spill.layer_blocks, None);
        spill.layer_blocks.iter().for_each(|swap| self.check_unread(swap.layer_block));
        self.kv.push(KvCopy { id, work: Work::Spill(spill), copied: None });
    }

    /// Checks that every block is at the named chunk, that none is named twice, and that only spills out of this buffer
    /// write the host blocks.
    fn check_swaps(&self, swaps: &[LayerBlockSwap], buffer: Option<u8>) {
        for (at, swap) in swaps.iter().enumerate() {
            assert_eq!(self.place(swap.layer_block).0, swap.chunk, "a copy of KV names the chunk");
            let twice =
                |other: &LayerBlockSwap| other.layer_block == swap.layer_block || other.host == swap.host;
            assert!(!swaps[..at].iter().any(twice), "{swap:?} is named once");
            self.check_written(swap.host, buffer);
        }
    }

    pub(super) fn fetches_run(&self) -> bool {
        self.kv.iter().any(|copy| copy.is_of_buffer() && copy.copied.is_some())
    }

    pub(super) fn drop_fetches(&mut self) {
        let waits = |copy: &mut KvCopy| copy.is_of_buffer() && copy.copied.is_none();
        self.dropped.extend(self.kv.extract_if(.., waits).map(|copy| copy.id));
    }

    /// Whether it runs, or is the first of its lane and the previous reader has finished.
    pub(super) fn can_continue(&self, at: usize) -> bool {
        let copy = &self.kv[at];
        let after = match &copy.work {
            Work::Fetch(fetch) => fetch.after,
            Work::Spill(spill) => Some((spill.layer, spill.after)),
            Work::WriteBack(_) => None,
        };
        let read = after.is_none_or(|(layer, generation)| self.kv_done[layer.index()] >= generation);
        copy.copied.is_some() || (read && !self.kv[..at].iter().any(|earlier| copy.follows(earlier)))
    }

    /// Starts a copy, which destroys the old contents, or ends it.
    pub(super) fn step_kv(&mut self, at: usize) -> Option<Completion> {
        let copy = self.kv[at].clone();
        let Some(copied) = &copy.copied else { return self.start_kv(at, &copy) };
        self.kv.remove(at);
        let left = match copy.swaps() {
            [] => &mut self.faults.lost_empty_fetches,
            _ => &mut self.faults.lost_fetches,
        };
        let lost = copy.is_fetch() && *left > 0;
        *left -= u32::from(lost);
        if lost || self.fails() {
            return Some(failed(copy.id, Failure::CopyFailed));
        }
        match &copy.work {
            Work::Fetch(fetch) => {
                for (swap, tags) in fetch.layer_blocks.iter().zip(copied) {
                    self.write_layer_block(swap.layer_block, *tags);
                }
                self.kv_ready[fetch.layer.index()] = fetch.generation;
                self.fetched += 1;
            }
            Work::WriteBack(_) | Work::Spill(_) => {
                for (swap, tags) in copy.swaps().iter().zip(copied) {
                    assert_eq!(
                        self.tags(swap.layer_block),
                        *tags,
                        "no step writes a block that is copied to the host"
                    );
                    let layer_block = HostBlock { generation: Some(swap.generation), tokens: *tags };
                    self.memory.set_host_block(swap.host, layer_block);
                }
                self.spilt += u32::from(copy.is_of_buffer());
            }
        }
        let bytes = copy.swaps().len() as u64 * self.geometry.layer_block_bytes;
        let outcome = Outcome::Done { bytes, duration_ns: bytes * self.fill_ns_per_byte };
        Some(Completion { id: copy.id, outcome })
    }

    fn start_kv(&mut self, at: usize, copy: &KvCopy) -> Option<Completion> {
        let copied = match &copy.work {
            Work::Fetch(fetch) => {
                let Some(copied) = self.copied_contents(&fetch.layer_blocks) else {
                    self.kv.remove(at);
                    self.refused_fetches += 1;
                    return Some(failed(copy.id, Failure::Refused));
                };
                for swap in &fetch.layer_blocks {
                    self.write_layer_block(swap.layer_block, LayerBlockTokens::default());
                }
                copied
            }
            Work::WriteBack(swaps) | Work::Spill(Spill { layer_blocks: swaps, .. }) => {
                for swap in swaps {
                    self.memory.set_host_block(swap.host, HostBlock::default());
                }
                swaps.iter().map(|swap| self.tags(swap.layer_block)).collect()
            }
        };
        self.kv[at].copied = Some(copied);
        None
    }

    /// Returns the contents of the host blocks, shuffled if configured; `None` if one does not have its generation.
    fn copied_contents(&self, swaps: &[LayerBlockSwap]) -> Option<Vec<LayerBlockTokens>> {
        let tokens = |swap: &LayerBlockSwap| {
            let layer_block = self.memory.host_block(swap.host);
            (layer_block.generation == Some(swap.generation)).then_some(layer_block.tokens)
        };
        let mut tags: Vec<_> = swaps.iter().map(tokens).collect::<Option<_>>()?;
        if self.mix_up_swaps {
            tags.reverse();
        }
        Some(tags)
    }

    fn tags(&self, layer_block: LayerBlockId) -> LayerBlockTokens {
        self.memory.tokens(self.place(layer_block))
    }

    pub(super) fn write_layer_block(&mut self, layer_block: LayerBlockId, tokens: LayerBlockTokens) {
        *self.memory.layer_block_mut(layer_block).unwrap_or_else(|| panic!("{layer_block:?} is backed")) =
            tokens;
    }

    /// Checks that no copy in parallel with steps names the chunk, so that it may be unmapped and released.
    pub(super) fn check_untouched(&self, chunk: ChunkId) {
        let named = self.kv.iter().flat_map(KvCopy::swaps).any(|swap| swap.chunk == chunk);
        assert!(!named, "{chunk:?} stays where it is while its KV is copied");
    }

    /// Checks that no fetch writes the block, so that it may be read.
    pub(super) fn check_read(&self, layer_block: LayerBlockId) {
        let mut fetches = self.kv.iter().filter(|copy| copy.is_of_buffer()).flat_map(KvCopy::swaps);
        assert!(
            !fetches.any(|swap| swap.layer_block == layer_block),
            "{layer_block:?} is read while it is fetched"
        );
    }

    fn check_unread(&self, layer_block: LayerBlockId) {
        let mut others = self.kv.iter().filter(|copy| !copy.is_of_buffer()).flat_map(KvCopy::swaps);
        assert!(
            !others.any(|swap| swap.layer_block == layer_block),
            "{layer_block:?} is written while it is written back"
        );
    }

    /// Checks that no copy in parallel with steps names the block, so that it may be written.
    pub(super) fn check_write(&self, layer_block: LayerBlockId) {
        self.check_read(layer_block);
        self.check_unread(layer_block);
    }

    /// Checks that no write-back or spill uses the host block.
    pub(super) fn check_settled(&self, host: HostBlockId) {
        self.check_written(host, None);
    }

    fn check_written(&self, host: HostBlockId, buffer: Option<u8>) {
        let behind = |copy: &&KvCopy| buffer.is_some() && copy.buffer() == buffer;
        let others = self.kv.iter().filter(|copy| !copy.is_fetch() && !behind(copy));
        let mut others = others.flat_map(KvCopy::swaps);
        assert!(!others.any(|swap| swap.host == host), "{host:?} is named while it is written back to");
    }
}

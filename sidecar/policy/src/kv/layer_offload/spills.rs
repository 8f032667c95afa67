//! The prefills that are offloaded during their computation, and the copies of the step that computes them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::ids::{Generation, KvBlockId, LayerId, RequestId, SlotId};
use crate::slots::CopyProgress;

/// The copy of one layer of a step's KV blocks.
#[derive(Clone, Copy, Debug)]
pub struct SpillCopy {
    /// The layer.
    pub layer: LayerId,
    /// The buffer that the step writes.
    pub buffer: SlotId,
    /// Generation of the step's contents in the buffer.
    pub reads: Generation,
    /// Generation of the copy itself.
    pub name: Generation,
    /// How far it is.
    pub progress: CopyProgress,
}

/// Offloaded prefills, and their copies in progress.
#[derive(Clone, Debug, Default)]
pub struct Spills {
    /// Requests, and the number of KV blocks of each prompt.
    prompts: BTreeMap<RequestId, u32>,
    /// The first staging slot that the current or next step writes; `None` if it writes none.
    from: Option<u32>,
    /// The KV blocks being written, each with one more reference until all copies have ended.
    kv_blocks: Vec<KvBlockId>,
    copies: Vec<SpillCopy>,
}

impl Spills {
    /// Offloads the prefill of a request with `kv_blocks` KV blocks.
    pub fn add_prompt(&mut self, request: RequestId, kv_blocks: u32) {
        self.prompts.insert(request, kv_blocks);
    }

    /// Returns the requests with offloaded prefills, and the number of KV blocks of each.
    pub fn prompts(&self) -> impl Iterator<Item = (RequestId, u32)> + '_ {
        self.prompts.iter().map(|(request, kv_blocks)| (*request, *kv_blocks))
    }

    /// Whether the prefill of the request is offloaded.
    pub fn has_prompt(&self, request: RequestId) -> bool {
        self.prompts.contains_key(&request)
    }

    /// Ends the offload of prefills; existing offloaded KV stays where it is.
    pub fn disable_prefill_spill(&mut self) {
        self.prompts.clear();
    }

    /// Ends the offload of the request's prefill.
    pub fn forget(&mut self, request: RequestId) {
        self.prompts.remove(&request);
    }

    /// Adds a KV block that the next step writes into staging slot `slot`. The caller adds a reference.
    pub fn add_kv_block(&mut self, id: KvBlockId, slot: u32) {
        self.from.get_or_insert(slot);
        self.kv_blocks.push(id);
    }

    /// Returns the KV blocks being written or copied.
    pub fn kv_blocks(&self) -> &[KvBlockId] {
        &self.kv_blocks
    }

    /// Returns the first staging slot that the current or next step writes, which no fetch of the step covers. `None` =
    /// it writes none.
    pub fn first_slot(&self) -> Option<u32> {
        self.from
    }

    /// Sets the copies of a step that begins, or begins again.
    pub fn begin(&mut self, copies: Vec<SpillCopy>) {
        self.copies = copies;
    }

    /// Repeats the writes and copies of a step that lost its engine.
    pub fn restart_spills(&mut self) {
        if self.from.is_some() {
            self.copies.clear();
        }
    }

    /// Returns the due copies in layer order, and marks them as ordered.
    pub fn take_due(&mut self) -> Vec<SpillCopy> {
        let due = self.copies.iter_mut().filter(|copy| copy.progress == CopyProgress::Due);
        let order = |copy: &mut SpillCopy| {
            copy.progress = CopyProgress::Ordered;
            *copy
        };
        due.map(order).collect()
    }

    /// Records the end of a copy; with `again` it is due once more. Returns its layer; `None` = it belongs to an
    /// earlier attempt and has no effect.
    pub fn on_ended(&mut self, name: Generation, again: bool) -> Option<LayerId> {
        let copy = self.copies.iter_mut().find(|copy| copy.name == name)?;
        copy.progress = if again { CopyProgress::Due } else { CopyProgress::Filled };
        Some(copy.layer)
    }

    /// Whether a spill out of this buffer is ordered that follows its fetch of `generation`.
    pub fn is_spill_pending_after(&self, buffer: SlotId, generation: Generation) -> bool {
        let ordered = self.copies.iter().filter(|copy| copy.progress == CopyProgress::Ordered);
        ordered.filter(|copy| copy.buffer == buffer).any(|copy| copy.reads >= generation)
    }

    /// Ends the writes of the step. Returns whether there were any.
    pub fn close(&mut self) -> bool {
        self.from.take().is_some()
    }

    /// Takes the KV blocks once the step has ended and no copy is under way; until then none.
    pub fn take_written(&mut self) -> Vec<KvBlockId> {
        let under_way = |copy: &SpillCopy| copy.progress == CopyProgress::Ordered;
        if self.from.is_some() || self.copies.iter().any(under_way) {
            return Vec::new();
        }
        self.copies.clear();
        core::mem::take(&mut self.kv_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn copy(layer: u16, name: u64) -> SpillCopy {
        SpillCopy {
            layer: LayerId(layer),
            buffer: SlotId(0),
            reads: Generation(name + 10),
            name: Generation(name),
            progress: CopyProgress::Due,
        }
    }

    #[test]
    fn kv_blocks_are_freed_after_step_and_copies() {
        let mut spills = Spills::default();
        spills.add_kv_block(KvBlockId(7), 3);
        spills.add_kv_block(KvBlockId(8), 4);
        assert_eq!(spills.first_slot(), Some(3));
        spills.begin(vec![copy(0, 1), copy(1, 2)]);
        assert_eq!(spills.take_due().len(), 2);
        assert_eq!(spills.on_ended(Generation(1), true), Some(LayerId(0)), "dropped, and due again");
        assert_eq!(spills.take_due().len(), 1);
        assert_eq!(spills.on_ended(Generation(2), false), Some(LayerId(1)));
        assert!(spills.close() && !spills.close());
        assert!(spills.take_written().is_empty(), "one copy is under way");
        assert!(spills.is_spill_pending_after(SlotId(0), Generation(11)));
        assert!(!spills.is_spill_pending_after(SlotId(0), Generation(12)));
        assert_eq!(spills.on_ended(Generation(1), false), Some(LayerId(0)));
        assert_eq!(spills.take_written(), [KvBlockId(7), KvBlockId(8)]);
    }

    #[test]
    fn copies_of_an_earlier_attempt_have_no_effect() {
        let mut spills = Spills::default();
        spills.add_kv_block(KvBlockId(7), 0);
        spills.begin(vec![copy(0, 1)]);
        spills.take_due();
        spills.restart_spills();
        assert_eq!(spills.on_ended(Generation(1), false), None);
        assert!(spills.take_written().is_empty(), "the step is repeated");
    }
}

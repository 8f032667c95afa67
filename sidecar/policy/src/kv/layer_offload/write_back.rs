//! Writes full KV blocks to the host tier in parallel with steps, each block once.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::StagingSlot;
use crate::ids::{KvBlockId, LayerId, RequestId};
use crate::kv::admissions::AdmissionEffects;
use crate::kv::{Kv, Swap};
use crate::slots::Generations;

impl Kv {
    /// Plans copies of up to `max` blocks that the host tier lacks: of paused requests if `paused`, except those that
    /// resume, then of full KV blocks that the placement names if `placed`. The device blocks stay until
    /// [`Kv::finish_write_back`].
    pub fn plan_write_back(
        &mut self,
        max: u32,
        (paused, placed): (bool, bool),
        effects: &AdmissionEffects,
        generations: &mut Generations,
    ) -> Vec<Swap> {
        let mut written = Vec::new();
        let mut left = max;
        if paused {
            self.plan_paused(&mut left, effects, generations, &mut written);
        }
        let named = self.layer_offload.placement.of.iter().filter(|_| placed);
        for (request, set) in named.map(|(request, set)| (*request, *set)).collect::<Vec<_>>() {
            while left > 0 {
                let Some((at, kv_block)) = self.next_to_write(request) else { break };
                let layers: Vec<_> = self
                    .layer_offload
                    .missing_on_host(kv_block, set, &self.kv_blocks)
                    .iter()
                    .take(left as usize)
                    .collect();
                if layers.is_empty() {
                    self.layer_offload.ready.push_back(StagingSlot { kv_block, set, user: (request, at) });
                } else if let Some(host_location) = self.reserve_spare_host_place(kv_block, generations) {
                    left = left.saturating_sub(layers.len() as u32);
                    written.push(self.begin_write(kv_block, host_location, layers));
                } else {
                    return written;
                }
                self.requests.get_mut(request).set_written(at + 1);
            }
        }
        written
    }

    /// Plans copies of up to `max` blocks of a full KV block of a running request, to measure the link. `None` if
    /// there is no such KV block, or no host place.
    pub fn plan_probe(&mut self, max: u32, generations: &mut Generations) -> Option<Swap> {
        let kv_block = self.full_and_whole()?;
        let host_location = self.reserve_host_place(kv_block, generations)?;
        let layers = (0..self.layers.min(max.max(1)) as u16).map(LayerId).collect();
        Some(self.begin_write(kv_block, host_location, layers))
    }

    /// Returns a full KV block of a running request that is complete on the device and is not being copied.
    fn full_and_whole(&self) -> Option<KvBlockId> {
        let is_whole = |id: &KvBlockId| self.kv_blocks.is_whole(*id) && !self.transfers.is_copied(*id);
        let mut running = self.requests.iter().filter(|(_, sequence)| !sequence.is_suspended());
        running.find_map(|(_, one)| one.full_kv_blocks().iter().copied().find(is_whole))
    }

    fn next_to_write(&mut self, request: RequestId) -> Option<(u32, KvBlockId)> {
        let sequence = self.requests.get(request).filter(|sequence| !sequence.is_suspended())?;
        let (full, written) = (sequence.full_kv_blocks(), sequence.written());
        let unstaged = |id: &KvBlockId| self.kv_blocks.get(*id).staging_slot().is_none();
        let next = full[written as usize..].iter().position(unstaged)?;
        let at = written + next as u32;
        let id = full[at as usize];
        self.requests.get_mut(request).set_written(at);
        // KV blocks that must be swapped in first, or are being copied, are written later.
        let here = self.kv_blocks.is_whole(id) && !self.transfers.is_copied(id);
        here.then_some((at, id))
    }

    /// Handles the end of the copies; `done`: they succeeded.
    pub fn finish_write_back(&mut self, written: &[Swap], done: bool) {
        for one in written {
            self.transfers.end_writing(one.kv_block);
            if done {
                let hosted = &mut self.kv_blocks.get_mut(one.kv_block).hosted_layers;
                one.layers.iter().for_each(|layer| hosted.insert(*layer));
                self.history.word(u64::from(one.kv_block.0) ^ (one.layers.len() as u64) << 32);
            }
            self.release_reference(one.kv_block);
        }
        // The users of these KV blocks check them again.
        let kv_blocks: BTreeSet<_> = written.iter().map(|one| one.kv_block).collect();
        self.requests.check_users_again(&kv_blocks);
    }
}

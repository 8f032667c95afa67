//! Writes full KV blocks of paused requests to the host tier in parallel with steps and evicts them when their blocks
//! are needed (OrbitFlow 4.2: they are removable). KV blocks shared by several requests stay. Last KV blocks stay too
//! as long as others can be evicted: a resumed request writes there, and no step writes a block that is being copied.

use alloc::vec::Vec;

use crate::ids::{KvBlockId, RequestId};
use crate::kv::admissions::AdmissionEffects;
use crate::kv::{Kv, Swap};
use crate::slots::Generations;

impl Kv {
    /// Adds copies of up to `left` blocks of paused requests that the host tier lacks.
    pub(super) fn plan_paused(
        &mut self,
        left: &mut u32,
        effects: &AdmissionEffects,
        generations: &mut Generations,
        written: &mut Vec<Swap>,
    ) {
        let paused = self.requests.paused().map(|(request, _)| request);
        for request in paused.filter(|request| !effects.resumes(*request)).collect::<Vec<_>>() {
            while *left > 0 {
                let Some(kv_block) = self.next_paused(request) else { break };
                let Some(host_location) = self.reserve_spare_host_place(kv_block, generations) else {
                    return;
                };
                let layers: Vec<_> =
                    self.kv_blocks.get(kv_block).layers_not_on_host().iter().take(*left as usize).collect();
                *left -= layers.len() as u32;
                written.push(self.begin_write(kv_block, host_location, layers));
            }
        }
    }

    /// Returns the next KV block that only this request uses and that the host tier lacks in part.
    fn next_paused(&mut self, request: RequestId) -> Option<KvBlockId> {
        let sequence = self.requests.get(request)?;
        let full = sequence.full_kv_blocks();
        let from = (sequence.written() as usize).min(full.len());
        let lacks = |id: &KvBlockId| {
            self.is_exclusive_kv_block(*id) && !self.kv_blocks.get(*id).layers_not_on_host().is_empty()
        };
        let at = full[from..].iter().position(lacks).map_or(full.len(), |at| from + at);
        let kv_block = full.get(at).copied();
        self.requests.get_mut(request).set_written(at as u32 + u32::from(kv_block.is_some()));
        kv_block
    }

    /// Looks again at all KV blocks of a suspended request for write-back: others may have stopped to use them.
    pub fn recheck_paused(&mut self, request: RequestId) {
        self.requests.check_again(request);
    }

    /// Whether exactly one reference exists and the KV block is not being written back.
    fn is_exclusive_kv_block(&self, id: KvBlockId) -> bool {
        self.kv_blocks.get(id).refs == 1
            && self.kv_blocks.has_layer_blocks(id)
            && !self.transfers.is_writing(id)
    }

    /// Returns KV blocks of paused requests that are complete in the host tier and free at least `min` layer blocks
    /// together, as far as there are any, but none that the admissions use.
    pub fn paused_on_host(&self, min: u32, effects: &AdmissionEffects) -> Vec<KvBlockId> {
        let paused = self.requests.paused();
        let kv_blocks = paused.flat_map(|(_, sequence)| sequence.full_kv_blocks().iter().copied());
        let ready = |id: &KvBlockId| {
            self.is_exclusive_kv_block(*id)
                && !effects.uses(*id)
                && self.kv_blocks.get(*id).layers_not_on_host().is_empty()
        };
        let within = |freed: &mut u32, id: KvBlockId| {
            let needed = *freed < min;
            *freed += self.kv_blocks.get(id).resident_layers().len();
            needed.then_some(id)
        };
        kv_blocks.filter(ready).scan(0, within).collect()
    }

    /// Evicts KV blocks that the host tier has completely.
    pub fn evict_hosted(&mut self, kv_blocks: &[KvBlockId]) {
        for id in kv_blocks {
            self.chunk_pool.give(&self.kv_blocks.take_layer_blocks(*id));
            self.missing_layer_blocks.recheck(*id);
            self.history.word(!u64::from(id.0));
        }
    }

    /// Returns the number of exclusive KV blocks of paused requests, but those that match, without a place in the host
    /// tier.
    pub fn unplaced_paused(&self, but: impl Fn(RequestId) -> bool) -> u32 {
        let paused = self.requests.paused().filter(|(id, _)| !but(*id));
        let kv_blocks = paused.flat_map(|(_, sequence)| sequence.kv_blocks());
        let leaving = kv_blocks.filter(|id| self.kv_blocks.get(**id).refs == 1);
        leaving.filter(|id| self.kv_blocks.get(**id).host_location.is_none()).count() as u32
    }

    /// Returns the device blocks that paused requests can lose, but those that match.
    pub fn evictable_paused_layer_blocks(&self, but: impl Fn(RequestId) -> bool) -> u32 {
        let paused = self.requests.paused().filter(|(id, _)| !but(*id));
        let kv_blocks = paused.flat_map(|(_, sequence)| sequence.full_kv_blocks());
        let leaving = kv_blocks.filter(|id| self.is_exclusive_kv_block(**id));
        leaving.map(|id| self.layers - self.kv_blocks.absent(*id)).sum()
    }

    /// Plans like [`Kv::plan_swap_out`], for KV blocks that only paused requests use, and no admission.
    pub fn plan_paused_out(
        &mut self,
        max: u32,
        effects: &AdmissionEffects,
        generations: &mut Generations,
    ) -> Vec<Swap> {
        let kv_blocks = self.requests.paused().flat_map(|(_, sequence)| sequence.kv_blocks().iter().copied());
        let kv_blocks: Vec<_> = kv_blocks
            .filter(|id| self.is_exclusive_kv_block(*id) && !effects.uses(*id))
            .take(max as usize)
            .collect();
        self.swap_out(kv_blocks, generations)
    }
}

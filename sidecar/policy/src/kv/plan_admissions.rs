//! Finds what admissions will change, and evicts cache that they do not use.

use super::Kv;
use super::admissions::{Admission, AdmissionEffects, AdmittedKv};
use crate::ids::{KvBlockId, LayerId, RequestId};
use crate::layer_set::LayerSet;

impl Kv {
    /// Returns what these admissions will change. `offloaded` names the layers of a request that it keeps in the host
    /// tier: its full KV blocks with a copy there take a staging slot instead of a load.
    pub fn admission_effects<'a>(
        &self,
        admissions: &[Admission],
        offloaded: impl Fn(RequestId) -> &'a [LayerId],
    ) -> AdmissionEffects {
        let mut effects = AdmissionEffects::default();
        for admission in admissions {
            self.add_admission(admission, offloaded(admission.request), &mut effects);
        }
        effects
    }

    /// Adds what one more admission will change. `offloaded` as in [`Kv::admission_effects`].
    pub fn add_admission(
        &self,
        admission: &Admission,
        offloaded: &[LayerId],
        effects: &mut AdmissionEffects,
    ) {
        let layers: LayerSet = offloaded.iter().copied().collect();
        let request = admission.request;
        effects.requests += 1;
        match &admission.kv {
            AdmittedKv::New { prefix, spilled_kv_blocks } => {
                effects.spilled_kv_blocks += spilled_kv_blocks.unwrap_or(0);
                let loads = self.add_uses(&prefix.kv_blocks, u32::MAX, layers, effects);
                effects.loads_for_new |= loads;
            }
            AdmittedKv::Suspended => {
                effects.resumed.insert(request);
                let (kv_blocks, full) = (self.requests.kv_blocks(request), self.requests.full(request));
                self.add_uses(kv_blocks, full, layers, effects);
            }
        }
    }

    /// Adds the KV blocks of one request, of which the first `full` are full. Returns whether some are to be loaded.
    fn add_uses(
        &self,
        kv_blocks: &[KvBlockId],
        full: u32,
        offloaded: LayerSet,
        effects: &mut AdmissionEffects,
    ) -> bool {
        let mut loads = false;
        for (at, id) in kv_blocks.iter().copied().enumerate() {
            effects.waits_for_loads |= self.transfers.is_loading(id);
            let known = !effects.used.insert(id) || self.missing_layer_blocks.contains(id);
            if known {
                loads |= effects.to_load.contains_key(&id);
                continue;
            }
            effects.reused_kv_blocks += u32::from(self.kv_blocks.is_unused(id));
            let kept = if (at as u32) < full { offloaded } else { LayerSet::NONE };
            let (missing, staged) = self.needs_of(id, kept);
            effects.staged_layer_blocks += staged;
            if !missing.is_empty() {
                effects.to_load.insert(id, missing);
                loads = true;
            }
        }
        loads
    }

    /// Returns the layers of a KV block that a request loads to continue, and the layer blocks of the staging slot that
    /// the KV block gets if these layers of it stay in the host tier.
    pub(super) fn needs_of(&self, id: KvBlockId, offloaded: LayerSet) -> (LayerSet, u32) {
        let missing = self.layer_offload.missing(id, &self.kv_blocks);
        let buffers = u32::from(self.layer_offload.placement().layout.beta);
        let kept = offloaded & self.kv_blocks.get(id).hosted_layers;
        let unstaged = !missing.is_empty() && self.kv_blocks.get(id).staging_slot().is_none();
        if !unstaged || buffers == 0 || kept.len() < 2 * buffers {
            return (missing, 0);
        }
        (missing - kept, buffers)
    }

    /// Returns the device blocks that evicting all KV blocks without a use would free, now and after the admissions.
    pub fn evictable_layer_blocks_after(&self, effects: &AdmissionEffects) -> u32 {
        self.evictable_layer_blocks() - effects.reused_kv_blocks * self.layers
    }

    /// Evicts KV blocks that are only cache and that the admissions do not use, least recently used first, until this
    /// number of layer blocks is free. Returns the number of evicted ones.
    pub fn evict_until(&mut self, layer_blocks: u32, effects: &AdmissionEffects) -> u32 {
        let (mut evicted, mut from) = (0, 0);
        while self.chunk_pool.free_layer_blocks() < layer_blocks {
            let unused = self.prefix_cache.take_oldest_from(from, |id| effects.uses(id));
            let Some((stamp, id)) = unused else { break };
            self.evict_kv_block(id);
            (evicted, from) = (evicted + 1, stamp);
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::KvChunkId;
    use crate::slots::Generations;

    const TOKENS: [u32; 40] = [7; 40];
    const NONE: fn(RequestId) -> &'static [LayerId] = |_| &[];

    /// KV of two layers with space for 16 KV blocks on the device and 8 in the host tier.
    fn kv() -> Kv {
        let mut kv = Kv::new(2, 8, 4, 8, true);
        (0..8).for_each(|chunk| kv.chunk_pool_mut().back(KvChunkId(chunk)));
        kv
    }

    /// Computes a request of 40 tokens under this salt: two full KV blocks and a part of one.
    fn compute(kv: &mut Kv, id: u64, salt: u64) {
        let request = RequestId(id);
        let prefix = kv.cached_prefix(salt, &TOKENS);
        kv.open(request, &prefix);
        kv.allocate(&[(request, 3)], &mut Generations::default());
        kv.on_tokens_computed(request, &TOKENS);
    }

    /// Moves all KV to the host tier.
    fn move_to_host(kv: &mut Kv) {
        let swaps = kv.plan_swap_out(8, &mut Generations::default());
        kv.finish_swap_out(&swaps, true);
    }

    fn new(kv: &Kv, id: u64, salt: u64) -> Admission {
        Admission::new(RequestId(id), kv.cached_prefix(salt, &TOKENS))
    }

    #[test]
    fn cache_in_use_is_not_evictable() {
        let mut kv = kv();
        (1..=2).for_each(|id| compute(&mut kv, id, id));
        (1..=2).for_each(|id| kv.close(RequestId(id)));
        let admissions = [new(&kv, 3, 1), new(&kv, 4, 1)];
        let effects = kv.admission_effects(&admissions, NONE);
        assert_eq!((kv.evictable_layer_blocks(), kv.evictable_layer_blocks_after(&effects)), (8, 4));
        assert_eq!(kv.evict_until(u32::MAX, &effects), 2, "the two KV blocks of the other salt");
        assert_eq!(new(&kv, 3, 1), admissions[0], "the prefix is still there");
        let AdmittedKv::New { prefix, .. } = &admissions[0].kv else { panic!("a new request") };
        kv.open(RequestId(3), prefix);
        kv.check();
        assert_eq!((kv.of(RequestId(3)).kv_blocks(), kv.evictable_layer_blocks()), (2, 0));
    }

    #[test]
    fn loads_of_admissions_are_what_they_lack_once_they_run() {
        let mut kv = kv();
        compute(&mut kv, 1, 1);
        kv.suspend(RequestId(1));
        move_to_host(&mut kv);
        let mut effects = kv.admission_effects(&[Admission::suspended(RequestId(1))], NONE);
        assert!(effects.resumes(RequestId(1)) && !effects.loads_for_new());
        assert_eq!((effects.layer_blocks_to_load(), kv.missing_layer_block_count()), (6, 0));
        let first = kv.plan_swap_in(2, &mut effects);
        assert_eq!((first.len(), effects.layer_blocks_to_load()), (2, 2));
        assert!(
            kv.admission_effects(&[Admission::suspended(RequestId(1))], NONE).layer_blocks_to_load() == 2
        );
        kv.finish_swap_in(&first);
        kv.resume(RequestId(1));
        kv.check();
        assert_eq!(kv.missing_layer_block_count(), 2, "the last KV block");
    }

    #[test]
    fn new_request_waits_for_loading_prefix() {
        let mut kv = kv();
        compute(&mut kv, 1, 1);
        kv.close(RequestId(1));
        move_to_host(&mut kv);
        let admissions = [new(&kv, 2, 1)];
        let mut effects = kv.admission_effects(&admissions, NONE);
        assert!(effects.loads_for_new() && !effects.waits_for_loads());
        let loads = kv.plan_async_swap_in(8, &mut effects);
        assert!(kv.admission_effects(&admissions, NONE).waits_for_loads());
        kv.finish_swap_in(&loads);
        kv.check();
        let effects = kv.admission_effects(&admissions, NONE);
        assert_eq!((effects.waits_for_loads(), effects.layer_blocks_to_load()), (false, 0));
        assert_eq!(
            kv.evictable_layer_blocks_after(&effects),
            0,
            "it is cache on the device until the admission"
        );
    }
}

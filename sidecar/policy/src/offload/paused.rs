//! KV of paused requests leaves the device for requests that need its space (OrbitFlow 4.2).
//!
//! Blocks that the host tier has are free at once. Others are written back first; where that is impossible, whole KV
//! blocks are swapped out between two steps.

use alloc::vec::Vec;

use super::offloading::Offloading;
use super::view::OffloadView;
use crate::action::Action;
use crate::ids::KvBlockId;
use crate::kv::admissions::AdmissionEffects;

/// How KV of paused requests makes space.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PausedKv {
    /// KV is loading for a request that is admitted while none runs. It would be evicted for it and loaded again, and
    /// so on without a step.
    IsLoading,
    /// The host tier has these KV blocks.
    OnHost(Vec<KvBlockId>),
    /// To write it back would take too long.
    LeavesTooSlowly,
    /// It is written back first.
    ToWrite,
}

/// What an eviction of paused KV has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictedPaused {
    /// Layer blocks are free now.
    Freed,
    /// They are free when copies that are under way have ended.
    UnderWay,
}

impl OffloadView<'_> {
    /// Decides how a step gets `missing` layer blocks.
    fn paused_kv(&self, missing: u32, effects: &AdmissionEffects) -> PausedKv {
        if self.kv.transfers().has_loads() && !self.offload.had_running {
            return PausedKv::IsLoading;
        }
        let on_host = self.kv.paused_on_host(missing, effects);
        if !on_host.is_empty() {
            PausedKv::OnHost(on_host)
        } else if self.offload.write_back.is_fast_enough(missing) {
            PausedKv::ToWrite
        } else {
            PausedKv::LeavesTooSlowly
        }
    }

    /// KV of paused requests may leave the device for a transition that must happen, and `missing` layer blocks leave
    /// fast enough.
    pub fn can_evict_paused_for_transition(&self, missing: u32) -> bool {
        self.can_evict_paused() && self.offload.write_back.is_fast_enough(missing)
    }

    /// KV blocks that are swapped out for `missing` layer blocks, while nothing is written back.
    fn paused_kv_blocks_to_swap(&self, missing: u32, piece: u32) -> u32 {
        let room = self.kv.host_pool().room().saturating_sub(self.kv_blocks_to_spill());
        missing.div_ceil(self.kv.layers()).min(piece).min(room)
    }
}

impl Offloading<'_> {
    /// Evicts KV of paused requests. `None` = there is none, or it would take too long.
    pub fn evict_paused(
        &mut self,
        missing: u32,
        effects: &AdmissionEffects,
        out: &mut Vec<Action>,
    ) -> Option<EvictedPaused> {
        match self.view().paused_kv(missing, effects) {
            PausedKv::IsLoading => Some(EvictedPaused::UnderWay),
            PausedKv::OnHost(kv_blocks) => {
                self.kv.evict_hosted(&kv_blocks);
                Some(EvictedPaused::Freed)
            }
            PausedKv::LeavesTooSlowly => None,
            PausedKv::ToWrite => {
                self.write_back(Some(self.orders.now()), effects, out);
                let leaves =
                    self.kv.transfers().is_writing_back() || self.swap_paused_out(missing, effects, out);
                leaves.then_some(EvictedPaused::UnderWay)
            }
        }
    }

    /// Swaps KV of paused requests out, once a write-back has measured the link. Returns whether there is some.
    fn swap_paused_out(&mut self, missing: u32, effects: &AdmissionEffects, out: &mut Vec<Action>) -> bool {
        if self.offload.write_back.layer_block_ns().is_none() {
            return false;
        }
        let max = self.view().paused_kv_blocks_to_swap(missing, self.swap_piece());
        let swaps = self.kv.plan_paused_out(max, effects, self.generations);
        let some = !swaps.is_empty();
        if some {
            self.order_swaps_out(swaps, out);
        }
        some
    }

    /// Evicts KV of paused requests for a transition that must happen and for which `missing` layer blocks have no
    /// place, if [`OffloadView::can_evict_paused_for_transition`]. `None` = there is none.
    pub fn evict_paused_for_transition(
        &mut self,
        missing: u32,
        out: &mut Vec<Action>,
    ) -> Option<EvictedPaused> {
        let effects = AdmissionEffects::default();
        let on_host = self.kv.paused_on_host(missing, &effects);
        if !on_host.is_empty() {
            self.kv.evict_hosted(&on_host);
            return Some(EvictedPaused::Freed);
        }
        self.write_back(Some(self.orders.now()), &effects, out);
        self.kv.transfers().is_writing_back().then_some(EvictedPaused::UnderWay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Work;
    use crate::event::Outcome;
    use crate::ids::RequestId;
    use crate::offload::offloading::tests::Parts;
    use crate::offload::write_back::MAX_WAIT_NS;
    use crate::orders::pending::Pending;
    use crate::params::Params;
    use crate::reclaim::PolicyName;

    const PAUSED: RequestId = RequestId(1);

    fn paused() -> Parts {
        let mut parts = Parts::new(PolicyName::OrbitFlow);
        parts.run(PAUSED, 1);
        parts.kv.suspend(PAUSED);
        parts
    }

    fn decide(parts: &mut Parts, missing: u32) -> PausedKv {
        parts.parts().view().paused_kv(missing, &Parts::no_admissions())
    }

    fn evict(parts: &mut Parts, missing: u32, out: &mut Vec<Action>) -> Option<EvictedPaused> {
        parts.parts().evict_paused(missing, &Parts::no_admissions(), out)
    }

    #[test]
    fn paused_kv_is_written_back_and_then_evicted() {
        let (mut parts, mut out) = (paused(), Vec::new());
        // The first write-back is one layer block, to measure the link; the next one takes the rest.
        for writes in 1..=2 {
            assert_eq!(decide(&mut parts, 4), PausedKv::ToWrite);
            assert_eq!(evict(&mut parts, 4, &mut out), Some(EvictedPaused::UnderWay));
            let ordered = out.pop().expect("a write-back is ordered");
            assert!(matches!(ordered.work, Work::WriteBack(_)), "write {writes}");
            let Pending::WriteBack(written) = parts.orders.take(ordered.id) else { panic!("{ordered:?}") };
            parts.parts().on_written_back(&written, Outcome::Done { bytes: 16, duration_ns: 1 });
        }
        assert!(matches!(decide(&mut parts, 4), PausedKv::OnHost(kv_blocks) if kv_blocks.len() == 1));
        assert_eq!(evict(&mut parts, 4, &mut out), Some(EvictedPaused::Freed));
        assert!(!parts.kv.of(PAUSED).on_device() && out.is_empty());
        parts.kv.check();
        assert_eq!(evict(&mut parts, 4, &mut out), None, "nothing is left");
    }

    #[test]
    fn slow_link_keeps_paused_kv_on_the_device() {
        let (mut parts, mut out) = (paused(), Vec::new());
        parts.parts().on_written_back(&[], Outcome::Done { bytes: 0, duration_ns: 1 });
        assert_eq!(decide(&mut parts, 4), PausedKv::ToWrite, "nothing was measured");
        parts.offload.write_back.on_written(1, MAX_WAIT_NS / 2);
        assert_eq!(decide(&mut parts, 2), PausedKv::ToWrite);
        assert_eq!(decide(&mut parts, 4), PausedKv::LeavesTooSlowly);
        assert_eq!((evict(&mut parts, 4, &mut out), out.len()), (None, 0));
    }

    #[test]
    fn loading_kv_is_not_evicted_for_its_own_request() {
        let mut parts = paused();
        let swaps = parts.kv.plan_swap_out(8, &mut crate::slots::Generations::default());
        parts.kv.finish_swap_out(&swaps, true);
        let admissions = [crate::kv::admissions::Admission::suspended(PAUSED)];
        let mut effects = parts.kv.admission_effects(&admissions, |_| &[]);
        parts.kv.plan_async_swap_in(8, &mut effects);
        assert_eq!(decide(&mut parts, 4), PausedKv::IsLoading);
        parts.offload.on_boundary(true);
        assert_eq!(decide(&mut parts, 4), PausedKv::ToWrite, "the requests that run need space");
    }

    #[test]
    fn change_evicts_paused_kv_only_if_the_policy_does_so() {
        let mut out = Vec::new();
        for (policy, expected) in
            [(PolicyName::OrbitFlow, None), (PolicyName::Unified, Some(EvictedPaused::Freed))]
        {
            let bounds = Params { remap_cap_permille: 0, host_kv_bytes: 8 * 64, ..Params::default() };
            let mut parts = Parts::with(Params { policy, ..bounds });
            parts.run(PAUSED, 2);
            parts.kv.suspend(PAUSED);
            parts.kv.plan_write_back(
                16,
                (true, false),
                &Parts::no_admissions(),
                &mut crate::slots::Generations::default(),
            );
            let written: Vec<_> = parts.kv.requests().kv_blocks(PAUSED).to_vec();
            assert_eq!(written.len(), 2);
            let swaps = swaps_of(&parts, &written);
            parts.kv.finish_write_back(&swaps, true);
            let evicted = match parts.parts().view().can_evict_paused_for_transition(4) {
                true => parts.parts().evict_paused_for_transition(4, &mut out),
                false => None,
            };
            assert_eq!(evicted, expected, "{policy:?}");
        }
    }

    /// The planned write-backs of these KV blocks.
    fn swaps_of(parts: &Parts, kv_blocks: &[KvBlockId]) -> Vec<crate::kv::Swap> {
        let swap = |id: &KvBlockId| crate::kv::Swap {
            kv_block: *id,
            host_location: parts.kv.blocks().get(*id).host_location.expect("it has a place"),
            layers: (0..4).map(crate::ids::LayerId).collect(),
        };
        kv_blocks.iter().map(swap).collect()
    }
}

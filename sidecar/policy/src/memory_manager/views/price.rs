//! What each reclaim option would cost the clients of the next step.

use crate::cost::price::{Clients, LateTokens, ReclaimCost};
use crate::cost::{CostContext, CostModel};
use crate::ids::RequestId;
use crate::kv::Kv;
use crate::memory_manager::StallingRemap;
use crate::offload::Offload;

/// Prices of reclaim options.
#[derive(Clone, Copy, Debug)]
pub struct PriceView<'a> {
    pub(in crate::memory_manager) kv: &'a Kv,
    pub(in crate::memory_manager) offload: &'a Offload,
    pub(in crate::memory_manager) cost: CostModel<'a>,
    pub(in crate::memory_manager) layer_block_bytes: u64,
    pub(in crate::memory_manager) clients: &'a Clients<'a>,
}

impl PriceView<'_> {
    /// The cost of these layers beyond those that move now.
    pub fn layers(&self, stalling: &StallingRemap) -> ReclaimCost {
        let context = self.context();
        let [now, then] = stalling.stall_ns.map(|ns| {
            let hides = ns <= self.cost.allowance_ns();
            if hides { LateTokens::default() } else { context.stall(ns, self.clients) }
        });
        let loss =
            LateTokens { late: then.late.saturating_sub(now.late), lost: then.lost.saturating_sub(now.lost) };
        ReclaimCost { loss, freed_bytes: stalling.freed_bytes }
    }

    /// The cost of pausing this request, whose client has `buffered_tokens` tokens buffered.
    pub fn pause(&self, request: RequestId, buffered_tokens: u32) -> ReclaimCost {
        let unwritten = u64::from(self.kv.of(request).exclusive_unwritten_layer_blocks());
        let leaving_ns = unwritten.saturating_mul(self.offload.layer_block_ns().unwrap_or(0));
        ReclaimCost {
            loss: self.context().pause(buffered_tokens, leaving_ns, self.clients),
            freed_bytes: self.own_bytes(request),
        }
    }

    /// The cost of computing `tokens` of this request again.
    pub fn preemption(&self, request: RequestId, buffered_tokens: u32, tokens: u32) -> ReclaimCost {
        ReclaimCost {
            loss: self.context().preemption(buffered_tokens, tokens.into(), self.clients),
            freed_bytes: self.own_bytes(request),
        }
    }

    /// Bytes that leave the device with the request: KV that no other request uses.
    fn own_bytes(&self, request: RequestId) -> u64 {
        u64::from(self.kv.of(request).exclusive_layer_blocks()) * self.layer_block_bytes
    }

    /// The requests of the next step, as reclaim options hurt them.
    fn context(&self) -> CostContext {
        self.cost.context(self.clients.buffered_tokens.len() as u32)
    }
}

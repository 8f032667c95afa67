//! Computes prompts whose KV does not fit on the device (eLLM 4.4.2):
//! [`sluice_policy::memory_manager::MemoryManager::start_prefill_offload`].

use sluice_policy::ellm::Violations;
use sluice_policy::geometry::{BLOCK_TOKENS, Geometry};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_ports::compute::Sampled;

use super::Scheduler;
use crate::batch::Batch;
use crate::sequence::Sequence;

/// Waiting requests that a step checks for lateness.
const MOST_LOOKED_AT: usize = 64;

impl Scheduler {
    /// Suspends requests whose offloaded prompt has its first token; they wait until their KV fits on the device.
    /// Requests whose prompt is no longer offloaded become ordinary ones.
    pub(super) fn suspend_offloaded(&mut self) {
        for sequence in self.running.values_mut().filter(|sequence| sequence.prefill_offloaded) {
            sequence.prefill_offloaded = self.manager.is_prefill_offloaded(sequence.id());
            sequence.waiting_offloaded &= sequence.prefill_offloaded;
        }
        let computed = self.running.values().filter(|sequence| sequence.waiting_offloaded);
        for id in computed.map(Sequence::id).collect::<Vec<_>>() {
            self.suspend_with_kv(id);
        }
    }

    /// Whether the request runs and offloads its prompt's KV.
    fn is_prefill_offloaded(&self, id: RequestId) -> bool {
        self.running_request(id).is_some_and(|sequence| sequence.prefill_offloaded)
    }

    /// Starts to offload the prompt of a request that was admitted at this boundary and does not fit. Returns false if
    /// that is not allowed.
    pub(super) fn start_prefill_offload(&mut self, id: RequestId) -> bool {
        let Some(sequence) = self.running_request(id) else { return false };
        let fresh = !sequence.kv_suspended && !sequence.prefill_offloaded && sequence.pending() > 1;
        let kv_blocks = Geometry::kv_blocks_for(sequence.len());
        if !fresh || !self.can_offload_prefill(kv_blocks) {
            return false;
        }
        self.start_offload(id);
        true
    }

    /// Whether a plan admits the request with offloaded KV although its prompt does not fit on the device.
    pub(super) fn starts_offloaded(&self, now: Nanos, sequence: &Sequence) -> bool {
        let prompt =
            !sequence.kv_suspended && sequence.pending() > 1 && self.config.max_step_tokens >= BLOCK_TOKENS;
        prompt && self.manager.admits_by_prefill_offload(&self.waiter(sequence, now, 0))
    }

    pub(super) fn start_offload(&mut self, id: RequestId) {
        let kv_blocks = self.running_request(id).map_or(0, |one| Geometry::kv_blocks_for(one.len()));
        self.manager.start_prefill_offload(id, kv_blocks);
        if let Some(sequence) = self.running_request_mut(id) {
            sequence.prefill_offloaded = true;
        }
    }

    fn can_offload_prefill(&mut self, kv_blocks: u32) -> bool {
        let step = self.step_kv_blocks();
        self.config.max_step_tokens >= BLOCK_TOKENS
            && self.manager.can_offload_prefill(kv_blocks, kv_blocks.min(step))
    }

    fn step_kv_blocks(&self) -> u32 {
        Geometry::kv_blocks_for(self.config.max_step_tokens)
    }

    /// Whether the queue head leaves the reserved buffer to offloaded prefills.
    pub(super) fn can_reserve_prefill_buffer(&self, now: Nanos, coming_layer_blocks: u32) -> bool {
        let step = self.step_kv_blocks();
        let leaves = |front: &Sequence| {
            let layer_blocks = self.layer_blocks_needed(now, front) + coming_layer_blocks;
            let tokens = self.running_tokens().saturating_add(front.pending());
            self.manager.can_reserve_prefill_buffer(layer_blocks, tokens, step)
        };
        !self.manager.reserves_prefill_buffer(step) || self.queue.front().is_none_or(leaves)
    }

    /// Admits requests with offloaded prefills while the queue head waits, or waits for capacity after its own
    /// offloaded prefill: they need almost no device memory.
    pub(super) fn admit_offloaded_prefills(&mut self, mut budget: u32, admitted: &mut Vec<RequestId>) {
        while self.manager.offloads_prefills() && budget > 0 && !self.free_rows.is_empty() {
            let Some(new) = self.queue.iter().find(|one| !one.kv_suspended) else { return };
            let (id, kv_blocks) = (new.id(), Geometry::kv_blocks_for(new.len()));
            if new.len() <= 1 || !self.can_offload_prefill(kv_blocks) {
                return;
            }
            let Some((row, mut sequence)) = self.free_rows.pop().zip(self.queue.remove(id)) else { return };
            sequence.committed = self.manager.open(id, sequence.request.salt, &sequence.tokens);
            budget = budget.saturating_sub(sequence.pending());
            admitted.push(id);
            self.assign_row(sequence, row);
            self.start_offload(id);
        }
    }

    /// Whether the step can run without offloaded prefills that began earlier. They continue when a chunk of them fits.
    pub(super) fn can_defer_prefills(&self, batch: &Batch, admitted: &[RequestId]) -> bool {
        admitted.is_empty()
            && batch.scheduled.iter().any(|part| self.is_prefill_offloaded(part.request))
            && batch.scheduled.iter().any(|part| !self.is_prefill_offloaded(part.request))
    }

    /// Excludes offloaded prefills from the memory demand of a step that computes none.
    pub(super) fn exclude_offloaded_prefills(&mut self, batch: &Batch) {
        let without = !batch.scheduled.iter().any(|part| self.is_prefill_offloaded(part.request));
        self.manager.exclude_offloaded_prefills(without);
    }

    /// Reports SLO violations to Algorithm 2: first tokens that were or already are late, and requests with fewer
    /// tokens than they should have by now.
    pub(super) fn record_slo_violations(&mut self, now: Nanos, sampled: &[Sampled]) {
        let slo = self.manager.params().slo;
        if !self.manager.offloads_prefills() || (slo.ttft_ns == 0 && slo.tbt_ns == 0) {
            return;
        }
        let late =
            |from: Nanos, tokens: u32, ns: u64| ns > 0 && now.since(from) > ns.saturating_mul(tokens.into());
        let ttft = |one: &Sequence| one.first_token.is_none() && late(one.arrived, 1, slo.ttft_ns);
        let tpot =
            |one: &Sequence| one.first_token.is_some_and(|first| late(first, one.generated(), slo.tbt_ns));
        let made: Vec<_> = sampled.iter().filter_map(|token| self.request_in_row(token.row)).collect();
        let waiting = || self.queue.iter().take(MOST_LOOKED_AT);
        let out = || waiting().filter(|one| one.waiting_offloaded);
        self.manager.record_slo_violations(Violations {
            ttft: made.iter().any(|one| ttft(one)) || waiting().any(ttft),
            tpot: made.iter().any(|one| tpot(one)) || out().any(tpot),
        });
    }
}

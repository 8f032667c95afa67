//! What a plan asks before it admits one more request: whether its KV fits next to the others, and where it goes.
//!
//! The view adds the admissions that the plan has made so far to the state of memory. It changes nothing.

use super::scheduler_view::WaitingRequest;
use super::view::OffloadView;
use crate::ellm::{Need, Supply};
use crate::geometry::Geometry;
use crate::ids::RequestId;
use crate::kv::admissions::{Admission, AdmissionEffects};
use crate::memory_manager::MemoryNotes;

/// The requests that a plan admits so far, as its next decisions see them: what they will change about KV
/// ([`AdmissionEffects`], which the step counts too), and the device memory that the plan expects all of their KV to
/// take, not only the next step's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedAdmissions {
    effects: AdmissionEffects,
    layer_blocks: u32,
}

impl PlannedAdmissions {
    /// Adds a request that takes `layer_blocks` layer blocks on the device.
    pub fn add(&mut self, admission: &Admission, layer_blocks: u32, memory: &OffloadView<'_>) {
        self.layer_blocks += layer_blocks;
        let offloaded = memory.joining_layers(admission.request).unwrap_or_default();
        memory.kv.add_admission(admission, offloaded, &mut self.effects);
    }

    /// Layer blocks that they take on the device.
    pub fn layer_blocks(&self) -> u32 {
        self.layer_blocks
    }
}

/// Whether a plan admits a waiting request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanAdmission {
    /// Now.
    Now,
    /// As soon as the fetches under way have ended; the next step orders none early.
    AfterFetches,
    /// Not before another placement is in force.
    AfterPlacement,
    /// Not yet.
    NotYet,
}

/// Whether the KV of a prompt may go to the host tier while it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillOffload {
    /// It may.
    Fits,
    /// The link to the host is unknown or too slow: [`crate::memory_manager::MemoryNotes::probes_link`] has it
    /// measured.
    LinkTooSlow,
    /// Not now, or not under this policy.
    NotNow,
}

/// The memory of a tenant as the next decision of a plan sees it.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionView<'a> {
    pub(crate) memory: OffloadView<'a>,
    pub(crate) planned: &'a PlannedAdmissions,
}

impl AdmissionView<'_> {
    /// Whether a waiting request may be admitted, after the others of the plan. `None` = no placement plan names it,
    /// and [`AdmissionView::has_room`] decides.
    pub fn plan_admission(&self, waiter: &WaitingRequest) -> Option<PlanAdmission> {
        if self.memory.offload.due.is_some() {
            return Some(PlanAdmission::AfterPlacement);
        }
        let set = self.memory.offload.plans.admitted_layers(waiter.request)?;
        let needed = self.layer_blocks_needed(waiter) + self.planned.layer_blocks() + self.memory.kv.layers();
        let next = self.target_spare_layer_blocks() - self.memory.reserve_layer_blocks();
        let lacking = (needed + next).saturating_sub(self.spare_layer_blocks());
        let stays = |request| request == waiter.request || self.planned.effects.resumes(request);
        let fits = lacking == 0 || lacking <= self.memory.kv.evictable_paused_layer_blocks(stays);
        let buffers_rest = set.is_empty() || self.memory.kv.layer_offload().fetches() == 0;
        Some(match (fits, buffers_rest) {
            (true, true) => PlanAdmission::Now,
            (true, false) => PlanAdmission::AfterFetches,
            (false, _) => PlanAdmission::NotYet,
        })
    }

    /// Whether a plan may admit a request, after the others of the step. Without pauses an admission cannot be undone,
    /// however long all requests grow, so no running request's KV is offloaded for it.
    pub fn may_plan_admission(&self, waiter: &WaitingRequest, coming: u32) -> bool {
        let may_be_paused = self.memory.params.pause_bound_ns > 0 && self.memory.can_pause_help();
        may_be_paused || self.must_admit(waiter) || self.fits_with_target(waiter, coming)
    }

    /// Whether plans admit it even if it makes others late.
    pub(crate) fn must_admit(&self, waiter: &WaitingRequest) -> bool {
        self.memory.params.plan_first_come && waiter.fresh
    }

    /// Whether nothing is offloaded, and all of the KV of a waiting request and the next tokens of all requests fit.
    pub fn has_room(&self, waiter: &WaitingRequest) -> bool {
        let offloads = self.memory.is_placed() || self.planned.effects.spilled_kv_blocks() > 0;
        !offloads && self.fits_with_target(waiter, self.planned.layer_blocks())
    }

    fn fits_with_target(&self, waiter: &WaitingRequest, coming: u32) -> bool {
        let needed = self.layer_blocks_needed(waiter) + coming + self.memory.kv.layers();
        needed + self.target_spare_layer_blocks() <= self.spare_layer_blocks()
    }

    /// Layer blocks that an admitted request takes on the device: all of its KV but the layers that a plan offloads.
    pub fn layer_blocks_needed(&self, waiter: &WaitingRequest) -> u32 {
        let set = self.memory.planned_layers(waiter.request);
        match self.memory.kv.of(waiter.request).kv_blocks() {
            0 if self.admits_by_prefill_offload(waiter) => {
                waiter.kv_blocks * self.memory.staging_slot_layer_blocks()
            }
            0 => waiter.kv_blocks * self.memory.kv.layers(),
            _ => self.memory.kv.of(waiter.request).layer_blocks_to_join(set),
        }
    }

    /// The plan admits the request with some of its KV offloaded, and all of it does not fit: its prompt is computed
    /// with its KV in the host tier (`prefill_offload`), and loaded from there as planned.
    pub fn admits_by_prefill_offload(&self, waiter: &WaitingRequest) -> bool {
        let admitted = !self.memory.planned_layers(waiter.request).is_empty()
            && self.memory.kv.of(waiter.request).kv_blocks() == 0;
        admitted
            && self.memory.are_buffers_idle()
            && !self.fits_with_running(waiter.kv_blocks * self.memory.kv.layers())
            && self.fits_host_tier(waiter.kv_blocks)
    }

    /// The paused request could resume: all of its KV and the next tokens of all requests fit the device.
    pub fn resume_fits(&self, request: RequestId) -> bool {
        self.fits_with_running(self.memory.kv.of(request).absent_layer_blocks())
    }

    /// `layer_blocks` more fit the device as it is, with the next tokens of all requests.
    pub fn fits_with_running(&self, layer_blocks: u32) -> bool {
        layer_blocks + self.next_layer_blocks() <= self.spare_layer_blocks()
    }

    /// Host blocks for requests that are paused next.
    pub fn host_capacity_blocks(&self) -> u32 {
        let unplaced = self.memory.kv.unplaced_paused(|request| self.planned.effects.resumes(request));
        self.memory.kv.host_pool().available().saturating_sub(unplaced)
    }

    /// Blocks that are free, or would be at no cost, after the planned admissions have the cached blocks that they use.
    pub(crate) fn spare_layer_blocks(&self) -> u32 {
        self.memory.spare_layer_blocks() - self.planned.effects.reused_kv_blocks() * self.memory.kv.layers()
    }

    /// Blocks that should be free: the next tokens of the running requests and of the planned admissions, and the
    /// reserve.
    pub(crate) fn target_spare_layer_blocks(&self) -> u32 {
        self.memory.target_spare_layer_blocks(self.planned.effects.requests())
    }

    pub(crate) fn kv_is_short(&self) -> bool {
        self.spare_layer_blocks() < self.target_spare_layer_blocks()
    }

    /// Whether the KV of a prompt with this size may go to the host tier (Algorithm 1): the buffer has space, and its
    /// steps leave space on the device for the next token of every request. Not while the link to the host is unknown
    /// or so slow that a step of `step_kv_blocks` would wait for long.
    pub fn prefill_offload(&self, kv_blocks: u32, step_kv_blocks: u32) -> PrefillOffload {
        let ready = self.memory.offloads_prefills()
            && self.memory.are_buffers_idle()
            && !self.memory.in_backoff
            && self.memory.write_back_is_healthy();
        match ready {
            true if !self.memory.can_spill_in_time(step_kv_blocks) => PrefillOffload::LinkTooSlow,
            true if self.fits_buffer(kv_blocks) => PrefillOffload::Fits,
            _ => PrefillOffload::NotNow,
        }
    }

    fn fits_buffer(&self, kv_blocks: u32) -> bool {
        let to_spill = self.memory.kv_blocks_to_spill() + self.planned.effects.spilled_kv_blocks();
        let slot_layer_blocks = self.memory.staging_slot_layer_blocks();
        let used = self.memory.kv.host_pool().used_without_cache() + to_spill;
        let places = self.memory.kv.host_pool().available().saturating_sub(to_spill);
        let logical = self.memory.offload.prompts.logical().min(u64::from(u32::MAX)) as u32;
        let supply = Supply {
            free: self.spare_layer_blocks(),
            threshold: self.next_layer_blocks() + to_spill * slot_layer_blocks,
            buffer: logical.saturating_sub(used).min(places),
        };
        supply.fits_by_offload(Need { kv: kv_blocks, activation: kv_blocks * slot_layer_blocks })
    }

    /// Blocks of the next tokens of the running requests, of the planned admissions and of one more.
    pub(crate) fn next_layer_blocks(&self) -> u32 {
        (self.memory.running() + self.planned.effects.requests() + 1) * self.memory.kv.layers()
    }

    /// A request with these blocks, of which the next step computes `tokens`, may be admitted: at least theta stays
    /// free. Staging slots count up to an eighth of KV in theta.
    pub fn leaves_prefill_buffer(&self, layer_blocks: u32, tokens: u32, step_kv_blocks: u32) -> bool {
        let staged = step_kv_blocks * self.memory.staging_slot_layer_blocks();
        let theta =
            self.next_layer_blocks() + staged.min(self.memory.kv.chunk_pool().total_layer_blocks() / 8);
        let needed = layer_blocks + self.planned.layer_blocks() + theta;
        needed <= self.spare_layer_blocks() + self.memory.inflatable_layer_blocks(tokens)
    }

    /// An offloaded prompt may continue, after the planned admissions and with a step of `tokens`: all of its KV and
    /// the next tokens of all requests fit the device.
    pub fn can_onload(&self, request: RequestId, tokens: u32) -> bool {
        let layer_blocks = self.memory.kv.of(request).absent_layer_blocks() + self.planned.layer_blocks();
        layer_blocks + self.next_layer_blocks()
            <= self.spare_layer_blocks() + self.memory.inflatable_layer_blocks(tokens.saturating_add(1))
    }

    /// A prompt that a plan admits may be computed with its KV in the host tier: the tier has a block for all of it,
    /// and the link is known to carry a step's part soon.
    pub(crate) fn fits_host_tier(&self, kv_blocks: u32) -> bool {
        let step = kv_blocks.min(Geometry::kv_blocks_for(self.memory.params.max_step.tokens));
        self.memory.can_spill_in_time(step)
            && self.memory.write_back_is_healthy()
            && !self.memory.in_backoff
            && self.unreserved_host_places() >= kv_blocks
    }

    /// Host blocks that neither offloaded prompts nor paused requests will take.
    fn unreserved_host_places(&self) -> u32 {
        let reserved = self.memory.kv_blocks_to_spill() + self.planned.effects.spilled_kv_blocks();
        self.host_capacity_blocks().saturating_sub(reserved)
    }

    /// A placement plan is due, with what the plan of the step found: the driver asks for it. Not if everything fits
    /// and the waiting request was admitted without one.
    pub fn wants_plan(&self, notes: &MemoryNotes) -> bool {
        let plans = &self.memory.offload.plans;
        let next = notes.blocked_head.unwrap_or_else(|| plans.blocked_head());
        plans.is_due() && (self.memory.is_placed() || next.is_some() || self.kv_is_short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::admissions::AdmittedKv;
    use crate::offload::offloading::tests::Parts;
    use crate::reclaim::PolicyName;

    #[test]
    fn prompt_finds_no_host_place_that_an_admitted_prompt_will_take() {
        let mut parts = Parts::new(PolicyName::OrbitFlow);
        // The link is known, so that prompts may go to the host tier.
        parts.offload.write_back.on_written(1, 1);
        let prefix = parts.kv.cached_prefix(1, &[]);
        let parts = parts.parts();
        let memory = parts.view();
        let mut planned = PlannedAdmissions::default();
        let fits = |planned: &PlannedAdmissions, kv_blocks| {
            AdmissionView { memory, planned }.fits_host_tier(kv_blocks)
        };
        assert_eq!([8, 9].map(|kv_blocks| fits(&planned, kv_blocks)), [true, false], "the host tier has 8");
        let kv = AdmittedKv::New { prefix, spilled_kv_blocks: Some(5) };
        planned.add(&Admission { request: RequestId(1), kv }, 0, &memory);
        assert_eq!([3, 4].map(|kv_blocks| fits(&planned, kv_blocks)), [true, false], "5 of 8 are taken");
    }
}

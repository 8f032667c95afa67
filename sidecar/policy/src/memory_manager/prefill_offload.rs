//! Prompts that are computed without room for their KV: it goes to the host tier layer by layer, and comes back when the request is
//! to go on (eLLM 4.4.2). How much of the tier they may use Algorithm 2 says.

use super::MemoryManager;
use super::kv_placement::{MIN_MOVING_LAYERS, buffers};
use crate::ellm::{Admission, Need, Supply, Violations};
use crate::geometry::{Geometry, StepShape};
use crate::ids::{LayerId, RequestId};
use crate::kv::layer_offload::Placement;
use crate::reason::Reason;
use crate::reclaim::KvPlacementMode;
use crate::step_model::Layout;

/// Boundaries between two measurements of a link that is too slow for prompts, or was.
const PROBE_BOUNDARIES: u64 = 1024;

impl MemoryManager {
    /// Prompts for which there is no room may go to the host tier.
    pub fn offloads_prefills(&self) -> bool {
        let layers = self.sizes.layers;
        let placed = self.params.kv_placement() == KvPlacementMode::Prompts && layers > MIN_MOVING_LAYERS;
        placed && self.sizes.host_columns > 0
    }

    /// All columns that the request gets from now on go to the host tier.
    pub fn is_prefill_offloaded(&self, request: RequestId) -> bool {
        self.kv.is_spilling_prefill(request)
    }

    /// The KV of a prompt of so many columns may go to the host tier, as Algorithm 1 says: the buffer has room for it, and what each
    /// step of it takes on the device leaves room for everybody's next token. Not while the link to the host is unknown, or so slow
    /// that a step of `step_columns` would wait for long.
    pub fn can_offload_prefill(&mut self, columns: u32, step_columns: u32) -> bool {
        let ready = self.offloads_prefills()
            && self.are_buffers_idle()
            && !self.in_backoff()
            && self.write_back_is_healthy();
        ready && self.can_spill_in_time(step_columns) && self.fits_buffer(columns)
    }

    fn fits_buffer(&self, columns: u32) -> bool {
        let (to_go, seat) = (self.kv.columns_to_spill(), self.staging_slot_blocks());
        let used = self.kv.host_used() + to_go;
        let places = self.kv.host_places().saturating_sub(to_go);
        let logical = self.offload.prompts.logical().min(u64::from(u32::MAX)) as u32;
        let supply = Supply {
            free: self.spare_blocks(),
            threshold: self.next_blocks() + to_go * seat,
            buffer: logical.saturating_sub(used).min(places),
        };
        let need = Need { kv: columns, activation: columns * seat };
        let batch = Admission { buffer_left: supply.buffer, ..Admission::default() };
        batch.takes_by_offload(supply, need)
    }

    /// What the next tokens of those who run and of one more take.
    pub(super) fn next_blocks(&self) -> u32 {
        (self.kv.running_requests().count() as u32 + 1) * self.kv.layers()
    }

    /// First tokens have been late, and prompts may use the buffer: who comes with its KV on the device leaves room for `step_columns`
    /// of them (theta). With room for one column in the buffer, as at the start, all memory is for those who run.
    pub fn reserves_prefill_buffer(&self, step_columns: u32) -> bool {
        self.offloads_prefills()
            && self.offload.prompts.logical() > 1
            && self.write_back_is_healthy()
            && self.can_write_back_in_time(step_columns * self.kv.layers())
    }

    /// A request that takes so many blocks, and `tokens` of it the next step, may come: the rest is theta at least, of which seats are
    /// an eighth of KV at most.
    pub fn can_reserve_prefill_buffer(&self, blocks: u32, tokens: u32, step_columns: u32) -> bool {
        let seats = step_columns * self.staging_slot_blocks();
        let theta = self.next_blocks() + seats.min(self.kv.frames().total_blocks() / 8);
        blocks + theta <= self.spare_blocks() + self.inflatable_blocks(tokens)
    }

    /// A request whose prompt went out may go on, after others that take `coming_blocks` and beside a step of so many tokens: all of its
    /// KV would be on the device, and everybody's next tokens.
    pub fn can_onload(&self, request: RequestId, coming_blocks: u32, tokens: u32) -> bool {
        let blocks = self.kv.absent_blocks(request) + coming_blocks;
        blocks + self.next_blocks() <= self.spare_blocks() + self.inflatable_blocks(tokens.saturating_add(1))
    }

    /// Blocks in idle activation chunks, beside a step of so many tokens (eLLM's inflation).
    fn inflatable_blocks(&self, tokens: u32) -> u32 {
        if !self.params.policy().reclaims_activations() || self.in_backoff() {
            return 0;
        }
        let shape =
            StepShape { tokens: tokens.clamp(1, self.params.max_step.tokens), ..self.params.max_step };
        let needed =
            self.geometry.chunks_for(self.geometry.activation.bytes(shape)).max(self.sizes.activation_min);
        let idle = self.activation_chunks().saturating_sub(needed);
        let room = self.sizes.kv_limit.saturating_sub(self.kv.frames().backed() + self.free_frames());
        idle.min(room) * self.sizes.blocks_per_chunk
    }

    /// Of a prompt so many columns leave the device in time, by the link that was measured; else it is measured, again from time to
    /// time.
    fn can_spill_in_time(&mut self, columns: u32) -> bool {
        let known = self.block_out_ns().is_some();
        let soon = self.can_write_back_in_time(columns * self.kv.layers());
        if !(known && soon) && self.counters.boundaries() >= self.offload.probe_at {
            self.offload.probe = true;
            self.offload.probe_at = self.counters.boundaries() + PROBE_BOUNDARIES;
        }
        known && soon
    }

    /// So many columns have places in the host tier, if need be those of its cache. `false` = it has not so many, or not yet.
    pub(super) fn reserve_host_places(&mut self, columns: u32) -> bool {
        while self.kv.host_room() < columns {
            let room = self.kv.host_room();
            if !self.kv.evict_from_host() {
                return false;
            }
            self.count(Reason::PrefixEvicted);
            if self.kv.host_room() == room {
                return false;
            }
        }
        true
    }

    /// The step that is to begin has no part of prompts that go out, or has one: without, nothing comes into the buffers.
    pub fn exclude_offloaded_prefills(&mut self, out: bool) {
        self.kv.set_buffers_idle(out && self.kv.stages_prefills_only());
    }

    /// What a step wrote is still on its way to the host tier: no step begins.
    pub fn is_spilling(&self) -> bool {
        self.kv.has_pending_spills()
    }

    /// What decides about prompts that go out, for a fingerprint.
    pub fn prefill_digest(&self) -> u64 {
        self.offload.prompts.word()
            ^ self.write_digest().rotate_left(7)
            ^ self.block_out_ns().unwrap_or(0) << 20
    }

    /// The KV of this request, which was opened at this boundary and has `columns` in all, goes to the host tier.
    ///
    /// # Panics
    /// If something is on its way into a buffer: [`MemoryManager::can_offload_prefill`] or
    /// [`MemoryManager::admits_by_prefill_offload`] is asked before.
    pub fn start_prefill_offload(&mut self, request: RequestId, columns: u32) {
        if !self.kv.places_prefills() {
            self.kv.place(self.kv.placement_with_prefills(self.prefill_layout()));
        }
        self.kv.start_prefill_spill(request, columns);
    }

    /// A prompt of so many columns that a plan lets in may be computed with its KV in the host tier: there is a place for all
    /// of it, and the link is known to carry a step's part of it soon.
    pub(super) fn can_offload_prefills(&self, columns: u32) -> bool {
        let step = columns.min(Geometry::columns_for(self.params.max_step.tokens));
        let soon = self.block_out_ns().is_some() && self.can_write_back_in_time(step * self.kv.layers());
        soon && self.write_back_is_healthy() && !self.in_backoff() && self.unreserved_host_places() >= columns
    }

    /// Another placement may be in force at once: nothing is on its way into a buffer, nor is another one due.
    pub(super) fn are_buffers_idle(&self) -> bool {
        self.offload.due.is_none() && self.kv.fetches() == 0 && !self.kv.is_fetching_disabled()
    }

    /// All layers, in as many buffers as there may be: none of a prompt's KV stays.
    fn prefill_layout(&self) -> Layout {
        let moving = (0..self.sizes.layers).map(LayerId).collect();
        Layout { moving, beta: buffers(usize::from(self.sizes.layers)) }
    }

    /// Places in the host tier that neither prompts on their way there nor paused requests will take.
    fn unreserved_host_places(&self) -> u32 {
        self.host_capacity_blocks().saturating_sub(self.kv.columns_to_spill())
    }

    /// Blocks that a column of a prompt takes on the device: one in each buffer.
    pub(super) fn staging_slot_blocks(&self) -> u32 {
        buffers(usize::from(self.sizes.layers)).into()
    }

    /// Nothing is placed while no prompt goes out.
    pub(super) fn request_prefill_placement(&mut self) {
        let layout = &self.kv.placement().layout;
        let idle = self.kv.spilling_requests().next().is_none() || !self.kv.places_prefills();
        self.offload.due = (idle && !layout.moving.is_empty()).then(Placement::default);
    }

    /// Algorithm 2: what a scheduling iteration saw of the objectives.
    pub fn record_slo_violations(&mut self, seen: Violations) {
        self.offload.prompts.iteration(seen);
    }

    /// Columns of the host tier that prompts may use now.
    pub fn prefill_buffer_columns(&self) -> u64 {
        self.offload.prompts.logical()
    }

    /// The same in bytes; 0 under a policy that sends none there.
    pub fn prefill_buffer_bytes(&self) -> u64 {
        let columns = if self.offloads_prefills() { self.prefill_buffer_columns() } else { 0 };
        columns.saturating_mul(self.geometry.column_bytes())
    }

    /// The step that a lost engine left will not be repeated: what it should have written is lost.
    pub fn forget_step(&mut self) {
        if !self.step.is_running() && self.kv.writes_to_buffers() {
            let lost = self.kv.abandon_spills();
            self.drop_kv(lost);
        }
    }
}

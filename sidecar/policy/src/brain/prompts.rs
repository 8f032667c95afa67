//! Prompts that are computed without room for their KV: it goes to the host tier layer by layer, and comes back when the request is
//! to go on (eLLM 4.4.2). How much of the tier they may use Algorithm 2 says.

use super::Brain;
use super::place::LEAST_MOVING;
use crate::ellm::{Admission, Need, Supply, Violations};
use crate::ids::{LayerId, RequestId};
use crate::kv::stream::Placement;
use crate::params::Placing;
use crate::step_model::{Layout, MAX_BETA};

impl Brain {
    /// Prompts for which there is no room may go to the host tier.
    pub fn offloads_prompts(&self) -> bool {
        let layers = self.sizes.layers;
        let placed = self.params.placing() == Placing::Prompts && layers > LEAST_MOVING;
        placed && self.sizes.host_columns > 0
    }

    /// All columns that the request gets from now on go to the host tier.
    pub fn goes_out(&self, request: RequestId) -> bool {
        self.kv.goes_out(request)
    }

    /// The KV of a prompt of so many columns may go to the host tier, as Algorithm 1 says: the buffer has room for it, and what each
    /// step of it takes on the device leaves room for everybody's next token. Not while the link to the host is unknown, or so slow
    /// that a step of `step_columns` would wait for long.
    pub fn may_send_out(&mut self, columns: u32, step_columns: u32) -> bool {
        let ready = self.offloads_prompts()
            && self.offload.due.is_none()
            && self.kv.fetches() == 0
            && !self.suspended()
            && self.writes_go_well();
        ready
            && self.fits_buffer(columns)
            && self.is_out_known()
            && self.leaves_soon(step_columns * self.kv.layers())
    }

    fn fits_buffer(&self, columns: u32) -> bool {
        let layout = self.layout_of_prompts();
        let used = self.kv.host_used() + self.kv.columns_to_go_out();
        let places = self.kv.host_places().saturating_sub(self.kv.columns_to_go_out());
        let logical = self.offload.prompts.logical().min(u64::from(u32::MAX)) as u32;
        let supply = Supply {
            free: self.spare_blocks(),
            threshold: self.next_blocks(),
            buffer: logical.saturating_sub(used).min(places),
        };
        let need = Need { kv: columns, activation: columns * u32::from(layout.beta) };
        let batch = Admission { buffer_left: supply.buffer, ..Admission::default() };
        batch.takes_by_offload(supply, need)
    }

    /// What the next tokens of those who run and of one more take.
    fn next_blocks(&self) -> u32 {
        (self.kv.runners().count() as u32 + 1) * self.kv.layers()
    }

    /// First tokens have been late, and prompts use the buffer: who comes with its KV on the device leaves room for `step_columns` of
    /// them (theta). With room for one column in the buffer, as at the start, all memory is for those who run.
    pub fn keeps_room_for_prompts(&self) -> bool {
        self.offloads_prompts() && self.offload.prompts.logical() > 1
    }

    /// A request that takes so many blocks may come: the rest is theta at least.
    pub fn leaves_room_for_prompts(&self, blocks: u32, step_columns: u32) -> bool {
        let theta = self.next_blocks() + step_columns * u32::from(self.layout_of_prompts().beta);
        blocks + theta <= self.spare_blocks()
    }

    /// The rate of the link to the host is known; else it will be.
    fn is_out_known(&mut self) -> bool {
        let known = self.block_out_ns().is_some();
        self.offload.probe = !known;
        known
    }

    /// The KV of this request, which was opened at this boundary and has `columns` in all, goes to the host tier.
    ///
    /// # Panics
    /// If [`Brain::may_send_out`] has not allowed it.
    pub fn send_out(&mut self, request: RequestId, columns: u32) {
        let layout = self.layout_of_prompts();
        if self.kv.placement().layout != layout {
            self.kv.place(Placement::uniform(layout, core::iter::once(request)));
        }
        self.kv.send_out(request, columns);
    }

    /// All layers, in as many buffers as there may be: none of a prompt's KV stays.
    fn layout_of_prompts(&self) -> Layout {
        let moving: alloc::vec::Vec<_> = (0..self.sizes.layers).map(LayerId).collect();
        let beta = (moving.len() / 2).min(usize::from(MAX_BETA)) as u8;
        Layout { moving, beta }
    }

    /// Nothing is placed while no prompt goes out.
    pub(super) fn wish_prompts(&mut self) {
        let layout = &self.kv.placement().layout;
        let idle = self.kv.going_out().next().is_none() || *layout != self.layout_of_prompts();
        self.offload.due = (idle && !layout.moving.is_empty()).then(Placement::default);
    }

    /// Algorithm 2: what a scheduling iteration saw of the objectives.
    pub fn note_violations(&mut self, seen: Violations) {
        self.offload.prompts.iteration(seen);
    }

    /// Columns of the host tier that prompts may use now.
    pub fn prompt_buffer_columns(&self) -> u64 {
        self.offload.prompts.logical()
    }

    /// The same in bytes; 0 under a policy that sends none there.
    pub fn prompt_buffer_bytes(&self) -> u64 {
        let columns = if self.offloads_prompts() { self.prompt_buffer_columns() } else { 0 };
        columns.saturating_mul(self.geometry.column_bytes())
    }

    /// The step that a lost engine left will not be repeated: what it should have written is lost.
    pub fn forget_step(&mut self) {
        if !self.in_step {
            let lost = self.kv.abandon_spills();
            self.lost.extend(lost);
        }
    }
}

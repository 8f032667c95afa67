//! Pie: the same layers of every request are offloaded while KV is short, as many as hide behind compute and help
//! ([`crate::pie::expansion`]).

use crate::cost::StepTimes;
use crate::offload::layouts::moving_layout;
use crate::offload::offloading::Offloading;
use crate::offload::view::OffloadView;
use crate::pie::expansion::Token;
use crate::step_model::Layout;

/// The offloaded layers: the controller limits them, need demands them.
pub fn layout(view: &OffloadView<'_>) -> Layout {
    if !view.kv_is_short() && (!view.is_placed() || view.all_kv_fits()) {
        return Layout::resident();
    }
    moving_layout(view.sizes.layers, view.offload.expansion.queue())
}

impl Offloading<'_> {
    /// Feeds a decode step to the controller. It grows while the link has spare time: the swaps that fit the spare time
    /// count as early. Fetches took the link for `busy_ns`.
    pub(super) fn observe_expansion(&mut self, times: &StepTimes, stall_ns: u64, busy_ns: u64) {
        if self.offload.expansion_in_force().is_none() {
            return;
        }
        let swaps = self.kv.layer_offload().placement().layout.moving.len() as u32;
        let spare_ns = u128::from(times.total_ns - busy_ns);
        let early_swaps = u128::from(swaps) * spare_ns / u128::from(times.total_ns.max(1));
        let token = Token {
            total_ns: times.total_ns,
            stall_ns,
            swaps,
            early_swaps: early_swaps as u32,
            sequences: times.shape.sequences,
        };
        if swaps > 0 || self.view().kv_is_short() {
            self.offload.expansion.token(&token);
        }
    }
}

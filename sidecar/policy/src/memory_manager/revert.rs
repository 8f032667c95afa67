//! Plans the transition that the policy wants at a boundary: Dynamic Reversion (Oneiros), forced layouts, the cap.

use super::MemoryManager;
use super::parts::pressure;
use crate::reason::Reason;
use crate::revert::{Hysteresis, Pressure};
use crate::step_model::Layout;
use crate::transition::{Transition, TransitionTarget};

impl MemoryManager {
    /// Plans the transition that is due at this boundary, and the count of calm boundaries if this one counts.
    pub(super) fn plan_transition(&self) -> (Option<Transition>, Option<Hysteresis>) {
        let to_layout = |layout, reason| Transition { target: TransitionTarget::Layout(layout), reason };
        if let Some(forced) = self.forced {
            let layout = self.sizes.forced_layout(forced);
            let differs =
                layout != *self.weights.layout() && self.transitions.may_retry(self.orders.boundaries());
            return (differs.then(|| to_layout(layout, Reason::Forced)), None);
        }
        if let Some(layout) = self.layout_below_cap() {
            return (Some(to_layout(layout, Reason::Revert)), None);
        }
        let (layout, calm) = self.plan_reversion().unzip();
        let reversion = layout.flatten().map(|layout| to_layout(layout, Reason::Revert));
        (reversion.or_else(|| self.activations_to_return()), calm)
    }

    /// Activations that eLLM converted to KV are restored under another policy.
    fn activations_to_return(&self) -> Option<Transition> {
        let few = self.chunks.activation_chunks() < self.sizes.activation_min;
        let due = few && self.loaded && self.transitions.may_retry(self.orders.boundaries());
        due.then_some(Transition {
            target: TransitionTarget::Activation(self.sizes.activation_min),
            reason: Reason::Deflate,
        })
    }

    /// Plans the layout to revert to, if KV has been below its limit for long enough, and the count of such boundaries.
    /// `None`: no layer may come back now, and this boundary does not count.
    fn plan_reversion(&self) -> Option<(Option<Layout>, Hysteresis)> {
        let current = self.weights.layout();
        let alpha = current.alpha();
        if alpha <= self.base.alpha()
            || !self.weights.is_settled()
            || !self.transitions.may_retry(self.orders.boundaries())
        {
            return None;
        }
        if self.is_remapped_this_step() {
            return None;
        }
        let pressure = self.pressure(alpha - self.base.alpha());
        let patience = self.patience();
        let (layers, calm) = self.transitions.layers_to_revert(patience, &pressure);
        if layers == 0 {
            return Some((None, calm));
        }
        let wanted = alpha - layers;
        if wanted == self.base.alpha() || !self.sizes.moves_layers() {
            return Some((Some(self.base.clone()), calm));
        }
        // Fewer layers move than now, whatever the stall: the allowance limits remaps, not reversions.
        let layout = self.layout_search().moving(wanted, u64::MAX).layout;
        Some(((layout.alpha() < alpha).then_some(layout), calm))
    }

    /// Boundaries for which KV must be below its limit. If moving layers stall, no more than the steps whose stalls pay
    /// for the copies: a longer wait costs more than remapping a layer again would. At least an eighth of the patience,
    /// since KV that is given up and wanted back at once costs more than copies.
    fn patience(&self) -> u32 {
        let stall_ns = self.cost().stall_ns(self.weights.layout());
        let copies_ns: u64 = self.step_stats.transfer_ns().iter().max().copied().unwrap_or(0);
        match copies_ns.checked_div(stall_ns / u64::from(self.weights.layout().alpha().max(1))) {
            Some(steps) if stall_ns > self.cost().allowance_ns() => {
                let max = self.params.revert_patience_steps;
                (steps.min(u64::from(max)) as u32).max(max / 8)
            }
            _ => self.params.revert_patience_steps,
        }
    }

    /// Memory that was taken for a step is not reverted before a step has run: until its blocks are allocated it looks
    /// spare, and with a short patience reversion and remapping would alternate at one boundary for ever.
    fn is_remapped_this_step(&self) -> bool {
        self.transitions.is_remapped(self.orders.steps()) && self.kv.requests().count() > 0
    }

    /// If more layers move than the cap allows: the layout within the cap, if it fits without cost to a request.
    fn layout_below_cap(&self) -> Option<Layout> {
        let moving = self.weights.layout().moving.len();
        if moving <= usize::from(self.sizes.cap_m) || !self.transitions.may_retry(self.orders.boundaries()) {
            return None;
        }
        let max_moving = self.sizes.cap_m.saturating_sub(1);
        let layout = self.layout_search().moving_from(&Layout::resident(), max_moving, u64::MAX).layout;
        let idle = self.kv.idle_chunks_above(self.sizes.kv_guaranteed);
        let room = self.chunks.weights_held() + self.chunks.free_count() + idle;
        (self.sizes.weights(&layout) <= room).then_some(layout)
    }

    /// `alpha` layers move beyond those of the base layout.
    fn pressure(&self, alpha: u16) -> Pressure {
        let remapped =
            self.sizes.weights(&self.base).saturating_sub(self.sizes.weights(self.weights.layout()));
        let layer_chunks = remapped.div_ceil(u32::from(alpha)).max(1);
        pressure((&self.kv, &self.chunks), (&self.sizes, &self.geometry), (alpha, layer_chunks))
    }
}

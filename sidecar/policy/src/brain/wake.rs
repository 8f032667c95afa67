//! Coming back after weight layers were lent: all of them if there is room, else moving through slots.

use super::reshape::{Goal, Target};
use super::{Brain, Rest};
use crate::ledger::Owner;
use crate::reason::Reason;
use crate::step_model::Layout;

impl Brain {
    /// A layout with more moving layers that takes so many chunks fewer, whatever its stall.
    pub(super) fn narrower(&self, chunks: u32) -> Option<Layout> {
        let limit = self.weights_held().checked_sub(chunks)?;
        self.wider_remaps().find(|layout| self.sizes.weights(layout) <= limit)
    }

    /// Layouts that free more and more layers, beginning with one more than now.
    fn wider_remaps(&self) -> impl Iterator<Item = Layout> + '_ {
        let current = self.slots.layout();
        // Whoever has lent under another policy comes back as one that lends.
        let lends = self.params.policy.remaps() || self.trade.lent > 0;
        let most = if lends { self.sizes.cap_m } else { 0 };
        let wanted = current.alpha() + 1..most;
        wanted
            .map(move |alpha| self.choose(current, alpha, u64::MAX))
            .filter(|choice| choice.declined.is_none())
            .map(|choice| choice.layout)
    }

    /// The tenant has work and some of its layers are away: they come back, all if there is room, else moving through slots.
    pub(super) fn come_back(&mut self) {
        if !self.waking() || self.trade.patient {
            return;
        }
        let home = self.weights_held() + self.ledger.count(Owner::Free);
        let fits = |layout: &Layout, frames: u32| self.sizes.weights(layout) <= home + frames;
        let current = self.slots.layout();
        let candidates = || core::iter::once(current.clone()).chain(self.wider_remaps());
        let layout = [self.idle_frames(), self.frames_above_guarantee()]
            .into_iter()
            .find_map(|frames| candidates().find(|layout| fits(layout, frames)));
        match layout {
            Some(layout) => self.goal = Some(Goal { target: Target::Layout(layout), reason: Reason::Wake }),
            None => self.trade.stuck = true,
        }
    }

    /// Layers that were lent come back: what there is of their memory is here.
    pub fn comes_back(&self) -> bool {
        self.wants_layers() && !self.trade.patient
    }

    /// Every layer has memory, and what it holds is complete.
    pub fn is_whole(&self) -> bool {
        self.loaded() && self.absent_layers() == 0 && self.slabs_settled
    }

    /// Some layers are away, and the tenant has work, or nobody has their memory any more.
    pub(super) fn waking(&self) -> bool {
        match self.rest {
            Rest::Falling | Rest::Asleep => return false,
            Rest::Rising => return true,
            Rest::Awake => {}
        }
        let leaving = self.leaving(|_, _| true) > 0;
        let home =
            self.trade.lent == 0 && self.trade.partings.is_empty() && self.trade.regrow == 0 && !leaving;
        (self.trade.active || home) && self.absent_layers() > 0
    }
}

//! Layouts of weights that are possible for a tenant, and the best of them: by how many layers move, by the chunks that
//! they free, and by the chunks that exist (Oneiros 4.3).

use super::CostModel;
use crate::params::ForcedRemap;
use crate::reason::Reason;
use crate::remap::Choice;
use crate::sizes::Sizes;
use crate::step_model::Layout;

/// Finds layouts by the cost model and the sizes of a tenant. It changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct LayoutSearch<'a> {
    /// Times and allowed stalls.
    pub cost: CostModel<'a>,
    /// Sizes and the cap.
    pub sizes: &'a Sizes,
    /// The layout in force.
    pub current: &'a Layout,
    /// The layout without load.
    pub base: &'a Layout,
    /// The layout that the configuration fixes.
    pub forced: Option<ForcedRemap>,
}

impl<'a> LayoutSearch<'a> {
    /// More layers move than without load.
    pub fn is_remapped(self) -> bool {
        self.current.alpha() > self.base.alpha()
    }

    /// The layout that moves `wanted_alpha` layers with the least stall, within the cap.
    pub fn moving(self, wanted_alpha: u16, allowance_ns: u64) -> Choice {
        self.moving_from(self.current, wanted_alpha, allowance_ns)
    }

    /// As [`LayoutSearch::moving`], as if the layout in force were this one.
    pub fn moving_from(self, layout: &Layout, wanted_alpha: u16, allowance_ns: u64) -> Choice {
        self.cost.choose_layout(layout, wanted_alpha, self.sizes.cap_m, allowance_ns)
    }

    /// The layout with the fewest moving layers that gives `chunks` within the stall; else why there is none.
    pub fn freeing(self, chunks: u32, allowance_ns: u64) -> Result<Layout, Reason> {
        let weights = self.sizes.weights(self.current);
        let mut wanted = self.current.alpha() + (chunks / self.sizes.largest_slab()).max(1) as u16;
        loop {
            let choice = self.moving(wanted, allowance_ns);
            if let Some(reason) = choice.declined {
                return Err(reason);
            }
            if self.sizes.weights(&choice.layout) + chunks <= weights {
                return Ok(choice.layout);
            }
            wanted = wanted.max(choice.layout.alpha()) + 1;
        }
    }

    /// Chunks that own layers would give at most within the allowed stall.
    pub fn most_freed(self) -> u32 {
        let movable = self.sizes.movable_m.unwrap_or(0);
        let allowance_ns = self.cost.allowance_ns();
        let remapped = self.cost.choose_layout(self.current, u16::MAX, movable, allowance_ns).layout;
        self.sizes.weights(self.current).saturating_sub(self.sizes.weights(&remapped))
    }

    /// Layouts that free more and more layers, beginning with one more than now. A tenant that lent under another
    /// policy restores as one that lends.
    pub fn larger(self, is_lender: bool) -> impl Iterator<Item = Layout> + Clone + 'a {
        let lent = is_lender.then_some(self.sizes.cap_m);
        let max_moving = lent.or(self.sizes.movable_m).unwrap_or(0);
        let wanted = self.current.alpha() + 1..max_moving;
        wanted
            .map(move |alpha| self.moving(alpha, u64::MAX))
            .filter(|choice| choice.declined.is_none())
            .map(|choice| choice.layout)
    }

    /// The layout to start with on `created` chunks: the forced one, else all resident, else (Oneiros) the fewest
    /// moving layers that fit.
    pub fn starting(self, created: u32) -> Option<Layout> {
        let room = created.checked_sub(self.sizes.kv_guaranteed)?;
        let fits = |layout: &Layout| self.sizes.fixed_chunks(layout) <= room;
        if let Some(forced) = self.forced {
            return Some(self.sizes.forced_layout(forced)).filter(fits);
        }
        let resident = Layout::resident();
        if fits(&resident) {
            return Some(resident);
        }
        let max_moving = self.sizes.movable_m.unwrap_or(0);
        (1..max_moving).map(|alpha| self.moving_from(&resident, alpha, u64::MAX).layout).find(fits)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::super::{StepStats, StepTimes};
    use super::*;
    use crate::geometry::{ActivationCost, Geometry};
    use crate::params::Params;

    /// Eight layers of two chunks, two chunks of embeddings, and 64 chunks in all.
    fn geometry() -> Geometry {
        Geometry {
            chunk_bytes: 64,
            capacity_chunks: 64,
            global_bytes: 128,
            slab_bytes: vec![128; 8],
            layer_block_bytes: 16,
            activation: ActivationCost::default(),
            staging_chunks: 0,
        }
    }

    fn params() -> Params {
        Params {
            max_model_tokens: 16,
            guaranteed_kv_bytes: 128,
            kv_limit_bytes: 64 * 64,
            share_chunks: 64,
            ..Params::default()
        }
    }

    /// Calls `test` with a search on layers that compute 100 us each, of which a copy takes `copy_us`.
    fn search<T>(copy_us: u64, forced: Option<ForcedRemap>, test: impl Fn(LayoutSearch<'_>) -> T) -> T {
        let params = params();
        let sizes = Sizes::new(&params, &geometry()).expect("the tenant can be served");
        let mut stats = StepStats::new(&params, &geometry().slab_bytes);
        stats.on_step(&StepTimes { decode_only: true, layer_ns: vec![100_000; 8], ..StepTimes::default() });
        stats.copied(128, copy_us * 1000);
        let (cost, current) = (CostModel::new(&stats, &params), Layout::resident());
        test(LayoutSearch { cost, sizes: &sizes, current: &current, base: &current, forced })
    }

    #[test]
    fn copies_that_hide_free_chunks_and_slow_ones_do_not() {
        let freed = |copy_us| search(copy_us, None, |search| search.freeing(2, search.cost.allowance_ns()));
        assert_eq!(freed(50).map(|layout| layout.alpha()), Ok(1));
        assert_eq!(freed(5_000), Err(Reason::DeclinedStall), "a copy takes longer than the whole step");
        // The cap is four layers. They share a slot whose copies of 50 us hide behind the layer between two of them.
        let most_freed = |copy_us| search(copy_us, None, |search| search.most_freed());
        assert_eq!((most_freed(50), most_freed(5_000)), (3 * 2, 0));
    }

    #[test]
    fn larger_layouts_free_more_and_more() {
        let freed: Vec<u32> = search(50, None, |search| {
            search.larger(false).map(|layout| 16 - search.sizes.weights(&layout)).collect()
        });
        assert_eq!(freed, [2, 4, 6], "one layer of two chunks more each time, up to the cap");
    }

    #[test]
    fn tenant_starts_resident_if_it_fits_and_else_with_the_fewest_moving_layers() {
        let alpha =
            |created| search(50, None, |search| search.starting(created).map(|layout| layout.alpha()));
        // 2 chunks of embeddings, 16 of layers and 2 of guaranteed KV; a layer less takes 2 fewer.
        assert_eq!([20, 19, 18, 17].map(alpha), [Some(0), Some(1), Some(1), Some(2)]);
        assert_eq!([13, 2, 1].map(alpha), [None; 3], "more than the cap would have to move");
    }

    #[test]
    fn forced_layout_is_the_start_or_there_is_none() {
        let forced = Some(ForcedRemap { alpha: 2, beta: 1 });
        let start = |created| search(50, forced, |search| search.starting(created).map(|l| l.alpha()));
        assert_eq!((start(64), start(8)), (Some(2), None));
    }
}

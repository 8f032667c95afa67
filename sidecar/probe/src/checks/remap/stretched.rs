//! The policy's step model, with compute that takes longer while a copy to the device is under way.
//!
//! The step model takes a fixed compute time of each layer. So a decode loop in time finds how long each layer computes
//! in the steady state, and the step model gets these times.

use std::collections::VecDeque;

use sluice_policy::closed_form::Alike;
use sluice_policy::ids::LayerId;
use sluice_policy::step_model::{Layout, MAX_BETA, Times, stall_per_token_ns};

/// Tokens before the counted ones: the loop must reach its steady state.
const WARMUP_TOKENS: u32 = 64;
/// Counted tokens.
const TOKENS: u32 = 64;

/// Returns the nanoseconds that a token takes longer than with all layers resident and no copy, if compute takes
/// `factor` times as long while a copy is under way. With a factor of 1 this is the stall of the step model.
///
/// # Panics
/// If the layout has no moving layer.
pub fn stall_ns(alike: Alike, layout: &Layout, factor: f64) -> f64 {
    let compute: Vec<u64> =
        compute_ns(alike, layout, factor).into_iter().map(|ns| ns.round() as u64).collect();
    let transfer = vec![alike.transfer_ns; alike.layers.into()];
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let token_ns = times.token_compute_ns() + stall_per_token_ns(&times, layout);
    token_ns as f64 - f64::from(alike.layers) * alike.compute_ns as f64
}

/// Returns the mean time of each layer's compute.
fn compute_ns(alike: Alike, layout: &Layout, factor: f64) -> Vec<f64> {
    let mut decode = DecodeTime {
        layout,
        transfer_ns: alike.transfer_ns as f64,
        compute_ns: alike.compute_ns as f64,
        factor,
        now_ns: 0.0,
        link_free_ns: 0.0,
        copies: VecDeque::new(),
        slots: [SlotState::Free { since_ns: 0.0 }; MAX_BETA as usize],
        next_fill: 0,
    };
    decode.start_fills();
    let mut sums = vec![0.0; alike.layers.into()];
    for token in 0..WARMUP_TOKENS + TOKENS {
        for layer in (0..alike.layers).map(LayerId) {
            let ns = decode.layer(layer);
            sums[layer.index()] += if token < WARMUP_TOKENS { 0.0 } else { ns };
        }
    }
    sums.into_iter().map(|sum| sum / f64::from(TOKENS)).collect()
}

#[derive(Clone, Copy)]
enum SlotState {
    /// Its last reader was done at this time.
    Free { since_ns: f64 },
    /// Its fill arrives at this time.
    Filled { arrives_ns: f64 },
}

/// A decode loop in time, in the order of the step model.
struct DecodeTime<'a> {
    layout: &'a Layout,
    transfer_ns: f64,
    /// Compute of a layer while no copy is under way.
    compute_ns: f64,
    factor: f64,
    now_ns: f64,
    link_free_ns: f64,
    /// Start and end of the copies that are not over, in order.
    copies: VecDeque<(f64, f64)>,
    slots: [SlotState; MAX_BETA as usize],
    /// Index of the moving layer that is copied next.
    next_fill: usize,
}

impl DecodeTime<'_> {
    /// Starts every fill whose slot is free. All fills that overlap the next layer's compute are known then, because a
    /// slot becomes free only at the end of a layer.
    fn start_fills(&mut self) {
        loop {
            let slot = &mut self.slots[self.layout.slot(self.next_fill).index()];
            let SlotState::Free { since_ns } = *slot else { return };
            let start_ns = self.link_free_ns.max(since_ns);
            self.link_free_ns = start_ns + self.transfer_ns;
            *slot = SlotState::Filled { arrives_ns: self.link_free_ns };
            self.copies.push_back((start_ns, self.link_free_ns));
            self.next_fill = (self.next_fill + 1) % self.layout.moving.len();
        }
    }

    /// Waits for a moving layer's fill, then computes the layer. Returns the time of the compute.
    fn layer(&mut self, layer: LayerId) -> f64 {
        let slot = self.layout.slot_of(layer).map(|slot| slot.index());
        if let Some(SlotState::Filled { arrives_ns }) = slot.map(|slot| self.slots[slot]) {
            self.now_ns = self.now_ns.max(arrives_ns);
        }
        let start_ns = self.now_ns;
        self.compute();
        if let Some(slot) = slot {
            self.slots[slot] = SlotState::Free { since_ns: self.now_ns };
            self.start_fills();
        }
        self.now_ns - start_ns
    }

    /// Computes one layer, more slowly during copies.
    fn compute(&mut self) {
        let mut left_ns = self.compute_ns;
        loop {
            while self.copies.front().is_some_and(|(_, end_ns)| *end_ns <= self.now_ns) {
                self.copies.pop_front();
            }
            let (factor, until_ns) = match self.copies.front() {
                Some((start_ns, end_ns)) if *start_ns <= self.now_ns => (self.factor, *end_ns),
                Some((start_ns, _)) => (1.0, *start_ns),
                None => (1.0, f64::INFINITY),
            };
            let end_ns = self.now_ns + left_ns * factor;
            if end_ns <= until_ns {
                self.now_ns = end_ns;
                return;
            }
            left_ns -= (until_ns - self.now_ns) / factor;
            self.now_ns = until_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts;

    fn alike(layers: u16, r_permille: u64) -> Alike {
        Alike { layers, compute_ns: 1_000_000, transfer_ns: r_permille * 1000 }
    }

    /// Checks that `ours` is `expected` nanoseconds, up to the rounding of each layer's time.
    fn assert_near(ours: f64, expected: f64, what: &str) {
        assert!((ours - expected).abs() < 50.0, "{ours} against {expected}: {what}");
    }

    #[test]
    fn without_a_factor_it_is_the_step_model() {
        for (r, alpha, beta) in [(900, 9, 1), (5990, 3, 1), (6000, 5, 2), (6010, 4, 2), (78_000, 2, 2)] {
            let (layout, stall) = layouts::best(alike(32, r), alpha, beta);
            assert_near(stall_ns(alike(32, r), &layout, 1.0), stall as f64, &format!("{r} {alpha} {beta}"));
        }
    }

    #[test]
    fn a_copy_that_hides_costs_its_part_of_slower_compute() {
        // While a copy of T_T runs, compute does the work of T_T / factor.
        for (alpha, beta) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)] {
            let (layout, stall) = layouts::best(alike(32, 6000), alpha, beta);
            assert_eq!(stall, 0, "{alpha} {beta}");
            let copied_ns = f64::from(alpha + u16::from(beta)) * 6e6;
            let ours = stall_ns(alike(32, 6000), &layout, 1.08);
            assert_near(ours, copied_ns * (1.0 - 1.0 / 1.08), &format!("{alpha} {beta}"));
        }
    }

    #[test]
    fn a_link_that_is_always_awaited_costs_the_same_with_slower_compute() {
        for alpha in [1, 2, 5] {
            let (layout, _) = layouts::best(alike(32, 78_000), alpha, 1);
            let form = alike(32, 78_000).one_slot_ns(alpha) as f64;
            assert_near(stall_ns(alike(32, 78_000), &layout, 1.1), form, &format!("{alpha}"));
        }
        let (layout, _) = layouts::best(alike(32, 78_000), 2, 2);
        let form = alike(32, 78_000).two_slots_at_least_ns(2) as f64;
        assert_near(stall_ns(alike(32, 78_000), &layout, 1.1), form, "two slots");
    }
}

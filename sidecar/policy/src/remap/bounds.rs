//! Checks necessary conditions, so that the step model evaluates only layouts that can be allowed.
//!
//! The link needs `sum of T_T` per token with any number of slots (Oneiros: `T_T * N <= T_compute`, N = m). With one
//! slot a fill and its reading layer never overlap, so a token takes at least `sum of (T_T + T_c)` over the moving
//! layers (Eq. 4). Both sums use the m cheapest layers, so they hold for every set of m.

use alloc::vec::Vec;

use crate::step_model::Times;

pub(super) struct Bounds {
    /// Maximum moving layers with one slot and with two, by the conditions and the cap.
    most_moving: [u16; 2],
}

impl Bounds {
    pub(super) fn new(times: &Times<'_>, allowance_ns: u64, limit_m: u16) -> Bounds {
        let budget_ns = u128::from(times.token_compute_ns()) + u128::from(allowance_ns);
        let layers = 0..times.compute_ns.len();
        let one = layers.clone().map(|l| times.transfer(l) + times.compute(l)).collect();
        let two = layers.map(|l| times.transfer(l)).collect();
        Bounds { most_moving: [one, two].map(|needs| most_within(needs, budget_ns).min(limit_m)) }
    }

    /// Whether a layout that frees `alpha` layers can pass. Monotone: false for every alpha above a false one.
    pub(super) fn can_be_allowed(&self, alpha: u16) -> bool {
        self.can_allow_beta(alpha, 1) || self.can_allow_beta(alpha, 2)
    }

    pub(super) fn can_allow_beta(&self, alpha: u16, beta: u8) -> bool {
        alpha + u16::from(beta) <= self.most_moving[usize::from(beta) - 1]
    }
}

/// Returns how many of the smallest needs fit into the budget.
fn most_within(mut needs_ns: Vec<u64>, budget_ns: u128) -> u16 {
    needs_ns.sort_unstable();
    let mut used_ns = 0;
    let fitting = needs_ns.iter().take_while(|need| {
        used_ns += u128::from(**need);
        used_ns <= budget_ns
    });
    fitting.count() as u16
}

//! Closed forms of remapping for identical layers: n layers, T_c compute and T_T copy of one layer, alpha freed layers,
//! m = alpha + beta moving ones. The step model ([`crate::step_model`]) makes the decisions; these formulas bound,
//! explain and check it.
//!
//! "Alternating" means that the k-th fill since the start uses slot `k mod 2`. Under constant addresses that is the
//! same for even m; for odd m the layers on both sides of the token's end share a slot, which can cost more.
//!
//! Sources: Oneiros 5.4, Eq. 4 and 5; the integer forms are our own, checked by simulation in the tests.

use alloc::vec::Vec;

pub mod pie;
pub mod prefill;

/// A model of identical layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alike {
    /// n: layers.
    pub layers: u16,
    /// T_c: compute of one layer for one step, nanoseconds. At least 1.
    pub compute_ns: u64,
    /// T_T: copy of one layer's slab, nanoseconds. At least 1.
    pub transfer_ns: u64,
}

impl Alike {
    fn n(self) -> u128 {
        u128::from(self.layers)
    }

    fn compute(self) -> u128 {
        assert!(self.compute_ns > 0, "a layer computes for at least a nanosecond");
        u128::from(self.compute_ns)
    }

    fn transfer(self) -> u128 {
        assert!(self.transfer_ns > 0, "a layer's copy takes at least a nanosecond");
        u128::from(self.transfer_ns)
    }

    /// Returns r = T_T / T_c, permille, rounded up.
    pub fn r_permille(self) -> u64 {
        saturated((self.transfer() * 1000).div_ceil(self.compute()))
    }

    /// Returns a lower bound on the stall per token with one slot: `(alpha+1)(T_T + T_c) - n T_c`, nanoseconds. Real
    /// positions can only increase it. 0 for alpha = 0, which moves no layer.
    pub fn one_slot_at_least_ns(self, alpha: u16) -> u64 {
        let moving = if alpha == 0 { 0 } else { u128::from(alpha) + 1 };
        saturated((moving * (self.transfer() + self.compute())).saturating_sub(self.n() * self.compute()))
    }

    /// Returns a lower bound on the stall per token with two slots: `(alpha+2) T_T - n T_c`, nanoseconds. 0 for alpha =
    /// 0.
    pub fn two_slots_at_least_ns(self, alpha: u16) -> u64 {
        let moving = if alpha == 0 { 0 } else { u128::from(alpha) + 2 };
        saturated((moving * self.transfer()).saturating_sub(self.n() * self.compute()))
    }

    /// Returns the exact stall per token with one slot and uniform positions, nanoseconds: with q = floor(n/m) and R =
    /// n mod m, each of the m - R gaps of q costs `max(0, T_T - (q-1) T_c)`, and each of the R gaps of q + 1 costs
    /// `max(0, T_T - q T_c)`.
    ///
    /// # Panics
    /// If `alpha + 1 > n`.
    pub fn one_slot_ns(self, alpha: u16) -> u64 {
        if alpha == 0 {
            return 0;
        }
        let moving = u128::from(alpha) + 1;
        assert!(moving <= self.n(), "no more moving layers than layers");
        let (q, rest) = (self.n() / moving, self.n() % moving);
        let short = self.transfer().saturating_sub((q - 1) * self.compute());
        let long = self.transfer().saturating_sub(q * self.compute());
        saturated((moving - rest) * short + rest * long)
    }

    /// Returns the largest alpha without a stall at one slot, exact: `floor(n / ceil(r + 1)) - 1`. At least one layer
    /// stays resident.
    pub fn one_slot_largest_alpha(self) -> u16 {
        let gap = (self.transfer() + self.compute()).div_ceil(self.compute());
        self.alpha_of(self.n() / gap, 1)
    }

    /// Returns the largest alpha without a stall at two alternating slots, exact: `floor(n / r) - 2`; never a whole
    /// model.
    pub fn two_slots_largest_alpha(self) -> u16 {
        self.alpha_of(self.n() * self.compute() / self.transfer(), 2)
    }

    /// Returns the largest alpha that Eq. 4 allows: `T_T (alpha + 1) <= T_c (n - alpha - 1)`. Real positions may allow
    /// one less.
    pub fn eq4_largest_alpha(self) -> u16 {
        self.alpha_of(self.n() * self.compute() / (self.transfer() + self.compute()), 1)
    }

    /// Returns the largest alpha that Eq. 5 allows: `T_T (alpha + 2) <= T_c n`.
    pub fn eq5_largest_alpha(self) -> u16 {
        self.two_slots_largest_alpha()
    }

    /// Whether Oneiros' Eq. 4 holds for `alpha`.
    pub fn eq4_holds(self, alpha: u16) -> bool {
        let moving = u128::from(alpha) + 1;
        moving * self.transfer() <= self.compute() * self.n().saturating_sub(moving)
    }

    /// Whether Oneiros' Eq. 5 holds for `alpha`.
    pub fn eq5_holds(self, alpha: u16) -> bool {
        (u128::from(alpha) + 2) * self.transfer() <= self.compute() * self.n()
    }

    /// Whether Oneiros' `T_T * N <= T_Compute` holds for N layers loaded per token: necessary for any number of slots.
    pub fn link_keeps_up(self, moving: u16) -> bool {
        u128::from(moving) * self.transfer() <= self.compute() * self.n()
    }

    fn alpha_of(self, moving: u128, beta: u128) -> u16 {
        moving.min(self.n().saturating_sub(1)).saturating_sub(beta) as u16
    }
}

/// Returns r of a decode step that only reads weights, permille: the device reads a layer in `bytes / (HBM bandwidth x
/// efficiency)`, the link copies it in `bytes / link bandwidth`. KV reads and a batch's compute lower the real r.
pub fn weight_bound_r_permille(hbm_bytes_per_s: u64, efficiency_permille: u32, link_bytes_per_s: u64) -> u64 {
    assert!(link_bytes_per_s > 0, "a link moves at least a byte per second");
    saturated(u128::from(hbm_bytes_per_s) * u128::from(efficiency_permille) / u128::from(link_bytes_per_s))
}

/// Returns the exact stall per token with one slot for differing layers, nanoseconds: the sum over the moving layers,
/// in order on the circle, of `max(0, T_T,i+1 - compute of the resident layers between i and i+1)`.
///
/// `gaps` holds for each moving layer (its copy, the compute of the resident layers before it), nanoseconds.
pub fn one_slot_unlike_ns(gaps: &[(u64, u64)]) -> u64 {
    gaps.iter().map(|(transfer_ns, before_ns)| transfer_ns.saturating_sub(*before_ns)).sum()
}

fn saturated(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Returns the cumulative sums, each including its own value.
fn cumulated(values: &[u64]) -> Vec<u64> {
    let running = values.iter().scan(0_u64, |sum, value| {
        *sum = sum.saturating_add(*value);
        Some(*sum)
    });
    running.collect()
}

//! Closed forms of remapping: the reference of tests of the step model and of `sluice-gpu-probe`, so it stays in this
//! crate. Decisions use the step model ([`crate::step_model`]) alone.
//!
//! A model has n identical layers, T_c compute and T_T copy of one layer, alpha freed layers, m = alpha + beta moving
//! ones.
//!
//! "Alternating" means that the k-th fill since the start uses slot `k mod 2`. Under constant addresses that is the
//! same for even m; for odd m the layers on both sides of the token's end share a slot, which can cost more.
//!
//! Sources: Oneiros 5.4, Eq. 4 and 5; the integer forms are our own, checked by simulation in the tests.

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

    fn alpha_of(self, moving: u128, beta: u128) -> u16 {
        moving.min(self.n().saturating_sub(1)).saturating_sub(beta) as u16
    }
}

fn saturated(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

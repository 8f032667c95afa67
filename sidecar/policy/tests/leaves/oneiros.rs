//! Oneiros' continuous rules (5.4), which the integer forms and the step model are compared with.

use sluice_policy::closed_form::Alike;

/// Eq. 4, one slot: `T_T (alpha + 1) <= T_c (n - alpha - 1)`.
pub fn eq4_holds(model: Alike, alpha: u16) -> bool {
    let (n, moving) = (u64::from(model.layers), u64::from(alpha) + 1);
    model.transfer_ns * moving <= model.compute_ns * n.saturating_sub(moving)
}

/// Eq. 5, two slots: `T_T (alpha + 2) <= T_c n`.
pub fn eq5_holds(model: Alike, alpha: u16) -> bool {
    link_keeps_up(model, alpha + 2)
}

/// `T_T * N <= T_Compute` for N layers loaded per token: necessary for any number of slots.
pub fn link_keeps_up(model: Alike, moving: u16) -> bool {
    model.transfer_ns * u64::from(moving) <= model.compute_ns * u64::from(model.layers)
}

/// The largest alpha, 0 at least, for which a rule holds.
pub fn largest(model: Alike, holds: fn(Alike, u16) -> bool) -> u16 {
    (1..model.layers).take_while(|alpha| holds(model, *alpha)).last().unwrap_or(0)
}

/// A lower bound on the stall per token with one slot: `(alpha + 1)(T_T + T_c) - n T_c`.
pub fn one_slot_at_least_ns(model: Alike, alpha: u16) -> u64 {
    let used_ns = (u64::from(alpha) + 1) * (model.transfer_ns + model.compute_ns);
    used_ns.saturating_sub(u64::from(model.layers) * model.compute_ns)
}

/// The stall per token with one slot for differing layers: the sum over the moving layers, in order on the circle, of
/// `max(0, T_T,i+1 - compute of the resident layers between i and i+1)`. `gaps` has both times of each moving layer.
pub fn one_slot_unlike_ns(gaps: &[(u64, u64)]) -> u64 {
    gaps.iter().map(|(transfer_ns, before_ns)| transfer_ns.saturating_sub(*before_ns)).sum()
}

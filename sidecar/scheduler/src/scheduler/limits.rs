//! The fixed numbers of decisions, which each run records.

/// Fixed decision constants by name.
pub const CONSTANTS: [(&str, u64); 2] = [
    ("admission_hold_steps", ADMISSION_HOLD_STEPS),
    ("starved_boundaries_max", STARVED_BOUNDARIES_MAX as u64),
];

/// Steps without admissions after memory refused one, unless a request ends earlier. Under deadline scheduling,
/// requests that fit into free memory are exempt.
pub(super) const ADMISSION_HOLD_STEPS: u64 = 16;

/// Boundaries at which memory may refuse the oldest request alone before that request fails. Its floor is guaranteed,
/// so only a backend that keeps failing reaches this limit.
pub(super) const STARVED_BOUNDARIES_MAX: u32 = 4096;

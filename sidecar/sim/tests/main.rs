//! The production policy and scheduler with a simulated backend.
#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test's helper fails the test")]

mod conformance;
mod deadlines;
mod debts;
mod decisions;
mod ellm;
mod engine_crashes;
mod engine_down;
mod experiments;
mod faults;
mod fetches;
mod gpu;
mod host_tier;
mod journal;
mod journal_damage;
mod link_order;
mod lost_messages;
mod next_use;
mod pauses;
/// Pie's swapping of whole layers, and its worked example.
mod pie {
    mod clock;
    mod golden;
    mod mapping;
}
mod plan_admission;
mod plans;
mod policies;
mod prefill_offload;
mod profiles;
mod reclaim_choice;
mod scheduling;
mod serve;
mod sleep;
mod slow_link;
mod soak;
mod support;
mod takeovers;
mod time_slice;
mod tokens;
mod waking;

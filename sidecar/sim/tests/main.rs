//! The production policy and scheduler over a simulated body.
#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test's helper fails the test")]

mod astray;
mod conformance;
mod damage;
mod deadlines;
mod deaths;
mod decisions;
mod engineless;
mod experiments;
mod faults;
mod fetches;
mod gpu;
mod joining;
mod journal;
mod link;
mod losses;
mod next_use;
mod owed;
mod pauses;
mod plans;
mod policies;
mod profiles;
mod prompts;
mod scheduling;
mod serve;
mod sleep;
mod slow_link;
mod soak;
mod support;
mod takeovers;
mod tier;
mod tokens;
mod turns;
mod waking;

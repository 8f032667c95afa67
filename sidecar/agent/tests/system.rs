//! Tests of the whole data plane with real processes: model folder, host memory, link, engine, policy, scheduler.
//!
//! Tokens never depend on memory decisions. Most tests run the same requests with and without such decisions and
//! compare every bit.
#![allow(clippy::unwrap_used, reason = "a failed unwrap in a test's helper fails the test")]

#[path = "system/bits.rs"]
mod bits;
#[path = "system/controls.rs"]
mod controls;
#[path = "system/failures.rs"]
mod failures;
#[path = "system/golden.rs"]
mod golden;
#[path = "system/gpu.rs"]
mod gpu;
#[path = "system/hibernate.rs"]
mod hibernate;
#[path = "system/huge_prompts.rs"]
mod huge_prompts;
#[path = "system/isolation.rs"]
mod isolation;
#[path = "system/journal.rs"]
mod journal;
#[path = "system/kills.rs"]
mod kills;
#[path = "system/leaving.rs"]
mod leaving;
#[path = "system/machine.rs"]
mod machine;
#[path = "system/models.rs"]
mod models;
#[path = "system/processes.rs"]
mod processes;
#[path = "system/random.rs"]
mod random;
#[path = "system/refusals.rs"]
mod refusals;
#[path = "system/sizes.rs"]
mod sizes;
#[path = "system/slow_link.rs"]
mod slow_link;
#[path = "system/support.rs"]
mod support;
#[path = "gateway/tiny.rs"]
mod tiny;
#[path = "gateway/tokenizers.rs"]
mod tokenizers;

//! The neighbourhood's shared files, between threads and between processes that are killed.
//!
//! Processes are this test binary again: [`actor`] reads commands and answers them, [`stage`] starts it.

mod actor;
mod arithmetic;
mod controls;
mod damage;
mod engine;
mod fence;
mod files;
mod frozen;
mod hammer;
mod kills;
mod namespaces;
mod raw;
mod seats;
mod shares;
mod stage;
mod takeover;
mod turn_hammer;
mod turn_kills;
mod turns;
mod voids;

/// A seed that differs from run to run; `SLUICE_TEST_SEED` repeats one.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let given = std::env::var("SLUICE_TEST_SEED").ok().map(|text| text.parse().unwrap());
    given.unwrap_or_else(|| std::collections::hash_map::RandomState::new().build_hasher().finish() | 1)
}

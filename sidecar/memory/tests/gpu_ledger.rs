//! The shared files of the GPU ledger, used by threads and by processes that are killed.
//!
//! The processes run this test binary: [`process`] reads commands and answers them, [`env`] starts it.

mod arithmetic;
mod cancelled_earmarks;
mod controls;
mod damage;
mod engine;
mod env;
mod fence;
mod files;
mod frozen;
mod kills;
mod namespaces;
mod participants;
mod process;
mod raw;
mod shares;
mod slice_kills;
mod slice_stress;
mod stress;
mod takeover;
mod time_slices;

/// Returns a seed that differs between runs; `SLUICE_TEST_SEED` repeats one.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let given = std::env::var("SLUICE_TEST_SEED").ok().map(|text| text.parse().unwrap());
    given.unwrap_or_else(|| std::collections::hash_map::RandomState::new().build_hasher().finish() | 1)
}

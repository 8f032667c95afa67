//! Three tenants of one GPU with too little KV for their bursts, the same for each sharing rule.
//!
//! The device is sized from the needs of the model, the link and the objectives from the speed of the model here.

pub mod delays;
mod load;
mod outcome;
mod setting;
mod size;
mod tenants;
mod victim_policy;

use anyhow::Result;
use serde_json::Value;

pub use load::Shape;
pub use outcome::{Observed, SharingRunFigures};
pub use setting::Setting;
pub use size::Size;
pub use victim_policy::{FIXED, LRU, MRU, VictimPolicy};

use crate::tenant::BenchEnv;

/// 32 layers of 1.6 MB for each of them: half of what one tenant alone is shown with, because three are loaded.
#[rustfmt::skip]
pub const MODEL: &[&str] = &[
    "--layers", "32", "--hidden", "256", "--heads", "4", "--kv-heads", "4", "--intermediate", "688", "--vocab",
    "512", "--max-positions", "512",
];

/// Runs a load on fresh tenants under `rule`; `show` sees their states twice a second.
pub fn run(
    world: &BenchEnv,
    setting: &Setting,
    rule: VictimPolicy,
    (shape, size): (Shape, Size),
    mut show: impl FnMut(&[Value]),
) -> Result<SharingRunFigures> {
    let up = setting.start(world, "neighbours", rule, 0)?;
    let mut seen = Observed::default();
    let rounds = shape.rounds(size, setting);
    let reports = load::send(world, &up, setting, &rounds, |states| {
        seen.look(states);
        show(states);
    })?;
    SharingRunFigures::read(&up, setting, &reports, seen)
}

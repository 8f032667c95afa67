//! The measurements, one per file.

use sluice_probe::checks;
use sluice_probe::suite::Suite;

pub mod attention;
mod link;
mod memory;
pub mod models;
mod pairs;
mod policies;
mod remap;
mod two_tenants;

/// All measurements. They start processes in the roles of the probe's checks, which they run.
pub const SUITE: Suite = Suite {
    checks: &[
        link::CHECK,
        memory::CHECK,
        attention::CHECK,
        models::CHECK,
        remap::CHECK,
        policies::CHECK,
        two_tenants::CHECK,
    ],
    roles: &[checks::ROLES],
};

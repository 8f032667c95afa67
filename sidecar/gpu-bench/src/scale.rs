//! [`Scale`]: the sizes of a run.

use sluice_probe::bench::{Bench, ProbeOptions};

/// How large the measured work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// On the stand-in for the driver: an interpreter computes, and no time says anything about a GPU.
    Tiny,
    /// With `--quick`.
    Quick,
    /// Shapes of real models.
    Full,
}

impl Scale {
    /// The scale of a run. The stand-in is known by the driver itself, not by an option.
    pub fn of(bench: &Bench) -> Scale {
        Scale::new(bench.device.driver().is_stand_in(), bench.setup)
    }

    /// The scale of a run on the stand-in, or on a GPU.
    pub fn new(stand_in: bool, setup: ProbeOptions) -> Scale {
        if stand_in { Scale::Tiny } else { setup.pick(Scale::Quick, Scale::Full) }
    }

    /// Returns the value for this scale.
    pub fn pick<T>(self, tiny: T, quick: T, full: T) -> T {
        match self {
            Scale::Tiny => tiny,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }
}

//! [`SmallerFloor`].

use sluice_types::ModelTenantSpec;
use sluice_types::pool::Policy;

use crate::resource_demand::moves_layers;

/// The fields of a tenant that lower its floor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmallerFloor {
    /// It asks for guaranteed KV.
    guaranteed_kv: bool,
    /// More of its layers could be remapped.
    max_remapped_percent: bool,
}

impl SmallerFloor {
    /// Returns the fields that apply to a tenant of `spec` in a pool of `policy`.
    pub fn of(spec: &ModelTenantSpec, policy: Policy) -> SmallerFloor {
        SmallerFloor {
            guaranteed_kv: spec.memory.guaranteed_kv.is_some(),
            max_remapped_percent: moves_layers(spec, policy) && spec.memory.max_remapped_percent < 100,
        }
    }

    /// Returns what to do, as the end of a sentence; empty if no field helps.
    pub(super) const fn advice(self) -> &'static str {
        match (self.guaranteed_kv, self.max_remapped_percent) {
            (true, true) => "; lower memory.guaranteedKv or raise memory.maxRemappedPercent",
            (true, false) => "; lower memory.guaranteedKv",
            (false, true) => "; raise memory.maxRemappedPercent",
            (false, false) => "",
        }
    }
}

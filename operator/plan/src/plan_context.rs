//! The input of a plan.

use sluice_types::{GpuPool, ModelTenant};

use crate::observed::ObservedPool;
use crate::validate::ClusterFeatures;
use crate::zone_disruption::ZoneDisruption;

/// Input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanContext<'a> {
    /// The pool; `None` = no pool of that name exists.
    pub pool: Option<&'a GpuPool>,
    /// The tenants that refer to it, without those that are being deleted.
    pub tenants: &'a [&'a ModelTenant],
    /// Their observed state.
    pub observed: &'a ObservedPool,
    /// Features of the cluster.
    pub cluster: ClusterFeatures,
    /// A node that has not been ready for this long is lost, seconds.
    pub grace_seconds: i64,
    /// Whether too many nodes are not ready at once.
    pub disruption: ZoneDisruption,
    /// Seconds since 1970.
    pub now: i64,
}

//! Assigns tenants to GPUs. Pure.

use std::collections::BTreeMap;

use sluice_types::GpuPool;
use sluice_types::pool::{GpuGroup, Sharing, SharingMode};

/// Most tenants of a GPU: each has one record in the ledger.
const MAX_TENANTS_PER_GPU: usize = 64;

/// A GPU of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuAssignment {
    /// Its name, unique in the namespace.
    pub gpu: String,
    /// Sharing mode of the GPU's tenants.
    pub sharing: Sharing,
}

/// Number of tenants per GPU, by namespace and name.
#[derive(Debug, Default)]
pub struct GpuOccupancy(BTreeMap<(String, String), usize>);

impl GpuOccupancy {
    /// Assigns the next tenant to the GPU with the fewest tenants, the first such in the order of the file, among those
    /// of the group `wanted` (`None` = any of the pool).
    ///
    /// # Errors
    /// No GPU takes another tenant; the message has the reason.
    pub fn assign(
        &mut self,
        namespace: &str,
        pool: &GpuPool,
        wanted: Option<&str>,
    ) -> Result<GpuAssignment, &'static str> {
        let pool_name = pool.metadata.name.as_deref().unwrap_or_default();
        let fits = |group: &&GpuGroup| wanted.is_none_or(|name| name == group.name);
        let gpus = pool.spec.gpus.iter().filter(fits).flat_map(|group| {
            (0..group.count).map(move |index| (group, format!("{pool_name}-{}-{index}", group.name)))
        });
        let tenants = |gpu: &str| self.0.get(&(namespace.to_owned(), gpu.to_owned())).copied().unwrap_or(0);
        let open = gpus
            .map(|(group, gpu)| (tenants(&gpu), group, gpu))
            .filter(|(n, group, _)| *n < max_tenants(group));
        let Some((_, group, gpu)) = open.min_by_key(|(n, ..)| *n) else {
            return Err(no_capacity_message(pool.spec.gpus.iter().filter(fits)));
        };
        *self.0.entry((namespace.to_owned(), gpu.clone())).or_insert(0) += 1;
        Ok(GpuAssignment { gpu, sharing: group.sharing.clone() })
    }
}

fn max_tenants(group: &GpuGroup) -> usize {
    if is_isolated(group) { 1 } else { MAX_TENANTS_PER_GPU }
}

fn is_isolated(group: &GpuGroup) -> bool {
    group.sharing.mode == SharingMode::Isolated
}

fn no_capacity_message<'a>(mut groups: impl Iterator<Item = &'a GpuGroup>) -> &'static str {
    if groups.any(is_isolated) {
        return "every GPU that it may use has its tenants: an Isolated GPU made of host memory is one slice, for one \
                tenant; raise count, or share by turns (Temporal) or at once (Spatial)";
    }
    "every GPU that it may use has 64 tenants, the most that one serves; raise count"
}

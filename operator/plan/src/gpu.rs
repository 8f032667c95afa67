//! The GPUs of a pool, and what each offers to slots.

use sluice_types::GpuPool;
use sluice_types::pool::{GpuGroup, Sharing, SharingMode};

use crate::gpu_settings::GpuSettings;
use crate::objects::fnv1a;

/// Most slots that share a GPU by turns: each has one record in the neighbourhood's ledger.
const MAX_TEMPORAL_SLOTS: usize = 64;
/// Most clients of an MPS daemon that a pool makes, two processes for each slot (DESIGN-kubernetes 2).
const MAX_SPATIAL_SLOTS: usize = 20;

/// A GPU of a pool; of an `Isolated` group, one hardware instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its name: pool, group and index.
    pub name: String,
    /// Its group.
    pub group: String,
    /// What its pods are made of: as the pool says, or as before for as long as a change waits.
    pub settings: GpuSettings,
    /// Device memory, bytes; `None` = not known before a claim is allocated.
    pub capacity_bytes: Option<u64>,
    /// Device memory when it last had a claim, bytes: what does not fit there is not tried again. `None` = it had none under
    /// this spec of its pool: nothing is refused for its size.
    pub last_known_bytes: Option<u64>,
    /// Host memory for its slots, as the pool says, bytes.
    pub host_bytes: u64,
    /// Memory of its node for its slots' pods, bytes; `None` = it has no node yet.
    pub node_bytes: Option<u64>,
    /// The pool has it no more: it stays for the slots that are on it, and takes nobody else.
    pub is_draining: bool,
}

impl Gpu {
    /// Most slots that it takes.
    pub fn max_slots(&self) -> usize {
        match self.settings.sharing.mode {
            SharingMode::Temporal => MAX_TEMPORAL_SLOTS,
            SharingMode::Spatial => MAX_SPATIAL_SLOTS,
            SharingMode::Isolated => 1,
        }
    }

    /// Device memory that slots are placed by, bytes.
    pub fn expected_bytes(&self) -> Option<u64> {
        self.capacity_bytes.or(self.last_known_bytes)
    }

    /// The same GPU, of which other settings are in force.
    pub(crate) fn with_settings(self, settings: GpuSettings, known: GpuSizes) -> Gpu {
        Gpu { capacity_bytes: settings.device_bytes().or(known.capacity_bytes), settings, ..self }
    }
}

/// What is known of a GPU from the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuSizes {
    /// Device memory as its ResourceSlice or its sidecars tell it, bytes.
    pub capacity_bytes: Option<u64>,
    /// The same when it last had a claim, as the status of its pool keeps it, bytes.
    pub last_known_bytes: Option<u64>,
    /// Memory of its node that pods may take and other pods did not, bytes.
    pub node_bytes: Option<u64>,
}

/// The group of the GPU `gpu` of `pool`, by their names; `None` = it is of another pool.
pub(crate) fn group_of<'n>(pool: &str, gpu: &'n str) -> Option<&'n str> {
    let rest = gpu.strip_prefix(pool)?.strip_prefix('-')?;
    let group = |text: &'n str| {
        let (group, index) = text.rsplit_once('-')?;
        (gpu_name(pool, group, index.parse().ok()?) == gpu).then_some(group)
    };
    group(rest).or_else(|| group(rest.rsplit_once('-')?.0))
}

/// A GPU that `pool` has no more, in what was its group.
pub(crate) fn draining_gpu(pool: &GpuPool, group: &str, known: GpuSizes, name: &str) -> Gpu {
    let named = pool.spec.gpus.iter().find(|known| known.name == group).cloned();
    let group =
        named.unwrap_or_else(|| GpuGroup { name: group.to_owned(), count: 0, sharing: Sharing::default() });
    Gpu { is_draining: true, ..build_gpu(pool, &group, known, name.to_owned()) }
}

/// All GPUs of `pool` as it says them, in the order of its groups. `known` tells what the cluster says of one, by its name.
pub fn gpus(pool: &GpuPool, known: &dyn Fn(&str) -> GpuSizes) -> Vec<Gpu> {
    let pool_name = pool.metadata.name.as_deref().unwrap_or_default();
    let indices = pool.spec.gpus.iter().flat_map(|group| (0..group.count).map(move |index| (group, index)));
    let groups = indices.map(|(group, index)| (group, gpu_name(pool_name, &group.name, index)));
    groups.map(|(group, name)| build_gpu(pool, group, known(&name), name)).collect()
}

/// Pool, group and index. With a dash in the group's name nobody could tell where the pool's name ends, and two pools would
/// share a GPU's claim: a digest tells them apart, longer than an index.
fn gpu_name(pool: &str, group: &str, index: i32) -> String {
    let plain = format!("{pool}-{group}-{index}");
    if !group.contains('-') {
        return plain;
    }
    let digest = fnv1a(&format!("{pool}/{group}")) & 0x00ff_ffff;
    format!("{plain}-{digest:06x}")
}

fn build_gpu(pool: &GpuPool, group: &GpuGroup, known: GpuSizes, name: String) -> Gpu {
    let settings = GpuSettings::from_group(&pool.spec, group);
    Gpu {
        name,
        group: group.name.clone(),
        capacity_bytes: settings.device_bytes().or(known.capacity_bytes),
        last_known_bytes: known.last_known_bytes,
        settings,
        host_bytes: pool.spec.host_memory_per_gpu.bytes(),
        node_bytes: known.node_bytes,
        is_draining: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_gpu_of_the_pool_has_is_of_no_group() {
        for gpu in ["p-chat", "q-chat-0", "p-chat-x", "p-chat-00", "pchat-0", "p-a-b-0", "p-a-b-0-000000"] {
            assert_eq!(group_of("p", gpu), None, "{gpu}");
        }
    }

    #[test]
    fn two_gpus_never_have_one_name() {
        assert_eq!(gpu_name("gh200", "chat", 3), "gh200-chat-3");
        let words = ["a", "b", "a-b", "b-a", "a-0", "0", "a-b-0", "b-0-1"];
        let mut seen = std::collections::BTreeMap::new();
        for pool in words {
            for group in words {
                for index in [0, 1, 10, 1023] {
                    let other = seen.insert(gpu_name(pool, group, index), (pool, group, index));
                    assert_eq!(other, None, "{pool} {group} {index}");
                    assert_eq!(group_of(pool, &gpu_name(pool, group, index)), Some(group));
                }
            }
        }
    }
}

//! The GPUs of a pool, and the capacity that each offers to slots.

use sluice_common::hash::fnv1a;
use sluice_types::GpuPool;
use sluice_types::pool::{GpuGroup, Sharing, SharingMode};

use crate::gpu_settings::GpuSettings;

/// Maximum slots on a time-sliced GPU: each has one record in the GPU ledger.
const MAX_TEMPORAL_SLOTS: usize = 64;
/// Maximum slots on a GPU under MPS: the daemon limits clients, and each slot has two processes.
const MAX_SPATIAL_SLOTS: usize = 20;

/// A GPU of a pool; in an `Isolated` group, one hardware instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its name: pool, group and index.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Settings of its pods: those of the pool, or those of its claim while an update is pending.
    pub settings: GpuSettings,
    /// Device memory, bytes; `None` = not known before a claim is allocated.
    pub capacity_bytes: Option<u64>,
    /// Device memory when it last had a claim, bytes. Slots that exceed it are not tried again. `None` = it had no
    /// claim under this spec of its pool, and no slot is rejected for its size.
    pub last_known_bytes: Option<u64>,
    /// Host memory for its slots from the pool's spec, bytes.
    pub host_bytes: u64,
    /// Memory of its node for its slots' pods, bytes; `None` = it has no node yet.
    pub node_bytes: Option<u64>,
    /// The pool no longer has it: it keeps its current slots and accepts no new ones.
    pub is_draining: bool,
}

impl Gpu {
    /// Returns the maximum number of slots.
    pub fn max_slots(&self) -> usize {
        match self.settings.sharing.mode {
            SharingMode::Temporal => MAX_TEMPORAL_SLOTS,
            SharingMode::Spatial => MAX_SPATIAL_SLOTS,
            SharingMode::Isolated => 1,
        }
    }

    /// Returns the device memory that placement uses, bytes.
    pub fn expected_bytes(&self) -> Option<u64> {
        self.capacity_bytes.or(self.last_known_bytes)
    }

    /// Returns the same GPU with other settings in force.
    pub(crate) fn with_settings(self, settings: GpuSettings, known: GpuSizes) -> Gpu {
        Gpu { capacity_bytes: settings.device_bytes().or(known.capacity_bytes), settings, ..self }
    }
}

/// Sizes of a GPU that the cluster reveals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuSizes {
    /// Device memory from its ResourceSlice or its sidecars, bytes.
    pub capacity_bytes: Option<u64>,
    /// Device memory when it last had a claim, from the pool's status, bytes.
    pub last_known_bytes: Option<u64>,
    /// Allocatable memory of its node that other pods have not requested, bytes.
    pub node_bytes: Option<u64>,
}

/// Returns the group in the name of GPU `gpu`; `None` = the GPU belongs to another pool than `pool`.
pub(crate) fn group_of<'n>(pool: &str, gpu: &'n str) -> Option<&'n str> {
    let rest = gpu.strip_prefix(pool)?.strip_prefix('-')?;
    let group = |text: &'n str| {
        let (group, index) = text.rsplit_once('-')?;
        (gpu_name(pool, group, index.parse().ok()?) == gpu).then_some(group)
    };
    group(rest).or_else(|| group(rest.rsplit_once('-')?.0))
}

/// Returns a GPU that `pool` no longer has, in its former group.
pub(crate) fn draining_gpu(pool: &GpuPool, group: &str, known: GpuSizes, name: &str) -> Gpu {
    let named = pool.spec.gpus.iter().find(|known| known.name == group).cloned();
    let group =
        named.unwrap_or_else(|| GpuGroup { name: group.to_owned(), count: 0, sharing: Sharing::default() });
    Gpu { is_draining: true, ..build_gpu(pool, &group, known, name.to_owned()) }
}

/// Returns all GPUs of `pool` as its spec defines them, in the order of its groups. `known` returns the observed
/// sizes by GPU name.
pub fn gpus(pool: &GpuPool, known: &dyn Fn(&str) -> GpuSizes) -> Vec<Gpu> {
    let pool_name = pool.metadata.name.as_deref().unwrap_or_default();
    let indices = pool.spec.gpus.iter().flat_map(|group| (0..group.count).map(move |index| (group, index)));
    let groups = indices.map(|(group, index)| (group, gpu_name(pool_name, &group.name, index)));
    groups.map(|(group, name)| build_gpu(pool, group, known(&name), name)).collect()
}

/// Returns pool, group and index joined by dashes. With a dash in the group's name the end of the pool's name is
/// ambiguous, and two pools could share a claim: a digest, which is longer than an index, makes the name unique.
fn gpu_name(pool: &str, group: &str, index: i32) -> String {
    let plain = format!("{pool}-{group}-{index}");
    if !group.contains('-') {
        return plain;
    }
    let digest = fnv1a(format!("{pool}/{group}").bytes()) & 0x00ff_ffff;
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

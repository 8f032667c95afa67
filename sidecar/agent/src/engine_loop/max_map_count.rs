//! Checks that the kernel allows as many mappings as the engine may need of host memory.
//!
//! Each chunk is mapped by itself. The kernel merges adjacent mappings only while their chunks are adjacent too, which
//! ends as memory moves. Then every position counts against `vm.max_map_count`, and a further mapping fails during
//! serving.

use sluice_link::message::EngineSetup;

use super::load::error::LoadError;

const LIMIT_FILE: &str = "/proc/sys/vm/max_map_count";
/// Other mappings of a process: its binary, libraries, stacks, heaps, the tables.
const BASE_MAPPINGS: u64 = 1024;

/// Numbers of mappings that the engine may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingDemand {
    /// Mappings if every backed position is a mapping of its own.
    pub backed: u64,
    /// Mappings if every position is a mapping of its own or a hole: memory that moves is mapped at its old and its new
    /// address for a while.
    pub worst: u64,
}

/// Returns the mappings that an engine with `setup` may need.
pub fn mapping_demand(setup: &EngineSetup) -> MappingDemand {
    let layers = u64::from(setup.layer_chunks()) * u64::from(setup.spec.layers);
    let ranges = [setup.global_chunks(), setup.kv_chunks, setup.activation_chunks, setup.staging_chunks];
    // Each range ends with a guard, which is a hole.
    let guards = ranges.len() as u64 + u64::from(setup.spec.layers);
    let positions = layers + ranges.iter().map(|chunks| u64::from(*chunks)).sum::<u64>();
    // A chunk backs one position, but a chunk of a slot backs one in each layer that shares the slot.
    let backed = positions.min(u64::from(setup.capacity_chunks) + layers);
    MappingDemand { backed: backed + BASE_MAPPINGS, worst: positions + guards + BASE_MAPPINGS }
}

/// Returns the kernel's limit. `None` if it cannot be read.
pub fn kernel_limit() -> Option<u64> {
    std::fs::read_to_string(LIMIT_FILE).ok()?.trim().parse().ok()
}

/// Rejects a demand that fails once memory has moved. Returns a warning if only the worst case exceeds the limit.
///
/// # Errors
/// The message names the fixes: larger chunks, or the command that raises the limit.
pub fn check(need: MappingDemand, limit: Option<u64>) -> Result<Option<String>, LoadError> {
    let Some(limit) = limit else { return Ok(None) };
    let worst = need.worst;
    let remedy = format!("use larger chunks, or raise the limit: sysctl -w vm.max_map_count={worst}");
    if need.backed > limit {
        let problem = format!(
            "the engine may need {worst} mappings, and the kernel allows {limit} ({LIMIT_FILE}); {remedy}"
        );
        return Err(LoadError::Config { field: "gpu.chunk_bytes", problem });
    }
    let tight =
        || format!("a fragmented engine may need {worst} mappings, and the kernel allows {limit}; {remedy}");
    Ok((worst > limit).then(tight))
}

#[cfg(test)]
mod tests {
    use super::super::engine_acceptor::tests::setup;
    use super::*;

    /// [`setup`] has 1 global chunk, 3 layers of 1 chunk, and 16 chunks of device memory.
    fn demand_for(chunks: u32) -> MappingDemand {
        let mut setup = setup();
        (setup.capacity_chunks, setup.kv_chunks, setup.activation_chunks) = (chunks, chunks, chunks);
        mapping_demand(&setup)
    }

    #[test]
    fn demand_counts_chunks_once_and_slots_per_layer() {
        // 4 positions of weights, one KV and one activation position per chunk, and a guard behind each of 7 ranges.
        assert_eq!(demand_for(16), MappingDemand { backed: 19 + 1024, worst: 43 + 1024 });
        assert_eq!(demand_for(60_000), MappingDemand { backed: 60_003 + 1024, worst: 120_011 + 1024 });
    }

    #[test]
    fn demand_over_limit_is_refused_with_sysctl_command() {
        let error = check(demand_for(65_536), Some(65_530)).unwrap_err().to_string();
        assert!(error.starts_with("gpu.chunk_bytes: "), "{error}");
        assert!(error.ends_with("sysctl -w vm.max_map_count=132107"), "{error}");
        assert_eq!(check(demand_for(65_536), Some(132_107)).unwrap(), None);
        assert_eq!(check(demand_for(65_536), None).unwrap(), None, "a kernel that does not say");
    }

    #[test]
    fn demand_over_limit_by_holes_only_is_a_warning() {
        let warning = check(demand_for(40_000), Some(65_530)).unwrap().expect("a warning");
        assert!(warning.ends_with("sysctl -w vm.max_map_count=81035"), "{warning}");
        assert_eq!(check(demand_for(16), Some(65_530)).unwrap(), None);
    }
}

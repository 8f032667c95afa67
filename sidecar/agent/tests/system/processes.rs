//! Tests of the engine's process from outside: its mappings, open files and private memory.

use std::collections::BTreeMap;
use std::path::Path;

use sluice_common::random::Rng;
use sluice_wire::State;

use crate::machine::HOST_CHUNK;
use crate::models::{Shape, generate};
use crate::support::{Tenant, TestRequest, config, random_prompt};

const MIB: u64 = 1 << 20;
/// Most private memory of an engine, for any model.
const PRIVATE_LIMIT_BYTES: u64 = 64 * MIB;
/// Largest difference of private memory between models.
const PRIVATE_SLACK_BYTES: u64 = 4 * MIB;

/// One entry of `/proc/PID/smaps`.
#[derive(Clone, Debug)]
struct MappedRange {
    from: u64,
    to: u64,
    permissions: String,
    offset: u64,
    path: String,
    /// Pages that no other process maps.
    private_bytes: u64,
}

impl MappedRange {
    fn is_pool(&self) -> bool {
        self.path.contains("memfd:sluice-chunks")
    }

    /// Whether the range is reserved without memory.
    fn is_unbacked(&self) -> bool {
        self.permissions == "---p" && self.path.is_empty()
    }

    fn parse(header: &str) -> MappedRange {
        let fields: Vec<_> = header.split_whitespace().collect();
        let (from, to) = fields[0].split_once('-').unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        MappedRange {
            from: hex(from),
            to: hex(to),
            permissions: fields[1].into(),
            offset: hex(fields[2]),
            path: fields[5..].join(" "),
            private_bytes: 0,
        }
    }
}

fn mapped_ranges(pid: u32) -> Vec<MappedRange> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut areas: Vec<MappedRange> = Vec::new();
    for line in text.lines() {
        let (name, value) = line.split_once(' ').unwrap();
        match name {
            "Private_Clean:" | "Private_Dirty:" | "Swap:" => {
                let kib: u64 = value.trim().trim_end_matches(" kB").parse().unwrap();
                areas.last_mut().unwrap().private_bytes += kib * 1024;
            }
            _ if name.ends_with(':') => {}
            _ => areas.push(MappedRange::parse(line)),
        }
    }
    areas
}

/// Returns the mapped chunks of the pool, each with the number of its mappings.
fn mapped_chunks(areas: &[MappedRange]) -> BTreeMap<u64, u64> {
    let mut chunks = BTreeMap::new();
    for area in areas.iter().filter(|area| area.is_pool()) {
        for chunk in area.offset / HOST_CHUNK..(area.offset + area.to - area.from).div_ceil(HOST_CHUNK) {
            *chunks.entry(chunk).or_default() += 1;
        }
    }
    chunks
}

/// Asserts that all ranges are in one reservation without other mappings or holes.
fn assert_ranges_are_backed_by_the_pool_or_nothing(areas: &[MappedRange]) {
    let first = areas.iter().position(MappedRange::is_pool).expect("something is mapped");
    let last = areas.iter().rposition(MappedRange::is_pool).unwrap();
    for pair in areas[first..=last].windows(2) {
        assert_eq!(pair[0].to, pair[1].from, "no hole that another mapping could take: {pair:#?}");
    }
    for area in &areas[first..=last] {
        assert!(area.is_pool() || area.is_unbacked(), "{area:#?}");
        assert!(!(area.is_unbacked() && area.private_bytes > 0), "{area:#?}");
    }
}

fn assert_no_model_file(pid: u32, areas: &[MappedRange], model: &Path) {
    let folder = model.to_str().unwrap();
    let mapped = areas.iter().find(|area| area.path.starts_with(folder) || area.path.contains("safetensors"));
    assert!(mapped.is_none(), "{mapped:#?}");
    for descriptor in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        // A descriptor that was closed since the listing is not open.
        let Ok(target) = std::fs::read_link(descriptor.unwrap().path()) else { continue };
        assert!(!target.starts_with(model), "{} is open", target.display());
    }
}

fn requests() -> Vec<TestRequest> {
    let mut rng = Rng::new(53);
    (0..4).map(|_| TestRequest::greedy(&random_prompt(&mut rng, 100, 512), 20)).collect()
}

/// Serves, inspects the engine while layers move, and returns its private bytes outside of the pool.
fn inspect(shape: &Shape, memory_bytes: u64) -> u64 {
    let model = generate(shape);
    let mut config = config(model.path(), memory_bytes, "Oneiros");
    config.max_model_len = Some(256);
    config.debug.force_remap = Some((2, 1));
    let tenant = Tenant::start(config);
    tenant.serve_concurrently(&requests());
    let state = tenant.state();
    let pid = state.engine.pid.unwrap();
    let areas = mapped_ranges(pid);
    assert_ranges_are_backed_by_the_pool_or_nothing(&areas);
    assert_no_model_file(pid, &areas, model.path());
    assert_mapped_is_owned(&areas, &state, memory_bytes);
    let others = areas.iter().filter(|area| !area.is_pool());
    others.map(|area| area.private_bytes).sum()
}

fn assert_mapped_is_owned(areas: &[MappedRange], state: &State, memory_bytes: u64) {
    let chunks = mapped_chunks(areas);
    let mapped_bytes = chunks.len() as u64 * HOST_CHUNK;
    assert!(mapped_bytes <= memory_bytes, "{mapped_bytes} bytes are mapped of {memory_bytes}");
    let owners = &state.memory.owners;
    assert_eq!(mapped_bytes, state.memory.capacity_bytes - owners.free_bytes, "mapped is what is owned");
    let shared = chunks.values().filter(|times| **times == 3).count() as u64;
    assert_eq!(shared * HOST_CHUNK, owners.slots_bytes, "the slot is mapped at its three layers");
    assert_eq!(chunks.values().filter(|times| **times > 1).count() as u64, shared, "and nothing else twice");
}

#[test]
fn engine_maps_only_pool_and_private_memory_is_bounded() {
    let shape = |layers| Shape { family: "llama", dtype: "bf16", layers, hidden: 256, vocab: 512 };
    let small = inspect(&shape(8), 32 * MIB);
    let large = inspect(&shape(16), 64 * MIB);
    eprintln!("private: {} KiB and {} KiB", small / 1024, large / 1024);
    assert!(small.max(large) <= PRIVATE_LIMIT_BYTES, "{small} and {large} bytes");
    assert!(small.abs_diff(large) <= PRIVATE_SLACK_BYTES, "{small} and {large} bytes");
}

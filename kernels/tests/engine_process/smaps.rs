//! Checks an engine's memory in `/proc`: lent chunks or reserved ranges, and little private memory.

use std::fs::read_to_string;

use sluice_link::message::Faults;
use sluice_link::model::{Dtype, ModelSpec};

use super::harness::*;
use crate::specs::llama;

/// One entry of `/proc/PID/smaps`.
#[derive(Debug)]
struct Vma {
    start: u64,
    end: u64,
    permissions: String,
    name: String,
    /// Bytes of anonymous pages; text and shared memory are not counted.
    anonymous_bytes: u64,
    resident_bytes: u64,
}

impl Vma {
    fn bytes(&self) -> u64 {
        self.end - self.start
    }

    fn is_pool(&self) -> bool {
        self.name.starts_with("/memfd:sluice-test-pool")
    }
}

fn smaps(pid: u32) -> Vec<Vma> {
    let text = read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut vmas: Vec<Vma> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let mut size = || words.next().unwrap().parse::<u64>().unwrap() * 1024;
        if first == "Anonymous:" {
            vmas.last_mut().unwrap().anonymous_bytes = size();
        } else if first == "Rss:" {
            vmas.last_mut().unwrap().resident_bytes = size();
        } else if let Some((start, end)) = first.split_once('-') {
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let permissions = words.next().unwrap().to_owned();
            let name = words.skip(3).collect::<Vec<_>>().join(" ");
            let (start, end) = (number(start), number(end));
            vmas.push(Vma { start, end, permissions, name, anonymous_bytes: 0, resident_bytes: 0 });
        }
    }
    vmas
}

/// Returns private memory in bytes: anonymous pages, and all resident pages of private mappings, text included. The
/// second number is larger; the first does not depend on other processes that run the same program.
fn private_bytes(vmas: &[Vma]) -> (u64, u64) {
    let private = || vmas.iter().filter(|vma| vma.permissions.ends_with('p'));
    let own = private().map(|vma| vma.anonymous_bytes).sum();
    (own, private().map(|vma| vma.resident_bytes).sum())
}

/// Returns a model with 4 MiB of weights per layer.
fn wide(layers: u16) -> ModelSpec {
    ModelSpec {
        hidden: 256,
        intermediate: 1024,
        heads: 8,
        kv_heads: 8,
        head_dim: 32,
        layers,
        ..llama(Dtype::F32)
    }
}

/// Runs some steps on a model of `layers` layers, checks its ranges and returns its private memory in bytes.
fn measured(layers: u16) -> (u64, u64) {
    let mut sidecar = MiniSidecar::new(&wide(layers), Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    sidecar.generate(&mut link, &[1, 2, 3, 4, 5], 8);
    let vmas = smaps(link.hello.pid);
    check_ranges(&sidecar, &vmas);
    check_files(link.hello.pid, &vmas);
    private_bytes(&vmas)
}

/// Checks that the ranges hold only pool chunks or reserved addresses, and that each chunk of the pool is mapped once.
fn check_ranges(sidecar: &MiniSidecar, vmas: &[Vma]) {
    let pool: Vec<&Vma> = vmas.iter().filter(|vma| vma.is_pool()).collect();
    let mapped: u64 = pool.iter().map(|vma| vma.bytes()).sum();
    assert_eq!(
        mapped,
        u64::from(sidecar.chunk_layout.end) * sidecar.setup.chunk_bytes,
        "each chunk of the pool is mapped once"
    );
    assert!(pool.iter().all(|vma| vma.permissions == "rw-s"), "chunks are shared, never copied");
    let (start, end) = (pool[0].start, pool[pool.len() - 1].end);
    let mut at = start;
    for vma in vmas.iter().filter(|vma| vma.start >= start && vma.end <= end) {
        assert_eq!(vma.start, at, "a hole in the ranges, which another allocation could take");
        at = vma.end;
        assert!(vma.is_pool() || vma.permissions == "---p", "{vma:?} is neither the pool's nor PROT_NONE");
    }
    assert_eq!(at, end);
}

/// Checks that no model file is mapped or open.
fn check_files(pid: u32, vmas: &[Vma]) {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open = open.map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string());
    for name in open.chain(vmas.iter().map(|vma| vma.name.clone())) {
        let file = ["safetensors", ".json", "tokenizer"].iter().any(|part| name.contains(part));
        assert!(!file, "{name} is a model's file");
    }
}

#[test]
fn ranges_are_lent_chunks_or_nothing_and_private_memory_does_not_grow_with_the_model() {
    const MIB: u64 = 1 << 20;
    let ((one, one_resident), (twice, twice_resident)) = (measured(6), measured(12));
    let kib = [one, one_resident, twice, twice_resident].map(|bytes| bytes / 1024);
    eprintln!("private and resident KiB, then those of a model twice the size: {kib:?}");
    assert!(one_resident.max(twice_resident) <= 64 * MIB, "{one_resident} and {twice_resident} bytes");
    // The second model has 24 MiB more weights: a copy of a twentieth of them would show.
    assert!(one.abs_diff(twice) <= MIB, "{one} and {twice} bytes");
}

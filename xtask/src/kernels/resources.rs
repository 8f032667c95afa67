//! What the assembler gives each kernel: registers, shared memory, spills, and the occupancy that follows.
//!
//! The assembler reads the committed PTX, line information and all, as a driver of its version does. A driver of another
//! version may give a kernel other registers.
//!
//! A multiprocessor runs a block when registers, shared memory, threads and a block number are free for it (CUDA C++
//! Programming Guide, "Technical Specifications per Compute Capability"). Registers belong to four parts of 16,384 each
//! and are given to a warp in units of 256. Shared memory is given in units of 128 bytes, and each block costs another
//! 1,024 bytes. Only static shared memory is counted; no kernel here has any other.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

const PARTS: u32 = 4;
const PART_REGISTERS: u32 = 16_384;
const WARP_REGISTER_UNIT: u32 = 256;
const SHARED_UNIT: u32 = 128;
const SHARED_PER_BLOCK: u32 = 1024;

/// What a multiprocessor has.
struct Limits {
    architecture: &'static str,
    threads: u32,
    blocks: u32,
    shared_bytes: u32,
}

const LIMITS: [Limits; 3] = [
    Limits { architecture: "sm_80", threads: 2048, blocks: 32, shared_bytes: 164 << 10 },
    Limits { architecture: "sm_90", threads: 2048, blocks: 32, shared_bytes: 228 << 10 },
    Limits { architecture: "sm_100", threads: 2048, blocks: 32, shared_bytes: 228 << 10 },
];

/// A kernel's share of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    registers: u32,
    shared_bytes: u32,
    stack_bytes: u32,
    spill_bytes: u32,
}

/// The committed table: by kernel, then by architecture.
#[derive(Default)]
pub struct Table {
    kernels: BTreeMap<String, (u32, BTreeMap<&'static str, Needs>)>,
}

impl Table {
    /// Adds the kernels of one source: its PTX, and per architecture what the assembler said.
    ///
    /// # Errors
    /// If a kernel spills registers, has a stack, or states no number of threads (`__launch_bounds__`).
    pub fn add(&mut self, ptx: &str, logs: &[(&'static str, String)]) -> Result<()> {
        let threads = threads(ptx)?;
        for (architecture, log) in logs {
            for (kernel, needs) in needs(log)? {
                ensure!(
                    needs.spill_bytes == 0 && needs.stack_bytes == 0,
                    "{kernel} for {architecture} has {} bytes of stack and {} of spills; both must be 0",
                    needs.stack_bytes,
                    needs.spill_bytes
                );
                let block =
                    *threads.get(&kernel).with_context(|| format!("{kernel} has no launch bounds"))?;
                let row = self.kernels.entry(kernel).or_insert_with(|| (block, BTreeMap::new()));
                row.1.insert(architecture, needs);
            }
        }
        Ok(())
    }

    /// The table as text, one line per kernel and architecture.
    pub fn json(&self) -> String {
        let kernel = |(name, (threads, rows)): (&String, &(u32, BTreeMap<&str, Needs>))| {
            let rows: Vec<_> = rows
                .iter()
                .map(|(architecture, needs)| {
                    format!("    \"{architecture}\": {}", row(architecture, *threads, *needs))
                })
                .collect();
            format!("  \"{name}\": {{\n    \"threads\": {threads},\n{}\n  }}", rows.join(",\n"))
        };
        let kernels: Vec<_> = self.kernels.iter().map(kernel).collect();
        if kernels.is_empty() { "{}\n".to_owned() } else { format!("{{\n{}\n}}\n", kernels.join(",\n")) }
    }
}

fn row(architecture: &str, threads: u32, needs: Needs) -> Value {
    let limits = LIMITS.iter().find(|limits| limits.architecture == architecture);
    let blocks = blocks(limits.expect("every architecture has its limits"), threads, needs);
    json!({
        "registers": needs.registers,
        "shared_bytes": needs.shared_bytes,
        "blocks": blocks,
        "occupancy_percent": 100 * blocks * threads / limits.expect("as above").threads,
    })
}

/// Blocks that a multiprocessor runs at once.
fn blocks(limits: &Limits, threads: u32, needs: Needs) -> u32 {
    let warps = threads.div_ceil(32);
    let warp_registers = (needs.registers * 32).next_multiple_of(WARP_REGISTER_UNIT).max(WARP_REGISTER_UNIT);
    let by_registers = PARTS * (PART_REGISTERS / warp_registers) / warps;
    let by_shared =
        limits.shared_bytes / (needs.shared_bytes + SHARED_PER_BLOCK).next_multiple_of(SHARED_UNIT);
    let by_threads = limits.threads / (warps * 32);
    by_registers.min(by_shared).min(by_threads).min(limits.blocks)
}

/// Threads of a block by kernel, from the directive `.maxntid`.
fn threads(ptx: &str) -> Result<BTreeMap<String, u32>> {
    let mut all = BTreeMap::new();
    let mut kernel = None;
    for line in ptx.lines() {
        if let Some(rest) = line.split_once(".entry ") {
            kernel = rest.1.split('(').next().map(ToOwned::to_owned);
        } else if let Some(sizes) = line.strip_prefix(".maxntid ") {
            let sizes: Vec<u32> =
                sizes.split(',').map(|size| size.trim().parse()).collect::<Result<_, _>>()?;
            all.insert(kernel.take().context("a size of blocks before its kernel")?, sizes.iter().product());
        }
    }
    Ok(all)
}

/// Reads the assembler's log. A kernel has three lines: its name, its stack and spills, its registers and memory.
fn needs(log: &str) -> Result<Vec<(String, Needs)>> {
    let mut all = Vec::new();
    let (mut kernel, mut stack, mut spills) = (None, 0, 0);
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().map(ToOwned::to_owned);
        } else if line.contains("bytes stack frame") {
            stack = before(line, " bytes stack frame").unwrap_or(0);
            let stores = before(line, " bytes spill stores").unwrap_or(0);
            spills = stores + before(line, " bytes spill loads").unwrap_or(0);
        } else if line.contains("Used ") {
            let registers = before(line, " registers").context("a log without a number of registers")?;
            let shared_bytes = before(line, " bytes smem").unwrap_or(0);
            let needs = Needs { registers, shared_bytes, stack_bytes: stack, spill_bytes: spills };
            all.push((kernel.take().context("registers of no kernel")?, needs));
        }
    }
    Ok(all)
}

/// The number that stands before `unit`.
fn before(line: &str, unit: &str) -> Option<u32> {
    line.split(unit).next().filter(|text| text.len() < line.len())?.rsplit([' ', ',']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, 34816 bytes smem, 448 bytes cmem[0]";

    #[test]
    fn the_log_of_the_assembler_gives_registers_memory_and_spills() {
        let expected = Needs { registers: 168, shared_bytes: 34_816, stack_bytes: 8, spill_bytes: 16 };
        assert_eq!(needs(LOG).expect("it is a log"), [("k".to_owned(), expected)]);
    }

    #[test]
    fn a_kernel_that_spills_or_has_no_launch_bounds_is_refused() {
        let entry = ".visible .entry k(\n)\n.maxntid 128, 1, 1\n";
        let add = |ptx: &str, log: &str| {
            Table::default().add(ptx, &[("sm_80", log.to_owned())]).map_err(|error| error.to_string())
        };
        assert!(add(entry, LOG).expect_err("it spills").contains("16 of spills"));
        let clean = LOG.replace("8 bytes stack", "0 bytes stack");
        let clean =
            clean.replace("4 bytes spill", "0 bytes spill").replace("12 bytes spill", "0 bytes spill");
        add(entry, &clean).expect("it does not spill");
        assert!(add("", &clean).expect_err("no bounds").contains("no launch bounds"));
    }

    #[test]
    fn occupancy_is_that_of_the_published_calculator() {
        // NVIDIA's occupancy calculator: 128 threads of 168 registers fill an SM with 3 blocks, of 64 with 8 blocks.
        let needs =
            |registers, shared_bytes| Needs { registers, shared_bytes, stack_bytes: 0, spill_bytes: 0 };
        assert_eq!(blocks(&LIMITS[0], 128, needs(168, 0)), 3);
        assert_eq!(blocks(&LIMITS[0], 128, needs(64, 0)), 8);
        assert_eq!(blocks(&LIMITS[0], 256, needs(32, 0)), 8, "2048 threads");
        assert_eq!(blocks(&LIMITS[0], 128, needs(32, 48 << 10)), 3, "164 KiB of shared memory");
        assert_eq!(blocks(&LIMITS[1], 128, needs(32, 48 << 10)), 4, "228 KiB of shared memory");
    }
}

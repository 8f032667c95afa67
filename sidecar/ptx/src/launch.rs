//! Launches: what is asked for, and what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::check::global::Shadow;
use crate::memory::GlobalMemory;
use crate::module::Kernel;
use crate::traffic::{SourceLine, Traffic};

/// Static shared memory that a kernel can have.
pub const STATIC_SHARED_LIMIT: u64 = 48 << 10;
/// Static and dynamic shared memory that a block can have, on chips of compute capability 9.0.
pub const SHARED_LIMIT: u64 = 227 << 10;
/// Threads that a block can have.
pub const BLOCK_LIMIT: u64 = 1024;

/// What a kernel is launched with.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared_bytes: u32,
    /// The parameters, laid out as [`Kernel::params`] says.
    pub params: &'a [u8],
}

/// How much is looked after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Bounds and alignment, of every access.
    #[default]
    Fast,
    /// Uninitialised reads, races, copies without a wait and barriers that not all threads reach as well. Some 10 to 70
    /// times slower.
    Checked,
}

/// How a launch is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How much is looked after.
    pub mode: Mode,
    /// Threads of the host that run blocks.
    pub workers: usize,
    /// Seed of the order in which the warps of a block run; 0 is the order of their numbers.
    pub warp_order_seed: u64,
    /// Whether to count memory accesses by source line.
    pub profile: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { mode: Mode::Fast, workers: 1, warp_order_seed: 0, profile: false }
    }
}

/// What a launch did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Instructions, each counted once for the lanes that ran it together.
    pub warp_instructions: u64,
    /// Instructions, each counted once for each thread.
    pub thread_instructions: u64,
    /// Memory accesses by source line, with [`Options::profile`].
    pub lines: BTreeMap<SourceLine, Traffic>,
}

impl Stats {
    /// The sum over all source lines.
    pub fn traffic(&self) -> Traffic {
        let mut sum = Traffic::default();
        self.lines.values().for_each(|line| sum.add(line));
        sum
    }

    pub(crate) fn add(&mut self, other: &Stats) {
        self.warp_instructions += other.warp_instructions;
        self.thread_instructions += other.thread_instructions;
        for (line, traffic) in &other.lines {
            self.lines.entry(*line).or_default().add(traffic);
        }
    }
}

/// What all blocks of a launch share.
pub(crate) struct Shared<'a> {
    pub kernel: &'a Kernel,
    pub launch: &'a Launch<'a>,
    pub memory: &'a dyn GlobalMemory,
    pub options: &'a Options,
    /// Another block has ended with a fault.
    pub stop: AtomicBool,
    /// The last uses of the bytes of global memory, in checked mode.
    pub shadow: Arc<Shadow>,
}

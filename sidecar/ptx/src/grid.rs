//! The threads of the host that run the blocks of a launch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::block::Block;
use crate::fault::{Fault, FaultKind, Place};
use crate::launch::{BLOCK_LIMIT, Launch, Options, SHARED_LIMIT, STATIC_SHARED_LIMIT, Shared, Stats};
use crate::memory::GlobalMemory;
use crate::module::Kernel;

/// Runs a kernel to its end.
///
/// # Errors
/// A launch that CUDA refuses, or the first fault of a thread. The writes of other threads until then stay.
pub fn launch(
    kernel: &Kernel,
    launch: &Launch,
    memory: &dyn GlobalMemory,
    options: &Options,
) -> Result<Stats, Fault> {
    if let Err(kind) = check(kernel, launch) {
        let place = Place { kernel: kernel.name.clone(), ..Place::default() };
        return Err(Fault { kind, place: Box::new(place) });
    }
    let blocks = launch.grid.iter().map(|n| u64::from(*n)).product::<u64>();
    let grid = Grid {
        shared: Shared {
            kernel,
            launch,
            memory,
            options,
            stop: AtomicBool::new(false),
            shadow: Arc::default(),
        },
        blocks,
        next: AtomicU64::new(0),
        outcome: Mutex::new(Ok(Stats::default())),
    };
    let workers = options.workers.clamp(1, blocks.min(1 << 10) as usize);
    if workers == 1 {
        grid.work();
    } else {
        std::thread::scope(|scope| (0..workers).for_each(|_| _ = scope.spawn(|| grid.work())));
    }
    grid.outcome.into_inner().expect("no worker panicked")
}

/// A launch that runs.
struct Grid<'a> {
    shared: Shared<'a>,
    blocks: u64,
    /// The next block.
    next: AtomicU64,
    outcome: Mutex<Result<Stats, Fault>>,
}

impl Grid<'_> {
    /// Runs blocks until none is left.
    fn work(&self) {
        let mut block = Block::new(&self.shared);
        let mut result = Ok(());
        while result.is_ok() && !self.shared.stop.load(Relaxed) {
            let number = self.next.fetch_add(1, Relaxed);
            if number >= self.blocks {
                break;
            }
            result = block.run(number);
        }
        let mut outcome = self.outcome.lock().expect("no worker panicked");
        match (result, &mut *outcome) {
            (Ok(()), Ok(stats)) => stats.add(&block.stats()),
            (Err(fault), Ok(_)) => {
                self.shared.stop.store(true, Relaxed);
                *outcome = Err(fault);
            }
            (_, Err(_)) => {}
        }
    }
}

/// What CUDA refuses before a launch.
fn check(kernel: &Kernel, launch: &Launch) -> Result<(), FaultKind> {
    let (expected, given) = (kernel.param_bytes, launch.params.len());
    if expected != given {
        return Err(FaultKind::ParameterBytes { expected, given });
    }
    let [x, y, z] = launch.grid;
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
        return Err(FaultKind::GridSize { grid: launch.grid });
    }
    let threads = launch.block.iter().fold(1, |all: u64, n| all.saturating_mul(u64::from(*n)));
    let limit = kernel.max_threads.map_or(BLOCK_LIMIT, |most| BLOCK_LIMIT.min(u64::from(most)));
    if threads == 0 || threads > limit || launch.block[2] > 64 {
        return Err(FaultKind::BlockSize { threads, limit });
    }
    let fixed = u64::from(kernel.static_shared_bytes);
    if fixed > STATIC_SHARED_LIMIT {
        return Err(FaultKind::SharedBytes { bytes: fixed, limit: STATIC_SHARED_LIMIT });
    }
    let bytes = u64::from(kernel.dynamic_shared_start()) + u64::from(launch.dynamic_shared_bytes);
    if bytes > SHARED_LIMIT {
        return Err(FaultKind::SharedBytes { bytes, limit: SHARED_LIMIT });
    }
    Ok(())
}

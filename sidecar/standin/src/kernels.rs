//! The kernels of `sidecar/probe/cuda/probe.cu` by name, as Rust functions of their arguments.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::abi::{InPtr, code};
use crate::address_space::{View, word};
use crate::wait_until::wait_until;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Spin,
    Read,
    Product,
    Write,
    Compare,
    Await,
}

const ALL: [(&str, Kernel, usize); 6] = [
    ("sluice_spin", Kernel::Spin, 1),
    ("sluice_read", Kernel::Read, 3),
    ("sluice_product", Kernel::Product, 4),
    ("sluice_write", Kernel::Write, 3),
    ("sluice_compare", Kernel::Compare, 4),
    ("sluice_await", Kernel::Await, 5),
];

impl Kernel {
    /// Returns the kernel with this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|(known, ..)| *known == name).map(|(_, kernel, _)| *kernel)
    }

    /// Returns offset and bytes of an argument, each a 64-bit word.
    pub fn parameter(self, index: usize) -> Option<(usize, usize)> {
        let count = ALL.iter().find(|(_, kernel, _)| *kernel == self).map_or(0, |(.., count)| *count);
        (index < count).then_some((index * 8, 8))
    }

    /// Returns the shared memory that every block has.
    pub fn static_shared_bytes(self) -> u32 {
        0
    }

    /// Returns the most threads of a block, if the kernel says so.
    pub fn most_threads(self) -> Option<u32> {
        None
    }

    /// Reads the arguments of a launch.
    pub fn read_arguments(self, parameters: &InPtr<InPtr<u8>>) -> Result<Vec<u64>, u32> {
        let mut arguments = Vec::new();
        while self.parameter(arguments.len()).is_some() {
            // SAFETY: by the caller's guarantee the pointer leads to as many bytes as the parameter has.
            let place = unsafe { InPtr::new(parameters.at(arguments.len())?.raw().cast::<u64>()) };
            arguments.push(place.get()?);
        }
        Ok(arguments)
    }
}

/// A kernel and its arguments.
#[derive(Clone)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// The arguments, as many as the kernel has.
    pub arguments: Vec<u64>,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
}

impl Launch {
    /// Runs the kernel.
    pub fn run(&self, given_up: &(dyn Fn() -> bool + Sync)) -> Result<(), u32> {
        let arguments = self.arguments.as_slice();
        let threads = self.grid.iter().chain(&self.block).map(|count| u64::from(*count)).product();
        match (self.kernel, arguments) {
            (Kernel::Spin, &[ns]) => spin(Duration::from_nanos(ns), given_up),
            (Kernel::Read, &[from, count, sums]) => read(from, count, sums, threads),
            (Kernel::Product, &[a, b, c, n]) => product([a, b, c], n),
            (Kernel::Write, &[words, count, value]) => write(words, count, value),
            (Kernel::Compare, &[words, count, value, wrong]) => compare(words, count, value, wrong),
            (Kernel::Await, &[flag, counter, bump, limit_ns, gave_up]) => {
                await_flag(flag, counter, bump, Duration::from_nanos(limit_ns), gave_up, given_up)
            }
            _ => Err(code::INVALID_VALUE),
        }
    }
}

fn spin(time: Duration, given_up: &(dyn Fn() -> bool + Sync)) -> Result<(), u32> {
    let start = Instant::now();
    wait_until(given_up, || Ok(start.elapsed() >= time))
}

fn read(from: u64, count: u64, sums: u64, threads: u64) -> Result<(), u32> {
    let view = View::new();
    let (from, sums) =
        (view.host(from, count * 16)?.cast::<f32>(), view.host(sums, threads * 4)?.cast::<f32>());
    let mut sum = 0.0_f32;
    for at in 0..(count * 4) as usize {
        // SAFETY: inside the mapped range, which stays mapped while the view exists.
        sum += unsafe { from.add(at).read_unaligned() };
    }
    for at in 0..threads as usize {
        // SAFETY: as above.
        unsafe { sums.add(at).write_unaligned(sum) };
    }
    Ok(())
}

fn product(matrices: [u64; 3], n: u64) -> Result<(), u32> {
    let view = View::new();
    let bytes = n * n * 4;
    let [a, b, c] = matrices.map(|address| view.host(address, bytes).map(<*mut u8>::cast::<f32>));
    let (a, b, c, n) = (a?, b?, c?, n as usize);
    // Compute only one band of tiles: a core needs minutes for a large product, and the other rows are never read.
    for row in 0..n.min(64) {
        for column in 0..n {
            // SAFETY: indices below n x n, inside the mapped ranges, which stay mapped while the view exists.
            unsafe { c.add(row * n + column).write_unaligned(0.0) };
        }
        for k in 0..n {
            // SAFETY: as above.
            let left = unsafe { a.add(row * n + k).read_unaligned() };
            for column in 0..n {
                // SAFETY: as above.
                unsafe {
                    let sum = c.add(row * n + column);
                    sum.write_unaligned(sum.read_unaligned() + left * b.add(k * n + column).read_unaligned());
                }
            }
        }
    }
    Ok(())
}

fn write(words: u64, count: u64, value: u64) -> Result<(), u32> {
    let view = View::new();
    let words = view.host(words, count * 8)?.cast::<u64>();
    for at in 0..count {
        // SAFETY: inside the mapped range, which stays mapped while the view exists. Volatile: another process may read
        // the words.
        unsafe { words.add(at as usize).write_volatile(value.wrapping_add(at)) };
    }
    std::sync::atomic::fence(Ordering::Release);
    Ok(())
}

fn compare(words: u64, count: u64, value: u64, wrong: u64) -> Result<(), u32> {
    let view = View::new();
    let place = view.host(words, count * 8)?.cast::<u64>();
    // SAFETY: inside the mapped range, which stays mapped while the view exists.
    let bad =
        (0..count).filter(|at| unsafe { place.add(*at as usize).read() } != value.wrapping_add(*at)).count();
    drop(view);
    word(wrong, |word| word.fetch_add(bad as u64, Ordering::AcqRel)).map(|_| ())
}

fn await_flag(
    flag: u64,
    counter: u64,
    bump: u64,
    limit: Duration,
    gave_up: u64,
    given_up: &(dyn Fn() -> bool + Sync),
) -> Result<(), u32> {
    let wanted = word(counter, |word| word.load(Ordering::Acquire))?;
    let start = Instant::now();
    let mut reached = false;
    wait_until(given_up, || {
        reached = word(flag, |word| word.load(Ordering::Acquire))? >= wanted;
        Ok(reached || start.elapsed() > limit)
    })?;
    if reached {
        word(counter, |word| word.store(wanted + bump, Ordering::Release))
    } else {
        word(gave_up, |word| word.fetch_add(1, Ordering::AcqRel)).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn every_source_kernel_exists_with_same_argument_count() {
        let source = include_str!("../../probe/cuda/probe.cu");
        let kernels = source.lines().filter_map(|line| line.strip_prefix("extern \"C\" __global__ void "));
        let kernels: Vec<_> = kernels
            .filter_map(|line| line.split_once('('))
            .map(|(name, arguments)| (name, arguments.matches(',').count() + 1))
            .collect();
        assert_eq!(kernels, ALL.map(|(name, _, count)| (name, count)));
    }
}

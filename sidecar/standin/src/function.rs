//! Functions of modules: the limits of their launches.

use crate::abi::code;
use crate::kernels::Kernel;

/// Shared memory of a block in bytes that needs no opting in, and with it: those of an H100.
const SHARED_BYTES: u32 = 48 << 10;
const SHARED_BYTES_OPT_IN: u32 = 227 << 10;
/// Of a multiprocessor: shared memory in bytes, of which each block takes some more, threads, blocks, registers.
const SHARED_BYTES_PER_PROCESSOR: u32 = 228 << 10;
const SHARED_BYTES_RESERVED: u32 = 1 << 10;
const THREADS_PER_PROCESSOR: u32 = 2048;
const BLOCKS_PER_PROCESSOR: u32 = 32;
const REGISTERS_PER_PROCESSOR: u32 = 65536;
/// Registers of a thread. No compiler is here that could count them.
const REGISTERS: u32 = 32;
/// Most blocks in y and z, and most threads of a block in all and in z.
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65535, 65535];
const MOST_THREADS: u32 = 1024;
const MOST_THREADS_Z: u32 = 64;

/// A kernel of a module, as `cuModuleGetFunction` returns it.
#[derive(Clone)]
pub struct Function {
    /// Module of the kernel.
    pub module: usize,
    /// The kernel.
    pub kernel: Kernel,
    /// Whether its code is loaded; the first launch loads it.
    pub loaded: bool,
    /// Most bytes of dynamic shared memory of a launch.
    dynamic_shared: u32,
    carveout: i32,
}

impl Function {
    /// Returns a function with the driver's defaults.
    pub fn new(module: usize, kernel: Kernel, loaded: bool) -> Self {
        let dynamic_shared = SHARED_BYTES.saturating_sub(kernel.static_shared_bytes());
        Self { module, kernel, loaded, dynamic_shared, carveout: -1 }
    }

    /// Returns a `CUfunction_attribute`.
    pub fn attribute(&self, attribute: u32) -> Result<i32, u32> {
        let value = match attribute {
            0 => self.most_threads(),
            1 => self.kernel.static_shared_bytes(),
            // Constants and local memory.
            2 | 3 => 0,
            4 => REGISTERS,
            // The versions of the PTX and of the machine code.
            5 => 80,
            6 => 90,
            7 => 0,
            8 => self.dynamic_shared,
            9 => return Ok(self.carveout),
            _ => return Err(code::NOT_SUPPORTED),
        };
        Ok(value.cast_signed())
    }

    /// Sets a `CUfunction_attribute`: those of shared memory can be set.
    pub fn set_attribute(&mut self, attribute: u32, value: i32) -> Result<(), u32> {
        match attribute {
            8 => {
                let most = SHARED_BYTES_OPT_IN - self.kernel.static_shared_bytes();
                let bytes = u32::try_from(value).ok().filter(|bytes| *bytes <= most);
                self.dynamic_shared = bytes.ok_or(code::INVALID_VALUE)?;
            }
            9 if (-1..=100).contains(&value) => self.carveout = value,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }

    /// Checks the shape of a launch: blocks, threads of a block, bytes of dynamic shared memory.
    pub fn check_launch(&self, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Result<(), u32> {
        let threads = block.iter().try_fold(1_u32, |product, count| product.checked_mul(*count));
        let fits = threads.is_some_and(|threads| (1..=self.most_threads()).contains(&threads))
            && block[2] <= MOST_THREADS_Z
            && grid.iter().zip(MOST_BLOCKS).all(|(blocks, most)| (1..=most).contains(blocks))
            && shared_bytes <= self.dynamic_shared;
        if fits { Ok(()) } else { Err(code::INVALID_VALUE) }
    }

    /// Returns how many blocks a multiprocessor holds at once.
    pub fn occupancy(&self, threads: i32, shared_bytes: usize) -> Result<i32, u32> {
        let threads =
            u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(code::INVALID_VALUE)?;
        let shared = u32::try_from(shared_bytes).map_err(|_| code::INVALID_VALUE)?;
        if threads > self.most_threads() || shared > self.dynamic_shared {
            return Ok(0);
        }
        let warps = threads.next_multiple_of(32);
        let bytes = self.kernel.static_shared_bytes() + shared + SHARED_BYTES_RESERVED;
        let limits = [
            THREADS_PER_PROCESSOR / warps,
            BLOCKS_PER_PROCESSOR,
            REGISTERS_PER_PROCESSOR / (REGISTERS * warps),
            SHARED_BYTES_PER_PROCESSOR / bytes,
        ];
        Ok(limits.into_iter().min().unwrap_or(0).cast_signed())
    }

    fn most_threads(&self) -> u32 {
        self.kernel.most_threads().unwrap_or(MOST_THREADS).min(MOST_THREADS)
    }
}

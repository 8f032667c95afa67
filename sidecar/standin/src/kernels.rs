//! Kernels: those of a module's PTX, run by the interpreter over the addresses of this process.

use std::sync::Arc;

use sluice_ptx::{FaultKind, Mode, Options};

use crate::abi::{InPtr, code};
use crate::device_memory::DeviceMemory;
use crate::env_config::ENV_CONFIG;

/// A kernel of a module.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<sluice_ptx::Module>,
    name: Arc<str>,
}

/// A kernel and its arguments.
#[derive(Clone)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// The arguments, as the kernel lays them out.
    pub arguments: Vec<u8>,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
}

impl Kernel {
    /// Returns the kernel with this name.
    pub fn named(module: &Arc<sluice_ptx::Module>, name: &str) -> Option<Self> {
        module.kernel(name).map(|_| Self { module: Arc::clone(module), name: name.into() })
    }

    /// Returns offset and bytes of a parameter.
    pub fn parameter(&self, index: usize) -> Option<(usize, usize)> {
        self.parsed().params().get(index).map(|parameter| (parameter.offset, parameter.bytes))
    }

    /// Returns the shared memory that every block has.
    pub fn static_shared_bytes(&self) -> u32 {
        self.parsed().static_shared_bytes()
    }

    /// Returns the most threads of a block, if the kernel says so.
    pub fn most_threads(&self) -> Option<u32> {
        self.parsed().max_threads()
    }

    /// Reads the arguments of a launch: of each as many bytes as the kernel declares.
    pub fn read_arguments(&self, parameters: &InPtr<InPtr<u8>>) -> Result<Vec<u8>, u32> {
        let kernel = self.parsed();
        let mut arguments = vec![0; kernel.param_bytes()];
        for (index, parameter) in kernel.params().iter().enumerate() {
            let place = parameters.at(index)?.raw();
            if place.is_null() {
                return Err(code::INVALID_VALUE);
            }
            let target = &mut arguments[parameter.offset..parameter.offset + parameter.bytes];
            // SAFETY: not null, so by the caller's guarantee it leads to as many bytes as the parameter has.
            unsafe { std::ptr::copy_nonoverlapping(place, target.as_mut_ptr(), target.len()) };
        }
        Ok(arguments)
    }

    fn parsed(&self) -> &sluice_ptx::Kernel {
        self.module.kernel(&self.name).expect("it was there when the function was looked up")
    }
}

impl Launch {
    /// Runs the kernel.
    pub fn run(&self, given_up: &(dyn Fn() -> bool + Sync)) -> Result<(), u32> {
        let launch = sluice_ptx::Launch {
            grid: limited(self.grid, ENV_CONFIG.blocks.get(&*self.kernel.name).copied()),
            block: self.block,
            dynamic_shared_bytes: self.shared_bytes,
            params: &self.arguments,
        };
        let mode = if ENV_CONFIG.checked { Mode::Checked } else { Mode::Fast };
        let options = Options { mode, workers: ENV_CONFIG.workers, ..Options::default() };
        match sluice_ptx::launch(self.kernel.parsed(), &launch, &DeviceMemory::new(given_up), &options) {
            Ok(_) => Ok(()),
            Err(fault) if fault.kind == FaultKind::Cancelled => Ok(()),
            Err(fault) => {
                eprintln!("stand-in: {fault}");
                Err(match fault.kind {
                    FaultKind::OutOfBounds { .. } => code::ILLEGAL_ADDRESS,
                    FaultKind::Misaligned { .. } => code::MISALIGNED_ADDRESS,
                    _ => code::LAUNCH_FAILED,
                })
            }
        }
    }
}

/// Returns at most `most` blocks: fewer in z, then in y, then in x.
fn limited(grid: [u32; 3], most: Option<u32>) -> [u32; 3] {
    let Some(most) = most else { return grid };
    let [x, y, z] = grid;
    let x = x.min(most);
    let y = y.min(most / x).max(1);
    [x, y, z.min(most / (x * y)).max(1)]
}

#[cfg(test)]
mod tests {
    use super::limited;

    #[test]
    fn a_limit_leaves_whole_rows_of_blocks() {
        assert_eq!(limited([4, 4, 4], None), [4, 4, 4]);
        assert_eq!(limited([4, 4, 4], Some(64)), [4, 4, 4]);
        assert_eq!(limited([4, 4, 4], Some(33)), [4, 4, 2]);
        assert_eq!(limited([4, 4, 4], Some(9)), [4, 2, 1]);
        assert_eq!(limited([4, 4, 4], Some(3)), [3, 1, 1]);
    }
}

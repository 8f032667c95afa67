//! The kernels on a GPU: all modules, loaded at once.

use std::collections::BTreeMap;
use std::ffi::CString;

use sluice_memory::cuda::{Context, Error, Function, Grid, Module as LoadedModule, Stream};

use crate::cuda::{LaunchPlan, Module};

/// Every kernel, by name.
#[derive(Debug)]
pub struct CudaKernels {
    functions: BTreeMap<&'static str, Function>,
}

impl CudaKernels {
    /// Loads all modules. The driver compiles their PTX for its device, unless its cache has the code already.
    pub fn load(context: &Context) -> Result<CudaKernels, Error> {
        let mut functions = BTreeMap::new();
        for module in Module::ALL {
            let image = CString::new(module.ptx()).expect("PTX is text");
            let loaded = LoadedModule::load(context, &image)?;
            for kernel in module.kernels() {
                functions.insert(kernel, loaded.function(kernel)?);
            }
        }
        Ok(CudaKernels { functions })
    }

    /// Queues a launch.
    pub fn launch(&self, stream: &Stream, plan: &LaunchPlan) -> Result<(), Error> {
        let function = self.functions.get(plan.kernel).expect("every module is loaded");
        let grid = Grid { blocks: plan.grid, threads: plan.block };
        // SAFETY: a plan holds the kernel's structure; a test compares the layout of each with the PTX. Kernels write
        // device memory alone.
        unsafe { stream.launch_with(function, grid, plan.shared_bytes, &plan.params) }
    }
}

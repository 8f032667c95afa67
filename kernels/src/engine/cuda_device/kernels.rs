//! What runs the operations of a step: the kernels of all modules, loaded at once, and cuBLASLt if it is wanted.

use std::collections::BTreeMap;
use std::ffi::CString;

use sluice_memory::cuda::{Context, Error, Function, Grid, Module as LoadedModule, Stream};

use super::products::ProductLibrary;
use crate::cuda::{LaunchPlan, Module, Operation, StepProgram};

/// Every kernel, by name.
#[derive(Debug)]
pub struct CudaKernels {
    functions: BTreeMap<&'static str, Function>,
    products: Option<ProductLibrary>,
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
        Ok(CudaKernels { functions, products: None })
    }

    /// Loads cuBLASLt, for programs with products of it.
    ///
    /// # Errors
    /// If no file of it fits the driver.
    pub fn load_cublaslt(&mut self, context: &Context) -> Result<(), Error> {
        self.products = Some(ProductLibrary::load(context)?);
        Ok(())
    }

    /// Queues an operation.
    ///
    /// # Panics
    /// If it is a product of cuBLASLt, which is not loaded.
    pub fn run(&self, stream: &Stream, operation: &Operation) -> Result<(), Error> {
        match operation {
            Operation::Launch(plan) => self.launch(stream, plan),
            Operation::Product(plan) => {
                let products = self.products.as_ref().expect("a program with products has their library");
                products.queue(stream, plan)
            }
        }
    }

    /// Queues a launch.
    pub fn launch(&self, stream: &Stream, plan: &LaunchPlan) -> Result<(), Error> {
        let function = self.functions.get(plan.kernel).expect("every module is loaded");
        let grid = Grid { blocks: plan.grid, threads: plan.block };
        // SAFETY: a plan holds the kernel's structure; a test compares the layout of each with the PTX. Kernels write
        // device memory alone.
        unsafe { stream.launch_with(function, grid, plan.shared_bytes, &plan.params) }
    }

    /// Prepares the capture of a program: queues one product of each shape that is new. cuBLASLt chooses the algorithm
    /// then and loads its code, and a capture must not. The results are overwritten by the program's own.
    pub fn prepare(&self, stream: &Stream, program: &StepProgram) -> Result<(), Error> {
        let Some(products) = &self.products else { return Ok(()) };
        program.operations().try_for_each(|operation| match operation {
            Operation::Product(plan) if !products.knows(plan) => products.queue(stream, plan),
            Operation::Product(_) | Operation::Launch(_) => Ok(()),
        })
    }
}

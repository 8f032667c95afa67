//! Modules, kernels and their launches.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;

use super::Error;
use super::driver::call;
use super::{Address, Context, Stream};

/// Code on the device, unloaded with its last function.
#[derive(Clone, Debug)]
pub struct Module {
    owned: Arc<ModuleHandle>,
}

#[derive(Debug)]
struct ModuleHandle {
    raw: sys::CUmodule,
    _context: Context,
}

// SAFETY: any thread may use a module; the driver does the necessary locking.
unsafe impl Send for ModuleHandle {}
// SAFETY: as above.
unsafe impl Sync for ModuleHandle {}

/// One kernel of a module.
#[derive(Debug)]
pub struct Function {
    raw: sys::CUfunction,
    _module: Module,
}

// SAFETY: any thread may use a function; the driver does the necessary locking.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// A kernel and its arguments: their number, order and types match the kernel.
#[derive(Debug)]
pub struct KernelLaunch<'a> {
    pub(super) function: &'a Function,
    pub(super) grid: Grid,
    pub(super) arguments: Vec<Argument>,
}

/// Number of threads of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Blocks, in x, y and z.
    pub blocks: [u32; 3],
    /// Threads per block, in x, y and z.
    pub threads: [u32; 3],
}

impl Grid {
    /// Returns a grid of `blocks` blocks with `threads` threads each, in one dimension.
    pub const fn line(blocks: u32, threads: u32) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1] }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// A pointer.
    Address(Address),
    /// `unsigned long long`.
    U64(u64),
}

impl Module {
    /// Loads PTX (which the driver compiles for its device) or a binary.
    pub fn load(context: &Context, image: &CStr) -> Result<Module, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the image ends with a zero byte, as PTX must.
        unsafe { call!(cuModuleLoadData(&mut raw, image.as_ptr().cast())) }?;
        Ok(Module { owned: Arc::new(ModuleHandle { raw, _context: context.clone() }) })
    }

    /// Returns the kernel with this name.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        let name = CString::new(name).expect("a kernel's name has no zero byte");
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer; the name ends with a zero byte.
        unsafe { call!(cuModuleGetFunction(&mut raw, self.owned.raw, name.as_ptr())) }?;
        Ok(Function { raw, _module: self.clone() })
    }
}

impl Drop for ModuleHandle {
    fn drop(&mut self) {
        // SAFETY: this value owns the module, and its functions do not outlive it. After a device fault every call
        // fails.
        let _ = unsafe { call!(cuModuleUnload(self.raw)) };
    }
}

impl Function {
    /// Returns the driver's pointer.
    pub fn raw(&self) -> sys::CUfunction {
        self.raw
    }
}

impl<'a> KernelLaunch<'a> {
    /// Combines a kernel with its arguments.
    ///
    /// # Safety
    /// The arguments match the kernel in number, order and type, and the kernel writes no host memory that Rust code
    /// uses other than as atomics.
    pub unsafe fn new(function: &'a Function, grid: Grid, arguments: Vec<Argument>) -> KernelLaunch<'a> {
        KernelLaunch { function, grid, arguments }
    }
}

impl Stream {
    /// Queues a kernel on the stream.
    pub fn launch(&self, launch: &KernelLaunch<'_>) -> Result<(), Error> {
        let KernelLaunch { function, grid, arguments } = launch;
        let mut values: Vec<u64> = arguments.iter().map(|argument| argument.bits()).collect();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        let ([x, y, z], [a, b, c]) = (grid.blocks, grid.threads);
        let (raw, list, none) = (self.raw(), places.as_mut_ptr(), ptr::null_mut());
        // SAFETY: during the call the driver copies the arguments, for each the number of bytes that the kernel
        // declares; every argument is a 64-bit word, and the launch was made with the kernel's arguments.
        unsafe { call!(cuLaunchKernel(function.raw, x, y, z, a, b, c, 0, raw, list, none)) }
    }
}

impl Stream {
    /// Queues a kernel that takes one structure, which `argument` holds byte for byte.
    ///
    /// # Safety
    /// The kernel has one parameter of this size and layout, and it writes no host memory that Rust code uses other than
    /// as atomics.
    pub unsafe fn launch_with(
        &self,
        function: &Function,
        grid: Grid,
        shared_bytes: u32,
        argument: &[u8],
    ) -> Result<(), Error> {
        let mut place = argument.as_ptr().cast_mut().cast::<c_void>();
        let ([x, y, z], [a, b, c]) = (grid.blocks, grid.threads);
        let (raw, list, none) = (self.raw(), &raw mut place, ptr::null_mut());
        // SAFETY: during the call the driver copies the argument, whose size is the parameter's by this function's
        // contract, and does not write it.
        unsafe { call!(cuLaunchKernel(function.raw, x, y, z, a, b, c, shared_bytes, raw, list, none)) }
    }
}

impl Argument {
    /// Returns the argument as a word, the driver's form.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Argument::Address(value) | Argument::U64(value) => value,
        }
    }
}

//! Kernels.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::rc::Rc;

use cudarc::driver::sys;

use super::{Address, Context, Stream};
use crate::Error;
use crate::driver::call;

/// Code on the device, unloaded with the last of its functions.
#[derive(Clone, Debug)]
pub struct Module {
    owned: Rc<ModuleHandle>,
}

#[derive(Debug)]
struct ModuleHandle {
    raw: sys::CUmodule,
    _context: Context,
}

/// One kernel of a module.
#[derive(Debug)]
pub struct Function {
    raw: sys::CUfunction,
    _module: Module,
}

/// A kernel with its arguments, made by `Kernels` for a graph: in number, order and type they are what the kernel takes.
#[derive(Debug)]
pub struct Launch<'a> {
    pub(super) function: &'a Function,
    pub(super) grid: Grid,
    pub(super) arguments: Vec<Argument>,
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Blocks, in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block, in x, y and z.
    pub threads: [u32; 3],
}

impl Grid {
    /// `blocks` of `threads`, in a line.
    pub const fn line(blocks: u32, threads: u32) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1] }
    }
}

/// A kernel's argument.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// A pointer.
    Address(Address),
    /// `unsigned long long`.
    U64(u64),
}

impl Module {
    /// Loads PTX (compiled by the driver for its device) or a binary.
    pub fn load(context: &Context, image: &CStr) -> Result<Module, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the image ends in a zero byte, as PTX must.
        unsafe { call!(cuModuleLoadData(&mut raw, image.as_ptr().cast())) }?;
        Ok(Module { owned: Rc::new(ModuleHandle { raw, _context: context.clone() }) })
    }

    /// The kernel of this name.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        let name = CString::new(name).expect("a kernel's name has no zero byte");
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer; the name ends in a zero byte.
        unsafe { call!(cuModuleGetFunction(&mut raw, self.owned.raw, name.as_ptr())) }?;
        Ok(Function { raw, _module: self.clone() })
    }
}

impl Drop for ModuleHandle {
    fn drop(&mut self) {
        // SAFETY: the module is ours and its functions do not outlive it. After a fault of the device every call fails.
        let _ = unsafe { call!(cuModuleUnload(self.raw)) };
    }
}

impl Function {
    /// The driver's pointer.
    pub fn raw(&self) -> sys::CUfunction {
        self.raw
    }
}

impl Stream {
    /// Runs `function` after the stream's work so far.
    ///
    /// # Safety
    /// The arguments are those that the kernel takes, in number, order and type, and it writes to no host memory that Rust code
    /// uses other than as atomics.
    pub unsafe fn launch(
        &self,
        function: &Function,
        grid: Grid,
        arguments: &[Argument],
    ) -> Result<(), Error> {
        let mut values: Vec<u64> = arguments.iter().map(|argument| argument.bits()).collect();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        let ([x, y, z], [a, b, c]) = (grid.blocks, grid.threads);
        let (raw, list, none) = (self.raw(), places.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the driver copies the arguments during the call, as many bytes of each as the kernel declares; a `u32` lies in
        // the first four bytes of its word on the little-endian machines that CUDA runs on. The rest is the caller's promise.
        unsafe { call!(cuLaunchKernel(function.raw, x, y, z, a, b, c, 0, raw, list, none)) }
    }
}

impl Argument {
    /// As the driver takes it, in the first bytes of a word.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Argument::Address(value) | Argument::U64(value) => value,
        }
    }
}

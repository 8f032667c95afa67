//! Modules and kernels.

use std::ffi::{CStr, c_char, c_void};

use crate::abi::{InPtr, OutPtr, code};
use crate::call_guard::calls;
use crate::current_context::current;
use crate::env_config::ENV_CONFIG;
use crate::kernels::{Kernel, Launch};
use crate::objects::{Function, objects};
use crate::operation::Operation;
use crate::ptx_header;

use super::device::attribute;

calls! {
    Context fn cuModuleLoadData(module: OutPtr<usize>, image: *const c_char) {
        if image.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: every image is longer than this.
        if unsafe { image.cast::<[u8; 4]>().read_unaligned() } == *b"\x7fELF" {
            eprintln!("stand-in: a module is refused: it is a cubin, and only PTX can run here");
            return Err(code::NO_BINARY_FOR_GPU);
        }
        // SAFETY: the caller passes PTX, a text that ends with a zero byte.
        let image = unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| code::INVALID_IMAGE)?;
        let capability = attribute(75) * 10 + attribute(76);
        ptx_header::check(image, ENV_CONFIG.driver, capability.cast_unsigned()).map_err(|(code, words)| {
            eprintln!("stand-in: a module is refused: {words}");
            code
        })?;
        let mut objects = objects();
        let number = objects.next_handle();
        objects.modules.insert(number, image.to_owned());
        module.set(number)
    }

    Start fn cuModuleUnload(module: usize) {
        let mut objects = objects();
        objects.functions.retain(|_, function| function.module != module);
        objects.modules.remove(&module).map(drop).ok_or(code::INVALID_HANDLE)
    }

    Context fn cuModuleGetFunction(function: OutPtr<usize>, module: usize, name: *const c_char) {
        if name.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller passes a name that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| code::NOT_FOUND)?;
        let mut objects = objects();
        let image = objects.modules.get(&module).ok_or(code::INVALID_HANDLE)?;
        let declared = image.contains(&format!(".entry {name}("));
        let kernel = Kernel::named(name).filter(|_| declared).ok_or(code::NOT_FOUND)?;
        let number = objects.next_handle();
        let loaded = ENV_CONFIG.eager;
        objects.functions.insert(number, Function { module, kernel, loaded });
        function.set(number)
    }

    Context fn cuLaunchKernel(
        function: usize,
        grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32,
        _shared_bytes: u32,
        stream: usize,
        parameters: InPtr<InPtr<u64>>,
        extra: *const *const c_void,
    ) {
        let grid = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        let operation = launch(function, &grid, &parameters, extra.is_null())?;
        objects().stream(stream)?.push(operation);
        Ok(())
    }
}

/// Returns the launch of a kernel, with copies of its arguments.
pub fn launch(
    function: usize,
    grid: &[u32; 6],
    parameters: &InPtr<InPtr<u64>>,
    plain: bool,
) -> Result<Operation, u32> {
    let kernel = loaded(function)?;
    if !plain || grid.contains(&0) {
        return Err(code::INVALID_VALUE);
    }
    let arguments: Result<Vec<u64>, u32> =
        (0..kernel.arguments()).map(|index| parameters.at(index)?.get()).collect();
    let threads = grid.iter().map(|count| u64::from(*count)).product();
    Ok(Operation::Kernel(Launch { kernel, arguments: arguments?, threads }))
}

/// Returns the kernel of a function. Without eager loading, the first call waits for all streams of the context, as the
/// driver may do. A first launch therefore blocks if a queued wait needs later work of the caller.
fn loaded(function: usize) -> Result<Kernel, u32> {
    let known = *objects().functions.get(&function).ok_or(code::INVALID_HANDLE)?;
    if !known.loaded {
        let streams = objects().streams_of(current());
        streams.iter().for_each(|stream| stream.drain());
        objects().functions.insert(function, Function { loaded: true, ..known });
    }
    Ok(known.kernel)
}

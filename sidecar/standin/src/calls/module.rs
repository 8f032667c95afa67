//! Modules.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use crate::abi::{OutPtr, code};
use crate::call_guard::calls;
use crate::env_config::ENV_CONFIG;
use crate::function::Function;
use crate::kernels::Kernel;
use crate::objects::objects;
use crate::ptx_header;

use super::device::attribute;

calls! {
    Context fn cuModuleLoadData(module: OutPtr<usize>, image: *const c_char) {
        module.set(load(image)?)
    }

    // The options are those of a compiler, which is not here.
    Context fn cuModuleLoadDataEx(
        module: OutPtr<usize>, image: *const c_char,
        _count: u32, _options: *const u32, _values: *const *const c_void,
    ) {
        module.set(load(image)?)
    }

    // `CU_MODULE_EAGER_LOADING` is 1, `CU_MODULE_LAZY_LOADING` is 2.
    Start fn cuModuleGetLoadingMode(mode: OutPtr<u32>) {
        mode.set(if ENV_CONFIG.eager { 1 } else { 2 })
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
        let kernel = Kernel::named(image, name).ok_or(code::NOT_FOUND)?;
        let number = objects.next_handle();
        objects.functions.insert(number, Function::new(module, kernel, ENV_CONFIG.eager));
        function.set(number)
    }
}

/// Loads a module and returns its number.
fn load(image: *const c_char) -> Result<usize, u32> {
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
    let parsed = sluice_ptx::Module::parse(image).map_err(|error| {
        eprintln!("stand-in: a module is refused: {error}");
        code::INVALID_PTX
    })?;
    let mut objects = objects();
    let number = objects.next_handle();
    objects.modules.insert(number, Arc::new(parsed));
    Ok(number)
}

//! The functions of this library by name.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::abi::{OutPtr, code};
use crate::call_guard::calls;
use crate::env_config::ENV_CONFIG;

/// `CU_GET_PROC_ADDRESS_SUCCESS`, `_SYMBOL_NOT_FOUND` and `_VERSION_NOT_SUFFICIENT`.
const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const VERSION_NOT_SUFFICIENT: u32 = 2;

calls! {
    // Names have no suffix: the newest form of a function that the driver and the caller's version have is returned.
    Nothing fn cuGetProcAddress_v2(
        name: *const c_char, function: OutPtr<*mut c_void>, version: i32, _flags: u64, status: OutPtr<u32>,
    ) {
        if name.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller passes a name that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| code::INVALID_VALUE)?;
        let forms = ["_v3", "_v2", ""].map(|suffix| format!("{name}{suffix}"));
        let exported: Vec<_> = forms.iter().filter_map(|form| Some((form, exported(form)?))).collect();
        let driver = ENV_CONFIG.driver;
        let usable = exported.iter().find(|(form, _)| driver.since(form) <= version.min(driver.number()));
        let found = match (usable, exported.is_empty()) {
            (Some(_), _) => FOUND,
            (None, true) => NOT_FOUND,
            (None, false) => VERSION_NOT_SUFFICIENT,
        };
        // The status may not be wanted.
        let _ = status.set(found);
        function.set(usable.map_or(std::ptr::null_mut(), |(_, place)| *place))?;
        if found == FOUND { Ok(()) } else { Err(code::NOT_FOUND) }
    }
}

/// Returns the address of a function that this library exports.
fn exported(name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: a structure of pointers, which may be null.
    let mut own: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: looks up an address of this library and writes the structure.
    let is_known =
        unsafe { libc::dladdr((exported as fn(&str) -> Option<*mut c_void>) as *const c_void, &mut own) };
    if is_known == 0 {
        return None;
    }
    // SAFETY: the name of a library that is loaded, which stays loaded; nothing is initialized.
    let library = unsafe { libc::dlopen(own.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded; the symbol is only looked up.
    let place = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: gives back what `dlopen` counted; this library itself stays loaded.
    unsafe { libc::dlclose(library) };
    (!place.is_null()).then_some(place)
}
